"""Conversations of a run played again for their readers: what was sent in each turn, and those that are still open."""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Final

from mac_runner.config import Experiment
from mac_runner.config.materials import with_materials
from mac_runner.environments.base import Conversation, Environment
from mac_runner.environments.replay import open_turn, receive, replay
from mac_runner.errors import ConfigError, ConversationError, MacRunnerError, RunDirectoryError, boundary
from mac_runner.runs.recorded import recorded_experiment, recorded_plan, recorded_setup
from mac_runner.runs.setup import Setup
from mac_runner.store import Run, build_transcript, replies_of, task_of
from mac_runner.store.records import recorded_json, task_json
from mac_runner.types import JsonObject, JsonValue, Message, Prompt, RecordedReply, Task, TurnRecord

_LEVEL: Final = 1
_PARENTS_MAX: Final = 4
"""A run is at most so far below the folder of its experiment file, such as `runs/grid/combination`."""
_PLAYING: Final = Lock()
"""Held while a conversation is played: an adapter may lend it the generators of random numbers that all share."""


class Prompts:
    """What the engine was sent in each turn of a conversation, from one replay.

    It is kept compressed by agent: the prompts of one agent repeat each other, and are read together.
    """

    def __init__(self, found: Iterable[tuple[str, Prompt | str]]) -> None:
        by_agent: defaultdict[str, JsonObject] = defaultdict(dict)
        for key, one in found:
            by_agent[_agent_of(key)][key] = (
                one if isinstance(one, str) else [[message.role, message.content] for message in one.messages]
            )
        self._packed = {
            agent: zlib.compress(json.dumps(prompts).encode("ascii"), _LEVEL) for agent, prompts in by_agent.items()
        }

    def __call__(self, key: str) -> Prompt:
        """The prompt of a turn. Raises RunDirectoryError where this version would send another one."""
        packed = self._packed.get(_agent_of(key))
        found = None if packed is None else json.loads(zlib.decompress(packed)).get(key)
        if found is None:
            raise RunDirectoryError(f"the conversation has no turn {key}")
        if isinstance(found, str):
            raise RunDirectoryError(found)
        return Prompt(messages=tuple(Message(role=role, content=content) for role, content in found))


class Replays:
    """Plays conversations of one run again.

    Some experiments take the material of their conversations from files, which a run directory does not hold. For a
    conversation without a transcript those files are looked for where they were named from: in `folders`, in the
    present directory and around the run. They are used if their digest is the recorded one.
    """

    def __init__(self, run: Run, *, folders: Sequence[Path] = ()) -> None:
        self._run = run
        here = run.layout.directory.resolve()
        self._folders = (*folders, Path.cwd(), *here.parents[:_PARENTS_MAX])

    def prompts(self, transcript: JsonObject) -> Prompts:
        """What was sent in each turn of a transcript. Raises RunDirectoryError where this version cannot play it."""
        environment, task = self._environment, task_of(transcript)
        with _PLAYING, boundary(RunDirectoryError, task.task_id):
            return Prompts(_rendered(environment.open(task), replies_of(transcript)))

    def open_transcript(self, task_id: str, replies: Sequence[RecordedReply] | None = None) -> JsonObject:
        """A conversation that has not ended, from its journaled replies: an object like a transcript.

        Its `status` is `open`. Where it cannot be played here, it has its replies and no events, and `note` says why.
        Raises ConfigError for a conversation that is not planned or has no reply yet.
        """
        if replies is None:
            replies = self._run.replies(task_id)
        if not replies:
            raise ConfigError(f"conversation {task_id!r} has no reply yet: there is nothing to show")
        try:
            return self._played(task_id, replies)
        except MacRunnerError as fault:
            return self._unplayed(task_id, replies, str(fault))

    @cached_property
    def _setup(self) -> Setup:
        return recorded_setup(self._run, material=self._material)

    def _material(self, task_id: str) -> JsonObject | None:
        """What a conversation is about: as a transcript has it, or from the files of the experiment."""
        if (found := self._run.recorded_material(task_id)) is not None:
            return found
        experiment, index = self._experiment, self._run.index_of(task_id)
        settings = None if experiment is None else experiment.environment_settings
        if experiment is None or settings is None or index is None:
            return None
        return experiment.spec.material(settings, index // experiment.conversation_config.samples_per_task)

    @cached_property
    def _experiment(self) -> Experiment | None:
        """The experiment with what it reads from files; None where these are not found."""
        experiment = recorded_experiment(self._run).experiment
        for folder in self._folders:
            try:
                return with_materials(experiment, folder, {})
            except ConfigError:
                continue  # They are not here, or others are.
        return None

    @cached_property
    def _environment(self) -> Environment:
        return self._setup.environment()

    def _played(self, task_id: str, replies: Sequence[RecordedReply]) -> JsonObject:
        task = next(self._setup.tasks.those(task_id.__eq__), None)
        if task is None:
            raise RunDirectoryError(f"{self._run.layout.directory} has no plan of the conversation {task_id!r}")
        with _PLAYING, boundary(RunDirectoryError, task_id):
            conversation = self._environment.open(task)
            played = replay(conversation, replies)
            return self._transcript(task, conversation.record(), conversation.fingerprint(), played.records)

    def _transcript(self, task: Task, record: JsonObject, fingerprint: str, turns: Sequence[TurnRecord]) -> JsonObject:
        transcript = build_transcript(
            experiment_name=self._run.experiment_name,
            environment=self._run.environment_name,
            task=task,
            outcome=None,
            record=record,
            fingerprint=fingerprint,
            turns=turns,
            failure=None,
            timing={},
        )
        return {**transcript, "status": "open"}

    def _unplayed(self, task_id: str, replies: Sequence[RecordedReply], note: str) -> JsonObject:
        """The replies alone: what a conversation made of them is not known."""
        task = self._planned(task_id)
        models = {agent.agent_id: agent.model for agent in task.agents}
        turns: list[JsonValue] = [_turn(recorded, models) for recorded in replies]
        # Who takes part may be known to code alone that was not imported.
        names = dict.fromkeys((*models, *(_agent_of(recorded.turn_key) for recorded in replies)))
        agents: list[JsonValue] = [
            {"agent_id": name, "definition": "", "model": models.get(name, ""), "seat": seat, "sampling": {}}
            for seat, name in enumerate(names)
        ]
        named = task_json(task)
        return {
            **self._transcript(task, {"events": []}, "", ()),
            "task": named if models.keys() == names.keys() else {**named, "agents": agents},
            "turns": turns,
            "note": note,
        }

    def _planned(self, task_id: str) -> Task:
        try:
            found = next(recorded_plan(self._run).those(task_id.__eq__), None)
        except MacRunnerError:
            found = None
        return found or Task(index=self._run.index_of(task_id) or 0, task_id=task_id, seed=0, agents=())


def _rendered(conversation: Conversation, replies: Sequence[RecordedReply]) -> Iterator[tuple[str, Prompt | str]]:
    """The prompt of each turn, or why it is missing; from the first reply on that cannot be applied all are."""
    for place, recorded in enumerate(replies):
        key = recorded.turn_key
        try:
            turn = open_turn(conversation, key)
            with boundary(ConversationError, "prompt"):
                prompt = conversation.prompt(turn)
        except ConversationError as failure:
            fault = f"this version cannot play the conversation up to turn {key} ({failure})"
            yield from ((later.turn_key, fault) for later in replies[place:])
            return
        is_sent = prompt.sha256 == recorded.prompt_sha256
        yield key, prompt if is_sent else f"what this version would send for turn {key} is not what was sent"
        receive(conversation, turn, recorded)


def _turn(recorded: RecordedReply, models: Mapping[str, str]) -> JsonObject:
    number, agent, step, attempt = _parts(recorded.turn_key)
    return {
        **recorded_json(recorded),
        "round": int(number),
        "agent": agent,
        "model": recorded.model or models.get(agent, ""),
        "place": 0,
        "step": int(step),
        "attempt": int(attempt),
        "receipt": {"kind": "", "detail": ""},
    }


def _parts(key: str) -> tuple[str, str, str, str]:
    """Round, agent, step and attempt of the key of a turn. The name of an agent may hold a slash."""
    number, _, rest = key.partition("/")
    agent, step, attempt = rest.rsplit("/", 2)
    return number, agent, step, attempt


def _agent_of(key: str) -> str:
    return _parts(key)[1]
