"""What a template may print, name and call, and what rendering it may cost.

Texts, numbers, true and false are printed. Anything else is a slip (a forgotten `join`, a method that is not called),
and what Python prints of it may hold an address in memory, another one each time. Costs are counted in steps and not
timed, so a template that costs too much fails at the same place each time and everywhere.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import BuiltinMethodType, MethodType
from typing import Final

from jinja2 import Environment
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context, LoopContext, Macro, Undefined
from jinja2.sandbox import SandboxedFormatter
from jinja2.utils import Cycler, Joiner, Namespace

PROMPT_CHARS_MAX: Final = 4_000_000
STEPS_MAX: Final = 10_000_000
"""A step is a part of the template, or 4 characters."""
NESTING_MAX: Final = 64
MACRO_DEPTH_MAX: Final = 32
NUMBER_BITS_MAX: Final = 4_096
WIDTH_MAX: Final = 1_000

METER: Final = "_meter"
"""Under this name a context carries its meter. No template can say it: it is none of the fields."""

_CHARS_PER_STEP: Final = 4
_STEPS_PER_ITEM: Final = 10
"""An entry of a list takes the memory of some 60 characters."""


class Meter:
    """Counts what one rendering costs. Raises SecurityError when it is too much."""

    __slots__ = ("_depth", "_steps_left")

    def __init__(self) -> None:
        self._steps_left = STEPS_MAX
        self._depth = 0

    def spend(self, steps: int) -> None:
        """Count `steps`."""
        self._steps_left -= steps
        if self._steps_left < 0:
            raise SecurityError(f"takes more than {STEPS_MAX} steps; make its loops and macros smaller")

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
            if level and nesting > NESTING_MAX:
                raise SecurityError(f"nests lists more than {NESTING_MAX} deep")

    def enter(self) -> None:
        """Count a macro that begins."""
        self._depth += 1
        if self._depth > MACRO_DEPTH_MAX:
            raise SecurityError(f"calls macros more than {MACRO_DEPTH_MAX} deep; does one call itself?")

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
        raise SecurityError(f"computes a number of more than {NUMBER_BITS_MAX} bits")


def is_too_large(number: int) -> bool:
    """Whether only a slip makes such a number."""
    return number.bit_length() > NUMBER_BITS_MAX


def check_width(width: object) -> None:
    """Refuse a width, an indentation or a precision that is out of all proportion."""
    if isinstance(width, int) and not -WIDTH_MAX <= width <= WIDTH_MAX:
        raise SecurityError(f"asks for a width or precision of more than {WIDTH_MAX}")


PRINTABLE: Final = frozenset({str, int, float, bool})
PLAIN: Final = PRINTABLE | {type(None), list, tuple, dict, range}
"""The types that hold data and nothing else."""

STR_METHODS: Final = frozenset(
    [
        *("capitalize", "casefold", "center", "count", "endswith", "expandtabs", "find", "format", "format_map"),
        *("index", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "islower", "isnumeric", "isspace"),
        *("istitle", "isupper", "join", "ljust", "lower", "lstrip", "partition", "removeprefix", "removesuffix"),
        *("replace", "rfind", "rindex", "rjust", "rpartition", "rsplit", "rstrip", "split", "splitlines"),
        *("startswith", "strip", "swapcase", "title", "upper", "zfill"),
    ]
)
_LIST_METHODS: Final = frozenset({"count", "index"})
_ATTRIBUTES: Final[dict[type, frozenset[str]]] = {
    str: STR_METHODS,
    list: _LIST_METHODS,
    tuple: _LIST_METHODS,
    dict: frozenset({"get", "items", "keys", "values"}),
    LoopContext: frozenset(
        [
            *("changed", "cycle", "depth", "depth0", "first", "index", "index0", "last", "length", "nextitem"),
            *("previtem", "revindex", "revindex0"),
        ]
    ),
    Cycler: frozenset({"current", "next", "reset"}),
}


def attributes_of(kind: type) -> frozenset[str]:
    """What a template may name of a value of this type: the fields of a record, and methods that change nothing."""
    if (known := _ATTRIBUTES.get(kind)) is not None:
        return known
    found: frozenset[str] = frozenset()
    if is_dataclass(kind):
        found = frozenset(field.name for field in fields(kind))
    elif issubclass(kind, tuple):
        found = _LIST_METHODS | frozenset(getattr(kind, "_fields", ()))
    _ATTRIBUTES[kind] = found
    return found


def text_of(value: object, named: str | None = None) -> str:
    """What is printed of `value`, which the template calls `named`. Raises SecurityError with what to write instead."""
    if type(value) in PRINTABLE:
        return str(value)
    if isinstance(value, Undefined):
        return str(value)  # Raises the error that says what is undefined.
    name = named or "VALUE"
    raise SecurityError(f"{named or 'this'} is {_description(value, name)}; only text and numbers are printed")


def _description(value: object, name: str) -> str:
    match value:
        case None:
            return f"none: write {{{{ {name} or '' }}}}"
        case list() | tuple() | range() | dict():
            names = sorted(next((attributes_of(type(entry)) for entry in value if is_dataclass(entry)), ()))
            part = f" | map(attribute='{names[0]}')" if names else ""
            kind = "a mapping" if isinstance(value, dict) else "a list"
            return f"{kind}: write {{{{ {name}{part} | join(', ') }}}}"
        case Macro():
            return f"a macro: write {{{{ {name}() }}}}"
        case MethodType() | BuiltinMethodType():
            return f"a method: write {{{{ {name}() }}}}"
        case LoopContext():
            return "a loop: write {{ loop.index }}"
        case Namespace() | Cycler() | Joiner():
            return f"a {type(value).__name__.lower()}: name what of it is printed"
        case _ if is_dataclass(value):
            return f"a record: name a field of it, such as {{{{ {name}.{min(attributes_of(type(value)))} }}}}"
        case _:
            return f"no text: found {type(value).__name__}"


_WIDE: Final = frozenset({"center", "expandtabs", "ljust", "rjust", "zfill"})
_VIEWS: Final = frozenset({"items", "keys", "values"})


def called(meter: Meter, owner: object, name: str, args: Sequence[object], named: Mapping[str, object]) -> object:
    """What the method `name` of `owner` returns; a list where it would be a view of a mapping."""
    meter.weigh(owner, *args, *named.values())
    if isinstance(owner, str):
        _check_size(meter, owner, name, [*args, *named.values()])
    result = getattr(owner, name)(*args, **named)
    if name in _VIEWS:
        result = list(result)
    if isinstance(result, str):
        meter.text(len(result))
    elif isinstance(result, list):
        meter.items(len(result))
    return result


def _check_size(meter: Meter, owner: str, name: str, args: Sequence[object]) -> None:
    """Refuse a text that would be too long, before it is made."""
    if name in _WIDE:
        for width in args:
            check_width(width)
            if name == "expandtabs" and isinstance(width, int):
                meter.text(owner.count("\t") * width)
    match name, args:
        case "replace", [str(old), str(new), *_]:
            check_replaced(meter, owner, old, new)
        case "join", [str() | list() | tuple() | dict() as parts]:
            meter.text(len(owner) * len(parts) + sum(len(part) for part in parts if isinstance(part, str)))
        case _:
            pass


def check_replaced(meter: Meter, text: str, old: str, new: str) -> None:
    """Refuse a replacement that makes a text too long."""
    meter.text(len(text) + max(len(new) - len(old), 0) * text.count(old))


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
