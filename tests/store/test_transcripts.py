from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mac_runner.store import build_transcript, index_row, replies_of, task_of, without_timing
from mac_runner.store.testing import (
    decode_transcript,
    encode_transcript,
    entry,
    in_format_of,
    objects,
    recorded_from_json,
    recorded_json,
    task_from_json,
    task_json,
)
from mac_runner.types import (
    Agent,
    FinishReason,
    JsonObject,
    JsonValue,
    PolicySpan,
    Receipt,
    ReceiptKind,
    RecordedReply,
    Reply,
    Sampling,
    Task,
    Timing,
    TokenCount,
    TokenTrace,
    Turn,
    TurnRecord,
)

TASK = Task(
    index=7,
    task_id="toy_00007",
    seed=2**62 + 1,
    agents=(
        Agent(agent_id="Ann", definition="d", model="m", seat=0, slot=1, sampling=Sampling()),
        Agent(
            agent_id="Bob",
            definition="c",
            model="n",
            seat=1,
            slot=0,
            sampling=Sampling(
                temperature=0.0,
                max_tokens=9,
                top_p=0.5,
                top_k=4,
                min_p=0.1,
                presence_penalty=0.25,
                frequency_penalty=0.75,
                stop=("a", "\n"),
                seed=5,
            ),
        ),
    ),
)


def record(round_: int, seat: int, kind: ReceiptKind = ReceiptKind.ACT, generate_s: float = 0.0) -> TurnRecord:
    agent = TASK.agents[seat]
    return TurnRecord(
        turn=Turn(round=round_, agent=agent.agent_id, model=agent.model, place=seat),
        prompt_sha256="ab",
        reply=Reply(
            text=f"r{round_}\ud800\0\u2028",
            finish_reason=FinishReason.LENGTH,
            tokens=TokenCount(prompt=5, cached=2, completion=1),
            trace=TokenTrace(prompt_ids=(1, 2), completion_ids=(3,), logprobs=(-0.25,)) if round_ == 2 else None,
            timing=Timing(queue_s=0.5, generate_s=generate_s, faults=("429",)),
        ),
        receipt=Receipt(kind=kind, detail="because"),
    )


RECORDS = [
    record(1, 0),
    record(1, 1, ReceiptKind.CORRECTION),
    record(2, 0, ReceiptKind.DEFAULT),
    record(2, 1, ReceiptKind.DEFAULT),
]


def built(turns: list[TurnRecord], failure: str | None = None, wall_s: float = 1.0) -> JsonObject:
    return build_transcript(
        experiment_name="toy",
        environment="talk",
        task=TASK,
        outcome={"winners": ["town"]},
        record={"log": [{"day": 1}, {"day": 2}], "deal": {"Ann": "x"}},
        fingerprint="f" * 64,
        turns=turns,
        failure=failure,
        timing={"wall_s": wall_s},
    )


def test_unusable_replies_are_counted_by_agent_definition_and_cause() -> None:
    turns = [*RECORDS, record(3, 0)]
    causes = (None, "cut_off_thought", "illegal", "cut_off_thought", None)
    turns = [
        replace(turn, receipt=replace(turn.receipt, cause=cause)) for turn, cause in zip(turns, causes, strict=True)
    ]
    transcript = built(turns)

    assert entry(transcript, "counts", dict)["unusable"] == {"c": {"cut_off_thought": 2}, "d": {"illegal": 1}}
    assert [entry(turn, "receipt", dict).get("cause") for turn in objects(transcript, "turns")] == list(causes)


def test_a_conversation_in_which_all_could_be_used_counts_nothing_as_unusable() -> None:
    assert "unusable" not in entry(built(RECORDS), "counts", dict)


def test_task_comes_back_from_json() -> None:
    assert task_from_json(json.loads(json.dumps(task_json(TASK)))) == TASK


def test_task_keeps_its_material_and_one_without_has_none() -> None:
    task = replace(TASK, material={"question": "Who?", "choices": [{"id": "A"}]})

    assert task_from_json(json.loads(json.dumps(task_json(task)))) == task
    assert "material" not in task_json(TASK)


@pytest.mark.parametrize("text", ["\ud800", "a\0b", "\u2028\u2029\x85\r\n", "\ufeff", '{"', "\udfff\ud800"])
def test_recorded_reply_comes_back_from_json(text: str) -> None:
    timing = Timing(queue_s=1.25, generate_s=0.000001, faults=("a", "b"))
    recorded = RecordedReply(
        turn_key="1/A/0/0", prompt_sha256="p", reply=Reply(text=text, thinking=text, timing=timing)
    )
    found = recorded_from_json(json.loads(json.dumps(recorded_json(recorded))))

    assert found == recorded
    assert found.reply.timing == timing


def test_reply_keeps_the_versions_of_its_weights_and_one_without_has_none() -> None:
    recorded = RecordedReply(
        turn_key="1/A/0/0", prompt_sha256="p", reply=Reply(text="", policy=PolicySpan(start=6, end=7))
    )
    found = recorded_json(recorded)

    assert entry(found, "reply", dict)["policy"] == [6, 7]
    assert recorded_from_json(json.loads(json.dumps(found))) == recorded
    assert recorded.reply.timed(Timing()) == recorded.reply
    assert "policy" not in entry(recorded_json(replace(recorded, reply=Reply(text=""))), "reply", dict)


@pytest.mark.parametrize("key", ["turn", "prompt_sha256", "reply", "timing"])
def test_recorded_reply_with_a_key_missing_is_refused_by_name(key: str) -> None:
    found = recorded_json(RecordedReply(turn_key="1/A/0/0", prompt_sha256="p", reply=Reply(text="")))
    del found[key]

    with pytest.raises(ValueError, match=key):
        recorded_from_json(found)


def uncached(reply: Reply) -> Reply:
    return replace(reply, tokens=replace(reply.tokens, cached=0))


@given(st.permutations(RECORDS))
def test_transcript_does_not_depend_on_the_order_of_replies(turns: list[TurnRecord]) -> None:
    assert encode_transcript(built(turns)) == encode_transcript(built(RECORDS))


def test_transcript_counts_turns_tokens_corrections_and_defaults() -> None:
    assert built(RECORDS)["counts"] == {
        "turns": 4,
        "corrections": 1,
        "defaults": 2,
        "tokens": {"prompt": 20, "completion": 4, "timing": {"cached": 8}},
    }


def test_transcript_of_a_failure_says_so() -> None:
    failed = built(RECORDS, failure="the engine refused")

    assert (failed["status"], failed["failure"]) == ("failed", "the engine refused")
    assert (built(RECORDS)["status"], built(RECORDS)["failure"]) == ("finished", None)


def test_everything_that_depends_on_time_is_under_timing() -> None:
    slow = [record(1, 0, generate_s=9.0), *RECORDS[1:]]

    assert built(slow, wall_s=5.0) != built(RECORDS)
    assert without_timing(built(slow, wall_s=5.0)) == without_timing(built(RECORDS))


def test_what_an_engine_had_in_its_cache_is_a_matter_of_time() -> None:
    """It follows from what else the engine was working on: of a run that was killed it is another."""
    cold = [replace(turn, reply=uncached(turn.reply)) for turn in RECORDS]
    one, other = built(RECORDS), built(cold)

    assert one["counts"] != other["counts"]
    assert without_timing(one) == without_timing(other)
    assert without_timing(index_row(one)["counts"]) == without_timing(index_row(other)["counts"])
    frames = [
        recorded_json(RecordedReply(turn_key="1/A/0/0", prompt_sha256="p", reply=turn.reply))
        for turn in (RECORDS[0], cold[0])
    ]
    assert frames[0] != frames[1]
    assert without_timing(frames[0]) == without_timing(frames[1])


def test_transcript_of_format_1_is_read_as_one_of_format_2() -> None:
    found = built(RECORDS)
    text = encode_transcript({**found, "format": 1}).decode("ascii")
    old = re.sub(r', "timing": \{("cached": \d+)\}', r", \1", text)

    assert old.count('"cached"') == text.count('"cached"') == old.count(', "cached"') == 5
    assert decode_transcript(old.encode("ascii")) == {**found, "format": 2}


def test_transcript_of_format_2_is_compared_without_the_turns_that_its_events_do_not_have() -> None:
    events: list[JsonValue] = [{"when": "Start", "text": "a", "turn": None}, {"when": "End", "text": "b", "turn": "k"}]
    now: JsonObject = {**built(RECORDS), "record": {"events": events}}
    then: JsonObject = {**now, "format": 2, "record": {"events": [{"when": "Start", "text": "a"}, events[1]]}}

    assert in_format_of(now, then) == then
    assert in_format_of(now, {**then, "format": 3}) == now


def test_transcript_gives_back_its_task_and_its_replies() -> None:
    found = decode_transcript(encode_transcript(built(RECORDS[::-1])))

    assert task_of(found) == TASK
    # Their tokens are in a file of their own.
    assert [(reply.turn_key, reply.reply) for reply in replies_of(found)] == [
        (r.turn.key, replace(r.reply, trace=None)) for r in RECORDS
    ]


def test_transcript_file_has_a_line_for_each_key_and_each_turn() -> None:
    data = encode_transcript(built(RECORDS))
    rows = data.decode("ascii").split("\n")

    assert json.loads(data) == built(RECORDS)
    assert sum(row.startswith('{"turn": ') for row in rows) == 4
    assert sum(row.startswith('{"day": ') for row in rows) == 2
    assert [row for row in rows if row.startswith('"outcome"')] == ['"outcome": {"winners": ["town"]},']


def test_transcript_without_turns_can_be_written_and_read() -> None:
    assert replies_of(decode_transcript(encode_transcript(built([], failure="no")))) == []


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"format": 4}', b'{"format": 1}', b"\xff"])
def test_file_that_is_no_transcript_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_transcript(data)


def test_index_row_tells_what_stands_on_the_disk() -> None:
    found = built(RECORDS)
    row = index_row(found)

    assert row == index_row(found, encode_transcript(found))
    assert row["size_bytes"] == len(encode_transcript(found))
    assert list(row) == [
        *("task_id", "index", "status", "failure", "transcript", "sha256", "size_bytes", "counts", "outcome", "timing")
    ]
