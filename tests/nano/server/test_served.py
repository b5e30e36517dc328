"""The server on real sockets: streams, clients that leave or send garbage, a full queue, and the owner's paths."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from threading import current_thread

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file

from mac_runner.nano import EngineStats, Tokenizer
from mac_runner.nano.server import bodies
from mac_runner.nano.testing import BODY_BYTES_AT_ONCE_MAX, Parsed, parse_body
from tests.patience import LIMIT_S
from tests.sim.held_steps import HeldSteps
from tests.sim.nano_model import write_other_weights
from tests.sim.nano_server import MODEL, Served, served

KEY = {"Authorization": "Bearer secret"}
LONG = {"model": MODEL, "prompt": "hi", "max_tokens": 8000, "ignore_eos": True, "seed": 1}
SHORT = {**LONG, "max_tokens": 2}


def play(
    model: Path,
    scene: Callable[[Served, httpx.AsyncClient], Awaitable[None]],
    *,
    max_batch_size: int = 16,
    max_waiting: int = 64,
    max_model_len: int = 8192,
    admin_key: str | None = "secret",
) -> None:
    async def on_stage() -> None:
        async with (
            asyncio.timeout(LIMIT_S),
            served(
                model,
                admin_key=admin_key,
                max_batch_size=max_batch_size,
                max_waiting=max_waiting,
                max_model_len=max_model_len,
            ) as server,
            httpx.AsyncClient(base_url=server.url, timeout=LIMIT_S) as client,
        ):
            await scene(server, client)

    asyncio.run(on_stage())


def test_stream_and_whole_answer_say_the_same(model: Path) -> None:
    async def scene(_: Served, client: httpx.AsyncClient) -> None:
        body = {**LONG, "max_tokens": 12, "n": 2}
        whole = (await client.post("/v1/completions", json=body)).json()
        stream = await client.post("/v1/completions", json={**body, "stream": True})

        events = stream.text.strip().split("\n\n")
        chunks = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events[:-1]]
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert events[-1] == "data: [DONE]"
        for index in range(2):
            said = "".join(chunk["text"] for chunk in chunks if chunk["index"] == index)
            assert said == whole["choices"][index]["text"]

    play(model, scene)


def test_several_prompts_are_completed_at_once_and_told_in_order(model: Path) -> None:
    async def scene(_: Served, client: httpx.AsyncClient) -> None:
        prompts = ["one", "two", "three"]
        alone = [
            (await client.post("/v1/completions", json={**SHORT, "prompt": each})).json()["choices"][0]["text"]
            for each in prompts
        ]
        together = (await client.post("/v1/completions", json={**SHORT, "prompt": prompts})).json()["choices"]

        assert [choice["text"] for choice in together] == alone
        assert [choice["index"] for choice in together] == [0, 1, 2]

    play(model, scene)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", LONG),
        ("/v1/completions", {**LONG, "stream": True}),
        ("/api/generate", {"model": MODEL, "prompt": "hi", "stream": False, "options": {"num_predict": 8000}}),
        ("/api/generate", {"model": MODEL, "prompt": "hi", "options": {"num_predict": 8000}}),
    ],
)
def test_client_that_leaves_takes_its_request_along(
    model: Path, path: str, body: dict[str, object], steps: HeldSteps
) -> None:
    async def scene(server: Served, client: httpx.AsyncClient) -> None:
        steps.hold()
        asking = asyncio.create_task(client.post(path, json=body))
        await server.until_running(1)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

        await server.until_running(0)
        steps.go()
        assert (await client.post("/v1/completions", json=SHORT)).status_code == 200

    play(model, scene)


def test_client_that_leaves_while_it_waits_takes_its_request_along(model: Path) -> None:
    async def scene(server: Served, client: httpx.AsyncClient) -> None:
        await server.service.engine.pause("keep")
        asking = asyncio.create_task(client.post("/v1/completions", json={**SHORT, "stream": True}))
        await server.until_waiting(1)
        asking.cancel()

        await server.until_waiting(0)

    play(model, scene)


def test_full_queue_is_told_with_how_long_to_stay_away(model: Path) -> None:
    async def scene(server: Served, client: httpx.AsyncClient) -> None:
        await server.service.engine.pause("keep")
        async with asyncio.TaskGroup() as group:
            waiting = [group.create_task(client.post("/v1/completions", json=SHORT)) for _ in range(2)]
            await server.until_waiting(2)
            refused = await client.post("/v1/completions", json=SHORT)
            at_ollama = await client.post("/api/generate", json={"model": MODEL, "prompt": "hi"})
            await server.service.engine.resume()

        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert (at_ollama.status_code, list(at_ollama.json())) == (429, ["error"])
        assert [task.result().status_code for task in waiting] == [200, 200]

    play(model, scene, max_waiting=2)


def test_more_completions_than_may_ever_wait_are_refused_for_good(model: Path) -> None:
    async def scene(server: Served, client: httpx.AsyncClient) -> None:
        refused = await client.post("/v1/completions", json={**SHORT, "n": 3})

        assert refused.status_code == 400
        assert "may ever wait" in refused.json()["error"]["message"]

    play(model, scene, max_waiting=2)


def test_one_prompt_too_long_queues_none_of_a_request(model: Path) -> None:
    async def scene(server: Served, client: httpx.AsyncClient) -> None:
        await server.service.engine.pause("keep")
        refused = await client.post("/v1/completions", json={**LONG, "prompt": ["hi", "word " * 200]})

        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "context_length_exceeded"
        assert (await server.stats()).num_waiting == 0

    play(model, scene, max_model_len=64)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "a" * 100_000}),
        ("/v1/completions", {"prompt": [1] * 100_000}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a" * 100_000}]}),
        ("/api/generate", {"prompt": "a" * 100_000}),
    ],
)
def test_prompt_that_cannot_fit_is_refused_before_it_is_tokenised(
    model: Path, path: str, body: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tokenizer, "encode", lambda *_, **__: pytest.fail("it was tokenised"))

    async def scene(_: Served, client: httpx.AsyncClient) -> None:
        refused = await client.post(path, json={"model": MODEL, **body})

        assert (refused.status_code, "exceeds the context" in refused.text) == (400, True)

    play(model, scene, max_model_len=64)


def test_body_that_is_long_is_parsed_beside_the_event_loop(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = list[str]()

    def noting(kind: type[Parsed], content: bytes) -> Parsed:
        threads.append(current_thread().name)
        return parse_body(kind, content)

    monkeypatch.setattr(bodies, "parse_body", noting)

    async def scene(_: Served, client: httpx.AsyncClient) -> None:
        for size in (10, BODY_BYTES_AT_ONCE_MAX):
            await client.post("/v1/completions", json={"model": "other", "prompt": "a" * size})

        assert threads[0] == current_thread().name != threads[1]

    play(model, scene)


def test_completion_without_a_limit_goes_to_the_end_of_the_context(model: Path) -> None:
    async def scene(_: Served, client: httpx.AsyncClient) -> None:
        talk = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "temperature": 0, "ignore_eos": True}
        chat = (await client.post("/v1/chat/completions", json=talk)).json()
        options = {"num_ctx": 40, "temperature": 0}
        short = (await client.post("/api/chat", json={**talk_of(talk), "options": options, "stream": False})).json()

        assert chat["usage"]["total_tokens"] == 300
        assert (short["prompt_eval_count"] + short["eval_count"], short["done_reason"]) == (40, "length")

    def talk_of(body: dict[str, object]) -> dict[str, object]:
        return {name: body[name] for name in ("model", "messages")}

    play(model, scene, max_model_len=300)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"", b"400"),
        (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n{{{", b"400"),
        (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: nine\r\n\r\n", b"400"),
        (b"\x16\x03\x01 this is no HTTP\r\n\r\n", b"400"),
        (b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n", b"404"),
        (b"DELETE /v1/models HTTP/1.1\r\nHost: x\r\n\r\n", b"405"),
        (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n" + b"x" * (9 << 20), b"413"),
    ],
)
def test_garbage_is_refused_and_the_next_one_served(model: Path, sent: bytes, status: bytes) -> None:
    async def scene(server: Served, client: httpx.AsyncClient) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(sent)
        if sent:
            assert (await reader.readline()).split()[1] == status
        writer.close()

        assert (await client.post("/v1/completions", json=SHORT)).status_code == 200

    play(model, scene)


def test_client_that_leaves_in_the_middle_of_its_body_harms_nobody(model: Path) -> None:
    async def scene(server: Served, client: httpx.AsyncClient) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{"model"')
        await writer.drain()
        writer.close()

        assert (await client.post("/v1/completions", json=SHORT)).status_code == 200

    play(model, scene)


def test_body_that_does_not_arrive_is_not_waited_for(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The bound is a minute, which nobody wants to spend here.
    monkeypatch.setattr(bodies, "BODY_S_MAX", 0.01)

    async def scene(server: Served, _: httpx.AsyncClient) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{"model"')

        assert (await reader.readline()).split()[1] == b"408"
        writer.close()

    play(model, scene)


def test_interface_describes_the_bodies_it_takes(model: Path) -> None:
    async def scene(_: Served, client: httpx.AsyncClient) -> None:
        answer = await client.get("/openapi.json")
        document = answer.json()
        places = re.findall(r'"\$ref":"#/([^"]+)"', answer.text)

        assert any("~1v1~1chat~1completions" in place for place in places)
        for place in places:
            found = document
            for step in place.split("/"):
                found = found[step.replace("~1", "/")]
            assert isinstance(found, dict)

    play(model, scene)


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        ("/v1/completions", {"model": "other", "prompt": "hi"}, "model 'other' not found"),
        ("/v1/chat/completions", {"model": "other", "messages": [{"role": "user", "content": ""}]}, "not found"),
        ("/api/chat", {"model": "other", "messages": []}, "model 'other' not found"),
        ("/api/show", {"model": "other"}, "model 'other' not found"),
    ],
)
def test_unknown_model_is_not_found(model: Path, path: str, body: dict[str, object], told: str) -> None:
    async def scene(_: Served, client: httpx.AsyncClient) -> None:
        refused = await client.post(path, json=body)

        assert refused.status_code == 404
        assert told in refused.text

    play(model, scene)


def test_owner_changes_the_weights_while_requests_run(model: Path, tmp_path: Path, steps: HeldSteps) -> None:
    other = write_other_weights(model, tmp_path / "other")

    async def scene(server: Served, client: httpx.AsyncClient) -> None:
        ask = {**SHORT, "max_tokens": 8, "temperature": 0, "return_token_ids": True}
        before = (await client.post("/v1/completions", json=ask)).json()["choices"][0]
        steps.hold()
        running = asyncio.create_task(client.post("/v1/completions", json={**LONG, "max_tokens": 100}))
        await server.until_running(1)
        changed = await client.post("/admin/weights", json={"path": str(other), "version": 7}, headers=KEY)
        steps.go()
        after = (await client.post("/v1/completions", json=ask)).json()["choices"][0]

        assert changed.json() == {"weight_version": 7}
        assert (before["weight_version"], after["weight_version"]) == (0, 7)
        assert before["token_ids"] != after["token_ids"]
        assert (await running).status_code == 200

    play(model, scene)


def test_weights_of_another_kind_are_refused_and_the_old_ones_stay(model: Path, tmp_path: Path) -> None:
    save_file({"some.tensor": torch.zeros(2)}, str(tmp_path / "model.safetensors"))

    async def scene(_: Served, client: httpx.AsyncClient) -> None:
        nowhere = await client.post("/admin/weights", json={"path": str(tmp_path / "nowhere")}, headers=KEY)
        foreign = await client.post("/admin/weights", json={"path": str(tmp_path)}, headers=KEY)
        old = await client.post("/admin/weights", json={"path": str(model), "version": 3}, headers=KEY)
        older = await client.post("/admin/weights", json={"path": str(model), "version": 2}, headers=KEY)

        beyond = await client.post("/admin/weights", json={"path": str(model), "version": 1 << 63}, headers=KEY)

        assert [answer.status_code for answer in (nowhere, foreign, old, older, beyond)] == [400, 400, 200, 409, 400]
        codes = [refused.json()["error"]["code"] for refused in (foreign, older)]
        assert codes == ["weights_mismatch", "stale_version"]
        assert beyond.json()["error"]["param"] == "version"
        assert "tensor model.embed_tokens.weight" in foreign.json()["error"]["message"]
        assert (await client.get("/admin/state", headers=KEY)).json()["weight_version"] == 3

    play(model, scene)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda weights: weights.pop("model.norm.weight"), "tensor model.norm.weight of shape [64] is missing"),
        (lambda weights: weights.update({"model.norm.weight": torch.ones(3)}), "has shape [3], expected [64]"),
        (lambda weights: weights.update({"extra": torch.ones(3)}), "tensor extra has no place"),
    ],
)
def test_weights_that_do_not_fit_are_named_and_the_old_ones_stay(
    model: Path, tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], object], told: str
) -> None:
    weights = load_file(model / "model.safetensors")
    change(weights)
    save_file(weights, tmp_path / "model.safetensors")

    async def scene(_: Served, client: httpx.AsyncClient) -> None:
        refused = await client.post("/admin/weights", json={"path": str(tmp_path)}, headers=KEY)
        served = await client.post("/v1/completions", json={**SHORT, "return_token_ids": True})

        assert refused.status_code == 400
        assert told in refused.json()["error"]["message"]
        assert served.json()["choices"][0]["weight_version"] == 0

    play(model, scene)


def test_model_that_computes_no_numbers_is_told_and_the_server_goes_on(model: Path) -> None:
    """Whole and streamed, in both protocols; with other weights the next request is served."""

    async def scene(server: Served, client: httpx.AsyncClient) -> None:
        weights = load_file(model / "model.safetensors")
        await server.service.engine.update_weights({name: tensor * 1e30 for name, tensor in weights.items()})
        whole = await client.post("/v1/completions", json=SHORT)
        stream = await client.post("/v1/completions", json={**SHORT, "stream": True})
        asked = {"model": MODEL, "prompt": "hi"}
        at_ollama = await client.post("/api/generate", json={**asked, "stream": False})
        ollama_stream = await client.post("/api/generate", json=asked)
        await server.service.engine.update_weights(weights)
        again = await client.post("/v1/completions", json=SHORT)

        assert (whole.status_code, whole.json()["error"]["code"]) == (500, "non_finite_logits")
        assert '"code":"non_finite_logits"' in stream.text
        assert (at_ollama.status_code, "computed no numbers" in at_ollama.json()["error"]) == (500, True)
        assert "computed no numbers" in json.loads(ollama_stream.text)["error"]
        assert again.status_code == 200

    play(model, scene)


def test_owner_empties_the_cache_pauses_and_goes_on(model: Path) -> None:
    async def scene(_: Served, client: httpx.AsyncClient) -> None:
        await client.post("/v1/completions", json={**SHORT, "prompt": "word " * 40})
        full = (await client.get("/admin/state", headers=KEY)).json()
        empty = (await client.post("/admin/cache/flush", headers=KEY)).json()
        paused = (await client.post("/admin/pause", json={"mode": "wait"}, headers=KEY)).json()
        ill = await client.get("/health")
        asleep = (await client.post("/admin/sleep", json={"drop_weights": True}, headers=KEY)).json()
        awake = (await client.post("/admin/wake", headers=KEY)).json()
        well = await client.get("/health")

        assert (full["kv_blocks"]["cached"] > 0, empty["kv_blocks"]["cached"]) == (True, 0)
        assert [each["state"] for each in (paused, asleep, awake)] == ["paused", "asleep", "running"]
        assert (ill.status_code, ill.json()) == (503, {"status": "paused"})
        assert (well.status_code, well.json()) == (200, {"status": "idle"})
        assert (await client.post("/v1/completions", json=SHORT)).status_code == 200

    play(model, scene)


def test_request_that_a_pause_has_ended_is_told_so(model: Path, steps: HeldSteps) -> None:
    async def scene(server: Served, client: httpx.AsyncClient) -> None:
        steps.hold(after=0)
        whole = asyncio.create_task(client.post("/v1/completions", json=LONG))
        stream = asyncio.create_task(client.post("/v1/completions", json={**LONG, "stream": True}))
        await server.until_waiting(2)
        steps.hold()
        await server.until_running(2)
        await client.post("/admin/pause", json={"mode": "abort"}, headers=KEY)

        assert (await whole).status_code == 503
        assert (await stream).text.rstrip().rpartition("\n")[2].startswith('data: {"error":')

    play(model, scene)


@pytest.mark.parametrize(
    ("admin_key", "headers", "status"), [(None, KEY, 403), ("secret", {}, 401), ("other", KEY, 401)]
)
def test_nobody_else_is_let_in(model: Path, admin_key: str | None, headers: dict[str, str], status: int) -> None:
    async def scene(_: Served, client: httpx.AsyncClient) -> None:
        for path in ("weights", "cache/flush", "pause", "resume", "sleep", "wake"):
            assert (await client.post(f"/admin/{path}", headers=headers)).status_code == status
        assert (await client.get("/admin/state", headers=headers)).status_code == status

    play(model, scene, admin_key=admin_key)


def test_health_and_metrics_tell_of_an_engine_that_has_died(model: Path) -> None:
    async def scene(server: Served, client: httpx.AsyncClient) -> None:
        await client.post("/v1/completions", json=SHORT)
        up = (await client.get("/metrics")).text
        await server.service.engine.shutdown()
        ill, down = await client.get("/health"), (await client.get("/metrics")).text
        refused = await client.post("/v1/completions", json=SHORT)

        assert "nano_completion_tokens_total 2.0\n" in up
        assert 'nano_http_requests_total{path="/v1/completions",status="200"} 1.0\n' in up
        assert (ill.status_code, "nano_engine_up 0.0" in down) == (503, True)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_stopped")

    play(model, scene)


def test_request_that_outlasts_the_grace_is_told_that_the_engine_has_stopped(model: Path, steps: HeldSteps) -> None:
    async def on_stage() -> None:
        steps.hold(after=0)
        async with asyncio.timeout(LIMIT_S), httpx.AsyncClient(timeout=LIMIT_S) as client:
            async with served(model, grace_s=0.01) as server:
                path = f"{server.url}/v1/completions"
                whole = asyncio.create_task(client.post(path, json=LONG))
                stream = asyncio.create_task(client.post(path, json={**LONG, "stream": True}))
                await server.until_waiting(2)
                steps.hold()
                await server.until_running(2)

            assert ((await whole).status_code, (await whole).json()["error"]["code"]) == (503, "engine_stopped")
            assert '"code":"engine_stopped"' in (await stream).text.rstrip().rpartition("\n")[2]

    asyncio.run(on_stage())


def test_error_of_the_server_is_counted_as_one(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(server: Served, client: httpx.AsyncClient) -> None:
        monkeypatch.setattr(server.service, "require_model", lambda name: 1 / 0)
        answer = await client.post("/v1/completions", json=SHORT)
        page = (await client.get("/metrics")).text

        assert answer.status_code == 500
        assert 'nano_http_requests_total{path="/v1/completions",status="500"} 1.0\n' in page

    play(model, scene)


def test_requests_that_come_just_before_two_looks_are_not_taken_for_one_that_is_stuck(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def sleep(_: float) -> None:
        """Time is told by what the clock says."""

    async def scene(server: Served, client: httpx.AsyncClient) -> None:
        engine, now_s = server.service.engine, iter((0.0, 100.0, 101.0))
        idle = await engine.stats()
        just_come = replace(idle, num_waiting=1)
        seen = iter((just_come, just_come, replace(idle, num_steps=1, num_running=1)))

        async def stats() -> EngineStats:
            return next(seen)

        server.service.times = replace(server.service.times, monotonic_s=lambda: next(now_s), sleep=sleep)
        monkeypatch.setattr(engine, "stats", stats)
        answers = [await client.get("/health") for _ in range(2)]

        assert [answer.status_code for answer in answers] == [200, 200]

    play(model, scene)
