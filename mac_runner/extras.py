"""The command that installs an extra of mac_runner, wherever mac_runner came from: no package index need have it."""

from __future__ import annotations

import re
import shlex
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

_CLONE = Path(__file__).parents[1]


def install_command(extra: str) -> str:
    """What installs `extra`: that of the clone which this code is in, else the packages of which it consists."""
    if (_CLONE / "pyproject.toml").is_file():
        return f"pip install -e {shlex.quote(f'{_CLONE}[{extra}]')}"
    marker = re.compile(rf"extra == (['\"]){re.escape(extra)}\1")
    try:
        packages = [each.partition(";")[0].strip() for each in requires("mac_runner") or () if marker.search(each)]
    except PackageNotFoundError:  # A copy of its files.
        packages = []
    return f"pip install {shlex.join(packages or [f'mac_runner[{extra}]'])}"
