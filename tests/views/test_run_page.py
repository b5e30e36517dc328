"""The pages of runs: the head says what status and summary say, and pages are compiled for what Python sends."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from mac_runner.reports import listed
from mac_runner.runs.testing import summary_of
from mac_runner.store import is_grid, read_grid_standing, read_run, read_standing
from mac_runner.types import JsonValue
from mac_runner.view_model import RunPage
from mac_runner.views.testing import grid_page, run_page, typescript
from tests.cli.lab import ROOT, experiment
from tests.kit import played

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def page_of(directory: Path) -> RunPage:
    """The page of a run or a grid."""
    if is_grid(directory):
        standing = read_grid_standing(directory)
        begun = {known.slug: read_run(directory / known.slug) for known, found in standing.combinations if found}
        resolved = next(iter(begun.values())).resolved
        return grid_page(standing, resolved, NOW, summaries={slug: summary_of(run) for slug, run in begun.items()})
    contents = read_run(directory)
    how = listed(contents.environment_name)
    return run_page(read_standing(directory), contents.resolved, how, NOW, summary=summary_of(contents))


@pytest.mark.ci
def test_page_of_a_run_has_its_state_its_engines_and_its_results(tmp_path: Path) -> None:
    page = page_of(played(experiment(conversations=2), tmp_path / "run"))

    assert (page.state, page.planned, page.done, page.failed, page.is_live) == ("complete", 2, 2, 0, False)
    assert page.environment == "town_of_salem"
    (engine,) = page.engines
    assert (engine.model, engine.backend, engine.slots) == ("m", "scripted", 8)
    assert engine.requests > 0
    assert engine.latency_s is not None
    facts = {fact.name: fact.text for fact in page.facts}
    assert "%" in facts["wins.town"]
    assert "n 2" in facts["wins.town"]


@pytest.mark.ci
def test_page_of_a_grid_has_its_combinations_with_their_figures(tmp_path: Path) -> None:
    lobbies: list[JsonValue] = ["classic-7", "classic-10"]
    page = page_of(played(experiment(conversations=1, _grid={"sweep": {"game.lobby": lobbies}}), tmp_path / "run"))

    assert [combination.values for combination in page.combinations] == [{"game.lobby": lobby} for lobby in lobbies]
    assert all(combination.done == combination.planned == 1 for combination in page.combinations)
    assert all("wins.town" in combination.figures for combination in page.combinations)


def test_pages_are_compiled_against_the_structs_that_python_sends() -> None:
    committed = (ROOT / "viewer" / "src" / "model.ts").read_text(encoding="utf-8")

    assert committed == typescript(), (
        "run: python -m mac_runner.views.typescript viewer/src/model.ts; then build viewer/"
    )
