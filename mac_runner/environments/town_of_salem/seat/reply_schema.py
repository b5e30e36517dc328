"""The JSON schema of the replies that are legal now, and the list of them where they can be listed.

An engine that constrains decoding follows the schema, and then a reply cannot be malformed. The objects are those that
the prompt teaches: `{"thinking": …, "act": "vote", "target": "Abel", "notes": …}`, or `{"tool": …, "argument": …}`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

from mac_runner.environments.town_of_salem.rules.acts import ACTS, SPEECH, WORDS, ActSpec
from mac_runner.environments.town_of_salem.seat.asking import Asking
from mac_runner.environments.town_of_salem.seat.knowledge import Choice, SeatView
from mac_runner.environments.town_of_salem.seat.tools import TOOLS
from mac_runner.types import JsonObject, JsonValue


class ReplySchema(Mapping[str, JsonValue]):
    """The schema of the legal replies to a view, built when it is first read: many engines never do.

    It uses only those parts of the view that do not change while the game goes on.
    """

    def __init__(self, view: SeatView, asking: Asking, *, may_ask: bool) -> None:
        self._view = view
        self._asking = asking
        self._may_ask = may_ask

    @cached_property
    def _schema(self) -> JsonObject:
        return reply_schema(self._view, self._asking, may_ask=self._may_ask)

    def __getitem__(self, key: str) -> JsonValue:
        return self._schema[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._schema)

    def __len__(self) -> int:
        return len(self._schema)


def reply_schema(view: SeatView, asking: Asking, *, may_ask: bool) -> JsonObject:
    """The JSON schema of every legal reply, keys in the order in which they are best written."""
    sides: JsonObject = {
        choice.verb: _words(ACTS[choice.verb]) for choice in view.choices if ACTS[choice.verb].is_side_act
    }
    variants: list[JsonValue] = [
        _variant(
            asking,
            {"act": {"const": choice.verb}, **_fields(choice, are_optional=False)},
            {**_fields(choice, are_optional=True), **_speech(choice), **sides},
        )
        for choice in view.choices
        if not ACTS[choice.verb].is_side_act
    ]
    for tool in [TOOLS[name] for name in view.options.tools] if may_ask else ():
        argument = tool.schema(view)
        asked: JsonObject = {} if argument is None else {"argument": argument}
        variants.append(_variant(asking, {"tool": {"const": tool.name}, **asked}, {}))
    return {"type": "object", "anyOf": variants}


def _variant(asking: Asking, required: JsonObject, optional: JsonObject) -> JsonObject:
    thought = {} if asking.reasoning == "off" else {"thinking": _thought(asking)}
    needed = [*thought, *required] if asking.reasoning == "required" else list(required)
    return {
        "type": "object",
        "properties": {**thought, **required, **optional},
        "required": list[JsonValue](needed),
        "additionalProperties": False,
    }


def _thought(asking: Asking) -> JsonObject:
    bounds: JsonObject = {} if asking.reasoning_chars_max is None else {"maxLength": asking.reasoning_chars_max}
    return {"type": "string", **({"minLength": 1} if asking.reasoning == "required" else {}), **bounds}


def _words(spec: ActSpec) -> JsonObject:
    return {"type": "string", "minLength": 1, "maxLength": spec.text_chars_max}


def _fields(choice: Choice, *, are_optional: bool) -> JsonObject:
    spec = ACTS[choice.verb]
    return {
        slot.key: _words(spec) if slot is WORDS else {"enum": list(choice.options(slot))}
        for slot in spec.slots
        if slot.is_optional == are_optional and (choice.options(slot) or not are_optional)
    }


def _speech(choice: Choice) -> JsonObject:
    return {SPEECH: _words(ACTS[SPEECH])} if choice.takes_speech else {}


def enumerated(view: SeatView, asking: Asking) -> tuple[str, ...] | None:
    """Every legal reply without thought, side acts and words with the act.

    None when some acts take free text or a thought is required.
    """
    if asking.reasoning == "required":
        return None
    main = [choice for choice in view.choices if not ACTS[choice.verb].is_side_act]
    if any(ACTS[choice.verb].takes_words for choice in main):
        return None
    return tuple(
        ACTS[choice.verb].in_form(asking.form, **values) for choice in main for values in choice.combinations()
    )
