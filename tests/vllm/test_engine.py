"""One engine in this process: the contract of every backend, asked in every way a run asks, new weights, its end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mac_runner.backends import Backend
from mac_runner.backends.testing import Rendered, Renderer, VllmBackend, held
from mac_runner.clock import SystemClock
from mac_runner.environments.discussion.testing import Found, read_fields
from mac_runner.errors import EngineDeadError
from mac_runner.testing.backends import BackendContract, BackendHarness, CannotError
from mac_runner.types import FinishReason, JsonObject, Message, Prompt, Reply, Request
from tests.patience import LIMIT_S, until, wait_for
from tests.sim.building import request_for
from tests.sim.requests import request
from tests.vllm.processes import engine_processes, signal_all, standing_still
from tests.vllm.table import BLOCK_SIZE, BOUND, CONTEXT_TOKENS, Table, check_new_weights, config, sampling, started

SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"target": {"enum": ["Ann", "Bob"]}, "why": {"type": "string", "maxLength": 12}},
    "required": ["target", "why"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def table(tiny_model: Path) -> Iterator[Table]:
    with started(config(tiny_model)) as table:
        yield table
    wait_for(lambda: not engine_processes(), "the engine's end")


class VllmHarness(BackendHarness):
    patience_s = 600.0

    def __init__(self, table: Table, model: Path) -> None:
        self.table = table
        self.model = model

    def build(self) -> Backend:
        return VllmBackend(request_for(config(self.model), SystemClock()))

    @asynccontextmanager
    async def started(self, *, is_fresh: bool) -> AsyncIterator[Backend]:
        if is_fresh:
            raise CannotError("an engine takes too long to start")
        yield self.table.backend

    def run(self, program: Coroutine[None, None, None]) -> None:
        self.table.runner.run(program)

    def unfinished(self) -> int:
        return self.table.unfinished()

    def request_too_long(self) -> Request:
        return self.request("a" + " the" * CONTEXT_TOKENS)

    def request_cut_off(self) -> Request:
        return self.request(max_tokens=2)

    def request_slow(self) -> Request:
        return self.request(max_tokens=4000)


class TestVllm(BackendContract):
    @pytest.fixture
    def harness(self, table: Table, tiny_model: Path) -> BackendHarness:
        return VllmHarness(table, tiny_model)

    @pytest.mark.nightly
    def test_it_closes_unstarted_and_starts_again(self, harness: BackendHarness) -> None:
        """By day the runs of test_runs.py start engine after engine in one process, and one that broke among them."""
        super().test_it_closes_unstarted_and_starts_again(harness)


def test_capacity_is_the_bound_and_the_budget_the_kv_cache(table: Table) -> None:
    # 2 for keys and values, 4 layers, 2 heads of 32 numbers of 4 bytes: 2048 bytes for each token.
    cache_bytes = int(os.environ["VLLM_CPU_KVCACHE_SPACE"]) << 30

    assert table.backend.capacity == BOUND
    assert table.backend.token_budget == cache_bytes // 2048


def test_reply_is_told_token_by_token(table: Table) -> None:
    (reply,) = table.ask(request("Who is suspicious?", sampling=sampling()))

    assert reply.text
    assert reply.trace is not None
    assert reply.tokens.prompt == len(reply.trace.prompt_ids)
    assert reply.tokens.completion == len(reply.trace.completion_ids) == len(reply.trace.logprobs)
    assert reply.tokens.completion == 24 or reply.finish_reason is FinishReason.STOP
    assert all(logprob < 0 for logprob in reply.trace.logprobs)


def test_other_seed_gives_another_text_and_no_temperature_the_likeliest(table: Table) -> None:
    one, other = table.ask(request(sampling=sampling(1)), request(sampling=sampling(2)))
    cold, colder = table.ask(request(sampling=sampling(1, temperature=0)), request(sampling=sampling(2, temperature=0)))

    assert one.text != other.text
    assert cold.text == colder.text


def test_shared_beginning_of_prompts_is_served_from_the_cache(table: Table) -> None:
    rules = Message(role="system", content="These are the rules. " * 40)

    def reply(ask: str) -> Reply:
        prompt = Prompt(messages=(rules, Message(role="user", content=ask)))
        return table.ask(request(prompt=prompt, sampling=sampling()))[0]

    first, second = reply("Speak."), reply("Vote.")

    assert first.tokens.cached == 0
    assert second.tokens.prompt - 2 * BLOCK_SIZE < second.tokens.cached < second.tokens.prompt


def test_schema_and_choices_leave_no_other_reply(table: Table) -> None:
    messages = (Message(role="user", content="Whom?"),)
    by_schema = Prompt(messages=messages, schema=SCHEMA)
    by_choice = Prompt(messages=messages, choices=("Ann", "Bob"))

    replies = table.ask(
        *(request(prompt=by_schema, sampling=sampling(seed, max_tokens=100)) for seed in range(4)),
        *(request(prompt=by_choice, sampling=sampling(seed)) for seed in range(4)),
    )

    for reply in replies[:4]:
        told = json.loads(reply.text, strict=False)  # The grammar lets control characters stand in a text.
        assert told.keys() == {"target", "why"}
        assert told["target"] in {"Ann", "Bob"}
    assert {reply.text for reply in replies[4:]} <= {"Ann", "Bob"}


def test_reply_is_held_to_any_json_object_or_to_nothing_as_its_model_is_set(table: Table) -> None:
    prompt = Prompt(messages=(Message(role="user", content="Whom?"),), schema=SCHEMA)
    objects, free = held(prompt, "json_object"), held(prompt, "none")
    replies = table.ask(*(request(prompt=one, sampling=sampling(3)) for one in (objects, free)))

    assert [reply.text.startswith("{") for reply in replies] == [True, False]


def test_reply_held_to_a_form_has_no_thought_though_the_template_opens_one(table: Table) -> None:
    messages = (Message(role="user", content="Whom? /think"),)
    free, by_choice, *by_schema = table.ask(
        request(prompt=Prompt(messages=messages), sampling=sampling()),
        request(prompt=Prompt(messages=messages, choices=("Ann", "Bob")), sampling=sampling()),
        *(
            request(prompt=Prompt(messages=messages, schema=SCHEMA), sampling=sampling(seed, max_tokens=100))
            for seed in range(4)
        ),
    )

    assert free.text.startswith("<think>")
    assert by_choice.text in {"Ann", "Bob"}
    for reply in by_schema:
        found = read_fields(reply, ["target"])
        assert isinstance(found, Found)
        assert found.get("target") in {"Ann", "Bob"}


def test_stop_text_ends_the_reply_before_it(table: Table) -> None:
    (whole,) = table.ask(request(sampling=sampling(5)))
    stop = whole.text[3:6]
    (cut,) = table.ask(request(sampling=sampling(5, stop=(stop,))))

    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.finish_reason is FinishReason.STOP


def test_prompt_that_leaves_no_room_overflows_and_one_that_leaves_little_is_cut(table: Table) -> None:
    def of_size(tokens: int) -> Request:
        return request("a" + " the" * (tokens - frame), sampling=sampling(max_tokens=CONTEXT_TOKENS))

    frame = 0
    frame = table.ask(of_size(100))[0].tokens.prompt - 100
    fitting, full = table.ask(of_size(CONTEXT_TOKENS - 3), of_size(CONTEXT_TOKENS))

    assert full == Reply(text="", finish_reason=FinishReason.OVERFLOW)
    assert fitting.tokens.prompt == CONTEXT_TOKENS - 3
    assert fitting.tokens.completion <= 3


def test_loop_goes_on_while_a_prompt_is_tokenised(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """The prompt is not rendered before the loop has turned a hundred times."""
    has_turned, render = threading.Event(), Renderer.render

    def held_up(renderer: Renderer, messages: Sequence[Message]) -> Rendered:
        assert has_turned.wait(LIMIT_S)
        return render(renderer, messages)

    async def program() -> Reply:
        task = asyncio.create_task(table.backend.generate(request(sampling=sampling())))
        for _ in range(100):
            await asyncio.sleep(0)
        has_turned.set()
        return await task

    monkeypatch.setattr(Renderer, "render", held_up)

    assert table.runner.run(program()).text


# New weights: behind the tests that ask for the first ones.


def test_updated_vllm_computes_with_the_new_weights_and_says_so(table: Table, tiny_model: Path, tmp_path: Path) -> None:
    async def is_running() -> bool:
        await asyncio.sleep(0)
        return table.unfinished() > 0

    assert table.backend.update_obstacle is None
    table.runner.run(check_new_weights(table.backend, is_running, tiny_model, tmp_path))


def test_engine_process_that_is_killed_ends_the_run_and_leaves_nothing(table: Table) -> None:
    """The last test, for it leaves nothing to ask."""

    async def program() -> list[Reply | BaseException]:
        with standing_still(engines := engine_processes()):
            asking = [
                asyncio.create_task(table.backend.generate(request(sampling=sampling(n, max_tokens=4000))))
                for n in range(3)
            ]
            await until(lambda: table.unfinished() == 3, "the requests")
            signal_all(engines, signal.SIGKILL)
        return await asyncio.gather(*asking, return_exceptions=True)

    faults = table.runner.run(program())
    with pytest.raises(EngineDeadError):
        table.ask(request())

    assert all(isinstance(fault, EngineDeadError) for fault in faults), faults
    wait_for(lambda: not engine_processes(), "the engine's end")
    log = Path(str(faults[0]).rsplit(" is in ", 1)[1])
    assert "V1 LLM engine" in log.read_text(), "the log of an engine that broke is kept"
