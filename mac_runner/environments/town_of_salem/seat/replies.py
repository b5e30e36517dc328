"""Replies as players write them, read as a tool request, as acts, or as a problem to correct.

A reply is markup, or a JSON object that says the same. An object is turned into the tags of that markup, so both forms
go through the same table and the same checks. Every text is one of the three; a problem explains what was wrong and
what is wanted.

A reply is read strictly first. Only one that cannot be used is mended (`mending`), form by form, and its names are read
generously. So a reply in the right form never means anything but what it says.

`Names` takes players, a choice or a channel as they are written. `LooseNames` takes them as they may have been meant,
if that is exactly one. Tried in this order: the name without what decorates it (`**Abel**`, `[Abel]`, `Abel (seat 1)`,
`Abel's`), the name behind `I vote for` or before `because …`, and a misspelt name. A misspelt name is one word, at most
one letter away from the name of one player, or two letters if the name has seven or more, and further than that from
all others, dead or alive. A letter added, left out or changed, and two letters swapped, count as one. What names two
players, or a player and a doubt, is never guessed: the correction names those it may mean.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from mac_runner.environments.markup import THOUGHT_TAGS, TOOL_TAG, defuse
from mac_runner.environments.reading import (
    BLANK,
    Cause,
    Problem,
    Tag,
    after_thoughts,
    holds_thought,
    is_placeholder,
    scan,
)
from mac_runner.environments.town_of_salem.model.state import GameState
from mac_runner.environments.town_of_salem.rules.acts import (
    ACTS,
    CHANNEL,
    CHOICE,
    FIRST,
    SECOND,
    SPEECH,
    TARGET,
    WORDS,
    Act,
    ActSpec,
    IllegalActError,
    check,
    check_beside,
    offers,
)
from mac_runner.environments.town_of_salem.rules.lobbies import NAMES
from mac_runner.environments.town_of_salem.seat.mending import (
    AROUND,
    EVERYBODY,
    INNER_TAG,
    REMARK,
    VALUE_CHARS_MAX,
    WORD_KEYS,
    MalformedError,
    bare,
    mended,
    near_to,
)
from mac_runner.types import FinishReason, JsonObject, JsonValue, Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRequest:
    """The player asks a tool before acting."""

    name: str
    argument: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What the player does: one act, after any side acts and the words said with it. All of them are legal now."""

    act: Act
    side_acts: tuple[Act, ...] = ()
    speech: Act | None = None


_ACTS_NAMED_MAX: Final = 10
_ADDRESSES: Final = ("to", "target", "recipient", "audience")
_FENCES = ("```json", "```")
_BARE_BLANK: Final = re.compile(rf":\s*{re.escape(BLANK)}\s*[,}}]")
_BEGINNING = re.compile(r'\{\s*["}]')
_CUT_OFF: Final = "the reply was cut off at its token limit"
_NEAR_CHARS_MIN: Final = 4
_FAR_CHARS_MIN: Final = 7
_CHOICE_CHARS_MIN: Final = 5
_OTHER_NAMES: Final = frozenset(name.casefold() for name in NAMES)
"""The name of a player who is not in the game is none that is misspelt."""
_BEFORE: Final = re.compile(
    r"^(?:(?:i|i'll|i’ll|my|the|we|should|will|would|want|like|now|hereby|to|choose|cast|am|is|be)\s+)*"
    r"(?:(?:vote|voting|ballot|verdict|bid|target|choice|answer|name|seat\s+\d+|player)\b[\s:=\-]*"
    r"(?:(?:for|against|on|is|the|player)\s+)*|(?:for|against|to|on)\s+(?:player\s+)?)",
    re.IGNORECASE,
)
_REASON: Final = re.compile(r"[\s,.;\-–—]*\b(?:because|since|due to|as (?:he|she|they)|for being)\b.*$", re.I | re.S)
_BETWEEN: Final = re.compile(r"\s*(?:,\s*(?:and|then)\b|[,;/&+|\n]|->|→|\band\b|\bwith\b)\s*", re.IGNORECASE)


Reading: TypeAlias = ToolRequest | Chosen | Problem


def read(reply: Reply, state: GameState, seat: int) -> Reading:
    """Read `reply` as the answer of `seat` to the round that is open.

    Of a reply that is mended, the first form that holds an act decides: what it says is done or asked about.
    """
    strict = _read_strictly(reply, state, seat)
    # What was cut off may have gone on to say something else.
    if not isinstance(strict, Problem) or reply.finish_reason is FinishReason.LENGTH:
        return strict
    verbs = frozenset(offer.verb for offer in offers(state, seat))
    try:
        tags = mended(reply.text, verbs)
    except MalformedError as problem:
        return Problem(Cause.MALFORMED, str(problem))
    return strict if tags is None else _read_acts(tags, state, seat, LooseNames(state, seat))


def _read_strictly(reply: Reply, state: GameState, seat: int) -> Reading:
    is_cut = reply.finish_reason is FinishReason.LENGTH
    try:
        written = read_object(reply.text)
        if written is not None and written.get("tool"):
            name, argument = _field("tool", written["tool"]), _field("argument", written.get("argument"))
            return ToolRequest(name=name, argument=argument)
        if written is not None:
            return _read_acts(tags_of(written), state, seat, Names(state))
    except MalformedError as problem:
        if is_cut:
            return Problem(Cause.CUT_OFF, _CUT_OFF)
        if _BARE_BLANK.search(reply.text):
            return Problem(Cause.PLACEHOLDER, f"it holds the {BLANK} of the form; write your own words there")
        return Problem(Cause.MALFORMED, str(problem))
    markup = scan(reply.text, ACTS)
    if markup.unclosed is not None:
        why = _CUT_OFF if is_cut else f"there is no </{markup.unclosed}>"
        cause = Cause.CUT_OFF if is_cut else Cause.MALFORMED
        if markup.unclosed in THOUGHT_TAGS:
            cause = Cause.CUT_OFF_THOUGHT if is_cut else Cause.OPEN_THOUGHT
        return Problem(cause, f"<{markup.unclosed}> was never closed: {why}")
    request = next((tag for tag in markup.tags if tag.name == TOOL_TAG), None)
    if request is not None:
        return ToolRequest(name=request.attributes.get("name", ""), argument=request.text)
    if is_cut and markup.rest:
        return Problem(Cause.CUT_OFF, f"{_CUT_OFF}; give the act last, and be brief")
    return _read_acts(markup.tags, state, seat, Names(state))


def _read_acts(tags: tuple[Tag, ...], state: GameState, seat: int, names: Names) -> Chosen | Problem:
    """The act that tags name, their words and side acts."""
    main, speech = _beside([tag for tag in tags if not ACTS[tag.name].is_side_act])
    if len(main) != 1:
        named = [tag.name for tag in main[:_ACTS_NAMED_MAX]] + ["…"] * (len(main) > _ACTS_NAMED_MAX)
        found = "no act" if not main else f"{len(main)} acts ({', '.join(named)})"
        cause = Cause.SEVERAL_ACTS if main else Cause.NO_ACT
        return Problem(cause, f"the reply holds {found}; give exactly one")
    if (copied := next(filter(_is_copied, tags), None)) is not None:
        return Problem(Cause.PLACEHOLDER, f"<{copied.name}> holds what the form shows; write your own words in it")
    acts: list[Act] = []
    said: Act | None = None
    try:
        for tag in (*main, speech):
            if tag is not None and tag.name == SPEECH:
                _check_audience(tag, names)
        for tag in (*main, *(tag for tag in tags if ACTS[tag.name].is_side_act)):
            acts.append(_read_act(tag, seat, names))
            check(state, acts[-1])
        if speech is not None:
            said = _read_act(speech, seat, names)
            check_beside(state, said)
    except IllegalActError as problem:
        return Problem(Cause.ILLEGAL, str(problem))
    return Chosen(act=acts[0], side_acts=tuple(acts[1:]), speech=said)


def _is_copied(tag: Tag) -> bool:
    """Whether the words of an act are those that the prompt shows in their place."""
    spec = ACTS[tag.name]
    # Small models repeat the name of what takes words in its place.
    return spec.takes_words and (tag.text.strip() in WORD_KEYS or is_placeholder(tag.text, (spec.help,)))


def _check_audience(speech: Tag, players: Names) -> None:
    """Raises IllegalActError for a speech that names the one player it is for: others would hear it too."""
    named = [speech.attributes[key] for key in _ADDRESSES if key in speech.attributes]
    if (to_one := next((name for name in named if name in players), None)) is not None:
        raise IllegalActError(
            f"<{SPEECH}> is not for {defuse(to_one)[:40]!r} alone; whisper to one player, or leave the name out"
        )


def _beside(main: list[Tag]) -> tuple[list[Tag], Tag | None]:
    """The acts without the words that are said together with the only other one; who speaks does not wait."""
    speeches = [tag for tag in main if tag.name == SPEECH]
    others = [tag for tag in main if tag.name != SPEECH]
    if len(speeches) != 1 or len(others) != 1:
        return main, None
    if others[0].name == "wait":
        return speeches, None
    return (others, speeches[0]) if ACTS[others[0].name].takes_speech else (main, None)


def _read_act(tag: Tag, seat: int, names: Names) -> Act:
    spec = ACTS[tag.name]
    targets: tuple[int, ...] = ()
    text = choice = ""
    for slot in spec.slots:
        is_beside = spec.takes_words and slot is not WORDS
        value = tag.attributes.get(slot.attribute, "") if is_beside else tag.text
        if slot in (TARGET, FIRST):
            targets = names.seats(value, spec, tag.attributes.get(REMARK, ""))
        elif slot is WORDS:
            text = _text(tag, spec.text_chars_max)
        elif slot is CHOICE:
            choice = names.choice(value, spec)
        elif slot is CHANNEL:
            choice = names.channel(value, spec)
    return Act(seat=seat, verb=spec.verb, targets=targets, text=text, choice=choice)


def _text(tag: Tag, chars_max: int) -> str:
    if not tag.text:
        raise IllegalActError(f"<{tag.name}> was empty")
    if holds_thought(tag.text):
        raise IllegalActError(f"there were thoughts inside <{tag.name}>; keep them out of it, before the act")
    if len(tag.text) > chars_max:
        raise IllegalActError(f"<{tag.name}> holds {len(tag.text)} characters; at most {chars_max} are allowed")
    return tag.text


def read_object(text: str) -> JsonObject | None:
    """The reply as a JSON object; None when it does not begin as one. Raises only MalformedError."""
    text = after_thoughts(text)
    for fence in _FENCES:
        text = text.removeprefix(fence).removesuffix(fence).strip()
    if not _BEGINNING.match(text):
        return None
    try:
        found = json.loads(text, object_pairs_hook=_without_twins)
    except RecursionError:
        raise MalformedError("the JSON object is nested too deep") from None
    except ValueError as error:
        raise MalformedError(f"the reply begins as a JSON object and is none: {error}") from None
    assert isinstance(found, dict)
    return found


def _without_twins(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands in it twice")
    return found


def tags_of(reply: JsonObject) -> tuple[Tag, ...]:
    """The tags that an object with an act means. Raises MalformedError where it says something else."""
    verb = str(reply.get("act") or "")
    spec = ACTS.get(verb)
    if spec is None or spec.is_side_act:
        raise MalformedError(f'"act" must name an act; found {defuse(verb)[:40]!r}')
    fields = {key: _field(key, value) for key, value in reply.items() if key not in ("act", "thinking")}
    beside = {key: fields.pop(key) for key in [*fields] if key in ACTS and ACTS[key].is_side_act}
    main = spec.tag({slot.key: fields.pop(slot.key, "") for slot in spec.slots})
    if verb != SPEECH:
        beside = {SPEECH: fields.pop(SPEECH, ""), **beside}
    # Some models fill in every key: an empty one says nothing.
    left = [key for key, value in fields.items() if value]
    if left:
        raise MalformedError(f"the act {verb} takes no {', '.join(defuse(key)[:40] for key in left)}")
    return (main, *(Tag(name=name, text=text) for name, text in beside.items() if text))


def _field(key: str, value: JsonValue) -> str:
    if value is None:
        return ""
    if isinstance(value, (dict, list)):
        raise MalformedError(f"{defuse(key)[:40]!r} must be a text")
    return str(value)


class Names:
    """Reads names as they are written; raises IllegalActError with the reason where there is no such player."""

    def __init__(self, state: GameState) -> None:
        self._state = state
        self._seats = {player.name.casefold(): player.seat for player in state.players}

    def __contains__(self, value: str) -> bool:
        return value.strip().casefold() in self._seats

    def seats(self, value: str, spec: ActSpec, remark: str = "") -> tuple[int, ...]:
        """The one or two players that an act names; a `remark` beside one may name no other."""
        if SECOND not in spec.slots:
            return (self._seat(value, spec, remark),)
        return tuple([self._seat(name, spec) for name in self._two(value, spec)])

    def choice(self, value: str, spec: ActSpec) -> str:
        """The choice that a value names; the value itself where it is none of them."""
        return value.casefold()

    def channel(self, value: str, spec: ActSpec) -> str:
        """The channel that a value names."""
        return value.strip().casefold()

    def _seat(self, value: str, spec: ActSpec, remark: str = "") -> int:
        seat = self._seats.get(value.strip().strip("\"'.").casefold())
        if seat is not None:
            return seat
        if not value.strip():
            raise IllegalActError(f"<{spec.verb}> names nobody{self._candidates(spec)}")
        shown = repr(defuse(value)[:40])
        raise IllegalActError(f"<{spec.verb}> names {shown}, who is not a player{self._candidates(spec)}")

    def _two(self, value: str, spec: ActSpec) -> Sequence[str]:
        return value.partition(",")[::2]

    def _candidates(self, spec: ActSpec) -> str:
        """Whom an act may name, for a correction."""
        return ""


class LooseNames(Names):
    """Reads names as players may have meant them; raises IllegalActError with the reason where that is unclear."""

    def __init__(self, state: GameState, seat: int) -> None:
        super().__init__(state)
        self._player = state.players[seat]
        self._mention = re.compile(r"(?<!\w)(?:" + "|".join(map(re.escape, self._seats)) + r")(?!\w)", re.IGNORECASE)

    def _mentioned(self, text: str) -> frozenset[int]:
        """The players that a text names in their right spelling."""
        # A letter may match another one without being it: to a pattern, `İ` is an `i`.
        found = (self._seats.get(name.casefold()) for name in self._mention.findall(text))
        return frozenset(seat for seat in found if seat is not None)

    def _seat(self, value: str, spec: ActSpec, remark: str = "") -> int:
        shown = repr(defuse(value)[:40])
        named = self._mentioned(value) | self._mentioned(remark)
        if len(named) > 1:
            names = " and ".join(self._state.players[seat].name for seat in sorted(named))
            raise IllegalActError(f"<{spec.verb}> names {names}; name one player in it, and nothing else")
        for text in _undecorated(value):
            if (seat := self._seats.get(text.casefold())) is not None:
                return seat
        word = bare(value)
        near = [] if named else near_to(word, tuple(self._seats), _reach, but=_OTHER_NAMES - self._seats.keys())
        if len(near) == 1:
            return self._seats[near[0]]
        if near:
            names = " or ".join(self._state.players[self._seats[name]].name for name in near)
            raise IllegalActError(f"<{spec.verb}> names {shown}, which may be {names}; write the name in full")
        if named:
            raise IllegalActError(f"<{spec.verb}> says {shown}; give the player's name and nothing else")
        return super()._seat(value, spec)

    def _two(self, value: str, spec: ActSpec) -> Sequence[str]:
        parts = [part for part in _BETWEEN.split(INNER_TAG.sub(" ", value).strip(AROUND)) if part.strip(AROUND)]
        if len(parts) != 2:
            raise IllegalActError(f"<{spec.verb}> must name two players")
        return parts

    def choice(self, value: str, spec: ActSpec) -> str:
        """The choice that a value names; the value itself where it is none of them."""
        offer = spec.offer(self._state, self._player)
        choices = () if offer is None else offer.choices
        named = {choice for choice in choices if re.search(rf"(?<!\w){re.escape(choice)}(?!\w)", value, re.IGNORECASE)}
        if len(named) > 1:
            raise IllegalActError(f"<{spec.verb}> names {' and '.join(sorted(named))}; name one")
        # A minus is not a mark around a number.
        for text in () if re.search(r"[-–−]\s*\d", value) else _undecorated(value):
            if text.casefold() in choices:
                return text.casefold()
        near = near_to(bare(value), choices, lambda choice: int(len(choice) >= _CHOICE_CHARS_MIN))
        return near[0] if len(near) == 1 else value.strip().casefold()

    def channel(self, value: str, spec: ActSpec) -> str:
        """The channel that a value names; by day `public` and its like say what is so without them."""
        offer = spec.offer(self._state, self._player)
        name = re.sub(r"[\s_-]*(?:chat|channel)$", "", value.strip(AROUND).casefold())
        return "" if name in EVERYBODY and (offer is None or not offer.choices) else name

    def _candidates(self, spec: ActSpec) -> str:
        offer = spec.offer(self._state, self._player)
        names = [] if offer is None else [self._state.players[seat].name for seat in offer.targets]
        return f"; name one of: {', '.join(names)}" if names else ""


def _reach(name: str) -> int:
    """How many letters away a misspelling of a name may be."""
    return 0 if len(name) < _NEAR_CHARS_MIN else 1 if len(name) < _FAR_CHARS_MIN else 2


def _undecorated(value: str) -> Iterable[str]:
    """The value, less and less of it, down to what may be a name or a choice."""
    if len(value) > VALUE_CHARS_MAX:
        return
    plain = bare(value)
    yield plain
    behind = _BEFORE.sub("", plain, count=1).strip(AROUND)
    yield behind
    yield bare(_REASON.sub("", behind))
