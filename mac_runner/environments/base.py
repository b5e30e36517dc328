"""The contract between a kind of conversation and the rest of the runner.

A Conversation is a deterministic state machine without I/O: no clock, no files, no asyncio, and no randomness
but what it derives from its task's seed. The same replies to the same turns always lead to the same state, the same
prompts and the same outcome; resume, verification and replay depend on it. Turns that are open together may be answered
in any order: the state after all of them may not depend on that order. `mac_runner.testing.environments` checks this
contract for any environment.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from random import Random
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from mac_runner.environments.checked import CheckedEnvironment
from mac_runner.errors import ConfigError, boundary
from mac_runner.problems import Problem
from mac_runner.steps import step_limit
from mac_runner.types import JsonObject, Lineup, Prompt, Receipt, Reply, Task, Turn

SPEECH_CHARS_MAX: Final = 2_000
"""The longest speech of an agent."""

if TYPE_CHECKING:
    from mac_runner.config import Experiment

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


def ignored_settings(experiment: Experiment, *, role: str, keys: Mapping[str, str]) -> Iterator[Problem]:
    """Settings of agent definitions that change nothing in the environment of `experiment`.

    Every agent there has the same `role`. `keys` are the ignored ones, dotted, with what to do instead.
    """
    where = f"changes nothing in the environment {experiment.conversation_config.environment!r}"
    for index, agent in enumerate(experiment.agent_definitions):
        path = ("agent_definitions", index)
        if agent.role != role:
            yield Problem((*path, "role"), f"found {agent.role!r}, which {where}; allowed: {role}")
        written = agent.model_dump(exclude_defaults=True)
        for key, instead in keys.items():
            section, _, name = key.rpartition(".")
            if name in (written.get(section, {}) if section else written):
                yield Problem((*path, *key.split(".")), f"{where}; {instead}")


def build_environment(experiment: Experiment) -> Environment:
    """The environment that an experiment names. Raises ConfigError where its code is not here, or cannot play it."""
    spec = experiment.spec
    if experiment.is_builtin:
        return spec.build(experiment)
    with boundary(ConfigError, f"environment {experiment.conversation_config.environment} cannot be set up"):
        limit = step_limit(experiment.conversation_config.step_limit_s)
        environment: Environment = CheckedEnvironment(spec.build(experiment), spec.section, limit)
    return environment
