"""The tools a player may ask in the middle of a turn. Each answers from the asker's own view and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from mac_runner.environments.markup import defuse
from mac_runner.environments.town_of_salem.knowledge import SeatView
from mac_runner.environments.town_of_salem.roles import ROLES
from mac_runner.types import JsonObject


class ToolError(Exception):
    """A tool was asked for something it cannot answer; the text goes into the observation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One tool: what it is asked with (None: nothing) and what it answers."""

    name: str
    argument: str | None
    help: str
    answer: Callable[[SeatView, str], JsonObject]

    def example(self) -> str:
        """The request as a player writes it."""
        return f'<tool_request name="{self.name}">{self.argument or ""}</tool_request>'


def _shown(asked: str) -> str:
    return repr(defuse(asked)[:60])


def _get_role(view: SeatView, argument: str) -> JsonObject:
    role = ROLES.get(argument.strip().lower())
    if role is None:
        raise ToolError(f"there is no role {_shown(argument)}; the roles are: {', '.join(ROLES)}")
    return {
        "role": role.name,
        "faction": role.faction.value,
        "alignment": role.alignment.value,
        "card": role.card,
        "goal": role.goal,
        "attack": role.attack.name.lower(),
        "defence": role.defence.name.lower(),
        "can_be_blocked": not role.is_block_immune,
        "unique": role.is_unique,
    }


def _get_lobby(view: SeatView, argument: str) -> JsonObject:
    return {"roles": [ROLES[slot].name for slot in view.lobby], "seats": list(view.players)}


def _get_graveyard(view: SeatView, argument: str) -> JsonObject:
    return {"dead": dict(view.graveyard), "living": list(view.living)}


_TABLE = (
    Tool(name="get_role", argument="Doctor", help="what a role can do, its goal and attributes", answer=_get_role),
    Tool(name="get_lobby", argument=None, help="the roles in this game and the players", answer=_get_lobby),
    Tool(name="get_graveyard", argument=None, help="who is dead and what they were", answer=_get_graveyard),
)

TOOLS: Mapping[str, Tool] = MappingProxyType({tool.name: tool for tool in _TABLE})


def observe(view: SeatView, name: str, argument: str) -> str:
    """The observation a request is answered with: JSON, of the answer or of the error."""
    answer: JsonObject
    try:
        if name not in TOOLS:
            raise ToolError(f"there is no tool {_shown(name)}; the tools are: {', '.join(TOOLS)}")
        answer = TOOLS[name].answer(view, argument)
    except ToolError as error:
        answer = {"error": str(error)}
    return json.dumps(answer)
