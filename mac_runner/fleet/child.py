"""The guardian of one lane: starts its engine, keeps its log, and leaves no process of it behind.

Run as `python -I -S child.py LOG LOG_BYTES PROGRAM ARGUMENT…`, by path: it imports nothing of mac_runner. It runs in a
session of its own, so Ctrl-C at the terminal reaches mac-run alone. The engine and what it starts stay in the
guardian's process group.

It speaks over two pipes. It writes `started PID`, `failed WHY` or `ended STATUS` to its standard output as soon as it
knows; a negative status is the signal that ended the engine. It reads `stop SECONDS` from its standard input: SIGTERM
to the group, and SIGKILL after so many seconds; a later one may shorten that time. When that pipe closes, mac-run is
gone, however it ended: then the guardian stops the engine in the same way within ORPHAN_GRACE_S. A process that mac-run
forked may hold the pipe open, so on Linux the kernel sends the guardian SIGHUP as well.

Linux gives the guardian every process of the lane that lost its parent, so it finds those that left the group, too. The
kernel kills the engine if the guardian itself is killed.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
from contextlib import suppress

ORPHAN_GRACE_S = 1.0
"""From SIGTERM to SIGKILL after mac-run is gone."""
SWEEPS = 40
SWEEP_S = 0.05
"""How often, and at what distance, the guardian kills what is left of an engine that has ended before it gives up."""
CHUNK_BYTES = 1 << 16
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
IS_LINUX = sys.platform == "linux"


class Log:
    """The engine's output in a file; beyond `bytes_max` it becomes PATH.1, in place of the one before."""

    def __init__(self, path: str, bytes_max: int) -> None:
        self._path, self._bytes_max = path, bytes_max
        self._file = self._open()
        self._size = os.fstat(self._file).st_size

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def write(self, data: bytes) -> None:
        """Append. A disk that is full costs the log, and never the engine."""
        with suppress(OSError):
            if self._size + len(data) > self._bytes_max:
                os.replace(self._path, f"{self._path}.1")  # noqa: PTH105 - no library is loaded for a path
                os.close(self._file)
                self._file, self._size = self._open(), 0
            self._size += os.write(self._file, data)


class Guardian:
    """One engine, from its start until no process of it is left."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._engine: subprocess.Popen[bytes] | None = None
        self._output = -1
        self._status: int | None = None
        self._is_overdue = False
        self._orders = b""
        self._wake, wake_end = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(wake_end, False)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            # SIGTERM goes to the whole group, and it is for the engine.
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGALRM, self._on_alarm)
        if IS_LINUX:
            signal.signal(signal.SIGHUP, lambda *_: self._stop(ORPHAN_GRACE_S))
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGHUP)

    def run(self, command: list[str]) -> int:
        """Start the engine and watch it to its end. Returns its status."""
        self._output, output_end = os.pipe()
        os.set_blocking(self._output, False)
        try:
            self._engine = subprocess.Popen(  # noqa: S603 - the command is the user's own
                command,
                stdin=subprocess.DEVNULL,
                stdout=output_end,
                stderr=output_end,
                preexec_fn=_end_with_parent,
            )
        except (OSError, subprocess.SubprocessError) as fault:
            _say(f"failed {_words(fault)}")
            return 127
        finally:
            os.close(output_end)
        _say(f"started {self._engine.pid}")
        self._watch()
        self._sweep()
        self._copy()
        return self._status if self._status is not None else 0

    def _watch(self) -> None:
        watched = [0, self._wake, self._output]
        while self._status is None and not self._is_overdue:
            ready, _, _ = select.select(watched, [], [])
            if self._output in ready and not self._copy():
                watched.remove(self._output)
            if self._wake in ready:
                with suppress(BlockingIOError):
                    os.read(self._wake, CHUNK_BYTES)
                self._reap()
            if 0 in ready and not self._obey():
                watched.remove(0)

    def _obey(self) -> bool:
        """Read orders; False after the last one."""
        data = os.read(0, CHUNK_BYTES)
        if not data:
            self._stop(ORPHAN_GRACE_S)
            return False
        *lines, self._orders = (self._orders + data).split(b"\n")
        for line in lines:
            word, _, seconds = line.partition(b" ")
            if word == b"stop":
                self._stop(float(seconds))
        return True

    def _stop(self, grace_s: float) -> None:
        grace_s = max(grace_s, 0.001)
        left_s, _ = signal.getitimer(signal.ITIMER_REAL)  # Who asks again does not put off the end.
        signal.setitimer(signal.ITIMER_REAL, min(grace_s, left_s or grace_s))
        _signal_group(signal.SIGTERM)

    def _on_alarm(self, *_: object) -> None:
        self._is_overdue = True

    def _copy(self) -> bool:
        """Copy what the engine printed so far into the log; False after the last of it."""
        with suppress(BlockingIOError):
            while data := os.read(self._output, CHUNK_BYTES):
                self._log.write(data)
            return False
        return True

    def _reap(self) -> bool:
        """Collect processes that ended; False when none is left."""
        assert self._engine is not None
        while True:
            try:
                pid, state = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._engine.pid:
                self._status = os.waitstatus_to_exitcode(state)
                self._copy()  # Who hears of the end reads the log.
                _say(f"ended {self._status}")

    def _sweep(self) -> None:
        """Kill what is left of the lane: its group, then every descendant. How the engine ended is waited for."""
        sweeps = 0
        while self._reap() and (self._status is None or sweeps < SWEEPS):
            sweeps += self._status is not None
            # Some systems list no descendants.
            engine = () if self._engine is None or self._status is not None else (self._engine.pid,)
            for pid in (*engine, *descendants(os.getpid())):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            with suppress(BlockingIOError):
                os.read(self._wake, CHUNK_BYTES)
            select.select([self._wake], [], [], SWEEP_S)
        if not IS_LINUX:
            _signal_group(signal.SIGKILL)  # This process with it.


def _end_with_parent() -> None:
    """In the engine's process, before it becomes the engine."""
    signal.set_wakeup_fd(-1)
    if IS_LINUX:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _signal_group(number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(0, number)


def descendants(pid: int) -> list[int]:
    """The processes below `pid`, the nearest first; none where the system does not list them."""
    found: list[int] = []
    with suppress(OSError), open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:  # noqa: PTH123
        found = [int(word) for word in file.read().split()]
    return found + [deeper for each in found for deeper in descendants(each)]


def _words(fault: Exception) -> str:
    if isinstance(fault, OSError) and fault.strerror:
        return f"{fault.filename}: {fault.strerror}"
    return str(fault)


def _say(line: str) -> None:
    with suppress(OSError):  # mac-run is gone.
        os.write(1, (" ".join(line.split()) + "\n").encode())


def main(log: str, log_bytes: str, *command: str) -> int:
    """Guard `command`. Returns the status of the process."""
    if IS_LINUX:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        kept = Log(log, int(log_bytes))
    except OSError as fault:
        _say(f"failed {_words(fault)}")
        return 127
    status = Guardian(kept).run(list(command))
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
