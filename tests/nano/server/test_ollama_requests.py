"""Ollama's requests → jobs, a table of both."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from mac_runner.nano import NanoError
from mac_runner.nano.testing import (
    ANY_OBJECT,
    OLLAMA_DEFAULTS,
    Chat,
    ChatRequest,
    GenerateRequest,
    Job,
    ShowRequest,
    parse_body,
)


def chat(*, can_think: bool = False, **more: object) -> Job | None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **more}
    request = parse_body(ChatRequest, json.dumps(body).encode())
    return request.job(OLLAMA_DEFAULTS, has_template=True, can_think=can_think)


def generate(*, has_template: bool = True, can_think: bool = False, **more: object) -> Job | None:
    body = {"model": "m", "prompt": "hi", **more}
    request = parse_body(GenerateRequest, json.dumps(body).encode())
    return request.job(OLLAMA_DEFAULTS, has_template=has_template, can_think=can_think)


@pytest.mark.parametrize(
    ("options", "setting", "value"),
    [
        ({}, "temperature", 0.8),
        ({}, "top_k", 40),
        ({"temperature": 0}, "temperature", 0),
        ({"top_k": 5}, "top_k", 5),
        ({"top_p": 0.5}, "top_p", 0.5),
        ({"min_p": 0.1}, "min_p", 0.1),
        ({"seed": 3}, "seed", 3),
        ({"repeat_penalty": 1.3}, "repetition_penalty", 1.3),
        ({"presence_penalty": 1}, "presence_penalty", 1),
        ({"frequency_penalty": 1}, "frequency_penalty", 1),
        ({"stop": ["x"]}, "stop", ("x",)),
        ({"num_predict": 9}, "max_tokens", 9),
        ({"num_thread": 4, "num_gpu": 1, "use_mmap": True, "mirostat": 0}, "temperature", 0.8),
    ],
)
def test_options_reach_the_engine(options: dict[str, object], setting: str, value: object) -> None:
    for job in (chat(options=options), generate(options=options)):
        assert job is not None
        assert getattr(job.params, setting) == value


@pytest.mark.parametrize(
    ("options", "is_open_ended"), [({}, True), ({"num_predict": -1}, True), ({"num_predict": 3}, False)]
)
def test_completion_goes_on_as_long_as_there_is_room_unless_told(
    options: dict[str, object], is_open_ended: bool
) -> None:
    job = chat(options=options)

    assert job is not None
    assert job.is_open_ended == is_open_ended


@pytest.mark.parametrize(
    ("form", "schema"), [("json", ANY_OBJECT), ({"type": "string"}, '{"type": "string"}'), ("", None), (None, None)]
)
def test_format_is_json_or_a_schema(form: object, schema: str | None) -> None:
    job = chat(format=form)

    assert job is not None
    assert job.params.json_schema == schema


def test_context_may_be_shorter_than_the_models() -> None:
    job = chat(options={"num_ctx": 512})

    assert job is not None
    assert job.context_tokens == 512


def test_prompt_is_what_a_user_says_unless_it_is_raw() -> None:
    user, system = {"role": "user", "content": "hi"}, {"role": "system", "content": "rules"}

    said, raw = generate(system="rules"), generate(raw=True, can_think=True)
    untaught = generate(system="rules", has_template=False)

    assert said is not None
    assert raw is not None
    assert untaught is not None
    assert said.prompts == (Chat(messages=(system, user)),)
    assert (raw.prompts, raw.thinks) == (("hi",), False)
    assert untaught.prompts == ("rules\n\nhi",)


@pytest.mark.parametrize("ask", [chat, generate])
@pytest.mark.parametrize(
    ("sent", "thinks"),
    [
        ({}, True),
        ({"think": True}, True),
        ({"think": "high"}, True),
        ({"think": False}, False),
        ({"format": "json"}, False),
    ],
)
def test_model_that_can_think_does_unless_it_is_told_not_to_or_held_to_a_form(
    ask: Callable[..., Job | None], sent: dict[str, object], thinks: bool
) -> None:
    job, of_another_model = ask(can_think=True, **sent), ask(**{**sent, "think": None})

    assert job is not None
    assert of_another_model is not None
    assert job.thinks == thinks
    assert [prompt.variables for prompt in job.prompts if isinstance(prompt, Chat)] == [{"enable_thinking": thinks}]
    assert [prompt.variables for prompt in of_another_model.prompts if isinstance(prompt, Chat)] == [{}]


def test_thoughts_cannot_be_had_together_with_a_form_or_about_a_raw_prompt() -> None:
    with pytest.raises(NanoError, match=r"think .* with format"):
        chat(can_think=True, think=True, format="json")
    with pytest.raises(NanoError, match=r"think .* with raw"):
        generate(can_think=True, think=True, raw=True)


def test_request_without_words_only_loads_the_model() -> None:
    assert chat(messages=[]) is None
    assert generate(prompt="") is None


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        ({"think": True}, "does not support thinking"),
        ({"think": "banana"}, "think: "),
        ({"tools": [{}]}, "tools is not supported"),
        ({"format": "yaml"}, "format is 'json' or"),
        ({"options": {"mirostat": 1}}, "mirostat is not supported"),
        ({"options": {"repeat_last_n": 64}}, "repeat_last_n is not supported"),
        ({"options": {"num_predict": 0}}, "num_predict"),
        ({"messages": [{"role": "user", "content": "", "images": ["x"]}]}, "images is not supported"),
    ],
)
def test_what_cannot_be_honoured_is_refused(sent: dict[str, Any], told: str) -> None:
    with pytest.raises(NanoError, match=told):
        chat(**sent)


@pytest.mark.parametrize("name", ["suffix", "template", "context", "images"])
def test_what_generate_cannot_do_is_refused(name: str) -> None:
    with pytest.raises(NanoError, match=f"{name} is not supported"):
        parse_body(GenerateRequest, json.dumps({"model": "m", name: [1]}).encode()).job(
            OLLAMA_DEFAULTS, has_template=True, can_think=False
        )


def test_older_clients_call_the_model_name() -> None:
    assert parse_body(ShowRequest, b'{"name": "m"}').asked_for == "m"
