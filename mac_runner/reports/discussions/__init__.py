"""What discussions came to: accuracy, consensus, changed answers, and the bias scores of BBQ."""

from __future__ import annotations

from mac_runner.reports.discussions.counting import DiscussionCounter
from mac_runner.reports.discussions.results import DiscussionResult, parse_discussion
from mac_runner.reports.discussions.tables import discussion_lines, discussion_tables

__all__ = ["DiscussionCounter", "DiscussionResult", "discussion_lines", "discussion_tables", "parse_discussion"]
