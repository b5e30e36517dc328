"""What the tests of this room hold on to below its face, so that a move inside the room changes no test."""

from __future__ import annotations

from mac_runner.figures.charts import colours_of, dashes_of, forest, shapes_of, ticks_of
from mac_runner.figures.differences import interval_notes, of_rate
from mac_runner.figures.engines import cost_figures, engine_figures
from mac_runner.figures.every_run import (
    classes,
    comparison_sections,
    endings_figure,
    failed_figure,
    length_figures,
    outcome_sections,
)
from mac_runner.figures.model import DataColumn, Figure, Method, RunData, Section, Study, Value
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
from mac_runner.figures.town_of_salem.measures import Case, claims_by_kind, log_rank, survival
