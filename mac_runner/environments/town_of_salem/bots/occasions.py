"""What gives a scripted player a reason to speak: its grounds against a player, and what there is to remark on.

All of it follows from what every player saw, so the members of a team and the honest have the same reasons.
"""

from __future__ import annotations

from collections.abc import Iterator

from mac_runner.environments.town_of_salem.bots import reactions
from mac_runner.environments.town_of_salem.bots.assertions import (
    AGAINST_ACCUSER,
    AGAINST_BALLOT,
    AGAINST_RIVAL,
    AGAINST_ROOM,
    AGAINST_SILENT,
    AGAINST_SOURCE,
)
from mac_runner.environments.town_of_salem.bots.beliefs import (
    contradicted,
    is_informed,
    is_town_role,
    silent_players,
    wrong_ballots,
)
from mac_runner.environments.town_of_salem.bots.kinds import Sentence, say
from mac_runner.environments.town_of_salem.bots.seat import Seat
from mac_runner.environments.town_of_salem.bots.statements import understand
from mac_runner.environments.town_of_salem.model.events import UNKNOWN_ROLE, Event, EventKind
from mac_runner.environments.town_of_salem.model.state import LYNCH

_FEW_LIVING = 5
# Below this suspicion the word of one who may know is taken for true.
_TRUSTED = 1.0


def grounds(seat: Seat, name: str) -> Iterator[Sentence]:
    """What this seat can hold against a player, besides findings of its own."""
    view, beliefs = seat.view, seat.beliefs
    for event in view.public:
        if event.kind is not EventKind.SPEECH:
            continue
        speaker, accused = event.text("player"), understand(event.text("text")).accuses
        if speaker == name:
            yield from (
                say(AGAINST_ACCUSER, name=name, victim=victim)
                for victim in accused
                if is_town_role(view.graveyard.get(victim, UNKNOWN_ROLE))
            )
            if view.name in accused:
                yield say(AGAINST_RIVAL, name=name)
        elif name in accused and speaker != view.name and _is_believed(seat, speaker):
            yield say(AGAINST_SOURCE, name=name, other=speaker)
    role = contradicted(view, beliefs.claims).get(name)
    if role is not None:
        yield say(AGAINST_ROOM, name=name, role=role)
    yield from (say(AGAINST_BALLOT, name=name, victim=victim) for victim, judge in wrong_ballots(view) if judge == name)
    if name in silent_players(view, beliefs.claims):
        yield say(AGAINST_SILENT, name=name, day=str(view.day))


def _is_believed(seat: Seat, speaker: str) -> bool:
    shown = seat.view.graveyard.get(speaker)
    if shown is not None:
        return is_informed(shown) and is_town_role(shown)
    return is_informed(seat.beliefs.claims.get(speaker)) and seat.beliefs.suspicion.get(speaker, 0.0) < _TRUSTED


def remarks(seat: Seat) -> list[Sentence]:
    """What this seat could remark on now, without claiming anything."""
    view = seat.view
    found = [remark for event in seat.since_yesterday() for remark in _on(seat, event)]
    claims = seat.beliefs.claims
    silent = [name for name in view.living if name not in claims and name not in (view.name, *view.team)]
    if silent and len(silent) < len(view.living) // 2:
        found.append(say(reactions.REQUEST, name=seat.pick(silent)))
    if len(view.living) <= _FEW_LIVING:
        found.append(say(reactions.FEW_LEFT, count=str(len(view.living))))
    return found


def _on(seat: Seat, event: Event) -> Iterator[Sentence]:
    """What there is to say about one public event of today or yesterday."""
    view = seat.view
    is_today = event.day == view.day
    match event.kind:
        case EventKind.DEATH if event.data["causes"] == [LYNCH.name]:
            role = event.text("role")
            if not is_today and role != UNKNOWN_ROLE:
                kind = reactions.WRONG_LYNCH if is_town_role(role) else reactions.RIGHT_LYNCH
                yield say(kind, victim=event.text("player"))
        case EventKind.DEATH if is_today:
            is_mourned = event.data["role"] == UNKNOWN_ROLE or is_town_role(event.text("role"))
            yield say(reactions.NIGHT_DEATH if is_mourned else reactions.GOOD_RIDDANCE, victim=event.text("player"))
        case EventKind.NO_DEATH if is_today:
            yield say(reactions.QUIET_NIGHT)
        case EventKind.VOTE if not is_today:
            voter, target = event.text("player"), event.text("target")
            is_other = voter not in (view.name, *view.team) and target != view.name
            if (
                is_other
                and voter in view.living
                and (target in view.living or is_town_role(view.graveyard.get(target, "")))
            ):
                yield say(reactions.VOTE_QUESTION, name=voter, other=target)
        case EventKind.SPEECH if is_today and event.data["player"] != view.name:
            yield from _on_speech(seat, event.text("player"), event.text("text"))
        case _:
            pass


def _on_speech(seat: Seat, speaker: str, text: str) -> Iterator[Sentence]:
    said, own = understand(text), (seat.view.name, *seat.view.team)
    if said.claims is not None and speaker not in own:
        yield _on_claim(seat, speaker, said.claims)
    for name in said.accuses:
        if name not in own and name in seat.view.living:
            doubt = seat.beliefs.suspicion.get(name, 0.0)
            kind = reactions.AGREEMENT if doubt >= seat.enough else reactions.DISAGREEMENT
            yield say(kind, name=name, other=speaker)
    yield from (say(reactions.FOUND_BY_OTHERS, name=name, other=speaker) for name in said.clears if name not in own)


def _on_claim(seat: Seat, speaker: str, role: str) -> Sentence:
    claims = seat.beliefs.claims
    if speaker not in contradicted(seat.view, claims):
        return say(reactions.WELCOME, name=speaker)
    own = (speaker, seat.view.name, *seat.view.team)
    rivals = [name for name, other in claims.items() if other == role and name not in own]
    if rivals:
        return say(reactions.SAME_ROLE, name=speaker, other=rivals[-1], role=role)
    return say(reactions.DOUBT_ROOM, name=speaker, role=role)
