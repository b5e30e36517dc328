"""An HTML page as PDF, printed by a Chromium that is installed here."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from mac_runner.errors import ConfigError
from mac_runner.printable import printable
from mac_runner.store import Disk

_BROWSERS: Final = (
    *("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge"),
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
_FLAGS: Final = (
    *("--headless", "--disable-gpu", "--no-first-run", "--disable-extensions", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-quic", "--no-pdf-header-footer"),
)
_PATIENCE_S: Final = 120


def browser() -> str:
    """The Chromium that prints. Raises ConfigError where there is none."""
    found = next((path for name in _BROWSERS if (path := shutil.which(name)) is not None), None)
    if found is None:
        raise ConfigError(
            "--pdf: no Chromium or Chrome is on the PATH; install one, or leave --pdf out and print the HTML page from "
            "any browser"
        )
    return found


def pdf_of(html: bytes, program: str) -> bytes:
    """The page on A4. Raises ConfigError where the browser does not print it."""
    disk = Disk()
    with tempfile.TemporaryDirectory(prefix="mac-run-pdf-") as place:
        folder = Path(place)
        page, printed = folder / "report.html", folder / "report.pdf"
        disk.write_atomic(page, [html])
        # Chromium refuses its sandbox to the superuser, such as in a container; the page holds no script.
        rights = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        command = [program, *_FLAGS, *rights, f"--user-data-dir={folder / 'profile'}"]
        command += [f"--print-to-pdf={printed}", page.as_uri()]
        try:
            ended = subprocess.run(command, capture_output=True, timeout=_PATIENCE_S, check=False)  # noqa: S603
            words = ended.stderr.decode(errors="replace").strip().splitlines()
        except subprocess.TimeoutExpired:
            words = [f"it did not end within {_PATIENCE_S} s"]
        except OSError as fault:
            words = [str(fault)]
        if not disk.exists(printed):
            last = printable(words[-1]) if words else "it said nothing"
            raise ConfigError(f"--pdf: {program} did not print the page: {last:.300}")
        return disk.read(printed)
