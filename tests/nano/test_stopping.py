"""When a completion ends, and what of it may be shown."""

from __future__ import annotations

import pytest

from mac_runner.nano import SamplingParams, Tokenizer
from mac_runner.nano.stopping import StopChecker, Verdict
from mac_runner.nano.tokenizer import TextStream
from tests.nano.tiny_models import EOS, ModelMaker


@pytest.fixture
def tokenizer(model: ModelMaker) -> Tokenizer:
    return Tokenizer(model("qwen2"))


def said(tokenizer: Tokenizer, text: str, **settings: object) -> tuple[str, list[Verdict]]:
    """Say a text token by token until it stops; what was shown, and the verdicts."""
    params = SamplingParams(**settings)  # type: ignore[arg-type]
    checker = StopChecker(params=params, eos_token_ids=frozenset({EOS}), stream=TextStream(tokenizer))
    tokens, verdicts = tokenizer.encode(text), list[Verdict]()
    for index, token in enumerate(tokens):
        verdicts.append(checker.push(token, is_full=index == len(tokens) - 1))
        if verdicts[-1].finish_reason:
            break
    assert "".join(verdict.text for verdict in verdicts) == checker.shown
    return checker.shown, verdicts


def test_stop_text_over_several_tokens_is_never_shown(tokenizer: Tokenizer) -> None:
    shown, verdicts = said(tokenizer, "Hello END and more", stop=("END",))

    assert shown == "Hello "
    assert verdicts[-1] == Verdict("", "stop", "END")


def test_what_could_become_a_stop_text_is_kept_back_until_it_cannot(tokenizer: Tokenizer) -> None:
    shown, verdicts = said(tokenizer, "EN EN! over", stop=("END",))

    assert shown == "EN EN! over"
    assert [verdict.text for verdict in verdicts[:3]] == ["", "", "EN "]


def test_first_of_several_stop_texts_counts(tokenizer: Tokenizer) -> None:
    assert said(tokenizer, "abcdef", stop=("f", "cd", "de"))[0] == "ab"


def test_text_that_ends_half_way_to_a_stop_text_is_shown(tokenizer: Tokenizer) -> None:
    shown, verdicts = said(tokenizer, "the EN", stop=("END",))

    assert (shown, verdicts[-1].finish_reason) == ("the EN", "length")


def test_end_of_turn_stops_unless_it_is_ignored(tokenizer: Tokenizer) -> None:
    assert said(tokenizer, "a<|end|>b")[1][-1] == Verdict("", "stop", None)
    assert said(tokenizer, "a<|end|>b", ignore_eos=True)[0] == "ab"


def test_stop_token_is_told(tokenizer: Tokenizer) -> None:
    shown, verdicts = said(tokenizer, "abc", stop_token_ids=frozenset(tokenizer.encode("b")))

    assert (shown, verdicts[-1]) == ("a", Verdict("", "stop", tokenizer.encode("b")[0]))


def test_stop_text_in_characters_of_several_bytes(tokenizer: Tokenizer) -> None:
    assert said(tokenizer, "おはよう。さようなら", stop=("。",))[0] == "おはよう"
