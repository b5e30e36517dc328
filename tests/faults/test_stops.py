"""Stopped at random moments, the run ends in good order, and the same command goes on as if it had not been."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from mac_runner.cli.maintenance import verify
from mac_runner.cli.process import Exit
from tests.cli.lab import Lab, experiment
from tests.faults.forking import Extras, Forking
from tests.faults.talks import Talks
from tests.faults.tier import SCALE
from tests.patience import ended, wait_for

pytestmark = pytest.mark.ci

STOPS = 12 * SCALE
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


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """An empty working directory."""
    lab = Lab(path=tmp_path)
    yield lab
    lab.close()


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
            assert verify(talks.out) == Exit.OK
    assert 0 < len(talks.run_dir.transcripts) < CONVERSATIONS
    assert forking.run(*talks.args()).code == Exit.OK

    undisturbed = Talks(conversations=CONVERSATIONS, out=tmp_path / "undisturbed")
    assert forking.run(*undisturbed.args()).code == Exit.OK
    assert talks.run_dir.transcripts == undisturbed.run_dir.transcripts
    assert len(talks.run_dir.events("EVENT_RETRY")) > 0


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


def test_second_signal_is_heard_where_the_loop_is_held_up(lab: Lab) -> None:
    process = lab.start(lab.write(experiment()), program=(sys.executable, "-c", STUCK_LOOP))
    wait_for(lambda: (lab.path / "asked").exists(), "a request")

    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)

    assert ended(process)[0] == Exit.INTERRUPTED
    # Nothing was acknowledged and nothing is lost: the same command goes on.
    lab.done("small.yaml")
    assert verify(lab.run_dir().path) == Exit.OK
