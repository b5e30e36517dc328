"""The files of a report, made whole before the first is written; a file of anything else is never replaced.

What draws figures is heavy and an extra, so it is imported when a report is made. A PDF is printed by a Chromium
that is installed here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from mac_runner.errors import ConfigError, MissingPackageError
from mac_runner.extras import install_command
from mac_runner.figures.model import MADE_BY
from mac_runner.printable import printable
from mac_runner.store import Disk, encode_for_reading, is_grid

_PACKAGES: Final = {"altair": "altair", "scipy": "scipy", "vl_convert": "vl-convert-python"}
_MARK: Final = MADE_BY.encode()
_MARK_BYTES: Final = 400
"""The mark is within so many bytes of the beginning or the end of a file."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRequest:
    """What a report is made of, and where its files are put."""

    directories: Sequence[Path]
    out: Path | None = None
    numbers: Path | None = None
    """Where the numbers are written as JSON."""
    has_pdf: bool = False
    viewer: str = ""
    """The address of the published run, for links."""

    @property
    def page(self) -> Path:
        """The HTML page: beside the run, unless another file is named."""
        return self.out if self.out is not None else default_out(self.directories)

    @property
    def pdf(self) -> Path | None:
        """The PDF, beside the page."""
        return self.page.with_suffix(".pdf") if self.has_pdf else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFiles:
    """A report that is ready to be written."""

    files: Mapping[Path, bytes]
    figures: int
    state: str


def default_out(directories: Sequence[Path]) -> Path:
    """`RUN.report.html` beside RUN; of a combination beside its grid."""
    resolved = [directory.resolve() for directory in directories]
    first = resolved[0]
    is_combination = is_grid(first.parent)
    place = first.parent.parent if is_combination else first.parent
    own = f"{first.parent.name}.{first.name}" if is_combination else first.name
    name = ".".join([own, *(f"against.{other.name}" for other in resolved[1:])])
    here, path = Path.cwd(), place / f"{name}.report.html"
    return path.relative_to(here) if path.is_relative_to(here) else path


def check_packages() -> None:
    """Raises MissingPackageError where what draws figures is not installed."""
    if missing := [package for module, package in _PACKAGES.items() if find_spec(module) is None]:
        raise MissingPackageError(
            f"a report needs {', '.join(missing)}, which is not installed: {install_command('report')}"
        )


def report_files(request: ReportRequest, now: datetime) -> ReportFiles:
    """Make a report. Writes nothing.

    Raises MissingPackageError without the extra, ConfigError for a file that cannot be written and where the browser
    for the PDF is missing, RunDirectoryError for what is not a run directory.
    """
    check_packages()
    if urlsplit(request.viewer).scheme not in ("", "http", "https"):
        raise ConfigError(f"--viewer: {request.viewer!r:.100} is no page; name a file or an address with https://")
    program = browser() if request.has_pdf else ""
    for flag, path in (("--out", request.page), ("--json", request.numbers), ("--pdf", request.pdf)):
        if path is not None:
            _refuse(path, flag)
    from mac_runner.figures.page import report_html, report_json
    from mac_runner.runs.report import report_of

    made = report_of(request.directories, now, viewer=request.viewer)
    html = report_html(made).encode("utf-8", "backslashreplace")
    files = {request.page: html}
    if request.numbers is not None:
        files[request.numbers] = encode_for_reading(report_json(made))
    if request.pdf is not None:
        files[request.pdf] = pdf_of(html, program) + b"\n% " + _MARK + b"\n"
    count = sum(len(section.figures) for section in made.sections)
    return ReportFiles(files=files, figures=count, state=made.state)


def _refuse(path: Path, flag: str) -> None:
    """Raises ConfigError where no report can be written: only a former report is replaced."""
    disk = Disk()
    if not path.parent.is_dir():
        raise ConfigError(f"{flag}: there is no directory {path.parent}; make it, or name another file")
    if path.is_symlink() or (disk.exists(path) and not disk.is_file(path)):
        raise ConfigError(f"{flag}: {path} is no plain file; name another")
    if disk.exists(path) and not _is_report(disk.read(path)):
        raise ConfigError(f"{flag}: {path} is there already and is not a report; name another file, or remove it")


def _is_report(data: bytes) -> bool:
    return _MARK in data[:_MARK_BYTES] or _MARK in data[-_MARK_BYTES:]


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
