"""Two conversations beside each other: of one seed, or a fork and its parent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from itertools import groupby, zip_longest

from mac_runner.errors import ConfigError
from mac_runner.reports.turns import json_object, objects
from mac_runner.types import JsonObject
from mac_runner.view_model import ComparedRow, CompareView, ConversationView, EventView


def compare_view(
    left: JsonObject, right: JsonObject, left_view: ConversationView, right_view: ConversationView
) -> CompareView:
    """Two transcripts, as their whole views show them: aligned event by event up to the first turn with another reply,
    and by time from there on.

    Raises ConfigError for conversations that have no beginning in common: another seed, and neither is a fork of the
    other.
    """
    reason = _reason(left, right)
    turn = _first_turn(objects(left["turns"]), objects(right["turns"]))
    rows = tuple(_rows(left_view, right_view, turn))
    return CompareView(left_view, right_view, rows=rows, first_turn=turn, reason=reason)


def _reason(left: JsonObject, right: JsonObject) -> str:
    tasks = json_object(left["task"]), json_object(right["task"])
    ids = [str(task["task_id"]) for task in tasks]
    origins = [str(json_object(task["fork"])["of"]) if "fork" in task else None for task in tasks]
    for fork, parent in ((0, 1), (1, 0)):
        if origins[fork] is not None and origins[fork] == ids[parent]:
            return f"{ids[fork]} is a fork of {ids[parent]}"
    if origins[0] is not None and origins[0] == origins[1]:
        return f"both are forks of {origins[0]}"
    if left["environment"] == right["environment"] and tasks[0]["seed"] == tasks[1]["seed"]:
        return "both have the same seed"
    raise ConfigError(
        f"{ids[0]} and {ids[1]} cannot be compared: they have different seeds, and neither is a fork of the other; "
        "choose conversations of one number in two combinations, or a fork and its parent"
    )


def _first_turn(left: Sequence[JsonObject], right: Sequence[JsonObject]) -> str:
    """The key of the first turn that differs; empty where none does."""
    for one, other in zip_longest(left, right):
        if one is None or other is None or _essence(one) != _essence(other):
            return str((one or other or {})["turn"])
    return ""


def _essence(turn: JsonObject) -> tuple[object, ...]:
    reply = json_object(turn["reply"])
    return turn["turn"], reply["text"], reply.get("thinking")


def _rows(left: ConversationView, right: ConversationView, turn: str) -> Iterator[ComparedRow]:
    parted = min(_begins(left.events, turn), _begins(right.events, turn))
    shared = next(
        (
            place
            for place, (one, other) in enumerate(zip(left.events[:parted], right.events[:parted], strict=False))
            if not _is_equal(one, other)
        ),
        min(parted, len(left.events), len(right.events)),
    )
    yield from (ComparedRow(place, place, True) for place in range(shared))
    yield from _beside(left.events[shared:], right.events[shared:])


def _begins(events: Sequence[EventView], turn: str) -> int:
    """The place of the first event of a turn; the end where it made none."""
    return next((event.place for event in events if turn and event.turn == turn), len(events))


def _is_equal(one: EventView, other: EventView) -> bool:
    return (one.when, one.text, one.audience) == (other.when, other.text, other.audience)


def _beside(left: Sequence[EventView], right: Sequence[EventView]) -> Iterator[ComparedRow]:
    """Events of one day or round beside each other, in order."""
    one, other = _stretches(left), _stretches(right)
    matcher = SequenceMatcher(None, [when for when, _ in one], [when for when, _ in other], autojunk=False)
    for kind, i, j, k, m in matcher.get_opcodes():
        if kind == "equal":
            for (_, here), (_, there) in zip(one[i:j], other[k:m], strict=True):
                yield from _paired(here, there)
        else:
            yield from _paired([event for _, here in one[i:j] for event in here], [])
            yield from _paired([], [event for _, there in other[k:m] for event in there])


def _stretches(events: Iterable[EventView]) -> list[tuple[str, list[EventView]]]:
    return [(when, [*group]) for when, group in groupby(events, key=lambda event: event.when)]


def _paired(left: Sequence[EventView], right: Sequence[EventView]) -> Iterator[ComparedRow]:
    for one, other in zip_longest(left, right):
        yield ComparedRow(
            None if one is None else one.place,
            None if other is None else other.place,
            one is not None and other is not None and _is_equal(one, other),
        )
