"""A state dict in memory that processes share: written once by rank 0, and mapped by every rank that builds from it.

~~~~
What rank 0 tells the others, and what they answer. Plain, and in order: every rank does the same in the same order.

A `ForwardBatch` is told as it is and not answered, for the gathers answer it. Everything else is an `Order` with a
number, answered by `Done` with that number when it has been done; `Stop` is answered by the end of the process.


~~~~
The other ranks as rank 0 sees them: processes that are started, told, watched and ended.

Each is a fresh interpreter, tied to this process twice. Over a pair of sockets it is told what to do and answers; from
its standard input nothing ever comes, but its end tells a rank that this process is gone, however it went. A thread
here waits for answers and for ends: when one rank is lost the others are ended at once, and whoever asks is told which
it was and of what it died. No port, no file and no memory has a name, so engines do not meet and nothing is left over.
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
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import send_handle
from threading import Condition, Event, Lock, Thread
from typing import NamedTuple

import torch

from mac_runner.nano.architecture import ModelConfig
from mac_runner.nano.attention import ForwardBatch
from mac_runner.nano.checkpoint import StateDict
from mac_runner.nano.config import EngineConfig
from mac_runner.nano.errors import RankFailedError
from mac_runner.nano.parallel.group import GatherMemory, anonymous_memory

_ALIGNMENT_BYTES = 64


class _Place(NamedTuple):
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    first_byte: int


@dataclass(frozen=True, slots=True)
class Parcel:
    """What is where in the memory."""

    num_bytes: int
    places: tuple[_Place, ...]

    def unpack(self, fd: int) -> dict[str, torch.Tensor]:
        """The tensors, in the memory itself, which is given back with the last of them."""
        memory = mmap.mmap(fd, self.num_bytes)
        return {
            name: torch.frombuffer(memory, dtype=dtype, count=_count(shape), offset=first_byte).view(shape)
            for name, dtype, shape, first_byte in self.places
        }


def pack(state_dict: StateDict, names: Iterable[str]) -> tuple[Parcel, int]:
    """The tensors of these names as a parcel, and the descriptor of its memory, which is the caller's to close."""
    places, end = list[_Place](), 0
    for name in names:
        tensor = state_dict[name]
        places.append(_Place(name, tensor.dtype, tuple(tensor.shape), end))
        end += -(-tensor.numel() * tensor.element_size() // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    parcel, fd = Parcel(end, tuple(places)), anonymous_memory(end)
    for name, tensor in parcel.unpack(fd).items():
        tensor.copy_(state_dict[name].detach())
    return parcel, fd


def _count(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape).numel())


@dataclass(frozen=True, slots=True)
class Begin:
    """Become a rank of this engine: the first order, before there are weights."""

    config: EngineConfig
    model_config: ModelConfig
    num_threads: int


@dataclass(frozen=True, slots=True)
class Build:
    """Make a model of the weights whose memory follows, and keep it as `ticket`; forget the models of other tickets.

    It is done beside the batches that follow.
    """

    ticket: int
    parcel: Parcel
    forgotten: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Install:
    """Compute with the model kept as `ticket` from now on."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Join:
    """Gather with the others: through the memory that follows, or over torch.distributed, whose store has this port."""

    by: GatherMemory | int


@dataclass(frozen=True, slots=True)
class OpenStore:
    """Take KV memory of so many blocks, empty."""

    num_blocks: int


class Plain(StrEnum):
    """Orders that say everything by their name."""

    COUNT_BLOCKS = "count_blocks"  # Answered by how many blocks this rank has memory for.
    DROP_STORE = "drop_store"
    DROP_WEIGHTS = "drop_weights"


Action = Begin | Build | Install | Join | OpenStore | Plain


@dataclass(frozen=True, slots=True)
class Order:
    """Something to do."""

    number: int
    action: Action


@dataclass(frozen=True, slots=True)
class Stop:
    """End, in good order."""


@dataclass(frozen=True, slots=True)
class Done:
    """The order of this number has been carried out; `value` is what it asked for."""

    number: int
    value: int = 0


@dataclass(frozen=True, slots=True)
class Failed:
    """This rank can do no more: what happened, and where."""

    message: str
    trace: str


FOLLOWER = "mac_runner.nano.parallel.follower"
ORDER_S_MAX = 1800.0
"""How long an order may take; the longest is to read and pack a large model's weights."""
SEND_S_MAX = 300
"""How long a message may wait to be taken by a rank that is busy."""
END_S_MAX = 10.0
"""How long a process may take to end once it was told to, and how soon the reason of a failure is known."""


@dataclass(frozen=True, slots=True)
class _Member:
    """Another rank."""

    rank: int
    process: subprocess.Popen[bytes]
    connection: Connection

    def __str__(self) -> str:
        return f"rank {self.rank} (process {self.process.pid})"


class Ranks:
    """Ranks 1 to `size - 1`. Any thread may tell and ask; what is told arrives everywhere in the same order."""

    def __init__(self, size: int, num_threads: int) -> None:
        self.is_over = Event()
        """Set when a rank is lost: nobody may be waited for any more."""
        self.on_loss: Callable[[], None] = lambda: None
        self._failure: Failed | None = None
        self._is_closing = False
        self._numbers = count(1)
        self._answers = dict[int, list[int]]()
        self._news = Condition()
        self._sending = Lock()  # So that all ranks are told the same in the same order.
        self._members = [_start(rank, num_threads) for rank in range(1, size)]
        self._watcher = Thread(target=self._watch, name="nano-ranks", daemon=True)
        self._watcher.start()

    def tell(self, message: ForwardBatch | Order | Stop, fd: int | None = None) -> None:
        """Tell all ranks, and give them a descriptor if there is one. Raises RankFailedError."""
        content = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        with self._sending:
            self.check()
            try:
                for member in self._members:
                    member.connection.send_bytes(content)
                    if fd is not None:
                        send_handle(member.connection, fd, member.process.pid)
            except OSError as error:
                raise self.blame(f"a rank takes no message: {error}") from error

    def begin(self, action: Action, fd: int | None = None) -> int:
        """Have something done by all ranks; the number to `wait` for. Raises RankFailedError."""
        number = next(self._numbers)
        with self._news:
            self._answers[number] = []
        self.tell(Order(number, action), fd)
        return number

    def wait(self, number: int) -> list[int]:
        """Wait until all ranks have done it; what they answered, in any order. Raises RankFailedError."""
        with self._news:
            is_told = self._news.wait_for(
                lambda: self._failure is not None or len(self._answers[number]) == len(self._members), ORDER_S_MAX
            )
            answers = self._answers.pop(number)
        if not is_told:
            self.fail(Failed(f"an order was not carried out within {ORDER_S_MAX:.0f} s", ""))
        self.check()
        return answers

    def ask(self, action: Action, fd: int | None = None) -> list[int]:
        """Have something done by all ranks, and wait for it."""
        return self.wait(self.begin(action, fd))

    @contextmanager
    def in_step(self) -> Iterator[None]:
        """For what all ranks do or none: when it fails here, or there, everything is over."""
        try:
            yield
        except RankFailedError as error:
            raise self.blame(str(error)) from error
        except BaseException as error:
            self.fail(Failed(f"rank 0 failed: {error!r}", ""))
            raise

    def check(self) -> None:
        """Raises RankFailedError when a rank was lost."""
        if self._failure is not None:
            raise _error(self._failure)

    def blame(self, symptom: str) -> RankFailedError:
        """The reason for what was noticed here, which the watcher may be about to learn; everything is over."""
        if not self._is_closing:
            self.is_over.wait(END_S_MAX)
        return _error(self.fail(Failed(symptom, "")))

    def fail(self, failure: Failed) -> Failed:
        """End all ranks at once, for this reason unless there was one before; the reason."""
        with self._news:
            is_first = self._failure is None
            self._failure = self._failure or failure
            self._news.notify_all()
        if is_first:
            self.is_over.set()
            for member in self._members:
                member.process.kill()
            self.on_loss()
        return self._failure

    def close(self) -> None:
        """End all ranks, and wait until they have ended; may be called twice."""
        if not self._is_closing:
            self._is_closing = True
            with suppress(RankFailedError):  # Then they have ended already.
                self.tell(Stop())
        self._watcher.join(END_S_MAX)
        for member in self._members:
            member.process.kill()
        self._watcher.join()

    # What follows runs in the watcher's thread.

    def _watch(self) -> None:
        members = {member.connection: member for member in self._members}
        while members:
            for connection in wait(list(members)):
                assert isinstance(connection, Connection)
                try:
                    self._note(members[connection], connection.recv())
                except (EOFError, OSError):
                    self._bury(members.pop(connection))
                except Exception as error:  # noqa: BLE001  What was said cannot be read: nobody may wait for more.
                    self.fail(Failed(f"{members[connection]} said something else: {error!r}", ""))

    def _note(self, member: _Member, message: Done | Failed) -> None:
        if isinstance(message, Failed):
            self.fail(Failed(f"{member} failed: {message.message}", message.trace))
            return
        with self._news:
            self._answers.setdefault(message.number, []).append(message.value)
            self._news.notify_all()

    def _bury(self, member: _Member) -> None:
        """A rank's end of the sockets was closed, so it is ending or has ended."""
        try:
            code = member.process.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            member.process.kill()
            code = member.process.wait()
        if not self._is_closing:
            self.fail(Failed(f"{member} {_manner(code)}", ""))
        member.connection.close()
        assert member.process.stdin is not None
        member.process.stdin.close()


def _start(rank: int, num_threads: int) -> _Member:
    """A process that will be a rank: with this one's modules, and threads as it is told, before it loads torch."""
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_S_MAX, 0))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),  # noqa: PTH109
        "OMP_NUM_THREADS": str(num_threads),
    }
    with theirs:
        process = subprocess.Popen(  # noqa: S603  Our own interpreter and module.
            [sys.executable, "-P", "-m", FOLLOWER, str(rank), str(theirs.fileno()), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env=environment,
            start_new_session=True,  # Ctrl-C at a terminal is for rank 0, which ends the others in good order.
        )
    return _Member(rank, process, Connection(ours.detach()))


def _manner(code: int) -> str:
    """How a process ended."""
    if code < 0:
        names = {each.value: each.name for each in signal.Signals}
        return f"was ended by signal {-code} ({names.get(-code, 'without a name')})"
    return f"has ended with exit code {code}; what it said of it stands on stderr"


def _error(failure: Failed) -> RankFailedError:
    error = RankFailedError(f"{failure.message}: the engine is over, make another one")
    if failure.trace:
        error.add_note(failure.trace)
    return error
