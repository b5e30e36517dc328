"""What the backend does in its own way: what a request holds, and how it starts."""

from __future__ import annotations

import json

import pytest

from mac_runner.backends.openai import OpenaiConfig
from mac_runner.backends.testing import CANARY, JSON_OBJECT, ChatShape, OpenaiDialect
from mac_runner.errors import ConfigError
from mac_runner.types import JsonObject, JsonValue, Message, Prompt, Sampling
from tests.backends.asking import reply_of, up
from tests.sim.behaviour import Send, failure
from tests.sim.held_time import held
from tests.sim.openai_server import OpenaiServer
from tests.sim.requests import request


@pytest.mark.parametrize(("endpoint", "path"), [("chat", "/v1/chat/completions"), ("completions", "/v1/completions")])
def test_completions_are_asked_for_at_their_path_and_health_nowhere(endpoint: str, path: str) -> None:
    server = OpenaiServer()
    reply_of(server, settings={"endpoint": endpoint})

    assert [received.path for received in server.received] == [path]
    assert server.pages == ["/v1/models"]


@held
async def test_setting_that_every_request_is_refused_for_is_bad_input() -> None:
    def refuse(_received: object) -> Send:
        return failure(400, "use max_completion_tokens")

    with pytest.raises(ConfigError, match="status 400: use max_completion_tokens") as caught:
        async with up(OpenaiServer(page=refuse, script=refuse)):
            pass
    assert caught.value.key == ("model_definitions", "m", "openai_config", "base_urls")


@pytest.mark.parametrize("status", [403, 404, 405])
def test_server_that_does_not_list_its_models_is_known_by_a_completion(status: int) -> None:
    server = OpenaiServer(page=lambda _received: failure(status, "not for you"))

    assert reply_of(server).text
    assert [received.is_canary for received in server.received] == [True, False]


@held
async def test_start_names_the_server_whose_model_is_missing_and_the_models_there_are() -> None:
    with pytest.raises(ConfigError, match=r"'stub'; .*: gemma, llama") as caught:
        async with up(OpenaiServer(), OpenaiServer(models=("llama", "gemma"))):
            pass
    assert caught.value.key == ("model_definitions", "m", "openai_config", "base_urls", 1)


MESSAGES = (Message(role="system", content="Be brief."), Message(role="user", content="Aye or nay? “ja”"))
SCHEMA: JsonObject = {"type": "object", "properties": {"act": {"const": "vote"}}}


def config(**settings: JsonValue) -> OpenaiConfig:
    return OpenaiConfig.model_validate({"model": "m", "base_urls": ["http://h/v1"], **settings})


def body(
    settings: OpenaiConfig, *, sampling: Sampling | None = None, has_tokens: bool = False, **prompt: object
) -> JsonObject:
    asked = request(prompt=Prompt(messages=MESSAGES, **prompt), sampling=sampling or Sampling(seed=7))  # type: ignore[arg-type]
    found: JsonObject = json.loads(OpenaiDialect(settings, has_tokens=has_tokens).body(asked, ChatShape()))
    return found


def test_chat_body_holds_what_is_set_and_nothing_else() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Aye or nay? “ja”"}]

    whole = {"model": "m", "temperature": 1.0, "max_tokens": 512, "seed": 7, "messages": messages}
    assert body(config()) == whole


def test_each_agent_says_how_much_it_thinks() -> None:
    """An agent's switch goes before the model's, which holds for the other agents."""
    openai, vllm = config(), config(server="vllm", chat_template_kwargs={"enable_thinking": True, "x": 1})
    effort = body(openai, sampling=Sampling(reasoning_effort="minimal", verbosity="low"))
    off = body(vllm, sampling=Sampling(thinking=False, reasoning_effort="low"))
    on = body(config(server="vllm"), sampling=Sampling(thinking=True))

    assert (effort["reasoning_effort"], effort["verbosity"]) == ("minimal", "low")
    assert "chat_template_kwargs" not in effort
    assert (off["reasoning_effort"], off["chat_template_kwargs"]) == ("low", {"enable_thinking": False, "x": 1})
    assert on["chat_template_kwargs"] == {"enable_thinking": True}
    assert body(vllm)["chat_template_kwargs"] == {"enable_thinking": True, "x": 1}


def test_limit_goes_by_the_name_the_server_wants() -> None:
    settings = config(reply_limit_parameter="max_completion_tokens")

    assert body(settings)["max_completion_tokens"] == 512
    assert "max_tokens" not in body(settings)
    assert json.loads(OpenaiDialect(settings, has_tokens=False).body(CANARY, ChatShape()))["max_completion_tokens"] == 1


@pytest.mark.parametrize("server", ["openai", "vllm"])
def test_completions_are_sent_the_prompt_as_plain_text(server: str) -> None:
    settings = config(endpoint="completions", server=server)
    sent = body(settings)

    assert isinstance(sent["prompt"], str)
    assert sent["prompt"].startswith("### System\nBe brief.")
    assert "messages" not in sent
    assert json.loads(OpenaiDialect(settings, has_tokens=False).body(CANARY, ChatShape()))["prompt"].startswith(
        "### User\nHi"
    )


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_vllm_is_held_to_schema_or_choices(endpoint: str) -> None:
    settings = config(server="vllm", endpoint=endpoint)

    assert body(settings, schema=SCHEMA)["structured_outputs"] == {"json": SCHEMA}
    assert body(settings, choices=("<a/>", "<b/>"))["structured_outputs"] == {"choice": ["<a/>", "<b/>"]}
    assert body(settings, choices=("<a/>", "<b/>"), schema=SCHEMA)["structured_outputs"] == {"json": SCHEMA}
    assert body(settings, schema=JSON_OBJECT)["structured_outputs"] == {"json_object": True}


def test_other_servers_are_held_to_a_schema_where_the_protocol_can() -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "reply", "schema": SCHEMA}}

    assert body(config(), schema=SCHEMA)["response_format"] == wanted
    assert body(config(), schema=SCHEMA, choices=("<a/>",))["response_format"] == wanted
    assert body(config(), schema=JSON_OBJECT)["response_format"] == {"type": "json_object"}
    for sent in (body(config(), choices=("<a/>",)), body(config(endpoint="completions"), schema=SCHEMA)):
        assert not {"response_format", "structured_outputs"} & set(sent)


def test_token_ids_and_logprobs_are_asked_for_when_they_are_recorded() -> None:
    chat = body(config(server="vllm"), has_tokens=True)
    completions = body(config(server="vllm", endpoint="completions"), has_tokens=True)

    assert (chat["return_token_ids"], chat["logprobs"]) == (True, True)
    assert (completions["return_token_ids"], completions["logprobs"]) == (True, 1)
