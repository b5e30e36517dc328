"""OpenAI's requests → jobs, a table of both."""

from __future__ import annotations

import json

import pytest

from mac_runner.nano import NanoError, SamplingParams
from mac_runner.nano.testing import ANY_OBJECT, Chat, ChatBody, CompletionBody, Job, RefusedError, parse_body

MODEL = SamplingParams(temperature=0.6, top_k=20)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def chat(**more: object) -> Job:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **more}
    return parse_body(ChatBody, json.dumps(body).encode()).job(MODEL)


def text(**more: object) -> Job:
    return parse_body(CompletionBody, json.dumps({"model": "m", "prompt": "hi", **more}).encode()).job(MODEL)


@pytest.mark.parametrize(
    ("sent", "setting", "value"),
    [
        ({}, "temperature", 0.6),
        ({"temperature": None}, "temperature", 0.6),
        ({"temperature": 0}, "temperature", 0),
        ({"top_p": 0.5}, "top_p", 0.5),
        ({}, "top_k", 20),
        ({"top_k": -1}, "top_k", 0),
        ({"min_p": 0.1}, "min_p", 0.1),
        ({"repetition_penalty": 1.2}, "repetition_penalty", 1.2),
        ({"presence_penalty": -1}, "presence_penalty", -1),
        ({"frequency_penalty": 0.5}, "frequency_penalty", 0.5),
        ({"seed": 7}, "seed", 7),
        ({"stop": "x"}, "stop", ("x",)),
        ({"stop": ["x", "y"]}, "stop", ("x", "y")),
        ({"stop_token_ids": [3]}, "stop_token_ids", frozenset({3})),
        ({"ignore_eos": True}, "ignore_eos", True),
        ({"max_tokens": 5}, "max_tokens", 5),
        ({"response_format": {"type": "text"}}, "json_schema", None),
        ({"response_format": {"type": "json_object"}}, "json_schema", ANY_OBJECT),
        ({"structured_outputs": {"json_object": True}}, "json_schema", ANY_OBJECT),
        ({"structured_outputs": {"choice": ["a", "b"]}}, "choices", ("a", "b")),
        ({"structured_outputs": {"json": SCHEMA}}, "json_schema", json.dumps(SCHEMA)),
        ({"structured_outputs": {"json": "{}"}}, "json_schema", "{}"),
    ],
)
def test_settings_reach_the_engine(sent: dict[str, object], setting: str, value: object) -> None:
    assert getattr(chat(**sent).params, setting) == value
    assert getattr(text(**sent).params, setting) == value


@pytest.mark.parametrize("name", ["messages", "self"])
def test_name_that_no_variable_of_a_template_can_have_is_refused(name: str) -> None:
    with pytest.raises(RefusedError) as caught:
        chat(chat_template_kwargs={"fine": 1, name: 1})

    assert caught.value.refusal.field == f"chat_template_kwargs.{name}"


def test_schema_of_a_response_format_is_followed() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "reply", "schema": SCHEMA, "strict": True}}

    assert chat(response_format=form).params.json_schema == json.dumps(SCHEMA)


def test_chat_goes_to_the_end_of_the_context_and_a_text_goes_on_for_sixteen_tokens() -> None:
    assert chat().is_open_ended
    assert (text().is_open_ended, text().params.max_tokens) == (False, 16)
    assert chat(max_tokens=9, max_completion_tokens=5).params.max_tokens == 5


def test_messages_are_plain_text_in_the_roles_that_templates_know() -> None:
    messages = [
        {"role": "developer", "content": "rules"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "c"},
    ]

    job = chat(messages=messages, chat_template_kwargs={"enable_thinking": False})

    assert job.prompts == (
        Chat(
            messages=(
                {"role": "system", "content": "rules"},
                {"role": "user", "content": "ab"},
                {"role": "assistant", "content": "c"},
            ),
            variables={"enable_thinking": False},
        ),
    )


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ("a",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ((1, 2),)),
        ([[1], [2, 3]], ((1,), (2, 3))),
    ],
)
def test_prompts_are_one_or_many_as_text_or_tokens(prompt: object, prompts: object) -> None:
    assert text(prompt=prompt, n=3).prompts == prompts
    assert text(prompt=prompt, n=3).num_samples == 3


def test_logprobs_are_counted_in_two_ways() -> None:
    assert chat(logprobs=True, top_logprobs=3).params.top_logprobs == 3
    assert chat(logprobs=True).params.top_logprobs == 0
    assert text(logprobs=2).params.top_logprobs == 2


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        ({"logit_bias": {"5": 1}}, "logit_bias is not supported"),
        ({"tools": [{"type": "function"}]}, "tools is not supported"),
        ({"top_logprobs": 2}, "top_logprobs needs logprobs"),
        ({"response_format": {"type": "json_schema"}}, "needs json_schema"),
        (
            {"structured_outputs": {"json_object": True, "choice": ["a"]}},
            "one of json, json_object and choice",
        ),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": {"choice": ["a"]}},
            "cannot be had together",
        ),
        ({"stop": [""]}, "none empty"),
    ],
)
def test_what_cannot_be_honoured_is_refused(sent: dict[str, object], told: str) -> None:
    with pytest.raises(NanoError, match=told):
        chat(**sent)


@pytest.mark.parametrize(
    ("sent", "told"), [({"echo": True}, "echo"), ({"suffix": "x"}, "suffix"), ({"best_of": 3}, "best_of")]
)
def test_what_a_text_completion_cannot_do_is_refused(sent: dict[str, object], told: str) -> None:
    with pytest.raises(NanoError, match=told):
        text(**sent)


def test_fields_that_ask_for_nothing_pass() -> None:
    chat(tools=[], logit_bias={}, user="u", metadata={"a": "b"}, store=False, tool_choice="none", n=None)
    text(echo=False, suffix=None, best_of=1)
