"""The attributes of roles in words, for the player who asks what one means and who has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from mac_runner.environments.town_of_salem.roles import Level, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribute:
    """What an attribute means, and whether a role has it from the start."""

    meaning: str
    holds: Callable[[Role], bool]


def _attack(level: Level) -> Callable[[Role], bool]:
    return lambda role: role.attack is level


def _defence(level: Level) -> Callable[[Role], bool]:
    return lambda role: role.defence is level


_TABLE = {
    "basic attack": Attribute(meaning="kills who has no defence", holds=_attack(Level.BASIC)),
    "powerful attack": Attribute(meaning="kills who has no or basic defence", holds=_attack(Level.POWERFUL)),
    "unstoppable attack": Attribute(meaning="kills whatever the defence", holds=_attack(Level.UNSTOPPABLE)),
    "basic defence": Attribute(meaning="survives basic attacks at night", holds=_defence(Level.BASIC)),
    "powerful defence": Attribute(meaning="survives basic and powerful attacks", holds=_defence(Level.POWERFUL)),
    "block immunity": Attribute(
        meaning="an Escort or Consort cannot keep the role from acting", holds=lambda role: role.is_block_immune
    ),
    "detection immunity": Attribute(
        meaning="a Sheriff does not find the role suspicious", holds=lambda role: role.is_detection_immune
    ),
    "unique": Attribute(meaning="at most one player of a game holds the role", holds=lambda role: role.is_unique),
}

ATTRIBUTES: Mapping[str, Attribute] = MappingProxyType(_TABLE)
