"""What a finished game leaves behind: the outcome for statistics, and the record for readers of its transcript.

The record knows more than any player did, the truth about claims and nights included. Nothing that decides or prompts
imports this file. A night is read from its state at dawn (`play_out`). Its trace is bounded by the seats: one action
each, and no more attacks and notes than pairs of actions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from mac_runner.environments.town_of_salem import record
from mac_runner.environments.town_of_salem.counts import measure
from mac_runner.environments.town_of_salem.model.events import UNKNOWN_ROLE, Event, EventKind
from mac_runner.environments.town_of_salem.model.role import NightState
from mac_runner.environments.town_of_salem.model.state import LYNCH, Ballot, GameState, NightAction, Phase, Player
from mac_runner.environments.town_of_salem.roles import ROLES
from mac_runner.environments.town_of_salem.rules.acts import Act, Span
from mac_runner.environments.town_of_salem.rules.calendar import has_won
from mac_runner.environments.town_of_salem.rules.night import play_out
from mac_runner.environments.town_of_salem.seat.knowledge import GameLog, moment, sentence
from mac_runner.environments.town_of_salem.verdicts import (
    RoleHistory,
    Utterance,
    judged_claims,
    night_of_death,
    spoken,
    written,
)
from mac_runner.types import JsonObject, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class ActRecord:
    """One act as it was made: the ground truth that no player sees."""

    day: int
    phase: Phase
    round: int
    act: Act
    is_default: bool
    moment: int
    """How many events there were before it."""
    lapsed: str = ""
    """Why an act that was legal when chosen could not happen any more; its player waited instead."""
    span: Span | None = None
    """Under information lag, from when to when its turn ran."""
    place: tuple[int, int] | None = None
    """Where options are shuffled: the place of the chosen one, and of how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A reply that could not be used, and why; `turn` is the key to its words."""

    day: int
    phase: Phase
    round: int
    turn: str
    seat: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hindsight:
    """What is known of a game once it is over."""

    record: record.GameRecord
    """The game for a reader: the cast, all events and acts, and the truth about them."""
    nights: tuple[tuple[GameState, NightState], ...]
    """Each state in which a night was about to be resolved, and the night as it was at dawn."""
    words: tuple[Utterance, ...]


def hindsight_of(
    state: GameState, log: GameLog, task: Task, acts: Sequence[ActRecord | Refusal], dusks: Iterable[GameState]
) -> Hindsight:
    """Look back on a game; each night that `dusks` led into is resolved once more, to see how it went."""
    names = tuple(player.name for player in state.players)
    nights = tuple((dusk, play_out(dusk)) for dusk in dusks)
    by_day = {dusk.day: night for dusk, night in nights}
    history = RoleHistory(log.events, state.players)
    said = ((act.act, act.moment) for act in acts if isinstance(act, ActRecord) and not act.lapsed)
    words = (*spoken(said, log.events, names), *written(log.events, by_day, names))
    events = [event_row(event, turn, names) for event, turn in zip(log.events, log.turns, strict=True)]
    game = record.GameRecord(
        lobby=[*state.lobby],
        cast=[_cast(state, player, log, task) for player in state.players],
        events=events,
        acts=[_act(act, names) if isinstance(act, ActRecord) else _refused(act, names) for act in acts],
        nights=[night_row(dusk, night) for dusk, night in nights],
        trials=trial_rows(events),
        deaths=[*death_rows(log.events, by_day, history, names)],
        role_changes=history.changes(),
        claims=judged_claims(words, names, history),
    )
    return Hindsight(record=game, nights=nights, words=words)


def outcome_of(state: GameState, task: Task, seen: Hindsight, replies: Sequence[Mapping[str, int]]) -> JsonObject:
    """How the game ended, and each player's roles, success, fate and measures.

    `replies` counts by seat what was made of the replies.
    """
    result = state.result
    if result is None:
        raise ValueError("the game is not over")
    counted = measure(state, seen.record, seen.nights, seen.words)
    return as_json(
        record.Outcome(
            kind="game",
            ending=result.ending,
            reason=result.reason,
            winners=[*result.winners],
            days=state.day,
            players=[
                _player(state, player, task, {**counted[player.seat], **replies[player.seat]})
                for player in state.players
            ],
        )
    )


def as_json(said: record.Outcome | record.GameRecord) -> JsonObject:
    """As a transcript holds it."""
    found: JsonObject = msgspec.to_builtins(said)
    return found


def _player(state: GameState, player: Player, task: Task, counts: Mapping[str, int]) -> record.PlayerOutcome:
    agent, death = task.agents[player.seat], player.death
    return record.PlayerOutcome(
        agent=player.name,
        definition=agent.definition,
        model=agent.model,
        seat=player.seat,
        role=player.dealt,
        final_role=player.role,
        faction=player.faction,
        won=has_won(state, player),
        alive=player.alive,
        death=None if death is None else " and ".join(death.causes),
        died_on_day=None if death is None else death.day,
        measures={str(key): count for key, count in sorted(counts.items()) if count},
    )


def _cast(state: GameState, player: Player, log: GameLog, task: Task) -> record.CastMember:
    agent = task.agents[player.seat]
    targets = (event.text("target") for event in log.private[player.seat] if event.kind is EventKind.QUARRY)
    return record.CastMember(
        name=player.name,
        seat=player.seat,
        slot=state.lobby[agent.slot] if agent.slot < len(state.lobby) else None,
        role=player.dealt,
        target=next(targets, None),
        definition=agent.definition,
        model=agent.model,
    )


def event_row(event: Event, turn: str | None, names: Sequence[str]) -> record.Event:
    """An event in words and data, with the names of those who learned of it and the turn that made it."""
    return record.Event(
        when=moment(event.day, event.phase),
        day=event.day,
        phase=event.phase,
        kind=str(event.kind),
        turn=turn,
        audience="all" if event.audience is None else [names[seat] for seat in sorted(event.audience)],
        text=sentence(event),
        data=event.data,
    )


def _act(done: ActRecord, names: Sequence[str]) -> record.Act:
    act, place, span = done.act, done.place, done.span
    return record.Act(
        day=done.day,
        phase=done.phase,
        round=done.round,
        player=names[act.seat],
        act=act.verb,
        targets=[names[seat] for seat in act.targets],
        is_default=done.is_default,
        legality="lapsed" if done.lapsed else "default" if done.is_default else "legal",
        text=act.text,
        choice=act.choice,
        option=None if place is None else record.Option(*place),
        is_lapsed=bool(done.lapsed),
        reason=done.lapsed,
        simulated=None if span is None else record.Simulated(span.started_ms, span.ended_ms),
    )


def _refused(refusal: Refusal, names: Sequence[str]) -> record.Act:
    return record.Act(
        day=refusal.day,
        phase=refusal.phase,
        round=refusal.round,
        player=names[refusal.seat],
        act=None,
        targets=[],
        is_default=False,
        legality="refused",
        reason=refusal.reason,
        turn=refusal.turn,
    )


def trial_rows(events: Iterable[record.Event]) -> list[record.Trial]:
    """Every trial, in order, with the votes on the accused when it opened."""
    return [
        record.Trial(
            day=voting.day,
            accused=voting.accused,
            votes=[record.TrialVote(vote.voter, order) for order, vote in enumerate(voting.standing, start=1)],
            guilty=voting.judges(Ballot.GUILTY),
            innocent=voting.judges(Ballot.INNOCENT),
            abstain=voting.judges(Ballot.ABSTAIN),
            verdict=voting.verdict,
        )
        for voting in record.votings(events)
        if voting.trial is not None
    ]


def night_row(dusk: GameState, night: NightState) -> record.Night:
    """The trace of the night that `dusk` led into."""
    names = [player.name for player in dusk.players]
    jail = None
    if dusk.prisoner is not None and dusk.keeper is not None:
        jail = record.Jail(jailor=names[dusk.keeper], prisoner=names[dusk.prisoner])
    return record.Night(
        day=dusk.day,
        jail=jail,
        deeds=[
            record.Deed(
                player=names[deed.seat],
                role=ROLES[dusk.players[deed.seat].role].name,
                act=deed.verb,
                targets=[names[target] for target in deed.targets],
                text=deed.text,
            )
            for deed in dusk.deeds
        ],
        changes=[
            record.Change(
                how=note.how,
                players=[names[seat] for seat in note.seats],
                by=None if note.by is None else names[note.by],
                was=_action(note.was, names),
                now=_action(note.now, names),
            )
            for note in night.notes
        ],
        visits=[record.Visit(visitor=names[visit.visitor], house=names[visit.house]) for visit in night.visits],
        protections=[*_protections(night, names)],
        marks=[*_marks(night, names)],
        attacks=[
            record.Attack(
                attacker=names[judged.attack.attacker],
                victim=names[judged.attack.victim],
                cause=judged.attack.cause.name,
                strength=judged.attack.level.name.lower(),
                defence=None if judged.defence is None else judged.defence.name.lower(),
                outcome=judged.outcome,
            )
            for judged in night.judged
        ],
        findings=[
            record.Finding(player=names[seat], kind=event.notice.name, data=event.data)
            for event in night.events
            if event.notice.is_finding
            for seat in sorted(event.audience or ())
        ],
        deaths=[names[seat] for seat in sorted(night.fatal)],
    )


def _action(action: NightAction | None, names: list[str]) -> record.Action | None:
    if action is None:
        return None
    return record.Action(act=action.verb, targets=[names[target] for target in action.targets], text=action.text)


def _protections(night: NightState, names: list[str]) -> Iterator[record.Protection]:
    given = ((house, protection) for house, of in sorted(night.protections.items()) for protection in of)
    for house, protection in sorted(given, key=lambda one: -one[1].level):
        yield record.Protection(how=protection.how, player=names[house], by=names[protection.by])
    for seat, level in sorted(night.defences.items()):
        own = names[seat]
        yield record.Protection(how="defended", player=own, by=own, strength=level.name.lower())


def _marks(night: NightState, names: list[str]) -> Iterator[record.Mark]:
    for seat, marks in sorted(night.tonight.items()):
        for mark in sorted(marks):
            yield record.Mark(player=names[seat], mark=mark)
    for seat, other in sorted(night.disguises.items()):
        yield record.Mark(player=names[seat], mark="disguised", shown_as=names[other])


def death_rows(
    events: Iterable[Event], nights: Mapping[int, NightState], history: RoleHistory, names: Sequence[str]
) -> Iterator[record.Death]:
    """Every death in order; its day is that of the lynch, or of the night."""
    for place, event in enumerate(events):
        if event.kind is not EventKind.DEATH:
            continue
        name, shown, night = event.text("player"), event.text("role"), night_of_death(event, nights)
        is_lynch = event.data["causes"] == [LYNCH.name]
        attacks = [] if night is None else night.fatal.get(names.index(name), [])
        yield record.Death(
            day=event.day if is_lynch else event.day - 1,
            at="day" if is_lynch else "night",
            player=name,
            role=ROLES[history.role_at(name, place).id].name,
            role_shown=None if shown == UNKNOWN_ROLE else shown,
            causes=event.names("causes"),
            killers=[*dict.fromkeys(names[attack.attacker] for attack in attacks)],
        )
