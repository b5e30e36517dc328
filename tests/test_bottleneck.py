"""What limits a run is named, from what it used over a stretch of time."""

from __future__ import annotations

from mac_runner.bottleneck import ModelUsage, Usage, bottleneck, usage_of
from mac_runner.types import JsonObject


def _model(busy: float, slots: float, waiting: float) -> ModelUsage:
    """A model over ten seconds, by its means."""
    return ModelUsage(busy_slot_s=10 * busy, available_slot_s=10 * slots, waiting_turn_s=10 * waiting)


def _usage(*, cpu_s: float = 1.0, disk_turn_s: float = 0.0, requests: int = 1000, **models: ModelUsage) -> Usage:
    return Usage(played_s=10.0, cpu_s=cpu_s, disk_turn_s=disk_turn_s, requests=requests, models=models)


def test_each_limit_is_named_with_what_shows_it() -> None:
    free, full = _model(3, 8, 0), _model(8, 8, 12)
    cases = {
        "model b (8/8 busy, 12 waiting)": (_usage(a=free, b=full), False, None),
        "this process's CPU (0.95 ms a request)": (_usage(cpu_s=9.5, requests=10_000, b=full), False, None),
        "disk": (_usage(cpu_s=9.5, disk_turn_s=20.0, b=full), False, None),
        "too few conversations open (each waits for its own turn)": (_usage(a=free), False, None),
        "the last conversations (each waits for its own turn)": (_usage(a=free), True, None),
        "--concurrency 8 (20 waiting)": (_usage(a=_model(5, 8, 8), b=_model(3, 8, 12)), False, 8),
        "what fits at once into model b (3/8 busy, 12 waiting)": (_usage(b=_model(3, 8, 12)), False, None),
        # Every slot is in use, though nothing waits for long.
        "model b (8/8 busy, 0 waiting)": (_usage(b=_model(7.6, 8, 0.1)), False, None),
    }

    found = {
        words: bottleneck(used, is_all_open=is_all_open, concurrency=concurrency)
        for words, (used, is_all_open, concurrency) in cases.items()
    }

    assert found == {words: words for words in cases}


def test_nothing_is_said_before_the_first_reply() -> None:
    for used in (_usage(requests=0, a=_model(8, 8, 3)), _usage(), Usage(played_s=0.0, requests=3)):
        assert bottleneck(used, is_all_open=False) is None


def test_a_stretch_is_the_difference_of_two_moments_and_a_model_may_begin_within_it() -> None:
    before = Usage(played_s=5.0, cpu_s=1.0, requests=10, models={"a": _model(1, 2, 0)})
    after = Usage(
        played_s=15.0, cpu_s=4.0, disk_turn_s=2.0, requests=30, models={"a": _model(3, 4, 1), "b": _model(1, 1, 1)}
    )

    stretch = after.since(before)

    assert (stretch.played_s, stretch.cpu_s, stretch.disk_turn_s, stretch.requests) == (10.0, 3.0, 2.0, 20)
    assert stretch.models == {"a": _model(2, 2, 1), "b": _model(1, 1, 1)}


def test_accounts_of_a_journal_say_the_same_and_those_of_earlier_versions_say_nothing() -> None:
    account: JsonObject = {"busy_slot_s": 80.0, "available_slot_s": 80.0, "waiting_turn_s": 120.0, "requests": 1000}
    recorded: JsonObject = {"played_s": 10.0, "cpu_s": 1.0, "disk_turn_s": 0.0, "models": {"b": account}}

    assert usage_of(recorded) == _usage(b=_model(8, 8, 12))
    assert usage_of({"played_s": 10.0, "models": {"b": account}}) is None
