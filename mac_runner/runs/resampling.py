"""Conversations of a run, played again as those of a plan: the same replies, on engines that are computed.

Each planned conversation is one that finished in the run, drawn with replacement. A plan of 10,000 can so be made of a
pilot of 50, and each kind of conversation is as frequent as it was there. A resampling first draws which conversations
of the run there are to draw from, so that several of them show how far a pilot of that size can mislead.

Copies of a conversation would find each other's prompts in the prefix cache, as different conversations do not. So each
copy differs from all others from the place on at which its prompt goes beyond what all conversations begin with.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random
from typing import Any, Final, NamedTuple, cast

from mac_runner.environments.base import Conversation, Environment
from mac_runner.errors import RequestRefusedError
from mac_runner.plan import Plan
from mac_runner.store import Run, replies_of, task_of
from mac_runner.types import JsonObject, Message, Prompt, Reply, Request, Task, Turn, stable_hash

POOL_MAX: Final = 256
"""How many conversations of a run are kept to draw from."""
_FIRST_PROMPTS_OF: Final = 32
_MARKS: Final = 0xE000
"""The characters that copies differ in: Unicode's private area, which no prompt has."""
_MARKS_COUNT: Final = 0x1900


class Recorded(NamedTuple):
    """A conversation that finished."""

    task: Task
    replies: Mapping[str, Reply]
    """By the key of the turn."""


def recorded_conversations(run: Run) -> list[Recorded]:
    """Conversations that finished in a run, at most POOL_MAX of them, evenly over the run."""
    rows = [row for row in run.rows() if row.get("status") == "finished"]
    every = max(1, -(-len(rows) // POOL_MAX))
    return [_recorded(run.acknowledged(row)) for row in rows[::every]]


def _recorded(transcript: JsonObject) -> Recorded:
    return Recorded(task_of(transcript), {one.turn_key: one.reply for one in replies_of(transcript)})


@dataclass(frozen=True)
class Resampled:
    """The tasks of a plan with the replies of recorded conversations. `resampling` 0 draws from all of them."""

    recorded: Sequence[Recorded]
    environment: Environment
    resampling: int = 0

    def tasks(self, plan: Plan) -> Plan:
        """The same tasks by name and index; what is played in each is a recorded conversation."""
        return plan.made_by(
            lambda task: replace(self._drawn(task.task_id).task, index=task.index, task_id=task.task_id)
        )

    def __call__(self, request: Request) -> Reply:
        """The recorded reply to a request. Raises RequestRefusedError where the conversation has no such turn."""
        found = self._drawn(request.conversation).replies.get(request.turn.key)
        if found is None:
            raise RequestRefusedError(f"the recorded conversation has no turn {request.turn.key}")
        return found

    @property
    def copies(self) -> Environment:
        """The environment, in which no two copies of a conversation have a prompt in common."""
        return cast("Environment", _Copies(self.environment, self._beginnings))

    @cached_property
    def _pool(self) -> Sequence[Recorded]:
        if not self.resampling:
            return self.recorded
        return Random(self.resampling).choices(self.recorded, k=len(self.recorded))  # noqa: S311 - statistics

    def _drawn(self, task_id: str) -> Recorded:
        return self._pool[stable_hash("resample", self.resampling, task_id) % len(self._pool)]

    @cached_property
    def _beginnings(self) -> list[str]:
        """The first prompts of conversations, in order."""
        found = set[str]()
        for one in self.recorded[:_FIRST_PROMPTS_OF]:
            conversation = self.environment.open(one.task)
            found |= {_text(conversation.prompt(turn)) for turn in conversation.turns()}
        return sorted(found)


class _Copies:
    """An environment whose prompts have a mark of their conversation."""

    def __init__(self, environment: Environment, beginnings: Sequence[str]) -> None:
        self._environment = environment
        self._beginnings = beginnings

    def open(self, task: Task) -> Conversation:
        mark = chr(_MARKS + stable_hash("mark", task.task_id) % _MARKS_COUNT)
        return cast("Conversation", _Copy(self._environment.open(task), mark, self._beginnings))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environment, name)


class _Copy:
    def __init__(self, conversation: Conversation, mark: str, beginnings: Sequence[str]) -> None:
        self._conversation = conversation
        self._mark = mark
        self._beginnings = beginnings

    def prompt(self, turn: Turn) -> Prompt:
        prompt = self._conversation.prompt(turn)
        text, known = _text(prompt), self._beginnings
        at = bisect_left(known, text)
        shared = max((_shared(text, other) for other in known[max(0, at - 1) : at + 1]), default=0)
        return _marked(prompt, shared, self._mark)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._conversation, name)


def _text(prompt: Prompt) -> str:
    return "".join([f"{message.role}\x1f{message.content}\x1e" for message in prompt.messages])


def _shared(one: str, other: str) -> int:
    """How many characters two texts have in common at their beginning."""
    least, most = 0, min(len(one), len(other))
    while least < most:
        middle = (least + most + 1) // 2
        if one.startswith(other[:middle]):
            least = middle
        else:
            most = middle - 1
    return least


def _marked(prompt: Prompt, at: int, mark: str) -> Prompt:
    """The prompt with a mark in place of its character at `at` of `_text`; unchanged where that is its end."""
    for number, message in enumerate(prompt.messages):
        at -= len(message.role) + 1
        if at < len(message.content):
            place = max(0, at)
            content = f"{message.content[:place]}{mark}{message.content[place + 1 :]}"
            marked = Message(role=message.role, content=content)
            return replace(prompt, messages=(*prompt.messages[:number], marked, *prompt.messages[number + 1 :]))
        at -= len(message.content) + 1
    return prompt
