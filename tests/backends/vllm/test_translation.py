"""What vLLM is asked for a request, and what its outputs and errors are to us."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mac_runner.backends.testing import Rendered
from mac_runner.backends.vllm.testing import ErrorClasses, reply_of, sampling_settings
from mac_runner.errors import EngineCrashedError, MacRunnerError, RequestRefusedError, TransientBackendError
from mac_runner.types import FinishReason, JsonObject, Message, Prompt, Reply, Sampling, TokenCount, TokenTrace
from tests.sim.requests import EVERY_SETTING, SETTINGS

PLAIN = Prompt(messages=(Message(role="user", content="ask"),))
SCHEMA: JsonObject = {"type": "object"}


def settings(
    sampling: Sampling, *, defaults: JsonObject | None = None, traces: bool = False, **form: Any
) -> dict[str, object]:
    prompt = Prompt(messages=PLAIN.messages, **form)
    return sampling_settings(sampling, prompt, defaults=defaults or {}, traces=traces)


def test_every_setting_goes_through_under_its_name_and_the_models_own_where_nothing_is_set() -> None:
    made = settings(Sampling(top_p=0.5, seed=1), defaults={"top_p": 0.95, "top_k": 20, "temperature": 0.6})

    assert settings(EVERY_SETTING) == SETTINGS
    assert made == {"top_p": 0.5, "top_k": 20, "temperature": 1.0, "max_tokens": 512, "stop": [], "seed": 1}


def test_a_schema_constrains_the_reply_and_choices_do_where_there_is_none() -> None:
    both = settings(Sampling(), choices=("a",), schema=SCHEMA)

    assert settings(Sampling(), schema=SCHEMA)["json"] == both["json"] == SCHEMA
    assert settings(Sampling(), choices=("a", "b"))["choice"] == ["a", "b"]
    assert "choice" not in both


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
    likely = [{token: SimpleNamespace(logprob=value) for token, value in each.items()} for each in LOGPROBS]

    assert reply(logprobs=likely, traces=True).trace == TokenTrace(
        prompt_ids=(1, 2, 3), completion_ids=(7, 8), logprobs=(-0.5, -1.5)
    )


LOGPROBS = ({7: -0.5, 9: -0.1}, {8: -1.5})


@pytest.mark.parametrize("reason", ["abort", "error", None])
def test_request_that_the_engine_gave_up_is_worth_asking_again(reason: str | None) -> None:
    with pytest.raises(TransientBackendError, match=f"unfinished: {reason}"):
        reply(reason=reason)


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
