"""A real `vllm serve` on the CPU."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.patience import LIMIT_S


@contextmanager
def serving(
    model: Path, log: Path, *, port: int | None = None, **environment: str
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Where `vllm serve` listens with a model under the name `tiny`, and its process."""
    port = port or _free_port()
    command = [
        # What `vllm serve` runs; the command itself looks for a package of the name vllm, which the CPU's build is not.
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)),
        *("--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port)),
        *("--dtype", "float32", "--enforce-eager", "--block-size", "32", "--max-num-seqs", "32"),
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


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _wait_until_it_serves(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s:
        assert process.poll() is None, log.read_text()[-4000:]
        try:
            with urllib.request.urlopen(f"{url}/models", timeout=5) as answer:
                assert json.load(answer)["data"][0]["id"] == "tiny"
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.2)
    raise AssertionError(log.read_text()[-4000:])
