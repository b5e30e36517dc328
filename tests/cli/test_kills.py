"""Killed at any moment, the run loses nothing it has recorded, and ends as if nothing had happened."""

from __future__ import annotations

import signal
import time
from collections import Counter
from random import Random

from tests.cli.lab import Lab, RunDir, ended, experiment, scripted, wait_for

KILLS = 20
CAPACITY = 4
START_UP_S = 0.7
REPLIES_MAX = 8


def test_run_killed_at_twenty_moments_ends_like_one_that_was_not(lab: Lab) -> None:
    """Half of the kills fall into start-up and resume, the others into play."""
    file = lab.write(experiment(models={"m": scripted(capacity=CAPACITY)}))
    lab.done(file, "--out", "undisturbed")
    expected = RunDir(path=lab.path / "undisturbed").transcripts
    run, chance = lab.run_dir(), Random(20)

    for n in range(KILLS):
        replies = len(run.events("EVENT_INFER_DONE")) + chance.randint(1, REPLIES_MAX)
        process = lab.start(file, "--set", "model_definitions.m.scripted_config.latency_ms=40")
        if n % 2:
            wait_for(lambda least=replies: len(run.events("EVENT_INFER_DONE")) >= least, "replies")  # type: ignore[misc]
        else:
            time.sleep(chance.uniform(0, START_UP_S))
        process.send_signal(signal.SIGKILL)
        assert ended(process)[0] == -signal.SIGKILL
    recorded = len(run.events("EVENT_INFER_DONE"))
    lab.done(file)

    assert run.statuses == {"finished": 2}
    assert [row["task_id"] for row in run.index] == ["small-000000", "small-000001"]
    assert run.transcripts == expected
    lab.verified(run.path)
    # An event is logged behind the journal, so a reply that was logged must never be generated again; one that was
    # in flight, or not written yet, may be: one or two for each slot.
    assert recorded > KILLS
    done = Counter((event["task"], event["turn"]) for event in run.events("EVENT_INFER_DONE"))
    assert set(done.values()) == {1}
    turns = run.summary["turns"]
    assert isinstance(turns, int)
    assert len(run.events("EVENT_INFER_START")) <= turns + 2 * CAPACITY * KILLS
    assert not list(run.path.rglob(".tmp-*"))
