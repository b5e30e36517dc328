"""The truth of a game in words: what became of each claim, and how each night went.

Drawn from `claims` and `nights` of the environment's record; what a record does not hold is not told.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType

from mac_runner.reports.reading import objects, texts
from mac_runner.types import JsonObject, JsonValue

_FOUND = MappingProxyType(
    {
        "mafia": "of the Mafia",
        "vampire": "a Vampire",
        "visited by the mafia": "visited by the Mafia",
    }
)
_SAID = MappingProxyType(
    {
        "mafia": "says that {about} is of the Mafia",
        "not mafia": "says that {about} is not of the Mafia",
        "town": "says that {about} is of the Town",
        "not town": "says that {about} is not of the Town",
        "evil": "speaks against {about}",
        "not evil": "stands up for {about}",
    }
)


def claim_line(claim: JsonObject) -> str:
    """What is claimed, and whether it is so: `claims to be the Sheriff: false`."""
    return f"{_claimed(claim)}: {claim['verdict']}"


def _claimed(claim: JsonObject) -> str:
    about, says, roles = claim["about"], str(claim["says"]), " or ".join(texts(claim.get("roles", [])))
    match claim["kind"]:
        case "role":
            return f"claims to {'have been' if says == 'role held before' else 'be'} the {roles}"
        case "result":
            found = f"one of {roles}" if " or " in roles else f"the {roles}" if roles else _FOUND.get(says, says)
            if says == "visited by":
                found = f"visited by {' and '.join(texts(claim.get('names', []))) or 'nobody'}"
            return f"claims to know that {about} {'is' if says in _STATES or roles else 'was'} {found}"
        case _:
            return f"says that {about} is the {roles}" if roles else _SAID[says].format(about=about)


_STATES = frozenset({"suspicious", "not suspicious", "mafia", "vampire", "not a vampire"})


def night_lines(night: JsonObject) -> Iterator[str]:
    """A night, step by step: what was chosen, what came between, who was attacked and what came of it."""
    for deed in objects(night["deeds"]):
        yield f"{deed['player']} ({deed['role']}) chose to {_deed(deed)}"
    for change in objects(night["changes"]):
        yield _change(change)
    for protection in objects(night["protections"]):
        how, whom, by = protection["how"], protection["player"], protection["by"]
        yield f"{whom} had a {protection['strength']} defence" if how == "defended" else f"{whom} was {how} by {by}"
    for mark in objects(night["marks"]):
        yield f"{mark['player']} passed for {mark['as']}" if "as" in mark else f"{mark['player']} was {mark['mark']}"
    for attack in objects(night["attacks"]):
        met = "no" if attack["defence"] == "none" else attack["defence"]
        defence = "" if met is None else f" against {met} defence"
        who = f"{attack['attacker']} attacked {attack['victim']}"
        yield f"{who} ({attack['cause']}, {attack['strength']}{defence}): {attack['outcome']}"


def _deed(deed: JsonObject) -> str:
    targets = " and ".join(texts(deed["targets"]))
    return f"{str(deed['act']).replace('_', ' ')} {targets}".strip()


def _change(change: JsonObject) -> str:
    whom, how = " and ".join(texts(change["players"])), str(change["how"])
    by = "" if change["by"] is None else f" by {change['by']}"
    return f"{whom}: {how}{by}{_turned(change['was'], change['now'])}"


def _turned(was: JsonValue, now: JsonValue) -> str:
    """What a deed was and what it became."""
    before = _deed(was) if isinstance(was, dict) else ""
    after = _deed(now) if isinstance(now, dict) else ""
    if before and after:
        return f", to {after} and not to {before}"
    return f", to {after}" if after else f", and so did not {before}" if before else ""
