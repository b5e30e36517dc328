"""The verbs as a user starts them: each in a process of its own, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.lab import Lab, experiment

pytestmark = pytest.mark.smoke


def test_a_run_that_is_killed_goes_on_to_what_an_undisturbed_one_has(finished: Lab) -> None:
    """Its transcripts are byte for byte those of a run that played without a pause; its table goes to stdout alone."""
    command, run = ("small.yaml", "--out", "runs/killed"), finished.run_dir("killed")
    finished.kill_held(6, *command)

    resumed = finished.done(*command)

    assert run.statuses == {"finished": 2}
    assert run.transcripts == finished.run_dir().transcripts
    assert "2 of 2 games finished, 0" in resumed.stdout


@pytest.mark.parametrize(
    ("arguments", "printed", "written"),
    [
        (("verify", "runs/small"), "attempted 2, acknowledged 2; lost 0", ""),
        (("status", "runs/small"), "complete", ""),
        (("show", "runs/small", "0"), "Day 1", ""),
        (("report", "runs/small", "--out", "report.html"), "", "report.html"),
        (("export", "runs/small", "--to", "tables"), "", "tables"),
        (("fork", "runs/small", "0", "--turn", "#5", "--out", "runs/fork"), "", "runs/fork/summary.json"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_verb_reads_a_run_and_ends_well(
    finished: Lab, arguments: tuple[str, ...], printed: str, written: str
) -> None:
    process = finished.done(*arguments)

    assert printed in process.stdout
    assert (finished.path / written).exists()


def test_a_grid_is_played(lab: Lab) -> None:
    lab.done(lab.write(experiment(_grid={"sweep": {"seed": [1, 2]}})))

    assert len([*Path(lab.run_dir().path).glob("summaries/*.json")]) == 2
