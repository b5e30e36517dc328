"""Stand-in until `mac_runner.data` is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class RunView:
    """A run directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    def summary(self) -> Any:
        """The summary."""
        return json.loads((self.directory / "summary.json").read_text())


def open_run(directory: Path) -> RunView:
    """Open it."""
    return RunView(directory)
