"""The table of acts: what is advertised can be done, and nothing else can."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from mac_runner.environments.town_of_salem.testing import (
    ACTS,
    DOUSED,
    ROLES,
    Act,
    Ballot,
    Changed,
    Chosen,
    DayAbility,
    Form,
    GameState,
    IllegalActError,
    Offer,
    Options,
    Phase,
    apply,
    check,
    offers,
    read,
)
from mac_runner.types import Reply
from tests.environments.town_of_salem.table import ELEVEN, Table, random_roles


def acts_of(offer: Offer, seat: int) -> Iterator[Act]:
    """Every act an offer stands for."""
    form = ACTS[offer.verb].form
    text = "some words" if form in (Form.TEXT, Form.NAME_AND_TEXT) else ""
    for target in offer.targets or (None,):
        for choice in offer.choices or ("",):
            targets = () if target is None else (target,)
            yield Act(seat=seat, verb=offer.verb, targets=targets, text=text, choice=choice)


def legal_acts(state: GameState, seat: int) -> list[Act]:
    return [act for offer in offers(state, seat) for act in acts_of(offer, seat)]


def illegal_acts(state: GameState, seat: int) -> Iterator[Act]:
    """Acts near the legal ones: every verb at every target and choice, without those on offer."""
    legal = set(legal_acts(state, seat))
    seats = range(-1, len(state.players) + 1)
    for verb, spec in ACTS.items():
        text = "some words" if spec.form in (Form.TEXT, Form.NAME_AND_TEXT) else ""
        for target in ((), *((seat,) for seat in seats)):
            for choice in ("", "guilty", "mafia", "jail", "dead", "seance"):
                act = Act(seat=seat, verb=verb, targets=target, text=text, choice=choice)
                # Words without a channel go to the first one.
                is_default_channel = not target and choice == "" and spec.form is Form.TEXT
                if act not in legal and not (is_default_channel and any(found.verb == verb for found in legal)):
                    yield act


def with_role(role: str, verb: str, phase: Phase) -> GameState:
    """A state of the second day in which seat 0 holds `role` and `verb` is on offer."""
    options = Options(retri="revive") if verb == "revive" else Options()
    # A Vampire Hunter without Vampires would not stay one.
    table = Table((role, *(other for other in (*ELEVEN, "vampire") if other != role)), options=options)
    if role in ("amnesiac", "retributionist"):
        table.bury("escort")
    if role == "arsonist":
        table.mark(0, DOUSED)
    if role == "medium":
        table.bury(0)
    if role == "jester":
        table.lynch(0)
    if verb == "execute":
        table.night(day=1)
        table.act(0, "jail", 1)
    table.go_to(phase, day=2)
    return table.state


ABILITIES = [(role.id, ability) for role in ROLES.values() for ability in role.abilities]


@pytest.mark.parametrize(("role", "verb"), [(role, ability.verb) for role, ability in ABILITIES])
def test_advertised_ability_parses_to_its_act(role: str, verb: str) -> None:
    ability = next(ability for owner, ability in ABILITIES if (owner, ability.verb) == (role, verb))
    state = with_role(role, verb, Phase.DISCUSSION if isinstance(ability, DayAbility) else Phase.NIGHT)
    offer = next(offer for offer in offers(state, 0) if offer.verb == verb)
    targets = (*offer.targets[:1], *offer.seconds[-1:])
    names = [state.players[target].name for target in targets]

    reading = read(Reply(text=ACTS[verb].example(*names)), state, 0)
    text = "your words" if ability.takes_text else ""
    assert reading == Chosen(act=Act(seat=0, verb=verb, targets=targets, text=text))


@pytest.mark.parametrize(
    ("verb", "phase", "act"),
    [
        ("speak", Phase.DISCUSSION, Act(seat=0, verb="speak", text="your words")),
        ("whisper", Phase.DISCUSSION, Act(seat=0, verb="whisper", targets=(1,), text="your words")),
        ("vote", Phase.VOTING, Act(seat=0, verb="vote", targets=(1,))),
        ("unvote", Phase.VOTING, Act(seat=0, verb="unvote")),
        ("ballot", Phase.JUDGEMENT, Act(seat=0, verb="ballot", choice=Ballot.GUILTY)),
        ("wait", Phase.VOTING, Act(seat=0, verb="wait")),
    ],
)
def test_advertised_act_parses_to_its_act(verb: str, phase: Phase, act: Act) -> None:
    table = Table(ELEVEN)
    if phase is Phase.JUDGEMENT:
        table.accuse(5)
    table.go_to(phase)
    if verb == "unvote":
        table.state = replace(table.state, votes={0: 2})

    written = ACTS[verb].example(table.name(1)).replace("CHOICE", act.choice)
    assert read(Reply(text=written), table.state, 0) == Chosen(act=act)


@pytest.mark.parametrize("verb", [verb for verb, spec in ACTS.items() if spec.is_side_act])
def test_advertised_side_act_may_stand_beside_any_act(verb: str) -> None:
    table = Table(("jailor", *ELEVEN[:3]))

    reading = read(Reply(text=f"{ACTS[verb].example()}<wait/>"), table.state, 0)
    written = Act(seat=0, verb=verb, text="your words")
    assert reading == Chosen(act=Act(seat=0, verb="wait"), side_acts=(written,))


def test_every_verb_has_one_form_and_one_timing_over_all_roles() -> None:
    for verb in {ability.verb for _, ability in ABILITIES}:
        abilities = [ability for _, ability in ABILITIES if ability.verb == verb]
        assert len({ability.aims is None for ability in abilities}) == 1
        assert len({type(ability) for ability in abilities}) == 1
        assert len({ability.help for ability in abilities}) == 1


def test_waiting_is_always_possible() -> None:
    table = Table(ELEVEN)
    for _ in range(40):
        for seat in table.state.order:
            assert Offer(verb="wait") in offers(table.state, seat)
        table.end_round()


def test_text_of_an_act_is_kept_as_it_was_written() -> None:
    table = Table(ELEVEN)
    text = "“Curly” <b>bold</b>\nand\ttabs"
    table.act(0, "speak", text=text)

    assert table.events[-1].data["text"] == text


@pytest.mark.ci
def test_everything_offered_is_accepted_and_everything_else_refused() -> None:
    """Over the states of random games: an offer can be taken up, and what is not on offer is refused."""
    chance = Random(5)
    for game in range(4):
        table = Table([*ELEVEN] if game == 0 else random_roles(chance), seed=game)
        for _ in range(25):
            if table.state.result is not None:
                break
            seat = chance.choice(range(len(table.state.players)))
            if seat in table.state.order:
                for act in legal_acts(table.state, seat):
                    check(table.state, act)
            for act in chance.sample(list(illegal_acts(table.state, seat)), k=40):
                with pytest.raises(IllegalActError):
                    check(table.state, act)
            step_at_random(table, chance)


def step_at_random(table: Table, chance: Random) -> None:
    """Let one seat that is due make a random legal act, or ring the bell."""
    due = table.state.due
    if not due:
        table.end_round()
        return
    seat = due[0] if not table.state.phase.is_simultaneous else chance.choice(due)
    table.make(chance.choice(legal_acts(table.state, seat)))


def test_refused_act_changes_nothing() -> None:
    table = Table(ELEVEN)
    before = table.state
    for act in illegal_acts(table.state, 0):
        with pytest.raises(IllegalActError):
            apply(table.state, act)

    assert table.state is before
    assert table.make(Act(seat=0, verb="wait")) == ()


def test_those_not_asked_cannot_act() -> None:
    table = Table(ELEVEN)
    table.accuse("mafioso")

    with pytest.raises(IllegalActError, match="not your turn"):
        table.act("sheriff", "speak", text="wait!")


def test_apply_returns_the_state_and_what_happened() -> None:
    table = Table(ELEVEN)

    changed = apply(table.state, Act(seat=0, verb="speak", text="hello"))
    assert isinstance(changed, Changed)
    assert [event.data["text"] for event in changed.events] == ["hello"]
