"""The head of the page of a run says what its status and its summary say."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from mac_runner.reports import listed
from mac_runner.runs.summary import summary_of
from mac_runner.store import is_grid, read_grid_standing, read_run, read_standing
from mac_runner.types import JsonObject
from mac_runner.view_model import RunPage
from mac_runner.views.run_page import grid_page, run_page
from tests.cli.lab import Lab, experiment

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


def test_page_of_a_run_has_its_state_its_engines_and_its_results(tmp_path: Path) -> None:
    lab = Lab(path=tmp_path)
    lab.done(lab.write(experiment(conversations=2)))

    page = page_of(lab.run_dir().path)

    assert (page.state, page.planned, page.done, page.failed, page.is_live) == ("complete", 2, 2, 0, False)
    assert page.environment == "town_of_salem"
    (engine,) = page.engines
    assert (engine.model, engine.backend, engine.slots) == ("m", "scripted", 8)
    assert engine.requests > 0
    assert engine.latency_s is not None
    facts = {fact.name: fact.text for fact in page.facts}
    assert "%" in facts["wins.town"]
    assert "n 2" in facts["wins.town"]


def test_page_of_a_grid_has_its_combinations_with_their_figures(tmp_path: Path) -> None:
    lab = Lab(path=tmp_path)
    lobbies: JsonObject = {"sweep": {"game.lobby": ["classic-7", "classic-10"]}}
    lab.done(lab.write(experiment(conversations=1, _grid=lobbies)))

    page = page_of(lab.run_dir().path)

    assert [combination.values for combination in page.combinations] == [
        {"game.lobby": "classic-7"},
        {"game.lobby": "classic-10"},
    ]
    assert all(combination.done == combination.planned == 1 for combination in page.combinations)
    assert all("wins.town" in combination.figures for combination in page.combinations)
