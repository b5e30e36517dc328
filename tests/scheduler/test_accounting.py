from __future__ import annotations

from mac_runner.scheduler import Accounting
from mac_runner.types import TokenCount


def test_busy_slot_time_is_the_integral_of_requests_in_flight() -> None:
    cpu_s = iter([3.0, 3.5])
    accounting = Accounting(started_at_s=100.0, concurrency=None, cpu_s=lambda: next(cpu_s))
    accounting.open("m", 4)
    accounting.departed("m", 100.0)
    accounting.departed("m", 102.0)
    accounting.landed("m", 105.0, TokenCount(prompt=10, cached=2, completion=3))
    accounting.landed("m", 106.0, None)

    # One in flight for 2 s, two for 3 s, one for 1 s, of four slots for 10 s.
    assert accounting.utilisation("m", 110.0) == 9 / 40
    assert accounting.as_json(110.0) == {
        "played_s": 10.0,
        "cpu_s": 0.5,
        "disk_turn_s": 0.0,
        "models": {
            "m": {
                "capacity": 4,
                "played_s": 10.0,
                "busy_slot_s": 9.0,
                "available_slot_s": 40.0,
                "waiting_turn_s": 0.0,
                "requests": 1,
                "faults": 1,
                "tokens": {"prompt": 10, "cached": 2, "completion": 3},
            }
        },
    }
    assert accounting.tokens == TokenCount(prompt=10, cached=2, completion=3)


def test_requests_still_in_flight_count_up_to_now() -> None:
    accounting = Accounting(started_at_s=0.0, concurrency=2)
    accounting.open("m", 64)
    accounting.departed("m", 0.0)

    assert accounting.utilisation("m", 4.0) == 0.5
    assert accounting.utilisation("m", 8.0) == 0.5


def test_slots_that_come_and_go_count_while_they_are_there() -> None:
    accounting = Accounting(started_at_s=0.0, concurrency=8)
    accounting.open("m", 64)
    accounting.departed("m", 0.0)
    accounting.set_pool("m", capacity=2, waiting=5, now_s=1.0)
    accounting.set_pool("m", capacity=64, waiting=0, now_s=3.0)

    # Eight slots for 1 s, two for 2 s, eight for 1 s.
    assert accounting.utilisation("m", 4.0) == 4 / 20
    assert accounting.usage(4.0).models["m"].waiting_turn_s == 10.0


def test_models_that_answer_without_a_count_are_silent() -> None:
    accounting = Accounting(started_at_s=0.0, concurrency=None)
    for model, tokens in (("counts", TokenCount(prompt=7)), ("silent", TokenCount()), ("failing", None)):
        accounting.open(model, 1)
        accounting.departed(model, 0.0)
        accounting.landed(model, 1.0, tokens)

    assert accounting.silent_models == ("silent",)


def test_utilisation_is_unknown_at_the_very_start() -> None:
    accounting = Accounting(started_at_s=0.0, concurrency=None)
    accounting.open("m", 1)

    assert accounting.utilisation("m", 0.0) is None
