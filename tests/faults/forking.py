"""Processes of `mac-run` that are at work within milliseconds, so that hundreds of them can be killed.

As a program it is a server: it imports everything once and forks a child for each command line. `Forking` is its
client. A child is a process of its own and runs the whole command line, from reading the file to the exit code; only
the imports are behind it. What a child is to do besides is said by its `Extras`.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import NoReturn
from unittest.mock import patch

from mac_runner.backends.testing import ScriptedBackend
from mac_runner.cli import main as mac_run
from mac_runner.cli import play  # noqa: F401 - behind the server, and not behind each child
from mac_runner.errors import TransientBackendError
from mac_runner.store import System, writer
from mac_runner.store.testing import Machine, entry
from mac_runner.types import JsonObject, Reply, Request
from tests.patience import wait_for
from tests.store.player import BrokenLock

ROOT = Path(__file__).parents[2]
MIB = 1 << 20
CHANGES = ("create", "write", "fsync", "link", "replace", "unlink", "make_directory", "fsync_directory")
ELSEWHERE = {
    "store.lock.FileLock": BrokenLock,
    "store.lock.Machine.filesystem": lambda _machine, _path: "nfs4",
    "store.lock.LEASE_INTERVAL_S": 0.2,
    "store.writer.LEASE_INTERVAL_S": 0.2,
    "runs.stream.LOOK_INTERVAL_S": 0.02,
    "runs.play.LOOK_INTERVAL_S": 0.02,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """`witness`: a file that gets a line for each reply the engine made, which outlives the child.

    `lost_replies_every`: the engine makes every so manieth reply and loses it. `spare_memory_mib`: what the child may
    take beside what it has, while each of its replies takes a mebibyte for good. `signals`: the child gets them in the
    middle of a reply, `after_replies`, or before a change of its disk, `after_changes`. `is_slower_than_disk`: the
    engine gets no request while something is not written. `machine`: where the child is; its files are on a server that
    grants locks to everybody, and leases are short. `program`: what the child runs in place of `mac-run`, as
    `module:function`; it gets the arguments.
    """

    witness: str | None = None
    lost_replies_every: int | None = None
    spare_memory_mib: int | None = None
    signals: Sequence[int] = (signal.SIGKILL,)
    after_replies: int | None = None
    after_changes: int | None = None
    is_slower_than_disk: bool = False
    machine: str | None = None
    program: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a child ended; a signal is a negative code."""

    code: int
    out: str
    err: str


class Forking:
    """A server and its children, all in one working directory. Ends with `close`, and its children with it."""

    def __init__(self, directory: Path, *, preload: str = "", hash_seed: str = "random") -> None:
        """`preload` is a module that the server imports once; with another `hash_seed` sets have another order."""
        self._directory = directory
        self._started: set[int] = set()
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.forking", *([preload] if preload else [])],
            cwd=directory,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error", "PYTHONHASHSEED": hash_seed},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, *args: str, extras: Extras | None = None) -> int:
        """Start a child; its process id."""
        pid = self._ask({"args": [*args], "extras": asdict(extras or Extras())})
        assert isinstance(pid, int)
        self._started.add(pid)
        return pid

    def ended(self, pid: int) -> Ended:
        """Wait for the end of a child."""
        return self.first_to_end([pid])[1]

    def first_to_end(self, pids: Collection[int], between: Callable[[], None] = lambda: None) -> tuple[int, Ended]:
        """Wait for the first of some children to end, with a call between two looks; its process id, and how."""
        found: list[tuple[int, Ended]] = []

        def has_ended() -> bool:
            between()
            found.extend((pid, ended) for pid in pids if not found and (ended := self.ended_now(pid)) is not None)
            return bool(found)

        wait_for(has_ended, f"the end of one of {pids}")
        return found[0]

    def ended_now(self, pid: int) -> Ended | None:
        """How a child ended; None for one that is at work."""
        if (code := self._ask({"wait": pid})) is None:
            return None
        assert isinstance(code, int)
        self._started.discard(pid)
        return Ended(code=code, out=self._said(pid, "out"), err=self._said(pid, "err"))

    def run(self, *args: str, extras: Extras | None = None) -> Ended:
        """Run a child to its end."""
        return self.ended(self.start(*args, extras=extras))

    def close(self) -> None:
        """End everything that still runs."""
        for pid in self._started:
            os.kill(pid, 9)
        self._server.communicate()

    def _ask(self, request: JsonObject) -> object:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return json.loads(self._server.stdout.readline())

    def _said(self, pid: int, stream: str) -> str:
        file = self._directory / f"{pid}.{stream}"
        return file.read_text() if file.exists() else ""


def _serve() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        answer = _poll(request["wait"]) if "wait" in request else _fork(request)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _poll(pid: int) -> int | None:
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def _fork(request: JsonObject) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        _be_mac_run(request)
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 99
    except BaseException:  # noqa: BLE001 - a child must not go on as a server
        traceback.print_exc()
        code = 99
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _be_mac_run(request: JsonObject) -> NoReturn:
    """The whole command line, in a child."""
    _redirect()
    extras, args = Extras(**entry(request, "extras", dict)), entry(request, "args", list)  # type: ignore[arg-type]
    _add(extras)
    if extras.program is not None:
        module, _, name = extras.program.partition(":")
        getattr(import_module(module), name)(*map(str, args))
        sys.exit(0)
    sys.argv = ["mac-run", *map(str, args)]
    mac_run()
    raise AssertionError("the command line returned")


def _redirect() -> None:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for stream, descriptor in (("out", 1), ("err", 2)):
        os.dup2(os.open(f"{os.getpid()}.{stream}", os.O_WRONLY | os.O_CREAT), descriptor)


def _add(extras: Extras) -> None:
    """Change the engine of this child."""
    notes: list[Callable[[Request], None]] = []
    if extras.witness is not None:
        witness = os.open(extras.witness, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        notes.append(lambda request: _note(witness, request))
    if extras.lost_replies_every is not None:
        every, made = extras.lost_replies_every, [0]
        notes.append(lambda request: _lose(made, every))
    if extras.is_slower_than_disk:
        writer.WRITE_BACKLOG_ITEMS_MAX = 1  # type: ignore[misc]
    if extras.machine is not None:
        patch.object(Machine, "identity", extras.machine).start()
        for name, value in ELSEWHERE.items():
            patch(f"mac_runner.{name}", value).start()
    if extras.after_replies is not None:
        count_reply = _signalling(extras.signals, extras.after_replies)
        notes.append(lambda request: count_reply())
    if extras.after_changes is not None:
        count_change = _signalling(extras.signals, extras.after_changes)
        for name in CHANGES:
            setattr(System, name, _counted(getattr(System, name), count_change))
    if extras.spare_memory_mib is not None:
        kept: list[bytearray] = []
        notes.append(lambda request: kept.append(bytearray(b"x") * MIB))
        size_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        limit = size_bytes + extras.spare_memory_mib * MIB
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    generate = ScriptedBackend.generate

    async def noting(self: ScriptedBackend, request: Request) -> Reply:
        reply = await generate(self, request)
        for note in notes:
            note(request)
        return reply

    ScriptedBackend.generate = noting  # type: ignore[method-assign]


def _note(witness: int, request: Request) -> None:
    os.write(witness, f"{request.conversation} {request.turn.key}\n".encode())


def _lose(made: list[int], every: int) -> None:
    made[0] += 1
    if made[0] % every == 0:
        raise TransientBackendError("the connection was lost")


def _signalling(signals: Sequence[int], after: int) -> Callable[[], None]:
    """What sends itself signals once it has been called so often."""
    calls = count()

    def called() -> None:
        if next(calls) == after:
            for number in signals:
                os.kill(os.getpid(), number)

    return called


def _counted(call: Callable[..., object], count_call: Callable[[], None]) -> Callable[..., object]:
    def counted(*args: object) -> object:
        count_call()
        return call(*args)

    return counted


def _preload(module: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import_module(module)


if __name__ == "__main__":
    for module in sys.argv[1:]:
        _preload(module)
    _serve()
