"""A limit on the time that a step of a user's code may take.

A step is one call into it. It is made on the thread that plays, so one that does not return holds up the whole run.
Python can end no thread, but can have an exception appear in one between two instructions of Python
(`PyThreadState_SetAsyncExc`). So a loop is broken off, and fails its conversation. What waits inside of C (a socket, a
lock, another process) is woken by a signal, where the process has a handler for WAKING and the step is in its main
thread. A step that goes on all the same (it catches every exception, or computes inside of C) is reported to `endless`.

C code that keeps the interpreter's lock stops the watch too: only the end of the process helps.
"""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Final, ParamSpec, TypeVar

from mac_runner.clock import pause

LOOKS: Final = 4
"""How often a step is looked at within its limit. Looks are counted, so a process that was stopped loses no time."""
WAKING: Final = signal.SIGURG
"""What wakes a call that waits. Nothing else of ours uses it, and without a handler it does nothing."""

P = ParamSpec("P")
T = TypeVar("T")


class StepTooLongError(BaseException):
    """A step took longer than its limit. No Exception: code that catches those would go on."""


@dataclass(slots=True, eq=False)
class _Step:
    """A step in progress."""

    of: str
    thread: int
    looks: int = 0
    is_interrupted: bool = False


class StepLimit:
    """Bounds steps to `limit_s` seconds each, on any thread."""

    endless: Callable[[str], object] = staticmethod(lambda _where: None)
    """Receives the place of a step in the main thread that went on for twice its limit. Set by who owns the process."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._steps: dict[int, _Step] = {}
        self._lock = threading.Lock()
        self._is_watched = False

    def run(self, of: str, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What a call returns, for the conversation `of`. Raises StepTooLongError, inside the call."""
        step = _Step(of, _thread.get_ident())
        try:
            try:
                self._begin(step)
                return call(*args, **kwargs)
            finally:
                self._end(step)
        except StepTooLongError as fault:
            self._end(step)  # It comes once, but may have come before the line above did anything.
            # Where a loop was broken off differs each time, and what a transcript says may not.
            fault.args = (
                f"{_beginning(fault)} took longer than {self._limit_s:g} s (conversation_config.step_limit_s)",
            )
            raise fault.with_traceback(None) from None

    def _begin(self, step: _Step) -> None:
        with self._lock:
            self._steps[step.thread] = step
            if not self._is_watched:
                # Not of `threading`: it ends by itself, and neither the interpreter nor anyone else waits for it.
                _thread.start_new_thread(self._watch, ())
                self._is_watched = True

    def _end(self, step: _Step) -> None:
        with self._lock:
            self._steps.pop(step.thread, None)
            if step.is_interrupted:
                _raise_in(step.thread, None)  # If it has not come yet, it comes too late.

    def _watch(self) -> None:
        """Look at the steps, until there is none at a look."""
        while True:
            pause(self._limit_s / LOOKS)
            with self._lock:
                if not self._steps:
                    self._is_watched = False
                    return
                over = [step for step in self._steps.values() if self._look(step)]
            for step in over:
                self.endless(f"{step.of} ({place_of_thread(step.thread)})")

    def _look(self, step: _Step) -> bool:
        """Interrupt a step that has taken too long; whether it went on all the same."""
        step.looks += 1
        is_main = step.thread == threading.main_thread().ident
        if step.looks == LOOKS + 1:
            step.is_interrupted = True
            _raise_in(step.thread, StepTooLongError)
            if is_main:
                signal.pthread_kill(step.thread, WAKING)
        return is_main and step.looks == 2 * LOOKS + 1


@cache
def step_limit(limit_s: float) -> StepLimit:
    """The one that bounds steps to this time."""
    return StepLimit(limit_s)


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    """Have an exception appear in a thread, or take back one that has not appeared yet."""
    import ctypes  # Here, because it is seldom needed and takes long.

    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), error and ctypes.py_object(error))


def _beginning(fault: BaseException) -> str:
    """The function of the user's code that the step began in."""
    trace = fault.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0] != "mac_runner":
            return f"`{code.co_name}` in {code.co_filename.rpartition('/')[2]}"
        trace = trace.tb_next
    return "a step"


def place_of_thread(thread: int) -> str:
    """The line that a thread is at now, outside of the standard library; empty where it is nowhere else."""
    frame = sys._current_frames().get(thread)
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in sys.stdlib_module_names:
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
