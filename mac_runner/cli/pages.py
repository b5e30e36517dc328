"""`mac-run view`, `publish` and `report`, and the pages beside a run (`mac-run FILE --view`).

Beside a run the pages are served by a process of their own, so they cannot slow the run or end it. That process gets a
socket that already listens, and the token through its standard input. It ends when its standard input does: after the
run, and also when the run is killed.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import sys
import webbrowser
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from mac_runner.cli.options import OfRun, Reading, argument, commands, option, options, refuse_taken, switch
from mac_runner.cli.process import Exit, print_lines, say, stop_on_signals
from mac_runner.clock import SystemClock
from mac_runner.printable import counted
from mac_runner.runs.recorded import ended_row
from mac_runner.store import Disk, is_grid, read_run
from mac_runner.store.identity import listed, read_head
from mac_runner.store.run import lost_words
from mac_runner.threads import on_thread
from mac_runner.viewer.guard import Address, Opening, listening_at, url_of

if TYPE_CHECKING:
    from mac_runner.viewer.publish import Publication

_END_S: Final = 5.0
"""So long the process of the pages may take to end."""
_NICE: Final = 10


@dataclass(frozen=True, kw_only=True)
class View(OfRun):
    """Show RUN, a run or a grid, in a browser, while it runs or after.

    Prints an address that only this user knows, and serves it until Ctrl-C. Reads only.

    Exit codes: 0 ended by Ctrl-C, 2 RUN is not a run directory, or the address cannot be had.
    """

    port: int = option("The port [one that is free].", "N", 0, type=click.IntRange(0, 65535))
    no_open: bool = switch("Open no browser.")
    host: str = option("Where to listen [127.0.0.1].", "ADDRESS", "127.0.0.1")
    allow_host: tuple[str, ...] = options("Another name of this server: NAME[:PORT].", "NAME")
    beside_run: int | None = option("", type=int, hidden=True)

    def trusted(self) -> Iterable[Path]:
        """Beside a run that another process plays, its code is imported when it has begun."""
        return super().trusted() if self.beside_run is None else ()

    def work(self) -> None:
        """Serve the pages of a run or a grid: until a signal, or beside a run until standard input ends."""
        # Here, because every run would wait for the HTTP library.
        from mac_runner.runs.event_loop import rare_collections
        from mac_runner.viewer.server import Viewer
        from mac_runner.viewer.source import SLICE_S, RunSource

        is_beside = self.beside_run is not None
        opening = self._opening() if self.beside_run is None else _inherited(self.beside_run)
        if opening is None:
            return

        async def serve() -> None:
            stop = asyncio.Event()
            with _until_input_ends(stop) if is_beside else stop_on_signals(stop, lambda _text: None):
                # A user who plays an experiment trusts its code.
                is_trusted = self.trust or is_beside
                source = RunSource(self.directory, is_awaited=is_beside, is_trusted=is_trusted, slice_s=SLICE_S)
                async with Viewer(source, opening) as viewer:
                    if not is_beside:
                        print_lines(viewer.url)
                        say(
                            f"{self.directory} is shown at this address, which is for you alone; Ctrl-C ends the server"
                        )
                    # A browser may take its time, or the terminal.
                    if not self.no_open and has_browser(os.environ, sys.platform):
                        on_thread(lambda: webbrowser.open(viewer.url), "browser")
                    await stop.wait()

        with rare_collections():
            asyncio.run(serve())

    def _opening(self) -> Opening:
        """The address that was asked for, where something is to be shown. Raises RunDirectoryError else."""
        address = Address(host=self.host, port=self.port, names=self.allow_host)
        address.check()
        if not is_grid(self.directory):
            read_head(self.directory)
        return Opening(listening_at(address), secrets.token_urlsafe(), address.names)


def _inherited(descriptor: int) -> Opening | None:
    """The socket of a run that another process plays. None where that ended before it gave a token: without one the
    pages would be for everyone."""
    os.nice(_NICE)
    token = sys.stdin.buffer.readline().decode().strip()
    return Opening.inherited(descriptor, token) if token else None


@contextmanager
def _until_input_ends(stop: asyncio.Event) -> Iterator[None]:
    """Inside the block the end of standard input sets `stop`."""
    loop = asyncio.get_running_loop()

    def wait_for_end() -> None:
        # Not through sys.stdin: a thread that waits there has its lock when the interpreter ends.
        while os.read(0, 1024):
            pass
        loop.call_soon_threadsafe(stop.set)

    on_thread(wait_for_end, "end of the run")
    yield


@contextmanager
def viewed(directory: Path, *, is_opened: bool) -> Iterator[None]:
    """The pages of a run in another process inside the block; says where they are."""
    address = Address()
    listening, token = listening_at(address), secrets.token_urlsafe()
    say(f"pages: {url_of(listening, token)}")
    flags = ["--beside-run", str(listening.fileno()), *([] if is_opened else ["--no-open"])]
    process = subprocess.Popen(  # noqa: S603 - this program
        [sys.executable, "-m", "mac_runner", "view", *flags, "--", str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        pass_fds=[listening.fileno()],
        # A signal of the terminal is for the run.
        start_new_session=True,
    )
    listening.close()
    try:
        assert process.stdin is not None
        with suppress(OSError):  # It ended already: its words say why.
            process.stdin.write(f"{token}\n".encode())
            process.stdin.flush()
        yield
    finally:
        words = _ended(process)
        say(f"the pages ended with the run; to look again: mac-run view {directory}")
        if words:
            say(f"the pages failed before: {words}")


def _ended(process: subprocess.Popen[bytes]) -> str:
    """End the process of the pages; what it complained of."""
    try:
        _, words = process.communicate(timeout=_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        _, words = process.communicate()
    return words.decode("utf-8", "replace").strip()


def has_browser(environ: Mapping[str, str], platform: str) -> bool:
    """Whether a browser can be opened where the user sits: not over ssh, and not without a display."""
    if environ.get("BROWSER"):
        return True
    if "SSH_CONNECTION" in environ or "SSH_TTY" in environ:
        return False
    return platform == "darwin" or bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY"))


@dataclass(frozen=True, kw_only=True)
class Publish(OfRun):
    """Write the pages of RUN, a run or a grid, to the folder OUT: it opens by double click and on any static host.

    OUT is new, or a former publication, which is replaced. Addresses of engines, paths and names of machines never
    go out. A run that is under way is published as it is now.

    Exit codes: 0 written, 1 written without some conversations, which are damaged, 2 RUN is not a run directory or
    OUT is something else, 4 OUT could not be written.
    """

    out: Path = argument("OUT")
    no_thoughts: bool = switch("Leave thoughts out.")
    no_prompts: bool = switch("Leave prompts out.")
    only: tuple[str, ...] = options("Only these, as show --where takes them: 'days>5'.", "CONDITION")
    sample: int | None = option("Only N of them [all, or 1000 of more than 5000].", "N")

    def work(self) -> Exit:
        """Write the pages of a run, and print what went out."""
        # Here, because pages beside a run need less.
        from mac_runner.viewer.publish import PublishRequest, publish

        found = publish(
            PublishRequest(
                directory=self.directory,
                out=self.out,
                has_thoughts=not self.no_thoughts,
                has_prompts=not self.no_prompts,
                only=self.only,
                sample=self.sample,
            )
        )
        print_lines(f"{self.out}: {_what(found)}", f"left out: {', '.join([*found.left_out, *_always(found)])}")
        for note in found.notes:
            say(f"note: {note}")
        if found.refused:
            say(f"{counted(len(found.refused), 'damaged conversations')} left out:\n{listed(found.refused)}")
        say(f"open {self.out / 'index.html'}, or put the folder on any static host")
        return Exit.FAILURES if found.refused else Exit.OK


def _what(found: Publication) -> str:
    which = " (a sample: --sample N takes another number)" if found.is_sample else ""
    size = f"{found.size_bytes / 1e6:,.1f} MB" if found.size_bytes >= 1e6 else f"{found.size_bytes / 1e3:,.0f} KB"
    return f"{found.conversations:,} of {found.ended:,} conversations{which}, {found.files:,} files, {size}"


def _always(found: Publication) -> list[str]:
    waiting = [f"{found.under_way:,} conversations that have not ended"] if found.under_way else []
    return [*waiting, "addresses of engines, paths, keys and names of machines"]


def write_page(directory: Path, game: str, seat: str | None, to: Path) -> None:
    """Write one conversation as a page that can be mailed."""
    from mac_runner.viewer.conversation_data import private_of, single_page
    from mac_runner.viewer.outgoing import Outgoing
    from mac_runner.viewer.source import RunSource

    refuse_taken(to, "--html")
    run = read_run(directory)
    row = ended_row(run, game)
    outgoing = Outgoing(private=private_of(run.disk, directory, [run]))
    page = single_page(run, RunSource(directory).run(""), row, seat, outgoing)
    run.disk.write_atomic(to, [page])
    if run.lost:
        say(f"warning: {lost_words(directory, run.lost)}")
    print_lines(f"{to}: {len(page) / 1000:,.0f} KB")


@dataclass(frozen=True, kw_only=True)
class Report(Reading):
    """Write a page of figures about RUN, a run or a grid, or about RUN and RUN2 compared.

    The page is one HTML file without JavaScript: figures, the numbers behind each, how they were computed, and the
    experiment. RUN is only read, and may be under way. Needs the extra `report`.

    Exit codes: 0 written, 2 RUN or a flag is wrong or the extra is missing, 4 storage failed.
    """

    directory: Path = argument("RUN")
    other: Path | None = argument("[RUN2]", required=False)
    out: Path | None = option("The HTML page [RUN.report.html].", "FILE")
    pdf: bool = switch("Print it as PDF too, by Chromium.")
    json: Path | None = option("Write the numbers as JSON.", "FILE")
    viewer: str = option("Link to a published run, such as published/index.html.", "ADDRESS", "")

    def directories(self) -> list[Path]:
        return [self.directory] if self.other is None else [self.directory, self.other]

    def work(self) -> None:
        """Make a report, then write all its files; where anything fails before, nothing is written."""
        # Here, because pages would wait for the figures.
        from mac_runner.runs.report_files import ReportRequest, report_files

        request = ReportRequest(
            directories=self.directories(), out=self.out, numbers=self.json, has_pdf=self.pdf, viewer=self.viewer
        )
        made = report_files(request, SystemClock().utc_now())
        disk = Disk()
        for path, data in made.files.items():
            disk.write_atomic(path, [data])
        print_lines(*(f"{path}: {made.figures} figures, {len(data):,} bytes" for path, data in made.files.items()))
        say(made.state)


VERBS: Final = commands(view=View, publish=Publish, report=Report)
