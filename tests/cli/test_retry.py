"""`mac-run retry RUN`: an engine that failed some conversations is back, and they end as if it had never failed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from mac_runner.cli.exits import Exit
from mac_runner.types import JsonObject
from tests.cli.lab import AtOnce, Lab, RunDir
from tests.sim.behaviour import Behaviour, Received, Say, failure
from tests.sim.openai_run import in_a_thread
from tests.sim.openai_server import OpenaiServer


@dataclass(slots=True)
class Moody:
    """Refuses what it is told to refuse."""

    refuses: Callable[[Received], bool] = field(default=lambda _received: False)

    def __call__(self, received: Received) -> Behaviour:
        return failure(400, "not today") if self.refuses(received) else Say("So be it.")


def talk(url: str) -> JsonObject:
    """Six discussions of two agents over the server at `url`."""
    return {
        "experiment_metadata": {"experiment_name": "talk"},
        "conversation_config": {"environment": "discussion", "conversations": 6},
        "discussion": {"topics": ["Bridge or ferry?"]},
        "model_definitions": {
            "stub": {"backend": "openai", "openai_config": {"model": "stub", "base_urls": [url]}},
        },
        "agent_definitions": [{"agent_id": name, "role": "participant", "model": "stub"} for name in ("a", "b")],
    }


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
    assert "no conversation has failed; nothing to retry" in process.stderr
    assert finished.run_dir().hashes() == before


def test_retry_of_what_is_no_run_is_bad_input(lab: Lab, at_once: AtOnce) -> None:
    process = at_once("retry", "nowhere")

    assert process.returncode == Exit.BAD_INPUT
    assert "nowhere is no run directory" in process.stderr
