"""What a template may print, and what it may name of a value.

Texts, numbers, true and false are printed. Anything else is a slip (a forgotten `join`, a method that is not called),
and what Python prints of it may hold an address in memory, another one each time.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from types import BuiltinMethodType, MethodType
from typing import Final

from jinja2.exceptions import SecurityError
from jinja2.runtime import LoopContext, Macro, Undefined
from jinja2.utils import Cycler, Joiner, Namespace

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
    raise SecurityError(f"{named or 'this'} is {_told(value, name)}; only text and numbers are printed")


def _told(value: object, name: str) -> str:
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
