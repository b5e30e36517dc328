"""Tasks and recorded replies as JSON and back.

One shape for both homes of a reply: a journal frame and an entry of a transcript's `turns` carry the same keys,
so the functions here read either. Everything that depends on time stands under the key `timing`: how many tokens of a
prompt the engine had in its cache, too, because that follows from what else it was working on. Format 1 of journals and
transcripts has `cached` beside `prompt`; it is read for ever.

A lone surrogate or a NUL in a model's text survives the way there and back, because files hold ASCII JSON only.
"""

from __future__ import annotations

import dataclasses
from typing import TypeVar

from mac_runner.types import (
    Agent,
    FinishReason,
    JsonObject,
    JsonValue,
    RecordedReply,
    Reply,
    Sampling,
    Task,
    Timing,
    TokenCount,
    TokenTrace,
)

Json = TypeVar("Json", bool, int, str, list[JsonValue], dict[str, JsonValue])


def entry(record: JsonObject, key: str, kind: type[Json]) -> Json:
    """The value of `key`, which must be there and of type `kind`. Raises ValueError naming what was found."""
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


def number(record: JsonObject, key: str) -> float:
    """The number under `key`. Raises ValueError when it is none."""
    value = record.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(f"{key!r} should be a number, not {value!r:.80}")
    return float(value)


def numbers(record: JsonObject, key: str) -> tuple[float, ...]:
    """The list of numbers under `key`. Raises ValueError when it is anything else."""
    return tuple(number({key: value}, key) for value in entry(record, key, list))


def integers(record: JsonObject, key: str) -> tuple[int, ...]:
    """The list of whole numbers under `key`. Raises ValueError when it is anything else."""
    return tuple(entry({key: value}, key, int) for value in entry(record, key, list))


def tokens_json(tokens: TokenCount) -> JsonObject:
    """Token counts as JSON."""
    return {"prompt": tokens.prompt, "completion": tokens.completion, "timing": {"cached": tokens.cached}}


def tokens_from_json(record: JsonObject) -> TokenCount:
    """Token counts from JSON, of this format or of format 1."""
    return TokenCount(
        prompt=entry(record, "prompt", int),
        cached=entry(entry(record, "timing", dict) if "timing" in record else record, "cached", int),
        completion=entry(record, "completion", int),
    )


def upgraded_tokens(record: JsonObject) -> JsonObject:
    """Token counts of format 1 in this one's layout; those of this format as they are."""
    if "cached" not in record:
        return record
    return {**{key: value for key, value in record.items() if key != "cached"}, "timing": {"cached": record["cached"]}}


def recorded_json(recorded: RecordedReply) -> JsonObject:
    """A recorded reply as JSON; times are kept to the microsecond."""
    reply = recorded.reply
    trace: JsonObject = {} if reply.trace is None else {"trace": _trace_json(reply.trace)}
    return {
        "turn": recorded.turn_key,
        "prompt_sha256": recorded.prompt_sha256,
        "reply": {
            "text": reply.text,
            "finish_reason": str(reply.finish_reason),
            "tokens": tokens_json(reply.tokens),
            **trace,
        },
        "timing": {
            "queue_s": round(reply.timing.queue_s, 6),
            "generate_s": round(reply.timing.generate_s, 6),
            "faults": list(reply.timing.faults),
        },
    }


def recorded_from_json(record: JsonObject) -> RecordedReply:
    """A recorded reply from a journal frame or from an entry of a transcript's `turns`."""
    reply = entry(record, "reply", dict)
    timing = entry(record, "timing", dict)
    return RecordedReply(
        turn_key=entry(record, "turn", str),
        prompt_sha256=entry(record, "prompt_sha256", str),
        reply=Reply(
            text=entry(reply, "text", str),
            finish_reason=FinishReason(entry(reply, "finish_reason", str)),
            tokens=tokens_from_json(entry(reply, "tokens", dict)),
            trace=_trace_from_json(entry(reply, "trace", dict)) if "trace" in reply else None,
            timing=Timing(
                queue_s=number(timing, "queue_s"),
                generate_s=number(timing, "generate_s"),
                faults=tuple(str(fault) for fault in entry(timing, "faults", list)),
            ),
        ),
    )


def _trace_json(trace: TokenTrace) -> JsonObject:
    return {
        "prompt_ids": list(trace.prompt_ids),
        "completion_ids": list(trace.completion_ids),
        "logprobs": list(trace.logprobs),
    }


def _trace_from_json(record: JsonObject) -> TokenTrace:
    return TokenTrace(
        prompt_ids=integers(record, "prompt_ids"),
        completion_ids=integers(record, "completion_ids"),
        logprobs=numbers(record, "logprobs"),
    )


def task_json(task: Task) -> JsonObject:
    """A task as JSON: with its replies, all that is needed to rebuild its conversation."""
    material: JsonObject = {} if task.material is None else {"material": dict(task.material)}
    return {
        "task_id": task.task_id,
        "index": task.index,
        "seed": task.seed,
        "agents": [_agent_json(agent) for agent in task.agents],
        **material,
    }


def task_from_json(record: JsonObject) -> Task:
    """A task from JSON."""
    return Task(
        task_id=entry(record, "task_id", str),
        index=entry(record, "index", int),
        seed=entry(record, "seed", int),
        agents=tuple(_agent_from_json(agent) for agent in objects(record, "agents")),
        material=entry(record, "material", dict) if "material" in record else None,
    )


def _agent_json(agent: Agent) -> JsonObject:
    return {
        "agent_id": agent.agent_id,
        "definition": agent.definition,
        "model": agent.model,
        "seat": agent.seat,
        "slot": agent.slot,
        "sampling": _sampling_json(agent.sampling),
    }


def _agent_from_json(record: JsonObject) -> Agent:
    return Agent(
        agent_id=entry(record, "agent_id", str),
        definition=entry(record, "definition", str),
        model=entry(record, "model", str),
        seat=entry(record, "seat", int),
        slot=entry(record, "slot", int),
        sampling=_sampling_from_json(entry(record, "sampling", dict)),
    )


def _sampling_json(sampling: Sampling) -> JsonObject:
    """Only what is set: a setting left to the engine is left out."""
    record: JsonObject = {}
    for field in dataclasses.fields(sampling):
        value: JsonValue | tuple[str, ...] = getattr(sampling, field.name)
        if isinstance(value, tuple):
            value = list(value)
        if value is not None and value != []:
            record[field.name] = value
    return record


def _sampling_from_json(record: JsonObject) -> Sampling:
    def setting(key: str) -> float | None:
        return number(record, key) if key in record else None

    return Sampling(
        temperature=number(record, "temperature"),
        max_tokens=entry(record, "max_tokens", int),
        top_p=setting("top_p"),
        top_k=entry(record, "top_k", int) if "top_k" in record else None,
        min_p=setting("min_p"),
        presence_penalty=setting("presence_penalty"),
        frequency_penalty=setting("frequency_penalty"),
        repetition_penalty=setting("repetition_penalty"),
        stop=tuple(str(text) for text in entry(record, "stop", list)) if "stop" in record else (),
        seed=entry(record, "seed", int) if "seed" in record else None,
    )
