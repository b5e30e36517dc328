"""The engine that other tests rely on, in a process of its own."""

from __future__ import annotations

import json
import signal
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.patience import LIMIT_S, wait_for
from tests.sim.engine_stub import running


def ask(url: str, content: str) -> dict[str, int]:
    """The usage of a completion."""
    body = json.dumps({"model": "stub", "max_tokens": 9, "messages": [{"role": "user", "content": content}]})
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", body.encode(), headers)
    with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
        usage = json.load(answer)["usage"]
    return {"prompt": usage["prompt_tokens"], "cached": usage["prompt_tokens_details"]["cached_tokens"]}


def counter(url: str, name: str) -> float:
    """What the engine itself counts."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=LIMIT_S) as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line.split()[-1] for line in lines if line.startswith(f"vllm:{name}")))


@pytest.mark.ci
def test_engine_stub_remembers_prefixes_counts_tokens_and_can_be_wedged() -> None:
    with ThreadPoolExecutor(1) as thread, running(cache_tokens=1000, tokens=10, latency_ms=1) as engine:
        process, url = engine.process, engine.url.removesuffix("/v1")
        first, again, other = ask(url, "x" * 640), ask(url, "x" * 640 + "y" * 64), ask(url, "z" * 640)
        assert (first["cached"], other["cached"]) == (0, 0)
        assert 0 < again["cached"] < again["prompt"]
        assert counter(url, "generation_tokens_total") == 30

        process.send_signal(signal.SIGUSR1)
        engine.wait_until_wedged()
        asking = thread.submit(ask, url, "x")
        wait_for(lambda: counter(url, "num_requests_running") == 1 or asking.done(), "a request in a slot")
        for _ in range(20):  # Its reply would take one millisecond.
            assert counter(url, "generation_tokens_total") == 30
        assert not asking.done(), "a wedged engine gave a reply"
        process.send_signal(signal.SIGUSR1)
        asking.result()
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0
