"""`mac-run view`, and the pages beside a run (`mac-run FILE --view`).

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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from mac_runner.cli.process import Exit, report, say, stop_on_signals
from mac_runner.errors import RunDirectoryError
from mac_runner.store import has_run, is_grid
from mac_runner.threads import on_thread
from mac_runner.viewer.guard import Address, Opening, listening_at, url_of

_END_S: Final = 5.0
"""So long the process of the pages may take to end."""
_NICE: Final = 10


def view(directory: Path, address: Address, *, is_opened: bool, is_trusted: bool) -> Exit:
    """Serve the pages of a run or a grid until a signal."""
    # Here, because every verb would wait for the HTTP library.
    from mac_runner.runs.event_loop import rare_collections
    from mac_runner.viewer.server import Viewer
    from mac_runner.viewer.source import SLICE_S, RunSource

    address.check()
    if not is_grid(directory) and not has_run(directory):
        raise RunDirectoryError(
            f"{directory} is not the directory of a run or a grid: name one that mac-run wrote, such as runs/NAME"
        )
    opening = Opening(listening_at(address), secrets.token_urlsafe(), address.names)

    async def serve() -> None:
        stop = asyncio.Event()
        with stop_on_signals(stop, lambda _text: None):
            async with Viewer(RunSource(directory, is_trusted=is_trusted, slice_s=SLICE_S), opening) as viewer:
                with report() as stream:
                    stream.write(f"{viewer.url}\n")
                say(f"{directory} is shown at this address, which is for you alone; Ctrl-C ends the server")
                _open(viewer.url, is_opened=is_opened)
                await stop.wait()

    with rare_collections():
        asyncio.run(serve())
    return Exit.OK


class Pages(NamedTuple):
    """Whether pages are wanted beside a run, and a browser for them."""

    is_viewed: bool
    is_opened: bool


@contextmanager
def viewed(directory: Path, pages: Pages | None) -> Iterator[None]:
    """If they are wanted, pages of a run in another process inside the block; says where they are."""
    if pages is None or not pages.is_viewed:
        yield
        return
    address = Address()
    listening, token = listening_at(address), secrets.token_urlsafe()
    say(f"pages: {url_of(listening, token)}")
    flags = ["--beside-run", str(listening.fileno()), *([] if pages.is_opened else ["--no-open"])]
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


def view_beside_run(directory: Path, descriptor: int, *, is_opened: bool) -> Exit:
    """Serve the pages of a run that another process plays, until standard input ends."""
    from mac_runner.runs.event_loop import rare_collections
    from mac_runner.viewer.server import Viewer
    from mac_runner.viewer.source import SLICE_S, RunSource

    os.nice(_NICE)
    if not (token := sys.stdin.buffer.readline().decode().strip()):
        return Exit.OK  # The run was killed before it gave one: without a token the pages are for everyone.
    opening = Opening.inherited(descriptor, token)

    async def serve() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()

        def wait_for_end() -> None:
            # Not through sys.stdin: a thread that waits there has its lock when the interpreter ends.
            while os.read(0, 1024):
                pass
            loop.call_soon_threadsafe(stop.set)

        on_thread(wait_for_end, "end of the run")
        # A user who plays an experiment trusts its code.
        async with Viewer(RunSource(directory, is_awaited=True, is_trusted=True, slice_s=SLICE_S), opening) as viewer:
            _open(viewer.url, is_opened=is_opened)
            await stop.wait()

    with rare_collections():
        asyncio.run(serve())
    return Exit.OK


def _open(url: str, *, is_opened: bool) -> None:
    """Open the browser, if there is one. A browser may take its time, or the terminal."""
    if is_opened and has_browser(os.environ, sys.platform):
        on_thread(lambda: webbrowser.open(url), "browser")


def has_browser(environ: Mapping[str, str], platform: str) -> bool:
    """Whether a browser can be opened where the user sits: not over ssh, and not without a display."""
    if environ.get("BROWSER"):
        return True
    if "SSH_CONNECTION" in environ or "SSH_TTY" in environ:
        return False
    return platform == "darwin" or bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY"))
