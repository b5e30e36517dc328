"""A round as replicas play it: all take its steps or none, and a fault of one ends it for all."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import Barrier
from typing import Any

import pytest

from mac_runner.nano import ConstraintError, Delta, DivergenceError, EngineStats, NanoError, SamplingParams
from mac_runner.nano.testing import Admission, PeerLostError, PreparedRequest, Replica, Report, Round
from tests.patience import LIMIT_S

SIZE = 3
REQUEST = PreparedRequest(
    tokens=(1, 2), params=SamplingParams(), num_samples=1, num_tokens_max=9, grammar=None, is_streamed=False
)


class Table:
    """A meeting of threads."""

    def __init__(self) -> None:
        self._brought = dict[int, tuple[int, ...]]()
        self._all_here = Barrier(SIZE)

    def seat(self, number: int) -> Seat:
        return Seat(self, number)

    def largest(self, number: int, values: tuple[int, ...]) -> list[int]:
        self._brought[number] = values
        self._all_here.wait(LIMIT_S)
        return [max(column) for column in zip(*self._brought.values(), strict=True)]


class Seat:
    """What one replica sees of the meeting."""

    def __init__(self, table: Table, number: int) -> None:
        self._table, self._number = table, number

    def largest(self, *values: int) -> list[int]:
        return self._table.largest(self._number, values)


class Steps:
    """An engine that only counts, and refuses some requests."""

    def __init__(self, *, refuses: bool = False, version: int = 0) -> None:
        self.num_steps, self.admitted = 0, list[int]()
        self._refuses, self._version = refuses, version

    def get_weight_version(self) -> int:
        return self._version

    def add_prepared(self, request: PreparedRequest, request_id: int) -> int:
        if self._refuses:
            raise ConstraintError("cannot be followed")
        self.admitted.append(request_id)
        return request_id

    def abort_deltas(self, request_id: int | None) -> list[Delta]:
        self.admitted = [each for each in self.admitted if request_id not in (None, each)]
        return []

    def has_work(self, *, admits: bool) -> bool:
        return admits and bool(self.admitted)

    def step_along(self, *, admits: bool) -> list[Delta]:
        self.num_steps += 1
        return []

    def stats(self) -> EngineStats:
        zeros: dict[str, Any] = dict.fromkeys(EngineStats.__dataclass_fields__, 0)
        return EngineStats(**zeros)


def play(engines: list[Steps], *messages: Round) -> list[Report | BaseException]:
    """What each replica makes of its message; one message is for all."""
    table = Table()
    with ThreadPoolExecutor(SIZE) as threads:
        futures: list[Future[Report]] = [
            threads.submit(Replica(number, engine, table.seat(number)).play, messages[number % len(messages)])  # type: ignore[arg-type]
            for number, engine in enumerate(engines)
        ]
        wait(futures)
    return [future.exception() or future.result() for future in futures]


def admitting(*replicas: int, **changes: Any) -> Round:
    admissions = tuple(Admission(request_id=7 + each, replica=each, request=REQUEST) for each in replicas)
    settings: dict[str, Any] = {"number": 1, "version": 0, "num_steps": 2, "admissions": admissions, **changes}
    return Round(**settings)


def test_all_replicas_take_the_steps_of_a_round_as_soon_as_one_has_work() -> None:
    for busy in ((0,), (2,), (0, 1, 2)):
        engines = [Steps() for _ in range(SIZE)]
        reports = play(engines, admitting(*busy))

        assert [isinstance(each, Report) and not each.is_idle for each in reports] == [True] * SIZE
        assert [engine.num_steps for engine in engines] == [2] * SIZE
        assert [engine.admitted for engine in engines] == [[7 + n] if n in busy else [] for n in range(SIZE)]


def test_no_replica_steps_where_none_has_work() -> None:
    for message in (admitting(), admitting(1, admits=False), admitting(1, aborts=(None,)), admitting(0, aborts=(7,))):
        engines = [Steps() for _ in range(SIZE)]
        reports = play(engines, message)

        assert [isinstance(each, Report) and each.is_idle for each in reports] == [True] * SIZE
        assert [engine.num_steps for engine in engines] == [0] * SIZE


def test_fault_of_one_replica_ends_the_round_for_all_before_a_step() -> None:
    def kinds(found: list[Report | BaseException]) -> list[type]:
        return [type(each) for each in found]

    faulty = [Steps(), Steps(refuses=True), Steps()]
    stale = [Steps(), Steps(), Steps(version=3)]

    assert kinds(play(faulty, admitting(0, 1))) == [PeerLostError, ConstraintError, PeerLostError]
    assert kinds(play(stale, admitting(0))) == [PeerLostError, PeerLostError, DivergenceError]
    late = [Steps() for _ in range(SIZE)]
    found = play(late, admitting(0, number=4), admitting(0, number=4), admitting(0, number=5))
    assert kinds(found[:2]) == [PeerLostError, PeerLostError]
    assert [engine.num_steps for engine in (*faulty, *stale, *late[:2])] == [0] * 8
    with pytest.raises(NanoError, match=r"replica 2 .* weight_version: 3 and 0"):
        raise play(stale, admitting(0))[2]  # type: ignore[misc]


def test_grammars_stay_in_their_process() -> None:
    packed = admitting(0).packed()

    assert packed == admitting(0)
    assert all(each.request.grammar is None for each in packed.admissions)
