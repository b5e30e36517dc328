"""What a run found out, read from its run directory and never from a running scheduler: the summary and its tables."""

from __future__ import annotations

from mac_runner.reports.intervals import Interval, wilson
from mac_runner.reports.standing import standing_json, tell_standing
from mac_runner.reports.summary import summarise
from mac_runner.reports.telling import tell_transcript, tell_turns
from mac_runner.reports.text import render_summary, write_summary

__all__ = [
    "Interval",
    "render_summary",
    "standing_json",
    "summarise",
    "tell_standing",
    "tell_transcript",
    "tell_turns",
    "wilson",
    "write_summary",
]
