"""The table of acts, and what of it a seat may choose."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from mac_runner.environments.town_of_salem.acts import abilities, talking, voting, writing
from mac_runner.environments.town_of_salem.acts.spec import ActSpec, Form, Offer
from mac_runner.environments.town_of_salem.roles import ROLES, Changed
from mac_runner.environments.town_of_salem.state import GameState

_WAIT = ActSpec(
    verb="wait",
    form=Form.BARE,
    help="do nothing this time",
    offer=lambda state, player: Offer(verb="wait"),
    perform=lambda state, act: Changed(state),
)

_TABLE = (*talking.SPECS, *voting.SPECS, *abilities.SPECS, _WAIT, *writing.SPECS)

ACTS: Mapping[str, ActSpec] = MappingProxyType({spec.verb: spec for spec in _TABLE})
"""Verb to entry, in the order in which a prompt lists them."""


# An act that is an ability is for those whose role has it.
_ABILITY_VERBS = frozenset(verb for _, verb in abilities.ABILITIES)
_SPECS_OF: Mapping[str, tuple[ActSpec, ...]] = {
    role: tuple(
        spec for spec in ACTS.values() if spec.verb not in _ABILITY_VERBS or (role, spec.verb) in abilities.ABILITIES
    )
    for role in ROLES
}


def offers(state: GameState, seat: int) -> tuple[Offer, ...]:
    """Everything `seat` may choose now, side acts included, in the order of the table."""
    player = state.players[seat]
    return tuple([offer for spec in _SPECS_OF[player.role] if (offer := spec.offer(state, player)) is not None])
