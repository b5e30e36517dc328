"""`mac-run retry RUN`: an engine that failed some conversations is back, and they end as if it had never failed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NoReturn

import pytest

from mac_runner.cli.process import Exit
from mac_runner.clock import SystemClock
from mac_runner.environments.discussion.testing import DiscussionConversation
from mac_runner.runs import ExperimentSet, Player
from mac_runner.store import open_run, read_run
from mac_runner.types import JsonObject, JsonValue, Message, Prompt, Turn
from tests.cli.lab import AtOnce, Lab, RunDir, discussion
from tests.cli.test_discussion import QUESTIONS
from tests.kit import copied
from tests.sim.behaviour import Behaviour, Received, Say, failure
from tests.sim.openai_run import in_a_thread
from tests.sim.openai_server import OpenaiServer


@dataclass(slots=True)
class Moody:
    """Refuses what it is told to refuse."""

    refuses: Callable[[Received], bool] = field(default=lambda _received: False)

    def __call__(self, received: Received) -> Behaviour:
        return failure(400, "not today") if self.refuses(received) else Say("It cannot be known.")


def talk(url: str, **more: JsonValue) -> JsonObject:
    """Six discussions of two agents over the server at `url`."""
    config: JsonObject = {"model": "stub", "base_urls": [url]}
    return discussion({"backend": "openai", "openai_config": config}, conversations=6) | more


def test_retry_of_failed_conversations_ends_like_a_run_that_never_failed(lab: Lab, at_once: AtOnce) -> None:
    moody = Moody(lambda received: received.number in (9, 16))
    with in_a_thread(OpenaiServer(script=moody)) as server:
        file = lab.write(talk(server.url))
        assert at_once(file).returncode == Exit.FAILURES
        failed = lab.run_dir("talk").statuses["failed"]
        moody.refuses = lambda _received: False
        before = server.requests

        process = at_once("retry", "runs/talk")

        asked = server.requests - before
        assert at_once(file, "--out", "undisturbed").returncode == Exit.OK

    assert process.returncode == Exit.OK, process.stderr
    run = lab.run_dir("talk")
    assert run.statuses == {"finished": 6}
    assert run.transcripts == RunDir(path=lab.path / "undisturbed").transcripts
    assert asked < failed * 4
    assert run.summary["retried"] == {
        "conversations": failed,
        "finished": failed,
        "failed": 0,
        "failed_attempts": failed,
    }
    assert f"{failed}: {failed} finished, 0 failed; {failed} failed attempts before" in process.stdout
    assert len(list((run.path / "attempts").iterdir())) == failed
    lab.verified(run.path)


def test_retry_that_fails_again_says_so_and_keeps_both_attempts(lab: Lab, at_once: AtOnce) -> None:
    with in_a_thread(OpenaiServer(script=Moody(lambda received: received.number >= 9))) as server:
        at_once(lab.write(talk(server.url)))
        first = lab.run_dir("talk").statuses["failed"]
        process = at_once("retry", "runs/talk")

    assert process.returncode == Exit.FAILURES
    run = lab.run_dir("talk")
    assert run.statuses["failed"] == first
    assert f"{first}: 0 finished, {first} failed; {first} failed attempts before" in process.stdout
    lab.verified(run.path)


def test_run_without_failures_is_left_as_it_is(finished: Lab, at_once: AtOnce) -> None:
    before = finished.run_dir().hashes()

    process = at_once("retry", "runs/small")

    assert process.returncode == Exit.OK
    assert "nothing to retry" in process.stderr
    assert finished.run_dir().hashes() == before


def test_retry_of_another_directory_is_bad_input(lab: Lab, at_once: AtOnce) -> None:
    process = at_once("retry", "nowhere")

    assert process.returncode == Exit.BAD_INPUT
    assert "nowhere is not" in process.stderr


def questions(url: str, **more: JsonValue) -> JsonObject:
    """The same about questions of a file."""
    return talk(url, discussion={"questions": ["q.jsonl"]}, **more)


def test_discussions_of_questions_from_a_file_are_retried_without_the_file(lab: Lab, at_once: AtOnce) -> None:
    moody = Moody(lambda received: received.number in (9, 16))
    copied(QUESTIONS, lab.path / "q.jsonl")
    with in_a_thread(OpenaiServer(script=moody)) as server:
        file = lab.write(questions(server.url))
        assert at_once(file, "--quiet").returncode == Exit.FAILURES
        moody.refuses = lambda _received: False
        assert at_once(file, "--out", "undisturbed", "--quiet").returncode == Exit.OK
        (lab.path / "q.jsonl").unlink()

        process = at_once("retry", "runs/talk")

    assert process.returncode == Exit.OK, process.stderr
    assert lab.run_dir("talk").transcripts == RunDir(path=lab.path / "undisturbed").transcripts
    lab.verified(lab.path / "runs/talk")


def test_interrupted_retry_of_questions_from_a_file_is_brought_to_its_end(lab: Lab, at_once: AtOnce) -> None:
    moody = Moody(lambda received: received.number in (9, 16))
    copied(QUESTIONS, lab.path / "q.jsonl")
    with in_a_thread(OpenaiServer(script=moody)) as server:
        at_once(lab.write(questions(server.url)), "--quiet")
        failed = lab.run_dir("talk").statuses["failed"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Player, "play", _interrupted_once_open)
            assert at_once("retry", "runs/talk").returncode == Exit.INTERRUPTED
        assert len(read_run(lab.path / "runs/talk").under_retry()) == failed
        moody.refuses = lambda _received: False

        process = at_once("retry", "runs/talk")

    assert process.returncode == Exit.OK, process.stderr
    assert lab.run_dir("talk").statuses == {"finished": 6}
    lab.verified(lab.path / "runs/talk")


@pytest.mark.ci
def test_failed_discussions_of_a_combination_are_retried(lab: Lab, at_once: AtOnce) -> None:
    moody = Moody(lambda received: received.number in (9, 16))
    copied(QUESTIONS, lab.path / "q.jsonl")
    with in_a_thread(OpenaiServer(script=moody)) as server:
        file = lab.write(questions(server.url, _grid={"sweep": {"seed": [1, 2]}}))
        assert at_once(file, "--quiet").returncode == Exit.FAILURES
        moody.refuses = lambda _received: False
        for combination in sorted(lab.path.glob("runs/talk/*/experiment.yaml")):
            process = at_once("retry", str(combination.parent.relative_to(lab.path)), "--quiet")
            assert process.returncode == Exit.OK, process.stderr
        assert at_once(file, "--quiet").returncode == Exit.OK

    lab.verified(lab.path / "runs/talk")


@pytest.mark.ci
def test_retry_that_cannot_be_begun_moves_nothing(lab: Lab, at_once: AtOnce) -> None:
    copied(QUESTIONS, lab.path / "q.jsonl")
    for make in (questions, talk):
        with in_a_thread(OpenaiServer(script=Moody(lambda received: received.number in (9, 16)))) as server:
            at_once(lab.write(make(server.url)), "--quiet")
            run = lab.run_dir("talk")
            before = run.hashes()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(DiscussionConversation, "prompt", _other_prompts(DiscussionConversation.prompt))
                process = at_once("retry", "runs/talk")
            assert process.returncode == Exit.BAD_INPUT
            assert "other prompts" in process.stderr
            assert run.hashes() == before

            failed = [path for path in run.path.glob("transcripts/*") if b'"status": "failed"' in path.read_bytes()]
            for path in failed:
                path.write_bytes(path.read_bytes()[:-5])
            before = run.hashes()
            process = at_once("retry", "runs/talk")
            assert process.returncode == Exit.BAD_INPUT
            assert all(path.name in process.stderr for path in failed)
            assert "repair runs/talk`" in process.stderr
            assert run.hashes() == before
            assert at_once("repair", "runs/talk").returncode == Exit.OK
            lab.verified(run.path)
            shutil.rmtree(run.path)


def _interrupted_once_open(_player: Player, chosen: ExperimentSet, *, is_retried: Callable[[str], bool]) -> NoReturn:
    (setup,) = chosen.setups
    with open_run(
        setup.directory,
        experiment_name=setup.name,
        resolved=setup.loaded.resolved,
        tasks=setup.tasks,
        clock=SystemClock(),
        is_retried=is_retried,
    ):
        pass
    raise KeyboardInterrupt


def _other_prompts(
    render: Callable[[DiscussionConversation, Turn], Prompt],
) -> Callable[[DiscussionConversation, Turn], Prompt]:
    def prompt(conversation: DiscussionConversation, turn: Turn) -> Prompt:
        rendered = render(conversation, turn)
        return replace(rendered, messages=(*rendered.messages, Message(role="user", content="Think.")))

    return prompt
