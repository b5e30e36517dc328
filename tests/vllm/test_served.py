"""A real `vllm serve` in development mode, spoken to over HTTP by the backend `openai`: replies, and new weights."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

import pytest

from mac_runner.backends.openai import OpenaiConfig
from mac_runner.backends.testing import HttpBackend, OpenaiDialect, VllmWeights
from mac_runner.clock import SystemClock
from mac_runner.fleet.testing import LoopbackPorts
from mac_runner.types import FinishReason, Message, Prompt, Reply, Request, Sampling
from tests.patience import LIMIT_S, wait_for
from tests.sim.requests import request
from tests.vllm.table import CONTEXT_TOKENS, check_new_weights

SCHEMA = {"type": "object", "properties": {"act": {"enum": ["wait", "vote"]}}, "required": ["act"]}


@pytest.fixture(scope="module")
def base_url(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where `vllm serve` listens with the tiny model under the name `tiny`."""
    ports, log = LoopbackPorts(), tmp_path_factory.mktemp("served") / "log"
    (port,) = ports.take(1)
    command = [
        # What `vllm serve` runs; the command itself looks for a package of the name vllm, which the CPU's build is not.
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(tiny_model)),
        *("--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port)),
        *("--dtype", "float32", "--enforce-eager", "--block-size", "32", "--max-num-seqs", "32"),
        *("--max-model-len", str(CONTEXT_TOKENS)),
        "--enable-prompt-tokens-details",
        *("--structured-outputs-config", '{"backend": "xgrammar", "disable_any_whitespace": true}'),
    ]
    environ, url = os.environ | {"VLLM_SERVER_DEV_MODE": "1"}, f"http://127.0.0.1:{port}/v1"
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True, env=environ)

    def serves() -> bool:
        assert process.poll() is None, log.read_text()[-4000:]
        try:
            with urllib.request.urlopen(f"{url}/models", timeout=LIMIT_S) as answer:
                return bool(json.load(answer)["data"][0]["id"] == "tiny")
        except (urllib.error.URLError, ConnectionError):
            return False

    try:
        wait_for(serves, "vllm serve")
        yield url
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def ask(base_url: str, *requests: Request, endpoint: str = "chat") -> list[Reply]:
    """The replies to requests that are all sent at once."""
    config = OpenaiConfig.model_validate(
        {"model": "tiny", "base_urls": [base_url], "server": "vllm", "endpoint": endpoint}
    )

    async def program() -> list[Reply]:
        backend = HttpBackend(
            "m", OpenaiDialect(config, has_tokens=True), key=None, clock=SystemClock(), say=lambda line: None
        )
        try:
            await backend.start()
            return await asyncio.gather(*map(backend.generate, requests))
        finally:
            await backend.close()

    return asyncio.run(program())


def asked(content: str, prompt: Prompt | None = None, **settings: object) -> Request:
    sampling = {"seed": 7, "max_tokens": 24, "top_k": 50, "repetition_penalty": 1.1} | settings
    return request(content, prompt=prompt, sampling=Sampling(**sampling))  # type: ignore[arg-type]


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_server_is_told_every_setting_and_tells_every_token(base_url: str, endpoint: str) -> None:
    first, again = ask(base_url, asked("Who goes there?"), asked("Who goes there?"), endpoint=endpoint)

    assert first.text == again.text
    assert first.tokens.completion <= 24
    assert first.trace is not None
    assert len(first.trace.prompt_ids) == first.tokens.prompt
    assert len(first.trace.completion_ids) == len(first.trace.logprobs) == first.tokens.completion
    assert all(logprob <= 0 for logprob in first.trace.logprobs)


def test_server_is_held_to_schema_and_choices(base_url: str) -> None:
    messages = (Message(role="user", content="What do you do?"),)
    with_schema = asked("", Prompt(messages=messages, schema=SCHEMA), max_tokens=60)  # type: ignore[arg-type]
    with_choices = asked("", Prompt(messages=messages, choices=("<wait/>", "<sleep/>")))
    held, chosen = ask(base_url, with_schema, with_choices)

    assert json.loads(held.text)["act"] in {"wait", "vote"}
    assert chosen.text in {"<wait/>", "<sleep/>"}


def test_servers_refusal_of_a_long_prompt_is_an_overflow(base_url: str) -> None:
    (reply,) = ask(base_url, asked("day and night " * CONTEXT_TOKENS))

    assert (reply.text, reply.finish_reason) == ("", FinishReason.OVERFLOW)


def test_prefix_cache_of_the_server_is_counted(base_url: str) -> None:
    content = "The town wakes up to a cold morning. " * 40
    ask(base_url, asked(content))
    (reply,) = ask(base_url, asked(content))

    assert reply.tokens.cached in range(1, reply.tokens.prompt + 1)


# New weights: in the last test, for the others ask for the first ones.


def test_updated_server_computes_with_the_new_weights_and_replies_name_their_versions(
    base_url: str, tiny_model: Path, tmp_path: Path
) -> None:
    config = OpenaiConfig.model_validate({"model": "tiny", "base_urls": [base_url], "server": "vllm"})
    dialect, weights = OpenaiDialect(config, has_tokens=True), VllmWeights(lambda _url: None)
    backend = HttpBackend("m", dialect, key=None, weights=weights, clock=SystemClock(), say=lambda line: None)

    async def is_running() -> bool:
        with await asyncio.to_thread(urlopen, base_url.removesuffix("/v1") + "/metrics") as page:
            lines = page.read().splitlines()
        return any(line.startswith(b"vllm:num_requests_running{") and line.endswith(b" 1.0") for line in lines)

    async def program() -> None:
        try:
            await backend.start()
            assert backend.update_obstacle is None
            await check_new_weights(backend, is_running, tiny_model, tmp_path)
        finally:
            await backend.close()

    asyncio.run(program())
