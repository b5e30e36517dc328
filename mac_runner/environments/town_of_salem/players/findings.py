"""What a seat's own investigations say of others, as far as they say whether somebody is guilty."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from mac_runner.environments.town_of_salem.events import Event, EventKind
from mac_runner.environments.town_of_salem.knowledge import SeatView
from mac_runner.environments.town_of_salem.lobbies import roles_in_play
from mac_runner.environments.town_of_salem.roles import ROLES, follows_roles
from mac_runner.environments.town_of_salem.state import Faction

_SEEN = "visited by "


def own_findings(view: SeatView, claims: Mapping[str, str]) -> dict[str, bool]:
    """What this seat's own investigations say of others: True for guilty, False for innocent; the open are left out."""
    findings: dict[str, bool] = {}
    for event in view.private:
        if event.kind is EventKind.RESULT:
            about, finding = str(event.data["about"]), str(event.data["finding"])
            if finding.startswith(_SEEN):
                findings.update(_caught(view, event, finding.removeprefix(_SEEN).split(" and ")))
                continue
            verdict = _verdict(view, finding, claims.get(about))
            if verdict is not None:
                findings[about] = verdict
        elif event.kind is EventKind.MAFIA_VISITS and isinstance(event.data["visited"], list):
            # The Mafia does not call on its own.
            findings.update((str(name), False) for name in event.data["visited"] if name != view.name)
    return findings


def is_town_role(name: str) -> bool:
    """Whether a role, by its public name, belongs to the Town; False for a role this game does not know."""
    role = ROLES.get(name.lower())
    return role is not None and role.faction is Faction.TOWN


def _caught(view: SeatView, seen: Event, visitors: list[str]) -> dict[str, bool]:
    """The one visitor of a house whose owner was murdered that night; among several it could be any."""
    murders = (
        event
        for event in view.public
        if event.kind is EventKind.DEATH and event.data["player"] == seen.data["about"] and event.day - seen.day <= 1
    )
    causes = {cause for event in murders if isinstance(event.data["causes"], list) for cause in event.data["causes"]}
    is_caught = len(visitors) == 1 and visitors[0] in view.players and bool(causes & _visible_causes())
    return dict.fromkeys(visitors, True) if is_caught else {}


@follows_roles
@cache
def _visible_causes() -> frozenset[str]:
    return frozenset(cause.name for role in ROLES.values() for cause in role.causes if cause.is_visible)


def _verdict(view: SeatView, finding: str, claimed: str | None) -> bool | None:
    if finding in ("suspicious", "not suspicious"):
        return finding == "suspicious"
    if finding == "a member of the mafia":
        return True
    named = [role for role in roles_in_play(view.lobby) if role.name in finding]
    if not named:
        return None
    if len({role.faction is Faction.TOWN for role in named}) > 1:
        # Who claims to be none of those is lying.
        return True if claimed is not None and claimed not in {role.name for role in named} else None
    return named[0].faction is not Faction.TOWN
