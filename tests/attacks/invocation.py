"""`mac-run` in this process, watched: its exit code, its words, its memory, and an end when it takes too long."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import BytesIO, TextIOWrapper
from itertools import product
from pathlib import Path
from types import FrameType
from typing import Final

import pytest

from mac_runner.cli import main
from mac_runner.cli.process import Exit
from tests.patience import LIMIT_S

DEADLINE_S: Final = 30.0
"""In seconds of the processor: by the clock, a busy machine may need any time."""
GROWTH_MIB_MAX: Final = 256.0
ORDERLY: Final = frozenset(Exit) - {Exit.BUG}
_STATUS: Final = Path("/proc/self/status")
_KIB = 1024


class OverdueError(BaseException):
    """It ran past its deadline. No `except Exception` may take it for anything else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command line ended. `grew_mib` is how far memory rose above where it was."""

    args: tuple[str, ...]
    code: int
    out: str
    err: str
    grew_mib: float

    def __str__(self) -> str:
        return f"mac-run {' '.join(self.args)}: {self.code}: {self.err[-1500:]}{self.out[-300:]}"


def mac_run(
    *args: str, directory: Path, environ: Mapping[str, str] | None = None, deadline_s: float = DEADLINE_S
) -> Ended:
    """Run a command line to its end in `directory`. Raises AssertionError where it does not end as any run must."""
    out, err = (TextIOWrapper(BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(directory)
        patch.setattr(sys, "argv", ["mac-run", *args])
        for name, value in (environ or {}).items():
            patch.setenv(name, value)
        before_kib = _peak_reset_kib()
        code: object = None
        try:
            with _deadline(deadline_s):
                main()
        except SystemExit as ending:
            code = ending.code
        except OverdueError:
            raise AssertionError(
                f"mac-run {' '.join(args)}: no end within {deadline_s:g} CPU seconds, or {LIMIT_S:g} s: {_text(err)}"
            ) from None
    grew_mib = (_kib("VmHWM") - before_kib) / _KIB
    ended = Ended(
        args=args, code=code if isinstance(code, int) else 99, out=_text(out), err=_text(err), grew_mib=grew_mib
    )
    assert ended.code in ORDERLY, ended
    assert "Traceback" not in ended.out + ended.err, ended
    assert grew_mib < GROWTH_MIB_MAX, f"{grew_mib:.0f} MiB more: {ended}"
    return ended


@contextmanager
def shortened(bounds: Mapping[str, float]) -> Iterator[None]:
    """Other values for names of `limits`, wherever they were imported."""
    modules = [module for name, module in sys.modules.items() if name.startswith("mac_runner.")]
    with pytest.MonkeyPatch.context() as patch:
        for module, name in product(modules, bounds):
            if hasattr(module, name):
                patch.setattr(module, name, bounds[name])
        yield


@contextmanager
def _deadline(deadline_s: float) -> Iterator[None]:
    def end(_number: int, _frame: FrameType | None) -> None:
        raise OverdueError

    timers = {signal.SIGPROF: (signal.ITIMER_PROF, deadline_s), signal.SIGALRM: (signal.ITIMER_REAL, LIMIT_S)}
    former = {number: signal.signal(number, end) for number in timers}
    for timer, left_s in timers.values():
        signal.setitimer(timer, left_s, 2.0)
    try:
        yield
    finally:
        for number, (timer, _) in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(number, former[number])


def _text(stream: TextIOWrapper) -> str:
    buffer = stream.buffer
    assert isinstance(buffer, BytesIO)
    return buffer.getvalue().decode("utf-8", "surrogatepass")


def _peak_reset_kib() -> int:
    """What this process takes now, from which its peak is counted anew."""
    reset = Path("/proc/self/clear_refs")
    if reset.exists():
        reset.write_text("5")
    return _kib("VmHWM")


def _kib(name: str) -> int:
    """A figure of this process, as the kernel has it; 0 where it tells of none."""
    if not _STATUS.exists():
        return 0
    return next((int(line.split()[1]) for line in _STATUS.read_text().splitlines() if line.startswith(name)), 0)
