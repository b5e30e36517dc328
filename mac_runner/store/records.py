"""The lines of the files: JSON values, journal frames, replies and tasks, events (pure).

A frame is one record, one line, one checksum::

    8d2c1f09 {"id":"t000017","kind":"reply",...}\\n
    crc32    JSON, ASCII, sorted keys, no spaces

A record counts only when its checksum agrees, so an altered byte never becomes a fact. The JSON is ASCII, so a line
ends at byte 0x0A and nowhere else, whatever a model wrote. A bad line costs only itself: reading goes on after the next
newline. Where the newline itself was lost, both frames are found again, because the text ` {"` (after the checksum)
cannot occur inside compact JSON.

A reply has one shape in a journal frame and in a transcript's `turns`. Everything that depends on time is under the key
`timing`, also how many prompt tokens were cached, because that follows from the engine's other work. A lone surrogate
or a NUL in a model's text survives, because the files hold only ASCII JSON.
"""

from __future__ import annotations

import dataclasses
import heapq
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import pairwise
from typing import NamedTuple, TypeVar, cast

import msgspec

from mac_runner.clock import iso
from mac_runner.structs import convert
from mac_runner.types import (
    Agent,
    Draw,
    FinishReason,
    Fork,
    JsonObject,
    JsonValue,
    PolicySpan,
    RecordedReply,
    Reply,
    Task,
    Timing,
    TokenCount,
    TokenTrace,
)

FRAME_BYTES_MAX = 16 << 20

CHECKSUM_CHARS = 8
_START = re.compile(rb'[0-9a-f]{8} \{"')
_EVENT_TIME = re.compile(rb'\{"time":"([^"]*)"')
_BRANCH = re.compile(r"(-f[0-9]+(-[a-z]+)?-d[0-9]{3,})+$")
_REQUIRED_SAMPLING = ("temperature", "max_tokens")

_encode = json.JSONEncoder(
    ensure_ascii=True, allow_nan=False, check_circular=False, sort_keys=True, separators=(",", ":")
).encode
_encode_event = json.JSONEncoder(ensure_ascii=True, allow_nan=False, check_circular=False, separators=(",", ":")).encode
_encode_event_fast = msgspec.json.Encoder().encode
_decode_fast = msgspec.json.Decoder().decode

Json = TypeVar("Json", bool, int, str, list[JsonValue], dict[str, JsonValue])


# Values.


def encode_json(value: JsonValue) -> bytes:
    """The canonical JSON of a value: equal values have equal bytes. Raises ValueError on NaN and infinities."""
    return _encode(value).encode("ascii")


def decode_json(data: bytes) -> JsonValue:
    """The value of a JSON text, as `json.loads` reads it. Raises ValueError, or RecursionError where it is deep."""
    try:
        return cast("JsonValue", _decode_fast(data))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        # Half a surrogate pair, NaN and 1e999 are values to the slower decoder alone.
        return cast("JsonValue", json.loads(data))


def encode_for_reading(value: JsonObject) -> bytes:
    """Indented JSON, keys in the order given."""
    return (json.dumps(value, indent=2, ensure_ascii=True, allow_nan=False) + "\n").encode("ascii")


def entry(record: JsonObject, key: str, kind: type[Json]) -> Json:
    """The value of `key`. Raises ValueError naming what was found when it is missing or not of type `kind`."""
    value = record.get(key)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{key!r} should be of type {kind.__name__}, not {value!r:.80}")
    return value


def objects(record: JsonObject, key: str) -> list[JsonObject]:
    """The list of objects under `key`. Raises ValueError when it is anything else."""
    found: list[JsonObject] = []
    for value in entry(record, key, list):
        if not isinstance(value, dict):
            raise ValueError(f"{key!r} should hold objects only, not {value!r:.80}")
        found.append(value)
    return found


def row_id(row: JsonObject) -> str:
    return entry(row, "task_id", str)


def branch_id(parent: str, place: int, arm: str, draw: int) -> str:
    """The id of the conversation that leaves `parent` at the turn of this place; `arm` is empty for the only one."""
    return f"{parent}-f{place}{arm and f'-{arm}'}-d{draw:03d}"


def origin_of(task_id: str) -> str:
    """The conversation that was not forked itself, from which a fork comes, or a fork of a fork."""
    return _BRANCH.sub("", task_id)


# Lines and frames.


class Line(NamedTuple):
    """One line of a file without its newline; `is_ended` says whether it had one.

    A line longer than a frame may be is measured and not kept: its `data` is empty.
    """

    offset: int
    size_bytes: int
    data: bytes
    is_ended: bool


def encode_frame(record: JsonObject) -> bytes:
    """The frame of a record. Raises ValueError when it is longer than `FRAME_BYTES_MAX`."""
    payload = encode_json(record)
    if len(payload) + CHECKSUM_CHARS + 2 > FRAME_BYTES_MAX:
        raise ValueError(f"a record of {len(payload)} bytes is longer than a frame may be ({FRAME_BYTES_MAX})")
    return b"%08x %b\n" % (zlib.crc32(payload), payload)


def is_intact(data: bytes) -> bool:
    """Whether the checksum of a line (without its newline) agrees."""
    return data[: CHECKSUM_CHARS + 1] == b"%08x " % zlib.crc32(data[CHECKSUM_CHARS + 1 :])


def decode_frame(data: bytes) -> JsonObject | None:
    """The record of a line (without its newline); None when it is not an intact frame."""
    if not is_intact(data):
        return None
    try:
        record = decode_json(data[CHECKSUM_CHARS + 1 :])
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def lines(chunks: Iterable[bytes]) -> Iterator[Line]:
    """The lines of a file given in pieces. Holds one line in memory, at most `FRAME_BYTES_MAX` long."""
    for block in blocks(chunks):
        offset = block.offset
        for data in block.data.split(b"\n"):
            yield Line(offset, len(data) + block.dropped, data, block.is_ended)
            offset += len(data) + 1


def lines_with(
    pattern: re.Pattern[bytes], chunks: Iterable[bytes], wants: Callable[[re.Match[bytes]], bool] = lambda match: True
) -> Iterator[Line]:
    """The ended lines with a match of `pattern` that `wants` accepts; all others cost next to nothing."""
    for block in blocks(chunks):
        for _, start, end in matched_lines(pattern, block.data, wants) if block.is_ended else ():
            yield Line(block.offset + start, end - start, block.data[start:end], True)


def matched_lines(
    pattern: re.Pattern[bytes], data: bytes, wants: Callable[[re.Match[bytes]], bool] = lambda match: True
) -> Iterator[tuple[re.Match[bytes], int, int]]:
    """Of each line of whole lines the first match that `wants` accepts, and where the line begins and ends.

    The rest of that line is not searched: the index row of a game is long.
    """
    place = 0
    while (match := pattern.search(data, place)) is not None:
        place = match.end()
        if wants(match):
            start, end = data.rfind(b"\n", 0, match.start()) + 1, data.find(b"\n", place)
            place = len(data) if end < 0 else end
            yield match, start, place


class Block(NamedTuple):
    """Whole lines without their last newline, or the end of a file that lacks one.

    Of a line too long to keep, only the size is known, in `dropped`.
    """

    offset: int
    data: bytes
    is_ended: bool
    dropped: int = 0


def blocks(chunks: Iterable[bytes]) -> Iterator[Block]:
    """A file given in pieces, as whole lines."""
    offset, dropped, tail = 0, 0, b""
    for chunk in chunks:
        data = tail + chunk
        if dropped and (end := data.find(b"\n")) >= 0:
            yield Block(offset, b"", True, dropped + end)
            offset, dropped, data = offset + dropped + end + 1, 0, data[end + 1 :]
        end = data.rfind(b"\n")
        if end >= 0:
            yield Block(offset, data[:end], True)
            offset += end + 1
        tail = data[end + 1 :]
        if dropped or len(tail) > FRAME_BYTES_MAX:
            dropped, tail = dropped + len(tail), b""
    if dropped or tail:
        yield Block(offset, tail, False, dropped)


def records_of(line: Line) -> tuple[tuple[JsonObject, ...], bool]:
    """The records of an ended line, and whether the line is damaged.

    An intact line has one record. A damaged one may have several: the neighbours of a lost newline.
    """
    record = decode_frame(line.data)
    if record is not None:
        return (record,), False
    starts = [match.start() for match in _START.finditer(line.data)]
    # Before each start is the byte that was the newline; after the last one, the end of the line.
    stretches = pairwise([*starts, len(line.data) + 1])
    found = (decode_frame(line.data[start : following - 1]) for start, following in stretches)
    return tuple(record for record in found if record is not None), True


# Replies and tasks.


class _Cached(msgspec.Struct):
    cached: int


class _Tokens(msgspec.Struct):
    prompt: int
    completion: int
    timing: _Cached


class _Trace(msgspec.Struct):
    prompt_ids: bytes
    completion_ids: bytes
    logprobs: bytes
    like: int | None = None
    shared: int = 0


class _Reply(msgspec.Struct):
    text: str
    finish_reason: FinishReason
    tokens: _Tokens
    trace: _Trace | None = None
    thinking: str | None = None
    policy: PolicySpan | None = None


class _Timing(msgspec.Struct):
    queue_s: float
    generate_s: float
    faults: tuple[str, ...]
    server: str | None = None
    lane: str | None = None
    gpu: str | None = None


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """A reply, as a journal frame and an entry of a transcript's `turns` have it."""

    turn: str
    prompt_sha256: str
    reply: _Reply
    timing: _Timing
    model: str | None = None

    @property
    def tokens(self) -> TokenCount:
        """What the engine counted."""
        found = self.reply.tokens
        return TokenCount(prompt=found.prompt, cached=found.timing.cached, completion=found.completion)

    def recorded(self, *, has_model: bool = True, earlier: Sequence[RecordedReply] = ()) -> RecordedReply:
        """The same. Raises ValueError.

        With `has_model` its `model` counts; `earlier` are the replies that the prompt of a frame may refer to.
        """
        found, timing = self.reply, self.timing
        return RecordedReply(
            turn_key=self.turn,
            prompt_sha256=self.prompt_sha256,
            reply=Reply(
                text=found.text,
                thinking=found.thinking,
                finish_reason=found.finish_reason,
                tokens=self.tokens,
                trace=None if found.trace is None else _trace(found.trace, earlier),
                policy=found.policy,
                timing=Timing(
                    queue_s=timing.queue_s,
                    generate_s=timing.generate_s,
                    faults=timing.faults,
                    server=timing.server,
                    lane=timing.lane,
                    gpu=timing.gpu,
                ),
            ),
            model=self.model if has_model else None,
        )


class _Draw(msgspec.Struct):
    since: tuple[int, int, int, int]
    number: int
    spared: tuple[str, ...] = ()


class _Fork(msgspec.Struct):
    of: str
    turn: str
    arm: str
    draw: int
    draws: tuple[_Draw, ...]
    forced: tuple[str, ...] = ()
    off_policy: bool = False


def foreign_format(name: str, found: JsonValue, ours: JsonValue) -> str:
    """Why a file of another format, or a run of another edition, is not read, and what reads it."""
    return (
        f"{name} is {found!r:.20}, and this version reads {ours!r} alone: what was recorded earlier is read by "
        "mac_runner 0.2.0; use that, or start again in another directory with --out"
    )


def tokens_json(tokens: TokenCount) -> JsonObject:
    return {"prompt": tokens.prompt, "completion": tokens.completion, "timing": {"cached": tokens.cached}}


def recorded_json(recorded: RecordedReply) -> JsonObject:
    """A recorded reply as JSON, without its trace."""
    by: JsonObject = {} if recorded.model is None else {"model": recorded.model}
    return {
        "turn": recorded.turn_key,
        **by,
        "prompt_sha256": recorded.prompt_sha256,
        "reply": reply_json(recorded.reply),
        "timing": timing_json(recorded.reply.timing),
    }


def reply_json(reply: Reply) -> JsonObject:
    """A reply as JSON, without its trace and its timing."""
    found: JsonObject = {
        "text": reply.text,
        "finish_reason": str(reply.finish_reason),
        "tokens": tokens_json(reply.tokens),
    }
    if reply.thinking is not None:
        found["thinking"] = reply.thinking
    if reply.policy is not None:
        found["policy"] = list(reply.policy)
    return found


def timing_json(timing: Timing) -> JsonObject:
    """The timing of a reply as JSON; times in seconds, to the microsecond."""
    found: JsonObject = {
        "queue_s": round(timing.queue_s, 6),
        "generate_s": round(timing.generate_s, 6),
        "faults": list(timing.faults),
    }
    if timing.server is not None:
        found |= {"server": timing.server}
        found |= {key: value for key, value in (("lane", timing.lane), ("gpu", timing.gpu)) if value is not None}
    return found


def recorded_from_json(turn: JsonObject, *, has_model: bool = True) -> RecordedReply:
    """The reply of an entry of a transcript's `turns`. Raises ValueError naming the key."""
    return convert(turn, Recorded).recorded(has_model=has_model)


def _trace(found: _Trace, earlier: Sequence[RecordedReply]) -> TokenTrace:
    like = None
    if found.like is not None:
        like = earlier[found.like].reply.trace if 0 <= found.like < len(earlier) else None
        if like is None:
            raise ValueError(f"'like' refers to reply {found.like}, which has no tokens")
    return TokenTrace.packed(found.prompt_ids, found.completion_ids, found.logprobs, earlier=like, shared=found.shared)


def task_json(task: Task) -> JsonObject:
    material: JsonObject = {} if task.material is None else {"material": dict(task.material)}
    return {
        "task_id": task.task_id,
        "index": task.index,
        "seed": task.seed,
        "agents": [_agent_json(agent) for agent in task.agents],
        **material,
        **({} if task.fork is None else {"fork": fork_json(task.fork)}),
        **({} if task.group is None else {"group": task.group, "sample": task.sample}),
    }


def fork_json(fork: Fork) -> JsonObject:
    """Where a conversation leaves another one, as JSON."""
    draws: list[JsonValue] = [
        {"since": list(draw.since), "number": draw.number, "spared": list(draw.spared)} for draw in fork.draws
    ]
    return {
        "of": fork.of,
        "turn": fork.turn,
        "arm": fork.arm,
        "draw": fork.draw,
        "draws": draws,
        "forced": list(fork.forced),
        "off_policy": fork.is_off_policy,
    }


def _fork_from_json(record: JsonObject) -> Fork:
    found = convert(record, _Fork)
    draws = tuple(Draw(draw.since, draw.number, draw.spared) for draw in found.draws)
    return Fork(
        of=found.of,
        turn=found.turn,
        arm=found.arm,
        draw=found.draw,
        draws=draws,
        forced=found.forced,
        is_off_policy=found.off_policy,
    )


def task_from_json(record: JsonObject) -> Task:
    """A task from JSON. Raises ValueError naming the key."""
    for agent in (agents := objects(record, "agents")):
        sampling = entry(agent, "sampling", dict)
        if missing := [key for key in _REQUIRED_SAMPLING if key not in sampling]:
            raise ValueError(f"'sampling' lacks {missing[0]!r}")
    return Task(
        task_id=entry(record, "task_id", str),
        index=entry(record, "index", int),
        seed=entry(record, "seed", int),
        agents=convert(agents, tuple[Agent, ...]),
        material=entry(record, "material", dict) if "material" in record else None,
        fork=_fork_from_json(entry(record, "fork", dict)) if "fork" in record else None,
        group=entry(record, "group", int) if "group" in record else None,
        sample=entry(record, "sample", int) if "group" in record else 0,
    )


def _agent_json(agent: Agent) -> JsonObject:
    # Only the settings that are set: a setting left to the engine is left out.
    sampling: JsonObject = {}
    for field in dataclasses.fields(agent.sampling):
        value: JsonValue | tuple[str, ...] = getattr(agent.sampling, field.name)
        if isinstance(value, tuple):
            value = list(value)
        if value is not None and value != []:
            sampling[field.name] = value
    return {
        "agent_id": agent.agent_id,
        "definition": agent.definition,
        "model": agent.model,
        "seat": agent.seat,
        "slot": agent.slot,
        "sampling": sampling,
    }


# Events.


def event_line(name: str, moment: datetime, elapsed_s: float, fields: JsonObject) -> bytes:
    """A line of the event log. NaN and infinities become null: nothing is derived from this log.

    The first key is the time, so that the logs of several runs can be merged without parsing a line.
    """
    head: JsonObject = {"time": iso(moment), "elapsed_s": round(elapsed_s, 6), "event": name}
    event = {**head, **fields}
    with suppress(UnicodeEncodeError):  # Half a surrogate pair.
        line = _encode_event_fast(event)
        if line.isascii():
            return line + b"\n"
    return (_encode_event(event) + "\n").encode("ascii")


def in_time_order(logs: Sequence[Iterable[bytes]]) -> Iterator[bytes]:
    """The lines of several event logs, each given in pieces, merged by time. Each log keeps its order.

    A line that a kill cut short is left out.
    """
    return heapq.merge(*(_whole_events(log) for log in logs), key=_event_time)


def _whole_events(log: Iterable[bytes]) -> Iterator[bytes]:
    return (line.data + b"\n" for line in lines(log) if line.data.startswith(b"{") and line.data.endswith(b"}"))


def _event_time(line: bytes) -> bytes:
    match = _EVENT_TIME.match(line)
    return match[1] if match else b""
