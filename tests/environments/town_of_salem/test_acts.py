"""The table of acts: what is advertised can be done, and nothing else can; and words said beside an act.

Words with a vote, a ballot or a day ability are one reply with it, and heard before the act takes effect.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from mac_runner.environments.reading import BLANK
from mac_runner.environments.town_of_salem.testing import (
    ACTS,
    CHANNEL,
    DOUSED,
    POLICIES,
    ROLES,
    Act,
    Asking,
    Ballot,
    Cause,
    Chosen,
    DayAbility,
    Event,
    EventKind,
    Game,
    GameState,
    IllegalActError,
    NightAbility,
    Offer,
    Options,
    Phase,
    Problem,
    apply,
    apply_beside,
    check,
    offers,
)
from mac_runner.types import Prompt, Reply, Turn
from tests.environments.town_of_salem.table import (
    ELEVEN,
    Table,
    advance,
    answer,
    open_game,
    play,
    random_roles,
    reading_of,
    rows,
    state_in,
    variants,
)


def acts_of(offer: Offer, seat: int) -> Iterator[Act]:
    """Every act an offer stands for."""
    text = "some words" if ACTS[offer.verb].takes_words else ""
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
        text = "some words" if spec.takes_words else ""
        for target in ((), *((seat,) for seat in seats)):
            for choice in ("", "guilty", "mafia", "jail", "dead", "seance"):
                act = Act(seat=seat, verb=verb, targets=target, text=text, choice=choice)
                # Words without a channel go to the first one.
                is_default_channel = not target and choice == "" and CHANNEL in spec.slots
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


def filled(form: str) -> str:
    """A form with words where it is blank."""
    return form.replace(BLANK, "your words")


ABILITIES = [(role.id, ability) for role in ROLES.values() for ability in role.abilities]


@pytest.mark.parametrize(("role", "ability"), ABILITIES, ids=lambda part: getattr(part, "verb", part))
def test_advertised_ability_parses_to_its_act(role: str, ability: NightAbility | DayAbility) -> None:
    verb = ability.verb
    state = with_role(role, verb, Phase.DISCUSSION if isinstance(ability, DayAbility) else Phase.NIGHT)
    offer = next(offer for offer in offers(state, 0) if offer.verb == verb)
    targets = (*offer.targets[:1], *offer.seconds[-1:])
    names = {slot.key: state.players[target].name for slot, target in zip(ACTS[verb].slots, targets, strict=False)}

    text = "your words" if ability.takes_text else ""
    expected = Chosen(act=Act(seat=0, verb=verb, targets=targets, text=text))
    assert reading_of(state, filled(ACTS[verb].example("markup", **names))) == expected


def test_advertised_act_parses_to_its_act_and_side_acts_may_stand_beside_any() -> None:
    speech = Act(seat=0, verb="speak", text="your words")
    voting = state_in(Phase.VOTING)
    for state, act in (
        (state_in(Phase.DISCUSSION), speech),
        (state_in(Phase.DISCUSSION), replace(speech, verb="whisper", targets=(1,))),
        (voting, Act(seat=0, verb="vote", targets=(1,))),
        (replace(voting, votes={0: 2}), Act(seat=0, verb="unvote")),
        (state_in(Phase.JUDGEMENT, accused=5), Act(seat=0, verb="ballot", choice=Ballot.GUILTY)),
        (voting, Act(seat=0, verb="wait")),
    ):
        written = filled(ACTS[act.verb].example(target="Beatrice")).replace("CHOICE", act.choice)
        assert reading_of(state, written) == Chosen(act=act), act.verb
    table = Table(("jailor", *ELEVEN[:3]))
    for verb in (verb for verb, spec in ACTS.items() if spec.is_side_act):
        expected = Chosen(act=Act(seat=0, verb="wait"), side_acts=(Act(seat=0, verb=verb, text="your words"),))
        assert reading_of(table.state, f"{filled(ACTS[verb].example())}<wait/>") == expected, verb


def test_every_verb_has_one_form_and_one_timing_over_all_roles() -> None:
    for verb in {ability.verb for _, ability in ABILITIES}:
        abilities = [ability for _, ability in ABILITIES if ability.verb == verb]
        assert len({ability.aims is None for ability in abilities}) == 1
        assert len({type(ability) for ability in abilities}) == 1
        assert len({ability.help for ability in abilities}) == 1


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
    # The text of one that is taken is kept as it was written.
    table = Table(ELEVEN)
    text = "“Curly” <b>bold</b>\nand\ttabs"
    table.act(0, "speak", text=text)
    assert table.events[-1].data["text"] == text


FIVE = ("sheriff", "doctor", "jailor", "escort", "godfather")
BESIDE = "<speak>Elias is suspicious.</speak>"


def game_in(phase: Phase, *, votes: str = "<wait/>") -> Game:
    """A game of five in the first round of a phase of day 2; in the voting all answer `votes`."""
    game = open_game(FIVE)
    return advance(game, phase, day=2, says=lambda turn: votes if game.state.phase is Phase.VOTING else "<wait/>")


def kinds(events: list[Event]) -> list[str]:
    return [str(event.kind) for event in events]


def test_words_with_the_vote_that_opens_a_trial_are_heard_before_it() -> None:
    game = game_in(Phase.VOTING)
    answer(game, "<wait/>")
    before = len(game.log.events)
    while game.state.phase is Phase.VOTING:
        turn = game.turns()[0]
        target = "Abel" if turn.agent == "Elias" else "Elias"
        game.receive(turn, Reply(text=f"{BESIDE}<vote>{target}</vote>"))
    found = kinds(game.log.events[before:])

    assert found[-3:] == [EventKind.SPEECH, EventKind.VOTE, EventKind.TRIAL]
    assert found.count(EventKind.SPEECH) == found.count(EventKind.VOTE)
    assert [act["act"] for act in rows(game, "acts")][-2:] == ["speak", "vote"]
    assert len(rows(game, "claims")) == found.count(EventKind.SPEECH), "the record judges what was said with a vote"


def test_words_with_a_ballot_are_heard_when_all_have_judged_and_before_the_ballots_are_shown() -> None:
    game = game_in(Phase.JUDGEMENT, votes="<vote>Elias</vote>")
    judges = game.turns()
    first = [game.prompt(turn).sha256 for turn in judges]
    events = len(game.log.events)
    for turn in judges[:-1]:
        game.receive(turn, Reply(text=f"<ballot>innocent</ballot><speak>{turn.agent} has doubts.</speak>"))

    assert len(game.log.events) == events
    assert game.prompt(game.turns()[0]).sha256 == first[-1]
    answer(game, '{"act": "ballot", "choice": "guilty", "speak": "I have none."}')
    shown = kinds(game.log.events[events:])
    assert shown[: len(judges) + 1] == [EventKind.SPEECH] * len(judges) + [EventKind.BALLOTS]


def test_words_with_a_day_ability_use_up_no_turn_of_their_own() -> None:
    game = game_in(Phase.DISCUSSION)
    while (turn := game.turns()[0]).agent != "Caleb":
        answer(game, "<wait/>")
    events = len(game.log.events)
    game.receive(turn, Reply(text="<speak>Somebody will talk tonight.</speak><jail>Elias</jail>"))

    assert kinds(game.log.events[events:]) == [EventKind.SPEECH, EventKind.JAIL_CHOSEN]
    assert all(one.agent != "Caleb" or one.round > turn.round for one in game.turns())


def test_words_are_refused_where_their_player_may_not_speak() -> None:
    voting, night, words = state_in(Phase.VOTING), state_in(Phase.NIGHT), Act(seat=0, verb="speak", text="hello")
    blackmailed = voting.with_player(replace(voting.players[0], is_blackmailed=True))
    reading = reading_of(blackmailed, f"{BESIDE}<vote>Elias</vote>")
    assert isinstance(reading, Problem)
    assert "be added now" in reading.reason
    for text in (f"{BESIDE}<interrogate>Elias</interrogate>", f"{BESIDE}<whisper to='Elias'>x</whisper>"):
        reading = reading_of(night, text)
        assert isinstance(reading, Problem)
        assert reading.cause is Cause.SEVERAL_ACTS
    for state in (night, blackmailed):
        with pytest.raises(IllegalActError):
            apply_beside(state, words)
    assert reading_of(state_in(Phase.DISCUSSION), "<speak>hello</speak><wait/>") == Chosen(act=words)


def test_schema_has_a_field_for_words_exactly_with_the_acts_that_take_them() -> None:
    found: dict[tuple[str, str], set[bool]] = {}

    def watch(game: Game, turn: Turn, prompt: Prompt) -> None:
        for variant in variants(prompt):
            act = str(variant["properties"].get("act", {}).get("const"))
            found.setdefault((act, game.state.phase), set()).add("speak" in variant["properties"])

    game = open_game(ELEVEN, options=Options(max_days=6), asking=Asking(form="json"))
    play(game, POLICIES["heuristic"], watch=watch)
    taken = {place for place, given in found.items() if given == {True}}
    assert taken >= {("vote", "voting"), ("ballot", "judgement"), ("jail", "discussion"), ("jail", "greeting")}
    assert {act for act, _ in taken} <= {"vote", "unvote", "ballot", "jail", "reveal", "seance", "caution"}
