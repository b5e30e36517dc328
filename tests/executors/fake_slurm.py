"""A Slurm of one machine: `sbatch` and `scontrol` on the PATH, and the array's tasks as real processes.

The programs only write down what was asked: a script given to `sbatch`, a task given to `scontrol requeue`. The test
plays the scheduler: it starts tasks, lets time limits pass, cancels, kills, and starts again what was queued again.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.patience import LIMIT_S

JOB = 4242
_KNOWN = {
    *("--job-name", "--array", "--nodes", "--ntasks", "--gres", "--output", "--open-mode", "--requeue", "--signal"),
    *("--partition", "--time", "--comment"),
}
_PROGRAM = """#!{python} -S
import os, sys
from pathlib import Path
asked = Path({asked!r})
if sys.argv[0].endswith("sbatch"):
    if (asked / "refusal").exists():
        sys.exit((asked / "refusal").read_text())
    assert sys.argv[1] == "--parsable", sys.argv
    (asked / "script").write_text(sys.argv[2])
    print("{job};cluster")
else:
    assert sys.argv[1] == "requeue", sys.argv
    new = asked / f"new-{{os.getpid()}}"
    new.write_text(sys.argv[2])
    new.rename(asked / f"requeue-{{os.getpid()}}")
"""


@dataclass
class FakeSlurm:
    """The cluster. Directives are read as sbatch does: shell-like quotes, `%a` and `%%` in file names."""

    path: Path
    tasks: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    restarts: Counter[int] = field(default_factory=Counter)

    def install(self) -> str:
        """Write the programs. Returns their directory, for the PATH."""
        programs = self.path / "bin"
        programs.mkdir(parents=True)
        for name in ("sbatch", "scontrol"):
            program = programs / name
            program.write_text(_PROGRAM.format(python=sys.executable, asked=str(self.path), job=JOB))
            program.chmod(0o755)
        return str(programs)

    @property
    def script(self) -> Path:
        return Path((self.path / "script").read_text())

    @property
    def directives(self) -> dict[str, str]:
        """The flags of the script."""
        found: dict[str, str] = {}
        for line in self.script.read_text().splitlines():
            if line.startswith("#SBATCH "):
                for word in shlex.split(line)[1:]:
                    name, _, value = word.partition("=")
                    assert name in _KNOWN, name
                    found[name] = value
        return found

    def start_all(self) -> None:
        first, last = map(int, self.directives["--array"].split("-"))
        for number in range(first, last + 1):
            self.start(number)

    def start(self, number: int) -> None:
        """Start a task, or start it again."""
        log = re.sub("%[a%]", lambda mark: str(number) if mark[0] == "%a" else "%", self.directives["--output"])
        with open(log, "ab" if self.directives["--open-mode"] == "append" else "wb") as output:
            self.tasks[number] = subprocess.Popen(
                ["bash", str(self.script)],
                cwd="/",
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={
                    **os.environ,
                    "SLURM_ARRAY_JOB_ID": str(JOB),
                    "SLURM_ARRAY_TASK_ID": str(number),
                    "SLURM_JOB_ID": str(JOB + 1 + number),
                    "SLURM_RESTART_COUNT": str(self.restarts[number]),
                },
            )

    def pass_time_limit(self, number: int) -> None:
        """Warn a task as `--signal` says: the batch shell alone."""
        name = re.fullmatch(r"B:(\w+)@\d+", self.directives["--signal"])
        assert name is not None
        os.kill(self.tasks[number].pid, getattr(signal, f"SIG{name[1]}"))

    def cancel(self, number: int) -> None:
        """What `scancel` sends: SIGTERM to every process of the task."""
        os.killpg(self.tasks[number].pid, signal.SIGTERM)

    def lose_node(self, number: int) -> None:
        """Kill every process of a task. Slurm queues it again by itself, as `--requeue` asks."""
        assert "--requeue" in self.directives
        os.killpg(self.tasks[number].pid, signal.SIGKILL)
        self.tasks[number].wait()
        (self.path / f"requeue-node-{number}-{self.restarts[number]}").write_text(f"{JOB}_{number}")

    def wait(self, number: int) -> int:
        """The end of a task."""
        return self.tasks[number].wait(LIMIT_S)

    def requeued(self) -> list[int]:
        """The tasks queued again since the last look."""
        found = []
        for path in sorted(self.path.glob("requeue-*")):
            job, _, number = path.read_text().partition("_")
            assert int(job) == JOB
            path.unlink()
            self.restarts[int(number)] += 1
            found.append(int(number))
        return sorted(found)

    def play(self) -> dict[int, int]:
        """Wait for all tasks, starting again those that are queued again. Returns the exit code of each."""
        codes: dict[int, int] = {}
        waiting = [*self.tasks]
        while waiting:
            for number in waiting:
                codes[number] = self.wait(number)
            waiting = self.requeued()
            for number in waiting:
                self.start(number)
        return codes

    def close(self) -> None:
        """Leave no process."""
        for task in self.tasks.values():
            if task.poll() is None:
                os.killpg(task.pid, signal.SIGKILL)
                task.wait()
