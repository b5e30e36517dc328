"""Other processes as the one that leads them sees them: ranks or replicas, which are called and watched.

Messages are plain and in order. A `Call` is answered by an `Answer` with its number. Other messages are not answered.
None asks a process to stop, and is answered by its end. Each process has a thread here that waits for what it sends,
and for its end.
"""

from __future__ import annotations

import mmap
import os
import pickle
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import Any, TypeVar

import torch

from mac_runner.nano.checkpoint import Part, StateDict, pieces
from mac_runner.nano.errors import NanoError, RankFailedError
from mac_runner.nano.parallel import members
from mac_runner.nano.parallel.group import PeerLostError, anonymous_memory
from mac_runner.nano.parallel.members import Member
from mac_runner.nano.runner import Prepared

CALL_S_MAX = 1800.0
"""How long a call may take; the longest is to read and pack a large model's weights."""
LOOKS_MAX = 30
"""How many looks, of members.LOOK_S each, may find a process silent and still until it counts as hung."""
_OVER = ": the engine is over, make another one"
BuiltModel = TypeVar("BuiltModel", bound=Prepared)
Calls = list[tuple[Member, Future[Any]]]


@dataclass(frozen=True, slots=True)
class Call:
    """A method of a `Worker` to call; `engine.NAME` is one of its engine's."""

    number: int
    method: str
    arguments: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


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
        options: Mapping[str, object] | None = None,
        fd: int | None = None,
        is_on_disk: bool = False,
    ) -> Calls:
        """Call a method, by default of all; what to `wait` for. Raises RankFailedError. For memory see `Member`."""
        call = Call(next(self._numbers), method, arguments, options or {})
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
        options: Mapping[str, object] | None = None,
        fd: int | None = None,
    ) -> list[tuple[Member, Any]]:
        """Call a method, by default of all, and wait until it has returned."""
        return self.wait(self.begin(method, *arguments, to=to, options=options, fd=fd))

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
            self.is_over.wait(members.END_S_MAX)
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
        wait_for(ends.values(), members.END_S_MAX)
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
    while not member.connection.poll(members.LOOK_S):
        spent = members.time_spent(member.process.pid)
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
