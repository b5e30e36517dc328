"""Run directories of earlier versions are read, verified, gone on with, merged and retried by the command line.

`tests/golden/record_commands.py` wrote them. A version whose files differ gets a directory of its own beside them.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mac_runner.cli.process import Exit
from tests.cli.lab import AtOnce, Lab, RunDir
from tests.golden.conversations import PLAYED, differences
from tests.golden.record_commands import URL
from tests.sim.behaviour import Say
from tests.sim.openai_run import in_a_thread
from tests.sim.openai_server import OpenaiServer

RECORDED = Path(__file__).parents[1] / "golden" / "commands"
VERSIONS = sorted(path.name for path in RECORDED.iterdir())


@pytest.fixture(params=VERSIONS)
def recorded(request: pytest.FixtureRequest, lab: Lab) -> Lab:
    """A working directory with the runs of one version."""
    shutil.copytree(RECORDED / str(request.param), lab.path, dirs_exist_ok=True)
    return lab


def digests(recorded: Lab) -> dict[str, str]:
    """A digest of each file of all runs. Looking at a run makes a lock file where there is none."""
    return {
        name: digest
        for name, (_, digest) in RunDir(path=recorded.path / "runs").hashes().items()
        if ".lock" not in name
    }


def test_finished_runs_verify_and_are_left_as_they_are(recorded: Lab, at_once: AtOnce) -> None:
    before = digests(recorded)
    for run in ("game", "grid", "parts.shard-1-of-2"):
        assert at_once("verify", f"runs/{run}").returncode == Exit.OK, run
        assert at_once("status", f"runs/{run}").returncode == Exit.OK, run
        assert digests(recorded) == before
    for file, *flags in (("game.yaml",), ("parts.yaml", "--shard", "2/2")):
        process = at_once(file, *flags)
        assert process.returncode == Exit.OK
        assert "nothing to run" in process.stderr
        assert digests(recorded) == before


def test_finished_game_is_shown(recorded: Lab, at_once: AtOnce) -> None:
    for flags in ((), ("--truth",), ("--turns",)):
        process = at_once("show", "runs/game", "0", *flags)
        assert process.returncode == Exit.OK, process.stderr
        assert len(process.stdout.splitlines()) > 50


def test_complete_grid_prints_its_table(recorded: Lab, at_once: AtOnce) -> None:
    process = at_once("grid.yaml")

    assert process.returncode == Exit.OK
    assert "all 2 combinations are complete" in process.stderr
    assert at_once("verify", "runs/grid").returncode == Exit.OK


def test_killed_run_goes_on_to_what_an_undisturbed_one_has(recorded: Lab, at_once: AtOnce) -> None:
    assert at_once("killed.yaml").returncode == Exit.OK
    assert at_once("killed.yaml", "--out", "undisturbed").returncode == Exit.OK

    resumed, undisturbed = recorded.run_dir("killed"), RunDir(path=recorded.path / "undisturbed")
    assert resumed.transcripts == undisturbed.transcripts
    asked = [len(run.events("EVENT_INFER_DONE")) for run in (resumed, undisturbed)]
    assert asked[0] <= asked[1]
    recorded.verified(resumed.path)


def test_shards_are_merged_into_what_one_run_has(recorded: Lab, at_once: AtOnce) -> None:
    shards = ("runs/parts.shard-1-of-2", "runs/parts.shard-2-of-2")
    assert at_once("merge", "whole", *shards).returncode == Exit.OK
    assert at_once("parts.yaml", "--out", "undisturbed").returncode == Exit.OK

    whole = RunDir(path=recorded.path / "whole")
    assert whole.transcripts == RunDir(path=recorded.path / "undisturbed").transcripts
    recorded.verified(whole.path)


def test_failed_conversations_are_retried_with_questions_from_a_file(recorded: Lab, at_once: AtOnce) -> None:
    with in_a_thread(OpenaiServer(script=lambda _received: Say("So be it."))) as server:
        for path in (recorded.path / "failed.yaml", recorded.path / "runs/failed/experiment.yaml"):
            path.write_text(path.read_text().replace(URL, server.url))
        process = at_once("retry", "runs/failed")
        assert process.returncode == Exit.OK, process.stderr
        assert at_once("failed.yaml", "--out", "undisturbed").returncode == Exit.OK

    run = recorded.run_dir("failed")
    assert run.statuses == {"finished": 4}
    assert run.transcripts == RunDir(path=recorded.path / "undisturbed").transcripts
    assert len(list((run.path / "attempts").iterdir())) == 2
    recorded.verified(run.path)


def test_conversations_are_what_they_were_when_they_were_recorded() -> None:
    found = [line for played in PLAYED for line in differences(played, first=2)]

    assert not found, "\n".join(found)
