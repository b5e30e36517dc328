"""The one table of what a player can do, and the acts as pure functions: `apply(state, act) -> (state, events)`.

Each entry says how an act is written, when it may be chosen and what it does. The prompt's reference, the list of what
is legal now, the parser, the JSON schema and the rules all read this table. The abilities of the roles come from the
catalogue, each verb once. Nothing in the rules reads a clock, a file or a generator of its own: chance is derived from
the game's seed and the purpose of the draw.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from mac_runner.environments.base import SPEECH_CHARS_MAX
from mac_runner.environments.reading import BLANK, Tag
from mac_runner.environments.town_of_salem.model.events import EventKind, private, public
from mac_runner.environments.town_of_salem.model.role import Ability, Changed, others
from mac_runner.environments.town_of_salem.model.state import (
    Ballot,
    GameState,
    NightAction,
    Options,
    Phase,
    Player,
)
from mac_runner.environments.town_of_salem.roles import ROLES, DayAbility
from mac_runner.environments.town_of_salem.roles.catalogue import RoleTable, follows_roles
from mac_runner.environments.town_of_salem.rules.calendar import BID_MAX, channels_of, named_in, open_trial
from mac_runner.types import ReplyForm

SPEECH = "speak"
"""The act of speaking, and the field of a JSON reply that holds words said together with another act."""
WILL_CHARS_MAX = 600
"""Also of a death note."""
NOTES_CHARS_MAX = 1_500


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One of the things that an act takes."""

    key: str
    """Its name: as a key of a JSON reply, and wherever values are given by name."""
    aliases: tuple[str, ...]
    """What models call it besides."""
    shown: str
    """What stands for it in a form."""
    attribute: str = ""
    """Its place in the tag of an act that takes words, which are inside the tag."""
    offered: str = ""
    """The list of an offer that has what may stand in it; none has words."""
    is_optional: bool = False


TARGET = Slot(
    key="target",
    aliases=("player", "to", "who", "whom", "recipient", "victim", "first", "target_player", "targets"),
    shown="NAME",
    attribute="to",
    offered="targets",
)
FIRST = replace(TARGET, shown="FIRST")
SECOND = Slot(key="second", aliases=("second_target", "target2", "second_player"), shown="SECOND", offered="seconds")
CHOICE = Slot(
    key="choice",
    aliases=("value", "decision", "verdict", "vote", "ballot", "bid", "amount"),
    shown="CHOICE",
    offered="choices",
)
WORDS = Slot(key="text", aliases=("message", "words", "content", "statement"), shown=BLANK)
CHANNEL = Slot(
    key="channel", aliases=("chat",), shown="CHANNEL", attribute="channel", offered="choices", is_optional=True
)
SLOTS = (TARGET, SECOND, CHOICE, WORDS, CHANNEL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """Something a seat does."""

    seat: int
    verb: str
    targets: tuple[int, ...] = ()
    text: str = ""
    """What it says or writes."""
    choice: str = ""
    """A ballot, a bid, or the channel it speaks in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The start and the end of a turn, in milliseconds since the discussion began."""

    started_ms: int
    ended_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """An act a seat may choose now."""

    verb: str
    targets: tuple[int, ...] = ()
    """The seats it may be aimed at."""
    seconds: tuple[int, ...] = ()
    """The second seats of an act with two names."""
    choices: tuple[str, ...] = ()
    takes_speech: bool = False
    """Whether words to all may be said together with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActSpec:
    """One entry of the table of acts."""

    verb: str
    slots: tuple[Slot, ...] = ()
    help: str
    offer: Callable[[GameState, Player], Offer | None]
    """What of it a player may choose now; None for nothing."""
    perform: Callable[[GameState, Act], Changed]
    is_side_act: bool = False
    """Whether it may be added to any reply, without using up the turn."""
    takes_speech: bool = False
    """Whether words to all may be said together with it, where its player may speak."""
    text_chars_max: int = SPEECH_CHARS_MAX
    is_ability: bool = False
    """Whether it belongs to some roles alone."""
    is_scale: bool = False
    """Whether its choices have an order of their own, which is never shuffled."""
    is_played: Callable[[Options], bool] = lambda options: True
    """The games that have it."""

    @property
    def takes_words(self) -> bool:
        """Whether it takes words of the player's own; what takes none can be said in a line."""
        return WORDS in self.slots

    def tag(self, values: Mapping[str, str]) -> Tag:
        """The tag that says the act, with what it takes by the keys of its slots."""
        inside, attributes = list[str](), dict[str, str]()
        for slot, value in self._filled(values):
            if self.takes_words and slot.attribute:
                attributes[slot.attribute] = value
            else:
                inside.append(value)
        return Tag(name=self.verb, attributes=attributes, text=", ".join(inside))

    def written(self, **values: str) -> str:
        """The act in the markup that players answer in."""
        tag = self.tag(values)
        attributes = "".join(f' {name}="{value}"' for name, value in tag.attributes.items())
        return f"<{tag.name}{attributes}>{tag.text}</{tag.name}>" if self.slots else f"<{tag.name}/>"

    def in_form(self, form: ReplyForm, **values: str) -> str:
        """The act as players of this form write it."""
        if form == "markup":
            return self.written(**values)
        fields = {slot.key: value for slot, value in self._filled(values)}
        return json.dumps({"act": self.verb, **fields}, ensure_ascii=False)

    def example(self, form: ReplyForm = "markup", **values: str) -> str:
        """The act as a prompt shows it: what is not given is a placeholder, or left out if it may be."""
        places = {slot.key: slot.shown for slot in self.slots if not slot.is_optional}
        shown = self.in_form(form, **(places | values))
        # Small models copy a blank in quotes as it stands.
        return shown if form == "markup" else shown.replace(f'"{BLANK}"', BLANK)

    def _filled(self, values: Mapping[str, str]) -> list[tuple[Slot, str]]:
        given = [(slot, values.get(slot.key, "")) for slot in self.slots]
        return [(slot, value) for slot, value in given if value or not slot.is_optional]


_TALKING = (Phase.GREETING, Phase.DISCUSSION, Phase.VOTING)
_SPEAKING = (*_TALKING, Phase.DEFENCE, Phase.LAST_WORDS)


def _offer_speech(state: GameState, player: Player) -> Offer | None:
    if state.phase is Phase.NIGHT_CHAT:
        names = tuple(channel.name for channel in channels_of(state, player.seat))
        return Offer(verb="speak", choices=names) if names else None
    return Offer(verb="speak") if state.phase in _SPEAKING and _is_heard(player) else None


def _is_heard(player: Player) -> bool:
    return player.alive and not player.is_blackmailed


def may_speak_beside(state: GameState, seat: int) -> bool:
    """Whether `seat` may now say words to all together with an act that takes them.

    A judge says them with the ballot, and all ballots of a round are held until the last is in: so the others hear
    them after they have judged themselves, and before the ballots are shown.
    """
    player = state.players[seat]
    has_the_word = state.phase in _TALKING or (state.phase is Phase.JUDGEMENT and seat != state.accused)
    return has_the_word and _is_heard(player)


def _speak(state: GameState, act: Act) -> Changed:
    player = state.players[act.seat]
    if state.phase is not Phase.NIGHT_CHAT:
        if state.options.discussion_mode == "bidding":
            state = replace(state, named=named_in(state, act.seat, act.text))
        return Changed(state, (public(state, EventKind.SPEECH, player=player.name, text=act.text),))
    mine = channels_of(state, act.seat)
    channel = next((channel for channel in mine if channel.name == act.choice), mine[0])
    speaker = channel.name_of(state, act.seat)
    event = private(state, EventKind.CHAT, channel.hearers, channel=channel.name, player=speaker, text=act.text)
    if not channel.overhearers:
        return Changed(state, (event,))
    said = {"channel": channel.name, "player": channel.stranger, "text": act.text}
    return Changed(state, (event, private(state, EventKind.CHAT, channel.overhearers, **said)))


def _whisper(state: GameState, act: Act) -> Changed:
    (target,) = act.targets
    names = {"player": state.players[act.seat].name, "to": state.players[target].name}
    readers = (other.seat for other in state.living if ROLES[other.role].reads_whispers(state.options))
    return Changed(
        state,
        (
            public(state, EventKind.WHISPER_SEEN, **names),
            private(state, EventKind.WHISPER, (act.seat, target, *readers), **names, text=act.text),
        ),
    )


def _offer_whisper(state: GameState, player: Player) -> Offer | None:
    if state.phase not in _TALKING or not _is_heard(player) or _is_revealed(player):
        return None
    targets = tuple(other.seat for other in state.living if other.seat != player.seat and not _is_revealed(other))
    return Offer(verb="whisper", targets=targets) if targets else None


def _is_revealed(player: Player) -> bool:
    return ROLES[player.role].is_revealed(player)


def _offer_vote(state: GameState, player: Player) -> Offer | None:
    if not player.alive or state.phase is not Phase.VOTING:
        return None
    standing = state.votes.get(player.seat)
    targets = tuple(seat for seat in others(state, player) if seat != standing)
    return Offer(verb="vote", targets=targets) if targets else None


def _vote(state: GameState, act: Act) -> Changed:
    (target,) = act.targets
    state = replace(state, votes={**state.votes, act.seat: target})
    count = _weight_against(state, target)
    event = public(
        state,
        EventKind.VOTE,
        player=state.players[act.seat].name,
        target=state.players[target].name,
        count=count,
        needed=state.votes_needed,
    )
    return try_if_enough(Changed(state, (event,)), target)


def _weight_against(state: GameState, target: int) -> int:
    """The weight of all votes on a player."""
    voters = (state.players[seat] for seat, vote in state.votes.items() if vote == target)
    return sum(ROLES[voter.role].votes(voter) for voter in voters)


def try_if_enough(changed: Changed, target: int) -> Changed:
    """Put a player on trial when the votes on them weigh enough."""
    if _weight_against(changed.state, target) < changed.state.votes_needed:
        return changed
    trial = open_trial(changed.state, target)
    return Changed(trial.state, changed.events + trial.events)


def _unvote(state: GameState, act: Act) -> Changed:
    left = {seat: vote for seat, vote in state.votes.items() if seat != act.seat}
    event = public(
        state,
        EventKind.UNVOTE,
        player=state.players[act.seat].name,
        target=state.players[state.votes[act.seat]].name,
    )
    return Changed(replace(state, votes=left), (event,))


def _offer_ballot(state: GameState, player: Player) -> Offer | None:
    if state.phase is not Phase.JUDGEMENT or not player.alive or player.seat == state.accused:
        return None
    return Offer(verb="ballot", choices=tuple(Ballot))


def _offer_bid(state: GameState, player: Player) -> Offer | None:
    # A player who may not speak has no use for the floor.
    if state.phase is not Phase.BIDDING or not player.alive or player.is_blackmailed:
        return None
    return Offer(verb="bid", choices=tuple(str(bid) for bid in range(BID_MAX + 1)))


def _offer_ability(verb: str) -> Callable[[GameState, Player], Offer | None]:
    def offer(state: GameState, player: Player) -> Offer | None:
        ability = ROLES[player.role].by_verb.get(verb)
        targets = None if ability is None else ability.offer(state, player)
        if ability is None or targets is None:
            return None
        seconds = ability.second_aims(state, player) if ability.second_aims is not None else ()
        return Offer(verb=verb, targets=targets, seconds=seconds)

    return offer


def _use_ability(state: GameState, act: Act) -> Changed:
    player = state.players[act.seat]
    ability = ROLES[player.role].by_verb[act.verb]
    if isinstance(ability, DayAbility):
        if ability.uses is not None:
            player = player.with_uses(act.verb, player.uses[act.verb] - 1)
        changed = ability.effect(state.with_player(player), player, act.targets)
        # A vote that weighs more now may be enough.
        standing = changed.state.votes.get(act.seat)
        return changed if standing is None else try_if_enough(changed, standing)
    names = [state.players[seat].name for seat in act.targets]
    state = replace(
        state, deeds=(*state.deeds, NightAction(seat=act.seat, verb=act.verb, targets=act.targets, text=act.text))
    )
    return Changed(state, (private(state, EventKind.ACTION_CHOSEN, (act.seat,), verb=act.verb, targets=list(names)),))


def _slots_of(ability: Ability) -> tuple[Slot, ...]:
    if ability.aims is None:
        return ()
    if ability.second_aims is not None:
        return (FIRST, SECOND)
    return (TARGET, WORDS) if ability.takes_text else (TARGET,)


def _ability_specs() -> Iterable[ActSpec]:
    """The abilities of all roles, by verb."""
    by_verb = {verb: ability for role in ROLES.values() for verb, ability in role.by_verb.items()}
    for verb, ability in sorted(by_verb.items()):
        yield ActSpec(
            verb=verb,
            slots=_slots_of(ability),
            help=ability.help,
            is_ability=True,
            offer=_offer_ability(verb),
            perform=_use_ability,
            # The words of an ability replace a will.
            text_chars_max=WILL_CHARS_MAX,
            takes_speech=isinstance(ability, DayAbility),
        )


def _write(state: GameState, act: Act) -> Changed:
    # A player keeps what is written under the name of its act.
    written: dict[str, Any] = {act.verb: act.text}
    return Changed(state.with_player(replace(state.players[act.seat], **written)))


@follows_roles
@cache
def _table() -> Mapping[str, ActSpec]:
    entries = (
        ActSpec(
            verb="speak",
            slots=(WORDS, CHANNEL),
            help=f"say something to everyone, or in a night chat to those in it; at most {SPEECH_CHARS_MAX} characters",
            offer=_offer_speech,
            perform=_speak,
        ),
        ActSpec(
            verb="whisper",
            slots=(TARGET, WORDS),
            help="say something to one player alone; everyone sees that you whisper, but not what",
            offer=_offer_whisper,
            perform=_whisper,
        ),
        ActSpec(
            verb="vote",
            slots=(TARGET,),
            help="vote to put that player on trial; it replaces your last vote",
            offer=_offer_vote,
            perform=_vote,
            takes_speech=True,
        ),
        ActSpec(
            verb="unvote",
            help="take back your vote",
            offer=lambda state, player: Offer(verb="unvote") if player.seat in state.votes else None,
            perform=_unvote,
            takes_speech=True,
        ),
        ActSpec(
            verb="ballot",
            slots=(CHOICE,),
            help="judge the accused: guilty, innocent or abstain",
            offer=_offer_ballot,
            perform=lambda state, act: Changed(replace(state, ballots={**state.ballots, act.seat: Ballot(act.choice)})),
            takes_speech=True,
        ),
        ActSpec(
            verb="bid",
            slots=(CHOICE,),
            help=f"bid for the floor, from 0 (let others speak) to {BID_MAX} (I must speak now)",
            offer=_offer_bid,
            perform=lambda state, act: Changed(replace(state, bids={**state.bids, act.seat: int(act.choice)})),
            is_scale=True,
            is_played=lambda options: options.discussion_mode == "bidding",
        ),
        *_ability_specs(),
        ActSpec(
            verb="wait",
            help="do nothing this time",
            offer=lambda state, player: Offer(verb="wait"),
            perform=lambda state, act: Changed(state),
        ),
        ActSpec(
            verb="will",
            slots=(WORDS, CHANNEL),
            help=f"replace your last will, at most {WILL_CHARS_MAX} characters; it is read out when you die",
            # A will is frozen once its writer is condemned (rules, section 12).
            offer=lambda state, player: (
                Offer(verb="will") if player.alive and state.phase is not Phase.LAST_WORDS else None
            ),
            perform=_write,
            is_side_act=True,
            text_chars_max=WILL_CHARS_MAX,
        ),
        ActSpec(
            verb="death_note",
            slots=(WORDS, CHANNEL),
            help=f"replace the note that is found with those you kill, at most {WILL_CHARS_MAX} characters",
            offer=lambda state, player: (
                Offer(verb="death_note") if player.alive and ROLES[player.role].leaves_notes else None
            ),
            perform=_write,
            is_side_act=True,
            text_chars_max=WILL_CHARS_MAX,
        ),
        ActSpec(
            verb="notes",
            slots=(WORDS, CHANNEL),
            help=f"replace your private notebook, at most {NOTES_CHARS_MAX} characters; only you see it, in every "
            "later turn",
            # The dead think on: some of them may still choose.
            offer=lambda state, player: Offer(verb="notes") if state.options.notes else None,
            is_played=lambda options: options.notes,
            perform=_write,
            is_side_act=True,
            text_chars_max=NOTES_CHARS_MAX,
        ),
    )
    table = {spec.verb: spec for spec in entries}
    if len(table) < len(entries):
        twice = ", ".join(verb for verb, count in Counter(spec.verb for spec in entries).items() if count > 1)
        raise ValueError(f"an ability of a role is called like an act of everybody: {twice}")
    return table


ACTS: Mapping[str, ActSpec] = RoleTable(_table)
"""Verb to entry, in the order in which a prompt lists them."""


@follows_roles
@cache
def _specs_of(role: str) -> tuple[ActSpec, ...]:
    """The acts that a role may ever choose: an ability is for those whose role has it."""
    return tuple(spec for spec in ACTS.values() if not spec.is_ability or spec.verb in ROLES[role].by_verb)


def offers(state: GameState, seat: int) -> tuple[Offer, ...]:
    """Everything `seat` may choose now, side acts included, in the order of the table."""
    player, speaks = state.players[seat], may_speak_beside(state, seat)
    return tuple(
        [
            replace(offer, takes_speech=True) if speaks and spec.takes_speech else offer
            for spec in _specs_of(player.role)
            if (offer := spec.offer(state, player)) is not None
        ]
    )


class IllegalActError(Exception):
    """An act the rules do not allow now; the text explains why to the player."""


def check(state: GameState, act: Act) -> Offer:
    """The offer an act takes up. Raises IllegalActError with the reason when it is not legal now."""
    if act.seat not in state.order:
        raise IllegalActError("it is not your turn")
    spec = ACTS.get(act.verb)
    offer = None if spec is None else spec.offer(state, state.players[act.seat])
    if spec is None or offer is None:
        legal = ", ".join(offer.verb for offer in offers(state, act.seat))
        raise IllegalActError(f"{act.verb} cannot be chosen now; you may choose: {legal}")
    if SECOND in spec.slots:
        _check_pair(state, act, offer)
    elif TARGET in spec.slots:
        if len(act.targets) != 1 or act.targets[0] not in offer.targets:
            names = ", ".join(state.players[seat].name for seat in offer.targets)
            raise IllegalActError(f"{act.verb} must name one of these players: {names}")
    elif act.targets:
        raise IllegalActError(f"{act.verb} takes no player")
    if act.choice not in offer.choices and (act.choice or CHOICE in spec.slots):
        raise IllegalActError(_unknown_choice(spec, offer))
    return offer


def check_beside(state: GameState, act: Act) -> None:
    """Raises IllegalActError with the reason when these words cannot be said together with an act now."""
    if act.seat not in state.order or state.has_answered(act.seat):
        raise IllegalActError("it is not your turn")
    if act.verb != "speak" or not may_speak_beside(state, act.seat):
        raise IllegalActError(f"{act.verb} cannot be added now; give the act alone")
    if act.choice:
        raise IllegalActError("words said together with an act are heard by all; name no channel")


def _check_pair(state: GameState, act: Act, offer: Offer) -> None:
    if len(act.targets) != 2:
        raise IllegalActError(f"{act.verb} must name two players")
    for which, seat, allowed in zip(("first", "second"), act.targets, (offer.targets, offer.seconds), strict=True):
        if seat not in allowed:
            names = ", ".join(state.players[seat].name for seat in allowed)
            raise IllegalActError(f"the {which} player of {act.verb} must be one of: {names}")


def _unknown_choice(spec: ActSpec, offer: Offer) -> str:
    if CHOICE in spec.slots:
        return f"{spec.verb} must be one of: {', '.join(offer.choices)}"
    # Words for a closed channel must not reach all players.
    channels = f"you may use: {', '.join(offer.choices)}" if offer.choices else "name none"
    return f"there is no such channel now; {channels}"


def apply(state: GameState, act: Act) -> Changed:
    """Make one act. Raises IllegalActError and changes nothing when the rules do not allow it."""
    spec = ACTS.get(act.verb)
    if spec is not None and not spec.is_side_act and act.seat in state.order and state.has_answered(act.seat):
        raise IllegalActError("you have already acted in this round")
    check(state, act)
    spec = ACTS[act.verb]
    changed = spec.perform(state, act)
    if spec.is_side_act or changed.state.round != state.round:
        return changed
    is_silent = changed.state.is_silent and act.verb == "wait"
    return Changed(changed.state.answered(act.seat, is_silent=is_silent), changed.events)


def apply_beside(state: GameState, words: Act) -> Changed:
    """Have a seat say words to all together with its act, just before it; they use up no turn.

    Raises IllegalActError and changes nothing when the rules do not allow it.
    """
    check_beside(state, words)
    return ACTS[words.verb].perform(state, words)
