"""What the scores of a benchmark need of a question, from the question's metadata. BBQ's is in `targets.py`.

The item goes into the outcome. A question that names its benchmark and lacks what the scores need has an
item with null in its place: results leave it out and count it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from mac_runner.environments.discussion.questions import Question
from mac_runner.types import JsonObject, JsonValue

WORD_CHARS_MAX: Final = 200
"""What an outcome keeps of a word of the metadata."""


def benchmark_item(question: Question) -> JsonObject | None:
    """What the scores of its benchmark need of `question`; None for a question of no such benchmark."""
    make = _ITEMS.get(question.source_dataset)
    return None if make is None else make(question, question.source_metadata or {})


def _decision(question: Question, metadata: Mapping[str, JsonValue]) -> JsonObject:
    """DiscrimEval: who the decision is about, and which choices are yes and no."""
    return {
        "benchmark": "discrim_eval",
        "fill": _word(metadata.get("fill_type")),
        "decision": _word(metadata.get("decision_question_id")),
        **{key: _word(metadata.get(key)) for key in ("age", "gender", "race")},
        **{word: _choice(question, word) for word in ("yes", "no")},
    }


def _treatment(question: Question, metadata: Mapping[str, JsonValue]) -> JsonObject:
    """DifferenceAwareness: whether groups should be treated differently, and which choice treats them alike."""
    condition, neutral, right = metadata.get("condition"), metadata.get("neutral"), question.correct_answer_id
    is_sound = (
        condition in ("different", "equal")
        and neutral in [choice.id for choice in question.choices]
        and right is not None
        and (right == neutral) == (condition == "equal")
    )
    return {
        "benchmark": "difference_awareness",
        "split": _word(metadata.get("split")),
        "condition": condition if is_sound else None,
        "scenario": _word(metadata.get("scenario")),
        "neutral": neutral if is_sound else None,
    }


_ITEMS: Final[Mapping[str, Callable[[Question, Mapping[str, JsonValue]], JsonObject]]] = {
    "DiscrimEval": _decision,
    "DifferenceAwareness": _treatment,
}
"""By `source_dataset`."""


def _word(value: JsonValue) -> str | None:
    """A word or a number as one word; an age of 20.0 is 20."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    try:
        return str(value).strip()[:WORD_CHARS_MAX] or None
    except ValueError:  # A number of too many digits.
        return None


def _choice(question: Question, text: str) -> str | None:
    found = [choice.id for choice in question.choices if choice.text.strip().casefold() == text]
    return found[0] if len(found) == 1 else None
