"""What became of a job, in the words of both protocols."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pydantic import JsonValue, TypeAdapter

from mac_runner.nano import Delta, TokenLogprob, TrainingSample, VersionSpan
from mac_runner.nano.testing import Course, Envelope, JsonObject, OllamaEnvelope, Refusal, Said, ollama_error, usage

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


def envelope(*, is_chat: bool, logprobs: bool = False, token_ids: bool = False) -> Envelope:
    return Envelope(id="x", created=5, model="m", is_chat=is_chat, spell=spell, logprobs=logprobs, token_ids=token_ids)


def only_choice(body: JsonObject) -> dict[str, JsonValue]:
    choices = TypeAdapter(list[dict[str, JsonValue]]).validate_python(body["choices"])
    assert len(choices) == 1
    return choices[0]


def test_chat_completion_is_written() -> None:
    body = envelope(is_chat=True).whole([(1, 2, 3)], [SAMPLE])

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
    told = only_choice(envelope(is_chat=True, logprobs=True).whole([(1,)], [SAMPLE]))["logprobs"]

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


def test_logprobs_of_a_text_are_told_column_by_column() -> None:
    choice = only_choice(envelope(is_chat=False, logprobs=True).whole([(1,)], [SAMPLE]))

    assert choice["logprobs"] == {
        "tokens": ["a", "\ufffd"],
        "token_logprobs": [-0.5, -9999.0],
        "top_logprobs": [{"a": -0.5}, {"b": -0.1}],
        "text_offset": [0, 1],
    }


def test_likeliest_of_tokens_that_are_spelt_alike_is_told() -> None:
    alike = replace(SAMPLE, top_logprobs=((TokenLogprob(7, -0.5), TokenLogprob(17, -3.0)), (TokenLogprob(9, -0.1),)))
    body = replace(envelope(is_chat=False, logprobs=True), spell=lambda token_id: spell(token_id % 10))

    told = only_choice(body.whole([(1,)], [alike]))["logprobs"]

    assert isinstance(told, dict)
    assert told["top_logprobs"] == [{"a": -0.5}, {"b": -0.1}]


@pytest.mark.parametrize("is_chat", [True, False])
def test_token_ids_come_with_the_version_of_the_weights(is_chat: bool) -> None:
    body = envelope(is_chat=is_chat, token_ids=True).whole([(1, 2, 3)], [SAMPLE])

    choice = only_choice(body)
    assert (choice["token_ids"], choice["weight_version"]) == ([7, 8], 4)
    assert (body if is_chat else choice)["prompt_token_ids"] == [1, 2, 3]


def test_every_reply_says_which_weights_made_which_tokens() -> None:
    mixed = replace(SAMPLE, version_spans=(VersionSpan(4, 0), VersionSpan(6, 1)))
    choice = only_choice(envelope(is_chat=True).whole([(1,)], [mixed]))

    assert choice["weight_versions"] == [
        {"version": "4", "start": 0, "end": 1},
        {"version": "6", "start": 1, "end": 2},
    ]


def test_prompt_is_counted_once_however_many_samples_it_has() -> None:
    second = replace(SAMPLE, sample_index=1, num_cached_tokens=3)

    counted = usage([(1, 2, 3)], [SAMPLE, second])

    assert (counted["prompt_tokens"], counted["completion_tokens"]) == (3, 4)
    assert counted["prompt_tokens_details"] == {"cached_tokens": 2}


def test_role_comes_with_the_first_piece_of_a_chat() -> None:
    first = envelope(is_chat=True).chunk(1, DELTA, is_first=True)
    last = envelope(is_chat=True).chunk(1, replace(DELTA, sample=SAMPLE), is_first=False)

    assert first["object"] == "chat.completion.chunk"
    assert first["choices"] == [
        {"index": 1, "finish_reason": None, "delta": {"role": "assistant", "content": "a"}, "logprobs": None}
    ]
    assert last["choices"] == [{"index": 1, "finish_reason": "stop", "delta": {"content": "a"}, "logprobs": None}]


def test_ollama_tells_its_times_in_nanoseconds() -> None:
    body = OllamaEnvelope(model="m", created_unix_s=0.0, is_chat=True, spell=None).whole(
        SAMPLE, Said(content="ab"), COURSE
    )

    assert body == {
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


@pytest.mark.parametrize("is_chat", [True, False])
def test_ollama_tells_a_thought_beside_the_answer(is_chat: bool) -> None:
    envelope = OllamaEnvelope(model="m", created_unix_s=0.0, is_chat=is_chat, spell=None)
    whole, piece = envelope.whole(SAMPLE, Said("hm", "ab"), COURSE), envelope.piece(DELTA, Said(thinking="hm"))

    if is_chat:
        assert whole["message"] == {"role": "assistant", "content": "ab", "thinking": "hm"}
        assert piece["message"] == {"role": "assistant", "content": "", "thinking": "hm"}
    else:
        assert (whole["response"], whole["thinking"]) == ("ab", "hm")
        assert (piece["response"], piece["thinking"]) == ("", "hm")


def test_ollama_stream_is_pieces_and_an_end_without_words() -> None:
    generate = OllamaEnvelope(model="m", created_unix_s=0.0, is_chat=False, spell=spell)

    piece, end = generate.piece(DELTA, Said(content="a")), generate.last_piece(SAMPLE, COURSE)

    assert (piece["response"], piece["done"]) == ("a", False)
    assert [row["token"] for row in piece["logprobs"]] == ["a"]  # type: ignore[attr-defined]
    assert (end["response"], end["done"], end["eval_count"]) == ("", True, 2)


def test_ollama_errors_are_one_text() -> None:
    assert ollama_error(Refusal(status=400, message="no")) == {"error": "no"}
