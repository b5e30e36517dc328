"""Text to tokens and back, a model's chat template, which is foreign code, and where a completion's text ends."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders
from tokenizers.models import BPE

from mac_runner.nano import InvalidRequestError, ModelError, SamplingParams, StopChecker, Tokenizer
from mac_runner.nano.testing import TextStream, Verdict
from tests.nano.tiny_models import EOS, ModelMaker, make_tokenizer


@pytest.fixture
def tokenizer(model: ModelMaker) -> Tokenizer:
    return Tokenizer(model("qwen2"))


def templated(directory: Path, template: object) -> Tokenizer:
    make_tokenizer().save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return Tokenizer(directory)


TEXTS = ("", "plain", "Grüße, 世界 👋🏽!", "\n\t  spaces  ", "e\u0301" * 50, "<|assistant|>" * 9)


def test_text_comes_back_as_it_was_and_is_no_longer_than_its_tokens_allow(tokenizer: Tokenizer) -> None:
    for text in TEXTS:
        tokens = tokenizer.encode(text)
        assert tokenizer.decode(tokens, skip_special_tokens=False) == text
        assert len(text) <= (tokenizer.chars_max(len(tokens)) or 0)


def test_tokens_that_stand_for_any_text_allow_any_length(tmp_path: Path) -> None:
    words = {"version": "1.0", "model": {"type": "WordLevel", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(words))

    assert Tokenizer(tmp_path).chars_max(1) is None


def test_no_name_of_a_variable_takes_the_place_of_the_messages(tmp_path: Path) -> None:
    tokenizer = templated(tmp_path, "{{ messages[0].content }}")

    for name in ("messages", "self", "variables"):
        assert tokenizer.chat_text([{"role": "user", "content": "Hi"}], {name: "x"}) == "Hi"


def test_special_tokens_are_left_out_of_text_unless_asked_for(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("a<|end|>")

    assert tokenizer.decode(tokens) == "a"
    assert tokenizer.decode(tokens, skip_special_tokens=False) == "a<|end|>"
    assert tokens[-1] == tokenizer.token_id("<|end|>") == 256


def test_stream_gives_whole_characters_that_add_up_to_the_text(tokenizer: Tokenizer) -> None:
    text = "a – 世 👋🏽 end"
    stream = TextStream(tokenizer)
    pieces = [stream.push(token) for token in tokenizer.encode(text)]

    assert "".join(pieces) + stream.finish() == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_stream_of_any_tokens_adds_up_and_forgets_what_is_done_with(tokenizer: Tokenizer) -> None:
    """A model may say bytes that are no text."""
    chance = Random(0)
    for _ in range(50):
        tokens = [chance.randrange(256) for _ in range(60)]
        stream = TextStream(tokenizer)
        said = "".join(stream.push(token) for token in tokens) + stream.finish()
        assert said.replace("\ufffd", "") == tokenizer.decode(tokens).replace("\ufffd", "")
        assert len(stream._tokens) < 20


def test_chat_template_is_filled_in(tokenizer: Tokenizer) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]

    text = tokenizer.chat_text(messages)
    tokens = tokenizer.encode(text, add_special_tokens=False)

    assert text == "<|system|>Be brief.<|user|>Hi<|assistant|>" == tokenizer.decode(tokens, skip_special_tokens=False)


def test_chat_template_of_a_file_of_its_own_wins(tmp_path: Path) -> None:
    templated(tmp_path, "old")
    (tmp_path / "chat_template.jinja").write_text("new {{ messages[0].content | tojson }} {{ name }}", encoding="utf-8")

    assert Tokenizer(tmp_path).chat_text([{"role": "user", "content": 'ü"'}], {"name": "x"}) == 'new "ü\\"" x'


def test_named_template_for_talking_is_the_default_one(tmp_path: Path) -> None:
    templates = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "talk"}]

    assert templated(tmp_path, templates).chat_text([]) == "talk"


FAULTY = (
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.append(1) }}",
    "{{ raise_exception('roles must alternate') }}",
    "{% for x in %}",
    "{{ messages[9].content.strip() }}",
    "{{ cycler.__init__.__globals__ }}",
)


def test_template_that_reaches_out_or_fails_or_is_not_there_is_an_error_of_the_request(tmp_path: Path) -> None:
    for template in FAULTY:
        with pytest.raises(InvalidRequestError, match="chat template"):
            templated(tmp_path, template).chat_text([{"role": "user", "content": "Hi"}])
    with pytest.raises(InvalidRequestError, match="no chat template"):
        templated(tmp_path, None).chat_text([])


def test_half_of_a_surrogate_pair_is_an_error_of_the_request_and_a_broken_tokenizer_is_named(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    with pytest.raises(InvalidRequestError, match="surrogates"):
        tokenizer.encode("a\ud800")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        Tokenizer(tmp_path)


# When a completion ends, and what of it may be shown.


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


def test_stop_text_is_never_shown_nor_what_could_become_one_until_it_cannot(tokenizer: Tokenizer) -> None:
    shown, verdicts = said(tokenizer, "Hello END and more", stop=("END",))
    assert (shown, verdicts[-1]) == ("Hello ", Verdict("", "stop", "END"))

    shown, verdicts = said(tokenizer, "EN EN! over", stop=("END",))
    assert shown == "EN EN! over"
    assert [verdict.text for verdict in verdicts[:3]] == ["", "", "EN "]

    shown, verdicts = said(tokenizer, "the EN", stop=("END",))
    assert (shown, verdicts[-1].finish_reason) == ("the EN", "length")


def test_first_of_several_stop_texts_counts_also_in_characters_of_several_bytes(tokenizer: Tokenizer) -> None:
    assert said(tokenizer, "abcdef", stop=("f", "cd", "de"))[0] == "ab"
    assert said(tokenizer, "おはよう。さようなら", stop=("。",))[0] == "おはよう"


def test_end_of_turn_stops_unless_it_is_ignored_and_a_stop_token_is_told(tokenizer: Tokenizer) -> None:
    assert said(tokenizer, "a<|end|>b")[1][-1] == Verdict("", "stop", None)
    assert said(tokenizer, "a<|end|>b", ignore_eos=True)[0] == "ab"
    shown, verdicts = said(tokenizer, "abc", stop_token_ids=frozenset(tokenizer.encode("b")))
    assert (shown, verdicts[-1]) == ("a", Verdict("", "stop", tokenizer.encode("b")[0]))


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
