"""Text to tokens and back, and a model's chat template, which is foreign code."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from mac_runner.nano import InvalidRequestError, ModelError, Tokenizer
from mac_runner.nano.testing import TextStream
from tests.nano.tiny_models import ModelMaker, make_tokenizer


@pytest.fixture
def tokenizer(model: ModelMaker) -> Tokenizer:
    return Tokenizer(model("qwen2"))


def templated(directory: Path, template: object) -> Tokenizer:
    make_tokenizer().save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return Tokenizer(directory)


@pytest.mark.parametrize("text", ["", "plain", "Grüße, 世界 👋🏽!", "\n\t  spaces  "])
def test_text_comes_back_as_it_was(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("text", ["", "plain", "Grüße, 世界 👋🏽!", "e\u0301" * 50, "<|assistant|>" * 9])
def test_no_text_is_longer_than_its_tokens_allow(tokenizer: Tokenizer, text: str) -> None:
    assert len(text) <= (tokenizer.chars_max(len(tokenizer.encode(text))) or 0)


def test_tokens_that_stand_for_any_text_allow_any_length(tmp_path: Path) -> None:
    words = {"version": "1.0", "model": {"type": "WordLevel", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(words))

    assert Tokenizer(tmp_path).chars_max(1) is None


@pytest.mark.parametrize("name", ["messages", "self", "variables"])
def test_no_name_of_a_variable_takes_the_place_of_the_messages(tmp_path: Path, name: str) -> None:
    tokenizer = templated(tmp_path, "{{ messages[0].content }}")

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

    assert tokenizer.chat_text(messages) == "<|system|>Be brief.<|user|>Hi<|assistant|>"
    assert tokenizer.decode(tokenizer.encode_chat(messages), skip_special_tokens=False) == tokenizer.chat_text(messages)


def test_chat_template_of_a_file_of_its_own_wins(tmp_path: Path) -> None:
    templated(tmp_path, "old")
    (tmp_path / "chat_template.jinja").write_text("new {{ messages[0].content | tojson }} {{ name }}", encoding="utf-8")

    assert Tokenizer(tmp_path).chat_text([{"role": "user", "content": 'ü"'}], {"name": "x"}) == 'new "ü\\"" x'


def test_named_template_for_talking_is_the_default_one(tmp_path: Path) -> None:
    templates = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "talk"}]

    assert templated(tmp_path, templates).chat_text([]) == "talk"


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception('roles must alternate') }}",
        "{% for x in %}",
        "{{ messages[9].content.strip() }}",
        "{{ cycler.__init__.__globals__ }}",
    ],
)
def test_template_that_reaches_out_or_fails_is_an_error_of_the_request(tmp_path: Path, template: str) -> None:
    with pytest.raises(InvalidRequestError, match="chat template"):
        templated(tmp_path, template).chat_text([{"role": "user", "content": "Hi"}])


def test_model_without_a_template_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="no chat template"):
        templated(tmp_path, None).chat_text([])


def test_broken_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")

    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        Tokenizer(tmp_path)


def test_half_of_a_surrogate_pair_is_an_error_of_the_request(model: ModelMaker) -> None:
    with pytest.raises(InvalidRequestError, match="surrogates"):
        Tokenizer(model("qwen2")).encode("a\ud800")
