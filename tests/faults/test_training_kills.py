"""A trainer and its run, killed at random moments: no rollout is lost, doubled, too old, or of unknown weights."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from mac_runner.checkpoints import digest_of
from mac_runner.cli.maintenance import verify
from mac_runner.cli.process import Exit
from mac_runner.store.testing import decode_frame
from tests.cli.lab import RunDir
from tests.faults.forking import Extras, Forking
from tests.faults.tier import SCALE
from tests.patience import wait_for
from tests.sim.training import BATCH, ENGINE, MAX_LAG, Trainer

KILLS = 16 * SCALE
CONVERSATIONS = 60 * SCALE
MOMENT_S_MAX = 0.08
PROGRAM = Extras(program="tests.sim.training:main")


@pytest.mark.ci
def test_loop_killed_anywhere_goes_on(tmp_path: Path) -> None:
    """Half of the kills come soon after the start, the others soon after a version."""
    (tmp_path / "learner.py").write_text(ENGINE)
    forking = Forking(tmp_path, preload="tests.sim.training")
    chance = Random(5)
    try:
        for kill in range(KILLS):
            done = Trainer(tmp_path).version
            pid = forking.start(str(CONVERSATIONS), extras=PROGRAM)
            if kill % 2:
                wait_for_version(tmp_path, pid, done + 1)
            time.sleep(chance.uniform(0, MOMENT_S_MAX))
            os.kill(pid, signal.SIGKILL)
            assert (ended := forking.ended(pid)).code in (-signal.SIGKILL, 0), ended.err
        last = forking.run(str(CONVERSATIONS), extras=PROGRAM)
        assert last.code == 0, last.err
    finally:
        forking.close()

    directory, trainer = RunDir(path=tmp_path / "runs" / "echoes"), Trainer(tmp_path)
    assert directory.statuses == {"finished": CONVERSATIONS}
    assert verify(directory.path) == Exit.OK
    assert len(trainer.used) == CONVERSATIONS
    assert trainer.version == CONVERSATIONS // BATCH
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
