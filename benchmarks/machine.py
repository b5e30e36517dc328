"""The row every benchmark ends with: its figures, the commit and the machine they were taken on."""

from __future__ import annotations

import json
import os
import platform
import subprocess

from mac_runner.types import JsonValue


def row(**figures: JsonValue) -> str:
    """One line of JSON."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    return json.dumps({**figures, "commit": commit.stdout.strip(), "machine": machine})
