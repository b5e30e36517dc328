"""What the heuristic player says: by day, on the stand, at night, and when it bids for the floor.

The Town shares what it found; the others hide behind a role of the Town, say little, and lie when accused. What a
player has to say is a list of sentences (`kinds`), put into words at the end (`Seat.words`). Its reasons, the grounds
against a player and what there is to remark on, follow from what every player saw, so the members of a team and the
honest have the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from mac_runner.environments.town_of_salem.bots import assertions, night_talk, reactions
from mac_runner.environments.town_of_salem.bots.assertions import (
    AGAINST_ACCUSER,
    AGAINST_BALLOT,
    AGAINST_RIVAL,
    AGAINST_ROOM,
    AGAINST_SILENT,
    AGAINST_SOURCE,
)
from mac_runner.environments.town_of_salem.bots.beliefs import (
    CLAIMING_DAY,
    Finding,
    Source,
    contradicted,
    is_informed,
    is_town_role,
    silent_players,
    wrong_ballots,
)
from mac_runner.environments.town_of_salem.bots.kinds import Kind, Sentence, join_names, say
from mac_runner.environments.town_of_salem.bots.seat import Seat, is_risky_claim, points_of
from mac_runner.environments.town_of_salem.bots.statements import understand, write
from mac_runner.environments.town_of_salem.bots.tactics import use
from mac_runner.environments.town_of_salem.model.events import UNKNOWN_ROLE, Event, EventKind, with_article
from mac_runner.environments.town_of_salem.model.state import LYNCH, Faction, Phase
from mac_runner.environments.town_of_salem.roles import ROLES, DayAbility, NightAbility

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

    @property
    def points(self) -> frozenset[tuple[str, str]]:
        """What it claims."""
        return frozenset().union(*(sentence.points() for sentence in self.sentences))


def use_the_day(seat: Seat) -> str | None:
    """A day ability in place of words, when it is worth more; the dead can only wait."""
    used = use(seat, DayAbility)
    if used is not None:
        verb, aim = used
        return write(verb, **aim._asdict(), will=seat.will())
    return None if seat.view.is_alive else write("wait", thought="I am dead.")


def greet(seat: Seat) -> str:
    """Look up one's role where there is a tool for it, then say hello."""
    if "get_role" in seat.view.options.tools and not seat.view.observations:
        asked = f'<tool_request name="get_role">{seat.view.role.name}</tool_request>'
        return f"<thinking>Let me look at what I can do.</thinking>\n{asked}"
    used = use_the_day(seat)
    if used is not None:
        return used
    before = next((event.text("player") for event in seat.of_today() if event.kind is EventKind.SPEECH), "")
    is_answer = before and seat.chance.random() < _ANSWERS_GREETING
    hello = say(reactions.GREETING_BACK, name=before) if is_answer else say(reactions.GREETING)
    return seat.say(seat.words([hello]), "Nothing to go on yet.")


def discuss(seat: Seat) -> str:
    """What to say in the discussion: what others must know, else perhaps a remark, or nothing."""
    speech = _speech(seat)
    if speech.to:
        words = seat.words(speech.sentences)
        return write("whisper", target=speech.to, text=words, thought=speech.thought, will=seat.will())
    if speech.sentences and not _is_said(seat, speech, may_repeat=True):
        first = _remark(seat, _REMARKS_FIRST) if len(speech.sentences) == 1 else []
        return seat.say(seat.words([*first, *speech.sentences]), speech.thought)
    accusation = _accuse(seat)
    if accusation:
        return seat.say(seat.words(accusation), "They must not forget this one.")
    remark = _remark(seat, _REMARKS)
    return seat.say(seat.words(remark), "Let me see what they make of this." if remark else "I have said it.")


def bid(seat: Seat) -> str:
    """Most for an accusation, less for other words, nothing for what it has said today already."""
    speech = _speech(seat)
    if speech.to or not speech.sentences or _is_said(seat, speech, may_repeat=False):
        return write("bid", choice="0", thought="Let me hear the others.")
    is_accusing = any(point == "against" for point, _ in speech.points)
    about = " and ".join(sorted(name for _, name in speech.points))
    return write("bid", choice="4" if is_accusing else "2", thought=f"I would speak of {about}.")


def _is_said(seat: Seat, speech: Speech, *, may_repeat: bool) -> bool:
    """Whether this seat has claimed all of it today, or on an earlier day and does not say it again."""
    today = points_of(event.text("text") for event in seat.speeches if event.day == seat.view.day)
    if speech.points <= today:
        return True
    if not speech.points <= seat.points_made:
        return False
    how_often = (_ANSWERS_AGAIN if seat.accusers_today else _REPEATS) if may_repeat and not today else 0.0
    return seat.chance.random() >= how_often


def _remark(seat: Seat, how_often: float) -> list[Sentence]:
    """One remark, or none."""
    if seat.chance.random() >= how_often or any(event.day == seat.view.day for event in seat.speeches):
        return []
    return _any_of(seat, remarks(seat))


def _speech(seat: Seat) -> Speech:
    """What there is to say, or nothing."""
    view = seat.view
    if seat.quarry is not None:
        return Speech(denounce(seat, seat.quarry), f"They must lynch {seat.quarry}.")
    if view.role.bait:
        return Speech(_bait(seat), "Let them catch me lying.")
    if not seat.is_town:
        return Speech(lie(seat), "They must not see what I am.")
    findings = seat.beliefs.findings
    guilty = [name for name, finding in findings.items() if finding.is_guilty and name in view.living]
    heard = [name for name in _heard_from_the_dead(seat) if name not in guilty]
    if guilty or heard:
        told = [_found(seat, name, findings[name]) for name in guilty]
        told += [say(assertions.HEARD_DEAD, name=name) for name in heard]
        return Speech([*_rebut(seat), *_claim(seat, view.role.name), *told], "They must know this.")
    is_impersonated = not view.role.hides and _rivals(seat, view.role.name)
    if seat.accusers_today or is_impersonated or _owes_a_claim(seat):
        return Speech(
            [
                *_answer(seat, view.role.name, *seat.accusers_today[-1:]),
                *_claim(seat, view.role.name),
                *_findings(seat),
            ],
            "I must speak up.",
        )
    return _confide(seat) or Speech([], "I have nothing to tell yet.")


def _claim(seat: Seat, role: str) -> list[Sentence]:
    """That the speaker is a role, with what its holder did last night, if anything."""
    if any(claimed == role for _, claimed in seat.points_made):
        return [say(assertions.CLAIM_AGAIN, role=role)]
    account = _account(seat, role) if seat.chance.random() < _TELLS_NIGHT else ""
    return [say(assertions.ACCOUNT, role=role, account=account) if account else say(assertions.CLAIM, role=role)]


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


def _found(seat: Seat, name: str, finding: Finding) -> Sentence:
    """One finding."""
    has_night = seat.chance.random() < _TELLS_NIGHT
    kind: Kind
    match finding.source:
        case Source.VISIT:
            kind = assertions.CAUGHT
        case Source.MAFIA_VISIT:
            kind = assertions.CALLED_ON
        case Source.SHOWN:
            kind = assertions.SHOWN
        case Source.RESULT if finding.is_guilty:
            kind = assertions.GUILTY_NIGHT if has_night else assertions.GUILTY
        case Source.RESULT:
            kind = assertions.INNOCENT_NIGHT if has_night else assertions.INNOCENT
    return say(kind, name=name, night=str(finding.day))


def _findings(seat: Seat) -> list[Sentence]:
    """All this seat found."""
    findings = seat.beliefs.findings
    guilty = [_found(seat, name, finding) for name, finding in findings.items() if finding.is_guilty]
    innocent = {name: finding for name, finding in findings.items() if not finding.is_guilty}
    if len(innocent) >= _MANY:
        return [*guilty, say(assertions.CLEARED, names=join_names([*innocent]))]
    return [*guilty, *(_found(seat, name, finding) for name, finding in innocent.items())]


def _rebut(seat: Seat) -> list[Sentence]:
    """An answer to the one who last accused this seat today."""
    accusers = [name for name in seat.accusers_today if name in seat.view.living]
    return [say(reactions.REBUTTAL, name=accusers[-1])] if accusers else []


def _accuse(seat: Seat) -> list[Sentence]:
    """A word against the most suspicious, once, with the reason this seat has."""
    if seat.chance.random() >= _ACCUSES:
        return []
    suspicion = {name: doubt for name, doubt in seat.beliefs.suspicion.items() if name not in seat.view.team}
    name = max(suspicion, key=lambda name: suspicion[name], default="")
    if not name or suspicion[name] < seat.enough or ("against", name) in seat.points_made:
        return []
    return _any_of(seat, grounds(seat, name))


def _any_of(seat: Seat, sentences: Iterable[Sentence]) -> list[Sentence]:
    """One of these, each kind as likely as another; none where there is none."""
    by_kind: dict[str, list[Sentence]] = {}
    for sentence in sentences:
        by_kind.setdefault(sentence.kind.name, []).append(sentence)
    return [seat.chance.choice(seat.chance.choice([*by_kind.values()]))] if by_kind else []


def _confide(seat: Seat) -> Speech | None:
    """A whisper to a player found innocent who does not know that yet."""
    whispered = {event.text("to") for event in seat.view.private if event.kind is EventKind.WHISPER}
    innocent = {name: finding for name, finding in seat.beliefs.findings.items() if not finding.is_guilty}
    whisper = seat.choices.get("whisper")
    confidants = [name for name in innocent if whisper and name in whisper.targets and name not in whispered]
    if not confidants:
        return None
    name = confidants[0]
    told = [say(assertions.CLAIM, role=seat.view.role.name), _found(seat, name, innocent[name])]
    return Speech([say(reactions.CONFIDENCE), *told], "One I can trust.", to=name)


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


def _rivals(seat: Seat, role: str) -> list[str]:
    """The others who claim a role."""
    return [name for name, claimed in seat.beliefs.claims.items() if claimed == role and name != seat.view.name]


def _answer(seat: Seat, role: str, *accusers: str) -> list[Sentence]:
    """A word to an accuser, or to one who claims the same role."""
    answers = [say(reactions.REBUTTAL, name=name) for name in accusers if name in seat.view.living]
    answers += [say(reactions.MY_ROLE_TAKEN, name=name) for name in _rivals(seat, role) if name in seat.view.living]
    return [seat.chance.choice(answers)] if answers else []


def lie(seat: Seat) -> list[Sentence]:
    """Little until accused, then the accuser is the liar: what those outside the Town say by day."""
    accusers = [name for name in seat.accusers() if name not in seat.view.team]
    if accusers:
        cover = seat.cover()
        return [*_answer(seat, cover, accusers[0]), *_claim(seat, cover), *_counter(seat, cover, accusers[0])]
    return _claim(seat, seat.cover()) if _owes_a_claim(seat) else []


def _counter(seat: Seat, cover: str, accuser: str) -> list[Sentence]:
    """A word against one's accuser: a finding where the cover could have one."""
    if is_informed(cover) and seat.view.day > 1:
        return [_pretend(seat, accuser)]
    return _any_of(seat, grounds(seat, accuser))


def _pretend(seat: Seat, name: str) -> Sentence:
    """A finding that was never made: of last night, and no night is given when it is repeated."""
    is_told = ("against", name) in seat.points_made
    if is_told or seat.view.day == 1:
        return say(assertions.GUILTY, name=name)
    return say(assertions.GUILTY_NIGHT, name=name, night=str(seat.view.day - 1))


def denounce(seat: Seat, quarry: str) -> list[Sentence]:
    """A word against its target, as one who could know."""
    mine = seat.beliefs.claims.get(seat.view.name)
    finders = [role for role in seat.beliefs.unclaimed if is_informed(role) and not is_risky_claim(role)]
    cover = mine or (seat.pick(finders) if finders else seat.cover())
    return [*_rebut(seat), *_claim(seat, cover), _pretend(seat, quarry)]


def _bait(seat: Seat) -> list[Sentence]:
    """A claim that can hardly be true, so that the Town takes it for a killer caught lying."""
    mine = seat.beliefs.claims.get(seat.view.name)
    taken = sorted(set(seat.beliefs.claims.values()) - set(seat.beliefs.unclaimed))
    role = mine or seat.pick([role for role in taken if is_town_role(role)] or [seat.view.role.bait])
    return [*(_rebut(seat) or _answer(seat, role)), *_claim(seat, role)]


def defence(seat: Seat) -> str:
    """The words of one on trial, or before the rope."""
    is_last = seat.view.phase is Phase.LAST_WORDS
    answer, *rest = _plea(seat)
    if is_last:
        first = (
            [say(reactions.LAST_WORDS)] if answer.kind is reactions.REBUTTAL else [say(reactions.LAST_WORDS), answer]
        )
    else:
        is_answer = answer.kind is reactions.REBUTTAL and seat.chance.random() < _ANSWERS_AGAIN
        first = [answer] if is_answer else [say(reactions.ON_TRIAL), answer]
    return seat.words([*first, *rest])


def _plea(seat: Seat) -> list[Sentence]:
    """What a player has to say for itself."""
    if seat.view.role.bait:
        return _bait(seat)
    if seat.quarry is not None:
        return denounce(seat, seat.quarry)
    if not seat.is_town:
        return lie(seat) or _claim(seat, seat.cover())
    return [*_rebut(seat), *_claim(seat, seat.view.role.name), *_findings(seat)]


def chat(seat: Seat) -> str:
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
            sentences = _unless_said([say(night_talk.TO_DEAD), *_plea(seat)], tonight)
        case _:
            sentences = _from_the_grave(seat, tonight)
    if not sentences:
        return seat.say("", "I have said it.")
    thought = "Here I can be open." if channel != "jail" else ""
    return write("speak", text=seat.words(sentences), channel=channel, thought=thought)


def _unless_said(sentences: list[Sentence], texts: list[str]) -> list[Sentence]:
    """Nothing when `texts` claim all of it already."""
    return [] if texts and Speech(sentences, "").points <= points_of(texts) else sentences


def _among_team(seat: Seat, tonight: list[str]) -> list[Sentence]:
    """The roles it knows, each once, and whom to kill, with a reason."""
    known = seat.known_roles if seat.view.role.shares_roles else {}
    told = {name for event in seat.chats() for name, _ in understand(event.text("text")).roles}
    news = [say(night_talk.TEAM_ROLE, name=name, role=role) for name, role in known.items() if name not in told]
    agreed = seat.agreed_victim()
    victim = agreed or seat.victim()
    if victim in {understand(text).takes for text in tonight}:
        return news
    said = [*news, say(night_talk.TARGET_AGREED if agreed else night_talk.TARGET, name=victim)]
    if not agreed and seat.chance.random() < _GIVES_REASON:
        said.append(_reason_to_kill(seat, victim))
    return said


def _reason_to_kill(seat: Seat, victim: str) -> Sentence:
    role = seat.known_roles.get(victim) or seat.beliefs.claims.get(victim)
    if role is not None:
        return say(night_talk.REASON_ROLE, a_role=with_article(role))
    if victim in seat.enemies():
        return say(night_talk.REASON_ENEMY)
    return say(night_talk.REASON_HIDDEN if seat.view.day >= CLAIMING_DAY else night_talk.REASON_NONE)


def _in_jail(seat: Seat, tonight: list[str]) -> list[Sentence]:
    """The keeper asks, perhaps twice; the prisoner pleads."""
    if seat.is_jailed():
        first = [say(night_talk.JAIL_ANSWER)] if seat.chance.random() < _SAYS_MORE else []
        return _unless_said([*first, *_plea(seat)], tonight)
    if not tonight:
        return [say(night_talk.JAIL_QUESTION)]
    is_more = len(tonight) == 1 and seat.chance.random() < _ASKS_AGAIN
    return [say(night_talk.JAIL_FOLLOW_UP)] if is_more else []


def _from_the_grave(seat: Seat, tonight: list[str]) -> list[Sentence]:
    """The dead have nothing to hide; what they have said on another night they seldom say again."""
    told = [say(night_talk.CLAIM_DEAD, role=seat.view.role.name), *_findings(seat)]
    before = [event.text("text") for event in seat.chats() if event.day < seat.view.day]
    if _unless_said(told, [*before, *tonight]):
        return told
    is_more = not tonight and seat.chance.random() < _SAYS_MORE
    return [say(night_talk.AMONG_DEAD)] if is_more else []
