"""`mac-run view`: the pages of a run in a browser."""

from __future__ import annotations

import asyncio
import os
import sys
import webbrowser
from collections.abc import Mapping
from pathlib import Path

from mac_runner.cli.process import Exit, report, say, stop_on_signals
from mac_runner.errors import RunDirectoryError
from mac_runner.store import has_run, is_grid
from mac_runner.threads import on_thread
from mac_runner.viewer.server import Address, serving
from mac_runner.viewer.source import RunSource


def view(directory: Path, address: Address, *, is_opened: bool) -> Exit:
    """Serve the pages of a run or a grid until a signal."""
    address.check()
    if not is_grid(directory) and not has_run(directory):
        raise RunDirectoryError(f"{directory} is not a run directory: name one that mac-run wrote, such as runs/NAME")
    asyncio.run(_serve(directory, address, is_opened=is_opened and has_browser(os.environ, sys.platform)))
    return Exit.OK


async def _serve(directory: Path, address: Address, *, is_opened: bool) -> None:
    stop = asyncio.Event()
    async with serving(RunSource(directory), address) as viewer:
        with stop_on_signals(stop, lambda _text: None):
            with report() as stream:
                stream.write(f"{viewer.url}\n")
            say(f"the pages of {directory} are at this address, for you alone; Ctrl-C ends the server")
            if is_opened:
                url = viewer.url
                on_thread(lambda: webbrowser.open(url), "browser")
            await stop.wait()


def has_browser(environ: Mapping[str, str], platform: str) -> bool:
    """Whether a browser can be opened where the user sits: not over ssh, and not without a display."""
    if environ.get("BROWSER"):
        return True
    if "SSH_CONNECTION" in environ or "SSH_TTY" in environ:
        return False
    return platform in {"darwin", "win32"} or bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY"))
