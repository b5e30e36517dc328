"""Another process of an engine, as the process that leads it sees it: it is sent messages and memory, and ended.

A member was either started here or has joined from elsewhere. One that was started has two ties to this process. A
pair of sockets carries messages, and its standard input shows it by its end that this process is gone. One that has
joined has a socket alone: of this machine, or TCP to another host. The system probes a TCP connection that is silent.
So a host that is lost is noticed within ALIVE_S_MAX seconds.

Processes of one machine share memory by its descriptor. Another host is sent what the memory holds.
"""

from __future__ import annotations

import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from typing import Any

from mac_runner.nano.parallel.group import anonymous_memory

PROGRAM = "mac_runner.nano.parallel.process"
LOOK_S = 1.0
"""How often to look whether another process is there, in case its end goes unnoticed."""
SEND_S_MAX = 300
"""How long a message may wait until a busy process takes it."""
END_S_MAX = 10.0
"""How long a process may take to end when asked, and how soon the reason of a failure is known."""
PROBE_S = 1
ALIVE_S_MAX = 10
"""After how many seconds without an answer a host is lost."""
_USER_TICKS, _SYSTEM_TICKS = 10, 11
"""Where they are in the line of a thread, counted from behind its state: fields 14 and 15 of proc(5)."""


class Member:
    """Another process, and the calls that it has not answered. Only one thread may send at a time."""

    def __init__(self, name: str, connection: Connection, process: subprocess.Popen[bytes] | None = None) -> None:
        self.connection = connection
        self.calls = dict[int, Future[Any]]()
        self.is_gone = False
        self._name = name
        self._process = process
        self.shares_memory = shares_memory(connection)

    def __str__(self) -> str:
        return f"{self._name} (process {self._process.pid})" if self._process is not None else self._name

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The process, where this one has started it."""
        assert self._process is not None, f"{self._name} was not started here"
        return self._process

    def send_pickled(self, content: bytes, memory: int | None = None, *, is_on_disk: bool = False) -> None:
        """Send a pickled message, then a descriptor of memory if there is one. Raises OSError.

        Another host is sent the memory's bytes; or none where `is_on_disk`, because it has them in files of its own.
        """
        self.connection.send_bytes(content)
        if memory is None:
            return
        if self.shares_memory:
            send_handle(self.connection, memory, 0)
            return
        with mmap.mmap(memory, os.fstat(memory).st_size) as content_of_it:
            self.connection.send_bytes(b"" if is_on_disk else memoryview(content_of_it).toreadonly())

    def kill(self) -> None:
        """End it now. One that was not started here ends because its connection does."""
        if self._process is not None:
            self._process.kill()
        else:
            with suppress(OSError), _borrowed(self.connection) as lent:
                lent.shutdown(socket.SHUT_RDWR)

    def collect(self) -> str:
        """How it ended, once its connection has: it is ending or has ended.

        The connection stays open, for another thread may be sending: its number could soon be that of another file.
        """
        if self._process is None:
            return "is gone: its connection has ended"
        try:
            code = self._process.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        return _manner(code)


def start(kind: str, number: int, num_threads: int, environ: Mapping[str, str] | None = None) -> Member:
    """Start a process of a kind (`rank` or `replica`) with this one's modules, its threads set before it loads torch.

    It is given its number, the descriptor of its socket and the number of this process.
    """
    ours, theirs = socket.socketpair()
    limit_sending(ours)
    with theirs:
        process = subprocess.Popen(  # noqa: S603  Our own interpreter and module.
            [sys.executable, "-P", "-m", PROGRAM, kind, str(number), str(theirs.fileno()), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env={**own_environment(), "OMP_NUM_THREADS": str(num_threads), **(environ or {})},
            start_new_session=True,  # Ctrl-C at a terminal is for rank 0, which ends the others in order.
        )
    return Member(f"{kind} {number}", Connection(ours.detach()), process)


def time_spent(pid: int) -> int | None:
    """The processor's time that a process and its children have spent, in ticks, while none of them wants any.

    None while a thread of theirs computes, or waits for a processor or a disk; and where the system does not say.
    """
    ticks = 0
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            state, *numbers = (task / "stat").read_text(encoding="utf-8").rpartition(") ")[2].split()
            if state in "RD":
                return None
            ticks += int(numbers[_USER_TICKS]) + int(numbers[_SYSTEM_TICKS])
            for child in (task / "children").read_text(encoding="utf-8").split():
                if (more := time_spent(int(child))) is None:
                    return None
                ticks += more
    except OSError:  # It has ended, or this is not Linux.
        return None
    return ticks


def own_environment() -> dict[str, str]:
    """The environment in which a Python finds the packages that this one finds."""
    path = os.pathsep.join(path or os.getcwd() for path in sys.path)  # noqa: PTH109
    return {**os.environ, "PYTHONPATH": path}


def shares_memory(connection: Connection) -> bool:
    """Whether the process at the other end is on this machine, so that it can take descriptors."""
    with _borrowed(connection) as lent:
        return lent.family == socket.AF_UNIX


def receive_memory(connection: Connection, num_bytes: int) -> int | None:
    """A descriptor of the memory that follows a message; None for what this host has in files of its own."""
    if shares_memory(connection):
        return recv_handle(connection)
    fd = anonymous_memory(num_bytes)
    with mmap.mmap(fd, num_bytes) as memory:
        received = connection.recv_bytes_into(memory)
    if received == num_bytes:
        return fd
    os.close(fd)
    return None


def limit_sending(end: socket.socket) -> None:
    """Let a send fail that the other side does not take for SEND_S_MAX seconds."""
    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_S_MAX, 0))


def probe_silence(end: socket.socket) -> None:
    """Have the system probe a silent TCP connection, and end it when ALIVE_S_MAX seconds bring no answer."""
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {
        "TCP_KEEPIDLE": PROBE_S,
        "TCP_KEEPINTVL": PROBE_S,
        "TCP_KEEPCNT": ALIVE_S_MAX // PROBE_S,
        "TCP_USER_TIMEOUT": ALIVE_S_MAX * 1000,  # For what was sent and not acknowledged.
    }
    for name, value in options.items():
        if (option := getattr(socket, name, None)) is not None:
            end.setsockopt(socket.IPPROTO_TCP, option, value)


def _borrowed(connection: Connection) -> socket.socket:
    return socket.socket(fileno=os.dup(connection.fileno()))


def _manner(code: int) -> str:
    """How a process ended."""
    if code < 0:
        names = {each.value: each.name for each in signal.Signals}
        return f"was ended by signal {-code} ({names.get(-code, 'without a name')})"
    return f"has ended with exit code {code}; its own message is on stderr"
