"""What the tests of this room hold on to below its face, so that a move inside the room changes no test."""

from __future__ import annotations

from mac_runner.figures.charts import colours_of, dashes_of, forest, shapes_of, ticks_of
from mac_runner.figures.data import RunData, Study
from mac_runner.figures.engines import cost_figures, engine_figures
from mac_runner.figures.estimates import interval_notes, of_rate
from mac_runner.figures.every_run import (
    classes,
    comparison_sections,
    endings_figure,
    failed_figure,
    length_figures,
    outcome_sections,
)
from mac_runner.figures.model import DataColumn, Figure, Method, Section, Value
from mac_runner.figures.page import (
    ROWS_MAX,
    Line,
    Report,
    cell_text,
    methods_text,
    report_html,
    report_json,
    svg_of,
)
from mac_runner.figures.town_of_salem.lives import Case, log_rank, survival
from mac_runner.figures.town_of_salem.measures import claims_by_kind
