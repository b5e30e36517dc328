"""The truth about what was said and decided: role claims weighed against the deal, trials as a table.

Only for those who read a finished game; no player sees any of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mac_runner.environments.town_of_salem.events import Event, EventKind
from mac_runner.environments.town_of_salem.hearsay import claimed_roles
from mac_runner.environments.town_of_salem.roles import ROLES
from mac_runner.environments.town_of_salem.state import Player
from mac_runner.types import JsonObject, JsonValue


def role_claims(events: Iterable[Event], players: Sequence[Player]) -> list[JsonValue]:
    """Every role claimed for oneself in speech and whispers, in order, with its verdict."""
    by_name = {player.name: player for player in players}
    claims: list[JsonValue] = []
    for event in events:
        if event.kind not in (EventKind.SPEECH, EventKind.WHISPER):
            continue
        speaker = str(event.data["player"])
        for role in claimed_roles(str(event.data["text"])):
            claims.append(
                {
                    "day": event.day,
                    "phase": event.phase.value,
                    "player": speaker,
                    "made_in": event.kind.value,
                    "role": role,
                    "verdict": _verdict(by_name[speaker], role),
                }
            )
    return claims


def _verdict(player: Player, role: str) -> str:
    # The log does not say when a role was held, so a claim of one who changed roles is left open.
    if player.role != player.dealt:
        return "undecidable"
    return "true" if ROLES[player.role].name == role else "false"


def trials(events: Iterable[Event]) -> list[JsonValue]:
    """Every trial that came to a verdict, with who judged how."""
    found: list[JsonValue] = []
    ballots: JsonObject = {}
    for event in events:
        if event.kind is EventKind.BALLOTS:
            ballots = event.data
        elif event.kind is EventKind.VERDICT:
            verdict = "guilty" if event.data["is_guilty"] else "innocent"
            found.append({"day": event.day, "accused": event.data["accused"], **ballots, "verdict": verdict})
    return found
