"""The other ranks as rank 0 sees them: processes that are called and watched.

A thread here waits for answers and for ends. When one rank is lost it ends the others at once, and every later call
raises the reason.

Messages are plain and in order. A `ForwardBatch` is not answered, because the gathers answer it. A `Call` is answered
by `Done` with its number. None asks a rank to stop, and is answered by the end of the process.
"""

from __future__ import annotations

import mmap
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from multiprocessing.connection import Connection, wait
from threading import Condition, Event, Lock, Thread
from typing import Any, NamedTuple

import torch

from mac_runner.nano.attention import ForwardBatch
from mac_runner.nano.checkpoint import StateDict
from mac_runner.nano.errors import RankFailedError
from mac_runner.nano.parallel import members
from mac_runner.nano.parallel.group import PeerLostError, anonymous_memory
from mac_runner.nano.parallel.members import Member

CALL_S_MAX = 1800.0
"""How long a call may take; the longest is to read and pack a large model's weights."""
_OVER = ": the engine is over, make another one"
_ALIGNMENT_BYTES = 64


@dataclass(frozen=True, slots=True)
class Call:
    """A method of `Follower` to call with these arguments."""

    number: int
    method: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """The call of this number has returned `value`."""

    number: int
    value: Any = None


@dataclass(frozen=True, slots=True)
class Failed:
    """A rank can do no more: what happened, and where."""

    message: str
    trace: str = ""


class _Place(NamedTuple):
    name: str
    dtype: torch.dtype
    shape: torch.Size
    first_byte: int


@dataclass(frozen=True, slots=True)
class Parcel:
    """Where each tensor of a state dict lies in memory that processes share. Rank 0 writes it once, all ranks read."""

    num_bytes: int
    places: tuple[_Place, ...]

    def unpack(self, fd: int) -> dict[str, torch.Tensor]:
        """The tensors, in the memory itself, which is given back with the last of them."""
        memory = mmap.mmap(fd, self.num_bytes)
        return {
            name: torch.frombuffer(memory, dtype=dtype, count=shape.numel(), offset=first_byte).view(shape)
            for name, dtype, shape, first_byte in self.places
        }


def pack(state_dict: StateDict, names: Iterable[str]) -> tuple[Parcel, int]:
    """The tensors of these names as a parcel, and the descriptor of its memory, which the caller closes."""
    places, end = list[_Place](), 0
    for name in names:
        tensor = state_dict[name]
        places.append(_Place(name, tensor.dtype, tensor.shape, end))
        end += -(-tensor.numel() * tensor.element_size() // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    parcel, fd = Parcel(end, tuple(places)), anonymous_memory(end)
    for name, tensor in parcel.unpack(fd).items():
        tensor.copy_(state_dict[name].detach())
    return parcel, fd


class Ranks:
    """All ranks but this one. Any thread may send and call; all ranks get the same messages in the same order."""

    def __init__(self, others: Sequence[Member]) -> None:
        self.is_over = Event()
        """Set when a rank is lost: then no rank may be waited for."""
        self.on_loss: Callable[[], None] = lambda: None
        self.on_close: Callable[[], None] = lambda: None
        self._failure: Failed | None = None
        self._is_closing = False
        self._have_ended = False
        self._numbers = count(1)
        self._answers = dict[int, list[Any]]()
        self._changed = Condition()
        self._sending = Lock()  # Gives all ranks the same messages in the same order.
        self._members = others
        self._watcher = Thread(target=self._watch, name="nano-ranks", daemon=True)
        self._watcher.start()

    def send(self, message: ForwardBatch | Call | None, fd: int | None = None, *, is_on_disk: bool = False) -> None:
        """Send a message to all ranks, with memory if there is some. Raises RankFailedError. See `Member`."""
        content = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        with self._sending:
            self.check()
            try:
                for member in self._members:
                    member.send_pickled(content, fd, is_on_disk=is_on_disk)
            except OSError as error:
                raise self.blame(f"a rank takes no message: {error}") from error

    def begin(self, method: str, *arguments: object, fd: int | None = None, is_on_disk: bool = False) -> int:
        """Call a method on all ranks; the number to `wait` for. Raises RankFailedError."""
        number = next(self._numbers)
        with self._changed:
            self._answers[number] = []
        self.send(Call(number, method, arguments), fd, is_on_disk=is_on_disk)
        return number

    def wait(self, number: int) -> list[Any]:
        """Wait until a call has returned on all ranks; the values, in any order. Raises RankFailedError."""
        with self._changed:
            is_decided = self._changed.wait_for(
                lambda: self._failure or self._have_ended or len(self._answers[number]) == len(self._members),
                CALL_S_MAX,
            )
            answers = self._answers.pop(number)
        if not is_decided:
            self.fail(Failed(f"a call did not return within {CALL_S_MAX:.0f} s"))
        self.check()
        if len(answers) < len(self._members):
            raise _error(Failed("the engine was closed during a call"))
        return answers

    def call(self, method: str, *arguments: object, fd: int | None = None) -> list[Any]:
        """Call a method on all ranks, and wait until it has returned."""
        return self.wait(self.begin(method, *arguments, fd=fd))

    @contextmanager
    def in_step(self) -> Iterator[None]:
        """For what all ranks do or none: a failure here or on another rank ends the engine."""
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
        """Raise RankFailedError if a rank was lost."""
        if self._failure is not None:
            raise _error(self._failure)

    def blame(self, symptom: str) -> RankFailedError:
        """End all ranks; the error, with the reason that the watcher may be about to learn."""
        if not self._is_closing:
            self.is_over.wait(members.END_S_MAX)
        return _error(self.fail(Failed(symptom)))

    def fail(self, failure: Failed) -> Failed:
        """End all ranks at once; the first reason that was given for it."""
        with self._changed:
            is_first = self._failure is None
            self._failure = self._failure or failure
            self._changed.notify_all()
        if is_first:
            self.is_over.set()
            for member in self._members:
                member.kill()
            self.on_loss()
        return self._failure

    def close(self) -> None:
        """End all ranks, and wait until they have ended; may be called twice."""
        if not self._is_closing:
            self._is_closing = True
            with suppress(RankFailedError):  # Then they have ended already.
                self.send(None)
        self._watcher.join(members.END_S_MAX)
        for member in self._members:
            member.kill()
        self._watcher.join()
        with self._sending:
            for member in self._members:
                member.connection.close()
        self.on_close()

    # What follows runs in the watcher's thread.

    def _watch(self) -> None:
        watched = {member.connection: member for member in self._members}
        while watched:
            for connection in wait(list(watched)):
                assert isinstance(connection, Connection)
                try:
                    self._note(watched[connection], connection.recv())
                except (EOFError, OSError):
                    self._note_end(watched.pop(connection))
                except Exception as error:  # noqa: BLE001  An answer that cannot be read: no call may wait for more.
                    self.fail(Failed(f"{watched[connection]} sent what cannot be read: {error!r}"))
        with self._changed:
            self._have_ended = True
            self._changed.notify_all()

    def _note(self, member: Member, message: Done | Failed) -> None:
        if isinstance(message, Failed):
            self.fail(Failed(f"{member} failed: {message.message}", message.trace))
            return
        with self._changed:
            self._answers.setdefault(message.number, []).append(message.value)
            self._changed.notify_all()

    def _note_end(self, member: Member) -> None:
        """Collect a rank that has closed its end of the sockets, so it is ending or has ended."""
        manner = member.collect()
        if not self._is_closing:
            self.fail(Failed(f"{member} {manner}"))


def _error(failure: Failed) -> RankFailedError:
    error = RankFailedError(f"{failure.message.removesuffix(_OVER)}{_OVER}")
    if failure.trace:
        error.add_note(failure.trace)
    return error
