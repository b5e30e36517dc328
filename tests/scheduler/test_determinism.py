"""The same seed gives the same transcripts, whatever ran at once, however long it took, wherever it was stopped."""

from __future__ import annotations

from typing import get_args

import pytest
from msgspec import structs

from mac_runner.environments.testing import replay
from mac_runner.errors import RunDirectoryError
from mac_runner.store import replies_of
from mac_runner.types import JsonValue, Prompt, ReceiptKind, Reply, Task, Turn
from tests.scheduler.conftest import Stage
from tests.sim.recorder import MemoryRecorder
from tests.sim.toy import Break, ToyConversation, ToyEnvironment, tasks


def play(*, breaks: Break | None = None, dice: int = 0, concurrency: int | None = 1, refusals: bool = False) -> Stage:
    stage = Stage(environment=ToyEnvironment(breaks), concurrency=concurrency, loop_seed=dice)
    refuses = (lambda digest: digest.startswith("0")) if refusals else (lambda _digest: False)
    stage.engines(capacity=256, dice=dice, fault_rate=0.1 * (dice % 4), refuses=refuses)
    stage.play()
    return stage


@pytest.mark.ci
@pytest.mark.parametrize("breaks", [None, *get_args(Break)])
def test_transcripts_do_not_depend_on_concurrency_or_latency(breaks: Break | None) -> None:
    expected = play(breaks=breaks).recorder.results()
    assert len(expected) == 12

    for dice, concurrency in enumerate([2, 8, None, 256]):
        assert play(breaks=breaks, dice=dice, concurrency=concurrency).recorder.results() == expected


def test_transcripts_of_refused_conversations_do_not_depend_on_concurrency() -> None:
    expected = play(refusals=True).recorder.results()
    statuses = [transcript["status"] for transcript in expected.values() if isinstance(transcript, dict)]
    assert set(statuses) == {"finished", "failed"}

    for dice, concurrency in enumerate([2, 8, 256, 256]):
        assert play(refusals=True, dice=dice, concurrency=concurrency).recorder.results() == expected


@pytest.mark.parametrize("breaks", [None, "receive", "raise", "turns", "stuck"])
def test_every_transcript_replays_to_its_final_state(breaks: Break | None) -> None:
    stage = play(breaks=breaks, dice=3, concurrency=8)
    for task, _ in stage.work:
        transcript = stage.recorder.transcripts[task.task_id]
        conversation = stage.environment.open(task)
        replayed = replay(conversation, replies_of(transcript))
        kinds: list[JsonValue] = [str(record.receipt.kind) for record in replayed.records]

        assert conversation.fingerprint() == transcript["final_state_sha256"]
        assert isinstance(turns := transcript["turns"], list)
        assert kinds == [turn["receipt"]["kind"] for turn in turns]  # type: ignore[index, call-overload]
        assert str(ReceiptKind.FAILURE) not in kinds[:-1]


@pytest.mark.ci
@pytest.mark.parametrize("breaks", [None, "receive", "raise", "prompt", "turns", "stuck", "open"])
@pytest.mark.parametrize("stops", range(2))
def test_stopped_runs_go_on_to_the_same_transcripts(breaks: Break | None, stops: int) -> None:
    expected = play(breaks=breaks).recorder.results()
    work, recorder = tasks(12), MemoryRecorder()
    sent = 0
    for session in range(30):
        stage = Stage(work=recorder.unfinished(work), environment=ToyEnvironment(breaks), recorder=recorder)
        first, second = stage.engines(capacity=4, dice=stops, fault_rate=0.1)
        stage.loop_seed, stage.stop_at_s = session, 6.0 + 1.3 * stops
        result = stage.play()
        sent += len(first.sent) + len(second.sent)
        if not result.interrupted:
            break

    assert recorder.results() == expected
    assert len(recorder.named("EVENT_INFER_START")) == sent
    # Nothing that was recorded is ever asked again.
    keys = [(task_id, reply.turn_key) for task_id, replies in recorder.replies.items() for reply in replies]
    assert len(keys) == len(set(keys))


def test_a_reply_recorded_twice_counts_once() -> None:
    recorder = play().recorder
    expected = recorder.results()
    doubled = []
    for task, _ in tasks(12):
        first = recorder.replies[task.task_id][:5]
        doubled.append(
            (task, tuple(one for reply in first for one in (reply, structs.replace(reply, reply=Reply(text="late")))))
        )
    stage = Stage(work=doubled)
    stage.play()

    assert stage.recorder.results() == expected


def test_replies_recorded_by_other_code_fail_their_conversation_and_say_so() -> None:
    recorder = play().recorder
    task, _ = tasks(1)[0]
    stage = Stage(work=[(task, tuple(recorder.replies["toy-000"][3:]))])
    stage.play()

    assert "no open turn" in str(stage.recorder.transcripts["toy-000"]["failure"])


class OtherPrompts(ToyEnvironment):
    """The toys of another version, whose prompts differ from the second round on."""

    def open(self, task: Task) -> ToyConversation:
        return _OtherToy(task, self.breaks)


class _OtherToy(ToyConversation):
    def prompt(self, turn: Turn) -> Prompt:
        rendered = super().prompt(turn)
        return Prompt(messages=(*rendered.messages, *rendered.messages)) if turn.round else rendered


def test_replies_given_to_other_prompts_end_the_run_and_change_nothing() -> None:
    complete = play().recorder
    recorder = MemoryRecorder()
    (task, _), *_ = work = tasks(1)
    given = complete.replies["toy-000"]
    recorder.replies["toy-000"] = [*given[:-1]]
    stage = Stage(work=recorder.unfinished(work), environment=OtherPrompts(), recorder=recorder)
    key = next(reply.turn_key for reply in given if not reply.turn_key.startswith("0/"))

    with pytest.raises(RunDirectoryError, match=rf"recorded for {task.task_id} .* \(turn {key}\); .* --out DIR"):
        stage.play()

    assert recorder.replies == {"toy-000": [*given[:-1]]}
    assert recorder.transcripts == {}
    assert not recorder.named("EVENT_CONVERSATION_DONE")
    # Nothing is lost: the version that began the run goes on with it.
    Stage(work=recorder.unfinished(work), recorder=recorder).play()
    assert recorder.results()["toy-000"] == complete.results()["toy-000"]
