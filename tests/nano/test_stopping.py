"""When a completion ends, and what of it may be shown."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders
from tokenizers.models import BPE

from mac_runner.nano import SamplingParams, StopChecker, Tokenizer
from mac_runner.nano.testing import TextStream, Verdict
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


PIECES = ["".join(letters) for size in (1, 2, 3, 4) for letters in product("ab", repeat=size)]


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A tokenizer with a token for each of PIECES, by its place."""
    directory = tmp_path_factory.mktemp("pieces")
    fast = FastTokenizer(BPE({piece: index for index, piece in enumerate(PIECES)}, []))
    fast.decoder = decoders.ByteLevel()
    fast.save(str(directory / "tokenizer.json"))
    return Tokenizer(directory)


def stopped(pieces: Tokenizer, cut: Sequence[str], stops: tuple[str, ...]) -> tuple[str, int | str | None]:
    """What is shown of a text that comes in these pieces, and which stop text has ended it."""
    checker = StopChecker(params=SamplingParams(stop=stops), eos_token_ids=frozenset(), stream=TextStream(pieces))
    for index, piece in enumerate(cut):
        verdict = checker.push(PIECES.index(piece), is_full=index == len(cut) - 1)
        if verdict.finish_reason == "stop":
            return checker.shown, verdict.stop_reason
    return checker.shown, None


@pytest.mark.parametrize(
    ("stops", "shown", "reason"),
    [
        (("babb", "ab"), "b", "ab"),
        (("ab", "babb"), "b", "ab"),
        (("abb", "bb"), "b", "abb"),
        (("bb", "abb"), "b", "abb"),
        (("abb", "b"), "", "b"),
    ],
)
@pytest.mark.parametrize("cut", [("babb",), ("b", "a", "b", "b"), ("ba", "bb")])
def test_stop_text_that_is_complete_first_counts_and_of_several_the_longest(
    pieces: Tokenizer, cut: tuple[str, ...], stops: tuple[str, ...], shown: str, reason: str
) -> None:
    assert stopped(pieces, cut, stops) == (shown, reason)


@settings(max_examples=300)
@given(
    cut=st.lists(st.sampled_from(PIECES), min_size=1, max_size=4),
    stops=st.lists(st.sampled_from(PIECES), min_size=1, max_size=4, unique=True),
)
def test_completion_ends_at_the_same_place_however_its_text_is_cut(
    pieces: Tokenizer, cut: list[str], stops: list[str]
) -> None:
    whole = stopped(pieces, cut, tuple(stops))

    assert whole == stopped(pieces, "".join(cut), tuple(stops))
    assert whole == stopped(pieces, cut, tuple(reversed(stops)))


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
