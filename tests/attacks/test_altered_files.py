"""Altered files: an experiment is taken or refused in words of ours; in a run directory no verb fails over one."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.attacks.conftest import Draw

pytestmark = [pytest.mark.ci, pytest.mark.parametrize("part", range(2))]


def test_altered_experiment_is_taken_or_refused_by_name(part: int, draw: Draw) -> None:
    """With its place, and nothing is written."""
    draw("mutated-file", range(part, 175, 2))


def test_damaged_file_is_reported_or_mended_and_changes_no_result(part: int, draw: Draw) -> None:
    draw("mutated-run", range(part, 18, 2), lambda came: Counter(each.rpartition(": ")[2] for each in came))
