"""Bugs to be planted, one at a time, and by which oracle each is found out.

A check that never fired is no evidence. Each mutant replaces one function of the package by one with a mistake that a
programmer could make there; where the function is gone or called otherwise, planting it fails, and says so.
"""

from __future__ import annotations

from tests.faults.scheduler_mutants import SCHEDULER_MUTANTS
from tests.faults.store_mutants import STORE_MUTANTS

MUTANTS = (*STORE_MUTANTS, *SCHEDULER_MUTANTS)
