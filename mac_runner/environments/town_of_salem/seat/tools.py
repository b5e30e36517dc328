"""The tools a player may ask during a turn. Each answers from the asker's own view and nothing else.

An answer is one line of JSON. What players wrote is defused in it; names of players and roles come from our lists. Of
a day that holds more than `OBSERVATION_CHARS_MAX`, the first lines are left out whole and counted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from mac_runner.environments.markup import defuse
from mac_runner.environments.town_of_salem.claims import ClaimKind, extract
from mac_runner.environments.town_of_salem.model.events import Event, EventKind
from mac_runner.environments.town_of_salem.model.state import Phase
from mac_runner.environments.town_of_salem.roles import ROLES
from mac_runner.environments.town_of_salem.rules.lobbies import roles_in_play, slot_name
from mac_runner.environments.town_of_salem.seat.knowledge import SeatView
from mac_runner.environments.town_of_salem.seat.texts import ATTRIBUTES, PHASE_RULES
from mac_runner.types import JsonObject, JsonValue, ReplyForm

TOOL_CALLS_PER_TURN_MAX = 3
OBSERVATION_CHARS_MAX = 8_000
"""Of what a seat heard on a day, the newest so many characters."""


class ToolError(Exception):
    """A tool was asked for something it cannot answer; the text goes into the observation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """What a tool is asked about: its word in the reference, and what is allowed now."""

    word: str
    allowed: Callable[[SeatView], Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One tool: what it is asked about (None: nothing), and its answer to an allowed argument or ""."""

    name: str
    help: str
    answer: Callable[[SeatView, str], JsonObject]
    argument: Argument | None = None

    def example(self, form: ReplyForm = "markup") -> str:
        """The request as a player of this form writes it, with a placeholder for what it is about."""
        about = self.argument.word if self.argument else ""
        if form == "json":
            asked = {"tool": self.name, "argument": about} if self.argument else {"tool": self.name}
            return json.dumps(asked, ensure_ascii=False)
        return f'<tool_request name="{self.name}">{about}</tool_request>'

    def schema(self, view: SeatView) -> JsonObject | None:
        """The JSON schema of the argument at this moment; None for a tool that takes none."""
        return None if self.argument is None else {"type": "string", "enum": list(self.argument.allowed(view))}


_ROLE = Argument(word="ROLE", allowed=lambda view: [role.name for role in ROLES.values()])
_PLAYER = Argument(word="NAME", allowed=lambda view: view.players)
_DAY = Argument(word="DAY", allowed=lambda view: [str(day) for day in range(1, view.day + 1)])
_PHASE = Argument(word="PHASE", allowed=lambda view: tuple(phase.value for phase in PHASE_RULES))
_ATTRIBUTE = Argument(word="ATTRIBUTE", allowed=lambda view: tuple(ATTRIBUTES))


def _get_role(view: SeatView, argument: str) -> JsonObject:
    role = ROLES[argument.lower()]
    return {
        "role": role.name,
        "faction": role.faction.value,
        "alignment": role.alignment.value,
        "card": role.card_text(roles_in_play(view.lobby), view.options),
        "goal": role.goal,
        "attack": role.attack.name.lower(),
        "defence": role.defence.name.lower(),
        "can_be_blocked": not role.is_block_immune,
        "unique": role.is_unique,
    }


def _get_attribute(view: SeatView, argument: str) -> JsonObject:
    attribute = ATTRIBUTES[argument]
    return {
        "attribute": argument,
        "meaning": attribute.meaning,
        "roles": [role.name for role in ROLES.values() if attribute.holds(role)],
    }


def _get_graveyard(view: SeatView, argument: str) -> JsonObject:
    # A player who came back from the dead has no grave, one who died again has the last.
    last = {event.text("player"): event for event in view.public if event.kind is EventKind.DEATH}
    graves: list[JsonValue] = [
        {
            "player": name,
            "role": death.data["role"],
            "day": death.day,
            "causes": death.data["causes"],
            "will": defuse(death.text("will")),
            "notes_left": [defuse(note) for note in death.names("death_notes")],
        }
        for name, death in last.items()
        if name in view.graveyard
    ]
    return {"dead": graves, "living": list(view.living)}


def _get_player(view: SeatView, argument: str) -> JsonObject:
    conduct = conduct_of(view.public, view.players)[argument]
    state = f"dead, {view.graveyard[argument]}" if argument in view.graveyard else "alive"
    answer: JsonObject = {"player": argument, "state": state}
    for what, done in vars(conduct).items():
        answer[what] = [f"day {day}: {of}" for day, of in done]
    return answer


def _get_chat(view: SeatView, argument: str) -> JsonObject:
    day = int(argument)
    heard = _of_day(day, view.public, view.public_lines)
    own = _of_day(day, view.private, view.private_lines)
    kept_own, left = _newest(own, OBSERVATION_CHARS_MAX // 3)
    kept, more_left = _newest(heard, OBSERVATION_CHARS_MAX - sum(map(len, kept_own)))
    answer: JsonObject = {"day": day, "known_to_all": list[JsonValue](kept), "known_to_you": list[JsonValue](kept_own)}
    if left + more_left:
        answer["earlier_lines_left_out"] = left + more_left
    return answer


def _of_day(day: int, events: Sequence[Event], lines: Sequence[str]) -> list[str]:
    """What was heard on a day, headings apart."""
    heard = (line for event, line in zip(events, lines, strict=True) if event.day == day)
    return [part for line in heard for part in line.split("\n")]


def _newest(lines: Sequence[str], chars_max: int) -> tuple[list[str], int]:
    """The last lines that fit together, whole, and how many before them do not."""
    kept, chars = 0, 0
    for line in reversed(lines):
        chars += len(line)
        if chars > chars_max:
            break
        kept += 1
    return list(lines[len(lines) - kept :]), len(lines) - kept


_TOOLS = (
    Tool(name="get_role", argument=_ROLE, help="what a role can do, its goal and its attributes", answer=_get_role),
    Tool(
        name="get_attribute",
        argument=_ATTRIBUTE,
        help=f"what an attribute means and which roles have it, one of: {', '.join(ATTRIBUTES)}",
        answer=_get_attribute,
    ),
    Tool(
        name="get_lobby",
        help="the roles in this game and the players",
        answer=lambda view, _: {"roles": [slot_name(slot) for slot in view.lobby], "seats": list(view.players)},
    ),
    Tool(
        name="get_graveyard", help="who is dead, their roles, and the wills and notes they left", answer=_get_graveyard
    ),
    Tool(
        name="get_player",
        argument=_PLAYER,
        help="a player's public role claims, accusations, votes, ballots, whispers and trials",
        answer=_get_player,
    ),
    Tool(name="get_chat", argument=_DAY, help="all you heard on that day and in its night", answer=_get_chat),
    Tool(
        name="get_rules",
        argument=_PHASE,
        help=f"the rules of a phase, one of: {', '.join(PHASE_RULES)}",
        answer=lambda view, phase: {"phase": phase, "rules": PHASE_RULES[Phase(phase)]},
    ),
    Tool(
        name="get_notes",
        help="your own notes and your will",
        answer=lambda view, _: {"notes": defuse(view.notes), "will": defuse(view.will)},
    ),
)

TOOLS: Mapping[str, Tool] = MappingProxyType({tool.name: tool for tool in _TOOLS})


def observe(view: SeatView, name: str, argument: str) -> str:
    """The observation a request is answered with: one line of JSON, of the answer or of the error."""
    answer: JsonObject
    try:
        asked = name.strip().lower()
        if asked not in view.options.tools:
            known = f"the tools are: {', '.join(view.options.tools)}" if view.options.tools else "this game has none"
            raise ToolError(f"there is no tool {_shown(name)}; {known}")
        answer = TOOLS[asked].answer(view, _argument(TOOLS[asked], view, argument))
    except ToolError as error:
        answer = {"error": str(error)}
    return json.dumps(answer, ensure_ascii=False)


def _argument(tool: Tool, view: SeatView, given: str) -> str:
    """The allowed argument that was meant. Raises ToolError, saying what is allowed."""
    asked = given.strip().strip("\"'.").casefold()
    if tool.argument is None:
        if asked:
            raise ToolError(f"{tool.name} takes no argument; write {tool.example()}")
        return ""
    allowed = {value.casefold(): value for value in tool.argument.allowed(view)}
    if asked not in allowed:
        what = tool.argument.word.lower()
        raise ToolError(f"there is no {what} {_shown(given)}; {tool.name} takes one of: {', '.join(allowed.values())}")
    return allowed[asked]


def _shown(asked: str) -> str:
    return repr(defuse(asked)[:60])


@dataclass
class Conduct:
    """What one player did in public, in order, each with its day: `(2, "Elias")`.

    Only names and words of ours: no words of a player pass through, and nothing says whether a claim is true.
    """

    claims: list[tuple[int, str]] = field(default_factory=list)
    accuses: list[tuple[int, str]] = field(default_factory=list)
    votes: list[tuple[int, str]] = field(default_factory=list)
    ballots: list[tuple[int, str]] = field(default_factory=list)
    whispers: list[tuple[int, str]] = field(default_factory=list)
    trials: list[tuple[int, str]] = field(default_factory=list)


def conduct_of(events: Iterable[Event], players: tuple[str, ...]) -> dict[str, Conduct]:
    """The conduct of every player in these public events, in seat order; speech is understood as in `claims`."""
    found = {player: Conduct() for player in players}
    accused = ""
    for event in events:
        day = event.day
        match event.kind:
            case EventKind.SPEECH:
                speaker = event.text("player")
                _add_speech(found[speaker], day, speaker, event.text("text"), players)
            case EventKind.VOTE:
                found[event.text("player")].votes.append((day, event.text("target")))
            case EventKind.UNVOTE:
                found[event.text("player")].votes.append((day, f"{event.text('target')}, taken back"))
            case EventKind.WHISPER_SEEN:
                found[event.text("player")].whispers.append((day, f"to {event.text('to')}"))
                found[event.text("to")].whispers.append((day, f"from {event.text('player')}"))
            case EventKind.TRIAL:
                accused = event.text("accused")
            case EventKind.BALLOTS:
                for ballot in event.data:
                    for judge in event.names(ballot):
                        found[judge].ballots.append((day, f"{accused} {ballot}"))
            case EventKind.VERDICT:
                outcome = "lynched" if event.data["is_guilty"] else "acquitted"
                found[event.text("accused")].trials.append((day, outcome))
            case _:
                pass
    return found


def _add_speech(conduct: Conduct, day: int, speaker: str, text: str, players: tuple[str, ...]) -> None:
    for claim in extract(text, players):
        if claim.kind is ClaimKind.ROLE:
            found, said = conduct.claims, claim.roles
        elif claim.is_against and claim.about not in ("", speaker):
            found, said = conduct.accuses, (claim.about,)
        else:
            continue
        found.extend((day, name) for name in dict.fromkeys(said) if (day, name) not in found)
