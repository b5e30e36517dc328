"""Every error mac_runner raises on purpose.

::

    MacRunnerError
    ├── ConfigError            the experiment, a flag or a file the user wrote cannot be used
    │   └── MissingPackageError     for a package that is not installed here
    ├── RunDirectoryError      the run directory cannot be used in its state
    │   ├── RunLockedError     another process is running it
    │   ├── UntrustedCodeError it was played by code that may not be imported
    │   └── IdentityError      it belongs to an experiment with another identity
    ├── ConversationError      this conversation cannot go on            verdict: fail_conversation
    ├── BackendError           an engine did not answer a request
    │   ├── TransientBackendError   worth asking again                   verdict: retry
    │   │   └── RequestTimeoutError     its own deadline came first
    │   ├── RequestRefusedError     this request will never be answered  verdict: fail_conversation
    │   │   └── FormRefusedError        for the form that its reply is held to
    │   └── EngineDeadError         the engine will answer no request    verdict: fail_run
    │       └── EngineCrashedError      it crashed while it worked           verdict: fail_run
    ├── WeightUpdateError      an engine did not take new weights; it goes on with those it has
    │   ├── WeightMismatchError     their names, shapes or dtypes are not the model's
    │   ├── StaleVersionError       the engine has this version, or a newer one
    │   ├── UpdateInProgressError   another update is under way
    │   └── BroadcastError          the trainer did not send all of them
    ├── StoreError             the disk refused a write                  verdict: fail_run
    │   └── UnusablePathError  something else is where the run has a file or a directory
    ├── ShortageError          the system gives this process no more     verdict: fail_run
    │   └── OutOfMemoryError        of its memory
    └── AlikeFailuresError     the first conversations failed for one reason     verdict: fail_run

Each class names the boundary that was crossed. Errors during a run carry a verdict, and the scheduler acts on the
verdict alone. An exception that is not in this tree is a bug: it is wrapped at the
boundary where it surfaced (`boundary`), or it ends the process with its traceback and an exit code of its own.
"""

from __future__ import annotations

import errno
import signal
import sys
import threading
from enum import Enum, StrEnum
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, cast

from mac_runner.secrecy import without_secrets

if TYPE_CHECKING:
    from mac_runner.types import Destination

RETRY_AFTER_S_MAX: Final = 60.0
"""The longest `Retry-After` that is respected."""
FAULT_CHARS_MAX: Final = 4_000
"""As much is kept of what an exception of foreign code says."""


class Verdict(StrEnum):
    """What the scheduler does about an error."""

    RETRY = "retry"
    FAIL_CONVERSATION = "fail_conversation"
    FAIL_RUN = "fail_run"


class MacRunnerError(Exception):
    """Base of the tree; its text is written for the user: what, where, what to do.

    `model` names the model that the error concerns. A backend does not know its model's name; its caller sets it, and
    the name then precedes the text.
    """

    model: str | None = None

    def __str__(self) -> str:
        """The text, after the model's name."""
        return self.words if self.model is None else f"model {self.model}: {self.words}"

    @property
    def words(self) -> str:
        """The text alone. An address in it may come from anywhere, and shows no password."""
        return without_secrets(super().__str__())

    def __reduce__(self) -> tuple[object, ...]:
        # Not by another call of `__init__`, which may take other things than the words that it made.
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[MacRunnerError], args: tuple[object, ...], attributes: dict[str, object]) -> MacRunnerError:
    """An error from another process."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


class ConfigError(MacRunnerError):
    """Something the user wrote cannot be used: what, where, what is allowed instead.

    A room that knows the setting but not the file gives its `key`; the reader of the file adds the place.
    """

    def __init__(self, message: str, *, key: tuple[str | int, ...] = ()) -> None:
        super().__init__(message)
        self.key = key

    @classmethod
    def at(cls, key: tuple[str | int, ...], text: str) -> Self:
        """The error of one setting, which it names before the text."""
        return cls(f"{'.'.join(map(str, key))}: {text}", key=key)


class MissingPackageError(ConfigError):
    """A backend needs a package that is not installed here. `--dry-run` can do without it."""


class RunDirectoryError(MacRunnerError):
    """The run directory cannot be used in its present state."""


class RunLockedError(RunDirectoryError):
    """Another process is working on this run directory, as `fact` says; the text adds what to do."""

    def __init__(self, fact: str, advice: str = "") -> None:
        super().__init__(f"{fact}; {advice}" if advice else fact)
        self.fact = fact


class UntrustedCodeError(RunDirectoryError):
    """What is asked for needs the code that the run was played with, which is imported only on request (`--trust`)."""


class IdentityError(RunDirectoryError):
    """The run directory belongs to an experiment with another identity; the text names the fields."""


class ConversationError(MacRunnerError):
    """One conversation cannot go on; the others do."""

    verdict = Verdict.FAIL_CONVERSATION


class BackendError(MacRunnerError):
    """An engine did not answer a request. Raise one of the subclasses.

    `destination` is the server that it happened at, where the backend says so.
    """

    verdict: Verdict = Verdict.FAIL_RUN
    destination: Destination | None = None


class TransientBackendError(BackendError):
    """Worth asking again: a lost connection, a full queue, a timeout.

    `retry_after_s` is the pause in seconds that the engine asks for. `is_unreachable`: the engine as a whole did not
    answer. `is_busy`: it works, and has no room for this request now. `is_engine_death`: it died while it worked on
    this request, which may be the cause; a broken connection alone does not prove that. `goes_elsewhere`: the next
    sending goes to another server, which has not failed this request, so it needs no pause. `has_answered`: it
    answered this request with what is no reply, which proves that it works.
    """

    verdict = Verdict.RETRY

    def __init__(
        self,
        message: str,
        *,
        retry_after_s: float | None = None,
        is_unreachable: bool = False,
        is_busy: bool = False,
        is_engine_death: bool = False,
        goes_elsewhere: bool = False,
        has_answered: bool = False,
    ) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.is_unreachable = is_unreachable
        self.is_busy = is_busy
        self.is_engine_death = is_engine_death
        self.goes_elsewhere = goes_elsewhere
        self.has_answered = has_answered

    @property
    def is_attempt(self) -> bool:
        """Whether this fault counts against max_attempts; rejections before processing do not."""
        return not (self.is_unreachable or self.is_busy)


class RequestTimeoutError(TransientBackendError):
    """The user's deadline came before the reply; that proves nothing about the engine."""


class RequestRefusedError(BackendError):
    """This request will never be answered: sending it again cannot help."""

    verdict = Verdict.FAIL_CONVERSATION


class FormRefusedError(RequestRefusedError):
    """The engine refuses to hold the reply to a schema, to choices or to JSON. `Form` gives it its verdict."""


class EngineDeadError(BackendError):
    """The engine will answer no request any more."""

    verdict = Verdict.FAIL_RUN


class EngineCrashedError(EngineDeadError):
    """The engine crashed while it worked; a request in flight may be the cause."""


class WeightUpdateError(MacRunnerError):
    """An engine did not take new weights. It goes on with the weights that it has."""


class WeightMismatchError(WeightUpdateError):
    """The names, shapes or dtypes of the weights are not those of the model; the text says which."""


class StaleVersionError(WeightUpdateError):
    """The engine has weights of this version, or of a newer one. Versions only grow."""


class UpdateInProgressError(WeightUpdateError):
    """Another update of the same model is under way. Wait for it and try again."""


class BroadcastError(WeightUpdateError):
    """A trainer did not send all weights: it ended, or was too slow. None of them is used."""


class StoreError(MacRunnerError):
    """The disk refused a write. Nothing after it was acknowledged; the run stops, resumable."""

    verdict = Verdict.FAIL_RUN


class UnusablePathError(StoreError):
    """Something else is where the run has a file or a directory: a FIFO, a link, a file above its directory."""


class ShortageError(MacRunnerError):
    """The system gives this process no more of something: descriptors, threads, memory.

    The work in progress is not at fault, so it is not tried again; the run stops, resumable.
    """

    verdict = Verdict.FAIL_RUN


class OutOfMemoryError(ShortageError):
    """No memory is left."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}: no memory left; run the same command again: it goes on where it stopped. Where it happens "
            "again, lower --concurrency or take a larger machine"
        )


class AlikeFailuresError(MacRunnerError):
    """The first conversations of a run all failed for one reason, so the others would too; the run stops, resumable."""

    verdict = Verdict.FAIL_RUN

    def __init__(self, count: int, left: int, reason: str) -> None:
        super().__init__(
            f"the run was stopped: its first {count} conversations all failed for one reason: {reason}; mend the "
            f"cause and run the same command again for the other {left:,}, or begin anew with --out DIR"
        )


def text_of(fault: BaseException) -> str:
    """What an exception says, cut to FAULT_CHARS_MAX. Its `__str__` may be anyone's code, and raise in turn."""
    try:
        text = str.__str__(str(fault))  # A text of a class of its own would be anyone's code as well.
    except BaseException as other:
        if _is_of_the_process(other, sys.exc_info()[2]):
            raise
        return f"its text cannot be had ({name_of(other)})"
    return text if len(text) <= FAULT_CHARS_MAX else f"{text[:FAULT_CHARS_MAX]} …"


def name_of(fault: BaseException) -> str:
    """The name of an exception's class, whatever a class of that class makes of the name."""
    return cast("str", type.__dict__["__name__"].__get__(type(fault)))


def said_by(fault: BaseException) -> str:
    """The class of an exception, and what it says."""
    return f"{name_of(fault)}: {text_of(fault)}"


def shortage_of(fault: BaseException, what: str) -> ShortageError | None:
    """The shortage behind `fault` or its causes; None if there is none. `what` is what it prevented."""
    if (lack := _lack_behind(fault)) is None:
        return None
    if lack is _Lack.MEMORY:
        return OutOfMemoryError(what)
    return ShortageError(f"{what}: {_REMEDIES[lack]}, and run the same command again: it goes on where it stopped")


def lacks_descriptors(fault: BaseException) -> bool:
    """Whether `fault` or one of its causes shows that no file descriptor was left."""
    return _lack_behind(fault) is _Lack.DESCRIPTORS


def lacks_memory(fault: BaseException) -> bool:
    """Whether `fault` or one of its causes shows that no memory was left."""
    return _lack_behind(fault) is _Lack.MEMORY


class _Lack(Enum):
    DESCRIPTORS = "descriptors"
    THREADS = "threads"
    MEMORY = "memory"


_REMEDIES: Final = {
    _Lack.DESCRIPTORS: "no file descriptor left; raise the limit (`ulimit -n`)",
    _Lack.THREADS: "no further thread can be started; raise the limit on processes or memory (`ulimit -u`, `-v`)",
}
NO_DESCRIPTORS: Final = "no file descriptor is left for a connection (`ulimit -n` allows more)"
"""A backend's message for a request for which `lacks_descriptors`: never sent, so not an attempt."""
_LACKS: Final = {errno.EMFILE: _Lack.DESCRIPTORS, errno.ENFILE: _Lack.DESCRIPTORS, errno.ENOMEM: _Lack.MEMORY}
_IMPORT_LACKS: Final = {
    "Too many open files": _Lack.DESCRIPTORS,
    "Error 24": _Lack.DESCRIPTORS,
    "failed to map segment": _Lack.MEMORY,
    "annot allocate memory": _Lack.MEMORY,
}
"""Messages of the system's loader for a library that it cannot load; they carry no error number."""


def _lack_behind(fault: BaseException) -> _Lack | None:
    """The first shortage in the chain of causes of `fault`."""
    waiting, seen = [fault], set[int]()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if (lack := _lack_of(one)) is not None:
            return lack
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions
        waiting += [cause for cause in (one.__cause__, one.__context__) if cause is not None]
    return None


def _lack_of(fault: BaseException) -> _Lack | None:
    text = text_of(fault) if isinstance(fault, ImportError | RuntimeError) else ""
    if isinstance(fault, ImportError):
        return next((lack for words, lack in _IMPORT_LACKS.items() if words in text), None)
    if isinstance(fault, RuntimeError):
        return _Lack.THREADS if text == "can't start new thread" else None
    if isinstance(fault, OSError):
        # If several addresses were tried, only the text of their errors may be left.
        is_one_of_many = fault.errno is None and f"[Errno {errno.EMFILE}]" in text_of(fault)
        return _Lack.DESCRIPTORS if is_one_of_many else _LACKS.get(fault.errno or 0)
    return _Lack.MEMORY if isinstance(fault, MemoryError | OutOfMemoryError) else None


class boundary:  # noqa: N801 - it reads as a verb
    """Turn any exception of foreign code into `error`, keeping the original as its cause.

    Errors of our own tree pass unchanged. This is the only place that catches `Exception` and goes on. It guards calls
    into plugged-in code (an environment, a backend, a policy), which raises plain Python exceptions. It is a class,
    because a turn passes several boundaries and a generator would cost each of them three times as much.

    `model` names the model around a call of its engine: every error that passes gets the name, except a ConfigError,
    which names its key.
    """

    __slots__ = ("_error", "_model", "_what")

    def __init__(self, error: type[MacRunnerError], what: str, *, model: str | None = None) -> None:
        self._error = error
        self._what = what
        self._model = model

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Code that ends the process would take all conversations with it.
        if fault is None or _is_of_the_process(fault, trace):
            return
        try:
            ours = self._ours(fault)
        except BaseException as other:
            # An attribute of an exception may be foreign code, as its text may.
            if _is_of_the_process(other, sys.exc_info()[2]):
                raise
            ours = self._error(f"{self._what}: {said_by(fault)}")
        if self._model is not None and not isinstance(ours, ConfigError):
            ours.model = self._model
        if ours is not fault:
            raise ours from fault

    def _ours(self, fault: BaseException) -> MacRunnerError:
        if issubclass(type(fault), MacRunnerError):
            return cast("MacRunnerError", fault)
        where = line_of(fault) if self._error in (ConversationError, ConfigError) else ""
        said = f"{self._what}: {said_by(fault)}{where and f' ({where})'}"
        return shortage_of(fault, self._what) or self._error(said)


def _is_of_the_process(fault: BaseException, trace: TracebackType | None) -> bool:
    """Whether it was meant for the process or its task: an interrupt, a cancellation, the end of a suspended frame.

    Foreign code may raise each of them by itself: CancelledError from a future of its own that was cancelled, say. If
    that passed for a cancellation, its request would never be answered.
    """
    kind = type(fault)  # Not `isinstance`, which asks the exception for its class.
    if issubclass(kind, KeyboardInterrupt):
        return may_be_a_signal(trace)
    if issubclass(kind, GeneratorExit):
        return _is_thrown_in(trace)
    asyncio = sys.modules.get("asyncio")
    if asyncio is None or not issubclass(kind, asyncio.CancelledError):
        return False
    try:
        task = asyncio.current_task()
    except RuntimeError:  # No loop runs in this thread, so nothing can be cancelled here.
        return False
    return task is not None and task.cancelling() > 0


def may_be_a_signal(trace: TracebackType | None) -> bool:
    """Whether a KeyboardInterrupt may come from a signal: those are handled in the main thread.

    A handler of ours is the innermost frame of what it raises; during a run it raises nothing (`cli.process`).
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    if not _is_ours(getattr(signal.getsignal(signal.SIGINT), "__module__", "")):
        return True
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and _is_ours(trace.tb_frame.f_globals.get("__name__"))


def _is_ours(module: object) -> bool:
    return isinstance(module, str) and module.partition(".")[0] == "mac_runner"


def _is_thrown_in(trace: TracebackType | None) -> bool:
    """Whether a GeneratorExit may have been thrown into a suspended frame, as the end of a coroutine is.

    Then all frames from the boundary down to where it appeared can be suspended.
    """
    while trace is not None:
        if not trace.tb_frame.f_code.co_flags & _SUSPENDABLE:
            return False
        trace = trace.tb_next
    return True


_SUSPENDABLE: Final = 0x20 | 0x80 | 0x200
"""CO_GENERATOR, CO_COROUTINE and CO_ASYNC_GENERATOR of `inspect`, which takes long to import."""


def line_of(fault: BaseException) -> str:
    """The line of code from outside mac_runner that raised, as `file.py:12`; empty where ours or Python's did.

    Of the files beside the one that was called first, it is the innermost line. The folder is left out, so that
    transcripts do not depend on it.
    """
    folder, place = "", ""
    trace = fault.__traceback__
    while trace is not None:
        name = str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        parent, _, file = trace.tb_frame.f_code.co_filename.rpartition("/")
        if not folder and name != "mac_runner":
            if name in sys.stdlib_module_names:
                return ""
            folder = parent
        if folder and parent == folder:
            place = f"{file}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place
