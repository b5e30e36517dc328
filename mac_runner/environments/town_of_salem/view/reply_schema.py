"""Replies as JSON objects: the schema of those that are legal now, and what such an object stands for in markup.

An engine that can constrain decoding is held to the schema, and then a reply cannot be malformed. The object says what
the markup says: `{"thinking": …, "act": "vote", "target": "Abel", "notes": …}`, or `{"tool": …, "argument": …}`.
It is read by turning it into the tags it stands for, so that both forms go through the same table and the same checks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from mac_runner.environments.markup import Tag, after_thoughts, defuse
from mac_runner.environments.town_of_salem.game.acts import ACTS, ActSpec, Form
from mac_runner.environments.town_of_salem.view.knowledge import Choice, SeatView
from mac_runner.environments.town_of_salem.view.tools import TOOLS
from mac_runner.types import JsonObject, JsonValue

_THINKING: JsonObject = {"thinking": {"type": "string"}}
_FENCES = ("```json", "```")
_BEGINNING = re.compile(r'\{\s*["}]')


class NotJsonError(Exception):
    """The reply begins as a JSON object and is none that can be read; the text says why, to the player."""


class ReplySchema(Mapping[str, JsonValue]):
    """The schema of the legal replies to a view, built when it is first looked into: many engines never do.

    It stands on what of a view stays as it is, whatever happens in the game meanwhile.
    """

    def __init__(self, view: SeatView, *, may_ask: bool) -> None:
        self._view = view
        self._may_ask = may_ask

    @cached_property
    def _schema(self) -> JsonObject:
        return reply_schema(self._view, may_ask=self._may_ask)

    def __getitem__(self, key: str) -> JsonValue:
        return self._schema[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._schema)

    def __len__(self) -> int:
        return len(self._schema)


def reply_schema(view: SeatView, *, may_ask: bool) -> JsonObject:
    """The JSON schema of every legal reply. Keys are listed in the order in which they are best written."""
    sides: JsonObject = {
        choice.verb: _words(ACTS[choice.verb]) for choice in view.choices if ACTS[choice.verb].is_side_act
    }
    variants: list[JsonValue] = [
        _variant({"act": {"const": choice.verb}, **_fields(choice)}, {**_channel(choice), **sides})
        for choice in view.choices
        if not ACTS[choice.verb].is_side_act
    ]
    for tool in TOOLS.values() if may_ask else ():
        argument = tool.schema(view)
        asked: JsonObject = {} if argument is None else {"argument": argument}
        variants.append(_variant({"tool": {"const": tool.name}, **asked}, {}))
    return {"type": "object", "anyOf": variants}


def _variant(required: JsonObject, optional: JsonObject) -> JsonObject:
    return {
        "type": "object",
        "properties": {**_THINKING, **required, **optional},
        "required": list(required),
        "additionalProperties": False,
    }


def _words(spec: ActSpec) -> JsonObject:
    return {"type": "string", "minLength": 1, "maxLength": spec.text_chars_max}


def _fields(choice: Choice) -> JsonObject:
    spec = ACTS[choice.verb]
    match spec.form:
        case Form.BARE:
            return {}
        case Form.TEXT:
            return {"text": _words(spec)}
        case Form.NAME:
            return {"target": {"enum": list(choice.targets)}}
        case Form.TWO_NAMES:
            return {"target": {"enum": list(choice.targets)}, "second": {"enum": list(choice.seconds)}}
        case Form.NAME_AND_TEXT:
            return {"target": {"enum": list(choice.targets)}, "text": _words(spec)}
        case Form.CHOICE:
            return {"choice": {"enum": list(choice.choices)}}


def _channel(choice: Choice) -> JsonObject:
    is_channel = ACTS[choice.verb].form is Form.TEXT and choice.choices
    return {"channel": {"enum": list(choice.choices)}} if is_channel else {}


def enumerated(view: SeatView) -> tuple[str, ...] | None:
    """Every legal reply written out, without thought or side acts, when all acts are of a kind that can be listed."""
    main = [choice for choice in view.choices if not ACTS[choice.verb].is_side_act]
    if any(ACTS[choice.verb].form in (Form.TEXT, Form.NAME_AND_TEXT) for choice in main):
        return None
    return tuple(_markup(choice.verb, named) for choice in main for named in _named(choice))


def _named(choice: Choice) -> Sequence[str]:
    if choice.seconds:
        return [f"{first}, {second}" for first in choice.targets for second in choice.seconds]
    return choice.targets or choice.choices or ("",)


def _markup(verb: str, named: str) -> str:
    return f"<{verb}>{named}</{verb}>" if named else f"<{verb}/>"


def read_object(text: str) -> JsonObject | None:
    """The reply as a JSON object; None when it does not begin as one. Raises NotJsonError, and nothing else."""
    text = after_thoughts(text)
    for fence in _FENCES:
        text = text.removeprefix(fence).removesuffix(fence).strip()
    if not _BEGINNING.match(text):
        return None
    try:
        found = json.loads(text, object_pairs_hook=_without_twins)
    except RecursionError:
        raise NotJsonError("the JSON object is nested too deep") from None
    except ValueError as error:
        raise NotJsonError(f"the reply begins as a JSON object and is none: {error}") from None
    assert isinstance(found, dict)
    return found


def _without_twins(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands in it twice")
    return found


def tags_of(reply: JsonObject) -> tuple[Tag, ...]:
    """The tags an object without a tool request stands for. Raises NotJsonError where it says something else."""
    verb = str(reply.get("act") or "")
    spec = ACTS.get(verb)
    if spec is None or spec.is_side_act:
        raise NotJsonError(f'"act" must name an act; found {defuse(verb)[:40]!r}')
    said = {key: _text(key, value) for key, value in reply.items() if key not in ("act", "thinking")}
    sides = tuple(_side_tags(said))
    main = _main_tag(spec, said)
    # What is empty says nothing; some models fill in every key.
    left = [key for key, value in said.items() if value]
    if left:
        raise NotJsonError(f"the act {verb} takes no {', '.join(defuse(key)[:40] for key in left)}")
    return (main, *sides)


def tool_of(reply: JsonObject) -> tuple[str, str]:
    """The name and the argument of a tool request."""
    return _text("tool", reply["tool"]), _text("argument", reply.get("argument"))


def _text(key: str, value: JsonValue) -> str:
    if value is None:
        return ""
    if isinstance(value, (dict, list)):
        raise NotJsonError(f"{defuse(key)[:40]!r} must be a text")
    return str(value)


def _side_tags(said: dict[str, str]) -> Iterator[Tag]:
    for verb in [verb for verb in said if verb in ACTS and ACTS[verb].is_side_act]:
        if text := said.pop(verb):
            yield Tag(name=verb, text=text)


def _main_tag(spec: ActSpec, said: dict[str, str]) -> Tag:
    match spec.form:
        case Form.BARE:
            return Tag(name=spec.verb)
        case Form.TEXT:
            channel = said.pop("channel", "")
            return Tag(name=spec.verb, attributes={"channel": channel} if channel else {}, text=said.pop("text", ""))
        case Form.NAME:
            return Tag(name=spec.verb, text=said.pop("target", ""))
        case Form.TWO_NAMES:
            return Tag(name=spec.verb, text=f"{said.pop('target', '')}, {said.pop('second', '')}")
        case Form.NAME_AND_TEXT:
            return Tag(name=spec.verb, attributes={"to": said.pop("target", "")}, text=said.pop("text", ""))
        case Form.CHOICE:
            return Tag(name=spec.verb, text=said.pop("choice", ""))
