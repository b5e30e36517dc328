"""The labels of choices: letters, numerals, roman numerals; and how a list of choices is written with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mac_runner.environments.discussion.questions import Choice
from mac_runner.environments.discussion.settings import ChoiceFormat

_ENDS: Final = {"colon": ":", "dot": ".", "parenthesis": ")"}
_ROMAN: Final = ((10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I"))


def labels(choice_format: ChoiceFormat, count: int) -> tuple[str, ...]:
    """The labels of `count` choices; empty texts where the format has none."""
    match choice_format.partition("_")[0]:
        case "letters":
            return tuple(chr(ord("A") + i) for i in range(count))
        case "numerals":
            return tuple(str(i + 1) for i in range(count))
        case "roman":
            return tuple(_roman(i + 1) for i in range(count))
        case _:
            return ("",) * count


def listed(choice_format: ChoiceFormat, choices: Sequence[Choice]) -> tuple[str, ...]:
    """The choices as lines of a prompt."""
    end = _ENDS.get(choice_format.partition("_")[2], "")
    heads = [f"{label}{end} " if label else "" for label in labels(choice_format, len(choices))]
    if choice_format == "bullet":
        heads = ["- "] * len(choices)
    return tuple(f"{head}{choice.text}" for head, choice in zip(heads, choices, strict=True))


def _roman(number: int) -> str:
    digits = ""
    for value, digit in _ROMAN:
        count, number = divmod(number, value)
        digits += digit * count
    return digits
