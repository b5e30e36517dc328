"""What became of a job, in the words of both protocols: whole, in pieces as they come, thoughts apart from answers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue, TypeAdapter

from mac_runner.nano import Delta, EngineStoppedError, RequestStream, TokenLogprob, TrainingSample, VersionSpan
from mac_runner.nano.testing import (
    LOT,
    WRITE_BYTES_MAX,
    Course,
    Generation,
    JsonObject,
    OllamaWriter,
    OpenaiWriter,
    Piece,
    RefusedError,
    Said,
    Stage,
    ThoughtParser,
    encoded,
    encoded_in_lots,
    ollama_error,
    usage,
)

SAMPLE = TrainingSample(
    prompt_tokens=(1, 2, 3),
    completion_tokens=(7, 8),
    logprobs=(-0.5, float("-inf")),
    top_logprobs=((TokenLogprob(7, -0.5),), (TokenLogprob(9, -0.1),)),
    weight_version=4,
    finish_reason="stop",
    text="ab",
    num_cached_tokens=2,
)
DELTA = Delta(request_id=0, sample_index=0, token_ids=(7,), logprobs=(-0.5,), text="a")
COURSE = Course(began_s=10.0, first_token_s=10.5, ended_s=12.0)


def spell(token_id: int) -> str:
    return {7: "a", 8: "\ufffd", 9: "b"}[token_id]


def at_openai(*, is_chat: bool, is_long: bool = False, has_token_ids: bool = False) -> OpenaiWriter:
    return OpenaiWriter(
        id="x",
        created=5,
        model="m",
        is_chat=is_chat,
        spell=spell,
        is_long=is_long,
        has_token_ids=has_token_ids,
    )


def only_choice(body: JsonObject) -> dict[str, JsonValue]:
    choices = TypeAdapter(list[dict[str, JsonValue]]).validate_json(encoded(body["choices"]))
    assert len(choices) == 1
    return choices[0]


def test_chat_completion_is_written() -> None:
    body = at_openai(is_chat=True).whole([SAMPLE])

    assert body == {
        "id": "x",
        "object": "chat.completion",
        "created": 5,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "stop_reason": None,
                "message": {"role": "assistant", "content": "ab", "refusal": None},
                "logprobs": None,
                "weight_versions": [{"version": "4", "start": 0, "end": 2}],
            }
        ],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 2,
            "total_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 2},
        },
    }


def test_logprobs_of_a_chat_are_told_token_by_token() -> None:
    told = only_choice(at_openai(is_chat=True, is_long=True).whole([SAMPLE]))["logprobs"]

    assert isinstance(told, dict)
    first, second = TypeAdapter(list[dict[str, JsonValue]]).validate_python(told["content"])
    assert first == {
        "token": "a",
        "logprob": -0.5,
        "bytes": [97],
        "top_logprobs": [{"token": "a", "logprob": -0.5, "bytes": [97]}],
    }
    # Half a character has no text, and what cannot come has no number.
    assert (second["logprob"], second["bytes"]) == (-9999.0, None)


def test_logprobs_of_a_text_are_told_column_by_column_and_the_likeliest_of_tokens_that_are_spelt_alike() -> None:
    columns = replace(at_openai(is_chat=False, is_long=True), spell=lambda token_id: spell(token_id % 10))
    alike = replace(SAMPLE, top_logprobs=((TokenLogprob(7, -0.5), TokenLogprob(17, -3.0)), (TokenLogprob(9, -0.1),)))

    for sample in (SAMPLE, alike):
        assert only_choice(columns.whole([sample]))["logprobs"] == {
            "tokens": ["a", "\ufffd"],
            "token_logprobs": [-0.5, -9999.0],
            "top_logprobs": [{"a": -0.5}, {"b": -0.1, "\ufffd": -9999.0}],
            "text_offset": [0, 1],
        }


def test_token_ids_come_with_the_version_of_the_weights() -> None:
    for is_chat in (True, False):
        body = at_openai(is_chat=is_chat, has_token_ids=True).whole([SAMPLE])
        choice = only_choice(body)

        assert (choice["token_ids"], choice["weight_version"]) == ([7, 8], 4)
        assert (body if is_chat else choice)["prompt_token_ids"] == [1, 2, 3]


def test_every_reply_says_which_weights_made_which_tokens() -> None:
    mixed = replace(SAMPLE, version_spans=(VersionSpan(4, 0), VersionSpan(6, 1)))
    choice = only_choice(at_openai(is_chat=True).whole([mixed]))

    assert choice["weight_versions"] == [{"version": "4", "start": 0, "end": 1}, {"version": "6", "start": 1, "end": 2}]


def test_prompt_is_counted_once_however_many_samples_it_has() -> None:
    second = replace(SAMPLE, sample_index=1, num_cached_tokens=3)

    counted = usage([SAMPLE, second])

    assert (counted["prompt_tokens"], counted["completion_tokens"]) == (3, 4)
    assert counted["prompt_tokens_details"] == {"cached_tokens": 2}


def test_role_comes_with_the_first_piece_of_a_chat() -> None:
    writer = at_openai(is_chat=True)
    first, last = (writer.chunk(Piece(1, each)) for each in (DELTA, replace(DELTA, sample=SAMPLE)))

    assert first["object"] == "chat.completion.chunk"
    assert first["choices"] == [
        {"index": 1, "finish_reason": None, "delta": {"role": "assistant", "content": "a"}, "logprobs": None}
    ]
    assert last["choices"] == [{"index": 1, "finish_reason": "stop", "delta": {"content": "a"}, "logprobs": None}]


def at_ollama(*, is_chat: bool, begins_in: Stage = Stage.ANSWER) -> OllamaWriter:
    parser = ThoughtParser(begins_in)
    return OllamaWriter(model="m", created_unix_s=0.0, is_chat=is_chat, spell=None, parser=parser)


def test_ollama_tells_its_times_in_nanoseconds() -> None:
    assert at_ollama(is_chat=True).whole([SAMPLE], COURSE) == {
        "model": "m",
        "created_at": "1970-01-01T00:00:00Z",
        "message": {"role": "assistant", "content": "ab"},
        "done": True,
        "done_reason": "stop",
        "total_duration": 2_000_000_000,
        "load_duration": 0,
        "prompt_eval_count": 3,
        "prompt_eval_duration": 500_000_000,
        "eval_count": 2,
        "eval_duration": 1_500_000_000,
    }


def test_ollama_tells_a_thought_beside_the_answer() -> None:
    sample, delta = replace(SAMPLE, text="hm</think>ab"), replace(DELTA, text="hm")
    (whole, piece), (told, told_piece) = (
        (
            at_ollama(is_chat=is_chat, begins_in=Stage.THOUGHT).whole([sample], COURSE),
            at_ollama(is_chat=is_chat, begins_in=Stage.THOUGHT).chunk(Piece(0, delta)),
        )
        for is_chat in (True, False)
    )

    assert whole["message"] == {"role": "assistant", "content": "ab", "thinking": "hm"}
    assert piece["message"] == {"role": "assistant", "content": "", "thinking": "hm"}
    assert (told["response"], told["thinking"]) == ("ab", "hm")
    assert (told_piece["response"], told_piece["thinking"]) == ("", "hm")


def test_ollama_stream_is_pieces_and_an_end_without_words() -> None:
    generate = replace(at_ollama(is_chat=False), spell=spell)
    lines = generate.piece(Piece(0, DELTA)), generate.end([SAMPLE], COURSE)
    piece, end = (TypeAdapter(dict[str, Any]).validate_json(line) for line in lines)

    assert (piece["response"], piece["done"]) == ("a", False)
    assert [row["token"] for row in piece["logprobs"]] == ["a"]
    assert (end["response"], end["done"], end["eval_count"]) == ("", True, 2)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON)
def test_long_answer_is_the_json_of_any_other(content: object) -> None:
    lists = {"long": [content] * (LOT + 1), "longer": [content] * 300, "short": [{"long": [content] * (2 * LOT)}]}
    for each in (content, lists):
        assert b"".join(encoded_in_lots(each)) == encoded(each)
    for count in (0, 1, LOT + 1):
        assert b"".join(encoded_in_lots({"rows": iter([content] * count)})) == encoded({"rows": [content] * count})


@pytest.mark.parametrize("end", ["\x85", "\u2028", "\u2029"])
def test_answer_is_one_line_wherever_a_client_ends_lines(end: str) -> None:
    content = {end: [f"a{end}b"]}
    for written in (encoded(content), b"".join(encoded_in_lots(content))):
        assert len(written.decode().splitlines()) == 1
        assert TypeAdapter(JsonValue).validate_json(written) == content


def test_long_answer_is_encoded_in_pieces_that_are_each_short() -> None:
    row = {"token": "a", "top_logprobs": [{"token": "b", "logprob": -0.5}] * 20}
    choice = {"text": "x", "logprobs": {"content": [row] * 8_000}}
    for long in ({"choices": [choice] * 3}, {"logprobs": [row] * 8_000}):
        assert max(map(len, encoded_in_lots(long))) <= len(encoded([row] * LOT))


def test_ollama_errors_are_one_text() -> None:
    assert ollama_error(RefusedError(400, "no")) == {"error": "no"}


# Streams as they go out: what has come meanwhile at once, and an error behind what came before it.


COMPLETED = TrainingSample(
    prompt_tokens=(1,), completion_tokens=(7,), logprobs=(-0.5,), weight_version=0, finish_reason="stop", text="abc"
)


def of_text(*, is_long: bool = False) -> OpenaiWriter:
    return OpenaiWriter(id="x", created=5, model="m", is_chat=False, spell=str, is_long=is_long)


def generation(streams: list[RequestStream]) -> Generation:
    return Generation([(1,)] * len(streams), streams, 1, began_s=0.0, clock=lambda: 1.0)


def delta(text: str, *, request_id: int = 0, is_last: bool = False) -> Delta:
    return Delta(request_id=request_id, sample_index=0, text=text, sample=COMPLETED if is_last else None)


async def writes(*arrivals: list[Delta | EngineStoppedError], num_prompts: int = 1, is_long: bool = False) -> list[str]:
    """What is written to a client when these arrive, one lot after the other."""
    streams = [RequestStream(1, lambda stream: None) for _ in range(num_prompts)]
    events = generation(streams).streamed(of_text(is_long=is_long))
    written = list[str]()
    for lot in arrivals:
        for each in lot:
            streams[each.request_id if isinstance(each, Delta) else 0].push(each)
        written.append((await anext(events)).decode())
    assert [event async for event in events] == []
    return written


async def test_pieces_that_came_one_by_one_go_out_one_by_one() -> None:
    written = await writes([delta("a")], [delta("b")], [delta("c", is_last=True)])

    assert [each.count("data: ") for each in written] == [1, 1, 2]
    assert written[-1].endswith("data: [DONE]\n\n")


async def test_pieces_that_came_meanwhile_go_out_in_one_write() -> None:
    written = await writes([delta("a")], [delta("b"), delta("c"), delta("d", is_last=True)])
    places = [written[1].index(f'"text":"{letter}"') for letter in "bcd"]

    assert [each.count("data: ") for each in written] == [1, 4]
    assert places == sorted(places)


async def test_much_that_came_meanwhile_goes_out_in_short_writes_between_which_others_have_their_turn() -> None:
    stream = RequestStream(1, lambda stream: None)
    for index in range(1_000):
        stream.push(delta(f"{index} " + "x" * 1_000, is_last=index == 999))
    events = generation([stream]).streamed(of_text())
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    waiting = asyncio.create_task(other())
    written = [each async for each in events]
    waiting.cancel()

    assert max(map(len, written)) < WRITE_BYTES_MAX + 2_000
    assert turns >= len(written) - 1 > 1
    assert [f'"text":"{index} ' in b"".join(written).decode() for index in range(1_000)] == [True] * 1_000


async def test_end_of_one_prompt_does_not_wait_for_the_next() -> None:
    written = await writes([delta("a", is_last=True)], [delta("b", request_id=1, is_last=True)], num_prompts=2)

    assert [each.count("data: ") for each in written] == [1, 2]


async def test_error_is_told_behind_what_came_before_it() -> None:
    written = await writes([delta("a"), EngineStoppedError("shut down")])

    assert [each.count("data: ") for each in written] == [2]
    assert written[0].index('"text":"a"') < written[0].index("shut down")


async def test_offsets_in_the_text_go_on_from_piece_to_piece() -> None:
    pieces = [replace(delta("ab"), token_ids=(5, 10), logprobs=(-1.0, -2.0)) for _ in range(2)]
    written = await writes([pieces[0]], [pieces[1], delta("", is_last=True)], is_long=True)

    assert '"text_offset":[0,1]' in written[0]
    assert '"text_offset":[3,4]' in written[1]


# Thoughts told apart from answers, however the text is cut.


TEXTS = [
    (Stage.BEFORE, "<think>\nwell, well\n</think>\n\nYes.", Said("well, well", "Yes.")),
    (Stage.BEFORE, "\n <think>so</think>no", Said("so", "no")),
    (Stage.BEFORE, "Yes, <think> is a tag", Said("", "Yes, <think> is a tag")),
    (Stage.BEFORE, "<thi", Said("", "<thi")),
    (Stage.BEFORE, "  two spaces", Said("", "  two spaces")),
    (Stage.BEFORE, "<think></think>\nyes\n", Said("", "yes\n")),
    (Stage.BEFORE, "<think>a < b </ c </thin> d</think>e", Said("a < b </ c </thin> d", "e")),
    (Stage.BEFORE, "<think>a</think>b</think>c", Said("a", "b</think>c")),
    (Stage.BEFORE, "<think>cut off </th", Said("cut off </th", "")),
    (Stage.THOUGHT, "\nopened by the prompt</think>\nyes", Said("opened by the prompt", "yes")),
    (Stage.ANSWER, " <think>as it is</think> ", Said("", " <think>as it is</think> ")),
]


def said(stage: Stage, pieces: list[str]) -> Said:
    parser = ThoughtParser(stage)
    told = [*map(parser.push, pieces), parser.finish()]
    return Said("".join(each.thinking for each in told), "".join(each.content for each in told))


def test_thought_and_answer_are_told_apart_letter_by_letter_and_at_once() -> None:
    for stage, text, expected in TEXTS:
        assert said(stage, [text]) == said(stage, list(text)) == expected


@given(
    pieces=st.lists(st.sampled_from(["<think>", "</think>", "<thi", "nk>", "</", "think>", " ", "\n", "a", "<"])),
    stage=st.sampled_from(list(Stage)),
)
def test_cut_of_a_text_makes_no_difference(pieces: list[str], stage: Stage) -> None:
    text = "".join(pieces)

    assert said(stage, pieces) == said(stage, [text]) == said(stage, list(text))


class Watched(str):
    """A text that counts how many of its characters, and of those of a text begun with it, are looked at."""

    __slots__ = ()
    looked_at = 0

    def __add__(self, more: str) -> Watched:
        return Watched(f"{self!s}{more!s}")

    def __radd__(self, held: str) -> Watched:
        return Watched(f"{held!s}{self!s}")

    def lstrip(self, characters: str | None = None) -> Watched:
        Watched.looked_at += len(self)
        return Watched(super().lstrip(characters))

    def partition(self, tag: str) -> tuple[str, str, str]:
        Watched.looked_at += len(self)
        return super().partition(tag)


def test_white_space_that_is_kept_back_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Much of it, in pieces, may not cost the square of its length."""
    for stage, start in ((Stage.BEFORE, ""), (Stage.THOUGHT, ""), (Stage.BEFORE, "<think>so")):
        monkeypatch.setattr(Watched, "looked_at", 0)
        told = said(stage, [start, *[Watched("\u2028" * 32)] * 200])

        assert 32 * 200 <= Watched.looked_at < 32 * 210
        assert told.thinking.startswith("so" if start else "")


def test_nothing_is_kept_back_that_can_be_told() -> None:
    parser = ThoughtParser(Stage.BEFORE)

    assert [parser.push(piece) for piece in ("<think>", "so", " it", " <", "b", "</think>", " ", "yes", " no")] == [
        Said(), Said("so"), Said(" it"), Said(), Said(" <b"), Said(), Said(), Said("", "yes"), Said("", " no"),
    ]  # fmt: skip
