"""Jinja's sandbox, in which a template reaches plain data only, and every operation is bounded."""

from __future__ import annotations

from collections.abc import Callable
from types import BuiltinMethodType, MethodType
from typing import Final

from jinja2 import StrictUndefined
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context, LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.utils import Cycler, Joiner, Namespace

from mac_runner.environments.discussion.sandbox.filters import all_filters, all_tests, plain
from mac_runner.environments.discussion.sandbox.formatting import Formatting, printf
from mac_runner.environments.discussion.sandbox.meter import Meter, check_number, meter_of
from mac_runner.environments.discussion.sandbox.methods import called
from mac_runner.environments.discussion.sandbox.values import PLAIN, attributes_of
from mac_runner.limits import TEMPLATE_NUMBER_BITS_MAX

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
    """Where templates of one's own are rendered. Its contexts carry a meter."""

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
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * exponent > TEMPLATE_NUMBER_BITS_MAX:
        raise SecurityError(f"computes a number of more than {TEMPLATE_NUMBER_BITS_MAX} bits")
