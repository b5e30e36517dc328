"""The table of acts, and what of it a seat may choose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cache

from mac_runner.environments.town_of_salem.acts import abilities, talking, voting, writing
from mac_runner.environments.town_of_salem.acts.spec import ActSpec, Form, Offer
from mac_runner.environments.town_of_salem.roles import Changed, RoleTable, follows_roles
from mac_runner.environments.town_of_salem.state import GameState

_WAIT = ActSpec(
    verb="wait",
    form=Form.BARE,
    help="do nothing this time",
    offer=lambda state, player: Offer(verb="wait"),
    perform=lambda state, act: Changed(state),
)


def _table() -> Mapping[str, ActSpec]:
    entries = [*talking.SPECS, *voting.SPECS, *abilities.specs(), _WAIT, *writing.SPECS]
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
    owned = abilities.abilities()
    verbs = {verb for _, verb in owned}
    return tuple(spec for spec in ACTS.values() if spec.verb not in verbs or (role, spec.verb) in owned)


def offers(state: GameState, seat: int) -> tuple[Offer, ...]:
    """Everything `seat` may choose now, side acts included, in the order of the table."""
    player = state.players[seat]
    return tuple([offer for spec in _specs_of(player.role) if (offer := spec.offer(state, player)) is not None])
