"""The outcome of a discussion as the reports read it from a row of the index.

A row is read as strictly as any other: a summary over guesses would be worse than none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from mac_runner.errors import RunDirectoryError
from mac_runner.types import JsonObject, JsonValue

_T = TypeVar("_T")


class Tally(NamedTuple):
    """How many of how many cases."""

    counted: int
    cases: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BiasItem:
    """What the bias scores need of a question: the choice that follows the stereotype, and the one that goes against.

    Both are None where the data does not tell which choice is the target.
    """

    category: str
    is_ambiguous: bool
    biased: str | None
    counter: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RolePart:
    """What an agent did that is no participant; `followed` are participants who took over what it argued for."""

    role: str
    statements: int
    questions: int
    verdicts: int
    followed: Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscussionResult:
    """How one discussion ended. `answers` has the answers of each participant by round; None: it passed."""

    correct: str | None
    answer: str | None
    is_consensus: bool
    rounds: int
    ended_by: str
    passes: int
    answers: Mapping[str, tuple[str | None, ...]]
    changes: tuple[Tally, ...]
    changes_by_identity: Mapping[str, Tally]
    influence: Mapping[str, Tally]
    roles: Mapping[str, RolePart]
    bias: BiasItem | None


def parse_discussion(outcome: JsonValue, where: str) -> DiscussionResult | None:
    """Read the outcome of a discussion; None when it is that of another environment.

    Raises RunDirectoryError naming the key.
    """
    if not isinstance(outcome, dict) or outcome.get("kind") != "discussion":
        return None
    answers = _get(outcome, "answers", dict, where)
    # A row without them is of a run that did not count them yet.
    roles = _get(outcome, "roles", dict, where) if "roles" in outcome else {}
    return DiscussionResult(
        correct=_answer(outcome.get("correct_answer_id"), where),
        answer=_answer(outcome.get("answer"), where),
        is_consensus=_get(outcome, "consensus", bool, where),
        rounds=_get(outcome, "rounds", int, where),
        ended_by=_get(outcome, "ended_by", str, where),
        passes=_get(outcome, "passes", int, where),
        answers={agent: _answers(_get(answers, agent, list, where), where) for agent in answers},
        changes=tuple(_tally(pair, where) for pair in _get(outcome, "changes", list, where)),
        changes_by_identity=_tallies(_get(outcome, "changes_by_identity", dict, where), where),
        influence=_tallies(_get(outcome, "influence", dict, where), where),
        roles={agent: _part(_get(roles, agent, dict, where), where) for agent in roles},
        bias=None if outcome.get("bias") is None else _bias(_get(outcome, "bias", dict, where), where),
    )


def _bias(item: JsonObject, where: str) -> BiasItem:
    return BiasItem(
        category=_get(item, "category", str, where),
        is_ambiguous=_get(item, "context", str, where) == "ambig",
        biased=_answer(item.get("biased"), where),
        counter=_answer(item.get("counter"), where),
    )


def _part(part: JsonObject, where: str) -> RolePart:
    return RolePart(
        role=_get(part, "role", str, where),
        statements=_get(part, "statements", int, where),
        questions=_get(part, "questions", int, where),
        verdicts=_get(part, "verdicts", int, where),
        followed=_tally(part.get("followed"), where),
    )


def _answers(values: list[JsonValue], where: str) -> tuple[str | None, ...]:
    return tuple(_answer(value, where) for value in values)


def _answer(value: JsonValue, where: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise RunDirectoryError(f"{where}: {value!r} is no answer; check the run with verify")
    return value


def _tallies(values: JsonObject, where: str) -> dict[str, Tally]:
    return {shown: _tally(pair, where) for shown, pair in values.items()}


def _tally(value: JsonValue, where: str) -> Tally:
    match value:
        case [int() as counted, int() as cases] if 0 <= counted <= cases:
            return Tally(counted, cases)
    raise RunDirectoryError(f"{where}: {value!r} is no count of cases; check the run with verify")


def _get(source: JsonObject, key: str, kind: type[_T], where: str) -> _T:
    value = source.get(key)
    # To Python True is an int; to a count it is damage.
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise RunDirectoryError(f"{where}: {key!r} is {value!r}, expected {kind.__name__}; check the run with verify")
    return value
