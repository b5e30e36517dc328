"""Scripted players: they see what their seat may see, and answer in the markup a model answers in.

`random` is uniform over its legal acts. `heuristic` plays to win by simple rules, from what its seat may know. The
Town shares findings, believes proven words, votes for the most suspicious and protects those who know. The Mafia
kills those who know, keeps quiet, and lies when accused.

Two show what words are worth, and leave out a part of them: what `silent` and `honest` vote, judge and do at night is
the choice of `heuristic`, from what they see.

What a player has to say is a list of sentences (`speech`), put into words at the end (`Seat.words`). Its reasons, the
grounds against a player and what there is to remark on, follow from what every player saw, so the members of a team
and the honest have the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import wraps
from random import Random
from types import MappingProxyType
from typing import Final, NamedTuple

from mac_runner.environments.base import Policy
from mac_runner.environments.town_of_salem.bots.seat import (
    CLAIMING_DAY,
    TRUSTED,
    Finding,
    Seat,
    is_informed,
    is_town_role,
)
from mac_runner.environments.town_of_salem.bots.speech import (
    Sentence,
    Statement,
    line,
    points_in,
    points_of,
    say,
    understand,
    write,
)
from mac_runner.environments.town_of_salem.bots.tactics import use
from mac_runner.environments.town_of_salem.model.events import UNKNOWN_ROLE, Event, EventKind, with_article
from mac_runner.environments.town_of_salem.model.state import LYNCH, TEAMS, Ballot, Faction, Phase
from mac_runner.environments.town_of_salem.roles import ROLES, DayAbility, NightAbility
from mac_runner.environments.town_of_salem.roles.town import JAILED
from mac_runner.environments.town_of_salem.rules.acts import ACTS
from mac_runner.environments.town_of_salem.seat.knowledge import SeatView

__all__ = ["POLICIES"]

_WORDS: Final = frozenset({"speak", "whisper", "will", "death_note"})
"""The acts that others hear or read."""
_FEW_LIVING = 5
# How often a player does what it might as well leave.
_ANSWERS_GREETING = 0.3
_REMARKS = 0.15
_REMARKS_FIRST = 0.25
_REPEATS = 0.2
_ANSWERS_AGAIN = 0.5
_ACCUSES = 0.15
_TELLS_NIGHT = 0.7
_GIVES_REASON = 0.6
_SAYS_MORE = 0.4
_ASKS_AGAIN = 0.2
# From this number on a player names those it cleared in one sentence.
_MANY = 3


class Speech(NamedTuple):
    """What there is to say, the private thought beside it, and for a whisper its hearer."""

    sentences: list[Sentence]
    thought: str
    to: str = ""


# By day.


def _greet(seat: Seat) -> str:
    speeches = (event for event in seat.since(seat.view.day) if event.kind is EventKind.SPEECH)
    before = next((event.text("player") for event in speeches), "")
    is_answer = before and seat.chance.random() < _ANSWERS_GREETING
    return seat.say([say("greeting back", name=before) if is_answer else say("greeting")], line("greeting"))


def _discuss(seat: Seat) -> str:
    """What to say in the discussion: what others must know, else perhaps a remark, or nothing."""
    speech = _speech(seat)
    if speech.to:
        return seat.say(speech.sentences, speech.thought, "whisper", target=speech.to)
    if speech.sentences and not _is_said(seat, speech, may_repeat=True):
        first = _remark(seat, _REMARKS_FIRST) if len(speech.sentences) == 1 else []
        return seat.say([*first, *speech.sentences], speech.thought)
    accusation = _accuse(seat)
    if accusation:
        return seat.say(accusation, line("accusation"))
    remark = _remark(seat, _REMARKS)
    return seat.say(remark, line("remark" if remark else "said"))


def _bid(seat: Seat) -> str:
    """Most for an accusation, less for other words, nothing for what it has said today already."""
    speech = _speech(seat)
    if speech.to or not speech.sentences or _is_said(seat, speech, may_repeat=False):
        return write("bid", choice="0", thought=line("no bid"))
    points = points_in(speech.sentences)
    is_accusing = any(point == "against" for point, _ in points)
    about = " and ".join(sorted(name for _, name in points))
    return write("bid", choice="4" if is_accusing else "2", thought=line("bid", names=about))


def _is_said(seat: Seat, speech: Speech, *, may_repeat: bool) -> bool:
    """Whether this seat has claimed all of it today, or on an earlier day and does not say it again."""
    today = points_of(event.text("text") for event in seat.speeches if event.day == seat.view.day)
    points = points_in(speech.sentences)
    if points <= today:
        return True
    if not points <= seat.points_made:
        return False
    how_often = (_ANSWERS_AGAIN if seat.accusers_today else _REPEATS) if may_repeat and not today else 0.0
    return seat.chance.random() >= how_often


def _speech(seat: Seat) -> Speech:
    if (hidden := _hidden(seat)) is not None:
        return hidden
    view, mine, findings = seat.view, seat.view.role.name, seat.findings
    guilty = [name for name, finding in findings.items() if finding.is_guilty and name in view.living]
    heard = [name for name in _heard_from_the_dead(seat) if name not in guilty]
    if guilty or heard:
        told = [_found(seat, name, findings[name]) for name in guilty]
        told += [say("heard from the dead", name=name) for name in heard]
        return Speech([*_rebut(seat), *_claim(seat, mine), *told], line("findings"))
    is_impersonated = not view.role.hides and _rivals(seat, mine)
    if seat.accusers_today or is_impersonated or _owes_a_claim(seat):
        answer = _answer(seat, mine, *seat.accusers_today[-1:])
        return Speech([*answer, *_claim(seat, mine), *_findings(seat)], line("doubted"))
    # A whisper to a player found innocent who does not know that yet.
    whispered = {event.text("to") for event in view.private if event.kind is EventKind.WHISPER}
    hearers = seat.choices["whisper"].targets if "whisper" in seat.choices else ()
    for name, finding in findings.items():
        if not finding.is_guilty and name in hearers and name not in whispered:
            told = [say("confidence"), say("claim", role=mine), _found(seat, name, finding)]
            return Speech(told, line("confidence"), to=name)
    return Speech([], line("nothing to tell"))


def _any_of(seat: Seat, sentences: Iterable[Sentence]) -> list[Sentence]:
    """One of these, each kind as likely as another; none where there is none."""
    by_kind: dict[str, list[Sentence]] = {}
    for sentence in sentences:
        by_kind.setdefault(sentence.kind.name, []).append(sentence)
    return [seat.chance.choice(seat.chance.choice([*by_kind.values()]))] if by_kind else []


# Remarks: what to say without claiming anything.


def _remark(seat: Seat, how_often: float) -> list[Sentence]:
    if seat.chance.random() >= how_often or any(event.day == seat.view.day for event in seat.speeches):
        return []
    view = seat.view
    found = [remark for event in seat.since(view.day - 1) for remark in _on(seat, event)]
    silent = [name for name in seat.suspects if name not in seat.claims and name not in view.team]
    if silent and len(silent) < len(view.living) // 2:
        found.append(say("request", name=seat.pick(silent)))
    if len(view.living) <= _FEW_LIVING:
        found.append(say("few left", count=str(len(view.living))))
    return _any_of(seat, found)


def _on(seat: Seat, event: Event) -> Iterator[Sentence]:
    """What there is to say about one public event of today or yesterday."""
    view = seat.view
    is_today = event.day == view.day
    match event.kind:
        case EventKind.DEATH if event.data["causes"] == [LYNCH.name]:
            role = event.text("role")
            if not is_today and role != UNKNOWN_ROLE:
                yield say("wrong lynch" if is_town_role(role) else "right lynch", victim=event.text("player"))
        case EventKind.DEATH if is_today:
            is_mourned = event.data["role"] == UNKNOWN_ROLE or is_town_role(event.text("role"))
            yield say("night death" if is_mourned else "good riddance", victim=event.text("player"))
        case EventKind.NO_DEATH if is_today:
            yield say("quiet night")
        case EventKind.VOTE if not is_today:
            voter, target = event.text("player"), event.text("target")
            is_other = voter not in (view.name, *view.team) and target != view.name
            was_town = is_town_role(view.graveyard.get(target))
            if is_other and voter in view.living and (target in view.living or was_town):
                yield say("vote question", name=voter, other=target)
        case EventKind.SPEECH if is_today and event.data["player"] != view.name:
            yield from _on_speech(seat, event.text("player"), understand(event.text("text")))
        case _:
            pass


def _on_speech(seat: Seat, speaker: str, said: Statement) -> Iterator[Sentence]:
    own = (seat.view.name, *seat.view.team)
    if said.claims is not None and speaker not in own:
        rivals = [name for name in _rivals(seat, said.claims) if name not in (speaker, *own)]
        if not seat.lies.get(speaker):
            yield say("welcome", name=speaker)
        elif rivals:
            yield say("same role", name=speaker, other=rivals[-1], role=said.claims)
        else:
            yield say("doubt room", name=speaker, role=said.claims)
    for name in said.accuses:
        if name not in own and name in seat.view.living:
            is_shared = seat.doubt(name) >= seat.enough
            yield say("agreement" if is_shared else "disagreement", name=name, other=speaker)
    yield from (say("found by others", name=name, other=speaker) for name in said.clears if name not in own)


# Claims and findings.


def _claim(seat: Seat, role: str) -> list[Sentence]:
    """That the speaker is a role, with what its holder did last night, if anything."""
    if any(claimed == role for _, claimed in seat.points_made):
        return [say("claim again", role=role)]
    account = _account(seat, role) if seat.chance.random() < _TELLS_NIGHT else ""
    return [say("account", role=role, account=account) if account else say("claim", role=role)]


def _account(seat: Seat, role: str) -> str:
    """What the speaker did last night, or a liar claims to have done; "" for nothing."""
    view, night = seat.view, seat.view.day - 1
    told = {a.verb: a.account for a in ROLES[role.lower()].abilities if isinstance(a, NightAbility) and a.account}
    if not told or night < 1:
        return ""
    last_night = [event for event in view.private if event.day == night]
    if any(event.notice.hinders for event in last_night):
        return ""
    if role != view.role.name:
        return seat.pick([*told.values()]).format(target=seat.pick([n for n in view.living if n != view.name]))
    for event in last_night:
        if event.kind is EventKind.ACTION_CHOSEN and event.data["verb"] in told:
            (target,) = event.names("targets")[:1] or [view.name]
            return "" if target == view.name else told[event.text("verb")].format(target=target)
    return ""


def _owes_a_claim(seat: Seat) -> bool:
    is_late = seat.view.day >= CLAIMING_DAY
    return is_late and not seat.view.role.hides and seat.view.name not in seat.claims


def _found(seat: Seat, name: str, finding: Finding) -> Sentence:
    """One finding, if it is a result perhaps with its night."""
    is_dated = seat.chance.random() < _TELLS_NIGHT and finding.kind in ("guilty", "innocent")
    return say(f"{finding.kind} night" if is_dated else finding.kind, name=name, night=str(finding.day))


def _findings(seat: Seat) -> list[Sentence]:
    guilty = [_found(seat, name, finding) for name, finding in seat.findings.items() if finding.is_guilty]
    innocent = {name: finding for name, finding in seat.findings.items() if not finding.is_guilty}
    if len(innocent) >= _MANY:
        *names, last = innocent
        return [*guilty, say("cleared", names=f"{', '.join(names)} and {last}")]
    return [*guilty, *(_found(seat, name, finding) for name, finding in innocent.items())]


def _heard_from_the_dead(seat: Seat) -> list[str]:
    """The suspicious whom one of the dead accused in the night chat."""
    if not seat.view.role.talks_with_dead:
        return []
    chats = (e for e in seat.view.private if e.kind is EventKind.CHAT and e.data["channel"] == "dead")
    accused = {name for event in chats for name in understand(event.text("text")).accuses}
    return [name for name, doubt in seat.suspicion.items() if doubt >= seat.enough and name in accused]


# Accusations, and answers to them.


def _accuse(seat: Seat) -> list[Sentence]:
    """A word against the most suspicious, once, with the reason this seat has."""
    if seat.chance.random() >= _ACCUSES:
        return []
    name = seat.most_suspicious()
    if seat.doubt(name) < seat.enough or ("against", name) in seat.points_made:
        return []
    return _any_of(seat, _grounds(seat, name))


def _grounds(seat: Seat, name: str) -> Iterator[Sentence]:
    """What this seat can hold against a player, besides findings of its own."""
    view = seat.view
    for event in view.public:
        if event.kind is not EventKind.SPEECH:
            continue
        speaker, accused = event.text("player"), understand(event.text("text")).accuses
        if speaker == name:
            buried = [victim for victim in accused if is_town_role(view.graveyard.get(victim))]
            yield from (say("against accuser", name=name, victim=victim) for victim in buried)
            if view.name in accused:
                yield say("against rival", name=name)
        elif name in accused and speaker != view.name:
            shown = view.graveyard.get(speaker)
            is_believed = is_town_role(shown) if shown is not None else seat.doubt(speaker) < TRUSTED
            if is_believed and is_informed(shown or seat.claims.get(speaker)):
                yield say("against source", name=name, other=speaker)
    if seat.lies.get(name):
        yield say("against room", name=name, role=seat.claims[name])
    yield from (
        say("against ballot", name=name, victim=victim) for victim, judge in seat.wrong_ballots if judge == name
    )
    if name in seat.silent:
        yield say("against silent", name=name, day=str(view.day))


def _rebut(seat: Seat) -> list[Sentence]:
    """An answer to the one who last accused this seat today."""
    accusers = [name for name in seat.accusers_today if name in seat.view.living]
    return [say("rebuttal", name=name) for name in accusers[-1:]]


def _rivals(seat: Seat, role: str) -> list[str]:
    return [name for name, claimed in seat.claims.items() if claimed == role and name != seat.view.name]


def _answer(seat: Seat, role: str, *accusers: str) -> list[Sentence]:
    """A word to an accuser, or to one who claims the same role."""
    answers = [say("rebuttal", name=name) for name in accusers if name in seat.view.living]
    answers += [say("my role taken", name=name) for name in _rivals(seat, role) if name in seat.view.living]
    return [seat.chance.choice(answers)] if answers else []


def _hidden(seat: Seat) -> Speech | None:
    """What one says by day who hides what it is; None for one of the Town."""
    if seat.quarry is not None:
        return Speech(_denounce(seat, seat.quarry), line("quarry", name=seat.quarry))
    if seat.view.role.bait:
        return Speech(_bait(seat), line("bait"))
    return None if seat.is_town else Speech(_lie(seat), line("lie"))


def _lie(seat: Seat) -> list[Sentence]:
    """Little until accused, then the accuser is the liar: what those outside the Town say by day."""
    accusers = seat.accusers()
    if not accusers:
        return _claim(seat, seat.cover()) if _owes_a_claim(seat) else []
    cover = seat.cover()
    told = [*_answer(seat, cover, accusers[0]), *_claim(seat, cover)]
    if is_informed(cover) and seat.view.day > 1:
        return [*told, _pretend(seat, accusers[0])]
    return [*told, *_any_of(seat, _grounds(seat, accusers[0]))]


def _pretend(seat: Seat, name: str) -> Sentence:
    """A finding that was never made: of last night, and no night is given when it is repeated."""
    if ("against", name) in seat.points_made or seat.view.day == 1:
        return say("guilty", name=name)
    return say("guilty night", name=name, night=str(seat.view.day - 1))


def _denounce(seat: Seat, quarry: str) -> list[Sentence]:
    """A word against its target, as one who could know."""
    mine = seat.claims.get(seat.view.name)
    finders = [role.name for role in seat.unclaimed if role.is_informed and not role.is_risky_claim]
    cover = mine or (seat.pick(finders) if finders else seat.cover())
    return [*_rebut(seat), *_claim(seat, cover), _pretend(seat, quarry)]


def _bait(seat: Seat) -> list[Sentence]:
    """A claim that can hardly be true, so that the Town takes it for a killer caught lying."""
    taken = sorted(set(seat.claims.values()) - {role.name for role in seat.unclaimed})
    role = seat.claims.get(seat.view.name) or seat.pick([*filter(is_town_role, taken)] or [seat.view.role.bait])
    return [*(_rebut(seat) or _answer(seat, role)), *_claim(seat, role)]


def _defend(seat: Seat) -> str:
    """The words of one on trial, or before the rope."""
    plea = _plea(seat)
    is_answer = plea[0].kind.name == "rebuttal"
    if seat.view.phase is Phase.LAST_WORDS:
        plea = [say("last words"), *plea[is_answer:]]
    elif not is_answer or seat.chance.random() >= _ANSWERS_AGAIN:
        plea = [say("on trial"), *plea]
    return seat.say(plea, line("on trial"))


def _plea(seat: Seat) -> list[Sentence]:
    if (hidden := _hidden(seat)) is not None:
        return hidden.sentences or _claim(seat, seat.cover())
    return [*_rebut(seat), *_claim(seat, seat.view.role.name), *_findings(seat)]


# At night.


def _chat(seat: Seat) -> str:
    """A word on a night channel, or nothing new."""
    channel = seat.choices["speak"].choices[0]
    tonight = [event.text("text") for event in seat.chats() if event.day == seat.view.day]
    match channel:
        case Faction.MAFIA | Faction.VAMPIRE:
            sentences = _among_team(seat, tonight)
        case "jail":
            sentences = _in_jail(seat, tonight)
        case _ if seat.view.is_alive:
            # A living liar also lies to the dead.
            sentences = _unless_said([say("to dead"), *_plea(seat)], tonight)
        case _:
            sentences = _from_the_grave(seat, tonight)
    if not sentences:
        return seat.say([], line("said"))
    thought = line("among friends") if channel != "jail" else ""
    return write("speak", text=seat.words(sentences), channel=channel, thought=thought)


def _unless_said(sentences: list[Sentence], texts: list[str]) -> list[Sentence]:
    """Nothing when `texts` claim all of it already."""
    return [] if texts and points_in(sentences) <= points_of(texts) else sentences


def _among_team(seat: Seat, tonight: list[str]) -> list[Sentence]:
    """The roles it knows, each once, and whom to kill, with a reason."""
    known = seat.known_roles if seat.view.role.shares_roles else {}
    told = {name for event in seat.chats() for name, _ in understand(event.text("text")).roles}
    news = [say("team role", name=name, role=role) for name, role in known.items() if name not in told]
    agreed = seat.agreed_victim()
    victim = agreed or seat.victim()
    if victim in {understand(text).takes for text in tonight}:
        return news
    if agreed:
        return [*news, say("target agreed", name=victim)]
    said = [*news, say("target", name=victim)]
    if seat.chance.random() >= _GIVES_REASON:
        return said
    if (role := seat.role_of(victim)) is not None:
        return [*said, say("reason role", a_role=with_article(role))]
    if victim in seat.accusers(*seat.view.team):
        return [*said, say("reason enemy")]
    return [*said, say("reason hidden" if seat.view.day >= CLAIMING_DAY else "reason none")]


def _in_jail(seat: Seat, tonight: list[str]) -> list[Sentence]:
    """The keeper asks, perhaps twice; the prisoner pleads."""
    if any(event.kind is JAILED and event.day == seat.view.day for event in seat.view.private):
        first = [say("jail answer")] if seat.chance.random() < _SAYS_MORE else []
        return _unless_said([*first, *_plea(seat)], tonight)
    if not tonight:
        return [say("jail question")]
    is_more = len(tonight) == 1 and seat.chance.random() < _ASKS_AGAIN
    return [say("jail follow up")] if is_more else []


def _from_the_grave(seat: Seat, tonight: list[str]) -> list[Sentence]:
    """The dead have nothing to hide; what they have said on another night they seldom say again."""
    told = [say("claim dead", role=seat.view.role.name), *_findings(seat)]
    before = [event.text("text") for event in seat.chats() if event.day < seat.view.day]
    if _unless_said(told, [*before, *tonight]):
        return told
    is_more = not tonight and seat.chance.random() < _SAYS_MORE
    return [say("among dead")] if is_more else []


# Votes, ballots and acts at night.


def _vote(seat: Seat) -> str:
    """A vote, unless its vote already says so."""
    if "vote" not in seat.choices:
        return write("wait", thought=line("no vote"))
    target = _wanted(seat)
    if target not in seat.choices["vote"].targets:
        return seat.say([], line("no target"))
    return write("vote", target=target, thought=line("vote", name=target), will=seat.will())


def _wanted(seat: Seat) -> str:
    """Whom it wants on trial; "" for nobody."""
    if seat.quarry is not None:
        return seat.quarry
    worst = seat.most_suspicious()
    if seat.is_hostile:
        # The one that others vote for, else an accuser.
        outside = [target for target in seat.view.votes.values() if target not in seat.view.team]
        if wanted := outside or seat.accusers():
            return max(wanted, key=outside.count)
        suspects = (name for name in seat.suspects if name not in seat.view.team)
        worst = max(suspects, key=lambda name: (seat.doubt(name), name), default="")
    return worst if seat.doubt(worst) >= seat.enough else ""


def _judge(seat: Seat) -> str:
    accused = seat.view.accused or ""
    if seat.is_hostile:
        is_guilty = accused not in seat.view.team
    else:
        is_guilty = accused == seat.quarry or seat.doubt(accused) >= seat.enough
    ballot = Ballot.GUILTY if is_guilty else Ballot.INNOCENT
    return write("ballot", choice=ballot.value, thought=line("ballot", name=accused, ballot=ballot))


def _act_at_night(seat: Seat) -> str:
    """The first ability of its role that has something to do, or wait."""
    verb, aim = use(seat, NightAbility)
    if not verb:
        return write("wait", thought=line("nothing to do"), will=seat.will())
    note = "" if seat.view.death_note or "death_note" not in seat.choices else line("death note")
    thought = line("night", name=aim.target) if aim.target else line("night without target")
    return write(verb, **aim._replace(thought=thought)._asdict(), will=seat.will(), death_note=note)


_BY_PHASE: Final[Mapping[Phase, Callable[[Seat], str]]] = {
    Phase.GREETING: _greet,
    Phase.BIDDING: _bid,
    Phase.DISCUSSION: _discuss,
    Phase.VOTING: _vote,
    Phase.DEFENCE: _defend,
    Phase.JUDGEMENT: _judge,
    Phase.LAST_WORDS: _defend,
    Phase.NIGHT_CHAT: _chat,
    Phase.NIGHT: _act_at_night,
}


def _play_to_win(view: SeatView, chance: Random) -> str:
    seat = Seat(view, chance)
    if view.phase is Phase.GREETING and "get_role" in view.options.tools and not view.observations:
        asked = f'<tool_request name="get_role">{view.role.name}</tool_request>'
        return f"<thinking>{line('asked role')}</thinking>\n{asked}"
    if view.phase in DayAbility.phases:
        # In place of words, when it is worth more.
        verb, aim = use(seat, DayAbility)
        if verb:
            return write(verb, **aim._asdict(), will=seat.will())
        if not view.is_alive:
            return write("wait", thought=line("dead"))
    return _BY_PHASE[view.phase](seat)


def _play_at_random(view: SeatView, chance: Random) -> str:
    options = [
        (choice.verb, named)
        for choice in view.choices
        if not ACTS[choice.verb].is_side_act
        for named in choice.combinations()
    ]
    verb, named = chance.choice(options)
    # Words that mean nothing: the random player is the baseline without talk.
    words = line("at random", me=view.name, name=chance.choice(view.living))
    return write(verb, **named, text=words)


def _play_in_silence(view: SeatView, chance: Random) -> str:
    """One reply without a word to anybody."""
    if view.phase is Phase.NIGHT_CHAT:
        return write("wait", thought=line("silence"))
    choices = tuple(choice for choice in view.choices if choice.verb not in _WORDS)
    return _play_to_win(replace(view, choices=choices), chance)


def _play_without_lies(view: SeatView, chance: Random) -> str:
    """One reply in which nothing is a lie: the Town talks, and all others talk to their own team alone."""
    channels = next((choice.choices for choice in view.choices if choice.verb == "speak"), ())
    is_among_team = channels[:1] == (view.role.faction.value,) and view.role.faction in TEAMS
    is_open = view.role.faction is Faction.TOWN or (view.phase is Phase.NIGHT_CHAT and is_among_team)
    return (_play_to_win if is_open else _play_in_silence)(view, chance)


def _of_a_seat(play: Callable[[SeatView, Random], str]) -> Policy:
    """The player, who refuses a view of another game."""

    @wraps(play)
    def checked(view: object, chance: Random) -> str:
        if not isinstance(view, SeatView):
            raise TypeError(f"a player of this game needs a SeatView, not {type(view).__name__}")
        return play(view, chance)

    return checked


POLICIES: Mapping[str, Policy] = MappingProxyType(
    {
        "heuristic": _of_a_seat(_play_to_win),
        "random": _of_a_seat(_play_at_random),
        "silent": _of_a_seat(_play_in_silence),
        "honest": _of_a_seat(_play_without_lies),
    }
)
"""Name in YAML to scripted player."""
