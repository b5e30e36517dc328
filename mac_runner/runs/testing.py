"""What the tests of this room hold on to below its face, so that a move inside the room changes no test."""

from __future__ import annotations

from mac_runner.runs.engines import DESCRIPTORS_MIN, Engine, EnginePlan, bound, plan_engines
from mac_runner.runs.event_loop import COLLECTION_OBJECTS, rare_collections, run
from mac_runner.runs.export import Exported, ExportRequest, export, exported, followed
from mac_runner.runs.fork_plan import ForkRequest, plan_fork
from mac_runner.runs.forks import RESAMPLED, SAID, Rollout, value_of
from mac_runner.runs.limits import Limits
from mac_runner.runs.maintenance import repair_all, verify_all
from mac_runner.runs.recorded import (
    parent_conversation,
    rebuilt_transcript,
    recorded_plan,
    sent_prompt,
    set_of_one,
    trust,
)
from mac_runner.runs.replays import Replays
from mac_runner.runs.report import report_of, run_data
from mac_runner.runs.stream import LOOK_INTERVAL_S, OpenRun, Supply
from mac_runner.runs.summary import run_sources, run_tables, summary_of
from mac_runner.runs.view import RecordedConversation, RunView, open_run
