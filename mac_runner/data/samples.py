"""The rollouts of a run in words: each reply with the prompt that it answered, as text formats have them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from mac_runner.data.prompts import sent_prompts
from mac_runner.data.rollouts import USABLE, Rollout, Seat, rollouts_of
from mac_runner.data.tables import Ended
from mac_runner.environments.base import Environment
from mac_runner.flat import Cells, FlatColumn, Message
from mac_runner.reports.exports import utf8_text
from mac_runner.store import Run
from mac_runner.types import Prompt, TokenTrace

MESSAGES: Final = FlatColumn("messages", "")


def message(role: str, text: str) -> Message:
    """A message as trainers have it. Half a surrogate pair, which no tokenizer takes, is written as an escape."""
    return {"role": role, "content": utf8_text(text)}


def messages_of(prompt: Prompt) -> list[Message]:
    """A prompt as trainers have it."""
    return [message(each.role, each.content) for each in prompt.messages]


SEAT_COLUMNS: Final = frozenset(("agent", "role", "faction"))
"""What rollouts have of the table `agents`."""


class Sample(NamedTuple):
    """A rollout in words: the prompt, the reply, and the thoughts that the engine gave apart."""

    rollout: Rollout
    prompt: Sequence[Message]
    text: str
    thinking: str | None
    cached: int
    counted: tuple[int, int]
    """The tokens of the prompt and of the reply, as the engine counted them."""

    @property
    def reply(self) -> Message:
        """The reply as a message."""
        return message("assistant", self.text)

    @property
    def is_usable(self) -> bool:
        """Whether it is worth imitating: trainable, and the environment could use it."""
        return self.rollout.trainable and self.rollout.receipt in USABLE


class TrainingRun(NamedTuple):
    """A run whose conversations are exported, with what they need besides a transcript."""

    contents: Run
    environment: Callable[[], Environment]
    """Sets up what renders the prompts again."""
    agents: Callable[[Ended], Iterable[Mapping[str, Cells]]]
    """The rows of the table `agents`."""
    only: Sequence[str] = ()
    """The models and agent definitions whose turns are trainable; empty for all."""

    def rollouts(self, ended: Ended, traces: Mapping[str, TokenTrace] | None) -> list[Rollout]:
        """The rollouts of a conversation; with `traces`, a turn without tokens is not trainable."""
        return rollouts_of(ended.transcript, self.seats(ended), traces=traces, only=self.only)

    def seats(self, ended: Ended) -> dict[str, Seat]:
        """What each agent played, and what the outcome is worth to it."""
        worth = ended.rewards
        return {
            agent: Seat(_text(row, "role"), _text(row, "faction"), *worth.get(agent, ({}, None)))
            for row in self.agents(ended)
            for agent in [str(row["agent"])]
        }

    def samples(self, ended: Ended, traces: Mapping[str, TokenTrace] | None = None) -> Iterator[Sample]:
        """The rollouts of a conversation in words; its prompts are rendered again."""
        turns: Any = ended.transcript["turns"]
        prompts = sent_prompts(ended.transcript, self.environment())
        for rollout, turn, (_, prompt) in zip(self.rollouts(ended, traces), turns, prompts, strict=True):
            reply, counted = turn["reply"], turn["reply"]["tokens"]
            yield Sample(
                rollout,
                messages_of(prompt),
                reply["text"],
                reply.get("thinking"),
                counted.get("timing", counted).get("cached", 0),
                (counted["prompt"], counted["completion"]),
            )


def _text(row: Mapping[str, Cells], name: str) -> str | None:
    value = row.get(name)
    return None if value is None else str(value)
