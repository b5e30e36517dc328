"""Trials as a table: whose votes made them, who judged how, and what came of them."""

from __future__ import annotations

from collections.abc import Iterable

from mac_runner.environments.town_of_salem.events import Event, EventKind
from mac_runner.types import JsonObject, JsonValue


def trials_told(events: Iterable[Event]) -> list[JsonValue]:
    """Every trial, in order.

    `votes` are the votes that stood for the accused when the trial opened, each with its place in the order in which
    they were given. A trial that came to no verdict, because the game was stopped, has the verdict None.
    """
    found: list[JsonObject] = []
    standing: dict[str, str] = {}
    for event in events:
        data = event.data
        match event.kind:
            case EventKind.VOTING_START:
                standing = {}
            case EventKind.VOTE:
                # A changed vote is a new one.
                standing.pop(str(data["player"]), None)
                standing[str(data["player"])] = str(data["target"])
            case EventKind.UNVOTE:
                standing.pop(str(data["player"]), None)
            case EventKind.TRIAL:
                found.append({"day": event.day, "accused": data["accused"], "votes": _votes(standing, data), **_OPEN})
                standing = {}
            case EventKind.BALLOTS:
                found[-1] |= data
            case EventKind.VERDICT:
                found[-1]["verdict"] = "guilty" if data["is_guilty"] else "innocent"
            case _:
                pass
    return list[JsonValue](found)


_OPEN: JsonObject = {"guilty": [], "innocent": [], "abstain": [], "verdict": None}


def _votes(standing: dict[str, str], data: JsonObject) -> list[JsonValue]:
    voters = [voter for voter, target in standing.items() if target == data["accused"]]
    return [{"voter": voter, "order": order} for order, voter in enumerate(voters, start=1)]
