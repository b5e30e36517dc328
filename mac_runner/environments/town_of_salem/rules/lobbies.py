"""Role lists: the named ones, and those written out in YAML (rules, section 14)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import combinations
from random import Random

from mac_runner.environments.town_of_salem.model.state import Faction
from mac_runner.environments.town_of_salem.roles import ROLES, Alignment, Role
from mac_runner.environments.town_of_salem.roles.catalogue import follows_roles
from mac_runner.errors import ConfigError
from mac_runner.types import stable_hash

DEALS_MAX = 1_000
"""How often random slots are dealt until two sides oppose each other."""

# The official classic list in its order; a table of n plays the first n entries.
_CLASSIC = (
    *("sheriff", "doctor", "investigator", "jailor", "medium", "godfather", "framer"),
    *("executioner", "escort", "mafioso", "lookout", "serial killer"),
    *("classic town killing", "jester", "classic random town"),
)
_RANKED = (
    *("jailor", "town investigative", "town investigative", "town protective", "town killing", "town support"),
    *("random town", "random town", "random town", "godfather", "mafioso", "random mafia", "random mafia"),
    *("neutral evil", "neutral killing"),
)

LOBBIES: dict[str, tuple[str, ...]] = {
    **{f"classic-{n}": _CLASSIC[:n] for n in range(7, len(_CLASSIC) + 1)},
    "social-7": ("sheriff", "doctor", "escort", "vigilante", "lookout", "godfather", "jester"),
    "social-10": (
        *("sheriff", "doctor", "investigator", "jailor", "lookout", "escort"),
        *("godfather", "mafioso", "blackmailer", "jester"),
    ),
    "ranked-15": _RANKED,
}

NAMES = (
    *("Abel", "Beatrice", "Caleb", "Dorothea", "Elias", "Felicity", "Gideon", "Hester", "Isaac", "Josephine"),
    *("Kenelm", "Lydia", "Matthias", "Naomi", "Obadiah", "Prudence", "Quentin", "Rosamund", "Silas", "Tabitha"),
)
"""Public names of the players; none is part of another."""


@follows_roles
@cache
def random_slots() -> Mapping[str, tuple[str, ...]]:
    """Slots that are filled by lot, and the role ids each may become."""
    sides = ("town", "mafia", "neutral")  # Vampires are neutrals too.
    slots = {"any": tuple(ROLES), **{f"random {side}": _aligned(side) for side in sides}}
    slots |= {role.alignment.value: _aligned(role.alignment.value) for role in ROLES.values()}
    classic = [role for role in ROLES.values() if role.is_classic and role.faction is Faction.TOWN]
    slots["classic town killing"] = tuple(
        role.id for role in classic if role.alignment is Alignment.TOWN_KILLING and role.id not in _CLASSIC
    )
    slots["classic random town"] = tuple(role.id for role in classic)
    return slots


def _aligned(beginning: str) -> tuple[str, ...]:
    return tuple(role.id for role in ROLES.values() if role.alignment.value.startswith(beginning))


def roles_of(slot: str) -> tuple[str, ...]:
    """The role ids a slot may hold: one for a role, several for a random slot."""
    return random_slots().get(slot) or (slot,)


def slot_name(slot: str) -> str:
    """The slot as players read it."""
    return ROLES[slot].name if slot in ROLES else slot.removeprefix("classic ").title()


@follows_roles
@cache
def roles_in_play(lobby: tuple[str, ...]) -> tuple[Role, ...]:
    """Every role that players of this lobby may hold or turn into, by name."""
    found: set[str] = set()
    open_ends = [role for slot in lobby for role in roles_of(slot)]
    while open_ends:
        role = open_ends.pop()
        if role not in found:
            found.add(role)
            open_ends.extend(ROLES[role].may_become)
    return tuple(role for role in ROLES.values() if role.id in found)


def plain(word: str) -> str:
    """A role or slot as a user may spell it, in the spelling used here."""
    return word.strip().lower().replace("-", " ").replace("_", " ")


def role_list(lobby: str | Sequence[str]) -> tuple[str, ...]:
    """The slots of a lobby, one a seat. Raises ConfigError for a list that cannot be dealt or played."""
    if isinstance(lobby, str):
        if lobby not in LOBBIES:
            known = ", ".join(LOBBIES)
            raise _refusal(f"there is no lobby {lobby!r}; there are: {known}, or a list of roles")
        slots = LOBBIES[lobby]
    else:
        slots = tuple(map(plain, lobby))
    _check(slots)
    return slots


def deal(slots: Sequence[str], seed: int) -> tuple[str, ...]:
    """A role for each slot, random ones drawn: no unique role twice, and two sides that oppose each other."""
    chance = Random(stable_hash(seed, "deal"))  # noqa: S311 - a game, not a secret
    for _ in range(DEALS_MAX):
        roles = _fill(slots, chance)
        if roles is not None and len({ROLES[role].group for role in roles} - {None}) > 1:
            return tuple(roles)
    raise _refusal(f"in {DEALS_MAX} deals of its random slots nobody opposed anybody; name more of the roles")


def _fill(slots: Sequence[str], chance: Random) -> list[str] | None:
    """Fill the slots with the fewest possibilities first, so that no slot ends up without one."""
    left = {index: set(roles_of(slot)) for index, slot in enumerate(slots)}
    dealt: dict[int, str] = {}
    while left:
        index = min(left, key=lambda index: (len(left[index]), index))
        choices = sorted(left.pop(index))
        if not choices:
            return None
        dealt[index] = chance.choice(choices)
        if ROLES[dealt[index]].is_unique:
            for others in left.values():
                others.discard(dealt[index])
    return [dealt[index] for index in range(len(slots))]


def _refusal(why: str) -> ConfigError:
    return ConfigError.at(("game", "lobby"), why)


def _check(slots: tuple[str, ...]) -> None:
    unknown = sorted(set(slots) - set(ROLES) - set(random_slots()))
    if unknown:
        raise _refusal(
            f"unknown roles: {', '.join(unknown)}; the roles are: {', '.join(ROLES)}; "
            f"slots filled by lot: {', '.join(random_slots())}"
        )
    try:
        roles_in_play(slots)
    except KeyError as gone:
        raise _refusal(f"one of its roles may become {gone.args[0]!r}, which is no role of this game") from None
    unique = {role.id for role in ROLES.values() if role.is_unique}
    twice = sorted(slot for slot, count in Counter(slots).items() if count > 1 and slot in unique)
    if twice:
        raise _refusal(f"a game has one at most of: {', '.join(twice)}")
    if not 3 <= len(slots) <= len(NAMES):
        raise _refusal(f"{len(slots)} roles; a game has 3 to {len(NAMES)} players")
    if _fill(slots, Random(0)) is None:  # noqa: S311 - whether it can be done does not depend on the draw
        raise _refusal("its random slots need more unique roles than there are")
    groups = [{ROLES[role].group for role in roles_of(slot)} - {None} for slot in slots]
    if not any(len(one | other) > 1 for one, other in combinations(filter(None, groups), 2)):
        raise _refusal("nobody opposes anybody; a game needs two sides, such as the Town and the Mafia")
