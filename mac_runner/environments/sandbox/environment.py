"""Jinja's sandbox, in which a template reaches plain data only, and every operation is bounded.

Its filters and tests are those that are pure, print no object, and are bounded in time and size. What Jinja returns as
a generator is a list here. Filters for HTML are left out, because a prompt has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import BuiltinMethodType, MethodType
from typing import Any, Final

from jinja2 import StrictUndefined, pass_context
from jinja2.exceptions import SecurityError
from jinja2.filters import FILTERS
from jinja2.runtime import Context, LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.tests import TESTS
from jinja2.utils import Cycler, Joiner, Namespace

from mac_runner.environments.sandbox.values import (
    NUMBER_BITS_MAX,
    PLAIN,
    Formatting,
    Meter,
    attributes_of,
    called,
    check_number,
    check_replaced,
    check_width,
    meter_of,
    printf,
    text_of,
)

Filter = Callable[..., object]
SHOWN: Final = "_shown"
WEIGHED: Final = "_weighed"
COUNTED: Final = "_counted"
SPENT: Final = "_spent"
"""What is put around parts of a template when it is compiled; no template can name these."""

_PARTS_MAX: Final = 100_000
"""As many parts as a range has."""
_OF_TEXT: Final = ("capitalize", "lower", "trim", "truncate", "upper")
_OF_WORDS: Final = ("title", "wordcount")
_OF_NUMBERS: Final = ("abs", "float", "int")
_OF_LISTS: Final = ("groupby", "list", "map", "reject", "rejectattr", "reverse", "select", "selectattr")
_IN_ORDER: Final = ("dictsort", "max", "min", "sort", "unique")
_AT_ONCE: Final = ("count", "d", "default", "first", "items", "last", "length")
"""Filters that look at no more than an entry, or make what is made of a mapping anyway."""
_TESTS: Final = (
    *("==", "!=", "<", "<=", ">", ">=", "eq", "equalto", "ne", "lt", "lessthan", "le", "gt", "greaterthan", "ge", "in"),
    *("boolean", "defined", "divisibleby", "even", "false", "float", "integer", "iterable", "lower", "mapping", "none"),
    *("number", "odd", "sequence", "string", "true", "undefined", "upper"),
)


def _own(run: Callable[..., object]) -> Filter:
    """A filter of ours, which is given the meter."""

    def filtered(context: Context, value: object, *args: object, **named: object) -> object:
        return run(meter_of(context), value, *args, **named)

    return pass_context(filtered)


def _jinjas(name: str, check: Callable[[Meter, object], None]) -> Filter:
    """One of Jinja's, whose value is checked first; what it returns is plain."""
    run = FILTERS[name]
    takes = getattr(run, "jinja_pass_arg", None)

    def filtered(context: Context, value: object, *args: object, **named: object) -> object:
        meter = meter_of(context)
        check(meter, value)
        meter.weigh(*args, *named.values())
        leading = {"context": context, "eval_context": context.eval_ctx, "environment": context.environment}
        first = () if takes is None else (leading[takes.name],)
        return plain(meter, run(*first, value, *args, **named))

    return pass_context(filtered)


def plain(meter: Meter, value: object) -> object:
    """A result as data: what is made bit by bit as a list."""
    if type(value) in PLAIN:
        if isinstance(value, str):
            meter.text(len(value))
        elif isinstance(value, list | dict):
            meter.items(len(value))
        else:
            check_number(value)
    elif hasattr(value, "__next__") and isinstance(value, Iterable):
        value = list(value)
        meter.items(len(value))
    elif isinstance(value, str):
        value = str.__str__(value)  # Without HTML, markup is plain text.
        meter.text(len(value))
    return value


def _text(meter: Meter, value: object) -> None:
    meter.text(len(text_of(value)))


def _words(meter: Meter, value: object) -> None:
    """What is done word by word takes longer than what is done to a text at once."""
    length = len(text_of(value))
    meter.text(length)
    meter.items(length)


def _whole(meter: Meter, value: object) -> None:
    meter.weigh(value)


def _ordered(meter: Meter, value: object) -> None:
    """Sorting looks at an entry as often as the number of entries has digits."""
    for _ in range(len(value).bit_length() if isinstance(value, list | tuple | dict | str | range) else 1):
        meter.weigh(value)


def _nothing(meter: Meter, value: object) -> None:
    pass


@pass_context
def _shown(context: Context, value: object, named: str | None = None) -> str:
    text = value if type(value) is str else text_of(value, named)
    meter_of(context).text(len(text))
    return text


@pass_context
def _weighed(context: Context, value: object) -> object:
    if type(value) is not int and not isinstance(value, Undefined):
        meter_of(context).weigh(value)
    return value


@pass_context
def _counted(context: Context, value: object, steps: int) -> object:
    if isinstance(value, Undefined):
        iter(value)  # Raises the error that says what is undefined.
    if not isinstance(value, str | list | tuple | dict | range):
        raise TypeError(f"{type(value).__name__} cannot be looped over; a list can")
    meter_of(context).spend(steps * (len(value) + 1))
    return value


@pass_context
def _spent(context: Context, value: object, steps: int) -> object:
    meter_of(context).spend(steps)
    return value


@pass_context
def _join(context: Context, value: Iterable[object], d: object = "", attribute: object = None) -> str:
    meter = meter_of(context)
    if attribute is not None:
        value = context.environment.call_filter("map", value, (), {"attribute": attribute}, context=context)
    _counted(context, value, 1)
    between, parts = text_of(d), [text_of(entry) for entry in value]
    meter.text(len(between) * len(parts) + sum(map(len, parts)))
    return between.join(parts)


@pass_context
def _sum(context: Context, value: Iterable[object], attribute: object = None, start: float = 0) -> object:
    if attribute is not None:
        value = context.environment.call_filter("map", value, (), {"attribute": attribute}, context=context)
    _counted(context, value, 1)
    total = start
    for number in value:
        if not isinstance(number, int | float):
            raise TypeError(f"a sum is of numbers; found {type(number).__name__}")
        total += number
    check_number(total)
    return total


def _replace(meter: Meter, value: object, old: object, new: object, count: int | None = None) -> str:
    text, searched, put = text_of(value), text_of(old), text_of(new)
    check_replaced(meter, text, searched, put)
    return text.replace(searched, put, -1 if count is None else count)


def _center(meter: Meter, value: object, width: int = 80) -> str:
    check_width(width)
    made = text_of(value).center(width)
    meter.text(len(made))
    return made


def _indent(meter: Meter, value: object, width: object = 4, first: bool = False, blank: bool = False) -> object:
    text = text_of(value)
    check_width(width)
    wide = len(width) if isinstance(width, str) else width if isinstance(width, int) else 0
    meter.text(len(text) + (len(text.splitlines()) + 1) * max(wide, 0))
    return FILTERS["indent"](text, width, first, blank)


def _round(meter: Meter, value: object, precision: int = 0, method: str = "common") -> object:
    check_width(precision)
    check_number(value)
    return FILTERS["round"](value, precision, method)


def _format(meter: Meter, value: object, *args: object, **named: object) -> str:
    if args and named:
        raise TypeError("a format takes values by place or by name, not both")
    return printf(meter, text_of(value), named or args)


def _parts(name: str) -> Callable[..., object]:
    def cut(meter: Meter, value: object, count: object, fill_with: object = None) -> object:
        if not isinstance(count, int) or not 0 < count <= _PARTS_MAX:
            raise SecurityError(f"asks for parts of or by {count}; 1 to {_PARTS_MAX} can be had")
        meter.weigh(value)
        meter.items(count)
        return plain(meter, FILTERS[name](value, count, fill_with))

    return cut


@pass_context
def _tojson(context: Context, value: object, indent: int | None = None) -> object:
    meter = meter_of(context)
    meter.weigh(value)
    if indent is not None:
        check_width(indent)
        # An entry is indented by as much as it is nested.
        for _ in range(max(indent, 0)):
            meter.weigh(value)
    return plain(meter, FILTERS["tojson"](context.eval_ctx, value, indent))


def _string(meter: Meter, value: object) -> str:
    return text_of(value)


def all_filters() -> dict[str, Filter]:
    """Filters by name."""
    return {
        **{name: _jinjas(name, _text) for name in _OF_TEXT},
        **{name: _jinjas(name, _words) for name in _OF_WORDS},
        **{name: _jinjas(name, _nothing) for name in (*_OF_NUMBERS, *_AT_ONCE)},
        **{name: _jinjas(name, _whole) for name in _OF_LISTS},
        **{name: _jinjas(name, _ordered) for name in _IN_ORDER},
        "batch": _own(_parts("batch")),
        "center": _own(_center),
        "format": _own(_format),
        "indent": _own(_indent),
        "join": _join,
        "replace": _own(_replace),
        "round": _own(_round),
        "slice": _own(_parts("slice")),
        "string": _own(_string),
        "sum": _sum,
        "tojson": _tojson,
        SHOWN: _shown,
        WEIGHED: _weighed,
        COUNTED: _counted,
        SPENT: _spent,
    }


def all_tests() -> dict[str, Any]:
    """Tests by name."""
    known: Mapping[str, object] = TESTS
    return {name: known[name] for name in _TESTS}


GLOBALS: Final[dict[str, Callable[..., object]]] = {
    "range": safe_range,
    "cycler": Cycler,
    "dict": dict,
    "joiner": Joiner,
    "namespace": Namespace,
}
"""What a template may name besides its fields. All of Jinja's but `lipsum`, which is random."""

_EXPONENT_MAX: Final = 64
_REPEATED: Final = (str, list, tuple)
_OWNERS: Final = (str, list, tuple, dict)


class Sandbox(ImmutableSandboxedEnvironment):
    """Where the templates of users are rendered. Its contexts carry a meter."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self, *, trim_blocks: bool, lstrip_blocks: bool) -> None:
        super().__init__(
            undefined=StrictUndefined,
            trim_blocks=trim_blocks,
            lstrip_blocks=lstrip_blocks,
            # What is constant would be computed while it is compiled, where nothing is metered.
            optimized=False,
        )
        self.filters.clear()
        self.filters.update(all_filters())
        self.tests.clear()
        self.tests.update(all_tests())
        self.globals.clear()
        self.globals.update(GLOBALS)

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        """An operation on numbers, texts or lists, unless it would be out of all proportion."""
        meter = meter_of(context)
        for one, other in ((left, right), (right, left)):
            if operator == "*" and isinstance(one, _REPEATED):
                if not isinstance(other, int):
                    raise TypeError(f"{type(one).__name__} * {type(other).__name__}: repeat it a whole number of times")
                _check_repeated(meter, one, other)
                return one * other
        if operator == "%" and isinstance(left, str):
            return printf(meter, left, right)
        if operator == "+" and isinstance(left, _REPEATED) and type(left) is type(right):
            # Each was counted when it was made, so a sum of two is as bounded as they are.
            return plain(meter, super().call_binop(context, operator, left, right))
        for one in (left, right):
            if isinstance(one, Undefined):
                str(one)  # Raises the error that says what is undefined.
            if not isinstance(one, int | float):
                raise TypeError(f"{type(left).__name__} {operator} {type(right).__name__} cannot be computed")
            check_number(one)
        if operator == "**":
            _check_power(left, right)
        result = super().call_binop(context, operator, left, right)
        check_number(result)
        return result

    def getattr(self, obj: object, attribute: str) -> object:
        """A field or a method that a template may name; else what raises when it is used."""
        kind = type(obj)
        if kind is Namespace:
            is_known = not attribute.startswith("_") and hasattr(obj, attribute)
        else:
            is_known = attribute in attributes_of(kind)
        if is_known:
            if kind is str and attribute in ("format", "format_map"):
                assert isinstance(obj, str)
                return Formatting(self, obj, is_map=attribute == "format_map")
            return getattr(obj, attribute)
        if isinstance(obj, dict) and attribute in obj:
            return obj[attribute]
        if isinstance(obj, Undefined):
            return super().getattr(obj, attribute)
        if hasattr(obj, attribute) and kind is not Namespace:
            return self.unsafe_undefined(obj, attribute)
        return self.undefined(obj=obj, name=attribute)

    def getitem(self, obj: object, argument: object) -> object:
        """An entry of a list or a mapping, or what `getattr` finds."""
        if type(obj) in PLAIN or isinstance(obj, tuple):
            try:
                return obj[argument]  # type: ignore[index]
            except (TypeError, LookupError):
                pass
        if isinstance(argument, str):
            return self.getattr(obj, argument)
        return self.undefined(obj=obj, name=argument)  # type: ignore[arg-type]

    def call(self, context: Context, obj: object, /, *args: object, **named: object) -> object:
        """What a macro or a method returns; nothing else can be called."""
        meter = meter_of(context)
        # Jinja hands these to functions that take the context, and there are none.
        named.pop("_loop_vars", None)
        named.pop("_block_vars", None)
        if isinstance(obj, Macro):
            meter.enter()
            try:
                return context.call(obj, *args, **named)
            finally:
                meter.leave()
        meter.weigh(*args, *named.values())
        if isinstance(obj, Formatting):
            return obj(meter, args, named)
        if isinstance(obj, BuiltinMethodType) and isinstance(owner := obj.__self__, _OWNERS):
            return called(meter, owner, obj.__name__, args, named)
        if isinstance(obj, MethodType) and isinstance(obj.__self__, LoopContext | Cycler):
            return obj(*args, **named)
        if isinstance(obj, Joiner | Undefined):
            return obj(*args, **named)
        for known in GLOBALS.values():
            if obj is known:
                return context.call(known, *args, **named)
        raise SecurityError(f"{type(obj).__name__} cannot be called; macros and methods can")


def _check_repeated(meter: Meter, repeated: str | list[object] | tuple[object, ...], times: int) -> None:
    count = len(repeated) * max(times, 0)
    if isinstance(repeated, str):
        meter.text(count)
    else:
        meter.items(count)


def _check_power(base: object, exponent: object) -> None:
    if isinstance(exponent, int) and abs(exponent) > _EXPONENT_MAX:
        raise SecurityError(f"the exponent {str(exponent)[:20]} is more than {_EXPONENT_MAX}")
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * exponent > NUMBER_BITS_MAX:
        raise SecurityError(f"computes a number of more than {NUMBER_BITS_MAX} bits")
