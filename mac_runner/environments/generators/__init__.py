"""Conversations written as a generator that yields what it asks."""

from mac_runner.environments.generators.environment import generator_spec
from mac_runner.environments.generators.table import Ask, Table

__all__ = ["Ask", "Table", "generator_spec"]
