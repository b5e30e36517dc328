"""Games that do at one call what no game should: raise an odd exception, or give what cannot be used."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Callable
from contextlib import suppress
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

from msgspec import structs

from mac_runner import errors
from mac_runner.environments.checked import CheckedEnvironment
from mac_runner.steps import step_limit
from mac_runner.types import Message, Prompt, Receipt, ReceiptKind, Task, Turn
from tests.sim.toy import ToyConversation, ToyEnvironment

_BASES: tuple[type[BaseException], ...] = (
    *(Exception, BaseException, ValueError, KeyError, OSError, ImportError, RuntimeError, RecursionError),
    *(AssertionError, StopIteration, StopAsyncIteration, NotImplementedError, TimeoutError, ConnectionError),
    *(KeyboardInterrupt, GeneratorExit, SystemExit, asyncio.CancelledError),
    *(errors.ConversationError, errors.ConfigError, errors.StoreError, errors.EngineDeadError),
    *(errors.RunDirectoryError, errors.TransientBackendError, errors.RunLockedError),
)


def _raising(error: type[BaseException]) -> Callable[..., Any]:
    def raises(*_: object) -> Any:
        raise error("odd")

    return raises


def _deep(*_: object) -> Any:
    return _deep()


class _Odd:
    def __str__(self) -> str:
        raise GeneratorExit

    __repr__ = __str__


class _OddText(str):
    __slots__ = ()

    def __len__(self) -> int:
        raise GeneratorExit

    def __format__(self, _: str) -> str:
        raise SystemExit


class _Nameless(type):
    __name__ = property(_raising(ValueError))


def drawn_exception(random: Random) -> BaseException:
    """An exception of any base, whose text, attributes, class and arguments may be odd."""
    base = random.choice(_BASES)
    texts: list[Any] = [_raising(random.choice(_BASES)), lambda _: 17, lambda _: "\ud800\x00\x1b[2J" * 9_999, _deep]
    texts.append(lambda _: _OddText("odd"))
    members: dict[str, Any] = {}
    if random.random() < 0.6:
        members["__str__"] = random.choice(texts)
    if random.random() < 0.3:
        members[random.choice(("errno", "__cause__", "__context__", "__traceback__"))] = property(_raising(ValueError))
    if random.random() < 0.2:
        members["errno"] = []
    if random.random() < 0.1:
        members["__getattribute__"] = _raising(SystemExit)
    kind: type[BaseException] = random.choice((type, _Nameless))("Odd", (base,), members)
    return kind(random.choice(("", "plain", _Odd())))


_BAD: list[Any] = [17, "text", object(), {"a": 1}, [None], SimpleNamespace(), _Odd()]
_DEEP: list[Any] = []
for _ in range(100_000):
    _DEEP = [_DEEP]
_NO_JSON: list[Any] = [
    17,
    "text",
    [1],
    {"a": {1}},
    {"a": float("nan")},
    {"a": _DEEP},
    {"a": object()},
    {"a": 10**5_000},
]


def _turns(one: dict[str, Any]) -> tuple[Turn, ...]:
    return (structs.replace(Turn(round=0, agent="a0", model="model-0", place=0), **one),)


def _prompt(content: Any = "Well?", role: Any = "user", **more: Any) -> Prompt:
    return Prompt(messages=(Message(role=role, content=content),), **more)


_NUMBERS: tuple[Any, ...] = ("a", None, -1, 1.5, 10**30)
GIVEN: dict[str, list[Any]] = {
    "open": [None],
    "turns": [
        *(17, None, [17], _turns({}) * 2, _turns({"agent": "Zorro"}), _turns({"model": "other"})),
        *(_turns({"agent": []}), _turns({"after": 5}), _turns({"after": frozenset({1})})),
        *(_turns({name: value}) for name in ("round", "place", "step", "attempt") for value in _NUMBERS),
    ],
    "prompt": [
        *(None, *_BAD, _prompt(None), _prompt(b"Well?"), _prompt(role="judge"), _prompt(choices=(1,))),
        *(_prompt(choices="ab"), _prompt(schema={"a": {1}}), _prompt(schema=3), Prompt(messages=("Well?",))),  # type: ignore[arg-type]
        Prompt(messages=5),  # type: ignore[arg-type]
    ],
    "receive": [
        *(None, *_BAD),
        *(Receipt(kind=kind, detail="x") for kind in ("act", "failure", None)),  # type: ignore[arg-type]
        *(Receipt(kind=ReceiptKind.ACT, detail=detail) for detail in (None, 17, _Odd())),  # type: ignore[arg-type]
        Receipt(kind=ReceiptKind.ACT, detail="x", cause=5),  # type: ignore[arg-type]
        *(Receipt(kind=kind, detail="and the turn stays open") for kind in (ReceiptKind.ACT, ReceiptKind.CORRECTION)),
    ],
    "outcome": [*_NO_JSON, {"kind": "poker"}],
    "rounds_completed": [None, *_BAD[1:], *_NUMBERS],
    "record": [None, *_NO_JSON],
    "fingerprint": [None, *(bad for bad in _BAD if not isinstance(bad, str))],
}
"""What each member may not give."""


def _cancel() -> None:
    for task in asyncio.all_tasks():
        task.cancel()


def _leave_no_depth() -> None:
    for limit in itertools.count(1):
        with suppress(RecursionError):
            sys.setrecursionlimit(limit)
            return


_MEDDLING: tuple[Callable[[], Any], ...] = (
    lambda: asyncio.current_task().cancel(),  # type: ignore[union-attr]
    lambda: asyncio.get_running_loop().stop(),
    _cancel,
    _leave_no_depth,
)
"""What takes the run with it that plays the game."""


class Oddity(NamedTuple):
    """What happens at which call of which member."""

    member: str
    call: int
    raised: BaseException | None
    given: Any
    done: Callable[[], Any] = str

    def happen(self) -> Any:
        """Do it; raise it, or give it."""
        self.done()
        if self.raised is not None:
            raise self.raised
        return self.given


def drawn(random: Random) -> Oddity:
    """An oddity at a call that every conversation comes to."""
    member = random.choice([*GIVEN])
    is_often = member in ("turns", "prompt", "receive", "rounds_completed")
    raised = drawn_exception(random) if random.random() < 0.5 else None
    done = random.choice(_MEDDLING) if random.random() < 0.2 else str
    return Oddity(member, random.randrange(4) if is_often else 0, raised, random.choice(GIVEN[member]), done)


class _OddConversation:
    def __init__(self, conversation: ToyConversation, oddity: Oddity) -> None:
        self._conversation = conversation
        self._oddity = oddity
        self._calls = 0

    def _called(self, member: str, *args: Any) -> Any:
        if member == self._oddity.member:
            self._calls += 1
            if self._calls > self._oddity.call:
                return self._oddity.happen()
        found = getattr(self._conversation, member)
        return found(*args) if callable(found) else found

    outcome = property(lambda self: self._called("outcome"))
    rounds_completed = property(lambda self: self._called("rounds_completed"))

    def turns(self) -> Any:
        return self._called("turns")

    def prompt(self, turn: Turn) -> Any:
        return self._called("prompt", turn)

    def receive(self, turn: Turn, reply: Any) -> Any:
        return self._called("receive", turn, reply)

    def record(self) -> Any:
        return self._called("record")

    def fingerprint(self) -> Any:
        return self._called("fingerprint")


class _OddEnvironment(ToyEnvironment):
    def __init__(self, oddity: Oddity, is_odd: Callable[[Task], bool]) -> None:
        super().__init__()
        self._oddity = oddity
        self._is_odd = is_odd

    def open(self, task: Task) -> Any:
        if not self._is_odd(task):
            return super().open(task)
        if self._oddity.member == "open":
            return self._oddity.happen()
        return _OddConversation(super().open(task), self._oddity)


def odd_environment(oddity: Oddity, is_odd: Callable[[Task], bool]) -> CheckedEnvironment:
    """Toys of a user's own; those of some tasks are odd."""
    return CheckedEnvironment(_OddEnvironment(oddity, is_odd), "toy", step_limit(None))
