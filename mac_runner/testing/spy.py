"""What a call reads from outside: clock, chance, files, network, processes. Found while it runs, with the place.

Only calls that the watched code makes itself count, directly or through a thin module of the standard library such as
`random` or `pathlib`. What a library does inside does not count; playing in two processes shows whether it matters.
"""

from __future__ import annotations

import os
import random
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple

_CHANCE: Final = "draws from a source of chance that all share: use table.random(purpose), or a Random from task.seed"
_CLOCK: Final = "reads the clock: a replay runs at another time; leave it out"
_FILES: Final = "opens a file: read it when the module is imported, or have a setting of the type File name it"
_OUTSIDE: Final = "reaches out of the process: a replay would do so again; leave it out"
_THREAD: Final = "starts a thread: nothing fixes the order of what it does; leave it out"
_TERMINAL: Final = "waits for a terminal: a run has none; ask an agent"

_FLAWS: Final = {
    "time": dict.fromkeys(
        (
            *("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time"),
            *("sleep", "localtime", "gmtime", "ctime"),
        ),
        _CLOCK,
    ),
    "posix": dict.fromkeys(("urandom", "getrandom"), _CHANCE)
    | dict.fromkeys(("open", "remove", "unlink", "rename", "replace", "mkdir", "rmdir", "listdir", "scandir"), _FILES)
    | dict.fromkeys(("system", "fork", "posix_spawn", "execv", "kill"), _OUTSIDE),
    "_io": {"open": _FILES},
    "io": {"open": _FILES},
    "_posixsubprocess": {"fork_exec": _OUTSIDE},
    "_socket": {"getaddrinfo": _OUTSIDE},
    "_thread": {"start_new_thread": _THREAD, "start_joinable_thread": _THREAD},
    "builtins": {"input": _TERMINAL},
}
_THIN: Final = frozenset(
    {"random", "uuid", "secrets", "pathlib", "datetime", "_pydatetime", "tempfile", "socket", "subprocess", "threading"}
    | {"os", "shutil", "urllib", "http", "_local", "__init__"}
)
_LIBRARIES: Final = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_SHARED: Final = random.Random.__init__.__code__
_instance: Final[object] = random.random.__self__  # type: ignore[attr-defined]


class Use(NamedTuple):
    """One use of something outside."""

    what: str
    """The call, such as `time.time`."""
    flaw: str
    """Why it is one, and what to do."""
    where: str
    """File and line of the code that did it."""


@contextmanager
def uses(is_watched: Callable[[str], bool]) -> Iterator[list[Use]]:
    """The uses of what is outside by the code in files that are watched, while the block runs."""
    found: dict[str, Use] = {}

    def note(frame: FrameType, event: str, called: object) -> None:
        if event == "c_call":
            what, flaw = _use(called)
            caller: FrameType | None = frame
        elif event == "call" and frame.f_code is _SHARED and frame.f_locals.get("x") is None:
            what, flaw, caller = "random.Random()", _CHANCE, frame.f_back
        else:
            return
        if flaw and (place := _place(caller, is_watched)):
            found.setdefault(place, Use(what, flaw, place))

    before = sys.getprofile()
    gathered: list[Use] = []
    sys.setprofile(note)
    try:
        yield gathered
    finally:
        sys.setprofile(before)
        gathered.extend(found.values())


def own_files(path: Path) -> Callable[[str], bool]:
    """Whether a file belongs to the code at `path`: it is in the same folder or below, and in no other library."""
    folder = str(path if path.is_dir() else path.parent) + os.sep
    is_library = folder.startswith(_LIBRARIES)
    return lambda filename: filename.startswith(folder) and (is_library or not filename.startswith(_LIBRARIES))


def _use(called: object) -> tuple[str, str]:
    """The name of a built-in function and what is wrong with calling it; empty for most."""
    name = getattr(called, "__name__", "")
    owner = getattr(called, "__self__", None)
    if owner is _instance:
        return f"random.{name}", "" if name in ("getstate", "setstate") else _CHANCE
    if isinstance(owner, type) and name in ("now", "utcnow", "today") and owner.__module__ == "datetime":
        return f"{owner.__name__}.{name}", _CLOCK
    if name in ("connect", "connect_ex", "sendto", "bind") and type(owner).__module__ in ("socket", "_socket"):
        return f"socket.{name}", _OUTSIDE
    module = getattr(called, "__module__", None) or ""
    return f"{module.removeprefix('_')}.{name}", _FLAWS.get(module, {}).get(name, "")


def _place(frame: FrameType | None, is_watched: Callable[[str], bool]) -> str:
    """The watched line that made a call, past thin modules of the standard library; empty where other code did."""
    while frame is not None:
        filename = frame.f_code.co_filename
        if is_watched(filename):
            return f"{filename}:{frame.f_lineno}"
        if not (filename.startswith(_LIBRARIES) and (Path(filename).stem in _THIN or "urllib" in filename)):
            return ""
        frame = frame.f_back
    return ""
