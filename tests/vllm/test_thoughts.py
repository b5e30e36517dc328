"""A thinking model whose engine is told by a reasoning parser where a thought ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mac_runner.environments.discussion.testing import Found, Problem, read_fields
from mac_runner.environments.town_of_salem.testing import read_object
from mac_runner.types import JsonObject, Message, Prompt
from tests.patience import wait_for
from tests.sim import requests
from tests.vllm.processes import engine_processes
from tests.vllm.table import BOUND, Table, config, sampling, started
from tests.vllm.tiny_model import make_tiny_model

MESSAGES = (Message(role="user", content="Whom do you vote for?"),)
SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"act": {"const": "vote"}, "target": {"enum": ["Ann", "Bob"]}},
    "required": ["act", "target"],
    "additionalProperties": False,
}
REPLIES = 12


@pytest.fixture(
    scope="module",
    params=[pytest.param(False, id="plain tags", marks=pytest.mark.nightly), pytest.param(True, id="special tags")],
)
def table(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Table]:
    model = make_tiny_model(tmp_path_factory.mktemp("brief"), is_brief=True, has_special_tags=request.param)
    settings = config(
        model, reasoning_parser="deepseek_r1", chat_template_kwargs={"enable_thinking": True}, admission="full_context"
    )
    with started(settings) as table:
        yield table
    wait_for(lambda: not engine_processes(), "the engine's end")


def test_engine_that_admits_by_full_contexts_has_no_budget(table: Table) -> None:
    assert (table.backend.token_budget, table.backend.capacity) == (None, BOUND)


def test_form_begins_behind_a_thought_that_is_free(table: Table) -> None:
    """The model's words are chance: what it thinks is no JSON, and what it says behind it nothing but the form."""
    prompt = Prompt(messages=MESSAGES, schema=SCHEMA)
    replies = table.ask(
        *(requests.request(prompt=prompt, sampling=sampling(seed, max_tokens=400)) for seed in range(REPLIES))
    )

    thoughts = []
    for reply in replies:
        found = read_fields(reply, ["target"])
        if reply.text == "<think>":  # It was cut off, or stopped, in the thought.
            assert isinstance(found, Problem)
            continue
        thoughts.append(reply.thinking)
        assert isinstance(found, Found)
        assert found.get("target") in {"Ann", "Bob"}
        assert read_object(reply.text) == {"act": "vote", "target": found.get("target")}
        assert reply.text.startswith('{"act":"vote","target":"')
    assert any(thoughts)


def test_choice_comes_behind_a_thought_too(table: Table) -> None:
    prompt = Prompt(messages=MESSAGES, choices=("Ann", "Bob"))
    replies = table.ask(
        *(requests.request(prompt=prompt, sampling=sampling(seed, max_tokens=400)) for seed in range(REPLIES))
    )

    said = {reply.text for reply in replies} - {"<think>"}
    assert said
    assert said <= {"Ann", "Bob"}
    assert any(reply.thinking for reply in replies)


def test_nothing_is_told_at_the_start_of_an_engine_that_lets_its_model_think(table: Table) -> None:
    assert not table.told
