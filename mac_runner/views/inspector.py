"""All that is recorded of one turn, and what it was sent."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from itertools import groupby, takewhile
from operator import itemgetter
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from msgspec.structs import replace

from mac_runner.errors import ConfigError, MacRunnerError
from mac_runner.reports.turns import check_seat, json_object, objects, prompt_text
from mac_runner.results import integer, number
from mac_runner.store.traces import Traces
from mac_runner.types import JsonObject, JsonValue, Prompt, TokenTrace
from mac_runner.view_model import Piece, PieceKind, PromptMessage, TokenView, TurnHead, TurnView
from mac_runner.views.conversation import parted, record_events, turn_heads
from mac_runner.views.perspective import own_detail, seen_events

PromptOf: TypeAlias = Callable[[str], Prompt]
"""From the key of a turn, what its engine was sent. Raises MacRunnerError saying why that is not known."""

_PAIRS_MAX: Final = 250_000
"""How many pairs of lines, or of words of changed lines, are compared; more are shown as gone and new."""
_WORDS: Final = re.compile(r"\s+|\S+\s*")


def turn_view(
    transcript: JsonObject,
    key: str,
    prompt_of: PromptOf | None,
    *,
    seat: str | None = None,
    prompt_missing: str = "",
    traces: Traces = MappingProxyType({}),
) -> TurnView:
    """One turn; with `seat`, one of that agent's own turns as the agent knows it.

    `traces` are the token traces of the conversation.
    Without `prompt_of` there is no prompt, and `prompt_missing` says why. Raises ConfigError for a turn or an agent
    that is not there, and for a turn of another agent.
    """
    turn = _found(transcript, objects(transcript["turns"]), key, seat)
    return _turn_view(transcript, turn, _known_heads(transcript, seat), prompt_of, seat, prompt_missing, traces)


def turn_views(
    transcript: JsonObject,
    prompt_of: PromptOf | None,
    *,
    seat: str | None = None,
    prompt_missing: str = "",
    traces: Traces = MappingProxyType({}),
) -> Iterator[TurnView]:
    """All turns, as `turn_view` makes each of them; with `seat`, all of that agent's own."""
    check_seat(transcript, seat)
    heads = _known_heads(transcript, seat)
    for turn in objects(transcript["turns"]):
        if seat in (None, turn["agent"]):
            yield _turn_view(transcript, turn, heads, prompt_of, seat, prompt_missing, traces)


def _turn_view(
    transcript: JsonObject,
    turn: JsonObject,
    heads: Sequence[TurnHead],
    prompt_of: PromptOf | None,
    seat: str | None,
    prompt_missing: str,
    traces: Traces,
) -> TurnView:
    turns, key = objects(transcript["turns"]), str(turn["turn"])
    reply, receipt = json_object(turn["reply"]), json_object(turn["receipt"])
    tokens, timing = json_object(reply["tokens"]), json_object(turn.get("timing", {}))
    parts = parted(turn)
    own = [each for each in turns if each["agent"] == turn["agent"]]
    place = own.index(turn)
    sent = _sent(prompt_of, key, own[place - 1] if place else None, prompt_missing)
    return TurnView(
        key=key,
        agent=str(turn["agent"]),
        model=str(turn["model"]) if seat is None else "",
        result=str(receipt["kind"]),
        detail=str(receipt["detail"]) if seat is None else own_detail(str(receipt["kind"]), str(receipt["detail"])),
        reply=str(reply["text"]),
        said=parts.said,
        thought=parts.thought,
        finish_reason=str(reply["finish_reason"]),
        prompt_tokens=integer(tokens.get("prompt")) or 0,
        completion_tokens=integer(tokens.get("completion")) or 0,
        cached_tokens=integer(json_object(tokens.get("timing", {})).get("cached")) or 0,
        queue_s=number(timing.get("queue_s")),
        generate_s=number(timing.get("generate_s")),
        # Faults may name the engine, which an agent does not know.
        faults=_texts(timing.get("faults")) if seat is None else (),
        cause=str(receipt.get("cause") or ""),
        siblings=tuple(head for head in heads if (head.agent, head.round) == (turn["agent"], turn["round"])),
        sampling={} if seat is not None else _sampling(transcript, str(turn["agent"])),
        prompt=sent.prompt,
        prompt_missing=sent.missing,
        previous=sent.previous,
        difference=sent.difference,
        tokens=tuple(_tokens(traces.get(key))),
    )


def _found(transcript: JsonObject, turns: Sequence[JsonObject], key: str, seat: str | None) -> JsonObject:
    check_seat(transcript, seat)
    # A seat may not learn which turns others had: one of theirs is refused like one that never was.
    found = next((turn for turn in turns if turn["turn"] == key and seat in (None, turn["agent"])), None)
    if found is None:
        raise ConfigError(f"there is no turn {key!r}{'' if seat is None else f' of {seat}'}")
    return found


def _known_heads(transcript: JsonObject, seat: str | None) -> tuple[TurnHead, ...]:
    """All turns as a list; for a seat, with the events that it saw."""
    heads = turn_heads(transcript)
    if seat is None:
        return heads
    events = record_events(json_object(transcript["record"]))
    known = {event.place for event in seen_events([*events], seat)}
    return tuple(
        replace(
            head,
            detail=own_detail(head.result, head.detail),
            events=tuple(place for place in head.events if place in known),
        )
        for head in heads
    )


def _sampling(transcript: JsonObject, agent: str) -> dict[str, str]:
    agents = objects(json_object(transcript["task"])["agents"])
    sampling = next((each["sampling"] for each in agents if each["agent_id"] == agent), {})
    return {name: str(value) for name, value in json_object(sampling).items() if value is not None}


def _texts(value: JsonValue) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()


def _tokens(trace: TokenTrace | None) -> Iterator[TokenView]:
    """The tokens that were drawn. A trace has their ids and not their texts."""
    if trace is not None:
        drawn = zip(trace.completion_ids, trace.logprobs, strict=False)
        yield from (TokenView(f"#{token}", logprob) for token, logprob in drawn)


class _Sent(NamedTuple):
    """What a turn was sent, and how that differs from what the agent was sent before."""

    prompt: tuple[PromptMessage, ...] = ()
    missing: str = ""
    previous: str = ""
    difference: tuple[Piece, ...] = ()


def _sent(prompt_of: PromptOf | None, key: str, before: JsonObject | None, missing: str) -> _Sent:
    if prompt_of is None:
        return _Sent(missing=missing)
    try:
        prompt = prompt_of(key)
    except MacRunnerError as fault:
        return _Sent(missing=str(fault))
    messages = tuple(PromptMessage(message.role, message.content) for message in prompt.messages)
    if before is None:
        return _Sent(messages)
    previous = str(before["turn"])
    try:
        earlier = prompt_of(previous)
    except MacRunnerError:
        return _Sent(messages)
    return _Sent(messages, "", previous, difference(prompt_text(earlier), prompt_text(prompt)))


def difference(before: str, after: str) -> tuple[Piece, ...]:
    """What of a text is the same, gone or new: by lines, and by words in lines that changed."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    # Prompts mostly begin alike, which costs nothing to find.
    start = _shared(old, new)
    end = _shared(old[start:][::-1], new[start:][::-1])
    changed = _compared(old[start : len(old) - end], new[start : len(new) - end], _words)
    return tuple(_joined((("same", "".join(new[:start])), *changed, ("same", "".join(new[len(new) - end :])))))


def _shared(old: Sequence[str], new: Sequence[str]) -> int:
    """How many texts two sequences have in common at their beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))


_Part: TypeAlias = tuple[PieceKind, str]


def _compared(
    old: Sequence[str], new: Sequence[str], changed: Callable[[str, str], Iterable[_Part]]
) -> Iterator[_Part]:
    """The parts of two sequences of texts; what differs is given to `changed`."""
    if len(old) * len(new) > _PAIRS_MAX:
        yield from _replaced("".join(old), "".join(new))
        return
    for kind, i, j, k, m in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        gone, come = "".join(old[i:j]), "".join(new[k:m])
        yield from (("same", come),) if kind == "equal" else changed(gone, come)


def _words(old: str, new: str) -> Iterator[_Part]:
    return _compared(_WORDS.findall(old), _WORDS.findall(new), _replaced)


def _replaced(old: str, new: str) -> Iterator[_Part]:
    yield "gone", old
    yield "new", new


def _joined(parts: Iterable[_Part]) -> Iterator[Piece]:
    """Neighbours of one kind as one piece; empty ones left out."""
    for kind, group in groupby((part for part in parts if part[1]), key=itemgetter(0)):
        yield Piece(kind, "".join(text for _, text in group))
