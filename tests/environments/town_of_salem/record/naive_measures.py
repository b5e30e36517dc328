"""The measures of a game counted a second time, slowly, from its transcript alone.

Nothing of the counting code is used. Each count is a question asked of the whole list of events, or of the claims.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from mac_runner.types import JsonObject, TurnRecord
from tests.environments.town_of_salem.facts import MAFIA, NEUTRAL, TOWN

EVIL = MAFIA | {"serial killer", "werewolf", "arsonist", "vampire", "witch"}
KEY_ROLES = {"sheriff", "doctor", "investigator", "jailor", "mayor", "godfather"}
UNIQUE = {"Jailor", "Mayor", "Godfather", "Mafioso", "Veteran", "Retributionist", "Werewolf"}
AGAINST = {"suspicious", "mafia", "vampire"}


class _Game:
    def __init__(self, outcome: Any, record: Any) -> None:
        self.outcome, self.events = outcome, record["events"]
        self.claims, self.nights = record["claims"], record["nights"]
        self.dealt = {player["name"]: player["role"] for player in record["cast"]}

        self.dead: dict[str, int] = {}
        self.held: dict[str, list[tuple[int, str]]] = {name: [] for name in self.dealt}
        for place, event in enumerate(self.events):
            if event["kind"] == "death":
                self.dead[event["data"]["player"]] = place
            elif event["kind"] in ("role_card", "converted"):
                for name in event["audience"]:
                    self.held[name].append((place, event["data"]["role"].lower()))

    def role(self, name: str, place: int) -> str:
        held = [role for since, role in self.held[name] if since < place]
        return str(held[-1]) if held else str(self.dealt[name])

    def is_evil(self, name: str, place: int) -> bool:
        return self.role(name, place) in EVIL

    def chance(self, name: str, place: int) -> int:
        others = [other for other in self.dealt if other != name and self.dead.get(other, place) >= place]
        return round(1000 * sum(self.is_evil(other, place) for other in others) / len(others))

    def is_one_side(self, one: str, at: int, other: str, then: int) -> bool:
        return one == other or (self.role(one, at) in MAFIA and self.role(other, then) in MAFIA)

    def standing(self, place: int) -> dict[str, str]:
        """The votes that stand before an event."""
        votes: dict[str, str] = {}
        for event in self.events[:place]:
            if event["kind"] in ("voting_start", "trial"):
                votes = {}
            elif event["kind"] == "vote":
                votes[event["data"]["player"]] = event["data"]["target"]
            elif event["kind"] == "unvote":
                votes.pop(event["data"]["player"], None)
        return votes

    def places(self, kind: str) -> list[int]:
        return [place for place, event in enumerate(self.events) if event["kind"] == kind]


def leaning(claim: Any) -> int:
    if claim["kind"] in ("accusation", "defence"):
        return -1 if claim["kind"] == "accusation" else 1
    if claim["says"] in AGAINST | {"not suspicious"}:
        return -1 if claim["says"] in AGAINST else 1
    if not claim.get("roles") or claim["says"] == "role held before":
        return 0
    of_town = [role.lower() in TOWN for role in claim["roles"]]
    return 1 if all(of_town) else 0 if any(of_town) else -1


def counted_anew(outcome: JsonObject, record: JsonObject, turns: Sequence[TurnRecord]) -> dict[str, dict[str, int]]:
    game = _Game(outcome, record)
    rows: dict[str, Counter[str]] = {name: Counter() for name in game.dealt}
    _votes(game, rows)
    _trials(game, rows)
    _claims(game, rows)
    _lies(game, rows)
    _nights(game, rows)
    _form(rows, turns)
    for player in game.outcome["players"]:
        if player["role"] in KEY_ROLES:
            rows[player["agent"]].update(kr=1, ka=int(player["alive"]))
    return {name: {key: count for key, count in row.items() if count} for name, row in rows.items()}


def _votes(game: _Game, rows: dict[str, Counter[str]]) -> None:
    for place in game.places("vote"):
        event = game.events[place]
        voter, target, day = event["data"]["player"], event["data"]["target"], event["day"]
        is_right = game.is_evil(target, place)
        rows[voter].update({f"vn.{day}": 1, f"vr.{day}": is_right, f"vc.{day}": game.chance(voter, place)})
        others = {who: whom for who, whom in game.standing(place).items() if who != voter}
        if target not in others.values():
            ends = [e for e in game.events[place:] if e["kind"] in ("trial", "voting_start", "night_start")]
            rows[voter].update(nm=1, nt=bool(ends) and ends[0]["data"].get("accused") == target)
        following = game.events[place + 1] if place + 1 < len(game.events) else {"kind": ""}
        if following["kind"] == "trial":
            rows[voter].update(vd=1, ve=is_right)


def _trials(game: _Game, rows: dict[str, Counter[str]]) -> None:
    for place in game.places("verdict"):
        event = game.events[place]
        accused, is_guilty, day = event["data"]["accused"], event["data"]["is_guilty"], event["day"]
        opened = max(start for start in game.places("trial") if start < place)
        ballots = game.events[place - 1]["data"]
        guilty, innocent = ballots["guilty"], ballots["innocent"]
        is_evil = game.is_evil(accused, place)
        for judge in (*guilty, *innocent):
            condemns = judge in guilty
            chance = game.chance(judge, place)
            without = (len(guilty) - condemns) > (len(innocent) - (not condemns))
            is_right = condemns == is_evil
            rows[judge].update({f"bn.{day}": 1, f"br.{day}": is_right})
            rows[judge][f"bc.{day}"] += chance if condemns else 1000 - chance
            rows[judge].update(bd=without != is_guilty, be=without != is_guilty and is_right)
            if condemns and is_guilty:
                rows[judge].update(ly=1, lm=not is_evil)
        rows[accused].update(tr=1, aq=not is_guilty)
        said = [e for e in game.events[opened:place] if e["kind"] == "speech" and e["phase"] == "defence"]
        if said:
            backers = [voter for voter, target in game.standing(opened).items() if target == accused]
            swayed = sum(voter not in guilty for voter in backers)
            rows[accused].update(td=1, ta=not is_guilty, sv=len(backers), sw=swayed)
        defenders = {
            claim["player"]
            for claim in game.claims
            if claim["event"] < place and claim["day"] == day and claim["channel"] == "public"
            if claim["about"] == accused != claim["player"] and leaning(claim) > 0
        }
        for name in defenders:
            rows[name].update(fo=1, fa=not is_guilty)


def _claims(game: _Game, rows: dict[str, Counter[str]]) -> None:
    for claim in game.claims:
        row = rows[claim["player"]]
        row[{"honest": "ch", "lie": "cl", "unclear": "cu"}[claim["verdict"]]] += 1
        row["cw"] += claim["verdict"] == "honest" and claim["is_so"] is False
        is_against = claim["kind"] == "accusation" or (claim["kind"] == "result" and claim["says"] in AGAINST)
        if is_against and claim["about"] != claim["player"]:
            role = game.role(claim["about"], claim["event"])
            row.update(ar=role in EVIL, aw=role in TOWN)
            assert role in EVIL | TOWN | NEUTRAL


def _lies(game: _Game, rows: dict[str, Counter[str]]) -> None:
    for place, lie in enumerate(game.claims):
        if lie["verdict"] != "lie":
            continue
        speaker, row = lie["player"], rows[lie["player"]]
        if not row["li"]:
            row.update(li=1, ld=lie["day"])
        row["lb"] += not _is_accused(game, speaker, lie["event"])
        row["lc"] += _is_contradicted(game, place, lie)
        if lie["channel"] == "public" and leaning(lie):
            had_chance, followers = _followers(game, lie)
            if had_chance:
                row.update(lh=1, lv=followers > 0, lf=followers)


def _is_accused(game: _Game, name: str, place: int) -> bool:
    votes = any(e["kind"] == "vote" and e["data"]["target"] == name for e in game.events[:place])
    return votes or any(
        claim["event"] < place and claim["channel"] == "public" and leaning(claim) < 0
        for claim in game.claims
        if claim["about"] == name != claim["player"]
    )


def _is_contradicted(game: _Game, place: int, lie: Any) -> bool:
    shown = [
        event["data"]["role"]
        for event in game.events[lie["event"] + 1 :]
        if event["kind"] in ("death", "revealed") and event["data"]["player"] == lie["about"]
    ]
    if any(role != "unknown" and _is_untrue(lie, role) for role in shown):
        return True
    return any(_is_contrary(lie, claim) for claim in game.claims[place + 1 :] if claim["channel"] == "public")


def _is_contrary(lie: Any, claim: Any) -> bool:
    roles, others = lie.get("roles", []), claim.get("roles", [])
    if lie["about"] == claim["about"] and "role held before" not in (lie["says"], claim["says"]):
        if roles and others and not set(roles) & set(others):
            return True
        if leaning(lie) * leaning(claim) < 0:
            return True
    is_same_role = lie["kind"] == claim["kind"] == "role" and roles == others and len(others) == 1
    return bool(is_same_role and others[0] in UNIQUE and lie["about"] != claim["player"])


def _is_untrue(lie: Any, shown: str) -> bool:
    role = shown.lower()
    match lie["says"]:
        case "role" | "one of the roles":
            return bool(shown not in lie["roles"])
        case "mafia" | "not mafia":
            return bool((role in MAFIA) != (lie["says"] == "mafia"))
        case "town" | "not town":
            return bool((role in TOWN) != (lie["says"] == "town"))
        case "evil" | "suspicious":
            return role in TOWN
        case "not evil" | "not suspicious":
            return role in EVIL
        case _:
            return False


def _followers(game: _Game, lie: Any) -> tuple[bool, int]:
    """Whether there were votes or ballots later on the day of a lie, and those of other sides in line with it."""
    had_chance, followers = False, 0
    for place, event in enumerate(game.events):
        if place <= lie["event"] or event["day"] != lie["day"]:
            continue
        if event["kind"] == "vote":
            acts = [(event["data"]["player"], event["data"]["target"], True)]
        elif event["kind"] == "ballots":
            accused = game.events[place + 1]["data"]["accused"]
            acts = [
                (name, accused, side == "guilty") for side in ("guilty", "innocent") for name in event["data"][side]
            ]
        else:
            continue
        had_chance = had_chance or bool(acts)
        for name, target, is_against in acts:
            is_in_line = target == lie["about"] and is_against == (leaning(lie) < 0)
            followers += is_in_line and not game.is_one_side(name, place, lie["player"], lie["event"])
    return had_chance, followers


def _nights(game: _Game, rows: dict[str, Counter[str]]) -> None:
    for night in game.nights:
        for deed in night["deeds"]:
            rows[deed["player"]].update(na=1, ne=_had_effect(night, deed))


def _had_effect(night: Any, deed: Any) -> bool:
    name, targets = deed["player"], deed["targets"]
    killed = [(attack["attacker"], attack["victim"]) for attack in night["attacks"] if attack["outcome"] == "killed"]
    changed = {(change["how"], who) for change in night["changes"] for who in change["players"]}
    is_stopped = bool({("blocked", name), ("jailed", name), ("target in jail", name)} & changed)
    match deed["act"]:
        case "kill":
            if ("sent by the team", name) in changed:
                return any(attacker == name for attacker, _ in killed)
            if ("left to another", name) in changed:
                # The kill of the Mafia is one; it was this one if it went where this one wanted it.
                done = [change["now"]["targets"] for change in night["changes"] if change["how"] == "sent by the team"]
                hands = [deed for deed in night["deeds"] if deed["act"] == "kill" and deed["player"] != name]
                aims = done or [hand["targets"] for hand in hands]
                return targets in aims and any(
                    attack["cause"] == "mafia" and attack["victim"] == targets[0] and attack["outcome"] == "killed"
                    for attack in night["attacks"]
                )
            return not is_stopped and any(attacker == name for attacker, _ in killed)
        case "execute" | "haunt":
            return any(attacker == name for attacker, _ in killed)
        case "heal":
            is_healer = any(kept["by"] == name for kept in night["protections"])
            return is_healer and any(attack["victim"] == targets[0] for attack in night["attacks"])
        case "investigate" | "interrogate":
            return any(found["player"] == name for found in night["findings"])
        case "block":
            return any(c["how"] == "blocked" and c["by"] == name and c["was"] is not None for c in night["changes"])
        case "frame":
            return not is_stopped
        case other:
            raise ValueError(f"no rule for {other}")


def _form(rows: dict[str, Counter[str]], turns: Sequence[TurnRecord]) -> None:
    for turn in turns:
        row, receipt = rows[turn.turn.agent], turn.receipt
        kind = receipt.kind.value
        row.update(re=1, tu=kind in ("act", "default"), si=kind == "act" and receipt.detail == "wait")
        row.update(co=kind == "correction", de=kind == "default", to=kind == "observation")
        if receipt.cause is not None:
            row[f"x.{receipt.cause}"] += 1
