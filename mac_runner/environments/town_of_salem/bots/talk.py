"""FIXME What the heuristic player does by day in place of words: the day abilities, by verb.

What the heuristic player says: by day, on the stand, at night and when it bids for the floor.

The Town tells what it found; everybody else hides behind a role of the Town, says little, and lies when accused.
"""

from __future__ import annotations

from collections import Counter

from mac_runner.environments.markup import scan
from mac_runner.environments.town_of_salem.bots.beliefs import CLAIMING_DAY, informed, is_town_role
from mac_runner.environments.town_of_salem.bots.seat import Seat, agreed_prey, prey
from mac_runner.environments.town_of_salem.bots.statements import (
    accuse,
    claim,
    clear,
    take,
    tell_roles,
    understand,
    write,
)
from mac_runner.environments.town_of_salem.game.events import EventKind
from mac_runner.environments.town_of_salem.game.lobbies import roles_in_play
from mac_runner.environments.town_of_salem.game.state import Faction

_REVEAL_FROM_DAY = 3
# How many votes short of a trial a vote is close.
_CLOSE = 2


def use_the_day(seat: Seat) -> str | None:
    """A day ability in place of words, when it is worth more."""
    if "jail" in seat.choices and not _has_jailed_today(seat):
        target = _prisoner(seat)
        if target is not None:
            return write("jail", target=target, thought=f"I want a word with {target}.", will=seat.will())
    if "reveal" in seat.choices and (seat.view.day >= _REVEAL_FROM_DAY or _is_vote_close(seat)):
        return write("reveal", thought="It is time they know me.", will=seat.will())
    if "seance" in seat.choices:
        trusted = min(seat.beliefs.suspicion, key=lambda name: seat.beliefs.suspicion[name])
        return write("seance", target=trusted, thought=f"I trust {trusted} most.")
    return None if seat.view.is_alive else write("wait", thought="I am dead.")


def _prisoner(seat: Seat) -> str | None:
    """Whom to lock up: the worst of those who can be executed, else one of whom nothing is known, if that is safe."""
    suspicion = seat.beliefs.suspicion
    can_execute = seat.view.day > 1 and seat.view.uses.get("execute", 0) > 0
    guilty = sorted((name for name in suspicion if suspicion[name] >= seat.enough), key=lambda name: -suspicion[name])
    if guilty and can_execute:
        # The Town will see to the worst of all.
        return guilty[min(1, len(guilty) - 1)]
    if not any(role.kills_jailors for role in roles_in_play(seat.view.lobby)):
        unknown = [name for name in suspicion if name not in seat.beliefs.claims]
        return seat.pick(unknown or list(suspicion))
    trusted = seat.worth_protecting([*suspicion])
    return seat.pick(trusted) if trusted else None


def _has_jailed_today(seat: Seat) -> bool:
    return any(event.kind is EventKind.JAIL_CHOSEN and event.day == seat.view.day for event in seat.view.private)


def _is_vote_close(seat: Seat) -> bool:
    """Whether somebody is about to be put on trial."""
    given = Counter(seat.view.votes.values())
    return bool(given) and max(given.values()) >= seat.view.votes_needed - _CLOSE


# What no liar claims: a Mayor can show that he is one, and a Jailor finds out who says to be him.
_TOO_BOLD = frozenset({"Mayor", "Jailor"})


def greet(seat: Seat) -> str:
    """Look up one's role, then say hello."""
    if not seat.view.observations:
        asked = f'<tool_request name="get_role">{seat.view.role.name}</tool_request>'
        return f"<thinking>Let me look at what I can do.</thinking>\n{asked}"
    return use_the_day(seat) or seat.say(f"Good day. I am {seat.view.name}.", "Nothing to go on yet.")


def discuss(seat: Seat) -> str:
    """What to say in the discussion, once a day, or nothing."""
    reply = _speech(seat)
    words = next((tag.text for tag in scan(reply, ("speak",)).tags), "")
    return seat.say("", "I have said it.") if words and _has_said_today(seat, words) else reply


def bid(seat: Seat) -> str:
    """Most for an accusation, less for other words, nothing for what it has said today already."""
    words = next((tag.text for tag in scan(_speech(seat), ("speak",)).tags), "")
    if not words or _has_said_today(seat, words):
        return write("bid", choice="0", thought="Let me hear the others.")
    is_accusing = bool(understand(words).accuses)
    return write("bid", choice="4" if is_accusing else "2", thought=f"I would say: {words}")


def _has_said_today(seat: Seat, words: str) -> bool:
    said = {"player": seat.view.name, "text": words}
    return any(
        event.kind is EventKind.SPEECH and event.day == seat.view.day and event.data == said
        for event in seat.view.public
    )


def _speech(seat: Seat) -> str:
    """What there is to say, or nothing."""
    view, role = seat.view, seat.view.role.name
    if seat.quarry is not None:
        return seat.say(denounce(seat, seat.quarry), f"They must lynch {seat.quarry}.")
    if role == "Jester":
        return seat.say(_bait(seat), "Let them catch me lying.")
    if not seat.is_town:
        return seat.say(lie(seat), "They must not see what I am.")
    role = _claimed_role(seat)
    guilty = [name for name, is_guilty in seat.beliefs.findings.items() if is_guilty and name in view.living]
    heard = _heard_from_the_dead(seat)
    if guilty or heard:
        return seat.say(f"{claim(role)} {accuse(dict.fromkeys(guilty + heard))}", "They must know this.")
    if seat.is_accused() or _is_impersonated(seat) or _owes_a_claim(seat):
        return seat.say(f"{claim(role)} {seat.findings()}".strip(), "I must speak up.")
    return _confide(seat) or seat.say("", "I have nothing to tell yet.")


def _confide(seat: Seat) -> str | None:
    """A whisper to somebody one has found innocent and has not told so yet."""
    told = {str(event.data["to"]) for event in seat.view.private if event.kind is EventKind.WHISPER}
    innocent = [name for name, is_guilty in seat.beliefs.findings.items() if not is_guilty]
    whisper = seat.choices.get("whisper")
    confidants = [name for name in innocent if whisper and name in whisper.targets and name not in told]
    if not confidants:
        return None
    text = f"{claim(seat.view.role.name)} {clear(confidants[:1])}"
    return write("whisper", target=confidants[0], text=text, thought="One I can trust.", will=seat.will())


def _heard_from_the_dead(seat: Seat) -> list[str]:
    if seat.view.role.name != "Medium":
        return []
    return [name for name, doubt in seat.beliefs.suspicion.items() if doubt >= seat.enough and _is_news(seat, name)]


def _is_news(seat: Seat, name: str) -> bool:
    """Whether one of the dead has accused `name` in the night chat."""
    return any(
        name in understand(str(event.data["text"])).accuses
        for event in seat.view.private
        if event.kind is EventKind.CHAT and event.data["channel"] == "dead"
    )


def _owes_a_claim(seat: Seat) -> bool:
    is_late = seat.view.day >= CLAIMING_DAY
    return is_late and not _is_in_hiding(seat) and seat.view.name not in seat.beliefs.claims


def _is_in_hiding(seat: Seat) -> bool:
    """A Jailor who says so is the first to be killed, and has other means against a liar."""
    return seat.view.role.name == "Jailor"


def _is_impersonated(seat: Seat) -> bool:
    role = seat.view.role.name
    return not _is_in_hiding(seat) and any(
        claimed == role and name != seat.view.name for name, claimed in seat.beliefs.claims.items()
    )


def lie(seat: Seat) -> str:
    """What whoever is not of the Town says by day: little, until accused; then the word of one against the other."""
    accusers = [name for name in seat.accusers() if name not in seat.view.team]
    if accusers:
        return f"{claim(cover(seat))} {accuse(accusers[:1])}"
    return claim(cover(seat)) if _owes_a_claim(seat) else ""


def denounce(seat: Seat, quarry: str) -> str:
    """An Executioner's word against his target, as one who could know."""
    mine = seat.beliefs.claims.get(seat.view.name)
    finders = [role for role in seat.beliefs.unclaimed if role in informed() and role not in _TOO_BOLD]
    return f"{claim(mine or (seat.pick(finders) if finders else cover(seat)))} {accuse([quarry])}"


def _bait(seat: Seat) -> str:
    """A claim that cannot well be true, so that the Town takes a Jester for a killer caught lying."""
    mine = seat.beliefs.claims.get(seat.view.name)
    taken = sorted(set(seat.beliefs.claims.values()) - set(seat.beliefs.unclaimed))
    return claim(mine or seat.pick([role for role in taken if is_town_role(role)] or ["Sheriff"]))


def cover(seat: Seat) -> str:
    """A role of the Town to hide behind: one's earlier claim, else one that the list has room for."""
    mine = seat.beliefs.claims.get(seat.view.name)
    if mine is not None:
        return mine
    free = [role for role in seat.beliefs.unclaimed if is_town_role(role) and role not in _TOO_BOLD]
    if free:
        return seat.pick(free)
    roles = [role.name for role in roles_in_play(seat.view.lobby) if role.faction is Faction.TOWN]
    dead = set(seat.view.graveyard.values())
    return seat.pick([role for role in roles if role not in dead] or roles or [seat.view.role.name])


def defence(seat: Seat) -> str:
    """The words of one on trial."""
    if seat.view.role.name == "Jester":
        return _bait(seat)
    if seat.quarry is not None:
        return denounce(seat, seat.quarry)
    if not seat.is_town:
        return lie(seat) or claim(cover(seat))
    return f"{claim(_claimed_role(seat))} {seat.findings()}".strip()


def _claimed_role(seat: Seat) -> str:
    """Who is of the Town has nothing to hide."""
    return seat.view.role.name if seat.is_town else cover(seat)


def chat(seat: Seat) -> str:
    """A word on a night channel, once a night, or nothing."""
    channel = seat.choices["speak"].choices[0]
    match channel:
        case "mafia" | "vampire":
            told = seat.known_roles if seat.view.role.name == "Consigliere" else {}
            text = f"{tell_roles(told)} {take(agreed_prey(seat) or prey(seat))}".strip()
        case "jail":
            text = defence(seat) if seat.is_jailed() else "Who are you?"
        case _:
            # The dead have nothing to hide; among the living, whoever lies by day lies to a dead Medium too.
            dead = f"{claim(seat.view.role.name, dead=True)} {seat.findings()}".strip()
            text = defence(seat) if seat.view.is_alive else dead
    if _has_said_tonight(seat, channel, text):
        return seat.say("", "I have said it.")
    return write("speak", text=text, choice=channel, thought="Here I can be open." if channel != "jail" else "")


def _has_said_tonight(seat: Seat, channel: str, words: str) -> bool:
    # Some go by their role in a channel.
    names = (seat.view.name, seat.view.role.name)
    return any(
        event.kind is EventKind.CHAT
        and event.day == seat.view.day
        and (event.data["channel"], event.data["text"]) == (channel, words)
        and event.data["player"] in names
        for event in seat.view.private
    )
