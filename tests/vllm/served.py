"""A real `vllm serve` on the CPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mac_runner.fleet.testing import LoopbackPorts
from tests.patience import LIMIT_S, wait_for
from tests.vllm.table import CONTEXT_TOKENS


@contextmanager
def serving(model: Path, log: Path, **environment: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Where `vllm serve` listens with a model under the name `tiny`, and its process."""
    (port,) = LoopbackPorts().take(1)
    command = [
        # What `vllm serve` runs; the command itself looks for a package of the name vllm, which the CPU's build is not.
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)),
        *("--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port)),
        *("--dtype", "float32", "--enforce-eager", "--block-size", "32", "--max-num-seqs", "32"),
        *("--max-model-len", str(CONTEXT_TOKENS)),
        "--enable-prompt-tokens-details",
        *("--structured-outputs-config", '{"backend": "xgrammar", "disable_any_whitespace": true}'),
    ]
    with log.open("w") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True, env=os.environ | environment
        )
    try:
        _wait_until_it_serves(process, f"http://127.0.0.1:{port}/v1", log)
        yield f"http://127.0.0.1:{port}/v1", process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_until_it_serves(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    def serves() -> bool:
        assert process.poll() is None, log.read_text()[-4000:]
        try:
            with urllib.request.urlopen(f"{url}/models", timeout=LIMIT_S) as answer:
                return bool(json.load(answer)["data"][0]["id"] == "tiny")
        except (urllib.error.URLError, ConnectionError):
            return False

    wait_for(serves, "vllm serve")
