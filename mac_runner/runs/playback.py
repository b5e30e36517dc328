"""Conversations of a run played again for readers: what each turn was sent, and those that have not ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from mac_runner.environments.markup import thoughts
from mac_runner.environments.replay import open_turn, receive, replay
from mac_runner.errors import ConfigError, ConversationError, MacRunnerError, RunDirectoryError, boundary
from mac_runner.runs.recorded import recorded_setup
from mac_runner.runs.setup import Setup
from mac_runner.store import RunContents, build_transcript, replies_of, task_of
from mac_runner.types import (
    Agent,
    JsonObject,
    Prompt,
    Receipt,
    ReceiptKind,
    RecordedReply,
    Sampling,
    Task,
    Turn,
    TurnRecord,
)

OPEN = "open"
"""The status of a transcript whose conversation has not ended."""


class Playback:
    """Plays conversations of one run. The environment is set up for the first of them; not for two threads at once."""

    def __init__(self, contents: RunContents) -> None:
        self._contents = contents

    def prompts(self, transcript: JsonObject) -> Mapping[str, Prompt]:
        """What the engine was sent for each turn, as far as this version renders the same.

        Raises RunDirectoryError where it cannot play the conversation, UntrustedCodeError where its code is not loaded.
        """
        found: dict[str, Prompt] = {}
        try:
            conversation = self._setup.environment().open(task_of(transcript))
            for recorded in replies_of(transcript):
                turn = open_turn(conversation, recorded.turn_key)
                with boundary(ConversationError, f"turn {turn.key}: prompt"):
                    prompt = conversation.prompt(turn)
                if prompt.sha256 == recorded.prompt_sha256:
                    # The structured form is for scripted players, and large.
                    found[turn.key] = replace(prompt, view=None)
                receive(conversation, turn, recorded)
        except ConversationError as fault:
            if not found:
                raise RunDirectoryError(
                    f"this version cannot play the conversation ({fault}); use the version that played it"
                ) from fault
        return found

    def open_transcript(self, task_id: str, index: int, replies: Sequence[RecordedReply]) -> JsonObject:
        """A conversation that has not ended, in the form of a transcript; its `status` is OPEN.

        Where it cannot be played here, it has the replies alone, each seen by its agent only.
        """
        try:
            transcript = self._played(task_id, replies)
        except (MacRunnerError, ValueError) as fault:
            transcript = self._replies_only(task_id, index, replies, str(fault))
        return {**transcript, "status": OPEN}

    @cached_property
    def _setup(self) -> Setup:
        return recorded_setup(self._contents)

    def _played(self, task_id: str, replies: Sequence[RecordedReply]) -> JsonObject:
        task = next(self._setup.tasks.those(task_id.__eq__), None)
        if task is None:
            raise ConfigError(f"the run has no task {task_id!r}")
        conversation = self._setup.environment().open(task)
        played = replay(conversation, replies)
        return self._transcript(task, conversation.record(), conversation.fingerprint(), played.records)

    def _replies_only(self, task_id: str, index: int, replies: Sequence[RecordedReply], reason: str) -> JsonObject:
        turns = [_turn(recorded) for recorded in replies]
        names = dict.fromkeys(turn.agent for turn in turns)
        agents = tuple(
            Agent(agent_id=name, definition="", model="", seat=seat, slot=seat, sampling=Sampling())
            for seat, name in enumerate(names)
        )
        records = [
            TurnRecord(
                turn=turn,
                prompt_sha256=recorded.prompt_sha256,
                reply=recorded.reply,
                receipt=Receipt(kind=ReceiptKind.ACT, detail=""),
            )
            for turn, recorded in zip(turns, replies, strict=True)
        ]
        task = Task(task_id=task_id, index=index, seed=0, agents=agents)
        record: JsonObject = {"events": [*_reply_events(turns, replies, reason)]}
        return self._transcript(task, record, "", records)

    def _transcript(self, task: Task, record: JsonObject, fingerprint: str, turns: Sequence[TurnRecord]) -> JsonObject:
        return build_transcript(
            experiment_name=self._contents.experiment_name,
            environment=self._contents.environment_name,
            task=task,
            outcome=None,
            record=record,
            fingerprint=fingerprint,
            turns=turns,
            failure=None,
            timing={},
        )


def _turn(recorded: RecordedReply) -> Turn:
    """The turn that a reply names; its place among others is not known."""
    # The name of an agent may hold a slash.
    number, _, rest = recorded.turn_key.partition("/")
    agent, step, attempt = rest.rsplit("/", 2)
    return Turn(
        round=int(number),
        agent=agent,
        model=recorded.model or "",
        place=0,
        step=int(step),
        attempt=int(attempt),
    )


def _reply_events(turns: Sequence[Turn], replies: Sequence[RecordedReply], reason: str) -> Iterator[JsonObject]:
    yield {"when": "", "text": f"Only replies are shown: {reason}", "audience": "all", "data": {}}
    for turn, recorded in zip(turns, replies, strict=True):
        said = thoughts(recorded.reply.text).said
        yield {
            "when": f"round {turn.round}",
            "text": f"{turn.agent}: {said}",
            "audience": [turn.agent],
            "turn": turn.key,
            "data": {},
        }
