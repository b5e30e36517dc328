"""What the tests of this room hold on to below its face, so that a move inside the room changes no test."""

from __future__ import annotations

from mac_runner.reports.conversations import Listed, words_of
from mac_runner.reports.ending import LINES_MAX, cost_of, ending
from mac_runner.reports.failures import REASONS_MAX, warnings
from mac_runner.reports.grid import ROWS_SHOWN_MAX, figures_of
from mac_runner.reports.outcomes import TEXTS_MAX, OutcomeResults
from mac_runner.reports.status import FAILURES_MAX, MODELS_MAX
from mac_runner.reports.summary import STRETCHES_MAX, models_of
from mac_runner.reports.tables import PARTS_MAX, drawn
from mac_runner.reports.turns import objects
