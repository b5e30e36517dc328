"""The transcript of a conversation and its row in the index (pure).

A transcript stands alone: its task and its replies are enough to rebuild the conversation without the journal.
Everything that depends on time is under keys named `timing` and nowhere else, and the turns are in their
canonical order whatever order the replies came in, so two runs of one seed can be compared byte by byte once
`without_timing` has been applied.

On disk each top-level key has its own line, and so has each element of a list of objects: `grep` and `diff` work
line by line, and yet nearly all of the text is made by the compact C encoder.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeGuard

from mac_runner.store.records import (
    entry,
    objects,
    recorded_from_json,
    recorded_json,
    task_from_json,
    task_json,
    tokens_json,
    upgraded_tokens,
)
from mac_runner.types import (
    JsonObject,
    JsonValue,
    Receipt,
    ReceiptKind,
    RecordedReply,
    Task,
    TokenCount,
    TurnRecord,
)

TRANSCRIPT_FORMAT = 2
"""Format 1 has `cached` of the token counts outside `timing`, and is otherwise the same."""

_TASK_KEY = '\n"task": '
_decoder = json.JSONDecoder()
_compact = json.JSONEncoder(ensure_ascii=True, allow_nan=False, check_circular=False, separators=(", ", ": ")).encode


def build_transcript(
    *,
    experiment_name: str,
    environment: str,
    task: Task,
    outcome: JsonObject | None,
    record: JsonObject,
    fingerprint: str,
    turns: Sequence[TurnRecord],
    failure: str | None,
    timing: JsonObject,
) -> JsonObject:
    """All there is to keep of one ended conversation; `failure` is the story of one that could not go on."""
    ordered = sorted(turns, key=lambda record: record.turn.canonical)
    return {
        "format": TRANSCRIPT_FORMAT,
        "experiment_name": experiment_name,
        "environment": environment,
        "task": task_json(task),
        "status": "finished" if failure is None else "failed",
        "failure": failure,
        "counts": _counts(task, ordered),
        "outcome": outcome,
        "final_state_sha256": fingerprint,
        "record": record,
        "turns": [_turn_json(turn) for turn in ordered],
        "timing": timing,
    }


def encode_transcript(transcript: JsonObject) -> bytes:
    """The file of a transcript."""
    return (_lines(transcript) + "\n").encode("ascii")


def decode_transcript(data: bytes) -> JsonObject:
    """A transcript from its file, in the layout of this version's format.

    Raises ValueError when it is not one that this version can read.
    """
    transcript = json.loads(data)
    if not isinstance(transcript, dict):
        raise ValueError("a transcript is a JSON object")
    match transcript.get("format"):
        case 2:
            return transcript
        case 1:
            return _upgraded(transcript)
        case found:
            raise ValueError(f"format {found!r} is none that this version reads: it reads 1 and {TRANSCRIPT_FORMAT}")


def upgraded_row(row: JsonObject) -> JsonObject:
    """An index row of format 1 in this one's layout; one of this format as it is."""
    upgraded = {**row, "counts": upgraded_counts(row.get("counts"))}
    if "failed_attempts" in row:
        upgraded["failed_attempts"] = [
            {**attempt, "counts": upgraded_counts(attempt.get("counts"))} for attempt in objects(row, "failed_attempts")
        ]
    return upgraded


def upgraded_counts(counts: JsonValue) -> JsonValue:
    """The counts of a conversation in this format's layout."""
    if isinstance(counts, dict) and isinstance(tokens := counts.get("tokens"), dict):
        return {**counts, "tokens": upgraded_tokens(tokens)}
    return counts


def transcript_path(task_id: str) -> str:
    """Where the transcript of a task stands, relative to the run directory."""
    return f"transcripts/{task_id}.json"


def attempt_path(task_id: str, number: int) -> str:
    """Where the `number`-th attempt at a task stands once it is tried again, relative to the run directory."""
    return f"attempts/{task_id}.{number}.json"


def with_attempts(row: JsonObject, failed: Sequence[JsonObject]) -> JsonObject:
    """An index row that tells of the attempts before: of each why it failed, and where its transcript is."""
    if not failed:
        return row
    task_id = entry(row, "task_id", str)
    told: list[JsonValue] = [
        {
            "attempt": number,
            "failure": before.get("failure"),
            "transcript": attempt_path(task_id, number),
            "sha256": before.get("sha256"),
            "size_bytes": before.get("size_bytes"),
            "counts": before.get("counts"),
        }
        for number, before in enumerate(failed, start=1)
    ]
    return {**row, "failed_attempts": told}


def index_row(transcript: JsonObject, encoded: bytes | None = None) -> JsonObject:
    """The transcript's line in the index; `encoded` saves encoding it again where its bytes are at hand."""
    data = encode_transcript(transcript) if encoded is None else encoded
    task = entry(transcript, "task", dict)
    task_id = entry(task, "task_id", str)
    return {
        "task_id": task_id,
        "index": entry(task, "index", int),
        "status": entry(transcript, "status", str),
        "failure": transcript.get("failure"),
        "transcript": transcript_path(task_id),
        "sha256": hashlib.sha256(data).hexdigest(),
        "size_bytes": len(data),
        "counts": transcript.get("counts"),
        "outcome": transcript.get("outcome"),
        "timing": transcript.get("timing"),
    }


def without_timing(value: JsonValue) -> JsonValue:
    """`value` less every key named `timing`, at any depth."""
    if isinstance(value, dict):
        return {key: without_timing(inner) for key, inner in value.items() if key != "timing"}
    if isinstance(value, list):
        return [without_timing(inner) for inner in value]
    return value


def task_of(transcript: JsonObject) -> Task:
    """The task this is the transcript of. Raises ValueError when it is not told."""
    return task_from_json(entry(transcript, "task", dict))


def salvaged_task(data: bytes) -> Task | None:
    """The task in the file of a transcript that may be damaged elsewhere; None where it cannot be read."""
    text = data.decode("ascii", "replace")
    try:
        task, _ = _decoder.raw_decode(text, text.index(_TASK_KEY) + len(_TASK_KEY))
        return task_from_json(task)
    except (ValueError, AttributeError, RecursionError):
        return None


def replies_of(transcript: JsonObject) -> list[RecordedReply]:
    """The recorded replies in canonical order: what a replay is fed with. Raises ValueError on a malformed one."""
    return [recorded_from_json(turn) for turn in objects(transcript, "turns")]


def replies_before_failure(transcript: JsonObject) -> list[RecordedReply]:
    """The replies of a failed conversation, less the one that it failed on. Raises ValueError on a malformed one."""
    turns = objects(transcript, "turns")
    stood = (turn for turn in turns if entry(turn, "receipt", dict).get("kind") != ReceiptKind.FAILURE)
    return [recorded_from_json(turn) for turn in stood]


def in_wall_clock_order(transcript: JsonObject, answers: Iterable[JsonObject]) -> JsonObject:
    """The transcript with its turns in the order in which they were answered, as the event log tells it.

    A replay of it takes the very course the run took. A turn whose event is missing stays behind the one before it.
    """
    ranks = {answer["turn"]: rank for rank, answer in enumerate(answers)}
    ranked: list[tuple[int, JsonObject]] = []
    for turn in objects(transcript, "turns"):
        rank = ranks.get(turn["turn"], ranked[-1][0] if ranked else -1)
        ranked.append((rank, turn))
    return {**transcript, "turns": [turn for _, turn in sorted(ranked, key=lambda pair: pair[0])]}


def _counts(task: Task, turns: Sequence[TurnRecord]) -> JsonObject:
    kinds = [turn.receipt.kind for turn in turns]
    counts: JsonObject = {
        "turns": len(turns),
        "corrections": kinds.count(ReceiptKind.CORRECTION),
        "defaults": kinds.count(ReceiptKind.DEFAULT),
        "tokens": tokens_json(sum((turn.reply.tokens for turn in turns), TokenCount())),
    }
    definitions = {agent.agent_id: agent.definition for agent in task.agents}
    unusable: dict[str, Counter[str]] = {}
    for turn in turns:
        if turn.receipt.cause is not None:
            unusable.setdefault(definitions[turn.turn.agent], Counter())[turn.receipt.cause] += 1
    if unusable:
        counts["unusable"] = {name: dict(sorted(causes.items())) for name, causes in sorted(unusable.items())}
    return counts


def _turn_json(record: TurnRecord) -> JsonObject:
    turn = record.turn
    recorded = recorded_json(
        RecordedReply(turn_key=turn.key, prompt_sha256=record.prompt_sha256, reply=record.reply),
    )
    return {
        "turn": turn.key,
        "round": turn.round,
        "agent": turn.agent,
        "model": turn.model,
        "place": turn.place,
        "step": turn.step,
        "attempt": turn.attempt,
        "prompt_sha256": record.prompt_sha256,
        "reply": recorded["reply"],
        "receipt": _receipt_json(record.receipt),
        "timing": recorded["timing"],
    }


def _receipt_json(receipt: Receipt) -> JsonObject:
    told: JsonObject = {"kind": str(receipt.kind), "detail": receipt.detail}
    return told if receipt.cause is None else {**told, "cause": str(receipt.cause)}


def _upgraded(transcript: JsonObject) -> JsonObject:
    """A transcript of format 1 in this one's layout."""
    turns: list[JsonValue] = []
    for turn in objects(transcript, "turns"):
        reply = entry(turn, "reply", dict)
        turns.append({**turn, "reply": {**reply, "tokens": upgraded_tokens(entry(reply, "tokens", dict))}})
    return {
        **transcript,
        "format": TRANSCRIPT_FORMAT,
        "counts": upgraded_counts(transcript.get("counts")),
        "turns": turns,
    }


def _lines(value: JsonObject) -> str:
    rows = [f"{_compact(key)}: {_block(inner)}" for key, inner in value.items()]
    return "{\n" + ",\n".join(rows) + "\n}"


def _block(value: JsonValue) -> str:
    """One line, but for lists of objects and for the objects that hold such lists directly."""
    if _is_table(value):
        return "[\n" + ",\n".join(map(_compact, value)) + "\n]"
    if isinstance(value, dict) and any(map(_is_table, value.values())):
        return _lines(value)
    return _compact(value)


def _is_table(value: JsonValue) -> TypeGuard[list[JsonValue]]:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)
