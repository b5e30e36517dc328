"""What the server lets in, on real sockets: bodies and the memory they share, lengths, garbage, keys, connections."""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import AsyncExitStack

import pytest
from starlette.datastructures import Headers

from mac_runner.nano.server import http
from mac_runner.nano.testing import (
    BODIES_BYTES_MAX,
    BODY_BYTES_FREE,
    BODY_BYTES_MAX,
    DESCRIPTORS_KEPT,
    BodyBudget,
    BodyShare,
    RefusedError,
    connections_within,
    require_length_within_bounds,
)
from tests.nano.server.stage import KEY, Raw, Stage, connected, head, served_with
from tests.sim.nano_server import MODEL

ASK = {"model": MODEL, "prompt": "hi", "max_tokens": 1, "ignore_eos": True}
POST = "/v1/completions"
CUT_OFF = head(POST, "Content-Length: 50") + b'{"model"'


async def send_unfinished(raw: Raw, path: str, num_bytes: int) -> None:
    """Send so much of a body, and no more."""
    await raw.send(head(path, f"Content-Length: {BODY_BYTES_MAX}"), b"x" * num_bytes)


@served_with(budget=BodyBudget(1 << 20))
async def test_unfinished_bodies_hold_no_more_than_the_budget_and_ordinary_requests_are_served(stage: Stage) -> None:
    budget, paths = stage.budget, (POST, "/v1/chat/completions", "/api/chat", "/api/generate")
    each, stack = 300 << 10, AsyncExitStack()
    clients = [await stack.enter_async_context(connected(stage.port)) for _ in range(24)]
    for index, raw in enumerate(clients):
        await send_unfinished(raw, paths[index % 4], each)
    refused = 24 - (1 << 20) // (each - BODY_BYTES_FREE)
    answers = dict[int, tuple[int, dict[str, str], bytes]]()
    readers = {asyncio.create_task(raw.answer()): index for index, raw in enumerate(clients)}
    pending = set(readers)
    while len(answers) < refused:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        answers |= {readers[task]: task.result() for task in done}
    assert budget.held_bytes <= budget.bytes_max

    for index, (status, headers, body) in answers.items():
        error = json.loads(body)["error"]
        assert (status, headers["retry-after"]) == (503, "1")
        assert "server busy" in (error["message"] if index % 4 < 2 else error)
    long = "x" * (BODY_BYTES_FREE + each)
    assert (await stage.complete()).status_code == 200
    assert (await stage.complete(prompt=long)).json()["error"]["code"] == "server_busy"

    for task in pending:
        task.cancel()
    await stack.aclose()
    while budget.held_bytes:
        await stage.stats()
    assert (await stage.complete(prompt=long)).json()["error"]["code"] == "context_length_exceeded"
    assert budget.held_bytes == 0


async def test_memory_of_a_body_is_kept_for_it_until_its_answer(stage: Stage) -> None:
    """The prompt stays in memory while it waits for the engine, so as many cannot come through one after the other."""
    await stage.engine.pause("keep")
    body = json.dumps({**ASK, "user": "u"}).encode() + b" " * BODY_BYTES_FREE
    asking = asyncio.create_task(stage.post(POST, content=body))
    await stage.until_waiting(1)
    held = stage.budget.held_bytes
    await stage.engine.resume()

    assert (held, (await asking).status_code) == (len(body) - BODY_BYTES_FREE, 200)
    assert stage.budget.held_bytes == 0


def test_budget_has_room_for_many_bodies_of_the_largest_size() -> None:
    assert BODIES_BYTES_MAX >= 16 * BODY_BYTES_MAX


TOO_LONG = BODY_BYTES_MAX + 1
REFUSED: tuple[tuple[bytes, int, bool], ...] = (
    (head(POST, f"Content-Length: {TOO_LONG}"), 413, True),
    (head(POST, "Content-Length: 99999999999999999999"), 413, True),
    # The client waits for leave to send: it is not given.
    (head(POST, f"Content-Length: {TOO_LONG}", "Expect: 100-continue"), 413, False),
    (head(POST, "Content-Length: 50", "Transfer-Encoding: chunked"), 400, False),
    (head(POST, "Content-Length: 99999999", "Transfer-Encoding: chunked"), 400, False),
    (head(POST, "Content-Length: -1"), 400, False),
    (head(POST, "Content-Length: +1"), 400, False),
    (head(POST, "Content-Length: nine"), 400, False),
    (head(POST, "Content-Length: "), 400, False),
    (head(POST, "Content-Length: 5", "Content-Length: 6"), 400, False),
    (head(POST, "Content-Length: " + "9" * 5000), 400, False),
    (head(POST, "Transfer-Encoding: gzip, chunked"), 400, False),
    (head(POST, "Content-Length: 99999999") + b"x" * (9 << 20), 413, True),
    (head(POST, "Content-Length: 3") + b"{{{", 400, True),
    (b"\x16\x03\x01 this is no HTTP\r\n\r\n", 400, False),
    (b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n", 404, True),
    (b"DELETE /v1/models HTTP/1.1\r\nHost: x\r\n\r\n", 405, True),
)
"""What is sent, how it is answered, and whether the connection stays open."""


async def test_garbage_is_refused_and_a_length_out_of_bounds_before_a_byte_of_the_body_and_the_next_one_served(
    stage: Stage,
) -> None:
    wrong = list[str]()
    for sent, status, stays in REFUSED:
        for path in (POST, "/api/chat", "/nowhere") if sent.endswith(b"\r\n\r\n") else (POST,):
            async with connected(stage.port) as raw:
                await raw.send(sent.replace(POST.encode(), path.encode()))
                line = await raw.reader.readline()
                rest = b"" if stays else await raw.reader.read()
            if int(line.split()[1]) != status or not (stays or b"connection: close" in rest.lower()):
                wrong.append(f"{path} {sent[:200]!r}: {line!r} {rest!r}")
    assert wrong == []

    for cut_off in (b"", CUT_OFF):
        async with connected(stage.port) as raw:
            await raw.send(cut_off)
        assert (await stage.complete()).status_code == 200


async def test_method_that_a_path_lacks_is_refused_with_those_that_it_has(stage: Stage) -> None:
    for method, path, allowed in (("DELETE", "/v1/models", "GET"), ("GET", "/api/chat", "POST")):
        refused = await stage.request(method, path)
        assert (refused.status_code, refused.headers["allow"], "error" in refused.json()) == (405, allowed, True)


async def test_body_that_does_not_arrive_is_not_waited_for(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    # The bound is a minute, which nobody wants to spend here.
    monkeypatch.setattr(http, "BODY_S_MAX", 0.01)
    async with connected(stage.port) as raw:
        await raw.send(CUT_OFF)

        assert (await raw.reader.readline()).split()[1] == b"408"


async def test_body_without_a_declared_length_is_bounded_while_it_is_read(stage: Stage) -> None:
    chunk = b"%x\r\n" % (1 << 20) + b"x" * (1 << 20) + b"\r\n"
    for path, shape in ((POST, dict), ("/api/generate", str)):
        async with connected(stage.port) as raw:
            await raw.send(head(path, "Transfer-Encoding: chunked"), *[chunk] * (BODY_BYTES_MAX >> 20), chunk)
            status, _headers, body = await raw.answer()

            assert (status, isinstance(json.loads(body)["error"], shape)) == (413, True)
    assert stage.budget.held_bytes == 0


async def test_connection_is_good_for_another_request_after_a_body_that_was_too_large(stage: Stage) -> None:
    """What is left of the body is thrown away, so a client that does not look while it sends reads the answer."""
    body = json.dumps(ASK).encode()
    async with connected(stage.port) as raw:
        await raw.send(head(POST, f"Content-Length: {TOO_LONG}"), b"x" * TOO_LONG)
        await raw.send(head(POST, f"Content-Length: {len(body)}"), body)

        assert [(await raw.answer())[0] for _ in range(2)] == [413, 200]


async def test_headers_without_an_end_are_bounded(stage: Stage) -> None:
    for sent in (b"X-%d: " + b"y" * 1000 + b"\r\n", b"y" * 1000):
        async with connected(stage.port) as raw:
            await raw.send(b"GET /health HTTP/1.1\r\nX: ")
            number = 0
            while not raw.reader.at_eof() and not raw.writer.is_closing() and number < 1000:
                await raw.send(sent % number if b"%" in sent else sent)
                number += 1
                await asyncio.sleep(0)

            assert number < 1000


@served_with(api_key=KEY, admin_key=None)
async def test_every_path_but_those_of_probes_asks_for_the_key(stage: Stage) -> None:
    """Of all paths that there are, with every method, and of some that there are not."""
    right = {"Authorization": f"Bearer {KEY}"}
    described = (await stage.get("/openapi.json", headers=right)).json()["paths"]
    paths = [path for path in described if not path.startswith("/admin/")]
    assert {"/v1/models", "/api/tags", "/api/chat", "/health"} <= set(paths)
    paths += ["/openapi.json", "/nowhere", "/api/nowhere", "/v1", "/", "//v1/models", "/health/", "/admin"]
    words = (KEY, "Bearer", f"Bearer {KEY[:-1]}", f"Bearer {KEY}x", f"Bearer {KEY.upper()}", f"Basic {KEY}")
    wrong: list[dict[str, str]] = [{}, {"X-Api-Key": KEY}]
    wrong += [{"Authorization": each} for each in (*words, "Bearer ÿé")]
    told = list[str]()
    for path in paths:
        for method in ("GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH"):
            for headers in wrong if method in ("GET", "POST") else wrong[:1]:
                raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
                answer = await stage.request(method, path, headers=raw)
                is_open = path in ("/health", "/metrics")
                challenge = answer.headers.get("www-authenticate")
                if is_open == (answer.status_code == 401) or is_open == (challenge == "Bearer"):
                    told.append(f"{method} {path} {headers}: {answer.status_code}, {challenge}")
                if KEY in answer.text or KEY in str(answer.headers):
                    told.append(f"{method} {path}: quotes the key")
    assert told == []

    refused, at_ollama = await stage.get("/v1/models"), await stage.get("/api/tags")
    assert refused.json()["error"]["code"] == "invalid_api_key"
    assert isinstance(at_ollama.json()["error"], str)
    for path in ("/v1/models", f"/v1/models/{MODEL}", "/api/tags", "/api/version", "/api/ps", "/openapi.json"):
        assert (await stage.get(path, headers=right)).status_code == 200
    assert (await stage.post(POST, json=ASK, headers={"authorization": f"bearer {KEY}"})).is_success
    assert KEY not in (await stage.get("/metrics")).text
    # Nobody is the owner of a server that has no key for one.
    assert (await stage.get("/admin/state", headers=right)).status_code == 403


@served_with(api_key=KEY, admin_key="owner")
async def test_paths_of_the_owner_ask_for_a_key_of_their_own(stage: Stage) -> None:
    for words in ({}, {"Authorization": f"Bearer {KEY}"}):
        for path in ("weights", "cache/flush", "pause", "resume", "sleep", "wake"):
            assert (await stage.post(f"/admin/{path}", headers=words)).status_code == 401
        answer = await stage.get("/admin/state", headers=words)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")

    right = {"Authorization": "Bearer owner"}
    answer = await stage.get("/admin/state", headers=right)
    assert (answer.status_code, answer.headers.get("www-authenticate")) == (200, None)
    assert (await stage.get("/v1/models", headers=right)).status_code == 401


@served_with(admin_key=None)
async def test_nobody_is_the_owner_of_a_server_without_a_key_for_one(stage: Stage) -> None:
    for path in ("weights", "cache/flush", "pause", "resume", "sleep", "wake"):
        assert (await stage.owner(path)).status_code == 403


@served_with(api_key=KEY)
async def test_client_without_the_key_is_refused_before_its_body(stage: Stage) -> None:
    async with connected(stage.port) as raw:
        await send_unfinished(raw, POST, 1 << 20)

        assert (await raw.answer())[0] == 401
        assert stage.budget.held_bytes == 0


# The memory that the bodies of all requests share, by itself.


def refusal_of(share: BodyShare, num_bytes: int) -> RefusedError | None:
    """Why so many bytes more are not taken; None where they are."""
    try:
        share.grow(num_bytes)
    except RefusedError as error:
        return error
    return None


def test_budget_holds_what_has_arrived_and_never_more_than_it_may() -> None:
    dice, wrong = random.Random(7), list[str]()
    for round_ in range(200):
        budget = BodyBudget(dice.randrange(1, 20 << 20))
        sizes = dict[BodyShare, int]()
        for step in range(60):
            share = dice.choice([*sizes, BodyShare(budget)])
            if dice.random() < 0.2:
                share.release()
                sizes.pop(share, None)
            else:
                more = dice.choice((1, 65_536, 1 << 20, 3 << 20))
                refusal, size = refusal_of(share, more), sizes.setdefault(share, 0)
                sizes[share] = size if refusal else size + more
                if refusal and size + more <= min(BODY_BYTES_FREE, BODY_BYTES_MAX):
                    wrong.append(f"round {round_}, step {step}: a short body was refused")
                if refusal and (refusal.status == 413) != (size + more > BODY_BYTES_MAX):
                    wrong.append(f"round {round_}, step {step}: {refusal} for {size + more} bytes")
            held = sum(max(size - BODY_BYTES_FREE, 0) for size in sizes.values())
            if not held == budget.held_bytes <= budget.bytes_max:
                wrong.append(f"round {round_}, step {step}: {budget.held_bytes} for {held} of {budget.bytes_max}")
        for share in sizes:
            share.release()
            share.release()
        if budget.held_bytes:
            wrong.append(f"round {round_}: {budget.held_bytes} are left")

    assert wrong == []


def test_budget_that_is_used_up_says_when_to_ask_again() -> None:
    refusal = refusal_of(BodyShare(BodyBudget(0)), BODY_BYTES_FREE + 1)

    assert refusal is not None
    assert (refusal.status, refusal.code, refusal.retry_after_s) == (503, "server_busy", 1)


CHUNKED, LONGEST = {"transfer-encoding": "chunked"}, str(BODY_BYTES_MAX)
DECLARED: tuple[tuple[str | None, dict[str, str], int | None], ...] = (
    (None, {}, None),
    (None, CHUNKED, None),
    ("0", {}, None),
    (LONGEST, {}, None),
    (f"000{LONGEST}", {}, None),
    (str(TOO_LONG), {}, 413),
    ("9" * 9000, {}, 413),
    ("1", CHUNKED, 400),
    *((wrong, {}, 400) for wrong in ("", "-1", "+1", "1,1", "²")),
)


def test_declared_length_is_a_number_within_bounds() -> None:
    for length, headers, status in DECLARED:
        found = None
        try:
            require_length_within_bounds(Headers({**headers, **({} if length is None else {"content-length": length})}))
        except RefusedError as error:
            found = error.status

        assert found == status, length


def test_connections_leave_descriptors_for_all_else() -> None:
    limits = (None, 1 << 20, 1024, 3)

    assert [connections_within(3000, limit) for limit in limits] == [3000, 3000, 1024 - DESCRIPTORS_KEPT, 1]
