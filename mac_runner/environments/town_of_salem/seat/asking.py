"""How the players of one agent definition are asked: the form of their replies, their reasoning, their own words.

The menu says what is legal now in words, and the schema as JSON. An engine that constrains decoding follows the schema,
and then a reply cannot be malformed. Its objects are those that the prompt teaches:
`{"thinking": …, "act": "vote", "target": "Abel", "notes": …}`, or `{"tool": …, "argument": …}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Literal, TypeAlias

from mac_runner.environments.reading import BLANK
from mac_runner.environments.town_of_salem.roles.catalogue import follows_roles
from mac_runner.environments.town_of_salem.rules.acts import (
    ACTS,
    CHANNEL,
    FIRST,
    SECOND,
    SPEECH,
    TARGET,
    WORDS,
    ActSpec,
    Slot,
)
from mac_runner.environments.town_of_salem.seat.knowledge import Choice, SeatView
from mac_runner.environments.town_of_salem.seat.tools import TOOLS
from mac_runner.types import JsonObject, JsonValue, ReplyForm

CORRECTION_TAG = "correction"
Reasoning: TypeAlias = Literal["required", "optional", "off"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """What prompts teach and ask for, and what the schema allows."""

    form: ReplyForm = "markup"
    reasoning: Reasoning = "optional"
    reasoning_chars_max: int | None = None
    persona: str = ""
    """Who the player is besides a name and a role, said where it is asked."""
    system: str = ""
    """Words of the experiment's own, at the end of the system message."""

    @property
    def _bound(self) -> str:
        return "" if self.reasoning_chars_max is None else f" in at most {self.reasoning_chars_max} characters"

    def reasoning_rule(self) -> str:
        """How the system message puts it."""
        if self.reasoning == "off":
            return "Do not write down any reasoning."
        if self.form == "json":
            begin = "Begin" if self.reasoning == "required" else "You may begin"
            return f'{begin} the object with "thinking": your reasoning{self._bound}. No one else ever sees it.'
        first = "First think" if self.reasoning == "required" else "You may first think"
        return f"{first} inside <thinking>...</thinking>{self._bound}. No one else ever sees it."

    def reminder(self) -> str:
        """The last line of a prompt: what the reply has to be, where the acts listed do not show it."""
        match self.form, self.reasoning:
            case "json", "required":
                return 'Answer with one JSON object that begins with "thinking".'
            case "json", "off":
                return "Answer with one JSON object, without any reasoning."
            case "json", _:
                return "Answer with one JSON object."
            case _, "required":
                return "Think inside <thinking>...</thinking>, then write one act in its tag."
            case _, "off":
                return "Write one act in its tag, without any reasoning."
            case _:
                return ""

    def correction(self, reason: str) -> str:
        """The answer to a reply that cannot be used; our reasons write an act as `<vote>`."""
        form = "with one act in its tag"
        if self.form == "json":
            reason = re.sub(r"<([a-z_]+)>", r'"\1"', re.sub(r"</([a-z_]+)>", r'end of "\1"', reason))
            form = "as one JSON object"
        said = f"Your reply could not be used: {reason}. Answer again, {form}."
        return f"<{CORRECTION_TAG}>{said}</{CORRECTION_TAG}>"


def menu(view: SeatView, form: ReplyForm) -> str:
    """Every act that may be chosen now, as it is written, with what it takes."""
    others = tuple([name for name in view.living if name != view.name])
    offered = [(choice, ACTS[choice.verb]) for choice in view.choices]
    own = f", with your own words in place of {BLANK}" if any(spec.takes_words for _, spec in offered) else ""
    lines = [f"Choose one act{own}:"]
    lines += [_option(choice, spec, others, form) for choice, spec in offered if not spec.is_side_act]
    if spoken := [choice.verb for choice in view.choices if choice.takes_speech]:
        if form == "json":
            also = f'add the key "{SPEECH}"'
        else:
            also, spoken = f"also <{SPEECH}>", [f"<{verb}>" for verb in spoken]
        lines.append(f"Together with {' or '.join(spoken)} you may {also}: everyone hears it.")
    sides = [choice.verb for choice, spec in offered if spec.is_side_act]
    if sides and form == "json":
        lines.append(f"You may add the keys {', '.join(map(json.dumps, sides))}.")
    elif sides:
        lines.append(f"You may add {', '.join([f'<{verb}>' for verb in sides])}.")
    return "\n".join(lines)


def _option(choice: Choice, spec: ActSpec, others: tuple[str, ...], form: ReplyForm) -> str:
    takes = ". ".join([said for slot in spec.slots if (said := _takes(choice, slot, others))])
    example = _example(spec.verb, form, CHANNEL.shown if len(choice.choices) > 1 else "")
    if spec.is_ability:
        return f"- {example}: {spec.help}" + (f"\n  {takes}" if takes else "")
    return f"- {example}: {takes}" if takes else f"- {example}"


@follows_roles
@cache
def _example(verb: str, form: ReplyForm, channel: str) -> str:
    return ACTS[verb].example(form, channel=channel)


def _takes(choice: Choice, slot: Slot, others: tuple[str, ...]) -> str:
    """What the placeholder of a slot may be."""
    options = choice.options(slot)
    if not options:
        return ""
    if slot is CHANNEL and len(options) == 1:
        return f"heard in the {options[0]} chat"
    if slot is TARGET and options == others and len(others) > 1:
        return f"{slot.shown} is any other living player"
    are_listed = len(options) > 1 or slot in (FIRST, SECOND)
    return f"{slot.shown} is " + (f"one of: {', '.join(options)}" if are_listed else options[0])


class ReplySchema(Mapping[str, JsonValue]):
    """The JSON schema of the legal replies to a view, keys in the order in which they are best written.

    It is built when it is first read: many engines never do. It uses only those parts of the view that do not change
    while the game goes on.
    """

    def __init__(self, view: SeatView, asking: Asking, *, may_ask: bool) -> None:
        self._view = view
        self._asking = asking
        self._may_ask = may_ask

    @cached_property
    def _schema(self) -> JsonObject:
        view, asking = self._view, self._asking
        main = [choice for choice in view.choices if not ACTS[choice.verb].is_side_act]
        sides = [choice.verb for choice in view.choices if ACTS[choice.verb].is_side_act]
        variants: list[JsonValue] = []
        for choice in main:
            beside = [*([SPEECH] if choice.takes_speech else []), *sides]
            optional = _fields(choice, are_optional=True) | {verb: _words(ACTS[verb]) for verb in beside}
            required: JsonObject = {"act": {"const": choice.verb}, **_fields(choice, are_optional=False)}
            variants.append(_variant(asking, required, optional))
        for tool in [TOOLS[name] for name in view.options.tools] if self._may_ask else ():
            argument = tool.schema(view)
            asked: JsonObject = {} if argument is None else {"argument": argument}
            variants.append(_variant(asking, {"tool": {"const": tool.name}, **asked}, {}))
        return {"type": "object", "anyOf": variants}

    def __getitem__(self, key: str) -> JsonValue:
        return self._schema[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._schema)

    def __len__(self) -> int:
        return len(self._schema)


def _variant(asking: Asking, required: JsonObject, optional: JsonObject) -> JsonObject:
    is_required = asking.reasoning == "required"
    bounds: JsonObject = {"minLength": 1} if is_required else {}
    if asking.reasoning_chars_max is not None:
        bounds["maxLength"] = asking.reasoning_chars_max
    thought: JsonObject = {} if asking.reasoning == "off" else {"thinking": {"type": "string", **bounds}}
    needed = [*thought, *required] if is_required else list(required)
    return {
        "type": "object",
        "properties": {**thought, **required, **optional},
        "required": list[JsonValue](needed),
        "additionalProperties": False,
    }


def _words(spec: ActSpec) -> JsonObject:
    return {"type": "string", "minLength": 1, "maxLength": spec.text_chars_max}


def _fields(choice: Choice, *, are_optional: bool) -> JsonObject:
    spec = ACTS[choice.verb]
    return {
        slot.key: _words(spec) if slot is WORDS else {"enum": list(choice.options(slot))}
        for slot in spec.slots
        if slot.is_optional == are_optional and (choice.options(slot) or not are_optional)
    }


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
