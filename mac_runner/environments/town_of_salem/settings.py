"""`game`: what a game of Town of Salem needs to know. Whether the lobby exists is for the environment to say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias, get_args

from pydantic import Field, model_validator

from mac_runner.latency import LATENCY_MS_MAX, CalibrationChoice, generation_ms_of
from mac_runner.section import IDENTITY, RECORDED, RUNTIME, TEMPLATE_CHARS_MAX, Listed, Name, Section, Text
from mac_runner.types import JsonValue, Reply

ToolName: TypeAlias = Literal[
    "get_role",
    "get_attribute",
    "get_lobby",
    "get_graveyard",
    "get_player",
    "get_chat",
    "get_rules",
    "get_notes",
]
TOOLS_DEFAULT: tuple[ToolName, ...] = ()
"""None: what the tools answer is in the prompt, until its first days are shortened."""


class GameLatency(Section):
    """How long a turn takes on the clock of a discussion held under information lag."""

    prefill_ms: Annotated[int, IDENTITY, Field(ge=0, le=LATENCY_MS_MAX)] = 200
    """For reading a prompt, once for each request of the turn."""
    kernel_ms: Annotated[int, IDENTITY, Field(ge=0, le=LATENCY_MS_MAX)] = 400
    """For each quantum of tokens, the last one whole."""
    quantum: Annotated[int, IDENTITY, Field(ge=1, le=100_000)] = 16
    """How many tokens are decoded at a stretch."""
    tool_ms: Annotated[int, IDENTITY, Field(ge=0, le=LATENCY_MS_MAX)] = 100
    """For each tool request of the turn."""
    calibration: CalibrationChoice | None = None
    """A measured engine, which sets `prefill_ms` and `kernel_ms` in place of the file; null: the file sets them."""

    def generation_ms(self, reply: Reply) -> int:
        """How long the engine takes for `reply`; tools come on top."""
        return generation_ms_of(reply, self.prefill_ms, self.kernel_ms, self.quantum)


class GameFlags(Section):
    """Rules on which sources or tastes differ."""

    sheriff: Annotated[Literal["binary", "typed"], IDENTITY] = "binary"
    """What the sheriff learns: suspicious or not, or of which kind."""
    haunt_pool: Annotated[Literal["guilty_or_abstain", "guilty"], IDENTITY] = "guilty_or_abstain"
    """Whom a lynched jester may haunt: who voted guilty or abstained, or only who voted guilty."""
    mafia_parity: Annotated[bool, IDENTITY] = False
    """Whether the mafia wins as soon as it is half of the living."""
    sk_blocked: Annotated[Literal["both", "blocker"], IDENTITY] = "both"
    """What a blocked serial killer does: kill the blocker and the chosen target, or stay home and kill the blocker."""
    spy: Annotated[Literal["bug", "ears"], IDENTITY] = "bug"
    """What a spy has: a bug on one player a night, or the mafia's chat and all whispers."""
    retri: Annotated[Literal["raise", "revive"], IDENTITY] = "raise"
    """What a retributionist does: have each of the dead act once more, or bring one back for good."""
    mafioso_control: Annotated[Literal["order", "control"], IDENTITY] = "order"
    """What a controlled mafioso follows: the godfather's order, or the witch."""
    amnesiac: Annotated[Literal["any_free", "no_unique_town"], IDENTITY] = "any_free"
    """What an amnesiac may remember: any role that is not unique and held, or no unique role of the town either."""
    janitor_uses: Annotated[int, IDENTITY, Field(ge=0, le=20)] = 3
    """How many bodies a janitor can clean."""
    forger_uses: Annotated[int, IDENTITY, Field(ge=0, le=20)] = 3
    """How many wills a forger can forge."""


DiscussionMode: TypeAlias = Literal["random", "seat_order", "simultaneous", "bidding", "information_lag"]


class GameCalendar(Section):
    """How many rounds each phase lasts, and how players take turns."""

    greeting_rounds: Annotated[int, IDENTITY, Field(ge=0, le=20)] = 1
    """Rounds of talk on the first day, which has no trial."""
    discussion_rounds: Annotated[int, IDENTITY, Field(ge=0, le=20)] = 2
    """Rounds of talk at the start of each later day."""
    vote_rounds: Annotated[int, IDENTITY, Field(ge=1, le=20)] = 3
    """Rounds in which the living may nominate."""
    night_chat_rounds: Annotated[int, IDENTITY, Field(ge=0, le=20)] = 2
    """Rounds of talk among those who know each other, each night."""
    trials_per_day: Annotated[int, IDENTITY, Field(ge=1, le=20)] = 3
    """The most trials of one day."""
    max_days: Annotated[int, IDENTITY, Field(ge=1, le=100)] = 15
    """The day after which the game ends whatever its state."""
    completion_tokens_max: Annotated[int | None, IDENTITY, Field(ge=1)] = None
    """The game ends with the round in which its replies have cost more tokens than this; null: no such end."""
    discussion_mode: Annotated[DiscussionMode, IDENTITY] = "random"
    """How the players of a discussion take turns."""
    discussion_floors: Annotated[int, IDENTITY, Field(ge=1, le=200)] = 10
    """With `bidding`: how often a day the floor is given at most, in place of rounds."""
    speaking_slots: Annotated[int, IDENTITY, Field(ge=1, le=100)] = 2
    """With `information_lag`: how many players prepare their words at the same time."""


Cast: TypeAlias = Name | Annotated[Listed[Name], Field(min_length=1)]
"""Who plays the seats of a key: one agent definition, or several in turn."""


class VersusBaseline(Section):
    """Each of some agent definitions against the same one, on both sides."""

    baseline: Annotated[Name, IDENTITY]
    """The agent definition that all others meet."""
    against: Annotated[Listed[Name], Field(min_length=1), IDENTITY]
    """The agent definitions that meet it."""


class GamePairings(Section):
    """A tournament: which agent definitions meet. Each meeting is played on both sides, over the same deals."""

    round_robin: Annotated[Literal["all"] | Listed[Name] | None, IDENTITY] = None
    """The agent definitions that all meet each other; `all`: every one of the file."""
    versus_baseline: VersusBaseline | None = None
    """One agent definition that meets each of some others; in place of `round_robin`."""
    neutral: Annotated[Name, IDENTITY] = "town"
    """Who plays the neutral roles: the definition that plays the `town` or the `mafia`, or always the one named."""


DISCUSSIONS: Mapping[str, Mapping[str, JsonValue]] = {
    "thorough": {"discussion_mode": "random", "discussion_rounds": 3, "vote_rounds": 3, "night_chat_rounds": 2},
    "standard": {"discussion_mode": "random", "discussion_rounds": 2, "vote_rounds": 3, "night_chat_rounds": 2},
    "quick": {"discussion_mode": "random", "discussion_rounds": 1, "vote_rounds": 2, "night_chat_rounds": 1},
    "bidding": {"discussion_mode": "bidding", "discussion_floors": 10, "vote_rounds": 3, "night_chat_rounds": 2},
    "simultaneous": {
        "discussion_mode": "simultaneous",
        "discussion_rounds": 2,
        "vote_rounds": 3,
        "night_chat_rounds": 2,
    },
    "brief": {"discussion_mode": "simultaneous", "discussion_rounds": 1, "vote_rounds": 1, "night_chat_rounds": 1},
}
"""The keys of the calendar that each preset of `game.discussion` sets."""


class GameConfig(Section):
    """A game of Town of Salem."""

    lobby: Annotated[Text | Annotated[Listed[Text], Field(min_length=1, max_length=100)], IDENTITY] = "classic-10"
    """The role list: the name of a known one, or a list of roles, one for each player."""
    seats: Annotated[Mapping[Name, Annotated[int, Field(ge=0, le=100)]] | None, IDENTITY] = None
    """How many of the seats each agent definition fills; null shares them out evenly."""
    casting: Annotated[Annotated[Mapping[Text, Cast], Field(min_length=1)] | None, IDENTITY] = None
    """Who plays what: agent definitions by role, slot, alignment, faction or `*`; a list takes turns by game."""
    pairings: GamePairings | None = None
    """A tournament, as a grid of castings."""
    roles: Annotated[Annotated[Listed[Text], Field(min_length=1)] | None, RECORDED] = None
    """The ids of all roles there are; filled in. A run that goes on keeps those it began with."""
    flags: GameFlags = GameFlags()
    """Rules on which sources or tastes differ."""
    calendar: GameCalendar = GameCalendar()
    """How many rounds each phase lasts, and how players take turns."""
    discussion: Annotated[
        Literal["thorough", "standard", "quick", "bidding", "simultaneous", "brief"] | None, IDENTITY
    ] = None
    """How much is said, and whether one player speaks after another: sets keys of the calendar; null sets none."""
    latency: GameLatency = GameLatency()
    """With `information_lag`: how long a turn takes."""
    edition: Annotated[Literal[3], IDENTITY] = 3
    """What players read, and how their answers are taken; a run of another edition is read by another version."""
    notes: Annotated[bool, IDENTITY] = True
    """Whether players may keep a private notebook."""
    tools: Annotated[Listed[ToolName], IDENTITY, Field(max_length=len(get_args(ToolName)))] = TOOLS_DEFAULT
    """The tools that players may ask in a turn; they repeat or sum up what the prompt says, or once said."""
    shuffle_options: Annotated[bool, IDENTITY] = False
    """Whether the options of each turn are listed in an order drawn for it; the record has the place of the choice."""
    template_file: Annotated[Text | None, RUNTIME] = None
    """A Jinja template of yours for the prompts, relative to the experiment file; null: the built-in prompts."""
    template: Annotated[str | None, IDENTITY, Field(min_length=1, max_length=TEMPLATE_CHARS_MAX)] = None
    """The text of that template; filled in from `template_file`."""
    context_tokens_max: Annotated[int | None, IDENTITY, Field(ge=1_000, le=10_000_000)] = None
    """The most tokens of a prompt, by a cautious estimate; what no longer fits of past days is shown in short."""

    @model_validator(mode="before")
    @classmethod
    def _fill_in_calendar(cls, data: object) -> object:
        """Write what the preset sets into the calendar, so that the record of a run has it; given keys stay."""
        if not isinstance(data, dict) or not isinstance(data.get("discussion"), str):
            return data
        given = data.get("calendar") or {}
        preset = DISCUSSIONS.get(data["discussion"], {})
        return {**data, "calendar": {**preset, **given}} if isinstance(given, dict) else data
