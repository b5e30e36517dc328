"""A limit on the time that a step of a user's code may take.

A step is one call into it. It is made on the thread that plays, so one that does not return holds up the whole run.
Python can end no thread, but can have an exception appear in one between two instructions of Python
(`PyThreadState_SetAsyncExc`). So a loop is broken off, and fails its conversation. What waits inside of C (a socket, a
lock, another process) is woken by a signal, where the process has a handler for WAKING and the step is in its main
thread. A step that goes on all the same (it catches every exception, or computes inside of C) is reported to `endless`.

C code that keeps the interpreter's lock stops the watch too: only the end of the process helps.

A step sees no running event loop: one that cancels the task it is in, or stops the loop, would take the run with it.
For the same reason a limit of recursion that it lowers is put back, and so is the working directory of a command.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final, TypeVar, TypeVarTuple, Unpack

LOOKS: Final = 4
"""How often a step is looked at within its limit. Looks are counted, so a process that was stopped loses no time."""
WAKING: Final = signal.SIGURG
"""What wakes a call that waits. Nothing else of ours uses it, and without a handler it does nothing."""

_NEVER: Final = threading.Lock()
"""It is never released, so that waiting for it is waiting."""
_NEVER.acquire()

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class StepTooLongError(BaseException):
    """A step took longer than its limit. No Exception: code that catches those would go on."""


@dataclass(slots=True, eq=False)
class _Step:
    """The step that a thread is at."""

    thread: int
    of: str | None = None
    """The conversation; None between two steps."""
    number: int = 0
    is_interrupted: bool = False


class StepLimit:
    """Bounds steps to `limit_s` seconds each, on any thread; None: they take as long as they like."""

    endless: Callable[[str], object] = staticmethod(lambda _where: None)
    """Receives the place of a step in the main thread that went on for twice its limit. Set by who owns the process."""

    home: int | None = None
    """The working directory that each step ends in, as a descriptor. Set by who owns the process."""

    @classmethod
    def put_back(cls, recursion_limit: int) -> None:
        """After anyone's code: raise a limit of recursion that it lowered, and go back to that directory."""
        if sys.getrecursionlimit() < recursion_limit:
            sys.setrecursionlimit(recursion_limit)
        if cls.home is not None:
            os.fchdir(cls.home)

    def __init__(self, limit_s: float | None) -> None:
        # Here, because importing it takes long, and not all that imports this module has steps.
        from asyncio import _get_running_loop, _set_running_loop

        self._running_loop, self._set_running_loop = _get_running_loop, _set_running_loop
        self._limit_s = limit_s or 0.0
        self._steps: dict[int, _Step] = {}
        self._lock = threading.Lock()
        self._is_watched = limit_s is None

    def run(self, of: str, call: Callable[[Unpack[Ts]], T], *args: *Ts) -> T:
        """What a call returns, for the conversation `of`. Raises StepTooLongError, inside the call.

        Every step passes here, so it takes no lock where nothing happens.
        """
        thread = _thread.get_ident()
        step = self._steps.get(thread) or self._steps.setdefault(thread, _Step(thread))
        loop = self._running_loop()
        recursion_limit = sys.getrecursionlimit()
        try:
            try:
                step.number += 1
                step.of = of
                if not self._is_watched:
                    self._begin_watch()
                self._set_running_loop(None)
                return call(*args)
            finally:
                step.of = None
                if step.is_interrupted:
                    self._take_back(step)
                self._set_running_loop(loop)
        except StepTooLongError as fault:
            # It comes once, but may have come before the lines above did anything.
            step.of = None
            self._take_back(step)
            self._set_running_loop(loop)
            # Where a loop was broken off differs each time, and what a transcript says may not.
            what = f"{_beginning(fault)} took longer than {self._limit_s:g} s"
            fault.args = (f"{what} (conversation_config.step_limit_s)",)
            raise fault.with_traceback(None) from None
        finally:
            self.put_back(recursion_limit)

    def _begin_watch(self) -> None:
        with self._lock:
            if not self._is_watched:
                # Not of `threading`: it ends by itself, and neither the interpreter nor anyone else waits for it.
                _thread.start_new_thread(self._watch, ())
                self._is_watched = True

    def _watch(self) -> None:
        """Look at the steps, until there is none at a look."""
        seen: dict[int, tuple[int, int]] = {}
        while True:
            _NEVER.acquire(timeout=self._limit_s / LOOKS)
            with self._lock:
                # In this order: a step that begins meanwhile is seen, or begins another watch.
                self._is_watched = False
                steps = [step for step in tuple(self._steps.values()) if step.of is not None]
                if not steps:
                    return
                self._is_watched = True
            seen = {step.thread: _looks(step, seen) for step in steps}
            for step in steps:
                self._look(step, *seen[step.thread])

    def _look(self, step: _Step, number: int, looks: int) -> None:
        """Interrupt the step of this number once it has taken too long; report one that goes on all the same."""
        is_main = step.thread == threading.main_thread().ident
        if looks == LOOKS + 1:
            self._interrupt(step, number, is_main)
        elif looks == 2 * LOOKS + 1 and is_main and step.number == number and (of := step.of) is not None:
            self.endless(f"{of} ({place_of_thread(step.thread)})")

    def _interrupt(self, step: _Step, number: int, is_main: bool) -> None:
        with self._lock:
            # In this order: a step that ends after the question waits for the lock, and takes back what is raised here.
            step.is_interrupted = True
            if step.number != number or step.of is None:
                step.is_interrupted = False
                return
            _raise_in(step.thread, StepTooLongError)
        if is_main:
            signal.pthread_kill(step.thread, WAKING)

    def _take_back(self, step: _Step) -> None:
        """Of an exception that has not appeared yet, which would come too late: it appears here.

        The interpreter can be told to forget it, but would go on looking for it (CPython 3.11): all code is slower
        from then on, and a profiler never returns.
        """
        try:
            with self._lock:
                pass
            for _ in range(2):
                pass
        except StepTooLongError:
            pass
        step.is_interrupted = False


def _looks(step: _Step, seen: Mapping[int, tuple[int, int]]) -> tuple[int, int]:
    """The number of a step, and how often it was looked at."""
    number, looks = seen.get(step.thread, (0, 0))
    return (step.number, looks + 1 if number == step.number else 1)


@cache
def step_limit(limit_s: float | None) -> StepLimit:
    """The one that bounds steps to this time."""
    return StepLimit(limit_s)


def _raise_in(thread: int, error: type[BaseException]) -> None:
    """Have an exception appear in a thread."""
    import ctypes  # Here, because it is seldom needed and takes long.

    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))


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
