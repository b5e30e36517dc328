"""The logs of vLLM's processes, and the program that starts these processes.

vLLM starts its processes with `multiprocessing`, which uses one program for the whole process. While there are engines,
the thread of each uses another one: a small script that sends the output to the engine's log, so that no line breaks
into the status view, and continues as `child`. The processes they start in turn come the same way. vLLM's lines from
this process go to a log of their own beside the others.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import shlex
import shutil
import sys
import tempfile
import threading
from logging.config import dictConfig
from multiprocessing import spawn
from pathlib import Path
from typing import Final

from mac_runner.backends.redaction import Redactor
from mac_runner.backends.vllm import child
from mac_runner.errors import ConfigError
from mac_runner.secrecy import secrets_in
from mac_runner.types import JsonObject

_FORMAT: Final = "%(levelname)s %(asctime)s %(process)d %(name)s %(message)s"
_LEVEL_VARIABLE: Final = "VLLM_LOGGING_LEVEL"
_TAIL_BYTES: Final = 1 << 18
"""How much of a log is searched for an error: a traceback of many processes, and what they printed meanwhile."""
_SOCKETS_BYTES_MAX: Final = 60
"""The longest path of a directory for sockets: with a UUID behind it, it has to stay below 108 bytes."""
_RECORD: Final = re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL) \d{4}-\d\d-\d\d [\d:,]+ \d+ [\w.]+ (.*)")
RAISED: Final = re.compile(r"[\w.]*(?:Error|Exception|Exit|Interrupt|Timeout)(?::|$)")
"""The last line of a traceback."""
FOLLOWING: Final = re.compile(r"root cause|stack trace|Broken ?pipe|EngineDeadError", re.IGNORECASE)
"""What processes say when another error brought them down; that one is in the log already."""


class _Thread(threading.local):
    """The program that starts the processes of this thread; None for `multiprocessing`'s own."""

    program: bytes | None = None


_THREAD: Final = _Thread()
_USUAL: Final = spawn.get_executable


def _executable() -> bytes | str:
    return _USUAL() if _THREAD.program is None else _THREAD.program


class EngineLog:
    """The output of the processes of one engine, in the file `path`."""

    def __init__(self, path: Path, program: Path) -> None:
        self.path = path
        self._program = program

    def adopt(self) -> None:
        """Send the output of processes that this thread starts from now on here."""
        _THREAD.program = os.fsencode(self._program)

    def is_in_use(self) -> bool:
        """Whether a process of the engine is left."""
        try:
            with self.path.open("r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as fault:  # Some file systems have no locks.
            return isinstance(fault, BlockingIOError)
        return False

    def hint(self) -> str:
        """The last error in the log and the path of the log, for the end of an error message."""
        place = f"what it printed is in {self.path}"
        try:
            with self.path.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
                cause = cause_in(file.read().decode("utf-8", "replace"))
        except OSError:
            return place
        return place if cause is None else f"its last error was {cause}; {place}"


class ProcessLogs:
    """The logs of all engines of this process, in a temporary directory that is kept only if an engine broke."""

    def __init__(self) -> None:
        self._directory: Path | None = None
        self._holders = 0
        self._count = 0
        self._is_kept = False
        self._variables: frozenset[str] = frozenset()

    def acquire(self, name: str) -> EngineLog:
        """The log of the engine of model `name`, which is about to start.

        Raises ConfigError for an unknown level of logging, and OSError from the disk; nothing is acquired then.
        """
        level = os.environ.get(_LEVEL_VARIABLE, "INFO").upper()  # As vLLM reads it.
        if level not in (levels := logging.getLevelNamesMapping()):
            known = ", ".join(levels)
            raise ConfigError(f"the environment's {_LEVEL_VARIABLE} is {level!r}; set one of {known}, or none")
        self._holders += 1
        self._count += 1
        try:
            if self._directory is None:
                self._directory, self._is_kept = Path(tempfile.mkdtemp(prefix="mac_runner-vllm-")), False
                self._variables = _set_up(self._directory, level)
            return _engine_log(self._directory, f"{self._count}-{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}")
        except OSError:
            self.release(is_kept=False)
            raise

    def release(self, *, is_kept: bool) -> None:
        """After an engine has ended; `is_kept` when a user may want to read its log."""
        self._is_kept |= is_kept
        self._holders -= 1
        if self._holders == 0 and self._directory is not None:
            _clear(self._variables)
            self._variables = frozenset()
            if not self._is_kept:
                shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None


PROCESS_LOGS: Final = ProcessLogs()


def _set_up(directory: Path, level: str) -> frozenset[str]:
    """Set up logging and the environment. Returns the variables it has set. Raises OSError before it sets one."""
    logging_file, log = directory / "logging.json", directory / "mac_runner.log"
    logging_file.write_text(json.dumps(_logging(level)), encoding="utf-8")
    log.touch()  # A full disk shows here.
    # The module calls this whenever it starts a process. What `set_executable` sets is for all threads.
    vars(spawn).update(get_executable=_executable)
    variables = {"VLLM_WORKER_MULTIPROC_METHOD": "spawn", child.LOG_VARIABLE: str(log)}
    if os.environ.get("VLLM_CONFIGURE_LOGGING", "1") != "0":  # Otherwise it takes no file.
        variables["VLLM_LOGGING_CONFIG_PATH"] = str(logging_file)
    if len(os.fsencode(directory)) <= _SOCKETS_BYTES_MAX:
        variables["VLLM_RPC_BASE_PATH"] = str(directory)  # vLLM does not remove its sockets.
    ours = frozenset(variables.keys() - os.environ.keys())  # The user's own stay.
    os.environ.update({name: variables[name] for name in ours})
    dictConfig(_logging(level))  # vLLM reads the file only after its first lines.
    return ours


def _engine_log(directory: Path, name: str) -> EngineLog:
    """An engine's own log, and the program that starts its processes."""
    log = directory / f"{name}.log"
    log.touch()
    program = directory / f"{name}-python"
    first = shlex.join([sys.executable, "-S", "-E", child.__file__, str(program)])
    setting = f"export {child.LOG_VARIABLE}={shlex.quote(str(log))}"
    redirected = f'exec {first} "$PPID" {shlex.quote(sys.executable)} "$@" >>"${child.LOG_VARIABLE}" 2>&1'
    program.write_text(f"#!/bin/sh\n{setting}\n{redirected}\n", encoding="utf-8")
    program.chmod(0o700)
    return EngineLog(log, program)


def _clear(variables: frozenset[str]) -> None:
    vars(spawn).update(get_executable=_USUAL)
    for name in variables:
        os.environ.pop(name, None)
    logger = logging.getLogger("vllm")
    for handler in tuple(logger.handlers):
        logger.removeHandler(handler)
        handler.close()


def _logging(level: str) -> JsonObject:
    """The same for every process: an engine's configuration passes the file on to those that it starts."""
    handler: JsonObject = {"()": f"{child.__name__}.{child.log_handler.__name__}", "formatter": "line"}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"format": _FORMAT}},
        "handlers": {"log": handler},
        "loggers": {"vllm": {"handlers": ["log"], "level": level, "propagate": False}},
    }


def cause_in(log: str) -> str | None:
    """The last error in an engine's log that is not a consequence of another one; None when there is none.

    From a traceback it is the line with the exception. Without a traceback it is the text of the error.
    """
    raised: list[str] = []
    messages: list[str] = []
    is_error = False
    for line in log.splitlines():
        if record := _RECORD.match(line):
            is_error = record[1] in {"ERROR", "CRITICAL"}
            messages += [record[2]] if is_error else []
        elif is_error and RAISED.match(line):
            raised.append(line)
            messages.clear()
    found = (*reversed(raised), *reversed(messages))
    redactor = Redactor(*secrets_in(os.environ))
    return next((redactor.quoted(error) for error in found if not FOLLOWING.search(error)), None)
