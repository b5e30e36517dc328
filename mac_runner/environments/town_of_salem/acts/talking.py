"""Acts of talk: speaking, by day to all and by night in a channel, and whispering."""

from __future__ import annotations

from dataclasses import replace

from mac_runner.environments.town_of_salem.acts.spec import Act, ActSpec, Form, Offer
from mac_runner.environments.town_of_salem.channels import channels_of
from mac_runner.environments.town_of_salem.events import EventKind, private, public
from mac_runner.environments.town_of_salem.roles import ROLES, Changed
from mac_runner.environments.town_of_salem.rounds import named_in
from mac_runner.environments.town_of_salem.state import DiscussionMode, GameState, Phase, Player
from mac_runner.limits import SPEECH_CHARS_MAX

_TALKING = (Phase.GREETING, Phase.DISCUSSION, Phase.VOTING)
_SPEAKING = (*_TALKING, Phase.DEFENCE, Phase.LAST_WORDS)


def _offer_speech(state: GameState, player: Player) -> Offer | None:
    if state.phase is Phase.NIGHT_CHAT:
        names = tuple(channel.name for channel in channels_of(state, player.seat))
        return Offer(verb="speak", choices=names) if names else None
    is_heard = player.alive and state.phase in _SPEAKING and not player.is_blackmailed
    return Offer(verb="speak") if is_heard else None


def _speak(state: GameState, act: Act) -> Changed:
    player = state.players[act.seat]
    if state.phase is not Phase.NIGHT_CHAT:
        if state.options.discussion_mode == DiscussionMode.BIDDING:
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
    if not player.alive or state.phase not in _TALKING or player.is_blackmailed or not _may_whisper(player):
        return None
    targets = tuple(other.seat for other in state.living if other.seat != player.seat and _may_whisper(other))
    return Offer(verb="whisper", targets=targets) if targets else None


def _may_whisper(player: Player) -> bool:
    return ROLES[player.role].may_whisper(player)


SPECS = (
    ActSpec(
        verb="speak",
        form=Form.TEXT,
        help=f"say something, up to {SPEECH_CHARS_MAX} characters: by day to everybody, in a night chat to those in it",
        offer=_offer_speech,
        perform=_speak,
    ),
    ActSpec(
        verb="whisper",
        form=Form.NAME_AND_TEXT,
        help="say something to one player alone; everybody sees that you whispered, not what",
        offer=_offer_whisper,
        perform=_whisper,
    ),
)
"""In the order in which a prompt lists them."""
