"""What the heuristic player says: by day, on the stand, at night, and when it bids for the floor.

The Town shares what it found; the others hide behind a role of the Town, say little, and lie when accused.
"""

from __future__ import annotations

from mac_runner.environments.markup import scan
from mac_runner.environments.town_of_salem.bots.beliefs import CLAIMING_DAY, is_informed, is_town_role
from mac_runner.environments.town_of_salem.bots.seat import Seat, is_risky_claim
from mac_runner.environments.town_of_salem.bots.statements import (
    accuse,
    claim,
    clear,
    list_roles,
    take,
    understand,
    write,
)
from mac_runner.environments.town_of_salem.game.events import EventKind
from mac_runner.environments.town_of_salem.game.state import Faction
from mac_runner.environments.town_of_salem.roles import DayAbility


def use_the_day(seat: Seat) -> str | None:
    """A day ability in place of words, when it is worth more; the dead can only wait."""
    used = seat.use(DayAbility)
    if used is not None:
        verb, aim = used
        return write(verb, **aim._asdict(), will=seat.will())
    return None if seat.view.is_alive else write("wait", thought="I am dead.")


def greet(seat: Seat) -> str:
    """Look up one's role where there is a tool for it, then say hello."""
    if "get_role" in seat.view.options.tools and not seat.view.observations:
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
    view = seat.view
    if seat.quarry is not None:
        return seat.say(denounce(seat, seat.quarry), f"They must lynch {seat.quarry}.")
    if view.role.bait:
        return seat.say(_bait(seat), "Let them catch me lying.")
    if not seat.is_town:
        return seat.say(lie(seat), "They must not see what I am.")
    role = view.role.name
    guilty = [name for name, is_guilty in seat.beliefs.findings.items() if is_guilty and name in view.living]
    heard = _heard_from_the_dead(seat)
    if guilty or heard:
        return seat.say(f"{claim(role)} {accuse(dict.fromkeys(guilty + heard))}", "They must know this.")
    if seat.is_accused() or _is_impersonated(seat) or _owes_a_claim(seat):
        return seat.say(f"{claim(role)} {seat.findings()}".strip(), "I must speak up.")
    return _confide(seat) or seat.say("", "I have nothing to tell yet.")


def _confide(seat: Seat) -> str | None:
    """A whisper to a player found innocent who does not know that yet."""
    whispered = {event.text("to") for event in seat.view.private if event.kind is EventKind.WHISPER}
    innocent = [name for name, is_guilty in seat.beliefs.findings.items() if not is_guilty]
    whisper = seat.choices.get("whisper")
    confidants = [name for name in innocent if whisper and name in whisper.targets and name not in whispered]
    if not confidants:
        return None
    text = f"{claim(seat.view.role.name)} {clear(confidants[:1])}"
    return write("whisper", target=confidants[0], text=text, thought="One I can trust.", will=seat.will())


def _heard_from_the_dead(seat: Seat) -> list[str]:
    if not seat.view.role.talks_with_dead:
        return []
    return [name for name, doubt in seat.beliefs.suspicion.items() if doubt >= seat.enough and _is_news(seat, name)]


def _is_news(seat: Seat, name: str) -> bool:
    """Whether one of the dead accused `name` in the night chat."""
    return any(
        name in understand(event.text("text")).accuses
        for event in seat.view.private
        if event.kind is EventKind.CHAT and event.data["channel"] == "dead"
    )


def _owes_a_claim(seat: Seat) -> bool:
    is_late = seat.view.day >= CLAIMING_DAY
    return is_late and not seat.view.role.hides and seat.view.name not in seat.beliefs.claims


def _is_impersonated(seat: Seat) -> bool:
    role = seat.view.role.name
    return not seat.view.role.hides and any(
        claimed == role and name != seat.view.name for name, claimed in seat.beliefs.claims.items()
    )


def lie(seat: Seat) -> str:
    """Little until accused, then the accuser is the liar: what those outside the Town say by day."""
    accusers = [name for name in seat.accusers() if name not in seat.view.team]
    if accusers:
        return f"{claim(seat.cover())} {accuse(accusers[:1])}"
    return claim(seat.cover()) if _owes_a_claim(seat) else ""


def denounce(seat: Seat, quarry: str) -> str:
    """A word against its target, as one who could know."""
    mine = seat.beliefs.claims.get(seat.view.name)
    finders = [role for role in seat.beliefs.unclaimed if is_informed(role) and not is_risky_claim(role)]
    return f"{claim(mine or (seat.pick(finders) if finders else seat.cover()))} {accuse([quarry])}"


def _bait(seat: Seat) -> str:
    """A claim that can hardly be true, so that the Town takes it for a killer caught lying."""
    mine = seat.beliefs.claims.get(seat.view.name)
    taken = sorted(set(seat.beliefs.claims.values()) - set(seat.beliefs.unclaimed))
    return claim(mine or seat.pick([role for role in taken if is_town_role(role)] or [seat.view.role.bait]))


def defence(seat: Seat) -> str:
    """The words of one on trial."""
    if seat.view.role.bait:
        return _bait(seat)
    if seat.quarry is not None:
        return denounce(seat, seat.quarry)
    if not seat.is_town:
        return lie(seat) or claim(seat.cover())
    return f"{claim(seat.view.role.name)} {seat.findings()}".strip()


def chat(seat: Seat) -> str:
    """A word on a night channel, once a night, or nothing."""
    channel = seat.choices["speak"].choices[0]
    match channel:
        case Faction.MAFIA | Faction.VAMPIRE:
            known = seat.known_roles if seat.view.role.shares_roles else {}
            text = f"{list_roles(known)} {take(seat.agreed_victim() or seat.victim())}".strip()
        case "jail":
            text = defence(seat) if seat.is_jailed() else "Who are you?"
        case _:
            # The dead have nothing to hide; a living liar also lies to the dead.
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
