"""What a server means by refusing a request, in the words of each, and what becomes of the request over every wire."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from random import Random
from typing import Any, Final

import pytest

from mac_runner.backends.testing import ENDPOINT_STRIKES_MAX, ChatShape, Redactor, Refusal, error_body_of, refusal_of
from mac_runner.errors import FormRefusedError, RequestRefusedError
from mac_runner.types import FinishReason, JsonObject, JsonValue, Message, Prompt, Reply
from tests.backends.asking import KEY, WIRES, first, found, only, outcome, up
from tests.faults.tier import SCALE
from tests.sim.behaviour import Behaviour, Received, Say, Send, encoded
from tests.sim.held_time import held
from tests.sim.openai_server import OpenaiServer
from tests.sim.requests import request

UNKEYED = Redactor(None)
TOO_LONG = {
    "Alibaba": "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 129024]",
    "Anthropic": "prompt is too long: 215000 tokens > 200000 maximum",
    "Anthropic, with the reply": "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000",
    "Bedrock": "Input is too long for requested model.",
    "Cerebras": "Please reduce the length of the messages or completion. Current length is 9000 while limit is 8192",
    "Cohere": "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 6000",
    "DeepInfra": "Requested input length 39818 exceeds maximum input length 32767",
    "DeepSeek": "This model's maximum context length is 65536 tokens. However, you requested 70000 tokens",
    "Cohere, with the reply": "too many tokens: total number of tokens (prompt and prediction) cannot exceed 2048",
    "Fireworks": "The prompt is too long: 140000, model maximum context length: 131071",
    "Gemini": "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).",
    "GitHub": "prompt token count of 130000 exceeds the limit of 128000",
    "Groq": "Please reduce the length of the messages or completion.",
    "LM Studio": "Trying to keep the first 9000 tokens when context the overflows. However, the model is loaded with "
    "context length of only 4096 tokens, which is not enough",
    "LM Studio, older": "The number of tokens to keep from the initial prompt is greater than the context length.",
    "LiteLLM": "litellm.ContextWindowExceededError: litellm.BadRequestError: no more",
    "MiniMax": "invalid params, context window exceeds limit (2013)",
    "Mistral": "Prompt contains 40000 tokens, too large for model with 32768 maximum context length",
    "Moonshot": "Invalid request: Your request exceeded model token limit: 131072 (requested: 140000)",
    "OpenAI": "Your input exceeds the context window of this model. Please adjust your input and try again.",
    "OpenAI, configured": "Input tokens exceed the configured limit of 272000 tokens.",
    "OpenRouter": "This endpoint's maximum context length is 131072 tokens. However, you requested about 140000 tokens",
    "SGLang": "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
    "SGLang, with the reply": "Requested token count exceeds the model's maximum context length of 4096 tokens.",
    "Text Generation Inference": "Input validation error: `inputs` must have less than 4096 tokens. Given: 5000",
    "Poolside": "Input length 131393 exceeds the maximum allowed input length of 131040 tokens.",
    "Together": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs`",
    "llama.cpp": "request (9000 tokens) exceeds the available context size (8192 tokens), try increasing it",
    "llama.cpp, older": "input (9000 tokens) is larger than the max context size (8192 tokens). skipping",
    "llama-cpp-python": "Requested tokens (9000) exceed context window of 8192",
    "mac-serve": "the request exceeds the context: the prompt has 8198 tokens, longer than the context of 4096 allows",
    "vLLM": "max_tokens must be at least 1, got -46771. (parameter=max_tokens, value=-46771)",
    "vLLM, by one": "max_tokens must be at least 1, got 0.",
    "vLLM, counted": "Input length (9000) exceeds model's maximum context length (8192).",
    "vLLM, given": "The decoder prompt (length 9000) is longer than the maximum model length of 8192. Make sure",
    "vLLM, with the reply": "'max_tokens' or 'max_completion_tokens' is too large: 512. This model's maximum context "
    "length is 256 tokens and your request has 90 input tokens (512 > 256 - 90).",
    "xAI": "This model's maximum prompt length is 131072 but the request contains 537812 tokens",
    "Zhipu": "Prompt exceeds max length",
}
SYSTEM = {
    "Gemini": "Developer instruction is not enabled for models/gemma-3-27b-it",
    "OpenAI": "Unsupported value: 'messages[0].role' does not support 'system' with this model.",
    "a gateway": "role 'system' is not supported",
    "a gateway, of a model": "This model does not support system messages.",
    "a gateway, of a role": "messages[0]: Unsupported role 'system'",
    "a template, Gemma": "System role not supported",
    "a template, Mistral": "Only user and assistant roles are supported!",
    "a template, Ministral": "Only user, assistant and tool roles are supported, got system.",
    "a template, Qwen": "System message must be at the beginning.",
    "llama.cpp": "Jinja Exception: System role not supported",
}
ALTERNATION = {
    "Gemini": "Please ensure that multiturn requests alternate between user and model.",
    "Perplexity": "After the (optional) system message(s), user or tool message(s) should alternate with assistant",
    "a template": "Conversation roles must alternate user/assistant/user/assistant/... ",
    "a template, Mistral": "After the optional system message, conversation roles must alternate user and assistant",
}
REPLY = {
    "Groq": "Generated JSON does not match the expected schema. Please adjust your prompt. See 'failed_generation' for "
    "more details. Error: jsonschema: '/answer' does not validate",
    "Groq, any JSON": "Failed to generate JSON. Please adjust your prompt. See 'failed_generation' for more details.",
    "Groq, older": "Failed to validate JSON. Please adjust your prompt.",
    "LiteLLM": "litellm.JSONSchemaValidationError: model=m, returned an invalid response={}, for schema={}.",
}
CUT_OFF = {
    "Groq": "max completion tokens reached before generating a valid document",
    "OpenAI": "Could not finish the message because max_tokens or model output limit was reached. Please try again.",
}
FORM = {
    "OpenAI": "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model.",
    "vLLM": "The provided JSON schema contains features not supported by xgrammar.",
}
UNKNOWN = {
    "OpenAI": "Unsupported parameter: 'temperature' is not supported with this model.",
    "a bad limit": "Invalid 'max_tokens': integer below minimum value. Expected a value >= 1",
    "a filter": "The response was filtered due to the prompt triggering the content management policy",
    "a timeout": 'Post "http://127.0.0.1:41/completion": context deadline exceeded',
    "a timeout, too long": "waited too long: context canceled",
    "a file": "image is too large for the context",
    "a field": "Invalid 'user': string too long. Expected at most 64 characters in the context of chat",
    "a schema": "3 tools exceed the 128 tools in the context of a request",
    "a setting": "temperature must not exceed 2.0 in this context",
    "a stop": "Stop sequence is longer than the maximum context of 16 characters",
    "a quota": "You exceeded your current quota, please check your plan; context: organization",
    "memory, for a context": "model requires more system memory; context size 8192 exceeds available memory",
    "throttling, of a window": "Rate limit exceeded: too many tokens per minute for this context window",
    "throttling, of prompts": "Too many tokens in prompt per minute; limit exceeded for organization",
    "memory": "allocation too large: CUDA context is lost",
    "throttling": "Too many tokens, please wait before trying again.",
}
WORDS: Final[dict[Refusal | None, dict[str, str]]] = {
    Refusal.TOO_LONG: TOO_LONG,
    Refusal.SYSTEM: SYSTEM,
    Refusal.ALTERNATION: ALTERNATION,
    Refusal.REPLY: REPLY,
    Refusal.CUT_OFF: CUT_OFF,
    Refusal.FORM: FORM,
    None: UNKNOWN,
}


def with_other_numbers(words: str, chance: Random) -> str:
    """A positive number stays one, so that nothing else is said."""
    return re.sub(r"(?<![\d.-])[1-9]\d{2,}", lambda _match: str(chance.randrange(100, 10**7)), words)


def forms(words: str, status: int) -> dict[str, JsonValue]:
    """The bodies in which servers and gateways say something."""
    openai: JsonObject = {"error": {"message": words, "type": "invalid_request_error", "param": None, "code": None}}
    raw: JsonObject = {"message": "Provider returned error", "code": status, "metadata": {"raw": json.dumps(openai)}}
    return {
        "OpenAI": openai,
        "vLLM, older": {"object": "error", "message": words, "type": "BadRequestError", "code": status},
        "Ollama": {"error": words},
        "Gemini": [{"error": {"code": status, "message": words, "status": "INVALID_ARGUMENT"}}],
        "FastAPI": {"detail": words},
        "Mistral": {"object": "error", "message": {"detail": [{"msg": words}]}},
        "LiteLLM": {"error": {"message": f"litellm.BadRequestError: VendorException - {words}", "code": str(status)}},
        "OpenRouter": {"error": raw},
        "of no known form": {"errors": [{"reason": words}], "success": False},
    }


def test_words_mean_the_same_in_every_body_whatever_their_numbers() -> None:
    chance = Random(SCALE)
    wrong: list[tuple[str, str, object]] = []
    told_by = [(meaning, who, words) for meaning, said in WORDS.items() for who, words in said.items()]
    for _ in range(SCALE):
        for meaning, who, words in told_by:
            status = 400 if meaning is Refusal.FORM else chance.choice((400, 422, 500))
            told = with_other_numbers(words, chance)
            for form, body in forms(told, status).items():
                error = error_body_of(json.dumps(body).encode(), UNKEYED)
                if (made := refusal_of(status, error)) is not meaning:
                    wrong.append((who, form, made))
                if told[:40] not in error.quoted.replace('\\"', '"').replace('\\\\"', '"') and meaning is not None:
                    wrong.append((who, form, error.quoted))

    assert wrong == []


@pytest.mark.parametrize("status", [401, 404, 429, 502, 503])
def test_words_count_for_nothing_where_the_status_says_enough(status: int) -> None:
    said = [words for who in (TOO_LONG, SYSTEM, REPLY) for words in who.values()]

    assert {refusal_of(status, error_body_of(words.encode(), UNKEYED)) for words in said} <= {None, Refusal.FORM}


@pytest.mark.parametrize("protocol", WIRES)
@held
async def test_prompt_that_is_too_long_in_any_words_is_an_overflow_over_every_wire(protocol: str) -> None:
    wire, chance = WIRES[protocol], Random(protocol)
    said = [chance.choice([*TOO_LONG.values()]) for _ in range(6)]
    answers = [wire.fail(chance.choice((400, 422)), words) for words in said]
    answers += [wire.fail(413, "Request Entity Too Large")]
    async with up(wire.serve(first(*answers)), key=KEY) as backend:
        for _ in answers:
            reply = await found(backend)
            assert isinstance(reply, Reply), reply
            assert (reply.text, reply.finish_reason) == ("", FinishReason.OVERFLOW)


HELD_PROMPT = Prompt(messages=(Message(role="user", content="?"),), schema={"type": "object"})


@pytest.mark.parametrize("generation", ['{"answer": 3}', "<think>So.</think>I wait.", ""])
def test_reply_that_its_server_found_without_form_is_a_reply_to_correct(generation: str) -> None:
    """Also through a gateway. One that ran out of tokens is cut off."""
    for words in (*REPLY.values(), *CUT_OFF.values()):
        inner: JsonObject = {"message": words, "code": "json_validate_failed", "failed_generation": generation}
        if words == CUT_OFF["Groq"]:
            inner |= {"message": REPLY["Groq, any JSON"], "failed_generation": words}
        outer: JsonObject = {"message": "Provider returned error", "code": 400, "metadata": {"raw": {"error": inner}}}
        for error in (inner, outer):
            answer = Send(400, encoded({"error": error}))
            reply = outcome(OpenaiServer(script=first(answer)), request(prompt=HELD_PROMPT))

            assert isinstance(reply, Reply), reply
            assert reply.finish_reason is (FinishReason.STOP if words in REPLY.values() else FinishReason.LENGTH)
            if words in REPLY.values():
                assert reply.text == generation.rpartition("</think>")[2]


@pytest.mark.parametrize("protocol", WIRES)
def test_refusal_in_unknown_words_is_quoted_with_two_settings_worth_trying(protocol: str) -> None:
    body: JsonObject = {"errors": [{"why": "no \x1b[2J such thing", "more": "x" * 10_000}]}
    error = outcome(WIRES[protocol].serve(first(Send(400, encoded(body)))), request(prompt=HELD_PROMPT), key=KEY)

    assert isinstance(error, RequestRefusedError)
    assert not isinstance(error, FormRefusedError)
    assert str(error).isprintable()
    assert len(str(error)) < 500
    for words in ("status 400", "such thing", "constrained_decoding: none", " and "):
        assert words in str(error)


def templated(takes: ChatShape, words: dict[Refusal, str], status: int) -> Callable[[Received], Behaviour]:
    """A server whose chat template takes messages of one shape alone."""

    def script(received: Received) -> Behaviour:
        messages: Any = received.json["messages"]
        roles = [message["role"] for message in messages]
        if "system" in roles and not takes.has_system:
            return WIRES["openai"].fail(status, words[Refusal.SYSTEM])
        spoken = [role for role in roles if role != "system"]
        if takes.must_alternate and any(spoken[i] == spoken[i + 1] for i in range(len(spoken) - 1)):
            return WIRES["openai"].fail(status, words[Refusal.ALTERNATION])
        return Say("\n".join(message["content"] for message in messages))

    return script


@pytest.mark.parametrize("seed", range(6))
@held
async def test_messages_that_a_chat_template_refuses_are_rewritten_and_each_way_is_asked_once(seed: int) -> None:
    chance = Random(seed)
    takes = ChatShape(has_system=bool(seed & 1), must_alternate=bool(seed & 2))
    # Some templates without a system role only say that roles must alternate.
    says = {
        Refusal.SYSTEM: chance.choice([*SYSTEM.values(), *ALTERNATION.values()]),
        Refusal.ALTERNATION: chance.choice([*ALTERNATION.values()]),
    }
    server = OpenaiServer(script=templated(takes, says, chance.choice((400, 422, 424, 500))))
    said: list[str] = []
    async with up(server, said=said) as backend:
        for number in range(2 * ENDPOINT_STRIKES_MAX):
            contents = [f"word-{number}-{place}" for place in range(chance.randrange(3, 6))]
            roles = ["system", "user", *chance.choices(["user", "assistant"], k=len(contents) - 2)]
            if number == 0:
                roles[2] = "user"
            prompt = Prompt(
                messages=tuple(Message(role=role, content=text) for role, text in zip(roles, contents, strict=True))  # type: ignore[arg-type]
            )
            reply = await backend.generate(request(prompt=prompt))
            assert re.findall(r"word-\S+", reply.text) == contents

    refused = server.requests - 2 * ENDPOINT_STRIKES_MAX
    assert refused <= 2 * ((not takes.has_system) + takes.must_alternate)
    assert len(said) <= 2
    assert (refused > 0) is (takes != ChatShape()) is bool(said)


@pytest.mark.parametrize("protocol", ["ollama", "anthropic"])
@held
async def test_refused_system_message_goes_into_the_first_of_the_user_over_other_wires_too(protocol: str) -> None:
    wire, chance = WIRES[protocol], Random(protocol)
    words, status = chance.choice([*SYSTEM.values()]), chance.choice((400, 422, 500))
    seen: list[bool] = []

    def script(received: Received) -> Behaviour:
        seen.append("system" in received.json or b'"role":"system"' in received.body.replace(b'": "', b'":"'))
        return wire.fail(status, words) if seen[-1] else Say()

    prompt = Prompt(messages=(Message(role="system", content="rules"), Message(role="user", content="?")))
    async with up(wire.serve(script), key=KEY) as backend:
        for _ in range(3):
            await backend.generate(request(prompt=prompt))

    assert seen == [True, False, False, False]


def test_chat_template_that_takes_no_messages_at_all_refuses_the_request() -> None:
    messages = (
        Message(role="system", content="s"),
        Message(role="user", content="a"),
        Message(role="user", content="b"),
    )
    for words in (*SYSTEM.values(), *ALTERNATION.values()):
        server = OpenaiServer(script=only(WIRES["openai"].fail(500, words)))
        error = outcome(server, request(prompt=Prompt(messages=messages)))

        assert isinstance(error, RequestRefusedError)
        assert server.requests <= 4
