"""What the tests of this room hold on to below its face, so that a move inside the room changes no test."""

from __future__ import annotations

from mac_runner.views.compare import compare_view
from mac_runner.views.conversation import whole_view
from mac_runner.views.engines import BINS_MAX, FIRST_BIN_S, EngineClock
from mac_runner.views.flows import flow_page, fork_trees, is_met, parse_filter
from mac_runner.views.inspector import difference, turn_views
from mac_runner.views.perspective import perspective
from mac_runner.views.run_page import column_views, combination_figures, index_columns
from mac_runner.views.text import transcript_text
from mac_runner.views.typescript import typescript
