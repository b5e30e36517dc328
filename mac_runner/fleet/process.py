"""A lane's processes as the supervisor holds them: started, waited for, stopped, and the reason why they ended."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from mac_runner.backends.redaction import Redactor
from mac_runner.files import read_regular
from mac_runner.fleet import child
from mac_runner.secrecy import secrets_in

LOG_BYTES_MAX: Final = 16 << 20
"""The size of a lane's log; as much again is kept of what came before."""
GUARDIAN_GRACE_S: Final = 3.0
"""How long the guardian may take beyond the grace of its engine; then its whole group is killed."""
NOT_STARTED: Final = 127
"""The status of a command that does not exist, as a shell has it."""
_TAIL_BYTES: Final = 1 << 18
_PREFIX: Final = re.compile(r"^(?:\([\w-]+ pid=\d+\) )?(?:(?:ERROR|CRITICAL)[: ]+(?:[\d:., -]+)?(?:\[[\w./:]+\] ?)?)?")
_RAISED: Final = re.compile(r"^[\w.]*(?:Error|Exception|Exit|Interrupt|Timeout)(?:: ?|$)")
_FOLLOWING: Final = re.compile(r"root cause|stack trace|Broken ?pipe|EngineDeadError", re.IGNORECASE)
"""What a process says when another error brought it down; that one is in the log already."""


class LaneProcess:
    """One engine with its guardian (`child`)."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path, log_from: int, redactor: Redactor) -> None:
        self._process = process
        self._redactor = redactor
        self._log, self._log_from = log, log_from
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._reader = asyncio.create_task(self._listen())
        self.pid: int | None = None
        """The engine's own; None before it has started."""
        self.was_killed = False
        """Whether a signal ended it that this object did not send."""
        self.status: int | None = None
        """Its exit status, negative for a signal; None before the end, and where its guardian was killed."""
        self._is_stopping = False

    @classmethod
    async def start(
        cls, argv: Sequence[str], environment: Mapping[str, str], log: Path, *, without: Collection[str] = ()
    ) -> LaneProcess:
        """Start an engine. Raises OSError where no process starts.

        It gets this process's variables but for those named `without`, and `environment` on top.
        """
        log_from = _size(log)
        own = {name: value for name, value in os.environ.items() if name not in without}
        redactor = Redactor(*secrets_in({**os.environ, **environment}, without))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", child.__file__, str(log), str(LOG_BYTES_MAX), *argv),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={**own, **environment},
            start_new_session=True,
        )
        return cls(process, log, log_from, redactor)

    async def ended(self) -> str:
        """Wait until the engine has ended; how it ended. Its helpers may still be going."""
        return await asyncio.shield(self._ended)

    async def gone(self) -> None:
        """Wait until no process of the lane is left."""
        await asyncio.shield(self._reader)

    async def stop(self, grace_s: float) -> None:
        """SIGTERM, and SIGKILL after `grace_s`; returns when no process of the lane is left."""
        if self._reader.done():
            return
        assert self._process.stdin is not None
        self._is_stopping = True
        with suppress(OSError, RuntimeError):
            self._process.stdin.write(f"stop {grace_s}\n".encode())
        await asyncio.wait({self._reader}, timeout=grace_s + GUARDIAN_GRACE_S)
        if not self._reader.done():
            self._kill_tree()
        await self.gone()

    def last_error(self) -> str | None:
        """The line of its log that says why it ended, withheld if it repeats a secret; None when it printed nothing."""
        try:
            size = _size(self._log)
            start = self._log_from if size >= self._log_from else 0
            data = read_regular(self._log, size)[max(start, size - _TAIL_BYTES) :]
        except OSError:
            return None
        error = last_error(data.decode("utf-8", "replace"))
        return None if error is None else self._redactor.quoted(error)

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            word, _, rest = line.decode("utf-8", "replace").strip().partition(" ")
            if word == "started":
                self.pid = int(rest)
            elif word == "ended" and not self._ended.done():
                self.was_killed = int(rest) in (-signal.SIGKILL, -signal.SIGTERM) and not self._is_stopping
                self.status = int(rest)
                self._ended.set_result(_status_words(self.status))
            elif word == "failed" and not self._ended.done():
                self.status = NOT_STARTED
                self._ended.set_result(f"it could not be started: {rest}")
        await self._process.wait()
        self._kill_group()
        if not self._ended.done():
            self.was_killed = not self._is_stopping
            self._ended.set_result("its guardian process was killed")

    def _kill_tree(self) -> None:
        """Kill a guardian that does not act, with all that it has."""
        strays = child.descendants(self._process.pid)
        self._kill_group()
        for pid in strays:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)


def _size(log: Path) -> int:
    try:
        return log.stat().st_size
    except OSError:
        return 0


def last_error(log: str) -> str | None:
    """The last error in `log` that is not a consequence of another one, else its last line; None when it is empty."""
    lines = [text for line in log.splitlines() if (text := _PREFIX.sub("", line.strip(), count=1).strip())]
    raised = [line for line in lines if _RAISED.match(line)]
    causes = [line for line in raised if not _FOLLOWING.search(line)]
    found = causes or raised or lines
    return found[-1] if found else None


def _status_words(status: int) -> str:
    if status >= 0:
        return f"it ended with status {status}"
    try:
        return f"it was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"it was killed by signal {-status}"
