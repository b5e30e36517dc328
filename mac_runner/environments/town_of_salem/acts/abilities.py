"""The abilities of the roles as acts, entered from the catalogue: each verb once, whoever has it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache

from mac_runner.environments.town_of_salem.acts.spec import Act, ActSpec, Form, Offer, OfferRule
from mac_runner.environments.town_of_salem.acts.voting import try_if_enough
from mac_runner.environments.town_of_salem.events import EventKind, private
from mac_runner.environments.town_of_salem.roles import ROLES, Ability, Changed, DayAbility, follows_roles
from mac_runner.environments.town_of_salem.state import Deed, GameState, Player
from mac_runner.limits import WILL_CHARS_MAX


@follows_roles
@cache
def abilities() -> Mapping[tuple[str, str], Ability]:
    """Role and verb to ability."""
    return {(role.id, ability.verb): ability for role in ROLES.values() for ability in role.abilities}


def _ability_of(player: Player, verb: str) -> Ability | None:
    return abilities().get((player.role, verb))


def _offer_ability(verb: str) -> OfferRule:
    def offer(state: GameState, player: Player) -> Offer | None:
        ability = _ability_of(player, verb)
        targets = None if ability is None else ability.offer(state, player)
        if ability is None or targets is None:
            return None
        seconds = ability.second_aims(state, player) if ability.second_aims is not None else ()
        return Offer(verb=verb, targets=targets, seconds=seconds)

    return offer


def _use_ability(state: GameState, act: Act) -> Changed:
    player = state.players[act.seat]
    ability = _ability_of(player, act.verb)
    if isinstance(ability, DayAbility):
        changed = ability.effect(state, player, act.targets)
        # A vote that has come to weigh more may be enough now.
        standing = changed.state.votes.get(act.seat)
        return changed if standing is None else try_if_enough(changed, standing)
    names = [state.players[seat].name for seat in act.targets]
    state = replace(state, deeds=(*state.deeds, Deed(seat=act.seat, verb=act.verb, targets=act.targets, text=act.text)))
    return Changed(state, (private(state, EventKind.DEED_CHOSEN, (act.seat,), verb=act.verb, targets=list(names)),))


def _form_of(ability: Ability) -> Form:
    if ability.aims is None:
        return Form.BARE
    if ability.second_aims is not None:
        return Form.TWO_NAMES
    return Form.NAME_AND_TEXT if ability.takes_text else Form.NAME


def specs() -> Iterable[ActSpec]:
    """The abilities of all roles, by verb."""
    seen: dict[str, Ability] = {}
    for role in ROLES.values():
        for ability in role.abilities:
            seen.setdefault(ability.verb, ability)
    for verb, ability in sorted(seen.items()):
        yield ActSpec(
            verb=verb,
            form=_form_of(ability),
            help=ability.help,
            offer=_offer_ability(verb),
            perform=_use_ability,
            # Words that an ability takes stand in for somebody's will.
            text_chars_max=WILL_CHARS_MAX,
        )
