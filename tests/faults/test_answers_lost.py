"""What a kill costs where an engine answers faster than a disk writes: how many requests are asked again."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from random import Random

import pytest

from mac_runner.cli.process import Exit
from mac_runner.store import Disk, journal, read_run
from tests.cli.lab import Lab, discussion, served
from tests.faults.tier import SCALE
from tests.patience import ended, wait_for
from tests.sim.openai_run import in_a_thread
from tests.sim.openai_server import OpenaiServer

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
def test_kill_costs_what_is_in_flight_and_what_is_answered_and_not_yet_in_the_journal(tmp_path: Path) -> None:
    """Real kills at 64 slots, of which the server keeps the books: what the journal has is never asked again, each
    request that was lost is asked again once, and there are no more of them than slots and the backlog allow.
    """
    lab, chance = Lab(path=tmp_path), Random(6)
    losses: list[int] = []
    with in_a_thread(OpenaiServer(slots=SLOTS, latency_s=0.01)) as server:
        file = lab.write(discussion(served(server.url), conversations=250 * SCALE, retry_config={"backoff_s": 0.01}))
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
    lab.close()

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
