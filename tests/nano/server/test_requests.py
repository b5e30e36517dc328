"""What clients of both protocols send → jobs, in tables; whatever else comes is a refusal that names the field."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mac_runner.nano import NanoError, SamplingParams
from mac_runner.nano.testing import (
    ANY_OBJECT,
    JSON_PARTS_MAX,
    OLLAMA_DEFAULTS,
    Body,
    Chat,
    ChatBody,
    ChatMessage,
    ChatRequest,
    CompletionBody,
    GenerateRequest,
    Job,
    OllamaMessage,
    Options,
    RefusedError,
    parse_body,
)

MODEL = SamplingParams(temperature=0.6, top_k=20)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "m", "prompt": "hi"}


def chat(**more: object) -> Job:
    return parse_body(ChatBody, json.dumps({**CHAT, **more}).encode()).job(MODEL)


def text(**more: object) -> Job:
    return parse_body(CompletionBody, json.dumps({**TEXT, **more}).encode()).job(MODEL)


def ollama_job(*, can_think: bool = False, **more: object) -> Job | None:
    request = parse_body(ChatRequest, json.dumps({**CHAT, **more}).encode())
    return request.job(OLLAMA_DEFAULTS, has_template=True, can_think=can_think)


def generate_job(*, has_template: bool = True, can_think: bool = False, **more: object) -> Job | None:
    request = parse_body(GenerateRequest, json.dumps({**TEXT, **more}).encode())
    return request.job(OLLAMA_DEFAULTS, has_template=has_template, can_think=can_think)


def at_ollama(**more: object) -> Job:
    job = ollama_job(**more)  # type: ignore[arg-type]
    assert job is not None
    return job


def generate(**more: object) -> Job:
    job = generate_job(**more)  # type: ignore[arg-type]
    assert job is not None
    return job


Ask = Callable[..., Job]
OPENAI, OLLAMA = (chat, text), (at_ollama, generate)
SETTINGS: tuple[tuple[tuple[Ask, ...], dict[str, object], str, object], ...] = (
    (OPENAI, {}, "temperature", 0.6),
    (OPENAI, {"temperature": None}, "temperature", 0.6),
    (OPENAI, {"temperature": 0}, "temperature", 0),
    (OPENAI, {"top_p": 0.5}, "top_p", 0.5),
    (OPENAI, {}, "top_k", 20),
    (OPENAI, {"top_k": -1}, "top_k", 0),
    (OPENAI, {"min_p": 0.1}, "min_p", 0.1),
    (OPENAI, {"repetition_penalty": 1.2}, "repetition_penalty", 1.2),
    (OPENAI, {"presence_penalty": -1}, "presence_penalty", -1),
    (OPENAI, {"frequency_penalty": 0.5}, "frequency_penalty", 0.5),
    (OPENAI, {"seed": 7}, "seed", 7),
    (OPENAI, {"stop": "x"}, "stop", ("x",)),
    (OPENAI, {"stop": ["x", "y"]}, "stop", ("x", "y")),
    (OPENAI, {"stop_token_ids": [3]}, "stop_token_ids", frozenset({3})),
    (OPENAI, {"ignore_eos": True}, "ignore_eos", True),
    (OPENAI, {"max_tokens": 5}, "limit", 5),
    (OPENAI, {"response_format": {"type": "text"}}, "json_schema", None),
    (OPENAI, {"response_format": {"type": "json_object"}}, "json_schema", ANY_OBJECT),
    (OPENAI, {"structured_outputs": {"json_object": True}}, "json_schema", ANY_OBJECT),
    (OPENAI, {"structured_outputs": {"choice": ["a", "b"]}}, "choices", ("a", "b")),
    (OPENAI, {"structured_outputs": {"json": SCHEMA}}, "json_schema", json.dumps(SCHEMA)),
    (OPENAI, {"structured_outputs": {"json": "{}"}}, "json_schema", "{}"),
    ((chat,), {"max_tokens": 9, "max_completion_tokens": 5}, "limit", 5),
    ((text,), {}, "limit", 16),
    # Logprobs are counted in two ways.
    ((chat,), {"logprobs": True, "top_logprobs": 3}, "top_logprobs", 3),
    ((chat,), {"logprobs": True}, "top_logprobs", 0),
    ((text,), {"logprobs": 2}, "top_logprobs", 2),
    (OLLAMA, {}, "temperature", 0.8),
    (OLLAMA, {}, "top_k", 40),
    (OLLAMA, {"options": {"temperature": 0}}, "temperature", 0),
    (OLLAMA, {"options": {"top_k": 5}}, "top_k", 5),
    (OLLAMA, {"options": {"top_p": 0.5}}, "top_p", 0.5),
    (OLLAMA, {"options": {"min_p": 0.1}}, "min_p", 0.1),
    (OLLAMA, {"options": {"seed": 3}}, "seed", 3),
    (OLLAMA, {"options": {"repeat_penalty": 1.3}}, "repetition_penalty", 1.3),
    (OLLAMA, {"options": {"presence_penalty": 1}}, "presence_penalty", 1),
    (OLLAMA, {"options": {"frequency_penalty": 1}}, "frequency_penalty", 1),
    (OLLAMA, {"options": {"stop": ["x"]}}, "stop", ("x",)),
    (OLLAMA, {"options": {"num_predict": 9}}, "limit", 9),
    (OLLAMA, {"options": {"num_thread": 4, "num_gpu": 1, "use_mmap": True, "mirostat": 0}}, "temperature", 0.8),
    (OLLAMA, {"format": "json"}, "json_schema", ANY_OBJECT),
    (OLLAMA, {"format": {"type": "string"}}, "json_schema", '{"type": "string"}'),
    (OLLAMA, {"format": ""}, "json_schema", None),
    (OLLAMA, {"format": None}, "json_schema", None),
)


def test_settings_reach_the_engine() -> None:
    wrong = list[str]()
    for asks, sent, setting, value in SETTINGS:
        for ask in asks:
            job = ask(**sent)
            found = job.limit if setting == "limit" else getattr(job.params, setting)
            if found != value:
                wrong.append(f"{ask.__name__} {sent}: {setting} is {found}")

    assert wrong == []


def test_completion_goes_on_as_long_as_there_is_room_unless_told_and_the_context_may_be_shorter_than_the_models() -> (
    None
):
    endless = (chat(), at_ollama(), at_ollama(options={"num_predict": -1}))

    assert [job.limit for job in endless] == [None] * 3
    assert [job.limit for job in (text(), at_ollama(options={"num_predict": 3}))] == [16, 3]
    assert at_ollama(options={"num_ctx": 512}).context_tokens == 512


def test_schema_of_a_response_format_is_followed() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "reply", "schema": SCHEMA, "strict": True}}

    assert chat(response_format=form).params.json_schema == json.dumps(SCHEMA)


def test_messages_are_plain_text_in_the_roles_that_templates_know() -> None:
    messages = [
        {"role": "developer", "content": "rules"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "c"},
    ]
    said = [("system", "rules"), ("user", "ab"), ("assistant", "c")]

    job = chat(messages=messages, chat_template_kwargs={"enable_thinking": False})

    plain = tuple({"role": role, "content": content} for role, content in said)
    assert job.prompts == (Chat(messages=plain, variables={"enable_thinking": False}),)


def test_prompts_are_one_or_many_as_text_or_tokens() -> None:
    sent = ("a", ["a", "b"], [1, 2], [[1], [2, 3]])

    assert [text(prompt=each).prompts for each in sent] == [("a",), ("a", "b"), ((1, 2),), ((1,), (2, 3))]
    assert [text(prompt=each, n=3).num_samples for each in sent] == [3] * 4


def test_prompt_at_ollama_is_what_a_user_says_unless_it_is_raw() -> None:
    user, system = {"role": "user", "content": "hi"}, {"role": "system", "content": "rules"}
    raw = generate(raw=True, can_think=True)

    assert generate(system="rules").prompts == (Chat(messages=(system, user)),)
    assert (raw.prompts, raw.thinks) == (("hi",), False)
    assert generate(system="rules", has_template=False).prompts == ("rules\n\nhi",)


def test_model_that_can_think_does_unless_it_is_told_not_to_or_held_to_a_form() -> None:
    cases: tuple[tuple[dict[str, object], bool], ...] = (
        ({}, True),
        ({"think": True}, True),
        ({"think": "high"}, True),
        ({"think": False}, False),
        ({"format": "json"}, False),
    )
    for ask in OLLAMA:
        for sent, thinks in cases:
            job, of_another_model = ask(can_think=True, **sent), ask(**{**sent, "think": None})
            variables = [
                [each.variables for each in one.prompts if isinstance(each, Chat)] for one in (job, of_another_model)
            ]

            assert job.thinks == thinks, sent
            assert variables == [[{"enable_thinking": thinks}], [{}]], sent


def test_request_without_words_only_loads_the_model() -> None:
    assert ollama_job(messages=[]) is None
    assert generate_job(prompt="") is None


BAD_CALL = {"name": "look", "arguments": "{"}
UNSUPPORTED: tuple[tuple[Ask, dict[str, object], str], ...] = (
    (chat, {"logit_bias": {"5": 1}}, "logit_bias is not supported"),
    (chat, {"tools": [{"type": "function"}]}, "tools is not supported"),
    (chat, {"store": True}, "store is not supported"),
    (chat, {"messages": [{"role": "user", "content": None}]}, "content is missing"),
    (chat, {"messages": [{"role": "assistant", "tool_calls": [{"type": "function", "function": BAD_CALL}]}]}, "JSON"),
    (chat, {"top_logprobs": 2}, "top_logprobs needs logprobs"),
    (chat, {"response_format": {"type": "json_schema"}}, "needs json_schema"),
    (chat, {"response_format": {"type": "text", "json_schema": {"schema": {}}}}, "cannot have json_schema"),
    (chat, {"stream_options": {"include_usage": True}}, "needs stream"),
    (text, {"stream_options": {}, "stream": False}, "needs stream"),
    (chat, {"structured_outputs": {"json_object": True, "choice": ["a"]}}, "one of json, json_object and choice"),
    (
        chat,
        {"response_format": {"type": "json_object"}, "structured_outputs": {"choice": ["a"]}},
        "cannot be had together",
    ),
    (chat, {"stop": [""]}, "none empty"),
    (text, {"echo": True}, "echo"),
    (text, {"suffix": "x"}, "suffix"),
    (text, {"best_of": 3}, "best_of"),
    (at_ollama, {"think": True}, "does not support thinking"),
    (at_ollama, {"think": "banana"}, "think: "),
    (at_ollama, {"tools": [{}]}, "tools is not supported"),
    (at_ollama, {"format": "yaml"}, "format is 'json' or"),
    (at_ollama, {"options": {"mirostat": 1}}, "mirostat is not supported"),
    (at_ollama, {"options": {"repeat_last_n": 64}}, "repeat_last_n is not supported"),
    (at_ollama, {"options": {"num_predict": 0}}, "num_predict"),
    (at_ollama, {"messages": [{"role": "user", "content": "", "images": ["x"]}]}, "images is not supported"),
    (at_ollama, {"can_think": True, "think": True, "format": "json"}, "think .* with format"),
    (generate, {"can_think": True, "think": True, "raw": True}, "think .* with raw"),
    (generate, {"suffix": "x"}, "suffix is not supported"),
    (generate, {"template": "x"}, "template is not supported"),
    (generate, {"context": [1]}, "context is not supported"),
    (generate, {"images": [1]}, "images is not supported"),
)


def test_what_cannot_be_honoured_is_refused() -> None:
    for ask, sent, told in UNSUPPORTED:
        with pytest.raises(NanoError, match=told):
            ask(**sent)


def test_name_that_no_variable_of_a_template_can_have_is_refused() -> None:
    for name in ("messages", "self"):
        with pytest.raises(RefusedError) as caught:
            chat(chat_template_kwargs={"fine": 1, name: 1})

        assert caught.value.field == f"chat_template_kwargs.{name}"


def test_fields_that_ask_for_nothing_pass() -> None:
    chat(tools=[], logit_bias={}, user="u", metadata={"a": "b"}, store=False, tool_choice="none", n=None)
    text(echo=False, suffix=None, best_of=1)


# Whatever is sent.


KINDS = (ChatBody, CompletionBody, ChatRequest, GenerateRequest)
WRONG: tuple[tuple[type[Body], object, str | None], ...] = (
    (ChatBody, b"", None),
    (ChatBody, b"{", None),
    (ChatBody, b"[]", None),
    (ChatBody, b"\xff\xfe", None),
    (ChatBody, b'{"model": "\\ud800"', None),
    (ChatBody, {"messages": CHAT["messages"]}, "model"),
    (ChatBody, {**CHAT, "messages": []}, "messages"),
    (ChatBody, {**CHAT, "messages": [{"role": "robot", "content": ""}]}, "messages.0.role"),
    (ChatBody, {**CHAT, "messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content"),
    (ChatBody, {**CHAT, "max_tokens": "5"}, "max_tokens"),
    (ChatBody, {**CHAT, "max_tokens": 0}, "max_tokens"),
    (ChatBody, {**CHAT, "n": 100_000}, "n"),
    (ChatBody, {**CHAT, "top_p": 1.5}, "top_p"),
    (ChatBody, {**CHAT, "temperature": -1}, "temperature"),
    (ChatBody, {**CHAT, "temperature": float("nan")}, "temperature"),
    (ChatBody, {**CHAT, "tempreature": 1}, "tempreature"),
    (ChatBody, {**CHAT, "response_format": {"type": "yaml"}}, "response_format.type"),
    (ChatBody, {**CHAT, "structured_outputs": {"json_object": 1}}, "structured_outputs.json_object"),
    (ChatBody, {**CHAT, "structured_outputs": {"choice": []}}, "structured_outputs.choice"),
    (CompletionBody, {**TEXT, "logprobs": True}, "logprobs"),
    (CompletionBody, {**TEXT, "stop": ["x"] * 65}, "stop"),
    (CompletionBody, {**TEXT, "prompt": 3}, "prompt"),
    (CompletionBody, {**TEXT, "prompt": [[1], ["a"]]}, "prompt"),
    (ChatRequest, {**CHAT, "options": {"temprature": 1}}, "options.temprature"),
    (ChatRequest, {**CHAT, "options": {"num_predict": -9}}, "options.num_predict"),
    (GenerateRequest, {"model": 3}, "model"),
)


def test_what_is_wrong_is_named() -> None:
    for kind, content, field in WRONG:
        with pytest.raises(RefusedError) as caught:
            parse_body(kind, content if isinstance(content, bytes) else json.dumps(content).encode())

        assert (caught.value.status, caught.value.field) == (400, field), content
        assert not any(kind in str(caught.value) for kind in ("tuple[", "Many", ".str", "constrained"))


JSON_KINDS: tuple[object, ...] = (True, 1, "x", [[]], {"": []})
PARTS: tuple[tuple[type[Body], type[Body], Callable[[dict[str, object]], dict[str, object]]], ...] = (
    *((kind, kind, lambda part: part) for kind in KINDS),
    (ChatRequest, Options, lambda part: {"options": part}),
    (ChatRequest, OllamaMessage, lambda part: {"messages": [{"role": "user", **part}]}),
    (ChatBody, ChatMessage, lambda part: {"messages": [{"role": "user", "content": "", **part}]}),
)
"""A body, a part of it, and the fields of the body that has such a part."""


def test_no_field_takes_whatever_it_is_sent() -> None:
    lax = [
        f"{part.__name__}.{name}"
        for kind, part, within in PARTS
        for name in part.model_fields
        if sum(is_taken(kind, {**base_of(kind), **within({name: value})}) for value in JSON_KINDS) > 2
    ]

    assert lax == []


def base_of(kind: type[Body]) -> dict[str, object]:
    return {**(TEXT if "prompt" in kind.model_fields else CHAT)}


def is_taken(kind: type[Body], body: dict[str, object]) -> bool:
    try:
        parse_body(kind, json.dumps(body).encode())
    except RefusedError:
        return False
    return True


def test_number_that_json_does_not_have_is_refused_wherever_it_is_and_its_name_in_a_text_is_not() -> None:
    for kind in KINDS:
        base = base_of(kind)
        for value in (float("nan"), float("inf"), -float("inf")):
            for name in kind.model_fields:
                assert not is_taken(kind, {**base, name: value}), name
                assert not is_taken(kind, {**base, name: {"deep": [value]}}), name
    assert is_taken(CompletionBody, {**TEXT, "prompt": "NaN, -Infinity"})


def test_earlier_calls_of_tools_reach_the_template() -> None:
    function = {"name": "look", "arguments": '{"at": 3}'}
    spoken = [
        {"role": "assistant", "content": None, "tool_calls": [{"id": "7", "type": "function", "function": function}]},
        {"role": "tool", "content": "a cat", "tool_call_id": "7"},
    ]
    call = {"function": {"name": "look", "arguments": {"at": 3}}}
    at_ollama_spoken = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "a cat", "tool_name": "look"},
    ]
    plain: list[dict[str, object]] = [
        {"role": "assistant", "content": "", "tool_calls": [{"id": "7", "type": "function", **call}]},
        {"role": "tool", "content": "a cat", "tool_call_id": "7"},
    ]
    plain_at_ollama: list[dict[str, object]] = [
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", **call}]},
        {"role": "tool", "content": "a cat", "name": "look"},
    ]

    assert chat(messages=spoken).prompts == (Chat(messages=tuple(plain)),)
    assert at_ollama(messages=at_ollama_spoken).prompts == (Chat(messages=tuple(plain_at_ollama)),)


@given(st.sampled_from(KINDS), st.binary() | st.recursive(st.none() | st.text(), st.lists).map(repr).map(str.encode))
def test_nothing_else_ever_comes_of_garbage(kind: type[Body], content: bytes) -> None:
    with pytest.raises(RefusedError):
        parse_body(kind, content)


def arrays(schema: object) -> Iterator[dict[str, object]]:
    """Every array in a validator's schema."""
    for each in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list | tuple) else ():
        yield from arrays(each)
    if isinstance(schema, dict) and schema.get("type") == "tuple":  # Lists are of JSON that may be anything.
        yield schema


@pytest.mark.parametrize("kind", KINDS)
def test_look_at_an_array_ends_with_the_first_item_at_fault(kind: type[Body]) -> None:
    """A body has room for millions of them, and an error for each would take all memory and time."""
    assert all(array.get("fail_fast") for array in arrays(kind.__pydantic_core_schema__))


def test_body_has_few_arrays_and_objects_and_strings_do_not_count() -> None:
    """Parsed, each takes some hundred bytes for the two or three it was sent in."""
    for more in (b"[],", b"{},", b"[[[[]]]],", b'"]",[],', b'"\\\\",[],', b'"\\"",{},', b'"\xff",[],'):
        body = b'{"model": "m", "prompt": [' + more * (JSON_PARTS_MAX + 1) + b'"'
        with pytest.raises(RefusedError, match="100000 arrays and objects"):
            parse_body(CompletionBody, body)
    for text in ("[" * (JSON_PARTS_MAX + 1), '{"a": "[\\"]"}' * JSON_PARTS_MAX, '\\"' * 3 + "{" * JSON_PARTS_MAX):
        assert parse_body(CompletionBody, json.dumps({"model": "m", "prompt": text}).encode()).prompt == text
    with pytest.raises(RefusedError, match="EOF while parsing"):
        parse_body(CompletionBody, b'{"model": "' + b'\\"[' * JSON_PARTS_MAX * 2)


def test_many_unknown_fields_are_only_counted() -> None:
    with pytest.raises(RefusedError, match="20000 fields"):
        parse_body(ChatBody, json.dumps({**CHAT, **{f"field{index}": 1 for index in range(20_000)}}).encode())


def test_an_error_quotes_little() -> None:
    with pytest.raises(RefusedError) as caught:
        parse_body(ChatBody, json.dumps({**CHAT, **{f"{index}{'x' * 5000}": 1 for index in range(50)}}).encode())

    assert len(str(caught.value)) < 2500
    assert "(and 47 more)" in str(caught.value)
