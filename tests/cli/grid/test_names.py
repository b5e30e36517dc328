"""Names of combinations in a grid's directory: short, kept for ever, and never shared by two experiments."""

from __future__ import annotations

import pytest
import yaml

from mac_runner.types import JsonObject
from tests.cli.lab import AtOnce, Lab, experiment


def directories(lab: Lab) -> set[str]:
    return {path.parent.name for path in (lab.path / "runs" / "small").glob("*/experiment.yaml")}


def grid(*rounds: int, retries: int = 2) -> JsonObject:
    return {
        **experiment(conversations=1),
        "_grid": {"sweep": {"game.calendar.vote_rounds": [*rounds]}},
        "retry_config": {"max_retries": retries},
    }


@pytest.mark.ci
def test_directories_are_named_by_values_and_a_changed_experiment_gets_another_name(lab: Lab, at_once: AtOnce) -> None:
    lab.write(grid(1, 2))
    assert at_once("small.yaml", "--quiet").returncode == 0
    assert directories(lab) == {"vote_rounds-1", "vote_rounds-2"}
    before = {path: path.stat().st_mtime_ns for path in lab.run_dir().path.glob("vote_rounds-?/transcripts/*")}

    lab.write(grid(3, 2, retries=5))
    assert at_once("small.yaml", "--quiet").returncode == 0
    added = directories(lab) - {"vote_rounds-1", "vote_rounds-2"}
    assert sorted(name.partition("_")[0] + name[4:13] for name in added) == ["vote_rounds-2", "vote_rounds-3"]
    assert {len(name) for name in added} == {len("vote_rounds-3"), len("vote_rounds-2_123456")}
    assert {path: path.stat().st_mtime_ns for path in before} == before

    lab.write(grid(1, 2, 3))
    assert at_once("small.yaml", "--quiet").returncode == 0
    entries = yaml.safe_load((lab.run_dir().path / "grid.yaml").read_text())["combinations"]
    assert [entry["slug"] for entry in entries if entry["asked"]][:2] == ["vote_rounds-1", "vote_rounds-2"]
    assert len({entry["slug"] for entry in entries}) == len(entries) == 5
    lab.verified(lab.run_dir().path)
