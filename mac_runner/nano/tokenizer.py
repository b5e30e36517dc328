"""Text to tokens and back: a thin layer over the `tokenizers` library, and the model's chat template in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, NoReturn

from jinja2 import Template, TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.models import BPE

from mac_runner.nano.checkpoint import read_json
from mac_runner.nano.errors import InvalidRequestError, ModelError

Variables = Mapping[str, object]
NO_VARIABLES: Variables = MappingProxyType({})
REPLACEMENT = "\ufffd"
_NORMALIZED_CHARS_MAX = 4
"""The most characters that a normaliser joins: NFC composes a Greek letter and three marks."""
_CHARACTER_TOKENS_MAX = 8
"""Tokens that are not a character after this many never will be; a character has at most four bytes."""


class Tokenizer:
    """A model's tokenizer."""

    reserved_variables: ClassVar = frozenset({"messages", "self"})
    """Names that every chat template defines itself, so no variable can have them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / "tokenizer.json"
        self.definition = _read_text(self.path)
        try:
            self._fast = FastTokenizer.from_str(self.definition)
        except Exception as error:  # The library raises nothing more specific.
            raise ModelError(f"{self.path} is not a readable tokenizer: {error}") from error
        self._settings = read_json(directory / "tokenizer_config.json")
        self.chat_template = _read_template(directory, self._settings)
        """The Jinja template of messages; a base model often has none."""
        self._template: Template | None = None  # Compiled at first use: a broken one affects only its users.

    @property
    def vocab_size(self) -> int:
        return int(self._fast.get_vocab_size(with_added_tokens=True))

    def chars_max(self, num_tokens: int) -> int | None:
        """The longest text of so many tokens, in characters; None where one token may encode a text of any length."""
        return None if self._longest_chars is None else num_tokens * self._longest_chars * _NORMALIZED_CHARS_MAX

    @cached_property
    def _longest_chars(self) -> int | None:
        model = self._fast.model
        is_whole = isinstance(model, BPE) and (not model.fuse_unk or model.unk_token is None or model.byte_fallback)
        return max(map(len, self._fast.get_vocab())) if is_whole else None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The tokens of a text. Raises InvalidRequestError for half of a surrogate pair, which UTF-8 cannot encode."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequestError(f"a text that is not Unicode has no tokens: {error}") from error
        return list(self._fast.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of some tokens. An incomplete character becomes U+FFFD."""
        return str(self._fast.decode(list(token_ids), skip_special_tokens=skip_special_tokens))

    def token_id(self, token: str) -> int | None:
        """The id of a token with this text; None if the tokenizer has none."""
        found = self._fast.token_to_id(token)
        return None if found is None else int(found)

    def chat_text(self, messages: Sequence[Mapping[str, object]], variables: Variables = NO_VARIABLES, /) -> str:
        """A conversation in the model's format, ready for its answer, with all special tokens in it.

        `variables` are further values for the template, under any names but the reserved ones. Raises
        InvalidRequestError.
        """
        if self.chat_template is None:
            raise InvalidRequestError(f"{self.directory} has no chat template: send a prompt instead of messages")
        known = {"add_generation_prompt": True, **_special_tokens(self._settings), **variables, "messages": messages}
        try:
            self._template = self._template or _sandbox().from_string(self.chat_template)
            return self._template.render(known)
        except (
            TemplateError,
            ArithmeticError,
            AttributeError,
            LookupError,
            RecursionError,
            TypeError,
            ValueError,
        ) as error:
            raise InvalidRequestError(
                f"the chat template of {self.directory} refuses these messages: {error}"
            ) from error


class TextStream:
    """The text of a growing list of tokens, piece by piece.

    Some tokens end in the middle of a character, and some tokenizers write a token differently at the start of a
    text. So a few tokens are decoded again with every new one. A piece is held back while it ends in half a character.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._num_given = 0

    def push(self, token_id: int) -> str:
        """The text this token completes; often empty."""
        self._tokens.append(token_id)
        before = self._tokenizer.decode(self._tokens[: self._num_given])
        text = self._tokenizer.decode(self._tokens)
        is_half = text.endswith(REPLACEMENT) and len(self._tokens) - self._num_given < _CHARACTER_TOKENS_MAX
        if is_half or len(text) <= len(before):
            return ""
        # The last piece stays as context for the next; everything before it can go.
        del self._tokens[: self._num_given]
        self._num_given = len(self._tokens)
        return text[len(before) :]

    def finish(self) -> str:
        """The text that was held back."""
        before = self._tokenizer.decode(self._tokens[: self._num_given])
        text = self._tokenizer.decode(self._tokens)
        self._num_given = len(self._tokens)
        return text[len(before) :]


def load_tokenizer(directory: Path) -> Tokenizer | None:
    """The tokenizer of a model's directory, if it has one: an engine that gets token ids needs none."""
    return Tokenizer(directory) if (directory / "tokenizer.json").is_file() else None


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except ValueError as error:
        raise ModelError(f"{path} is not a text in UTF-8: {error}") from error


def _read_template(directory: Path, settings: Mapping[str, object]) -> str | None:
    if (file := directory / "chat_template.jinja").is_file():
        return _read_text(file)
    template = settings.get("chat_template")
    if isinstance(template, list):
        # Several templates by name; the one for chat is called `default`.
        named = {entry["name"]: entry["template"] for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _special_tokens(settings: Mapping[str, object]) -> dict[str, str]:
    """The texts of `bos_token` and others, which templates write out."""
    found = {}
    for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
        value = settings.get(name)
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str):
            found[name] = value
    return found


def _sandbox() -> ImmutableSandboxedEnvironment:
    """The sandbox of templates: they come with a model from anywhere, so they must not reach out or change their input.

    They do not see the date, which would change a prompt every day: pass `date_string` for that. For the same reason
    nothing in them is random.
    """
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _to_json
    del environment.filters["random"], environment.globals["lipsum"]
    environment.globals["raise_exception"] = _refuse
    return environment


def _to_json(value: object, ensure_ascii: bool = False, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)
