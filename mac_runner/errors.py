"""Every error mac_runner raises on purpose.

::

    MacRunnerError
    ├── ConfigError            the experiment, a flag or a file the user wrote cannot be used
    ├── RunDirectoryError      the run directory cannot be used as it stands
    │   ├── RunLockedError     another process is running it
    │   └── IdentityError      it belongs to an experiment with another identity
    ├── ConversationError      this conversation cannot go on            verdict: fail_conversation
    ├── BackendError           an engine did not answer a request
    │   ├── TransientBackendError   worth asking again                   verdict: retry
    │   │   └── RequestTimeoutError     its own deadline came first
    │   ├── RequestRefusedError     this request will never be answered  verdict: fail_conversation
    │   └── EngineDeadError         the engine will answer nobody        verdict: fail_run
    │       └── EngineCrashedError      it broke down over what it had       verdict: fail_run
    ├── StoreError             the disk refused a write                  verdict: fail_run
    └── OutOfMemoryError       this process can have no more memory      verdict: fail_run

Each class names the boundary that was crossed. The errors met while a run is under way carry a verdict, and
the scheduler acts on the verdict alone. An exception that is not in this tree is a bug: it is wrapped at the
boundary where it surfaced (`boundary`), or it ends the process with its traceback and an exit code of its own.
"""

from __future__ import annotations

from enum import StrEnum
from types import TracebackType


class Verdict(StrEnum):
    """What the scheduler does about an error."""

    RETRY = "retry"
    FAIL_CONVERSATION = "fail_conversation"
    FAIL_RUN = "fail_run"


class MacRunnerError(Exception):
    """Base of the tree; its text is written for the user: what, where, what to do.

    `model` names the model whose engine it is about. An engine speaks of itself alone, and whoever asked it knows which
    one it was; the name then stands in front of the text.
    """

    model: str | None = None

    def __str__(self) -> str:
        """The text, behind the model's name."""
        return self.words if self.model is None else f"model {self.model}: {self.words}"

    @property
    def words(self) -> str:
        """The text alone."""
        return super().__str__()


class ConfigError(MacRunnerError):
    """Something the user wrote cannot be used: what, where, what is allowed instead.

    A room that knows the setting but not the file gives its `key`; whoever read the file adds the place.
    """

    def __init__(self, message: str, *, key: tuple[str | int, ...] = ()) -> None:
        super().__init__(message)
        self.key = key


class RunDirectoryError(MacRunnerError):
    """The run directory cannot be used as it stands."""


class RunLockedError(RunDirectoryError):
    """Another process is working on this run directory; the text names it."""


class IdentityError(RunDirectoryError):
    """The run directory belongs to an experiment with another identity; the text names the fields."""


class ConversationError(MacRunnerError):
    """One conversation cannot go on; the others do."""

    verdict = Verdict.FAIL_CONVERSATION


class BackendError(MacRunnerError):
    """An engine did not answer a request. Raise one of the subclasses."""

    verdict: Verdict = Verdict.FAIL_RUN


class TransientBackendError(BackendError):
    """Worth asking again: a lost connection, a full queue, a timeout.

    `retry_after_s` is how long the engine wants to be left alone, in seconds; `is_unreachable` says that the engine
    as a whole did not answer, whatever was asked of it; `is_busy` that it works, and has no room for this request now;
    `is_engine_death` that it died while it worked on this very request, which may be why. A connection that broke is
    not enough to say so.
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
    ) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.is_unreachable = is_unreachable
        self.is_busy = is_busy
        self.is_engine_death = is_engine_death

    @property
    def is_attempt(self) -> bool:
        """Whether the request was looked at. One that was turned away at the door may come as often as time allows."""
        return not (self.is_unreachable or self.is_busy)


class RequestTimeoutError(TransientBackendError):
    """The request's own deadline came before its reply. That says nothing of the engine: the deadline is the user's."""


class RequestRefusedError(BackendError):
    """This very request will never be answered: asking again cannot help."""

    verdict = Verdict.FAIL_CONVERSATION


class EngineDeadError(BackendError):
    """The engine will answer nobody any more."""

    verdict = Verdict.FAIL_RUN


class EngineCrashedError(EngineDeadError):
    """The engine broke down while it worked; what it worked on may be why."""


class StoreError(MacRunnerError):
    """The disk refused a write. Nothing after it was acknowledged; the run stops and can be resumed."""

    verdict = Verdict.FAIL_RUN


class OutOfMemoryError(MacRunnerError):
    """No memory is left. Whatever was being done is not at fault, so nothing of it is tried again; the run stops."""

    verdict = Verdict.FAIL_RUN

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}: no memory left; run the same command again: it goes on where it stopped. Where it happens "
            "again, lower --concurrency or take a larger machine"
        )


class boundary:  # noqa: N801 - it reads as the verb that it is
    """Turn any exception of foreign code into `error`, keeping the original as its cause.

    Errors of our own tree pass unchanged. This is the only place that catches `Exception` and goes on: it guards the
    calls into plugged-in code (an environment, a backend, a policy), whose authors raise plain Python. It is a class
    because a turn passes several boundaries, and a generator would cost each of them three times as much.

    Around a call of an engine, `model` says whose: whatever passes is told as an error of it, but for a ConfigError,
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
        if not isinstance(fault, Exception):
            return
        ours = self._ours(fault)
        if self._model is not None and not isinstance(ours, ConfigError):
            ours.model = self._model
        if ours is not fault:
            raise ours from fault

    def _ours(self, fault: Exception) -> MacRunnerError:
        if isinstance(fault, MacRunnerError):
            return fault
        if isinstance(fault, MemoryError):
            return OutOfMemoryError(self._what)
        return self._error(f"{self._what}: {type(fault).__name__}: {fault}")
