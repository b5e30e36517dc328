"""Forks of one conversation are not independent: intervals take what they share for one cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import mac_runner
from mac_runner.cli.maintenance import merge
from mac_runner.cli.process import Exit
from mac_runner.intervals import ClusteredRate, ExactClusteredMean
from mac_runner.results import ends
from tests.test_groups import file

GAME = """
from mac_runner import Ask, game

@game
def dice(table):
    said = []
    for number in range(3):
        said += yield [Ask(name, "Say one.", choices=[*"abcdef"], default="a") for name in table.agents]
    return {"vowels": sum(letter in "ae" for letter in said), "is_loud": said[-1] in "abc"}
"""


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    experiment = file(tmp_path, 1, 3)
    (tmp_path / "dice.py").write_text(GAME)
    mac_runner.run(experiment, out=tmp_path / "run", progress=False)
    return tmp_path / "run"


def forked(run: Path, out: str, *, turn: str = "1/Ann", draws: int = 4) -> Path:
    place = run.parent / out
    mac_runner.fork(run, where=["finished"], turn=turn, draws=draws, out=place, trust=True, progress=False)
    return place


def check(place: Path) -> None:
    """The intervals of a summary are those by the conversation that was forked."""
    view = mac_runner.open_run(place)
    loud, vowels, origins = ClusteredRate(), ExactClusteredMean(), dict[str, list[Any]]()
    for one in view:
        origins.setdefault(one.task_id[: len("small-000000")], []).append(one.outcome)
    assert len(origins) == 3
    for outcomes in origins.values():
        loud.add(sum(outcome["is_loud"] for outcome in outcomes), len(outcomes))
        vowels.add([outcome["vowels"] for outcome in outcomes])
    summary: Any = view.summary
    values = summary["outcomes"]["dice"]["values"]
    assert values["is_loud"]["interval"] == ends(loud.interval)
    assert values["vowels"]["interval"] == pytest.approx(ends(vowels.interval), abs=1e-3)


def test_intervals_of_a_fork_are_by_the_conversation_that_was_forked(parent: Path) -> None:
    check(forked(parent, "fork"))


def test_a_fork_of_a_fork_and_a_merge_of_forks_have_the_clusters_of_the_first_conversations(parent: Path) -> None:
    first, second = forked(parent, "first"), forked(parent, "second", turn="2/Bob", draws=2)
    check(forked(first, "again", turn="2/Ann", draws=2))

    assert merge(parent.parent / "whole", [first, second], is_quiet=True) == Exit.OK
    check(parent.parent / "whole")
