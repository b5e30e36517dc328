"""Methods of texts, lists and mappings, each within what the meter allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from mac_runner.environments.discussion.sandbox.meter import Meter, check_width

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
