"""A key is shown nowhere: at most four of its characters in a row, or a word, however a server repeats it."""

from __future__ import annotations

import asyncio
import json
import random
import string
import time
import tracemalloc
from base64 import b64encode, urlsafe_b64encode
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from itertools import product
from typing import Final
from urllib.parse import quote

import httpx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ollama import ProgressResponse, ResponseError

from mac_runner.backends.ollama import OllamaConfig
from mac_runner.backends.testing import (
    ENGINE_ERROR_CHARS_MAX,
    KEY_CHARS_MAX,
    WITHHELD,
    Answer,
    Dialect,
    OllamaDialect,
    Redactor,
    SendingError,
    clipped,
    follow_pull,
    key_in,
    page_of,
    read_answer,
    redacting,
    told,
    unpacked,
)
from mac_runner.clock import SystemClock
from mac_runner.errors import ConfigError, MacRunnerError, TransientBackendError
from mac_runner.types import JsonValue
from tests.sim.leaks import leak_in
from tests.sim.openai_run import dialect_of
from tests.sim.requests import request

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PRINTABLE: Final = string.ascii_letters + string.digits + string.punctuation.replace("*", "")


def random_key(chars: str, size: int, prefix: str = "sk-") -> str:
    chance = random.Random(size)
    return prefix + "".join(chance.choice(chars) for _ in range(size - len(prefix)))


KEYS: Final = {
    "short": random_key(string.ascii_letters + string.digits, 20),
    "long": random_key(string.ascii_letters + string.digits + "-_", 164, "sk-proj-"),
    "base64": random_key(string.ascii_letters + string.digits + "+/", 48, "") + "==",
    "odd": random_key(PRINTABLE, 40),
}


def _each(form: str) -> Callable[[str], str]:
    return lambda key: "".join(form.format(ord(char)) for char in key)


def _in_json(key: str) -> str:
    return json.dumps(key)[1:-1]


ENCODINGS: Final[dict[str, Callable[[str], str]]] = {
    "plain": lambda key: key,
    "upper case": str.upper,
    "lower case": str.lower,
    "other case": str.swapcase,
    "JSON": _in_json,
    "JSON in JSON": lambda key: _in_json(_in_json(key)),
    "JSON with slashes escaped": lambda key: _in_json(key).replace("/", "\\/"),
    "JSON, all escaped": _each("\\u{:04x}"),
    "JSON, all escaped in capitals": _each("\\u{:04X}"),
    "JSON, all escaped twice": _each("\\\\u{:04x}"),
    "JSON, signs escaped": lambda key: "".join(char if char.isalnum() else f"\\u{ord(char):04X}" for char in key),
    "x escapes": _each("\\x{:02x}"),
    "bytes of Python": lambda key: repr(key.encode())[2:-1],
    "HTML, decimal": _each("&#{};"),
    "HTML, hexadecimal": _each("&#x{:X};"),
    "HTML, with zeros": _each("&#{:05};"),
    "HTML, twice": _each("&amp;#{};"),
    "HTML, signs by name": lambda key: key.replace("&", "&amp;").replace("-", "&hyphen;").replace("+", "&plus;"),
    "percent": lambda key: quote(key, safe=""),
    "percent, all": _each("%{:02x}"),
    "percent, all, twice": _each("%25{:02X}"),
    "percent in JSON": lambda key: "".join(f"\\u0025{ord(char):02x}" for char in key),
    "percent in JSON in HTML": lambda key: "".join(f"&#92;u0025{ord(char):02x}" for char in key),
    "base64": lambda key: b64encode(f"Bearer {key}".encode()).decode(),
    "base64, one on": lambda key: b64encode(f" Bearer {key}".encode()).decode(),
    "base64, two on": lambda key: urlsafe_b64encode(f"  Bearer {key}".encode()).decode(),
    "base64 in JSON": lambda key: _each("\\u{:04x}")(b64encode(key.encode()).decode()),
    "hexadecimal": lambda key: key.encode().hex(),
    "hexadecimal in capitals": lambda key: key.encode().hex().upper(),
    "UTF-16": lambda key: key.encode("utf-16-le").decode("latin-1"),
    "zero widths": "\u200b".join,
    "masked by the server": lambda key: f"{key[:8]}{'*' * 9}{key[-4:]}",
    "half of it": lambda key: key[: len(key) // 2],
    "its end": lambda key: key[7:],
}


# One place in so many by day, others in each encoding, and all of them at night.
places_one_in = pytest.mark.parametrize(
    "every", [pytest.param(5, marks=pytest.mark.ci), pytest.param(1, marks=pytest.mark.nightly)]
)


@places_one_in
def test_key_is_withheld_at_every_offset_in_every_encoding_and_case(every: int) -> None:
    """Whatever is left out of a quotation, and wherever it is cut. A blank is left out, a letter is not."""
    leaks, tried = [], 0
    offsets = (*range(45), *range(110, 165))
    for number, (kind, name, gap) in enumerate(product(KEYS, ENCODINGS, " .")):
        key = KEYS[kind]
        redactor, echo = Redactor(key), ENCODINGS[name](key)
        for before in offsets[number % every :: every]:
            tried += 1
            text = redactor.quoted(f"{gap * before}{echo}, or not", 40)
            if (leak := leak_in(text, key)) is not None:
                leaks.append((kind, name, gap, before, leak, text))

    assert not leaks[:5], f"{len(leaks)} of {tried}"


@places_one_in
def test_any_piece_of_the_key_is_withheld_in_any_encoding(every: int) -> None:
    """Whatever a server leaves out before and behind it."""
    key = KEYS["short"]
    redactor = Redactor(key)
    leaks = []
    for number, (name, encode) in enumerate(ENCODINGS.items()):
        echo = encode(key)
        for size in (*range(5, 16), 24, 36, 48):
            for start in range((number + size) % every, len(echo) - size + 1, every):
                text = redactor.quoted(f"({echo[start : start + size]})")
                if (leak := leak_in(text, key)) is not None:
                    leaks.append((name, echo[start : start + size], leak, text))

    assert not leaks[:5], len(leaks)


def test_key_is_withheld_wherever_a_quotation_of_full_length_ends() -> None:
    key = KEYS["short"]
    redactor = Redactor(key)
    for before in range(4 * ENGINE_ERROR_CHARS_MAX + len(key)):
        for gap in " .":
            assert leak_in(redactor.quoted(f"{gap * before}{key} or not"), key) is None, (gap, before)


@pytest.mark.ci
@example(key="00000000", text=[("\x90", "half of it")])
@given(
    key=st.text(PRINTABLE, min_size=7, max_size=60).map("7{}".format),  # With a digit it looks like no words.
    text=st.lists(st.tuples(st.text(max_size=9), st.sampled_from(sorted(ENCODINGS))), max_size=4),
)
@settings(max_examples=100)
def test_any_key_is_withheld_in_any_text(key: str, text: list[tuple[str, str]]) -> None:
    said = "".join(before + ENCODINGS[name](key) for before, name in text)
    shown = Redactor(key).quoted(said).lower()
    folded = key.lower()
    runs = [folded[start : start + 5] for start in range(len(key) - 4)]

    assert not [run for run in runs if run in shown and not run.isalpha()]
    assert not [start for start in range(len(key) - 7) if folded[start : start + 8] in shown]


def test_reader_sees_the_key_in_every_encoding() -> None:
    """What is not withheld does leak, or else the tests above would show nothing."""
    unseen = [
        (kind, name)
        for kind, key in KEYS.items()
        for name, encode in ENCODINGS.items()
        if leak_in(Redactor(None).quoted(f"Bearer {encode(key)}, or not", 2000), key) is None
    ]

    assert unseen == []


def _said_by_a_server(echo: str) -> dict[str, Callable[[Redactor], object]]:
    """Each place where the words of a server enter an error or a reply."""
    page = echo.encode()

    openai, ollama = dialect_of(), OllamaDialect(OllamaConfig(model="m"))

    def read(
        body: bytes | JsonValue, status: int = 200, location: str | None = None, *, dialect: Dialect = openai
    ) -> Callable[[Redactor], object]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        given = Answer(status=status, body=data, location=location)
        return lambda redactor: read_answer(given, request(), dialect, now=lambda: NOW, redactor=redactor)

    def chosen(**choice: JsonValue) -> Callable[[Redactor], object]:
        return read({"choices": [choice]})

    def raising(error: Exception) -> Callable[[Redactor], object]:
        def ask(redactor: Redactor) -> None:
            with told(ollama, SystemClock(), redactor):
                raise error

        return ask

    def unforeseen(redactor: Redactor) -> None:
        with redacting(redactor):
            raise LookupError(echo)

    def pulled(redactor: Redactor) -> list[str]:
        lines: list[str] = []

        async def progress() -> AsyncIterator[ProgressResponse]:
            for status in (echo, "success"):
                yield ProgressResponse(status=status, total=5, completed=1)

        follow = follow_pull("m", progress(), redactor=redactor, clock=SystemClock(), say=lines.append)
        asyncio.run(follow)
        return lines

    return {
        "a page in place of a reply": read(page),
        "a stream in place of a reply": read(b"data: {" + page),
        "a page with an error": read(page, 502),
        "the message of an error": read({"error": {"message": echo}}, 400),
        "the message of an error inside": read({"error": {"message": echo}}),
        "an error that is one text": read({"error": echo}, 400),
        "an error that is a list": read({"error": [echo]}, 400),
        "details": read({"detail": [{"input": echo}]}, 422),
        "a redirect": read(b"", 307, f"http://h/{echo}"),
        "a reason to end": chosen(message={"content": "x"}, finish_reason=echo),
        "a part of a reply": chosen(message={"content": [{"type": echo}]}, finish_reason="stop"),
        "a part of a thought": chosen(
            message={"content": [{"type": "thinking", "thinking": [{"type": echo}]}]}, finish_reason="stop"
        ),
        "an encoding": lambda redactor: unpacked(b"x", echo, redactor),
        "a page in place of models": lambda redactor: page_of(Answer(status=200, body=page), openai, NOW, redactor),
        "Ollama's error": read(page, 400, dialect=ollama),
        "Ollama's error in a stream": raising(ResponseError(echo)),
        "a status line": raising(httpx.RemoteProtocolError(f"illegal status line: {page!r}")),
        "a malformed answer of Ollama": raising(KeyError(echo)),
        "Ollama's reason to end": read({"message": {}, "done": True, "done_reason": echo}, dialect=ollama),
        "the progress of a pull": pulled,
        "an error that no one foresaw": unforeseen,
    }


def _shown(ask: Callable[[Redactor], object], redactor: Redactor) -> str:
    try:
        return str(ask(redactor))
    except (SendingError, MacRunnerError, RuntimeError) as error:
        return str(error)


@places_one_in
def test_key_is_withheld_in_all_that_a_server_can_say_at_every_offset(every: int) -> None:
    key = KEYS["odd"]
    redactor = Redactor(key)
    leaks = []
    for number, name in enumerate(("plain", "upper case", "JSON", "percent, all", "HTML, decimal", "base64")):
        echo = ENCODINGS[name](key)
        for before in range(3 * (number % every), ENGINE_ERROR_CHARS_MAX + 10, 3 * every):
            for place, ask in _said_by_a_server("." * before + echo).items():
                if (leak := leak_in(_shown(ask, redactor), key)) is not None:
                    leaks.append((place, name, before, leak))

    assert not leaks[:5], len(leaks)


def test_reply_that_repeats_the_key_is_withheld() -> None:
    """Also where the reply ends in the middle of it."""
    for kind, key in KEYS.items():
        redactor = Redactor(key)
        partial = {"masked by the server", "half of it", "its end"}
        for name in sorted(ENCODINGS.keys() - partial - {"base64 in JSON"}):
            echo = ENCODINGS[name](key)
            for text in (echo, f"Bearer {echo}", f"I was sent \u2018{echo}\u2019, and {echo} again."):
                assert redactor.reply(text) == WITHHELD, (kind, name, text)
        for size in range(21, len(key)):
            assert redactor.reply(f"Bearer {key[:size]}") == WITHHELD, (kind, size)


@pytest.mark.parametrize("kind", sorted(KEYS))
def test_reply_is_withheld_from_a_run_of_sixteen_characters_and_an_eighth_of_the_key_on(kind: str) -> None:
    """Wherever the run begins in the key, and also where a part of it is an escape."""
    key = KEYS[kind]
    redactor, size = Redactor(key), max(16, len(key) // 8)
    for start in range(len(key) - size + 1):
        run = key[start : start + size]
        assert redactor.reply(f"({run})") == redactor.reply(f"({run[:-1]}%{ord(run[-1]):02x})") == WITHHELD, run
        for shorter in (run[1:], run[:-1]):
            assert redactor.reply(f"({shorter})") == f"({shorter})"


def test_reply_with_three_quarters_of_the_key_in_base64_or_hexadecimal_is_withheld_and_no_other() -> None:
    key = KEYS["base64"]
    for form in (key.encode().hex(), b64encode(key.encode()).decode()[:-2]):
        enough = form[4:][: len(form) * 3 // 4]

        assert Redactor(key).reply(enough) == WITHHELD
        assert Redactor(key).reply(enough[2:]) == enough[2:]


def test_reply_that_does_not_repeat_the_key_is_left_alone() -> None:
    words = (
        "Anything but the task-private, \\frac{1}{2} of 50%41 &amp; the rest: sk-proj-, none, EMPTY, ollama, dummy, x."
    )
    placeholders = ("x", "none", "EMPTY", "ollama", "dummy", "anything", "Whatever", "not-needed", "private", "no-key")
    keys = [*KEYS.values(), *placeholders]
    for key in keys:
        assert Redactor(key).reply(words) is words, key
        assert Redactor(key).reply("\u00e9" + words) == "\u00e9" + words, key


@pytest.mark.parametrize("key", ["x", "a1b2", "none", "EMPTY", "ollama", "dummy", "no-key", "Private"])
def test_nothing_is_withheld_for_a_placeholder(key: str) -> None:
    said = f"Bearer {key.upper()}, {key.lower()}%2c &quot;{key}&quot; ollama3"

    assert Redactor(key).quoted(said) == said


def test_quotation_is_withheld_whole_from_the_fifth_character_of_a_key_in_a_row_on() -> None:
    redactor = Redactor("a1b2c3", None, "Zy-9xW")

    for said in ("sent a1b2 and 2c3", "zy-9 X9XW"):
        assert redactor.quoted(said) == said
    for said in ("sent a1b2c, or so", "sent XA1B2C3X", "ZY-9X or a1b2"):
        assert redactor.quoted(said) == WITHHELD


def test_words_of_a_key_that_looks_like_words_are_no_reason_to_withhold() -> None:
    redactor = Redactor("lm-studio", "no-key-needed")

    for said in ("LM Studio: m-studi", "a field is needed", "no-key-"):
        assert redactor.quoted(said) == said
    for said in ("sent LM-STUDIO", "sent m-studio", "a key-need", "lm%2dstudio"):
        assert redactor.quoted(said) == WITHHELD


def test_word_in_a_key_is_no_reason_to_withhold_what_speaks_of_it() -> None:
    redactor = Redactor("token-abc123")

    for said in ("the token has expired", "too many tokens: abc1", "Token - abc"):
        assert redactor.quoted(said) == said
    for said in ("sent token-", "TOKEN-ABC123", "n-abc", "abc123", "dG9rZW4tYWJjMTIz"):
        assert redactor.quoted(said) == WITHHELD


@pytest.mark.parametrize("key", ["tokens1", "xTokenAbc-1", "1token-a", "to-kEnAbc1"])
def test_letters_between_other_cases_and_digits_of_a_key_are_no_word(key: str) -> None:
    for start in range(len(key) - 4):
        assert Redactor(key).quoted(f"a {key[start : start + 5]} is") == WITHHELD


def test_quotation_is_withheld_for_what_it_shows_and_not_for_what_it_leaves_out() -> None:
    key = KEYS["short"]
    said = f"{'no such header ' * 20}{key}"

    assert Redactor(key).quoted(said) == clipped(said)


def test_what_an_engine_says_is_quoted_as_it_is_without_a_key() -> None:
    for text in ("", "no\x1b[2J", "x" * 5000, " " * 5000 + "x", "one\n two"):
        assert Redactor(None).quoted(text) == clipped(text)
        assert Redactor(KEYS["short"]).quoted(text) == clipped(text)


def test_error_keeps_all_but_its_causes() -> None:
    error = TransientBackendError("busy", retry_after_s=3.0, is_busy=True)
    with pytest.raises(TransientBackendError) as caught, redacting(Redactor("k" * 20)):
        raise error from ValueError("k" * 20)

    assert caught.value is error
    assert (str(error), error.retry_after_s, error.is_busy, error.__cause__) == ("busy", 3.0, True, None)
    assert error.__suppress_context__


def test_error_that_nobody_foresaw_keeps_its_name_where_its_words_are_withheld() -> None:
    key = KEYS["short"]
    with pytest.raises(RuntimeError) as caught, redacting(Redactor(key)):
        raise LookupError(key)

    assert str(caught.value) == f"LookupError: {WITHHELD}"


def test_error_of_plain_python_that_is_known_to_pass_does() -> None:
    for error in (ConnectionError("gone"), TimeoutError(), MemoryError()):
        with pytest.raises(type(error)) as caught, redacting(Redactor("k" * 20)):
            raise error
        assert caught.value is error


def test_longest_key_costs_memory_in_proportion() -> None:
    """A quotation as long as it is looked at and full of pieces of the key."""
    tracemalloc.start()
    quote_pieces_of_the_longest_key(times=1)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak_bytes < 20e6


@pytest.mark.nightly
def test_longest_key_costs_time_in_proportion() -> None:
    began_at_s = time.process_time()
    quote_pieces_of_the_longest_key(times=20)

    assert time.process_time() - began_at_s < 20


def quote_pieces_of_the_longest_key(times: int) -> None:
    key = random_key(PRINTABLE, KEY_CHARS_MAX)
    pieces = " ".join(key[start : start + 40] for start in range(0, KEY_CHARS_MAX, 80))
    redactor = Redactor(key)
    for _ in range(times):
        redactor.quoted(pieces)
        redactor.reply(pieces)


@pytest.mark.nightly
@pytest.mark.parametrize("text", ["\\", "%25", "%", "&amp;", "&", "\\u00", "k", "kK%6b", "&#0000000", "\x00"])
def test_no_text_takes_more_time_than_its_length(text: str) -> None:
    redactor = Redactor("k" * 100)
    began_at_s = time.process_time()
    redactor.quoted(text * 1_000_000)
    redactor.reply(text * 1_000_000)

    assert time.process_time() - began_at_s < 5


@pytest.mark.parametrize(("value", "key"), [("", None), (" \n", None), ("x", "x"), (" sk-1\n", "sk-1")])
def test_key_is_what_the_variable_holds_but_for_white_space_around_it(value: str, key: str | None) -> None:
    assert key_in({"SOME_KEY": value}, "SOME_KEY") == key


def test_key_that_no_header_carries_is_refused_by_the_name_of_its_variable() -> None:
    for value in ("sk canary", "sk-\x1bcanary", "sk-cänary", "canary" * KEY_CHARS_MAX):
        with pytest.raises(ConfigError, match="SOME_KEY") as caught:
            key_in({"SOME_KEY": value}, "SOME_KEY")

        assert "nary" not in str(caught.value)


def test_longest_key_is_taken() -> None:
    assert key_in({"SOME_KEY": "k" * KEY_CHARS_MAX}, "SOME_KEY") == "k" * KEY_CHARS_MAX
