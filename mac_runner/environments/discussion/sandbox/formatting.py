"""Texts put together by a format (`%`, `format`): of text and numbers only, and of bounded width."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from typing import Final

from jinja2 import Environment
from jinja2.exceptions import SecurityError
from jinja2.sandbox import SandboxedFormatter

from mac_runner.environments.discussion.sandbox.meter import Meter, check_width
from mac_runner.environments.discussion.sandbox.values import text_of

_FIELD: Final = re.compile(r"%(?:\([^()]*\))?([^a-zA-Z%]*)")
_DIGITS: Final = re.compile(r"\d+")


def printf(meter: Meter, template: str, values: object) -> str:
    """`template % values`."""
    given = list(values.values()) if isinstance(values, dict) else values
    given = given if isinstance(given, list | tuple) and not isinstance(values, list) else [values]
    for value in given:
        text_of(value)
    meter.weigh(template, given)
    for field in _FIELD.finditer(template):
        if "*" in field.group(1):
            raise SecurityError("takes the width of a format from its values; write the width itself")
        _check_spec(meter, field.group(1))
    made: str = operator.mod(template, values)
    meter.text(len(made))
    return made


class Formatting:
    """`text.format`, ready to be called."""

    __slots__ = ("_environment", "_is_map", "_text")

    def __init__(self, environment: Environment, text: str, *, is_map: bool) -> None:
        self._environment = environment
        self._text = text
        self._is_map = is_map

    def __call__(self, meter: Meter, args: Sequence[object], values: Mapping[str, object]) -> str:
        """The text with its fields filled in."""
        if self._is_map:
            if len(args) != 1 or values or not isinstance(args[0], dict):
                raise TypeError("format_map() takes one mapping")
            values, args = args[0], ()
        meter.weigh(self._text)
        made = _Formatter(self._environment, meter).vformat(self._text, args, values)
        meter.text(len(made))
        return made


class _Formatter(SandboxedFormatter):
    """Names parts of a value as the template itself may."""

    def __init__(self, environment: Environment, meter: Meter) -> None:
        super().__init__(environment)
        self._meter = meter

    def convert_field(self, value: object, conversion: str | None) -> object:
        text_of(value)
        return super().convert_field(value, conversion)

    def format_field(self, value: object, format_spec: str) -> str:
        _check_spec(self._meter, format_spec)
        made = format(value, format_spec)
        self._meter.text(len(made))
        return made


def _check_spec(meter: Meter, spec: str) -> None:
    for digits in _DIGITS.findall(spec):
        width = int(digits[:10])
        check_width(width)
        meter.text(width)
