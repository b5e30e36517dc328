"""The server on real sockets: streams, clients that leave, a full queue, the owner's paths, and who watches over it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from threading import Event, current_thread
from typing import Any

import httpx
import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file

from mac_runner.nano import EngineStats, Tokenizer, async_engine, constraints
from mac_runner.nano.server import http
from mac_runner.nano.testing import BODY_BYTES_AT_ONCE_MAX, BodyBudget, Parsed, parse_body
from tests.nano.server.stage import LONG, OWNER, SHORT, Stage, served_with
from tests.patience import LIMIT_S
from tests.sim.held_steps import HeldSteps
from tests.sim.nano_model import write_other_weights
from tests.sim.nano_server import MODEL, served

NORM = "model.norm.weight"
HI = {"model": MODEL, "prompt": "hi"}


async def test_several_prompts_are_completed_at_once_and_told_in_order_whole_or_in_pieces(stage: Stage) -> None:
    prompts = ["one", "two", "three"]
    alone = [(await stage.complete(prompt=each)).json()["choices"][0]["text"] for each in prompts]
    together = (await stage.complete(prompt=prompts)).json()["choices"]
    stream = await stage.complete(prompt=prompts, stream=True)
    *events, end = stream.text.removesuffix("\n\n").split("\n\n")
    pieces = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events]

    assert [choice["text"] for choice in together] == alone
    assert [choice["index"] for choice in together] == [0, 1, 2]
    assert stream.headers["content-type"].startswith("text/event-stream")
    assert ["".join(piece["text"] for piece in pieces if piece["index"] == index) for index in range(3)] == alone
    assert end == "data: [DONE]"


async def test_long_answer_with_logprobs_is_written_while_others_have_their_turn(stage: Stage) -> None:
    spell, is_writing, may_write = stage.service.spell, Event(), Event()

    def slowly(token_id: int) -> str:
        is_writing.set()
        assert may_write.wait(LIMIT_S)
        return spell(token_id)

    stage.service.spell = slowly  # type: ignore[method-assign]
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "logprobs": True}
    for path, body in (
        ("/v1/completions", {**SHORT, "logprobs": 1}),
        ("/v1/chat/completions", {**chat, "max_tokens": 2}),
        ("/api/chat", {**chat, "options": {"num_predict": 2}, "stream": False}),
    ):
        asking = asyncio.create_task(stage.post(path, json=body))
        await asyncio.to_thread(is_writing.wait, LIMIT_S)
        assert (await stage.get("/health")).status_code == 200
        may_write.set()
        assert (await asking).status_code == 200
        is_writing.clear()
        may_write.clear()


async def test_client_that_leaves_takes_its_request_along_whether_it_runs_or_waits(
    stage: Stage, steps: HeldSteps
) -> None:
    long: list[tuple[str, Mapping[str, object]]] = [
        ("/v1/completions", LONG),
        ("/v1/completions", {**LONG, "stream": True}),
        ("/api/generate", {**HI, "stream": False, "options": {"num_predict": 8000}}),
        ("/api/generate", {**HI, "options": {"num_predict": 8000}}),
    ]
    for path, body in long:
        steps.hold()
        asking = asyncio.create_task(stage.post(path, json=body))
        await stage.until_running(1)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await stage.until_running(0)
    steps.go()
    assert (await stage.complete()).status_code == 200

    await stage.engine.pause("keep")
    asking = asyncio.create_task(stage.complete(stream=True))
    await stage.until_waiting(1)
    asking.cancel()
    await stage.until_waiting(0)


@served_with(max_waiting=2)
async def test_full_queue_is_told_with_how_long_to_stay_away(stage: Stage) -> None:
    await stage.engine.pause("keep")
    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(stage.complete()) for _ in range(2)]
        await stage.until_waiting(2)
        refused, at_ollama = await stage.complete(), await stage.post("/api/generate", json=HI)
        await stage.engine.resume()

    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert (at_ollama.status_code, list(at_ollama.json())) == (429, ["error"])
    assert [task.result().status_code for task in waiting] == [200, 200]


SLOW: Any = {"type": "integer", "multipleOf": 1_000_003}
FORMS: tuple[tuple[str, Mapping[str, object]], ...] = (
    ("/v1/chat/completions", {"response_format": {"type": "json_schema", "json_schema": {"schema": SLOW}}}),
    ("/v1/chat/completions", {"structured_outputs": {"json": SLOW}}),
    ("/api/chat", {"format": SLOW}),
)
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}


async def test_schema_that_takes_long_is_refused_and_holds_up_nobody_else(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constraints, "COMPILE_S_MAX", 1)
    async with asyncio.TaskGroup() as group:
        asking = [group.create_task(stage.post(path, json={**CHAT, **more})) for path, more in FORMS]
        # From when they are seen on they take as long as they like, and the third waits for them.
        slow = dict[int, psutil.Process]()
        while len(slow) < 2:
            for trial in trials():
                with suppress(psutil.NoSuchProcess):
                    trial.suspend()
                    slow[trial.pid] = trial
            await stage.stats()
        for more in ({}, {"structured_outputs": {"choice": ["yes", "no"]}}):
            assert (await stage.complete(**more)).status_code == 200
        for trial in slow.values():
            trial.resume()

    for task in asking:
        assert (task.result().status_code, "takes more than 1 s" in task.result().text) == (400, True)


async def test_client_that_leaves_ends_the_compiling_of_its_schema(stage: Stage) -> None:
    asking = asyncio.create_task(stage.post(FORMS[0][0], json={**CHAT, **FORMS[0][1]}))
    while not trials():
        await stage.stats()
    asking.cancel()
    while trials():
        await stage.stats()

    assert (await stage.stats()).num_waiting == 0


@served_with(max_waiting=12)
async def test_schema_that_many_ask_for_at_once_is_tried_by_few_and_more_than_may_wait_are_sent_away(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end = list[Any](), asyncio.Event()

    async def held(trial: Any) -> int:
        begun.append(trial)
        await may_end.wait()
        return 1

    monkeypatch.setattr(async_engine, "tried", held)
    form = {"type": "array", "maxItems": 101, "items": {"type": "null"}}
    body = {**CHAT, "max_tokens": 1, "structured_outputs": {"json": form}}
    asking = [asyncio.create_task(stage.post("/v1/chat/completions", json=body)) for _ in range(8)]
    statuses = list[int]()
    for ended in asyncio.as_completed(asking):
        statuses.append((await ended).status_code)
        if len(statuses) == 2:
            may_end.set()

    assert (statuses, len(begun)) == ([429] * 2 + [200] * 6, async_engine.TRIALS_MAX)


def trials() -> list[psutil.Process]:
    """The processes in which grammars are tried now."""
    found = list[psutil.Process]()
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if any("grammar_trial" in word for word in child.cmdline()):
                found.append(child)
    return found


async def test_replies_without_a_limit_run_together_though_the_cache_could_not_hold_all_that_they_may_become(
    stage: Stage, steps: HeldSteps
) -> None:
    chat = {**CHAT, "ignore_eos": True}
    steps.hold()
    asking = [asyncio.create_task(stage.post("/v1/chat/completions", json={**chat, "seed": seed})) for seed in range(8)]
    await stage.until_running(8)
    for task in asking:
        task.cancel()
    await stage.until_running(0)


async def test_ids_that_the_model_does_not_have_end_no_reply(stage: Stage) -> None:
    for ids in ([-1], [3, 10**9]):
        answer = await stage.complete(stop_token_ids=ids)
        assert (answer.status_code, "stop_token_ids" in answer.text) == (400, True)


async def test_older_clients_of_ollama_call_the_model_name(stage: Stage) -> None:
    for named in ({"model": MODEL}, {"name": MODEL}):
        assert (await stage.post("/api/show", json=named)).json()["details"]["family"] == "qwen2"


async def test_server_is_there_for_those_who_only_look(stage: Stage) -> None:
    for path in ("/", "/api/version", "/api/tags"):
        looked, got = await stage.request("HEAD", path), await stage.get(path)
        assert (looked.status_code, looked.content, got.status_code) == (200, b"", 200)


async def test_path_that_is_not_there_is_quoted_in_part(stage: Stage) -> None:
    told = await stage.get(f"/{'a' * 9_000}")

    message = told.json()["error"]["message"]
    assert (told.status_code, message[-12:], len(message) < 400) == (404, "…: Not Found", True)


HUGE = "a" * 100_000
REFUSED: tuple[tuple[str, Mapping[str, object], int, str], ...] = (
    ("/v1/completions", {"model": "other", "prompt": "hi"}, 404, "model 'other' not found"),
    ("/v1/chat/completions", {"model": "other", "messages": [{"role": "user", "content": ""}]}, 404, "not found"),
    ("/api/chat", {"model": "other", "messages": []}, 404, "model 'other' not found"),
    ("/api/show", {"model": "other"}, 404, "model 'other' not found"),
    ("/v1/completions", {"prompt": HUGE}, 400, "exceeds the context"),
    ("/v1/completions", {"prompt": [1] * 100_000}, 400, "exceeds the context"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": HUGE}]}, 400, "exceeds the context"),
    ("/api/generate", {"prompt": HUGE}, 400, "exceeds the context"),
    ("/v1/completions", {"prompt": "hi", "structured_outputs": {"json": "[" * 1000}}, 400, "json_schema is not JSON"),
    # One prompt of several.
    ("/v1/completions", {"prompt": ["hi", "word " * 200]}, 400, '"code":"context_length_exceeded"'),
    # More than there is room for, ever.
    ("/v1/completions", {**SHORT, "n": 3}, 400, "may ever wait"),
)


@served_with(max_waiting=2, max_model_len=64)
async def test_what_cannot_be_answered_is_refused_before_it_is_queued_or_a_long_text_is_tokenised(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, wrong = Tokenizer.encode, list[str]()

    def encode_short(tokenizer: Tokenizer, text: str, **settings: Any) -> list[int]:
        assert len(text) < len(HUGE), "it was tokenised"
        return encode(tokenizer, text, **settings)

    monkeypatch.setattr(Tokenizer, "encode", encode_short)
    await stage.engine.pause("keep")
    for path, body, status, told in REFUSED:
        answer = await stage.post(path, json={"model": MODEL, **body})
        if answer.status_code != status or told not in answer.text:
            wrong.append(f"{path} {str(body)[:60]}: {answer.status_code}, {answer.text}")

    assert wrong == []
    assert (await stage.stats()).num_waiting == 0


async def test_body_that_is_long_is_parsed_beside_the_event_loop(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = list[str]()

    def noting(kind: type[Parsed], content: bytes) -> Parsed:
        threads.append(current_thread().name)
        return parse_body(kind, content)

    monkeypatch.setattr(http, "parse_body", noting)
    for size in (10, BODY_BYTES_AT_ONCE_MAX):
        await stage.complete(model="other", prompt="a" * size)

    assert threads[0] == current_thread().name != threads[1]


@served_with(max_model_len=300)
async def test_completion_without_a_limit_goes_to_the_end_of_the_context(stage: Stage) -> None:
    talk = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
    whole = await stage.post("/v1/chat/completions", json={**talk, "temperature": 0, "ignore_eos": True})
    options = {"num_ctx": 40, "temperature": 0}
    short = (await stage.post("/api/chat", json={**talk, "options": options, "stream": False})).json()

    assert whole.json()["usage"]["total_tokens"] == 300
    assert (short["prompt_eval_count"] + short["eval_count"], short["done_reason"]) == (40, "length")


async def test_interface_describes_the_bodies_it_takes(stage: Stage) -> None:
    document = (await stage.get("/openapi.json")).json()
    places = list(references(document))

    assert any("~1v1~1chat~1completions" in place for place in places)
    for place in places:
        found = document
        for step in place.removeprefix("#/").split("/"):
            found = found[step.replace("~1", "/")]
        assert isinstance(found, dict)


def references(document: Any) -> list[str]:
    """All that a document refers to."""
    if isinstance(document, list):
        return [place for each in document for place in references(each)]
    if not isinstance(document, dict):
        return []
    own = [document["$ref"]] if isinstance(document.get("$ref"), str) else []
    return own + references(list(document.values()))


async def test_owner_changes_the_weights_while_requests_run(
    stage: Stage, model: Path, tmp_path: Path, steps: HeldSteps
) -> None:
    other = write_other_weights(model, tmp_path / "other")
    ask: dict[str, Any] = {"max_tokens": 8, "temperature": 0, "return_token_ids": True}
    before = (await stage.complete(**ask)).json()["choices"][0]
    steps.hold()
    running = asyncio.create_task(stage.complete(max_tokens=100))
    await stage.until_running(1)
    changed = await stage.owner("weights", {"path": str(other), "version": 7})
    steps.go()
    after = (await stage.complete(**ask)).json()["choices"][0]

    assert changed.json() == {"weight_version": 7}
    assert (before["weight_version"], after["weight_version"]) == (0, 7)
    assert before["token_ids"] != after["token_ids"]
    assert (await running).status_code == 200


MISFITS: dict[str, Callable[[dict[str, torch.Tensor]], object]] = {
    "tensor model.embed_tokens.weight": lambda weights: [weights.pop(name) for name in [*weights] if name != NORM],
    f"tensor {NORM} of shape [64] is missing": lambda weights: weights.pop(NORM),
    "has shape [3], expected [64]": lambda weights: weights.update({NORM: torch.ones(3)}),
    "tensor extra has no place": lambda weights: weights.update({"extra": torch.ones(3)}),
}


async def test_weights_that_do_not_fit_are_named_and_the_old_ones_stay(
    stage: Stage, model: Path, tmp_path: Path
) -> None:
    for told, change in MISFITS.items():
        weights = load_file(model / "model.safetensors")
        change(weights)
        save_file(weights, tmp_path / "model.safetensors")
        refused = await stage.owner("weights", {"path": str(tmp_path)})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "weights_mismatch")
        assert told in refused.json()["error"]["message"]
    served = (await stage.complete(return_token_ids=True)).json()
    assert served["choices"][0]["weight_version"] == 0

    asked = [(tmp_path / "nowhere", 3), (model, 3), (model, 2), (model, 1 << 63)]
    answers = [await stage.owner("weights", {"path": str(path), "version": version}) for path, version in asked]
    assert [answer.status_code for answer in answers] == [400, 200, 409, 400]
    assert answers[2].json()["error"]["code"] == "stale_version"
    assert answers[3].json()["error"]["param"] == "version"
    assert (await stage.get("/admin/state", headers=OWNER)).json()["weight_version"] == 3


async def test_model_that_computes_no_numbers_is_told_and_the_server_goes_on(stage: Stage, model: Path) -> None:
    """Whole and streamed, in both protocols; with other weights the next request is served."""
    weights = load_file(model / "model.safetensors")
    await stage.engine.update_weights({name: tensor * 1e30 for name, tensor in weights.items()})
    whole, stream = await stage.complete(), await stage.complete(stream=True)
    at_ollama = await stage.post("/api/generate", json={**HI, "stream": False})
    ollama_stream = await stage.post("/api/generate", json=HI)
    await stage.engine.update_weights(weights)
    again = await stage.complete()

    assert (whole.status_code, whole.json()["error"]["code"]) == (500, "non_finite_logits")
    assert '"code":"non_finite_logits"' in stream.text
    assert (at_ollama.status_code, "computed no numbers" in at_ollama.json()["error"]) == (500, True)
    assert "computed no numbers" in json.loads(ollama_stream.text)["error"]
    assert again.status_code == 200


async def test_owner_empties_the_cache_pauses_and_goes_on(stage: Stage) -> None:
    await stage.complete(prompt="word " * 40)
    full = (await stage.get("/admin/state", headers=OWNER)).json()
    empty = (await stage.owner("cache/flush")).json()
    paused = (await stage.owner("pause", {"mode": "wait"})).json()
    ill = await stage.get("/health")
    asleep = (await stage.owner("sleep", {"drop_weights": True})).json()
    awake = (await stage.owner("wake")).json()
    well = await stage.get("/health")

    assert (full["kv_blocks"]["cached"] > 0, empty["kv_blocks"]["cached"]) == (True, 0)
    assert [each["state"] for each in (paused, asleep, awake)] == ["paused", "asleep", "running"]
    assert (ill.status_code, ill.json()) == (503, {"status": "paused"})
    assert (well.status_code, well.json()) == (200, {"status": "idle"})
    assert (await stage.complete()).status_code == 200


@pytest.mark.parametrize("ends", ["pause", "shutdown"])
async def test_request_that_is_ended_under_way_is_told_so(model: Path, steps: HeldSteps, ends: str) -> None:
    """By a pause, or by a server whose grace it outlasts."""
    steps.hold(after=0)
    async with httpx.AsyncClient(timeout=LIMIT_S) as client, AsyncExitStack() as stack:
        server = await stack.enter_async_context(served(model, admin_key="secret", grace_s=0.01))
        client.base_url = httpx.URL(server.url)
        stage = Stage(server, client, BodyBudget())
        whole, stream = (asyncio.create_task(stage.complete(max_tokens=8000, stream=each)) for each in (False, True))
        await stage.until_waiting(2)
        steps.hold()
        await stage.until_running(2)
        await (stage.owner("pause", {"mode": "abort"}) if ends == "pause" else stack.aclose())
        told, last = await whole, (await stream).text.rstrip().rpartition("\n")[2]

    assert told.status_code == 503
    assert last.startswith('data: {"error":')
    if ends == "shutdown":
        assert told.json()["error"]["code"] == "engine_stopped"
        assert '"code":"engine_stopped"' in last


async def test_health_and_metrics_tell_of_an_engine_that_has_died(stage: Stage) -> None:
    await stage.complete()
    up = (await stage.get("/metrics")).text
    await stage.engine.shutdown()
    ill, down = await stage.get("/health"), (await stage.get("/metrics")).text
    refused = await stage.complete()

    assert "nano_completion_tokens_total 2.0\n" in up
    assert 'nano_http_requests_total{path="/v1/completions",status="200"} 1.0\n' in up
    assert (ill.status_code, "nano_engine_up 0.0" in down) == (503, True)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_stopped")


async def test_error_of_the_server_is_counted_as_one(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage.service, "require_model", lambda name: 1 / 0)

    assert (await stage.complete()).status_code == 500
    page = (await stage.get("/metrics")).text
    assert 'nano_http_requests_total{path="/v1/completions",status="500"} 1.0\n' in page


async def test_requests_that_come_just_before_two_looks_are_not_taken_for_one_that_is_stuck(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def sleep(_: float) -> None:
        """Time is told by what the clock says."""

    now_s, idle = iter((0.0, 100.0, 101.0)), await stage.stats()
    just_come = replace(idle, num_waiting=1)
    seen = iter((just_come, just_come, replace(idle, num_steps=1, num_running=1)))

    async def stats() -> EngineStats:
        return next(seen)

    stage.service.times = replace(stage.service.times, monotonic_s=lambda: next(now_s), sleep=sleep)
    monkeypatch.setattr(stage.engine, "stats", stats)

    assert [(await stage.get("/health")).status_code for _ in range(2)] == [200, 200]
