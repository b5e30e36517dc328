"""The chapters that every report has, before and after those of the environment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mac_runner.figures.every_run.conversations import endings_figure, length_figures
from mac_runner.figures.every_run.cost import cost_figures
from mac_runner.figures.every_run.engines import engine_figures
from mac_runner.figures.every_run.outcomes import failed_figure, metric_figures, outcome_figures
from mac_runner.figures.every_run.played import Played
from mac_runner.figures.every_run.replies import usability_figures
from mac_runner.figures.model import Section
from mac_runner.types import JsonObject
from mac_runner.view_model import EnginesPage
from mac_runner.views.engines import Classes


def first_sections(runs: Sequence[Played]) -> Iterator[Section]:
    """How conversations ended, and what came out of those whose environment has no figures of its own."""
    yield Section(id="conversations-ended", title="Endings", figures=(endings_figure(runs),))
    if outcomes := (*outcome_figures(runs), *metric_figures(runs), *filter(None, [failed_figure(runs)])):
        yield Section(id="outcomes", title="Outcomes", figures=outcomes)


def last_sections(runs: Sequence[Played]) -> Iterator[Section]:
    """How long conversations were, and which replies could not be used."""
    if figures := (*length_figures(runs), *usability_figures(runs)):
        yield Section(id="length", title="Length and usable replies", figures=figures)


def engine_section(
    page: EnginesPage,
    reply_tokens: Mapping[str, Classes],
    definitions: Mapping[str, JsonObject],
    accounts: JsonObject,
    finished: int,
    notes: tuple[str, ...] = (),
) -> Iterator[Section]:
    """What the engines did and cost; `notes` say what is left out."""
    figures = (*engine_figures(page, reply_tokens, accounts), *cost_figures(definitions, accounts, finished))
    if figures or notes:
        yield Section(id="engines-used", title="Engines and costs", figures=figures, notes=notes)
