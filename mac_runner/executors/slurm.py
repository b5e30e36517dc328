"""Workers as one Slurm job array: a script that is rendered, kept beside the logs, and given to `sbatch`."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from mac_runner.errors import ConfigError, RunDirectoryError
from mac_runner.executors.base import DONE, INTERRUPTED, QUICK_ENDS_MAX, QUICK_S, WARNING_S, Job, Terminal, check_shared
from mac_runner.printable import printable
from mac_runner.store import Disk
from mac_runner.store.machine import Machine

SCRIPT: Final = "array.sh"
_ODD: Final = re.compile(r"[^A-Za-z0-9_.-]+")


class SlurmExecutor:
    """The executor `slurm`. `sbatch_args` are flags of sbatch, such as `--partition=gpu --time=8:00:00`."""

    def __init__(self, sbatch_args: str = "", machine: Machine | None = None) -> None:
        self._sbatch_args = _split(sbatch_args)
        self._machine = machine or Machine()

    def check(self, job: Job) -> None:
        """Raise ConfigError where `sbatch` is missing, or where the compute nodes would not see the directory."""
        _sbatch()
        if not _fits_directive(str(job.directory)):
            raise ConfigError(f"{job.directory}: sbatch cannot read this name in a script; choose another with --out")
        check_shared(job, self._machine)

    def describe(self, job: Job) -> str:
        """The script."""
        return script(job, self._sbatch_args)

    def submit(self, job: Job, terminal: Terminal) -> int:
        """Write the script and submit it."""
        disk, path = Disk(), job.files / SCRIPT
        disk.make_directory(job.files)
        disk.write_atomic(path, [script(job, self._sbatch_args).encode()])
        answer = subprocess.run(  # noqa: S603 - the user's own sbatch
            [_sbatch(), "--parsable", str(path)], capture_output=True, text=True, errors="replace", check=False
        )
        if answer.returncode != 0:
            words = printable(" ".join((answer.stderr or answer.stdout).split()))
            raise RunDirectoryError(f"sbatch refused {path}: {words}; correct --sbatch-args or --gpus and submit again")
        number = answer.stdout.strip().partition(";")[0]
        terminal.say(
            f"job {printable(number)}: {job.in_words}\n"
            f"mac-run status {job.directory} shows how far they are; scancel {printable(number)} ends them"
        )
        return DONE[0]


def script(job: Job, sbatch_args: Sequence[str] = ()) -> str:
    """The array script of a job."""
    return _template().render(
        name=_ODD.sub("-", job.name),
        last=job.workers - 1,
        gpus=job.gpus,
        log=shlex.quote(str(replace(job, directory=Path(str(job.directory).replace("%", "%%"))).log("%a"))),
        sbatch_args=shlex.join(sbatch_args),
        warning_s=WARNING_S,
        working_directory=shlex.quote(str(job.working_directory)),
        script=shlex.quote(str(job.files / SCRIPT)),
        command=shlex.join(job.argv),
        interrupted=INTERRUPTED,
        quick_s=round(QUICK_S),
        quick_ends_max=QUICK_ENDS_MAX,
    )


@cache
def _template() -> Template:
    loader = PackageLoader("mac_runner.executors", "templates")
    return Environment(loader=loader, undefined=StrictUndefined, keep_trailing_newline=True).get_template(  # noqa: S701
        f"{SCRIPT}.j2"
    )


def _sbatch() -> str:
    if (found := shutil.which("sbatch")) is None:
        raise ConfigError(
            "sbatch is not on the PATH: submit from a login node of the cluster, or choose --executor local"
        )
    return found


def _split(text: str) -> list[str]:
    """The flags for sbatch. Raises ConfigError for quotes that do not end, and for what would not fit on one line."""
    try:
        words = shlex.split(text)
    except ValueError as fault:
        raise ConfigError(f"--sbatch-args {text!r}: {fault}; quote it as for a shell") from fault
    if not all(map(_fits_directive, words)):
        raise ConfigError(f"--sbatch-args {text!r}: leave backslashes and control characters out")
    return words


def _fits_directive(word: str) -> bool:
    """Whether sbatch reads a word as a shell does; it takes backslashes in quotes for escapes."""
    return word.isprintable() and "\\" not in word
