"""The command line: reads flags, calls the other rooms, prints, and ends the process.

`mac-run FILE` runs an experiment; verbs work on what it wrote.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mac_runner.cli import process

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["main"]


def main() -> None:
    """The console script."""
    process.main(_loaded)


def _loaded() -> Callable[[], int]:
    """Imports take most of the time and memory of a short command: by then signals are handled."""
    from mac_runner.cli.commands import obey

    return obey
