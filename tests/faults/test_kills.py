"""Killed at random moments, two hundred times in all, the run loses nothing and doubles nothing."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from mac_runner.cli.maintenance import verify
from mac_runner.cli.process import Exit
from mac_runner.runs.summary import summary_of
from mac_runner.store import read_run, verify_run
from tests.faults.forking import Extras, Forking
from tests.faults.talks import CAPACITY, Talks
from tests.faults.tier import SCALE
from tests.patience import LIMIT_S

KILLS = 50 * SCALE
CONVERSATIONS = 100 * SCALE  # More than a quick machine gets done between the kills.
MOMENT_S_MAX = 0.08
LOOK_EVERY = 10


@pytest.fixture
def forking(tmp_path: Path) -> Iterator[Forking]:
    """Starts `mac-run` within milliseconds, and what records tokens too."""
    forking = Forking(tmp_path, preload="tests.faults.talkers")
    yield forking
    forking.close()


@pytest.mark.parametrize(
    ("since", "traced", "seed"), [("start", False, 1), ("start", True, 2), ("reply", False, 3), ("reply", True, 4)]
)
def test_run_killed_fifty_times_ends_like_one_that_was_not(
    tmp_path: Path, forking: Forking, since: str, traced: bool, seed: int
) -> None:
    """Within 80 ms of the start, which is start-up and resume, or of a reply, which is play and commits."""
    talks = Talks(conversations=CONVERSATIONS, out=tmp_path / "killed", traced=traced)
    witness, chance = tmp_path / "witness", Random(seed)
    witness.touch()
    acknowledged = 0

    for kill in range(KILLS):
        replies = witness.stat().st_size
        pid = forking.start(*talks.args(latency_ms=20), extras=Extras(witness=str(witness)))
        if since == "reply":
            wait_for_growth(witness, replies)
        time.sleep(chance.uniform(0, MOMENT_S_MAX))
        os.kill(pid, signal.SIGKILL)
        assert forking.ended(pid).code == -signal.SIGKILL
        if kill % LOOK_EVERY == 0 and (talks.out / "task_manifest.json").exists():
            done = read_run(talks.out).counts.done
            assert done >= acknowledged
            acknowledged = done
            assert claims_that_are_wrong(talks.out) == []
    assert acknowledged < CONVERSATIONS
    assert forking.run(*talks.args()).code == Exit.OK

    undisturbed = Talks(conversations=CONVERSATIONS, out=tmp_path / "undisturbed", traced=traced)
    assert forking.run(*undisturbed.args()).code == Exit.OK
    assert talks.run_dir.transcripts == undisturbed.run_dir.transcripts
    assert len(talks.run_dir.index) == CONVERSATIONS
    if traced:
        check_tokens(talks, undisturbed)
    assert verify(talks.out) == Exit.OK
    assert not list(talks.out.rglob(".tmp-*"))
    # What the engine did again: replies that nobody had written down when the kill came, one for each slot at most.
    made = Counter(witness.read_text().splitlines())
    assert sum(made.values()) - len(made) <= CAPACITY * KILLS


def check_tokens(talks: Talks, undisturbed: Talks) -> None:
    """Each reply of each conversation has its tokens, and they are those of the other run."""
    traces = talks.traces
    assert traces == undisturbed.traces
    assert len(traces) == CONVERSATIONS
    for name, data in talks.run_dir.transcripts.items():
        said = {turn["turn"]: turn["reply"]["text"] for turn in json.loads(data)["turns"]}
        tokens = traces[Path(name).with_suffix(".parquet").name]
        assert {key: bytes(trace.completion_ids).decode() for key, trace in tokens.items()} == said
        assert all(len(trace.logprobs) == len(trace.completion_ids) for trace in tokens.values())


def claims_that_are_wrong(run: Path) -> list[str]:
    """Findings about the files that say again what the journal says: whenever a run is killed, they lag and no more."""
    found = verify_run(run, rebuild=lambda transcript: transcript, summarise=summary_of).findings
    return [text for finding in found if (text := finding.text).startswith(("summary", "events", "task_manifest"))]


def wait_for_growth(file: Path, size_bytes: int) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while file.stat().st_size == size_bytes:
        assert time.monotonic() < deadline_s, "no reply came"
        time.sleep(0.004)
