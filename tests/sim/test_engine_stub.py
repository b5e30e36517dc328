"""The engine that other tests rely on, in a process of its own."""

from __future__ import annotations

import json
import signal
import urllib.request

from tests.sim.engine_stub import running


def ask(url: str, content: str, timeout_s: float = 10.0) -> dict[str, int]:
    """The usage of a completion."""
    body = json.dumps({"model": "stub", "max_tokens": 9, "messages": [{"role": "user", "content": content}]})
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", body.encode(), headers)
    with urllib.request.urlopen(request, timeout=timeout_s) as answer:
        usage = json.load(answer)["usage"]
    return {"prompt": usage["prompt_tokens"], "cached": usage["prompt_tokens_details"]["cached_tokens"]}


def generated(url: str) -> float:
    """The engine's own count of tokens."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10.0) as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line.split()[-1] for line in lines if line.startswith("vllm:generation_tokens_total")))


def test_engine_stub_remembers_prefixes_counts_tokens_and_can_be_wedged() -> None:
    with running(cache_tokens=1000, tokens=10, latency_ms=1) as engine:
        process, url = engine.process, engine.url.removesuffix("/v1")
        first, again, other = ask(url, "x" * 640), ask(url, "x" * 640 + "y" * 64), ask(url, "z" * 640)
        assert (first["cached"], other["cached"]) == (0, 0)
        assert 0 < again["cached"] < again["prompt"]
        assert generated(url) == 30

        process.send_signal(signal.SIGUSR1)
        engine.wait_until_wedged()
        try:
            ask(url, "x", timeout_s=0.2)
        except TimeoutError:
            assert generated(url) == 30
        else:
            raise AssertionError("a wedged engine gave a reply")
        process.send_signal(signal.SIGUSR1)
        ask(url, "x")
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
