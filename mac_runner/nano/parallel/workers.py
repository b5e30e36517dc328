"""Other processes of an engine, ranks or replicas, as their leader sees them: started, called, watched, ended.

A `Member` was either started here or has joined from elsewhere. One that was started has two ties to this process. A
pair of sockets carries messages, and its standard input shows it by its end that this process is gone. One that has
joined has a socket alone: of this machine, or TCP to another host, lost if it is silent for ALIVE_S_MAX seconds.

Messages are plain and in order. A `Call` is answered by an `Answer` with its number. Other messages are not answered.
None asks a process to stop, and is answered by its end. A thread here waits for what each process sends, and its end.
"""

from __future__ import annotations

import mmap
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import Any, TypeVar

import torch

from mac_runner.nano.checkpoint import Part, StateDict, pieces
from mac_runner.nano.errors import NanoError, RankFailedError
from mac_runner.nano.parallel.group import PeerLostError, anonymous_memory
from mac_runner.nano.runner import Prepared

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
CALL_S_MAX = 1800.0
"""How long a call may take; the longest is to read and pack a large model's weights."""
LOOKS_MAX = 30
"""How many looks, of LOOK_S each, may find a process silent and still until it counts as hung."""
_OVER = ": the engine is over, make another one"
BuiltModel = TypeVar("BuiltModel", bound=Prepared)
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


Calls = list[tuple[Member, Future[Any]]]


UNANSWERED = 0
"""The number of calls that are not answered."""


@dataclass(frozen=True, slots=True)
class Call:
    """A method of a `Worker` to call; `engine.NAME` is one of its engine's."""

    number: int
    method: str
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """What the call of this number has returned, or the error that it raised."""

    number: int
    value: Any = None
    error: NanoError | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """A process can do no more: what happened, and where. `error` is what its leader raises if it has not begun."""

    message: str
    trace: str = ""
    error: NanoError | None = None


def pack(state_dict: StateDict, names: Iterable[str]) -> tuple[list[Part], int]:
    """The tensors of these names in memory that processes share, and its descriptor, which the caller closes.

    One process writes it once, all read.
    """
    (parts,) = pieces((name, state_dict[name].dtype, state_dict[name].shape) for name in names)
    fd = anonymous_memory(parts[-1].end)
    for name, tensor in unpack(parts, fd).items():
        tensor.copy_(state_dict[name].detach())
    return parts, fd


def unpack(parts: Sequence[Part], fd: int) -> dict[str, torch.Tensor]:
    """The tensors, in the memory itself, which is given back with the last of them."""
    memory = torch.frombuffer(mmap.mmap(fd, parts[-1].end), dtype=torch.uint8)
    return {part.name: part.of(memory) for part in parts}


class Workers:
    """Other processes. Any thread may send and call; all get the same messages in the same order.

    What those do that are together, all of them do or none: when one is lost, all are ended, and every later call
    raises the reason. Of those that are not, the others go on.

    Those that `beat` send something from time to time, unless they are in a step. How long a step takes under load is
    not known. So one counts as hung when it sends nothing and neither computes nor waits for a processor.
    """

    def __init__(self, those: Iterable[Member], *, is_together: bool, beat: bool = False) -> None:
        self.events = SimpleQueue[tuple[Member, object] | None]()
        """What they send unasked, and a `Failed` for each that is lost. Others may add None."""
        self.is_over = Event()
        """Set when one is lost of those that are together: then none may be waited for."""
        self.on_loss: Callable[[], None] = lambda: None
        self.on_close: Callable[[], None] = lambda: None
        self._is_together = is_together
        self._beat = beat
        self._failure: Failed | None = None
        self._is_closing = False
        self._numbers = count(1)
        self._forgotten = deque[int]()
        self._sending = Lock()  # Gives all the same messages in the same order.
        self._noting = Lock()
        self._ends = dict[Member, Future[None]]()
        for member in those:
            self.add(member)

    def add(self, member: Member) -> None:
        self._ends[member] = Future()
        Thread(target=self._watch, args=(member,), name=f"nano-{member}", daemon=True).start()

    def send(self, message: object, to: Member | None = None) -> bool:
        """Send a message that has no answer, by default to all; whether it went. Raises RankFailedError."""
        content = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        with self._sending:
            self.check()
            return all(self._post(member, content) for member in (list(self._ends) if to is None else (to,)))

    def begin(
        self,
        method: str,
        *arguments: object,
        to: Sequence[Member] | None = None,
        fd: int | None = None,
        is_on_disk: bool = False,
    ) -> Calls:
        """Call a method, by default of all; what to `wait` for. Raises RankFailedError. For memory see `Member`."""
        call = Call(next(self._numbers), method, arguments)
        content = pickle.dumps(call, pickle.HIGHEST_PROTOCOL)
        calls = Calls()
        with self._sending:
            self.check()
            for member in list(self._ends) if to is None else to:
                calls.append((member, self._expect(member, call.number)))
                self._post(member, content, fd, is_on_disk=is_on_disk)
        return calls

    def wait(self, calls: Calls) -> list[tuple[Member, Any]]:
        """Wait until calls have returned; the values of those that are there.

        Raises the first error that a call has raised, and RankFailedError if one is lost of those that are together.
        """
        values, errors = list[tuple[Member, Any]](), list[NanoError]()
        for member, answer in calls:
            try:
                values.append((member, answer.result(CALL_S_MAX)))
            except TimeoutError:
                self._end(member, f"{member} did not return a call within {CALL_S_MAX:.0f} s")
            except RankFailedError:
                continue  # It was lost, and an event says so.
            except NanoError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        self.check()
        if self._is_together and len(values) < len(calls):
            raise error_of(Failed("the engine was closed during a call"))
        return values

    def call(
        self,
        method: str,
        *arguments: object,
        to: Sequence[Member] | None = None,
        fd: int | None = None,
    ) -> list[tuple[Member, Any]]:
        """Call a method, by default of all, and wait until it has returned."""
        return self.wait(self.begin(method, *arguments, to=to, fd=fd))

    def build(
        self,
        state_dict: StateDict,
        names: Iterable[str],
        build: Callable[[int, list[Part], int], BuiltModel],
        *,
        to: Sequence[Member] | None = None,
        is_on_disk: bool = False,
    ) -> BuiltModel:
        """Let others build a model of one state dict, to keep under a ticket; what `build` makes of it here.

        It is given the ticket, and the weights in memory. Any thread may call this. Processes of other hosts read
        weights that are `is_on_disk` in their own copy.
        """
        ticket = next(self._numbers)
        parts, fd = pack(state_dict, names)
        try:
            forgotten = tuple(_drained(self._forgotten))
            calls = self.begin("begin_build", ticket, parts, forgotten, to=to, fd=fd, is_on_disk=is_on_disk)
            prepared = build(ticket, parts, fd)
        except BaseException:
            self._forgotten.append(ticket)
            raise
        finally:
            os.close(fd)
        # A finalizer may run anywhere, so it only takes note; the next build carries it.
        weakref.finalize(prepared, self._forgotten.append, ticket).atexit = False
        self.wait(calls)
        return prepared

    @contextmanager
    def in_step(self) -> Iterator[None]:
        """For what all do or none: a failure here or there ends all."""
        try:
            yield
        except PeerLostError as error:
            raise self.blame(str(error)) from error
        except RankFailedError as error:
            self.fail(Failed(str(error)))
            raise
        except BaseException as error:
            self.fail(Failed(f"rank 0 failed: {error!r}"))
            raise

    def check(self) -> None:
        """Raise RankFailedError if one is lost of those that are together."""
        if self._failure is not None:
            raise error_of(self._failure)

    def blame(self, symptom: str) -> RankFailedError:
        """End all; the error, with the reason that a watching thread may be about to learn."""
        if not self._is_closing:
            self.is_over.wait(END_S_MAX)
        return error_of(self.fail(Failed(symptom)))

    def fail(self, failure: Failed) -> Failed:
        """End all at once; the first reason that was given for it."""
        with self._noting:
            is_first = self._failure is None
            self._failure = self._failure or failure
        if is_first:
            self.is_over.set()
            for member in list(self._ends):  # Threads that watch take out what they have seen end.
                member.kill()
            self.on_loss()
        return self._failure

    def close(self) -> None:
        """End all, and wait until they have ended; may be called twice."""
        with self._sending:
            is_first, self._is_closing = not self._is_closing, True
            ends = dict(self._ends)  # Threads that watch take out what they have seen end.
            for member in ends if is_first else ():
                with suppress(OSError):  # Then it has ended already.
                    member.send_pickled(pickle.dumps(None))
        wait_for(ends.values(), END_S_MAX)
        for member in ends:
            member.kill()
        wait_for(ends.values())
        with self._sending:
            for member in ends:
                member.connection.close()
        self.on_close()

    def _expect(self, member: Member, number: int) -> Future[Any]:
        answer = Future[Any]()
        with self._noting:
            if not member.is_gone:
                member.calls[number] = answer
                return answer
        answer.set_exception(RankFailedError(str(member)))
        return answer

    def _post(self, member: Member, content: bytes, fd: int | None = None, *, is_on_disk: bool = False) -> bool:
        try:
            member.send_pickled(content, fd, is_on_disk=is_on_disk)
        except OSError as error:
            if self._is_together:
                raise self.blame(f"{member} takes no message: {error}") from error
            member.kill()  # The thread that watches it notices.
            return False
        return True

    def _end(self, member: Member, reason: str) -> None:
        if self._is_together:
            self.fail(Failed(reason))
        member.kill()

    # What follows runs in the threads that watch.

    def _watch(self, member: Member) -> None:
        failure: Failed | None = None
        has_begun = False
        while failure is None:
            try:
                if self._beat and has_begun and not _sends_something(member):
                    failure = Failed(
                        f"{member} hangs: it sends nothing, and neither computes nor waits for a processor"
                    )
                    break
                message = member.connection.recv()
                has_begun = True
            except (EOFError, OSError):
                failure = Failed(f"{member} {member.collect()}")
            except Exception as error:  # noqa: BLE001  A message that cannot be read: no call may wait for more.
                failure = Failed(f"{member} sent what cannot be read: {error!r}")
            else:
                failure = self._note(member, message)
        self._lose(member, failure)
        member.kill()
        member.collect()
        # Of those that are together none is lost alone. Elsewhere the last who knows it closes its connection.
        end = self._ends[member] if self._is_together else self._ends.pop(member)
        end.set_result(None)

    def _note(self, member: Member, message: object) -> Failed | None:
        if isinstance(message, Failed):
            return Failed(f"{member} failed: {message.message}", message.trace, message.error)
        if message is None:
            pass  # A beat.
        elif not isinstance(message, Answer):
            self.events.put((member, message))
        elif message.error is not None:
            member.calls.pop(message.number).set_exception(message.error)
        else:
            member.calls.pop(message.number).set_result(message.value)
        return None

    def _lose(self, member: Member, failure: Failed) -> None:
        """Tell whoever waits for a process that it has ended, or is about to."""
        if not self._is_closing:
            if self._is_together:
                self.fail(failure)
            self.events.put((member, failure))
        with self._noting:
            member.is_gone = True
            calls, member.calls = member.calls, {}
        for answer in calls.values():
            answer.set_exception(failure.error or RankFailedError(failure.message))


def _sends_something(member: Member) -> bool:
    """Wait until a process sends something, or stands still."""
    before, num_still = None, 0
    while not member.connection.poll(LOOK_S):
        spent = time_spent(member.process.pid)
        num_still = num_still + 1 if spent is not None and spent == before else 0
        if num_still == LOOKS_MAX:
            return False
        before = spent
    return True


def error_of(failure: Failed) -> RankFailedError:
    error = RankFailedError(f"{failure.message.removesuffix(_OVER)}{_OVER}")
    if failure.trace:
        error.add_note(failure.trace)
    return error


def _drained(numbers: deque[int]) -> Iterator[int]:
    """Take all numbers; another thread may take some of them meanwhile."""
    with suppress(IndexError):
        while True:
            yield numbers.popleft()
