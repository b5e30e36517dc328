"""Transcripts: their content, their index rows, and their publication.

A transcript is self-contained: its task and its replies rebuild the conversation without the journal. Everything that
depends on time is under keys named `timing`. The turns are in their canonical order, whatever order the replies came
in. So two runs of one seed are equal byte by byte after `without_timing`.

On disk each top-level key has its own line, and so has each element of a list of objects: `grep` and `diff` work line
by line, and the compact C encoder still makes nearly all of the text.

A transcript is published once, whole; the first publication wins.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias, TypeGuard

from mac_runner.errors import StoreError
from mac_runner.registry import counted_kinds, measures_of
from mac_runner.rewards import names_agents
from mac_runner.store.disk import Disk
from mac_runner.store.layout import Layout, attempt_path, task_id_of, traces_beside, transcript_path
from mac_runner.store.records import (
    decode_json,
    entry,
    foreign_format,
    objects,
    recorded_from_json,
    reply_json,
    row_id,
    task_from_json,
    task_json,
    timing_json,
    tokens_json,
)
from mac_runner.store.traces import TRACES, Traces, encode_traces, traces_flaw, with_traces
from mac_runner.types import (
    FinishReason,
    JsonObject,
    JsonValue,
    ReceiptKind,
    RecordedReply,
    Task,
    TokenCount,
    TurnRecord,
)

TRANSCRIPT_FORMAT = 3

METRIC_KEYS: Final = ("metrics", "metric_errors", "shaped_rewards", "reward_errors")
"""What metrics made of the conversation: in transcripts of experiments that have metrics, and in their rows."""
GROUP_KEYS: Final = ("group", "sample")

Attempts: TypeAlias = Mapping[str, Sequence[JsonObject]]
"""The index rows of failed attempts that were retried, in their order, by task."""

_TAKEN: Final = "turns_by_definition"
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
    measure: Callable[[JsonObject], JsonObject] | None = None,
) -> JsonObject:
    """The transcript of an ended conversation; `failure` says why one could not go on.

    `measure` gives what metrics make of it (`METRIC_KEYS`).
    """
    ordered = sorted(turns, key=lambda record: record.turn.canonical)
    transcript: JsonObject = {
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
    return transcript if measure is None else {**transcript, **measure(transcript)}


def as_measured(recorded: JsonObject) -> Callable[[JsonObject], JsonObject]:
    """The `measure` of a conversation that is played again: what was recorded, in its transcript or its row.

    What is measured is no part of a conversation: another version may measure more, and the code of a metric may be
    gone.
    """

    def measure(transcript: JsonObject) -> JsonObject:
        found: JsonObject = {key: recorded[key] for key in METRIC_KEYS if key in recorded}
        outcome, before = transcript["outcome"], recorded.get("outcome")
        if isinstance(outcome, dict):
            for place in measures_of(outcome.get("kind")):
                outcome = _with_recorded(outcome, before, place.split("."))
        return {**found, "outcome": outcome}

    return measure


def _with_recorded(value: JsonValue, recorded: JsonValue, place: Sequence[str]) -> JsonValue:
    """`value` with what `recorded` has at a place, such as `players[]`, `measures`; without it where it has nothing."""
    if not isinstance(value, dict) or not isinstance(recorded, dict):
        return value
    key, *below = place
    name = key.removesuffix("[]")
    if not below:
        # What did not change keeps its order of keys, which a row lacks: a restored transcript is the same bytes.
        if name in recorded:
            return value if value.get(name) == recorded[name] else {**value, name: recorded[name]}
        return {each: found for each, found in value.items() if each != name}
    ours, theirs = value.get(name), recorded.get(name)
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return {**value, name: [_with_recorded(*pair, below) for pair in zip(ours, theirs, strict=True)]}
    return value


def encode_transcript(transcript: JsonObject) -> bytes:
    """A transcript, or a file in its layout, as the bytes of the file."""
    return (_lines(transcript) + "\n").encode("ascii")


def decode_transcript(data: bytes) -> JsonObject:
    """A transcript from its file. Raises ValueError when this version cannot read it."""
    try:
        transcript = decode_json(data)
    except RecursionError as fault:
        raise ValueError("it is nested too deeply") from fault
    if not isinstance(transcript, dict):
        raise ValueError("a transcript is a JSON object")
    if (found := transcript.get("format")) != TRANSCRIPT_FORMAT:
        raise ValueError(foreign_format("format", found, TRANSCRIPT_FORMAT))
    return transcript


def with_attempts(row: JsonObject, failed: Sequence[JsonObject]) -> JsonObject:
    """An index row with the failed attempts before it: why each failed, and where its transcript is."""
    if not failed:
        return row
    listed: list[JsonValue] = [
        {
            "attempt": number,
            "failure": before.get("failure"),
            "transcript": attempt_path(row_id(row), number),
            "sha256": before.get("sha256"),
            "size_bytes": before.get("size_bytes"),
            "counts": before.get("counts"),
        }
        for number, before in enumerate(failed, start=1)
    ]
    return {**row, "failed_attempts": listed}


def index_row(transcript: JsonObject, encoded: bytes | None = None) -> JsonObject:
    """The index row of a transcript; `encoded` are its bytes, where the caller has them."""
    data = encode_transcript(transcript) if encoded is None else encoded
    task = entry(transcript, "task", dict)
    task_id = entry(task, "task_id", str)
    return {
        "task_id": task_id,
        "index": entry(task, "index", int),
        "status": entry(transcript, "status", str),
        "failure": transcript.get("failure"),
        "transcript": transcript_path(task_id),
        "sha256": sha256_of(data),
        "size_bytes": len(data),
        "counts": transcript.get("counts"),
        "outcome": transcript.get("outcome"),
        **{key: transcript[key] for key in (*METRIC_KEYS, TRACES) if key in transcript},
        "timing": transcript.get("timing"),
        **_fork_columns(task),
        **_policy_columns(transcript),
        **{key: task[key] for key in GROUP_KEYS if key in task},
        **_agents_named(transcript),
    }


def _fork_columns(task: JsonObject) -> JsonObject:
    """Where a conversation leaves another one, as columns of its row; none for one that does not."""
    if "fork" not in task:
        return {}
    fork = entry(task, "fork", dict)
    return {"fork_of": fork["of"], **{key: fork[key] for key in ("turn", "arm", "draw", "off_policy")}}


def _policy_columns(transcript: JsonObject) -> JsonObject:
    """The first and the last version of each model's weights, where engines report versions."""
    spans: dict[str, list[int]] = {}
    for record in objects(transcript, "turns"):
        policy = entry(record, "reply", dict).get("policy")
        if isinstance(policy, list):
            versions = [version for version in policy if isinstance(version, int)]
            known = spans.setdefault(str(record["model"]), versions)
            spans[str(record["model"])] = [min(*known, *versions), max(*known, *versions)]
    found: JsonObject = {model: [*span] for model, span in sorted(spans.items())}
    return {"policy": found} if found else {}


def _agents_named(transcript: JsonObject) -> JsonObject:
    """Definition, model and seat of each agent, where an outcome without results of its own names agents.

    With them a summary can count the outcome by definition, model and seat.
    """
    outcome = transcript.get("outcome")
    if not isinstance(outcome, dict) or outcome.get("kind") in counted_kinds():
        return {}
    agents = {agent.agent_id: agent for agent in task_of(transcript).agents}
    if not names_agents(outcome, agents):
        return {}
    return {"agents": {name: [agent.definition, agent.model, agent.seat] for name, agent in agents.items()}}


def without_timing(value: JsonValue) -> JsonValue:
    """`value` without the keys named `timing`, at any depth."""
    if isinstance(value, dict):
        return {key: without_timing(inner) for key, inner in value.items() if key != "timing"}
    if isinstance(value, list):
        return [without_timing(inner) for inner in value]
    return value


def task_of(transcript: JsonObject) -> Task:
    """The task of a transcript. Raises ValueError when it is not there."""
    return task_from_json(entry(transcript, "task", dict))


def salvaged_task(data: bytes) -> Task | None:
    """The task in a transcript file that may be damaged elsewhere; None when it cannot be read."""
    text = data.decode("ascii", "replace")
    try:
        task, _ = _decoder.raw_decode(text, text.index(_TASK_KEY) + len(_TASK_KEY))
        return task_from_json(task)
    except (ValueError, AttributeError, RecursionError):
        return None


def replies_of(transcript: JsonObject) -> list[RecordedReply]:
    """The recorded replies in canonical order, as a replay takes them. Raises ValueError on a malformed one."""
    return _recorded(transcript, objects(transcript, "turns"))


def replies_before_failure(transcript: JsonObject) -> list[RecordedReply]:
    """The replies of a failed conversation without the one it failed on. Raises ValueError on a malformed one."""
    turns = objects(transcript, "turns")
    kept = (turn for turn in turns if entry(turn, "receipt", dict).get("kind") != ReceiptKind.FAILURE)
    return _recorded(transcript, kept)


def _recorded(transcript: JsonObject, turns: Iterable[JsonObject]) -> list[RecordedReply]:
    # Only in a fork may a model have answered that is not the agent's.
    has_model = "fork" in entry(transcript, "task", dict)
    return [recorded_from_json(turn, has_model=has_model) for turn in turns]


def in_wall_clock_order(transcript: JsonObject, answers: Iterable[JsonObject]) -> JsonObject:
    """The transcript with its turns in the order in which they were answered, by the event log.

    A replay of it takes the same course as the run. A turn without an event follows the turn before it.
    """
    ranks = {answer["turn"]: rank for rank, answer in enumerate(answers)}
    ranked: list[tuple[int, JsonObject]] = []
    for turn in objects(transcript, "turns"):
        rank = ranks.get(turn["turn"], ranked[-1][0] if ranked else -1)
        ranked.append((rank, turn))
    return {**transcript, "turns": [turn for _, turn in sorted(ranked, key=lambda pair: pair[0])]}


class Published(NamedTuple):
    """A transcript on the disk, and its bytes."""

    transcript: JsonObject
    data: bytes

    @property
    def row(self) -> JsonObject:
        return index_row(self.transcript, self.data)


class Finished(NamedTuple):
    """An ended conversation to be published. `traces` is the file of its token traces; None where it has none."""

    task_id: str
    transcript: JsonObject
    traces: bytes | None

    @staticmethod
    def of(task_id: str, transcript: JsonObject, traces: Traces) -> Finished:
        return Finished(task_id, with_traces(transcript, traces), encode_traces(traces) if traces else None)


def publish_traces(disk: Disk, layout: Layout, ended: Sequence[Finished]) -> None:
    """Write the token traces of conversations, durably; their transcripts are published afterwards.

    What a killed process left in their place is replaced. The traces of a published transcript stay.
    """
    traced = [one for one in ended if one.traces is not None]
    if traced:
        disk.make_directory(layout.traces)
        for one in traced:
            if not disk.exists(layout.transcript(one.task_id)):
                _put_traces(disk, layout, one)
        disk.sync_directory(layout.traces)


def _put_traces(disk: Disk, layout: Layout, one: Finished) -> None:
    path = traces_beside(layout.transcript(one.task_id))
    if one.traces is None or disk.publish_once(path, one.traces):
        return
    if not disk.is_file(path) or disk.read(path) != one.traces:
        disk.write_atomic(path, [one.traces])


def publish(disk: Disk, layout: Layout, ended: Finished) -> JsonObject:
    """Publish a transcript; return the index row of the one that is then on the disk.

    If the task has a transcript already, that one stays and the new one is dropped. The name is durable after the
    directory is synced, which the caller does once for many files.
    """
    task_id, transcript, _ = ended
    data = encode_transcript(transcript)
    path = layout.transcript(task_id)
    if disk.publish_once(path, data):
        # A second process that a broken lock let in may have put its traces there meanwhile.
        _put_traces(disk, layout, ended)
        return index_row(transcript, data)
    try:
        return read_published(disk, layout, task_id).row
    except ValueError as fault:
        raise StoreError(
            f"{path} was there before its conversation ended and cannot be read ({fault}); "
            "run the same command again: it is set aside and the conversation is written again"
        ) from fault


def read_published(disk: Disk, layout: Layout, task_id: str) -> Published:
    """The transcript of a task on the disk. Raises ValueError when the file is not one of this task."""
    path = layout.transcript(task_id)
    if disk.exists(path) and not disk.is_file(path):
        raise ValueError("it is not a regular file")
    data = disk.read(path)
    transcript = decode_transcript(data)
    if (found := entry(entry(transcript, "task", dict), "task_id", str)) != task_id:
        raise ValueError(f"it is the transcript of task {found!r}")
    return Published(transcript, data)


def read_acknowledged(disk: Disk, path: Path, row: JsonObject) -> bytes:
    """The bytes of a transcript, which are those that `row` acknowledges. Raises ValueError saying what is wrong."""
    if not disk.exists(path):
        raise ValueError("is not there")
    if not disk.is_file(path):
        raise ValueError("is not a regular file")
    data = disk.read(path)
    check_acknowledged(data, row)
    return data


def check_acknowledged(data: bytes, row: JsonObject) -> None:
    """Raises ValueError where these are not the bytes that `row` acknowledges."""
    if sha256_of(data) != row["sha256"]:
        raise ValueError("is not what was acknowledged")


def is_acknowledged(disk: Disk, path: Path, row: JsonObject) -> bool:
    try:
        read_acknowledged(disk, path, row)
    except ValueError:
        return False
    return True


def result_flaw(disk: Disk, path: Path, row: JsonObject) -> str | None:
    """How the transcript at `path`, or its traces, differ from what `row` acknowledges; None where they do not."""
    try:
        read_acknowledged(disk, path, row)
    except ValueError as fault:
        return f"{path} {fault}"
    flaw = traces_flaw(disk, traces_beside(path), row)
    return None if flaw is None else f"{traces_beside(path)} {flaw}"


def remove_superseded(disk: Disk, layout: Layout, attempts: Attempts, reopened: Iterable[str]) -> None:
    """Remove the transcripts of failed attempts, and their traces, that are still where the next attempt's will be."""
    for task_id in superseded(disk, layout, attempts, reopened):
        disk.remove(layout.transcript(task_id))
        disk.remove(traces_beside(layout.transcript(task_id)))


def superseded(disk: Disk, layout: Layout, attempts: Attempts, reopened: Iterable[str]) -> set[str]:
    """The conversations, of those that are open again, whose failed transcript is still where the next one will be."""
    return {task_id for task_id in reopened if is_acknowledged(disk, layout.transcript(task_id), attempts[task_id][-1])}


def transcript_sizes(disk: Disk, layout: Layout, task_ids: Iterable[str] = ()) -> dict[str | None, int | None]:
    """The bytes of each transcript by its task, None for anything but a file; under None for other names.

    Of a part those of `task_ids`, each looked for by its name: the directory has those of all parts.
    """
    names = None if layout.is_whole else [layout.transcript(task_id).name for task_id in task_ids]
    return {task_id_of(name): size_bytes for name, size_bytes in disk.sizes(layout.transcripts, names).items()}


def set_aside(disk: Disk, layout: Layout, path: Path) -> None:
    """Move a damaged file, or anything with its name, into `damaged/`; nothing there is replaced."""
    disk.make_directory(layout.damaged)
    place, n = layout.damaged / path.name, 1
    while disk.exists(place):
        place, n = layout.damaged / f"{path.stem}.{n}{path.suffix}", n + 1
    disk.rename(path, place)


def put(disk: Disk, layout: Layout, path: Path, data: bytes) -> None:
    """Write a file unless it is there; another one in its place is set aside."""
    if not disk.publish_once(path, data) and (not disk.is_file(path) or disk.read(path) != data):
        set_aside(disk, layout, path)
        disk.publish_once(path, data)


def sha256_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _counts(task: Task, turns: Sequence[TurnRecord]) -> JsonObject:
    kinds = [turn.receipt.kind for turn in turns]
    tokens = sum((turn.reply.tokens for turn in turns), TokenCount())
    counts: JsonObject = {
        "turns": len(turns),
        "corrections": kinds.count(ReceiptKind.CORRECTION),
        "defaults": kinds.count(ReceiptKind.DEFAULT),
        "tokens": tokens_json(tokens),
    }
    began = [turn.reply for turn in turns if turn.reply.finish_reason is not FinishReason.OVERFLOW]
    uncounted = sum(not reply.tokens.is_counted for reply in began)
    if uncounted and tokens.is_counted:
        counts["uncounted_turns"] = uncounted
    definitions = {agent.agent_id: agent.definition for agent in task.agents}
    unusable: dict[str, Counter[str]] = {}
    taken: dict[str, Counter[str]] = {}
    for turn in turns:
        name, kind = definitions[turn.turn.agent], turn.receipt.kind
        if turn.receipt.cause is not None:
            unusable.setdefault(name, Counter())[turn.receipt.cause] += 1
        if kind in (ReceiptKind.ACT, ReceiptKind.DEFAULT):
            taken.setdefault(name, Counter(turns=0, defaults=0)).update(
                turns=1, defaults=int(kind is ReceiptKind.DEFAULT)
            )
    if taken:
        counts[_TAKEN] = {name: dict(found) for name, found in sorted(taken.items())}
    if unusable:
        counts["unusable"] = {name: dict(sorted(causes.items())) for name, causes in sorted(unusable.items())}
    return counts


def _turn_json(record: TurnRecord) -> JsonObject:
    turn, receipt = record.turn, record.receipt
    cause: JsonObject = {} if receipt.cause is None else {"cause": str(receipt.cause)}
    return {
        "turn": turn.key,
        "round": turn.round,
        "agent": turn.agent,
        "model": turn.model,
        "place": turn.place,
        "step": turn.step,
        "attempt": turn.attempt,
        "prompt_sha256": record.prompt_sha256,
        "reply": reply_json(record.reply),
        "receipt": {"kind": str(receipt.kind), "detail": receipt.detail, **cause},
        "timing": timing_json(record.reply.timing),
    }


def _lines(value: JsonObject) -> str:
    rows = [f"{_compact(key)}: {_block(inner)}" for key, inner in value.items()]
    return "{\n" + ",\n".join(rows) + "\n}"


def _block(value: JsonValue) -> str:
    """One line, except for lists of objects and for objects that directly hold such lists."""
    if _is_table(value):
        return "[\n" + ",\n".join(map(_compact, value)) + "\n]"
    if isinstance(value, dict) and any(map(_is_table, value.values())):
        return _lines(value)
    return _compact(value)


def _is_table(value: JsonValue) -> TypeGuard[list[JsonValue]]:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)
