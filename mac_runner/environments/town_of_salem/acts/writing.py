"""Acts of writing: the last will, the death note, the private notebook. All may stand beside any other act."""

from __future__ import annotations

from dataclasses import replace

from mac_runner.environments.town_of_salem.acts.spec import Act, ActSpec, Form, Offer
from mac_runner.environments.town_of_salem.roles import ROLES, Changed
from mac_runner.environments.town_of_salem.state import GameState, Phase, Player
from mac_runner.limits import NOTES_CHARS_MAX, WILL_CHARS_MAX


def _write_will(state: GameState, act: Act) -> Changed:
    return Changed(state.with_player(replace(state.players[act.seat], will=act.text)))


def _write_note(state: GameState, act: Act) -> Changed:
    return Changed(state.with_player(replace(state.players[act.seat], death_note=act.text)))


def _write_notes(state: GameState, act: Act) -> Changed:
    return Changed(state.with_player(replace(state.players[act.seat], notes=act.text)))


def _offer_will(state: GameState, player: Player) -> Offer | None:
    # A will is frozen once its writer is condemned (rules, section 12).
    return Offer(verb="will") if player.alive and state.phase is not Phase.LAST_WORDS else None


def _offer_note(state: GameState, player: Player) -> Offer | None:
    return Offer(verb="death_note") if player.alive and ROLES[player.role].leaves_notes else None


SPECS = (
    ActSpec(
        verb="will",
        form=Form.TEXT,
        help=f"write your last will anew, {WILL_CHARS_MAX} characters at most; it is read out when you die",
        offer=_offer_will,
        perform=_write_will,
        is_side_act=True,
        text_chars_max=WILL_CHARS_MAX,
    ),
    ActSpec(
        verb="death_note",
        form=Form.TEXT,
        help=f"write anew the note that is found with those you kill, {WILL_CHARS_MAX} characters at most",
        offer=_offer_note,
        perform=_write_note,
        is_side_act=True,
        text_chars_max=WILL_CHARS_MAX,
    ),
    ActSpec(
        verb="notes",
        form=Form.TEXT,
        help="write your private notebook anew; only you ever see it, at every later turn",
        # The dead think on: some of them may still choose.
        offer=lambda state, player: Offer(verb="notes"),
        perform=_write_notes,
        is_side_act=True,
        text_chars_max=NOTES_CHARS_MAX,
    ),
)
"""In the order in which a prompt lists them."""
