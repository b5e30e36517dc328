"""vLLM on the CPU, which lives in a virtual environment of its own: a child that computes while this process waits.

It is given as many threads, as much room and as many tokens a step as the others, and Intel's OpenMP where its
environment holds it, as vLLM's own documentation advises. It runs eagerly: compiled it was no faster on models of this
size, and took a minute to start.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.nano_peers.setting import TOKENS_PER_STEP, Setting
from benchmarks.nano_peers.timing import Prompts, Run

ROOT = Path(__file__).parents[2]
_GIB = 1 << 30


class Vllm:
    """An engine in a process of its own."""

    name = "vllm"

    def __init__(self, setting: Setting, python: Path) -> None:
        # A pipe without a reader would fill up, and stop the child.
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115  Closed by `close`.
        self._child = subprocess.Popen(
            [python, "-m", "benchmarks.nano_peers.vllm_child", json.dumps(_for_child(setting))],
            cwd=ROOT,
            env=_environment(setting, python),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        try:
            self.version: str = self._read()["vllm"]
        except BaseException:
            self.close()
            raise

    def run(self, prompts: Prompts, num_new: int) -> Run:
        """On an empty prefix cache; measured by the child."""
        assert self._child.stdin is not None
        print(json.dumps({"prompts": prompts, "num_new": num_new}), file=self._child.stdin, flush=True)
        return Run.from_json(self._read())

    def close(self) -> None:
        """End the child."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.close()
        try:
            self._child.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._child.stdout.close()
        self._log.close()

    def _read(self) -> dict[str, Any]:
        """The child's next line."""
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            # The reason is printed after the pipe is closed.
            self._child.wait(timeout=60)
            self._log.seek(0)
            raise RuntimeError(f"vLLM ended; the last it said:\n{self._log.read()[-4_000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _for_child(setting: Setting) -> dict[str, object]:
    return {
        "model": str(setting.directory),
        "dtype": setting.dtype,
        "max_batch": setting.max_batch,
        "max_length": setting.max_length,
        "tokens_per_step": TOKENS_PER_STEP,
        "clock": setting.clock_name,
    }


def _environment(setting: Setting, python: Path) -> dict[str, str]:
    """As many threads as the others have, each on a core; all in one process, whose time is all there is."""
    cores = sorted(os.sched_getaffinity(0))[: setting.num_threads]
    needed = (setting.max_batch + 1) * setting.max_length * setting.kv_bytes_per_token
    ours = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "VLLM_CPU_KVCACHE_SPACE": str(1 + needed // _GIB),
        "VLLM_LOGGING_LEVEL": "WARNING",
        "OMP_NUM_THREADS": str(setting.num_threads),
    }
    libraries = python.parents[1] / "lib"
    if (openmp := libraries / "libiomp5.so").is_file():
        # The waits are what vLLM sets for its own workers.
        ours |= {"LD_PRELOAD": str(openmp), "KMP_BLOCKTIME": "5", "KMP_TPAUSE": "0"}
    return {**os.environ, **ours}
