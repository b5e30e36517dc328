"""What rendering a template may cost: steps, and the sizes of texts, numbers and lists.

Steps are counted and not timed, so a template that costs too much fails at the same place each time and everywhere.
"""

from __future__ import annotations

from typing import Final

from jinja2.exceptions import SecurityError
from jinja2.runtime import Context

from mac_runner.limits import (
    PROMPT_CHARS_MAX,
    TEMPLATE_MACRO_DEPTH_MAX,
    TEMPLATE_NESTING_MAX,
    TEMPLATE_NUMBER_BITS_MAX,
    TEMPLATE_STEPS_MAX,
    TEMPLATE_WIDTH_MAX,
)

METER: Final = "_meter"
"""Under this name a context carries its meter. No template can say it: it is none of the fields."""

_CHARS_PER_STEP: Final = 4
_STEPS_PER_ITEM: Final = 10
"""An entry of a list takes the memory of some 60 characters."""


class Meter:
    """Counts what one rendering costs. Raises SecurityError when it is too much."""

    __slots__ = ("_depth", "_steps_left")

    def __init__(self) -> None:
        self._steps_left = TEMPLATE_STEPS_MAX
        self._depth = 0

    def spend(self, steps: int) -> None:
        """Count `steps`."""
        self._steps_left -= steps
        if self._steps_left < 0:
            raise SecurityError(f"takes more than {TEMPLATE_STEPS_MAX} steps; make its loops and macros smaller")

    def text(self, length: int) -> None:
        """Count a text of `length` characters, best before it is made."""
        if length > PROMPT_CHARS_MAX:
            raise SecurityError(f"makes a text past {PROMPT_CHARS_MAX} characters")
        self.spend(1 + length // _CHARS_PER_STEP)

    def items(self, count: int) -> None:
        """Count a list of `count` entries, best before it is made."""
        self.spend(1 + count * _STEPS_PER_ITEM)

    def weigh(self, *values: object) -> None:
        """Count all that `values` hold, for an operation that looks at all of it."""
        level, nesting = list(values), 0
        while level:
            inside: list[object] = []
            for value in level:
                if isinstance(value, str):
                    self.text(len(value))
                elif isinstance(value, list | tuple | dict | range):
                    self.items(len(value))
                    if not isinstance(value, range):
                        inside.extend(value)
                    if isinstance(value, dict):
                        inside.extend(value.values())
                else:
                    check_number(value)
            level, nesting = inside, nesting + 1
            if level and nesting > TEMPLATE_NESTING_MAX:
                raise SecurityError(f"nests lists more than {TEMPLATE_NESTING_MAX} deep")

    def enter(self) -> None:
        """Count a macro that begins."""
        self._depth += 1
        if self._depth > TEMPLATE_MACRO_DEPTH_MAX:
            raise SecurityError(f"calls macros more than {TEMPLATE_MACRO_DEPTH_MAX} deep; does one call itself?")

    def leave(self) -> None:
        """Count a macro that ends."""
        self._depth -= 1


def meter_of(context: Context) -> Meter:
    """The meter of the rendering that `context` belongs to."""
    meter = context.parent[METER]
    assert isinstance(meter, Meter)
    return meter


def check_number(value: object) -> None:
    """Refuse a whole number that only a slip makes, and that takes the longer to compute with the larger it is."""
    if isinstance(value, int) and is_too_large(value):
        raise SecurityError(f"computes a number of more than {TEMPLATE_NUMBER_BITS_MAX} bits")


def is_too_large(number: int) -> bool:
    """Whether only a slip makes such a number."""
    return number.bit_length() > TEMPLATE_NUMBER_BITS_MAX


def check_width(width: object) -> None:
    """Refuse a width, an indentation or a precision that is out of all proportion."""
    if isinstance(width, int) and not -TEMPLATE_WIDTH_MAX <= width <= TEMPLATE_WIDTH_MAX:
        raise SecurityError(f"asks for a width or precision of more than {TEMPLATE_WIDTH_MAX}")
