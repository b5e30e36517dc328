"""`mac-run report`: one page of figures, with the numbers behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mac_runner.cli.process import Exit, report, say
from mac_runner.clock import SystemClock
from mac_runner.errors import ConfigError
from mac_runner.figures.page import MADE_BY, Report, report_html, report_json
from mac_runner.figures.svg import check_packages
from mac_runner.runs.pdf import browser, pdf_of
from mac_runner.runs.report import report_of
from mac_runner.store import Disk, encode_for_reading

_MARK: Final = MADE_BY.encode()
_MARK_BYTES: Final = 400
"""The mark stands within so many bytes of the beginning or the end of a file."""
_PDF_MARK: Final = b"\n% " + _MARK + b"\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRequest:
    """What `mac-run report` is asked for."""

    directories: Sequence[Path]
    out: Path | None = None
    json: Path | None = None
    has_pdf: bool = False
    viewer: str = ""

    @property
    def page(self) -> Path:
        """The HTML file: beside the run, unless another is named."""
        return self.out if self.out is not None else default_out(self.directories)


def default_out(directories: Sequence[Path]) -> Path:
    """`RUN.report.html` beside RUN; of a combination beside its grid."""
    resolved = [directory.resolve() for directory in directories]
    first = resolved[0]
    is_combination = (first.parent / "grid.yaml").exists()
    place = first.parent.parent if is_combination else first.parent
    own = f"{first.parent.name}.{first.name}" if is_combination else first.name
    name = ".".join([own, *(f"against.{other.name}" for other in resolved[1:])])
    return _shortest(place / f"{name}.report.html")


def write_report(request: ReportRequest) -> Exit:
    """Make the report, then write all its files; nothing is written where anything fails before."""
    check_packages()
    program = browser() if request.has_pdf else ""
    page, numbers = request.page, request.json
    pdf = page.with_suffix(".pdf") if request.has_pdf else None
    for flag, path in (("--out", page), ("--json", numbers), ("--pdf", pdf)):
        if path is not None:
            _refuse(path, flag)
    made = report_of(request.directories, SystemClock().utc_now(), viewer=request.viewer)
    html = report_html(made).encode("utf-8", "backslashreplace")
    files = {page: html}
    if numbers is not None:
        files[numbers] = encode_for_reading(report_json(made))
    if pdf is not None:
        files[pdf] = pdf_of(html, program) + _PDF_MARK
    disk = Disk()
    for path, data in files.items():
        disk.write_atomic(path, [data])
    with report() as stream:
        for path, data in files.items():
            stream.write(f"{path}: {_figures(made)}, {len(data):,} bytes\n")
    say(made.state)
    return Exit.OK


def _figures(made: Report) -> str:
    count = sum(len(section.figures) for section in made.sections)
    return f"{count} figures" if count != 1 else "1 figure"


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


def _shortest(path: Path) -> Path:
    """The path from here where that is below the current directory."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
