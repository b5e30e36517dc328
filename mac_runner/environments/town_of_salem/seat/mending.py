"""Replies that miss their form, as the tags that they mean.

Three forms are looked for, in this order: tags, a JSON object, a line such as `Vote: Abel`. The first one that holds an
act decides. Only the form is mended here: whom the act names is for `replies`, and whether it is legal for the rules.

What is not mended: words that were never closed, since what follows may be no part of them; thoughts that were never
closed; acts in the midst of a sentence, which may be quoted from others; several acts that differ.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import Final

from mac_runner.environments.markup import OBSERVATION_TAG, THOUGHT_TAGS, TOOL_TAG, compatible, defuse
from mac_runner.environments.reading import Placed, Tag, after_thoughts, boxes, lowered, mended_object, whole_objects
from mac_runner.environments.town_of_salem.roles.catalogue import follows_roles
from mac_runner.environments.town_of_salem.rules.acts import ACTS, CHANNEL, CHOICE, SECOND, SLOTS, SPEECH, ActSpec
from mac_runner.types import JsonObject, JsonValue

EVERYBODY: Final = frozenset(
    {"", "all", "anyone", "everybody", "everyone", "group", "none", "null", "players", "public", "town", "village"}
)
"""What names no single player but all of them."""
VALUE_CHARS_MAX: Final = 200
"""A longer value is no name."""
MENDED_CHARS_MAX: Final = 8_192
"""A reply that is longer without its thoughts is not mended: no act with all that may be added takes as much."""
_BOXED_CHARS_MAX: Final = 200
"""Of an act in a box; an empty box, or one with more in it, says none."""
_TAGS_MAX: Final = 40
_OBJECTS_MAX: Final = 8
REMARK: Final = "remark"
"""The attribute of a mended tag that holds what stood beside a name."""

_PRIVATE: Final = frozenset(
    {*THOUGHT_TAGS, OBSERVATION_TAG}
    | {"thought", "thoughts", "reasoning", "reason", "rationale", "reflection", "analysis", "scratchpad", "explanation"}
)
_ALIASES: Final[Mapping[str, tuple[str, ...]]] = {
    "act": ("act", "action", "verb", "move", "command"),
    **{slot.key: (slot.key, *slot.aliases) for slot in SLOTS},
    SPEECH: (SPEECH, "speech", "say"),
}
WORD_KEYS: Final = ("text", *(name for name, spec in ACTS.items() if CHANNEL in spec.slots))
"""The names of what takes words."""
_WORDS: Final = frozenset({*WORD_KEYS, *_ALIASES["text"], *_ALIASES[SPEECH]})
_FIELDS: Final = frozenset(
    {*(alias for aliases in _ALIASES.values() for alias in aliases), *WORD_KEYS, *_PRIVATE}
    | {"confidence", "comment", "tone", "emotion", "day", "phase", "round", "type", "id"}
)
"""The keys beside words that say nothing about who hears them."""
_WRAPPERS: Final = ("response", "answer", "reply", "output", "result", "final_answer", "function", "act", "action")
_CALLED: Final = ("name", "function", "type")
_ARGUMENTS: Final = ("arguments", "parameters", "args", "params", "input", "kwargs")
_LISTS: Final = ("acts", "actions", "tool_calls")
_DEPTH_MAX: Final = 3

AROUND: Final = " \t\r\n*_`~#\"'“”‘’«»‹›„.,;:!?-–—|/\\[](){}<>@=+•$"
INNER_TAG: Final = re.compile(r"<[^<>]*>")
_REMARK: Final = re.compile(r"[(\[{]([^()\[\]{}]*)[)\]}]")
_OPENING: Final = re.compile(r"<[ \t]{0,3}([A-Za-z][A-Za-z_-]{0,30})((?:[\s=:/][^<>]*)?)>")
_ATTRIBUTE: Final = re.compile(
    r"""(?<![A-Za-z_])([A-Za-z_]{1,30})\s{0,3}[=:]\s{0,3}(?:"([^"]*)"|'([^']*)'|“([^”]*)”|([^\s"'“<>/]+))"""
)
_VALUE_END: Final = re.compile(r"[<\n]")
_BRACKET_TAG: Final = re.compile(r"\[(/?)([A-Za-z_]{3,30})\]")
_ENTITY: Final = re.compile(r"&(?:lt|gt|quot|amp|#39|#34);")
_PAIR: Final = re.compile(r"<([A-Za-z_]{2,20})>([^<>]{0,2000})</\1>")
_BROKEN: Final = re.compile(r"(?<![A-Za-z])\{\s*(?:[\"'“]|[A-Za-z_]{1,30}[\"'”]?\s{0,3}:)")
_SAID: Final = re.compile(
    r"\b(?:said|says|say|wrote|writes|told|tells|asked|asks|claims?|claimed|quote[sd]?|wants?|wanted"
    r"|suggest(?:s|ed)?|propose[sd]?|demand(?:s|ed)?|order(?:s|ed)|instruct(?:s|ed))\b",
    re.I,
)
_REFUSED: Final = re.compile(r"\bI (?:refuse|won['’]t|will not|shall not|am not going to)\b", re.I)
_ANY_TAG: Final = re.compile(r"<\s{0,3}(/?)\s{0,3}([A-Za-z_-]{1,30})[^<>]{0,200}?(/?)>")
_SET_OFF: Final = re.compile(r"(?:^|[\n:=>`\]])[\s*_]*\[?\s*$")
_QUOTED: Final = "\"'“”‘’"
_BULLET: Final = re.compile(r"^[\s*_`#\-•\d.)]+")
_FENCE_LINE: Final = re.compile(r"^[ \t]*(?:```|~~~)[\w-]*[ \t]*$", re.MULTILINE)
_LABEL: Final = r"(?:(?:my|the|final)\s+)*(?:act|action|answer|move|choice|decision|response)\s*(?:is\s*)?[:：=]\s*"
_CALL: Final = re.compile(r"^/?([A-Za-z_]{3,20})\s*\(([^()]{0,200})\)\s*;?$")


class MalformedError(Exception):
    """The reply is in no form, or it is unclear which of its acts is meant; the text explains why to the player."""


def mended(text: str, verbs: frozenset[str]) -> tuple[Tag, ...] | None:
    """The tags that a reply means which missed its form, when `verbs` may be chosen; None where it means no act.

    Raises MalformedError where it holds acts and it is unclear which one is meant.
    """
    said = after_thoughts(text)
    if not said or len(said) > MENDED_CHARS_MAX or f"<{TOOL_TAG}" in said:
        return None
    said = _unescaped(said)
    placed = _placed(said)
    if placed is None:
        return None
    # What is inside an object is text, whatever it looks like, and so is what follows where a broken one begins.
    broken = None if placed else _BROKEN.search(said)
    outside = _without(said, placed)
    scanned = _scan(outside[: broken.start()] if broken else outside, verbs)
    if scanned is None:
        return None
    tags, rest = scanned
    sides = tuple(tag for tag in tags if ACTS[tag.name].is_side_act)
    written = [one for found in placed for one in _inner(found.value)]
    if broken:
        written = _repaired(said[broken.start() :], said[: broken.start()])
        rest = ""
    written = written or _pairs(rest)
    if len(tags) > len(sides):
        if written:
            raise MalformedError("there were acts both in tags and in a JSON object; give exactly one")
        return _once(tags)
    found = [_object_tags(one, verbs) for one in written] or [_lines(rest, verbs)]
    distinct = [one for place, one in enumerate(found) if one not in found[:place]]
    if len(distinct) > 1:
        raise MalformedError(f"there were {len(distinct)} acts that differ; give exactly one")
    return (*distinct[0], *sides) if distinct[0] else None


def _once(tags: Iterable[Tag]) -> tuple[Tag, ...]:
    """The tags without those that say again what one before them says."""
    senses: list[object] = []
    once = []
    for tag in tags:
        text = tag.text if ACTS[tag.name].takes_words else bare(tag.text).casefold()
        sense = tag.name, text, tag.attributes
        if sense not in senses or ACTS[tag.name].is_side_act:
            senses.append(sense)
            once.append(tag)
    return tuple(once)


def _unescaped(text: str) -> str:
    """The text with the brackets of tags as they are written: not escaped, of full width or square."""
    text = text.translate({0xFF1C: "<", 0xFF1E: ">"})
    if "<" not in text:
        text = _ENTITY.sub(lambda found: html.unescape(found.group()), text)
        if any(tag[1] and _key(tag[2]) in ACTS for tag in _BRACKET_TAG.finditer(text)):
            text = _BRACKET_TAG.sub(lambda tag: f"<{tag[1]}{tag[2]}>" if _key(tag[2]) in ACTS else tag[0], text)
    return text.replace("\\<", "<").replace("\\>", ">").replace("<\\/", "</")


def _key(name: str) -> str:
    return name.casefold().replace("-", "_")


def _scan(text: str, verbs: frozenset[str]) -> tuple[list[Tag], str] | None:
    """All acts in tags, well closed or not, and the text outside of them that is not private.

    None where it is unclear where a tag ends.
    """
    tags: list[Tag] = []
    rest: list[str] = []
    position = start = 0
    while match := _OPENING.search(text, position):
        name = _verb(match[1], verbs)
        if name is None:
            position = match.end()
            continue
        if len(tags) >= _TAGS_MAX:
            return None
        rest.append(text[start : match.start()])
        end = _end(text, match, name)
        if end is None:
            return None
        inside, start = end
        position = start
        if name not in _PRIVATE:
            tags.append(_tag(ACTS[name], match[2], inside.strip()))
    return tags, "".join((*rest, text[start:]))


def _verb(name: str, verbs: frozenset[str]) -> str | None:
    """The act or the kind of thought that a tag's name means: itself, or the one legal act that it misspells."""
    key = _key(name)
    if key in ACTS or key in _PRIVATE:
        return key
    plural = [verb for verb in (f"{key}s", key.removesuffix("s")) if verb in ACTS]
    if plural:
        return plural[0] if plural[0] in verbs else None
    near = near_to(key, tuple(ACTS), lambda verb: int(len(key) > 3))
    return near[0] if len(near) == 1 and near[0] in verbs else None


def _end(text: str, opening: re.Match[str], name: str) -> tuple[str, int] | None:
    """What is inside a tag, and where the text goes on behind it."""
    begin = opening.end()
    if opening[2].rstrip().endswith("/"):
        return "", begin
    written = re.escape(opening[1])
    closing = re.compile(rf"<\s{{0,3}}/\s{{0,3}}(?:{written}|{re.escape(name)})\s{{0,3}}>", re.I).search(text, begin)
    if closing is not None:
        return text[begin : closing.start()], closing.end()
    if name in _PRIVATE:
        return None
    spec = ACTS[name]
    if spec.takes_words:
        # Its own opening tag, or a closing one without its bracket, ends it where nothing follows.
        last = re.compile(rf"<\s{{0,3}}(?:/\s{{0,3}}{written}|{written}\s{{0,3}}/?>)\s*$", re.I).search(text, begin)
        return None if last is None or "<" in text[begin : last.start()] else (text[begin : last.start()], len(text))
    if not spec.slots or opening[2].strip():
        return "", begin
    until = _VALUE_END.search(text, begin)
    end = until.start() if until else len(text)
    # `<vote>Abel<vote>`, `<vote>Abel</vote` and `<vote>Abel</ballot>` end it badly.
    behind = re.compile(rf"<\s{{0,3}}(?:/[^<>\n]{{0,30}}>?|{written}\s{{0,3}}/?>)", re.I).match(text, end)
    return text[begin:end], behind.end() if behind else end


def _tag(spec: ActSpec, inside_tag: str, inside: str) -> Tag:
    """The tag as it should have been written, with what its attributes say."""
    fields: JsonObject = {}
    for name, *values in _ATTRIBUTE.findall(inside_tag):
        fields.setdefault(name, next(filter(None, values), ""))
    if "name" in fields and "target" not in fields:
        fields["target"] = fields.pop("name")
    shown = inside_tag.strip().strip("/").strip()
    if not fields and shown:
        # `<vote Abel>` and `<vote="Abel">`
        fields = {"choice" if CHOICE in spec.slots else "target": shown.lstrip("=:").strip(" \"'“”")}
    return _main_tag(spec, lowered(fields), inside)


def _object_tags(written: JsonObject, verbs: frozenset[str]) -> tuple[Tag, ...]:
    """The tags that an object means: its act, words said with it, and side acts."""
    verb, fields = _act_of(written, verbs)
    spec = ACTS[verb]
    sides = tuple(
        Tag(name=side, text=_plain(value))
        for side in ("will", "death_note", "notes")
        if (value := fields.pop(side, None)) and side in ACTS
    )
    speech = "" if verb == SPEECH else _one(fields, SPEECH)
    said = (Tag(name=SPEECH, text=speech),) if speech else ()
    return (_main_tag(spec, fields), *said, *sides)


def _main_tag(spec: ActSpec, fields: JsonObject, inside: str = "") -> Tag:
    """The tag of an act with the arguments it takes; words for which it has no place are dropped."""
    own = {**fields, **({"target": fields[spec.verb]} if spec.verb in fields and "target" not in fields else {})}
    target, second, choice = _one(own, "target"), _one(own, "second"), _one(fields, "choice", but=spec.verb)
    text = inside or _one(fields, "text") or _plain(fields.get(spec.verb))
    if not spec.slots:
        _take_nothing(spec, target=_one(fields, "target"), second=second)
        return Tag(name=spec.verb)
    if CHANNEL in spec.slots:
        _check_all_hear(spec, fields, text, is_inside=bool(inside))
        return spec.tag({"text": text, "channel": _one(fields, "channel")})
    if spec.takes_words:
        if not target and ":" in inside:
            # `<whisper>Abel: are you the Doctor?</whisper>`
            target, _, text = inside.partition(":")
        return spec.tag({"target": target, "text": text.strip()})
    given, beside = target, ""
    if CHOICE in spec.slots:
        given = choice or _plain(fields.get(spec.verb)) or ("" if inside else target)
        if given and inside and given.casefold() != inside.casefold():
            raise MalformedError(f"<{spec.verb}> says two things; give one")
    elif SECOND in spec.slots:
        given = f"{target}, {second}" if second else target
    else:
        _take_nothing(spec, second=second, choice="" if choice == target else choice)
        beside = inside if target else ""
    return Tag(name=spec.verb, attributes={REMARK: beside} if beside else {}, text=given or inside)


def _check_all_hear(spec: ActSpec, fields: JsonObject, text: str, *, is_inside: bool) -> None:
    """Raises MalformedError for words to all beside which something says that they may be for some."""
    to = _one(fields, "target")
    if to.casefold().removeprefix("the ") not in EVERYBODY:
        raise MalformedError(f"<{spec.verb}> takes no target ({defuse(to)[:40]!r}): all who are there hear it")
    unknown = [key for key, value in fields.items() if value and key not in _FIELDS]
    if unknown and not is_inside:
        raise MalformedError(f"the act {spec.verb} takes no {', '.join(defuse(key)[:40] for key in unknown)}")
    if spec.verb == SPEECH and (other := _one(fields, SPEECH)) and other != text:
        raise MalformedError("it gives several texts; give one")


def _take_nothing(spec: ActSpec, **arguments: str) -> None:
    given = [name for name, value in arguments.items() if value]
    if given:
        raise MalformedError(f"the act {spec.verb} takes no {', '.join(given)}")


def _one(fields: JsonObject, name: str, *, but: str = "") -> str:
    """The value of a field under any of its names. Raises MalformedError where they differ."""
    given = [fields[alias] for alias in _ALIASES[name] if alias in fields and alias != but]
    # Two names may come as a list.
    is_listed = name == "target"
    values = {", ".join(map(_plain, each)) if is_listed and isinstance(each, list) else _plain(each) for each in given}
    values.discard("")
    if len(values) > 1:
        raise MalformedError(f"it gives several values of {name}; give one")
    return values.pop() if values else ""


def _plain(value: JsonValue) -> str:
    match value:
        case None | False:
            return ""
        case str():
            return value.strip()
        case []:
            return ""
        case [str() | int() | float() as only]:
            return str(only).strip()
        case list():
            raise MalformedError("a field of the JSON object has several values; give one")
        case dict():
            raise MalformedError("a field of the JSON object holds an object; give a text")
        case _:
            return str(value)


def _pairs(text: str) -> list[JsonObject]:
    """The object that was written in tags: `<act>vote</act><target>Abel</target>`."""
    pairs = {_key(name): value for name, value in _PAIR.findall(text)}
    return [dict(pairs)] if "target" in pairs and ("act" in pairs or "action" in pairs) else []


def _placed(text: str) -> list[Placed] | None:
    """The well-formed objects that hold an act; None where one is in the midst of a sentence."""
    placed = [one for one in whole_objects(text) if _holds_act(one.value)]
    if len(placed) > _OBJECTS_MAX or any(_REFUSED.search(text, one.end) for one in placed):
        return None
    return placed if all(_is_set_off(text[: one.start]) for one in placed) else None


def _without(text: str, placed: Iterable[Placed]) -> str:
    parts, position = list[str](), 0
    for one in placed:
        parts.append(text[position : one.start])
        position = one.end
    return "\n".join((*parts, text[position:]))


def _is_set_off(before: str) -> bool:
    """Whether what follows is by itself: at the beginning of a line or behind a colon, in no tag, not quoted."""
    if _SET_OFF.search(before[-200:]) is None or _is_quoting(before):
        return False
    tags = [tag for tag in _ANY_TAG.finditer(before) if _key(tag[2]) in ACTS and not tag[3]]
    last = tags[-1] if tags else None
    return last is None or bool(last[1]) or not ACTS[_key(last[2])].slots


def _is_quoting(before: str) -> bool:
    """Whether the line that leads up to something says that these are words of another."""
    above, _, line = before.rpartition("\n")
    if line.lstrip().startswith(">"):
        return True
    leading = above.rstrip().rpartition("\n")[2] if not line.strip(" \t*_`") else line
    return _SAID.search(leading) is not None and (leading is line or leading.rstrip(" *_").endswith(":"))


def _repaired(text: str, before: str) -> list[JsonObject]:
    """The object that a library finds in a broken text, if it keeps all words and invented none."""
    if not _is_set_off(before):
        return []
    found = mended_object(text)
    inner = list(_inner(found)) if _holds_act(found) else []
    return inner if all(_is_kept(key, value, text) for one in inner for key, value in one.items()) else []


def _is_kept(key: str, value: JsonValue, text: str) -> bool:
    """Whether a mended value occurs in the text and ends there: at its quote, or a word of no speech at its comma."""
    if isinstance(value, str) and not value:
        return '""' in text or "''" in text
    if not isinstance(value, str):
        return not isinstance(value, (dict, list)) or value in ([], {})
    place = next((text.rfind(form) for form in (value, json.dumps(value)[1:-1]) if form in text), -1)
    if place < 0:
        return False
    behind = text[place + len(value) :].lstrip()
    is_word = key not in _WORDS and re.fullmatch(r"[\w ]{1,40}", value) is not None
    closed = re.match(r"""["'”’](?:\s*(?:,|\}|\]|`|$|\n|\)|["'“]?\w+["'”]?\s*:))""", behind) is not None
    return closed or (is_word and (not behind or behind[0] in ",}]`\n"))


def _holds_act(found: JsonObject) -> bool:
    telling = _main_verbs().union(_ALIASES["act"])
    return any(not telling.isdisjoint(one) for one in _inner(found))


@follows_roles
@cache
def _main_verbs() -> frozenset[str]:
    return frozenset(verb for verb, spec in ACTS.items() if not spec.is_side_act)


def _inner(found: JsonObject, depth: int = 0) -> Iterator[JsonObject]:
    """The objects with the fields of an act, out of what models wrap them in: lists, answers, calls of functions."""
    fields = lowered(found)
    for key in _LISTS:
        listed = fields.get(key)
        if isinstance(listed, list) and listed and depth < _DEPTH_MAX:
            yield from (inner for one in listed if isinstance(one, dict) for inner in _inner(one, depth + 1))
            return
    arguments = next((fields[key] for key in _ARGUMENTS if key in fields), None)
    if isinstance(arguments, str):
        arguments = next((one.value for one in whole_objects(arguments)), None)
    named = (name for key in _CALLED if isinstance(name := fields.get(key), str))
    called = next((name for name in named if _key(name.strip()) in ACTS), None)
    if called is not None and (isinstance(arguments, dict) or "act" not in fields):
        rest = arguments if isinstance(arguments, dict) else {key: fields[key] for key in fields if key not in _CALLED}
        yield {**lowered(rest), "act": called}
        return
    wrapped = [fields[key] for key in _WRAPPERS if isinstance(fields.get(key), dict)]
    if len(wrapped) == 1 and isinstance(wrapped[0], dict) and depth < _DEPTH_MAX:
        yield from _inner(wrapped[0], depth + 1)
        return
    yield fields


def _act_of(written: JsonObject, verbs: frozenset[str]) -> tuple[str, JsonObject]:
    """The act of an object and its other fields. Raises MalformedError where it names none or several."""
    fields = dict(written)
    named = _one(fields, "act")
    for alias in _ALIASES["act"]:
        fields.pop(alias, None)
    if named:
        return _named_act(named, fields, verbs)
    keys = [key for key in fields if key in _main_verbs() and fields[key] not in (None, False, "")]
    main = [key for key in keys if key != SPEECH] or keys
    if len(main) != 1:
        raise MalformedError('"act" must name one act')
    value = fields[main[0]]
    if isinstance(value, dict):
        fields = {**{key: fields[key] for key in fields if key != main[0]}, **lowered(value)}
    elif value is True:
        fields[main[0]] = None
    return main[0], fields


def _named_act(named: str, fields: JsonObject, verbs: frozenset[str]) -> tuple[str, JsonObject]:
    bare = named.strip(" \t\r\n*_`\"'<>/.()")
    if (verb := _verb(bare, verbs)) is not None and verb in _main_verbs():
        return verb, fields
    # `{"act": "vote Abel"}`, `{"act": "<vote>Abel</vote>"}`
    scanned = _scan(named, verbs)
    if scanned is not None and len(scanned[0]) == 1:
        (tag,) = scanned[0]
        return tag.name, {**fields, "target": tag.text}
    for tag in _said(bare, verbs):
        key = "choice" if CHOICE in ACTS[tag.name].slots else "target"
        return tag.name, {**fields, **({key: tag.text} if tag.text else {})}
    raise MalformedError(f'"act" must name an act; found {defuse(named)[:40]!r}')


def _lines(text: str, verbs: frozenset[str]) -> tuple[Tag, ...]:
    """The act that lines say: the whole reply, its last line, or its only two, `Act: vote` and `Target: Abel`."""
    boxed = [box for box in boxes(text) if 0 < len(box) <= _BOXED_CHARS_MAX]
    if len(boxed) == 1:
        return _said(boxed[0], verbs)
    body = re.sub(r"</?(?:answer|act|action|final_answer|response|output|reply|tool_call)>", "\n", text)
    body = _FENCE_LINE.sub("", body)
    lines = [_BULLET.sub("", line).rstrip(" \t*_`") for line in body.splitlines() if line.strip(" \t*_`~")]
    if not lines:
        return ()
    keyed = dict(_keyed(lines))
    if "act" in keyed:
        return _object_tags(dict(keyed), verbs)
    if len(lines) == 1:
        return _said(lines[0], verbs)
    labelled = [line for line in lines if re.match(rf"(?:{_LABEL}.|{_verb_names()}[*_\s]*[:：=])", line, re.I)]
    if labelled == lines[-1:] and not _is_quoting(body[: body.rstrip().rfind("\n") + 1]):
        return _said(lines[-1], verbs)
    return ()


def _keyed(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The fields of an object that was written as lines, where its act comes once."""
    rows = [
        re.match(r"[\"']?(act|action|target|second|choice)[\"'*_]*\s*[:=]\s*[*_]*(.+)$", line, re.I) for line in lines
    ]
    found = [(row[1].casefold().replace("action", "act"), row[2].strip(" ,*_\"'`")) for row in rows if row]
    names = [name for name, _ in found]
    if len(set(names)) == len(names) and len(names) > 1:
        yield from found


@follows_roles
@cache
def _verb_names() -> str:
    named = (verb for verb in _main_verbs() if not ACTS[verb].takes_words)
    return f"(?:{'|'.join(sorted(named, key=len, reverse=True))})"


def _said(line: str, verbs: frozenset[str]) -> tuple[Tag, ...]:
    """The one act that a line says and nothing else: `Vote: Abel`, `Action: vote Abel`, `vote(Abel)`, `wait`."""
    if not line or line[0] in _QUOTED or line[0] in ">":
        return ()
    line = re.sub(rf"^{_LABEL}", "", line, flags=re.I).strip(" *_`")
    call = _CALL.match(line)
    found = call or re.match(rf"/?({_verb_names()})(?!\w)[*_]*\s*[:：=]?\s*(.*)$", line, re.I)
    if found is None or (verb := _key(found[1])) not in verbs or ACTS[verb].takes_words:
        return ()
    value = re.sub(r"^\s*[A-Za-z_]{1,20}\s*=\s*", "", found[2]) if call else found[2]
    value = value.strip(" *_`.!")
    return (Tag(name=verb, text=value),) if bool(ACTS[verb].slots) == bool(value) else ()


def near_to(
    word: str, known: Sequence[str], reach: Callable[[str], int], *, but: Collection[str] = frozenset()
) -> list[str]:
    """The known words of which `word` may be a misspelling; none where it is not a word by itself."""
    folded = word.casefold()
    if not folded.isalpha() or len(folded) > VALUE_CHARS_MAX or folded in but:
        return []
    return [name for name, distance in _distances(folded, tuple(known)).items() if distance <= reach(name)]


@lru_cache(maxsize=1024)
def _distances(word: str, known: tuple[str, ...]) -> Mapping[str, int]:
    """How many letters each known word is away."""
    # Loaded by the first misspelling: most games have none.
    from rapidfuzz.distance import OSA

    return {name: OSA.distance(word, name.casefold()) for name in known}


def bare(value: str) -> str:
    """A value without marks, remarks in brackets and a genitive's ending."""
    text = INNER_TAG.sub(" ", compatible(value[:VALUE_CHARS_MAX]))
    without = _REMARK.sub(" ", text).strip(AROUND)
    return re.sub(r"['’]s?$", "", without or text.strip(AROUND)).strip(AROUND)
