"""The contract between a kind of conversation and the rest of the runner.

A Conversation is a deterministic state machine without I/O: no clock, no files, no asyncio, and no randomness
but what it derives from its task's seed. The same replies to the same turns always lead to the same state, the same
prompts and the same outcome; resume, verification and replay depend on it. Turns that are open together may be answered
in any order: the state after all of them may not depend on that order. `mac_runner.testing.environments` checks this
contract for any environment.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from random import Random
from typing import Any, Final, Protocol, TypeVar

from mac_runner.errors import ConfigError
from mac_runner.types import JsonObject, Lineup, Prompt, Receipt, Reply, Task, Turn

SPEECH_CHARS_MAX: Final = 2_000
"""The longest speech of an agent."""

Key = TypeVar("Key")
Policy = Callable[[object, Random], str]
"""A scripted player: from what its seat may lawfully know (`Prompt.view`) to a reply in the models' markup."""


class Conversation(Protocol):
    """One running conversation."""

    @property
    def outcome(self) -> JsonObject | None:
        """None while it runs, then its result; an ended conversation has no open turns."""
        ...

    @property
    def rounds_completed(self) -> int:
        """How many rounds lie behind it; the scheduler finishes the furthest first."""
        ...

    def turns(self) -> tuple[Turn, ...]:
        """Every turn now open, answered ones excluded.

        A turn that was sent to an engine stays open until its reply is received; one that was not may vanish.
        An agent has spoken in a round when it has no open turn in it.
        """
        ...

    def prompt(self, turn: Turn) -> Prompt:
        """What to send for `turn`, showing what is visible at this moment. Changes nothing."""
        ...

    def receive(self, turn: Turn, reply: Reply) -> Receipt:
        """Apply the reply to an open turn. Raises ConversationError when the conversation cannot go on.

        FinishReason.OVERFLOW says that the prompt was too long for the engine: the turn may be opened again as another
        attempt with a shorter one.
        """
        ...

    def record(self) -> JsonObject:
        """The environment's part of the transcript: who took part as what, and all that was said and done.

        Its `events` are for readers: objects with `when` and `text` in words, `audience` ("all", or the agents that
        learned of it) and `data`. An event may have `turn`: the key of the turn whose reply it is about, or null where
        no single reply made it, such as at the opening or at the end of a round. Pages show the reply beside it.
        """
        ...

    def fingerprint(self) -> str:
        """A digest of the complete state: two conversations are in the same state iff theirs are equal."""
        ...


class Environment(Protocol):
    """A kind of conversation, set up for one experiment.

    It may also have `rewards(outcome, agent)`, which returns the rewards of an agent as numbers by name. Without it
    they follow from the outcome (`mac_runner/rewards.py`).
    """

    @property
    def lineup(self) -> Lineup | None:
        """The slots each conversation fills by rotation; None: every agent definition takes part once."""
        ...

    @property
    def transcript_bytes_min(self) -> int:
        """What the transcript of a whole conversation takes at least, in bytes: for the room that a run needs."""
        ...

    def open(self, task: Task) -> Conversation:
        """A new conversation at its very beginning."""
        ...

    def policy(self, name: str) -> Policy:
        """The scripted player called `name`. Raises ConfigError naming those there are."""
        ...


def gated(order: Iterable[Key], waits_for: Mapping[Key, Collection[Key]]) -> list[Key]:
    """The order of a round under `speak_after_within_round`: each key moved behind those in `order` it waits for.

    Raises ValueError when some wait for each other; the config refuses that before a run.
    """
    waiting, ready = list(order), list[Key]()
    while waiting:
        held_up = set(waiting)
        free = next((key for key in waiting if held_up.isdisjoint(waits_for.get(key, ()))), None)
        if free is None:
            raise ValueError(f"these wait for each other: {waiting}")
        waiting.remove(free)
        ready.append(free)
    return ready


def player_of(kind: str, players: Mapping[str, Callable[[Any, Random], str]], name: str) -> Policy:
    """The scripted player of an environment called `name`. Raises ConfigError naming those there are."""
    if name not in players:
        known = ", ".join(sorted(players)) or "none; give its class a mapping `players`"
        raise ConfigError(f"environment {kind} has no policy {name!r}; it has {known}")
    return players[name]
