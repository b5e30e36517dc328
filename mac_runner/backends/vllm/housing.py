"""Where vLLM's processes live: what they print, which signals reach them, and when they end.

vLLM starts its processes with `multiprocessing`, which has one program to start them with for the whole process. That
setting points to a small program here, which sends their output to a log, so that no line of theirs breaks into the
status view, and hands over to `child`; the processes they start in turn come the same way. vLLM's lines from this
process go to the same log.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterable
from logging.config import dictConfig
from pathlib import Path
from typing import Final

from mac_runner.backends.vllm import child
from mac_runner.types import JsonObject

_FORMAT: Final = "%(levelname)s %(asctime)s %(process)d %(name)s %(message)s"


class Housing:
    """Shared by all engines of this process: a temporary directory, kept after the last only if one of them broke."""

    def __init__(self) -> None:
        self._directory: Path | None = None
        self._tenants = 0
        self._is_kept = False
        self._variables: frozenset[str] = frozenset()

    def enter(self) -> Path:
        """Before an engine starts: have everything ready. Returns the log."""
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="mac_runner-vllm-"))
            self._variables = _furnish(self._directory)
            self._is_kept = False
        self._tenants += 1
        return _log(self._directory)

    def leave(self, *, is_kept: bool) -> None:
        """After an engine has ended; `is_kept` when somebody will want to read the log."""
        self._is_kept |= is_kept
        self._tenants -= 1
        if self._tenants == 0 and self._directory is not None:
            _clear(self._variables)
            if not self._is_kept:
                shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None


HOUSING: Final = Housing()


def _furnish(directory: Path) -> frozenset[str]:
    """Returns the variables it has set in the environment."""
    log = _log(directory)
    program = directory / "python"
    command = shlex.join([sys.executable, "-S", "-E", child.__file__, str(program), sys.executable])
    program.write_text(f'#!/bin/sh\nexec {command} "$@" >>{shlex.quote(str(log))} 2>&1\n', encoding="utf-8")
    program.chmod(0o700)
    multiprocessing.set_executable(str(program))
    logging_file = directory / "logging.json"
    logging_file.write_text(json.dumps(_logging(log)), encoding="utf-8")
    dictConfig(_logging(log))  # vLLM does so with the file, but not before it has begun to talk.
    settings = {"VLLM_WORKER_MULTIPROC_METHOD": "spawn", "VLLM_LOGGING_CONFIG_PATH": str(logging_file)}
    ours = frozenset(settings.keys() - os.environ.keys())  # What the user has set stands.
    os.environ.update({name: settings[name] for name in ours})
    return ours


def _clear(variables: Iterable[str]) -> None:
    multiprocessing.set_executable(sys.executable)
    for name in variables:
        os.environ.pop(name, None)
    logger = logging.getLogger("vllm")
    for handler in tuple(logger.handlers):
        logger.removeHandler(handler)
        handler.close()


def _log(directory: Path) -> Path:
    return directory / "engine.log"


def _logging(log: Path) -> JsonObject:
    handler: JsonObject = {"class": "logging.FileHandler", "filename": str(log), "formatter": "line"}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"format": _FORMAT}},
        "handlers": {"log": handler},
        "loggers": {
            "vllm": {"handlers": ["log"], "level": os.environ.get("VLLM_LOGGING_LEVEL", "INFO"), "propagate": False}
        },
    }
