"""`derive`: keys of a combination computed from its other keys.

A template is a text; `{dotted.path}` in it stands for the value of that key, `{{` and `}}` for braces. A template that
is one placeholder and nothing else gives the value as it is, a number as a number; any other gives a text. A derived
key may build on another one, and the order in which they are written does not matter.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

from mac_runner.config.draft import Draft, resolve_path, with_value
from mac_runner.config.grid import GRID_KEY
from mac_runner.config.resolving import told
from mac_runner.problems import Problem, clipped
from mac_runner.section import KeyPath
from mac_runner.types import JsonValue

_PIECE: Final = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]|[^{}]+")


def derived(draft: Draft, templates: Mapping[str, str]) -> Draft:
    """`draft` with every derived key. Raises ConfigError for an unknown placeholder and for keys in a circle."""
    waiting = {key: _placeholders(draft, key, template) for key, template in templates.items()}
    while waiting:
        ready = next((key for key, needs in waiting.items() if not _needed(needs, waiting)), None)
        if ready is None:
            raise _refused(draft, next(iter(waiting)), f"needs itself: {' -> '.join(_circle(waiting))}")
        del waiting[ready]
        draft = _with_one(draft, ready, templates[ready])
    return draft


def _with_one(draft: Draft, key: str, template: str) -> Draft:
    here: KeyPath = (GRID_KEY, "derive", key)
    try:
        path = resolve_path(draft.value, key)
    except ValueError as fault:
        raise told(draft, [Problem(here, str(fault))]) from None
    return with_value(draft, path, _filled(draft, key, template), draft.locate(here))


def _filled(draft: Draft, key: str, template: str) -> JsonValue:
    pieces = list(_PIECE.finditer(template))
    if len(pieces) == 1 and pieces[0][1] is not None:
        return _value(draft, key, pieces[0][1])
    texts = []
    for piece in pieces:
        if piece[1] is not None:
            texts.append(_text(draft, key, piece[1]))
        else:
            texts.append({"{{": "{", "}}": "}"}.get(piece[0], piece[0]))
    return "".join(texts)


def _text(draft: Draft, key: str, placeholder: str) -> str:
    value = _value(draft, key, placeholder)
    if isinstance(value, dict | list):
        raise _refused(draft, key, f"{{{placeholder}}} is no single value, and stands inside a text")
    return value if isinstance(value, str) else json.dumps(value)


def _value(draft: Draft, key: str, placeholder: str) -> JsonValue:
    try:
        path = resolve_path(draft.value, placeholder)
    except ValueError as fault:
        raise _refused(draft, key, f"{{{placeholder}}}: {fault}") from None
    here: JsonValue = draft.value
    for part in path:
        if isinstance(here, list) and isinstance(part, int):
            here = here[part]
        elif isinstance(here, dict) and part in here:
            here = here[str(part)]
        else:
            text = f"there is no value {{{placeholder}}} in the file; a default counts only when it is written out"
            raise _refused(draft, key, text)
    return here


def _placeholders(draft: Draft, key: str, template: str) -> tuple[str, ...]:
    pieces = list(_PIECE.finditer(template))
    if any(piece[0] in ("{", "}") for piece in pieces):
        text = f"{clipped(template)} holds a brace without its other half; write {{{{ or }}}} for a brace itself"
        raise _refused(draft, key, text)
    return tuple(piece[1] for piece in pieces if piece[1] is not None)


def _needed(needs: tuple[str, ...], waiting: Mapping[str, tuple[str, ...]]) -> str | None:
    """One of the keys still to be derived that these placeholders build on."""
    return next((key for key in waiting for need in needs if _is_related(need, key)), None)


def _is_related(one: str, other: str) -> bool:
    """Whether one key is the other, or holds it."""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def _circle(waiting: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Keys that need each other, from one of them round to itself."""
    trail = [next(iter(waiting))]
    while (following := _needed(waiting[trail[-1]], waiting)) not in trail:
        assert following is not None, "every key that waits needs another one that waits"
        trail.append(following)
    return [*trail[trail.index(following) :], following]


def _refused(draft: Draft, key: str, text: str) -> Exception:
    return told(draft, [Problem((GRID_KEY, "derive", key), text)])
