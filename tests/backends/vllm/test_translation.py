"""What vLLM and its tokenizer are asked for a request, and what outputs and errors are to us."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from mac_runner.backends.testing import (
    JSON_OBJECT,
    ChatShape,
    ErrorClasses,
    Rendered,
    Renderer,
    Tokenizer,
    is_free_to_think,
    renderer_for,
    renderers_for,
    reply_of,
    sampling_settings,
    structured_outputs,
)
from mac_runner.errors import (
    ConfigError,
    EngineCrashedError,
    MacRunnerError,
    RequestRefusedError,
    TransientBackendError,
)
from mac_runner.types import (
    FinishReason,
    JsonObject,
    JsonValue,
    Message,
    Prompt,
    Reply,
    Sampling,
    TokenCount,
    TokenTrace,
)
from tests.sim.requests import EVERY_SETTING, SETTINGS

ASK = Message(role="user", content="ask")
PROMPT = (Message(role="system", content="rules"), ASK)
SECTION = ("model_definitions", "m", "vllm_config")
SCHEMA: JsonObject = {"type": "object"}


def settings(sampling: Sampling, *, defaults: JsonObject | None = None, traces: bool = False) -> dict[str, object]:
    return sampling_settings(sampling, defaults=defaults or {}, traces=traces)


def test_every_setting_goes_through_under_its_name_and_the_models_own_where_nothing_is_set() -> None:
    made = settings(Sampling(top_p=0.5, seed=1), defaults={"top_p": 0.95, "top_k": 20, "temperature": 0.6})

    assert settings(EVERY_SETTING) == SETTINGS
    assert made == {"top_p": 0.5, "top_k": 20, "temperature": 1.0, "max_tokens": 512, "stop": [], "seed": 1}


def test_a_schema_constrains_the_reply_and_choices_do_where_there_is_none() -> None:
    def form(**offered: Any) -> JsonObject:
        return structured_outputs(Prompt(messages=(ASK,), **offered))

    assert form() == {}
    assert form(schema=SCHEMA) == form(choices=("a",), schema=SCHEMA) == {"json": SCHEMA}
    assert form(choices=("a", "b")) == {"choice": ["a", "b"]}
    assert form(schema=JSON_OBJECT) == {"json_object": True}


def test_likelihoods_are_asked_for_only_to_be_recorded() -> None:
    assert settings(Sampling(), traces=True)["logprobs"] == 0
    assert "logprobs" not in settings(Sampling())


def reply(
    text: str = "yes", reason: str | None = "stop", *, logprobs: object = None, cached: int | None = 2, **how: Any
) -> Reply:
    """The reply of two tokens to a prompt of three."""
    completion = SimpleNamespace(text=text, token_ids=(7, 8), logprobs=logprobs, finish_reason=reason)
    output: Any = SimpleNamespace(outputs=[completion], num_cached_tokens=cached)
    return reply_of(output, Rendered("ask", [1, 2, 3]), **{"is_thinking": False, "traces": False, **how})


def test_reply_carries_text_reason_and_tokens() -> None:
    cut = reply("so", "length", cached=None)

    assert reply() == Reply(text="yes", tokens=TokenCount(prompt=3, cached=2, completion=2))
    assert (cut.text, cut.finish_reason, cut.tokens.cached) == ("so", FinishReason.LENGTH, 0)


TAGS = {"tags": ("<seed:think>", "</seed:think>")}


@pytest.mark.parametrize(
    ("text", "is_thinking", "tags", "found"),
    [
        # The prompt opened the thought.
        ("so", True, {}, ("<think>", "so")),
        ("so </think>\n\nyes", True, {}, ("yes", "so")),
        # It stands in the tags of the model's parser.
        ("<seed:think>so</seed:think>yes", False, TAGS, ("yes", "so")),
        ("so</seed:think>yes", True, TAGS, ("yes", "so")),
        ("<seed:think>so", False, TAGS, ("<think>", "so")),
        ("so", True, TAGS, ("<think>", "so")),
        ("yes", False, TAGS, ("yes", None)),
    ],
)
def test_thought_is_set_apart_and_stays_one_when_it_is_cut_off(
    text: str, is_thinking: bool, tags: dict[str, Any], found: tuple[str, str | None]
) -> None:
    made = reply(text, is_thinking=is_thinking, **tags)

    assert (made.text, made.thinking) == found


def test_trace_holds_the_drawn_tokens_likelihoods_and_no_others() -> None:
    drawn, other, last = (SimpleNamespace(logprob=value) for value in (-0.5, -0.1, -1.5))

    assert reply(logprobs=[{7: drawn, 9: other}, {8: last}], traces=True).trace == TokenTrace(
        prompt_ids=(1, 2, 3), completion_ids=(7, 8), logprobs=(-0.5, -1.5)
    )


@pytest.mark.parametrize("reason", ["abort", "error", None])
def test_request_that_the_engine_gave_up_is_worth_asking_again(reason: str | None) -> None:
    with pytest.raises(TransientBackendError, match=f"unfinished: {reason}"):
        reply(reason=reason)


def test_oddity_of_an_output_is_held_against_no_engine() -> None:
    """Counts decide nothing, a reason of the engine's own is kept, and what is no reply fails its request alone."""
    assert reply(reason="repetition", cached=-1) == replace(
        reply(cached=None), finish_reason=FinishReason("repetition")
    )
    drawn = SimpleNamespace(logprob=-0.5)
    odd: list[dict[str, Any]] = [
        {"text": "", "reason": "repetition"},
        *({"reason": reason} for reason in ("abort", "error", None)),
        *({"traces": True, "logprobs": likely} for likely in (None, [{7: drawn}], [{7: drawn}, {9: drawn}])),
    ]
    for how in odd:
        with pytest.raises(TransientBackendError) as caught:
            reply(**how)
        assert (caught.value.has_answered, caught.value.is_attempt) == (True, True), how


class VllmError(Exception):
    """As vLLM's own of all errors."""


class ClientError(VllmError): ...


class DeadError(VllmError): ...


class GenerateError(VllmError):
    """Wraps whatever vLLM met on the way, and says nothing itself."""


ERRORS = ErrorClasses(base=VllmError, client=ClientError, dead=DeadError)


@pytest.mark.parametrize(
    ("raised", "cause", "told", "text"),
    [
        (DeadError(), None, EngineCrashedError, "vLLM's engine process has ended; it is said why"),
        (ClientError("too hot"), None, RequestRefusedError, "vLLM refuses the request: too hot"),
        (GenerateError(), ValueError("needs top_k"), RequestRefusedError, "vLLM refuses the request: needs top_k"),
        (GenerateError(), OSError("broke"), TransientBackendError, "vLLM did not answer: OSError: broke"),
        (VllmError("hm"), None, TransientBackendError, "vLLM did not answer: VllmError: hm"),
    ],
)
def test_error_says_what_is_to_be_done_and_what_happened(
    raised: Exception, cause: Exception | None, told: type[MacRunnerError], text: str
) -> None:
    with pytest.raises(MacRunnerError) as caught, ERRORS.verdicts(lambda: "it is said why"):
        raise raised from cause

    assert type(caught.value) is told
    assert str(caught.value) == text


class Code:
    """A tokenizer whose tokens are letters and whose template is code. An experiment may bring another one."""

    template: str | None = "code"

    def apply_chat_template(
        self, messages: list[dict[str, str]], /, *, tokenize: bool, add_generation_prompt: bool, **kwargs: JsonValue
    ) -> str | list[int]:
        assert add_generation_prompt
        template = kwargs.get("chat_template", self.template)
        if template is None:
            raise ValueError("tokenizer.chat_template is not set")
        if template == "{{ broken":
            raise SyntaxError("unexpected end of template")
        if template == "deaf":
            return "<user>"
        text = "".join(f"<{message['role']}>{message['content']}" for message in messages)
        text = f"{text}<assistant>{'<think>' if kwargs.get('enable_thinking') else ''}"
        return self.encode(text, add_special_tokens=False) if tokenize else text

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [*([0] if add_special_tokens else []), *map(ord, text)]

    def decode(self, ids: list[int], /) -> str:
        return "".join(map(chr, ids))


class Letters(Code):
    """One whose template is a text, if it has any."""

    def __init__(self, template: str | None = "tags") -> None:
        self.chat_template = self.template = template


class HiddenCode(Code):
    """One whose template is code, and that says it has none."""

    chat_template = None


class Mistral(Code):
    """One that does not know its special tokens when they stand in a text: their numbers are others'."""

    def apply_chat_template(
        self, messages: list[dict[str, str]], /, *, tokenize: bool, add_generation_prompt: bool, **kwargs: JsonValue
    ) -> str | list[int]:
        text = "".join(f"[{message['role']}]{message['content']}" for message in messages)
        ids = [-ord(char) if char in "[]" else ord(char) for char in text]
        return ids if tokenize else text

    def decode(self, ids: list[int], /) -> str:
        return "".join(chr(abs(token)) for token in ids)


class Parser:
    """Finds a thought open behind an opening bracket."""

    def is_reasoning_end(self, input_ids: object) -> bool:
        return input_ids != [ord("<")]


def renderer(tokenizer: Tokenizer, **settings: JsonValue) -> Renderer:
    return renderer_for(tokenizer, settings, section=SECTION)


@pytest.mark.parametrize("tokenizer", [Letters(), Code(), HiddenCode()])
def test_prompt_is_rendered_by_the_models_template_whether_text_or_code(tokenizer: Tokenizer) -> None:
    rendered = renderer(tokenizer).render(PROMPT)

    assert rendered.text == "<system>rules<user>ask<assistant>"
    assert rendered.ids == list(map(ord, rendered.text))


def renderers(
    tokenizer: Tokenizer, settings: dict[str, JsonValue], asking: dict[bool, str]
) -> dict[bool | None, Renderer]:
    return renderers_for(partial(renderer_for, tokenizer, section=SECTION), settings, asking, section=SECTION)


def test_template_is_switched_by_its_settings_and_as_each_agent_asks() -> None:
    settings: dict[str, JsonValue] = {"enable_thinking": True}
    made = renderers(Letters(), settings, {False: "quick"})

    assert renderer(Letters(), **settings).shape == ChatShape(opens_thought=True)
    ends = {thinking: each.render((ASK,)).text.removeprefix("<user>ask") for thinking, each in made.items()}
    assert ends == {None: "<assistant><think>", True: "<assistant><think>", False: "<assistant>"}
    assert list(renderers(Letters(), {}, {})) == [None]


def test_thinking_is_refused_where_the_template_has_no_switch() -> None:
    with pytest.raises(ConfigError, match=r"vllm_config\.model: .* 'enable_thinking', .*'deep'"):
        renderers(Mistral(), {}, {True: "deep"})


def test_tokens_that_no_text_stands_for_are_taken_from_the_template() -> None:
    rendered = renderer(Mistral()).render((ASK,))

    assert rendered.text == "[user]ask"
    assert rendered.ids == [-ord("["), *map(ord, "user"), -ord("]"), *map(ord, "ask")]


def test_base_model_gets_plain_text_unless_the_experiment_brings_a_template() -> None:
    bare, given = renderer(Letters(template=None)), renderer(Letters(template=None), chat_template="tags")

    assert bare.render(PROMPT).text == "### System\nrules\n\n### User\nask\n\n### Assistant\n"
    assert bare.render(PROMPT).ids[0] == 0  # Its own special token.
    assert given.shape == ChatShape()
    assert given.render(PROMPT).text == "<system>rules<user>ask<assistant>"


@pytest.mark.parametrize("template", ["{{ broken", "deaf"])
@pytest.mark.parametrize("tokenizer", [Letters(), HiddenCode()])
def test_settings_no_prompt_can_be_written_with_are_bad_input(tokenizer: Tokenizer, template: str) -> None:
    with pytest.raises(ConfigError, match=r"vllm_config\.chat_template_kwargs: ") as caught:
        renderer(tokenizer, chat_template=template)

    assert caught.value.key == (*SECTION, "chat_template_kwargs")
    with pytest.raises(ConfigError, match="a user's message") as told:
        renderer(Letters("{{ broken"))
    assert told.value.key == (*SECTION, "model")  # Its own template is the model's fault.


@pytest.mark.parametrize(
    ("form", "ids", "parser", "is_free"),
    [
        ({}, "<", None, True),
        ({"choices": ("a", "b")}, "<", None, False),
        ({"schema": {"type": "object"}}, "<", None, False),
        ({"schema": {"type": "object"}}, "<", Parser(), True),
        ({"choices": ("a",)}, "a", Parser(), False),  # It finds no open thought.
    ],
)
def test_form_leaves_room_for_a_thought_only_where_a_parser_finds_its_end(
    form: dict[str, Any], ids: str, parser: Parser | None, is_free: bool
) -> None:
    assert is_free_to_think(Prompt(messages=(ASK,), **form), [*map(ord, ids)], parser) is is_free
