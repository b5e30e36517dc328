"""Where vLLM's processes live: what they print, which signals reach them, and when they end.

vLLM starts its processes with `multiprocessing`, which has one program to start them with for the whole process. While
there are engines it is another one on the thread of each: a small program which sends their output to the engine's log,
so that no line of theirs breaks into the status view, and hands over to `child`; the processes they start in turn come
the same way. vLLM's lines from this process go to a log of their own beside them.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterable
from logging.config import dictConfig
from multiprocessing import spawn
from pathlib import Path
from typing import Final

from mac_runner.backends.vllm import child
from mac_runner.backends.vllm.logs import LOG_VARIABLE, log_handler
from mac_runner.backends.vllm.telling import cause_in
from mac_runner.errors import ConfigError
from mac_runner.types import JsonObject

_FORMAT: Final = "%(levelname)s %(asctime)s %(process)d %(name)s %(message)s"
_LEVEL_VARIABLE: Final = "VLLM_LOGGING_LEVEL"
_TAIL_BYTES: Final = 1 << 18
"""How much of a log is looked through for an error: a traceback of many processes, and what they said meanwhile."""
_SOCKETS_BYTES_MAX: Final = 60
"""How long the path of a directory for sockets may be: with a UUID behind it, it has to stay below 108 bytes."""


class _Thread(threading.local):
    """What the processes of this thread are started with; None for what `multiprocessing` says."""

    program: bytes | None = None


_THREAD: Final = _Thread()
_USUAL: Final = spawn.get_executable


def _executable() -> bytes | str:
    return _USUAL() if _THREAD.program is None else _THREAD.program


class EngineLog:
    """What the processes of one engine print, in the file `path`."""

    def __init__(self, path: Path, program: Path) -> None:
        self.path = path
        self._program = program

    def adopt(self) -> None:
        """The processes that this thread starts from now on print here."""
        _THREAD.program = os.fsencode(self._program)

    def told(self) -> str:
        """The last error in the log that tells something, and where to read the rest, to stand behind an error."""
        place = f"what it printed is in {self.path}"
        try:
            cause = cause_in(self._tail())
        except OSError:
            return place
        return place if cause is None else f"its last error was {cause}; {place}"

    def _tail(self) -> str:
        with self.path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return file.read().decode("utf-8", "replace")


class Housing:
    """Shared by all engines of this process: a temporary directory, kept after the last only if one of them broke."""

    def __init__(self) -> None:
        self._directory: Path | None = None
        self._tenants = 0
        self._rooms = 0
        self._is_kept = False
        self._variables: frozenset[str] = frozenset()

    def enter(self, name: str) -> EngineLog:
        """Before the engine of model `name` starts: have everything ready. Returns its log.

        Raises ConfigError for a level of logging that there is not, and OSError from the disk; it has then not entered.
        """
        level = _level()
        self._tenants += 1
        self._rooms += 1
        try:
            if self._directory is None:
                self._directory, self._is_kept = Path(tempfile.mkdtemp(prefix="mac_runner-vllm-")), False
                self._variables = _furnish(self._directory, level)
            return _room(self._directory, f"{self._rooms}-{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}")
        except OSError:
            self.leave(is_kept=False)
            raise

    def leave(self, *, is_kept: bool) -> None:
        """After an engine has ended; `is_kept` when somebody will want to read the log."""
        self._is_kept |= is_kept
        self._tenants -= 1
        if self._tenants == 0 and self._directory is not None:
            _clear(self._variables)
            self._variables = frozenset()
            if not self._is_kept:
                shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None


HOUSING: Final = Housing()


def _level() -> str:
    """How much vLLM says: its own setting, in any case of letters."""
    level = os.environ.get(_LEVEL_VARIABLE, "INFO").upper()
    if level not in (levels := logging.getLevelNamesMapping()):
        raise ConfigError(f"the environment's {_LEVEL_VARIABLE} is {level!r}; set one of {', '.join(levels)}, or none")
    return level


def _furnish(directory: Path, level: str) -> frozenset[str]:
    """Returns the variables it has set in the environment. Raises OSError, before it has set one."""
    logging_file, log = directory / "logging.json", directory / "mac_runner.log"
    logging_file.write_text(json.dumps(_logging(level)), encoding="utf-8")
    log.touch()  # Where the disk has no room for it, it is found out here.
    # The module asks itself this whenever it starts a process. What `set_executable` sets is for all threads.
    vars(spawn).update(get_executable=_executable)
    variables = {"VLLM_WORKER_MULTIPROC_METHOD": "spawn", LOG_VARIABLE: str(log)}
    if os.environ.get("VLLM_CONFIGURE_LOGGING", "1") != "0":  # It takes no file where it is told not to.
        variables["VLLM_LOGGING_CONFIG_PATH"] = str(logging_file)
    if len(os.fsencode(directory)) <= _SOCKETS_BYTES_MAX:
        variables["VLLM_RPC_BASE_PATH"] = str(directory)  # vLLM leaves its sockets lying about.
    ours = frozenset(variables.keys() - os.environ.keys())  # What the user has set stands.
    os.environ.update({name: variables[name] for name in ours})
    dictConfig(_logging(level))  # vLLM does so with the file, but not before it has begun to talk.
    return ours


def _room(directory: Path, name: str) -> EngineLog:
    """An engine's own log, and the program that starts its processes."""
    log = directory / f"{name}.log"
    log.touch()
    program = directory / f"{name}-python"
    first = shlex.join([sys.executable, "-S", "-E", child.__file__, str(program)])
    setting = f"export {LOG_VARIABLE}={shlex.quote(str(log))}"
    redirected = f'exec {first} "$PPID" {shlex.quote(sys.executable)} "$@" >>"${LOG_VARIABLE}" 2>&1'
    program.write_text(f"#!/bin/sh\n{setting}\n{redirected}\n", encoding="utf-8")
    program.chmod(0o700)
    return EngineLog(log, program)


def _clear(variables: Iterable[str]) -> None:
    vars(spawn).update(get_executable=_USUAL)
    for name in variables:
        os.environ.pop(name, None)
    logger = logging.getLogger("vllm")
    for handler in tuple(logger.handlers):
        logger.removeHandler(handler)
        handler.close()


def _logging(level: str) -> JsonObject:
    """The same for every process: an engine's configuration carries the file into those that it starts."""
    handler: JsonObject = {"()": f"{log_handler.__module__}.{log_handler.__name__}", "formatter": "line"}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"format": _FORMAT}},
        "handlers": {"log": handler},
        "loggers": {"vllm": {"handlers": ["log"], "level": level, "propagate": False}},
    }
