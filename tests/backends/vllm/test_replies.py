from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from mac_runner.backends.testing import Rendered
from mac_runner.backends.vllm.testing import reply_of
from mac_runner.errors import TransientBackendError
from mac_runner.types import FinishReason, Reply, TokenCount, TokenTrace


@dataclass
class Logprob:
    logprob: float


@dataclass
class Completion:
    text: str = "yes"
    token_ids: tuple[int, ...] = (7, 8)
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = "stop"


@dataclass
class Output:
    outputs: list[Completion] = field(default_factory=lambda: [Completion()])
    num_cached_tokens: int | None = 2


def reply(completion: Completion, *, is_thinking: bool = False, cached: int | None = 2, traces: bool = False) -> Reply:
    output = Output([completion], cached)
    return reply_of(output, Rendered("ask", [1, 2, 3]), is_thinking=is_thinking, traces=traces)  # type: ignore[arg-type]


def test_reply_carries_text_reason_and_tokens() -> None:
    assert reply(Completion()) == Reply(
        text="yes", finish_reason=FinishReason.STOP, tokens=TokenCount(prompt=3, cached=2, completion=2)
    )


def test_cut_reply_says_so_and_nothing_cached_counts_as_zero() -> None:
    cut = reply(Completion(finish_reason="length"), cached=None)

    assert cut.finish_reason is FinishReason.LENGTH
    assert cut.tokens.cached == 0


def test_reasoning_that_the_prompt_opened_stays_reasoning_when_it_is_cut_off() -> None:
    cut = reply(Completion(text="so", finish_reason="length"), is_thinking=True)
    whole = reply(Completion(text="so </think>\n\nyes"), is_thinking=True)

    assert (cut.text, cut.thinking) == ("<think>", "so")
    assert (whole.text, whole.thinking) == ("yes", "so")


def test_thought_in_the_tags_of_the_models_parser_is_set_apart_too(subtests: pytest.Subtests) -> None:
    rows = [
        ("<seed:think>so</seed:think>yes", False, ("yes", "so")),
        ("so</seed:think>yes", True, ("yes", "so")),
        ("<seed:think>so", False, ("<think>", "so")),
        ("so", True, ("<think>", "so")),
        ("yes", False, ("yes", None)),
    ]
    for text, is_thinking, found in rows:
        with subtests.test(text):
            output = Output([Completion(text=text)], 0)
            rendered = Rendered("ask", [1, 2, 3])
            tags = ("<seed:think>", "</seed:think>")
            made = reply_of(output, rendered, is_thinking=is_thinking, traces=False, tags=tags)  # type: ignore[arg-type]

            assert (made.text, made.thinking) == found


def test_trace_holds_the_drawn_tokens_likelihoods_and_no_others() -> None:
    logprobs = [{7: Logprob(-0.5), 9: Logprob(-0.1)}, {8: Logprob(-1.5)}]

    assert reply(Completion(logprobs=logprobs), traces=True).trace == TokenTrace(
        prompt_ids=(1, 2, 3), completion_ids=(7, 8), logprobs=(-0.5, -1.5)
    )


@pytest.mark.parametrize("reason", ["abort", "error", None])
def test_request_that_the_engine_gave_up_is_worth_asking_again(reason: str | None) -> None:
    with pytest.raises(TransientBackendError, match=f"unfinished: {reason}"):
        reply(Completion(finish_reason=reason))
