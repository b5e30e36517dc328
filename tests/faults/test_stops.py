"""Processes that are stopped or killed at random moments end in good order, or lose no more than they may."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from mac_runner.checkpoints import digest_of
from mac_runner.cli.checks import Verify
from mac_runner.cli.process import Exit
from mac_runner.store import Disk, journal, read_run
from mac_runner.store.testing import decode_frame
from tests.cli.conftest import lab as lab
from tests.cli.lab import Lab, RunDir, discussion, experiment, served
from tests.faults.forking import Extras, Forking
from tests.faults.talks import Talks
from tests.faults.tier import SCALE
from tests.patience import ended, wait_for
from tests.sim.openai_run import in_a_thread
from tests.sim.openai_server import OpenaiServer
from tests.sim.training import BATCH, ENGINE, MAX_LAG, Trainer

STOPS = 8 * SCALE
CONVERSATIONS = 30 * SCALE
PLACES_MAX = 20


STUCK_NAMES = """
import socket, time
from pathlib import Path
from mac_runner.cli import main
def getaddrinfo(*args, **kwargs):
    Path("asked").touch()
    time.sleep(3600)
socket.getaddrinfo = getaddrinfo
main()
"""


STUCK_LOOP = """
from pathlib import Path
from mac_runner.backends.scripted import ScriptedBackend
from mac_runner.cli import main
async def generate(self, request):
    Path("asked").touch()
    while True:
        pass
ScriptedBackend.generate = generate
main()
"""


@pytest.mark.ci
def test_run_stopped_again_and_again_ends_like_one_that_was_not(tmp_path: Path, forking: Forking) -> None:
    """The engine loses every seventh reply, so that some of the signals meet requests that wait to be sent again."""
    talks = Talks(conversations=CONVERSATIONS, out=tmp_path / "stopped")
    chance = Random(3)

    for stop in range(STOPS):
        after = chance.randrange(PLACES_MAX)
        extras = Extras(
            lost_replies_every=7,
            # A hang-up on the way changes nothing.
            signals=[signal.SIGHUP, signal.SIGTERM] if stop % 4 == 3 else [signal.SIGTERM],
            after_replies=after if stop % 2 else None,
            after_changes=None if stop % 2 else 4 * after,
            # Else a slow disk would let through as many replies as it likes between two of its changes.
            is_slower_than_disk=stop % 2 == 0,
        )
        ended = forking.run(*talks.args(latency_ms=30, max_attempts=50, backoff_s=0.05), extras=extras)

        assert ended.code == Exit.INTERRUPTED, ended.err
        assert "the same command" in ended.err
        sent, answered = (talks.run_dir.events(f"EVENT_INFER_{what}") for what in ("START", "DONE"))
        assert len(sent) - len(answered) - len(talks.run_dir.events("EVENT_RETRY")) == 0
        if (talks.out / "task_manifest.json").exists():
            assert Verify(directory=talks.out).work() == Exit.OK
    assert 0 < len(talks.run_dir.transcripts) < CONVERSATIONS
    assert forking.run(*talks.args()).code == Exit.OK

    undisturbed = Talks(conversations=CONVERSATIONS, out=tmp_path / "undisturbed")
    assert forking.run(*undisturbed.args()).code == Exit.OK
    assert talks.run_dir.transcripts == undisturbed.run_dir.transcripts
    assert len(talks.run_dir.events("EVENT_RETRY")) > 0


@pytest.mark.ci
def test_name_server_that_never_answers_delays_no_exit(lab: Lab) -> None:
    """The thread that asks it blocks for an hour; the request is given up, and the process does not wait."""
    talk = experiment(
        models={
            "m": {"backend": "openai", "openai_config": {"model": "m", "base_urls": ["http://nowhere.invalid/v1"]}}
        },
        conversations=1,
        retry_config={"request_deadline_s": 0.5, "max_attempts": 1},
    )
    process = lab.start(lab.write(talk), program=(sys.executable, "-c", STUCK_NAMES))
    wait_for(lambda: (lab.path / "asked").exists(), "a question to the name server")
    process.send_signal(signal.SIGTERM)

    code, _, err = ended(process)

    assert code in {Exit.INTERRUPTED, Exit.FAILURES}, err
    assert "Traceback" not in err


@pytest.mark.ci
def test_second_signal_is_heard_where_the_loop_is_held_up(lab: Lab) -> None:
    process = lab.start(lab.write(experiment()), program=(sys.executable, "-c", STUCK_LOOP))
    wait_for(lambda: (lab.path / "asked").exists(), "a request")

    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)

    assert ended(process)[0] == Exit.INTERRUPTED
    # Nothing was acknowledged and nothing is lost: the same command goes on.
    lab.done("small.yaml")
    assert Verify(directory=lab.run_dir().path).work() == Exit.OK


SLOTS = 64
BACKLOG_ITEMS = 128
SYNC_S = 0.01
"""A disk under load, and a backlog that it fills."""


ITEMS_PER_SLOT = 5
"""What a slot may still hand to the writer once departures pause: a start, a reply and its event, and where the
conversation ends with it a transcript and its event."""

ITEMS_PER_REPLY = 2
"""The fewest that wait with a reply that is not written."""

LOST_MAX = SLOTS + (BACKLOG_ITEMS + ITEMS_PER_SLOT * SLOTS) // ITEMS_PER_REPLY


PROGRAM = f"""
import time
from mac_runner.cli import main
from mac_runner.store import writer
from mac_runner.store.disk import System

sync = System.fsync
def late(self, descriptor):
    time.sleep({SYNC_S})
    sync(self, descriptor)

System.fsync = late
writer.WRITE_BACKLOG_ITEMS_MAX = {BACKLOG_ITEMS}
main()
"""


@pytest.mark.ci
def test_kill_costs_what_is_in_flight_and_what_is_answered_and_not_yet_in_the_journal(lab: Lab) -> None:
    """Real kills at 64 slots, of which the server keeps the books: what the journal has is never asked again, each
    request that was lost is asked again once, and there are no more of them than slots and the backlog allow.
    """
    chance, losses = Random(6), list[int]()
    with in_a_thread(OpenaiServer(slots=SLOTS, latency_s=0.01)) as server:
        file = lab.write(discussion(served(server.url), conversations=150 * SCALE, retry_config={"backoff_s": 0.01}))
        for _ in range(3 * SCALE):
            before, known = len(server.received), recorded(lab.path / "runs/talk")
            process = lab.start(file, program=(sys.executable, "-c", PROGRAM))
            least = before + chance.randint(100, 250)
            wait_for(lambda n=least, run=process: len(server.received) >= n or run.poll() is not None, "requests")  # type: ignore[misc]
            process.send_signal(signal.SIGKILL)
            assert ended(process)[0] == -signal.SIGKILL
            wait_for(lambda: not server.connections, "the ends of its connections, behind all that it sent")
            asked = [received.headers["x-request-id"] for received in server.received[before:]]
            assert len(set(asked)) == len(asked)
            assert known.isdisjoint(asked)
            losses.append(len(set(asked) - recorded(lab.path / "runs/talk")))
        finished = lab.run(file)
        asked = [received.headers["x-request-id"] for received in server.received]

    assert finished.returncode == Exit.OK, finished.stderr
    assert max(losses) <= LOST_MAX, losses
    assert len(asked) == len(set(asked)) + sum(losses)
    lab.verified(lab.path / "runs/talk")


def recorded(run: Path) -> set[str]:
    """The requests whose replies the journal has."""
    if not (run / "task_manifest.json").exists():
        return set()
    layout = read_run(run).layout
    replies = journal.replies(Disk(), layout, lambda task_id: True)
    return {f"{task_id}/{reply.turn_key}" for task_id, known in replies.items() for reply in known}


KILLS = 10 * SCALE
ROLLOUTS = 60 * SCALE
MOMENT_S_MAX = 0.08
TRAINING = Extras(program="tests.sim.training:main")


@pytest.mark.ci
def test_loop_killed_anywhere_goes_on(tmp_path: Path) -> None:
    """Half of the kills come soon after the start, the others soon after a version."""
    (tmp_path / "learner.py").write_text(ENGINE)
    forking = Forking(tmp_path, preload="tests.sim.training")
    chance = Random(5)
    try:
        for kill in range(KILLS):
            done = Trainer(tmp_path).version
            pid = forking.start(str(ROLLOUTS), extras=TRAINING)
            if kill % 2:
                wait_for_version(tmp_path, pid, done + 1)
            time.sleep(chance.uniform(0, MOMENT_S_MAX))
            os.kill(pid, signal.SIGKILL)
            assert (ended := forking.ended(pid)).code in (-signal.SIGKILL, 0), ended.err
        last = forking.run(str(ROLLOUTS), extras=TRAINING)
        assert last.code == 0, last.err
    finally:
        forking.close()

    directory, trainer = RunDir(path=tmp_path / "runs" / "echoes"), Trainer(tmp_path)
    assert directory.statuses == {"finished": ROLLOUTS}
    assert Verify(directory=directory.path).work() == Exit.OK
    assert len(trainer.used) == ROLLOUTS
    assert trainer.version == ROLLOUTS // BATCH
    assert max(trainer.used.values()) <= MAX_LAG
    named: dict[int, object] = {}
    for frame in frames(directory.path):
        if frame["kind"] == "policy":
            version = int(str(frame["version"]))
            assert named.setdefault(version, frame["sha256"]) == frame["sha256"]
        elif frame["kind"] == "reply":
            reply = frame["reply"]
            assert isinstance(reply, dict)
            assert {*reply["policy"]} <= named.keys(), "a reply is of weights that the journal has not named"
    assert named == {0: None, **{version: digest_of(trainer.file(version)) for version in named if version}}


def wait_for_version(folder: Path, pid: int, version: int) -> None:
    """Wait until the trainer has made a version, or has ended."""
    file, process = folder / f"{version}.safetensors", Path(f"/proc/{pid}/cmdline")
    wait_for(lambda: file.exists() or not process.read_bytes(), "a version")


def frames(directory: Path) -> Iterator[dict[str, object]]:
    """The whole frames of all sessions, in their order."""
    for segment in sorted((directory / "journal").iterdir()):
        for line in segment.read_bytes().split(b"\n")[:-1]:
            if (frame := decode_frame(line)) is not None:
                yield json.loads(json.dumps(frame))
