"""The figures of Town of Salem: who wins, who lives, how well the Town judges, who lies, what nights bring."""

from __future__ import annotations

from collections.abc import Sequence

from mac_runner.figures.data import RunData, Study
from mac_runner.figures.model import Figure, Section
from mac_runner.figures.town_of_salem.compared import compared_figures
from mac_runner.figures.town_of_salem.games import failed_games, games_of
from mac_runner.figures.town_of_salem.kinds import claims_by_kind
from mac_runner.figures.town_of_salem.lives import Lives
from mac_runner.figures.town_of_salem.skills import Skills
from mac_runner.figures.town_of_salem.wins import Wins
from mac_runner.intervals import one_cluster

__all__ = ["run_sections", "study_sections"]


def run_sections(data: RunData) -> Sequence[Section]:
    """The chapters of a run; outcomes are read once."""
    wins, lives, skills = Wins(), Lives(), Skills()
    for game in games_of(data):
        with one_cluster(game.cluster):
            wins.add(game)
            lives.add(game)
            skills.add(game)
    for seats in failed_games(data):
        wins.fail(seats)
    found = (
        _section("wins", "Who wins", *wins.figures()),
        _section("survival", "Who lives, and how long", *lives.figures(), wins.length()),
        _section("judgement", "How well the Town judges", *skills.judging()),
        _section("lies", "Claims and lies", *skills.deceiving(), claims_by_kind(data), lives.first_lie()),
        _section("nights", "Nights", skills.nights()),
    )
    return [section for section in found if section.figures]


def _section(name: str, title: str, *figures: Figure | None) -> Section:
    return Section(id=name, title=title, figures=tuple(figure for figure in figures if figure is not None))


def study_sections(study: Study) -> Sequence[Section]:
    """The chapters that compare runs."""
    found = _section("compared", "The runs compared", *compared_figures(study))
    return [found] if found.figures else []
