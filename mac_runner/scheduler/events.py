"""What the scheduler is told (events) and what it asks for (actions).

Conversations are named by their place in the plan (`Task.index`), turns by the Turn itself. The shell performs each
action and turns its result into the next event; nothing else passes between the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from mac_runner.types import Turn

Place: TypeAlias = tuple[int, int, int, int]
"""`Turn.canonical`: the place of a turn in its conversation, whatever order the replies come in."""

BEFORE_ALL: Place = (-1, -1, -1, -1)
"""The place of no turn: a conversation that failed here wants none of its turns any more."""

Needs: TypeAlias = Mapping[str, int]
"""How many tokens of KV cache the next turn of each agent is expected to take, prompt and reply together.

Empty while no model admits by tokens."""


@dataclass(frozen=True, slots=True)
class ModelReady:
    """A model serves `capacity` requests at once from now on, and `token_budget` tokens of them if that is bounded.

    It is handed `lookahead` requests more, which wait inside it.
    """

    model: str
    capacity: int
    token_budget: int | None = None
    lookahead: int = 0


@dataclass(frozen=True, slots=True)
class Opened:
    """The conversation asked for by Open is there. No turns: it is over already.

    `failed_at` is set for one that had failed in an earlier session, at that place; `suspects` are the keys of turns
    that engines died on then. `engines` names the engine of each of its models; a model that is not named there is
    served by the engine of its own name.
    """

    conversation: int
    turns: Sequence[Turn]
    rounds_completed: int
    failed_at: Place | None = None
    needs: Needs = field(default_factory=dict)
    engines: Mapping[str, str] = field(default_factory=dict)
    suspects: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class TasksExhausted:
    """There is no further task to open."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The reply to `turn` was applied; `turns` are all turns open now. None: the conversation is over."""

    conversation: int
    turn: Turn
    turns: Sequence[Turn]
    rounds_completed: int
    needs: Needs = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Faulted:
    """The engine did not answer `turn`; it is asked again in `delay_s` seconds, or never: the conversation fails.

    A suspect is asked again behind all others, and when nothing else of its model is in flight. `is_turned_away`: the
    engine works, and had no room for it.
    """

    conversation: int
    turn: Turn
    delay_s: float | None
    is_suspect: bool = False
    is_turned_away: bool = False


@dataclass(frozen=True, slots=True)
class Broken:
    """The reply to `turn` was applied, and the conversation cannot say what it wants now: nothing of it is wanted."""

    conversation: int
    turn: Turn


@dataclass(frozen=True, slots=True)
class RetryDue:
    """The pause before the next sending of `turn` is over."""

    conversation: int
    turn: Turn


@dataclass(frozen=True, slots=True)
class RestOver:
    """The model has been left alone for long enough."""

    model: str


@dataclass(frozen=True, slots=True)
class Stop:
    """No further departures and no opening; an Open not yet answered is withdrawn."""


Event: TypeAlias = ModelReady | Opened | TasksExhausted | Answered | Faulted | Broken | RetryDue | RestOver | Stop


@dataclass(frozen=True, slots=True)
class Open:
    """Open the next task and answer with Opened or TasksExhausted. One at a time is outstanding."""


@dataclass(frozen=True, slots=True)
class Depart:
    """Render the prompt of `turn` and send it: the `sending`-th time, after `waited_s` in the ready pool."""

    conversation: int
    turn: Turn
    sending: int
    waited_s: float


@dataclass(frozen=True, slots=True)
class RetryLater:
    """Answer with RetryDue in `delay_s` seconds."""

    conversation: int
    turn: Turn
    delay_s: float


@dataclass(frozen=True, slots=True)
class Rest:
    """Answer with RestOver in `delay_s` seconds. One at a time is outstanding for a model."""

    model: str
    delay_s: float


@dataclass(frozen=True, slots=True)
class Settle:
    """The conversation ended, failed or can go nowhere, and nothing of it is in flight: publish it."""

    conversation: int


@dataclass(frozen=True, slots=True)
class Finished:
    """All work is done, or the scheduler was stopped and nothing is in flight any more."""


Action: TypeAlias = Open | Depart | RetryLater | Rest | Settle | Finished


class InvalidTransition(RuntimeError):  # noqa: N818 - it names what happened, as the table of transitions does
    """An event that cannot happen in this state: a bug in the caller or in an environment, told with its story."""

    def __init__(self, what: str, story: Sequence[object]) -> None:
        super().__init__("\n  ".join([what, *map(str, story)]))
        self.story = tuple(story)
