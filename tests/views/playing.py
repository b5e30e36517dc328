"""Plays conversations in memory, with words and thoughts that name the turn they are of."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from mac_runner.config import Experiment, load_experiment
from mac_runner.environments import Environment, build_environment
from mac_runner.environments.testing import receive
from mac_runner.plan import plan_tasks
from mac_runner.store import build_transcript
from mac_runner.testing.replies import usable_reply
from mac_runner.types import JsonObject, Prompt, ReceiptKind, RecordedReply, Reply, Task, Timing, TokenCount, TurnRecord
from mac_runner.view_model import CompareView, ConversationView, TurnView
from mac_runner.views.testing import compare_view, turn_views, whole_view

ROOT = Path(__file__).parents[2]
TURNS_MAX = 400


def experiment(name: str, *overrides: str) -> Experiment:
    """An experiment of the repository."""
    return load_experiment(ROOT / name, overrides=overrides).experiment


def transcripts(
    experiment: Experiment, policy: str = "", *, count: int = 1, turns: int = TURNS_MAX
) -> list[JsonObject]:
    """The first conversations of an experiment; replies are valid guesses where no policy is named."""
    environment = build_environment(experiment)
    tasks = islice(plan_tasks(experiment, environment.lineup), count)
    return [_played(experiment, environment, task, policy, turns) for task in tasks]


def compared(left: JsonObject, right: JsonObject) -> CompareView:
    """Two transcripts beside each other."""
    return compare_view(left, right, whole_view(left), whole_view(right))


def turn_view(
    transcript: JsonObject, view: ConversationView, key: str, prompt_of: Callable[[str], Prompt] | None, **more: Any
) -> TurnView:
    """One turn of a view."""
    return next(turn_views(transcript, view, prompt_of, only=key, **more))


def marker(key: str) -> str:
    """What is thought in a turn, and in no other."""
    return "thought of " + key.replace("/", ".")


def _played(experiment: Experiment, environment: Environment, task: Task, policy: str, turns_max: int) -> JsonObject:
    player = environment.policy(policy) if policy else None
    conversation, records = environment.open(task), list[TurnRecord]()
    failure = None
    while conversation.outcome is None and failure is None and len(records) < turns_max:
        turn = conversation.turns()[0]
        chance = Random(f"{task.seed} {turn.key}")
        prompt = conversation.prompt(turn)
        text = usable_reply(prompt, chance) if player is None else player(prompt.view, chance)
        reply = Reply(
            text=text,
            thinking=marker(turn.key),
            tokens=TokenCount(prompt=prompt.size_chars // 4, completion=len(text) // 4),
            timing=Timing(queue_s=0.5, generate_s=1.5, faults=("refused",) if len(records) == 1 else ()),
        )
        recorded = RecordedReply(turn_key=turn.key, prompt_sha256=prompt.sha256, reply=reply)
        records.append(receive(conversation, turn, recorded))
        if records[-1].receipt.kind is ReceiptKind.FAILURE:
            failure = records[-1].receipt.detail
    return build_transcript(
        experiment_name=experiment.experiment_metadata.experiment_name,
        environment=experiment.conversation_config.environment,
        task=task,
        outcome=conversation.outcome,
        record=conversation.record(),
        fingerprint=conversation.fingerprint(),
        turns=records,
        failure=failure,
        timing={},
    ) | ({} if conversation.outcome is not None or failure else {"status": "open"})
