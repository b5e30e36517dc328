"""A seat's view in words, laid out for the prefix cache.

First comes what all seats that are asked alike share (the system message). Then the public record, which only grows
and is the same for all seats of a game. Then what follows from the record alone (the living, the current votes). Then
what is private to the seat, which grows too while the record rests at night. Last comes who the seat is and what it is
asked. Nothing that changes comes before something that does not.

The words are in `prompt.jinja`. Those of its fields that all games alike share are in `parts.jinja`; those that change
from turn to turn are here, since a template takes several times as long. A user's template replaces blocks of
`prompt.jinja`, but not the game: one that leaves out how to answer, what is asked or what may be chosen is refused.
Only a `system` block without any words is accepted: it is for models that were trained on the game, and no system
message is sent.

Where a prompt would not fit into the model's window, the oldest days of a long game are shortened. Whole days are, from
the first on, never the one under way; what is kept of a message is kept whole. Which days of the public record are
short follows from that record alone, and their number never goes down, so all seats of a game share it as a prefix. How
many of a seat's own days are short depends on the room left. A shortened day keeps the facts and loses the talk. Of the
public record it keeps word for word deaths, trials, ballots, verdicts and all else that happened; of the talk, who
claimed which role, who accused, voted for and whispered to which player. Of a seat's own record it keeps results and
other notices, and counts chats and whispers.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import dropwhile
from typing import Final, NamedTuple, TypeAlias

from mac_runner.environments.markup import OBSERVATION_TAG, defuse
from mac_runner.environments.reading import BLANK
from mac_runner.environments.templates import Kind, PromptTemplate, built_in, parts_of, shipped
from mac_runner.environments.town_of_salem.model.events import Event, EventKind
from mac_runner.environments.town_of_salem.model.state import Options, Phase
from mac_runner.environments.town_of_salem.roles import ROLES
from mac_runner.environments.town_of_salem.roles.catalogue import follows_roles
from mac_runner.environments.town_of_salem.rules.acts import ACTS
from mac_runner.environments.town_of_salem.rules.calendar import QUIET_FROM_DAY, turn_taking_rule
from mac_runner.environments.town_of_salem.rules.lobbies import roles_in_play, slot_name
from mac_runner.environments.town_of_salem.seat.asking import Asking, ReplySchema, enumerated, menu
from mac_runner.environments.town_of_salem.seat.knowledge import SeatView, without_heading
from mac_runner.environments.town_of_salem.seat.tools import TOOL_CALLS_PER_TURN_MAX, TOOLS, conduct_of
from mac_runner.errors import ConversationError
from mac_runner.types import Message, Prompt

PLAIN = Asking()

KIND: Final = Kind(
    blocks=("system", "turn"),
    fields=(
        *("rules", "slots", "roles", "role_cards", "how_to_answer", "warning", "instructions"),
        *("record", "town", "known", "when", "name", "role", "is_alive", "can_do", "goal", "team", "target"),
        *("persona", "identity", "question", "options", "reminder"),
    ),
    default=shipped(__name__, "prompt.jinja"),
)
_STATIC: Final = ("rules", "roles", "how_to_answer", "warning")
_PARTS: Final = built_in(shipped(__name__, "parts.jinja"))
_NEEDED: Final = {
    "system": ("how_to_answer", "warning"),
    "turn": ("record", "known", "question", "options"),
}
"""What a user's block has to say, word for word."""
_QUESTIONS: Final = {
    Phase.GREETING: "It is the first day: greet the others. There is no trial today.",
    Phase.BIDDING: "Bid for the floor. The highest bidder speaks next.",
    Phase.DISCUSSION: "Discuss. Everyone hears what you say.",
    Phase.VOTING: "Vote to put someone on trial, or talk.",
    Phase.DEFENCE: "You are on trial. Defend yourself.",
    Phase.JUDGEMENT: "{accused} has spoken in defence. Judge {accused}.",
    Phase.LAST_WORDS: "You are about to be lynched. Say your last words.",
    Phase.NIGHT_CHAT: "It is night. Talk in private now; night actions are chosen afterwards.",
    Phase.NIGHT: "It is night. Choose what you do.",
    Phase.OVER: "The game is over.",
}
_QUESTION_TO_THE_DEAD: Final = "You are dead. You can still do what is listed here."


class Prompts:
    """The two messages of a prompt, in our words or in those of a user's template."""

    def __init__(self, own: str | None = None, source: str = "template") -> None:
        """Raises ConfigError naming `source` and the line where `own` cannot be used."""
        self._template = PromptTemplate(KIND, own, source=source)
        self._source = source
        self._is_checked = own is not None

    def system(self, lobby: tuple[str, ...], options: Options, asking: Asking = PLAIN) -> str:
        """The rules, the roles of this lobby and the way to answer."""
        return self._rendered("system", system_parts(lobby, options, asking))

    def turn(
        self,
        view: SeatView,
        asking: Asking = PLAIN,
        public: Sequence[str] | None = None,
        private: Sequence[str] | None = None,
    ) -> str:
        """The record, what is private to the seat, who it is, and what is asked of it now.

        `public` and `private` replace the lines of the view when some of them are shortened.
        """
        return self._rendered("turn", turn_parts(view, asking, public, private)).rstrip()

    def _rendered(self, block: str, parts: dict[str, object]) -> str:
        text = self._template.render(block, parts)
        if self._is_checked and (text or block != "system"):
            for name in _NEEDED[block]:
                if str(parts[name]) not in text:
                    raise ConversationError(
                        f"{self._source}:1: block {block}: it leaves out {{{{ {name} }}}} or changes its words; "
                        "players could not play by it; put it in as it is"
                    )
        return text


@follows_roles
@lru_cache(maxsize=256)
def system_parts(lobby: tuple[str, ...], options: Options, asking: Asking = PLAIN) -> dict[str, object]:
    """The parts of the system message, by name: the same for every seat of every game that is asked alike."""
    roles = roles_in_play(lobby)
    is_json = asking.form == "json"
    played = [spec for spec in ACTS.values() if spec.is_played(options) and not spec.is_ability]
    values: dict[str, object] = {
        "slots": [slot_name(slot) for slot in lobby],
        "role_cards": [
            {
                "name": role.name,
                "faction": role.faction.value,
                "alignment": role.alignment.value,
                "card": role.card_text(roles, options),
                "goal": role.goal,
                "in_common": role.in_common,
            }
            for role in roles
        ],
        "instructions": asking.system,
    }
    said = {
        "options": options,
        "turn_taking": turn_taking_rule(options),
        "quiet_from_day": QUIET_FROM_DAY,
        "is_json": is_json,
        "blank": BLANK,
        "reasoning_rule": asking.reasoning_rule(),
        "acts": [{"example": spec.example(asking.form), "help": spec.help} for spec in played if not spec.is_side_act],
        "side_acts": [
            {"example": json.dumps(spec.verb) if is_json else spec.example(), "help": spec.help}
            for spec in played
            if spec.is_side_act and (spec.verb != "death_note" or any(role.leaves_notes for role in roles))
        ],
        "tools": [{"example": TOOLS[name].example(asking.form), "help": TOOLS[name].help} for name in options.tools],
        "tool_calls_max": TOOL_CALLS_PER_TURN_MAX,
        "observation_tag": OBSERVATION_TAG,
    }
    return values | parts_of(_PARTS, _STATIC, values | said)


def turn_parts(
    view: SeatView, asking: Asking, public: Sequence[str] | None, private: Sequence[str] | None
) -> dict[str, object]:
    """The parts of the user message, by name."""
    can_do = _can_do(view.role.id, view.lobby, view.options)
    mates = {name: role for name, role in view.team.items() if name != view.name}
    is_dead_by_day = not view.is_alive and view.phase is not Phase.NIGHT_CHAT
    return {
        "record": "\n".join(view.public_lines if public is None else public),
        "town": _town(view),
        "known": "\n".join((*(view.private_lines if private is None else private), *_belongings(view))),
        "when": f"{'Night' if view.phase.is_night else 'Day'} {view.day}, {view.phase}, round {view.round_in_phase}",
        "name": view.name,
        "role": view.role.name,
        "is_alive": view.is_alive,
        "can_do": can_do,
        "goal": view.role.goal,
        "team": list(mates),
        "target": view.quarry or "",
        "persona": asking.persona,
        "identity": _identity(view, asking, mates, can_do),
        "question": _QUESTION_TO_THE_DEAD if is_dead_by_day else _QUESTIONS[view.phase].format(accused=view.accused),
        "options": menu(view, asking.form),
        "reminder": asking.reminder(),
    }


def _town(view: SeatView) -> str:
    """What follows from the record alone, so that it changes only with it."""
    lines = [f"Living: {', '.join(view.living)}."]
    if view.graveyard:
        lines.append(f"Dead: {_pairs(view.graveyard)}.")
    if view.votes:
        votes = ", ".join(f"{voter} for {target}" for voter, target in sorted(view.votes.items()))
        lines.append(f"Votes now, {view.votes_needed} needed for a trial: {votes}.")
    return "\n".join(lines)


def _belongings(view: SeatView) -> list[str]:
    owned = {"will": view.will, "death note": view.death_note, "notes": view.notes}
    return [f"Your {what}: “{defuse(text)}”" for what, text in owned.items() if text]


def _identity(view: SeatView, asking: Asking, mates: Mapping[str, str], can_do: str) -> str:
    """No line has both a role and the name of a player unless the seat knows what that player is."""
    lines = [f"You are {view.name}, the {view.role.name}{'' if view.is_alive else ', and you are dead'}."]
    if asking.persona:
        lines.append(f"Your character: {asking.persona}")
    if mates:
        lines.append(f"Your living teammates: {_pairs(mates)}.")
    if view.quarry:
        lines.append(f"Your target is {view.quarry}.")
    uses = ", ".join(f"{verb} {left}" for verb, left in view.uses.items())
    does = f"{can_do} " if view.is_alive else ""
    lines.append(f"{does}{view.role.goal}" + (f" Uses left: {uses}." if uses else ""))
    return "\n".join(lines)


def _pairs(roles: Mapping[str, str]) -> str:
    return ", ".join(f"{name} ({role})" for name, role in roles.items())


@follows_roles
@lru_cache(maxsize=4096)
def _can_do(role_id: str, lobby: tuple[str, ...], options: Options) -> str:
    """The first sentence of a role's card."""
    roles = roles_in_play(lobby)
    role = next((role for role in roles if role.id == role_id), None) or ROLES[role_id]
    first, end, _ = role.card_text(roles, options).partition(". ")
    return f"{first}." if end else first


BYTES_PER_TOKEN = 3
"""In every language's usual text a token holds more bytes: the engine's tokenizer is unknown here."""
PUBLIC_SHARE_MAX = 0.6
"""The part of a prompt that the public record may take before its oldest days are shortened."""
SHRINK = 0.9
"""What is kept of a prompt that an engine found too long."""

Lines: TypeAlias = "Sequence[tuple[Event, str]]"
"""Events, each with its line of the record."""
Digest: TypeAlias = "Callable[[Lines, SeatView], list[str]]"
"""Shortens a finished day and its night; of the view it takes what is the same for all seats and never changes."""

_TALK = frozenset(
    {
        EventKind.SPEECH,
        EventKind.WHISPER_SEEN,
        EventKind.VOTE,
        EventKind.UNVOTE,
        EventKind.VOTING_START,
        EventKind.DAY_START,
        EventKind.NIGHT_START,
    }
)
_CHATS = frozenset({EventKind.CHAT, EventKind.WHISPER})


def _public_digest(lines: Lines, view: SeatView) -> list[str]:
    players = view.players
    kept = [without_heading(line) for event, line in lines if event.kind not in _TALK]
    conduct = conduct_of((event for event, _ in lines), players)
    talk = {
        "Claims": [f"{name} to be the {role}" for name in players for _, role in conduct[name].claims],
        "Accusations": [f"{name} of {other}" for name in players for _, other in conduct[name].accuses],
        "Votes": [f"{name} for {target}" for name in players for _, target in conduct[name].votes],
        "Whispers": [f"{name} {to}" for name in players for _, to in conduct[name].whispers if to.startswith("to ")],
    }
    facts = (f"{what}: {_counted(items)}." for what, items in talk.items() if items)
    return [f"What was said is left out here{_shown_by(view)}.", *facts, *kept]


def _private_digest(lines: Lines, view: SeatView) -> list[str]:
    kept = [without_heading(line) for event, line in lines if event.kind not in _CHATS]
    chats = [
        f"{event.data['channel']} chat" if event.kind is EventKind.CHAT else "whispers"
        for event, _ in lines
        if event.kind in _CHATS
    ]
    return [*kept, f"Left out here: {_counted(chats)}{_shown_by(view)}."] if chats else kept


def _shown_by(view: SeatView) -> str:
    """How a player reads what is left out, where it can."""
    return "; get_chat shows it" if "get_chat" in view.options.tools else ""


def _counted(items: Sequence[str]) -> str:
    """The different items in order, with how often where it was more than once."""
    return "; ".join(item if times == 1 else f"{item} ({times} times)" for item, times in Counter(items).items())


def tokens_of(text: str) -> int:
    """An estimate from above of the tokens of `text`."""
    return -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)


class _Version(NamedTuple):
    """A day or a record, as it is or in short, and what it costs."""

    days: tuple[list[str], ...]
    tokens: int

    @property
    def lines(self) -> list[str]:
        """Put together for the one version that is shown: a long game has many."""
        return [line for day in self.days for line in day]


def _version(lines: list[str]) -> _Version:
    return _Version((lines,), sum(tokens_of(f"{line}\n") for line in lines))


class Context:
    """Renders the prompts of one game within `tokens_max` tokens, reply not counted; None: without a limit."""

    def __init__(self, prompts: Prompts, tokens_max: int | None = None) -> None:
        self._tokens_max = tokens_max
        self._prompts = prompts
        self._systems: dict[Asking, Message] = {}
        # A finished day never changes, so it is shortened once per record.
        self._shortened: dict[tuple[str, int], _Version] = {}

    def prompt(
        self,
        view: SeatView,
        thread: Sequence[Message],
        *,
        asking: Asking,
        may_ask: bool,
        tokens_max: int | None = None,
    ) -> Prompt:
        """The prompt of this view and this turn so far. Raises ConversationError when it cannot be made to fit.

        `tokens_max` is the limit of this seat, where its engine takes less than the experiment says.
        """
        limit = self._tokens_max if tokens_max is None else tokens_max
        refused = None if tokens_max is None else tokens_max / SHRINK
        text = (
            self._prompts.turn(view, asking) if limit is None else self._fitting(view, asking, thread, limit, refused)
        )
        # Nothing holds an engine to markup.
        is_json = asking.form == "json"
        system = self._system(view, asking)
        return Prompt(
            messages=(*([system] if system.content else []), Message(role="user", content=text), *thread),
            view=view,
            choices=enumerated(view, asking) if is_json else None,
            schema=ReplySchema(view, asking, may_ask=may_ask) if is_json else None,
        )

    def _system(self, view: SeatView, asking: Asking) -> Message:
        if asking not in self._systems:
            text = self._prompts.system(view.lobby, view.options, asking)
            self._systems[asking] = Message(role="system", content=text)
        return self._systems[asking]

    def _fitting(
        self, view: SeatView, asking: Asking, thread: Sequence[Message], tokens_max: int, refused: float | None
    ) -> str:
        """What fits; else the shortest there is, if it is shorter than what the engine refused."""
        public = self._versions("", view.public, view.public_lines, view, _public_digest)
        private = self._versions(view.name, view.private, view.private_lines, view, _private_digest)
        system = tokens_of(self._system(view, asking).content)
        asked = tokens_of(self._prompts.turn(view, asking, (), ()))
        around = system + sum(tokens_of(message.content) for message in thread) + asked
        share = int((tokens_max - system) * PUBLIC_SHARE_MAX)
        for shared in [*dropwhile(lambda record: record.tokens > share, public)] or public[-1:]:
            room = tokens_max - around - shared.tokens
            if own := next((record for record in private if record.tokens <= room), None):
                return self._prompts.turn(view, asking, shared.lines, own.lines)
        least = around + public[-1].tokens + private[-1].tokens
        if refused is not None and least < refused:
            return self._prompts.turn(view, asking, public[-1].lines, private[-1].lines)
        raise ConversationError(
            f"the prompt of {view.name} on day {view.day} needs about {least} tokens even with all past days in short, "
            f"and the limit is {tokens_max} (game.context_tokens_max, or what the engine takes); raise it, or play "
            "shorter games"
        )

    def _versions(
        self, whose: str, events: Sequence[Event], lines: Sequence[str], view: SeatView, digest: Digest
    ) -> list[_Version]:
        """A record as it is, with its first day in short, and so on to all of its finished days."""
        days: list[list[tuple[Event, str]]] = [[] for _ in range(view.day)]
        for event, line in zip(events, lines, strict=True):
            days[event.day - 1].append((event, line))
        whole = [_version([line for _, line in day]) for day in days]
        for number, day in enumerate(days[:-1], start=1):
            if (whose, number) not in self._shortened:
                lines = [f"[Day {number}, in short]", *digest(day, view)] if day else []
                self._shortened[whose, number] = _version(lines)
        short = [self._shortened[whose, number] for number in range(1, view.day)]
        versions: list[_Version] = []
        for days_in_short in range(view.day):
            record = (*short[:days_in_short], *whole[days_in_short:])
            lines_of = tuple([lines for day in record for lines in day.days])
            versions.append(_Version(lines_of, sum([day.tokens for day in record])))
        return versions


def shorter_than(prompt: Prompt) -> int:
    """The limit, in estimated tokens, for a seat whose engine found `prompt` too long."""
    return int(SHRINK * sum(tokens_of(message.content) for message in prompt.messages))
