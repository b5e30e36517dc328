"""The scripted players: fair, legal, and worth being measured against."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from mac_runner.environments import Policy
from mac_runner.environments.town_of_salem import bots
from mac_runner.environments.town_of_salem.testing import (
    ACTS,
    LOBBIES,
    POLICIES,
    Cause,
    Choice,
    Chosen,
    EventKind,
    Form,
    Game,
    Options,
    Phase,
    Problem,
    Room,
    Seance,
    SeatView,
    Statement,
    accuse,
    chances_of_lie,
    claim,
    clear,
    form_beliefs,
    private,
    public,
    read,
    understand,
    view_of,
    write,
)
from mac_runner.types import ReceiptKind, Reply
from tests.environments.town_of_salem.table import ELEVEN, Table, open_game, play, random_roles
from tests.tiers import first

PAIRINGS = [(town, mafia) for town in ("heuristic", "random") for mafia in ("heuristic", "random")]


def seated(game: Game, *, town: str, mafia: str) -> dict[int, Policy]:
    """Who plays for each seat; neutrals play at random, so that only the two sides differ."""
    of_faction = {"town": town, "mafia": mafia, "neutral": "random"}
    return {player.seat: POLICIES[of_faction[player.faction]] for player in game.state.players}


def wins(town: str, mafia: str, games: int) -> Counter[str]:
    """How the same deals end with these players."""
    ended: Counter[str] = Counter()
    for seed in range(games):
        roles = [*LOBBIES["classic-7"]]
        Random(seed).shuffle(roles)
        game = open_game(roles, seed=seed)
        for record in play(game, seated(game, town=town, mafia=mafia), seed=seed):
            assert record.receipt.kind in (ReceiptKind.ACT, ReceiptKind.OBSERVATION), record
        assert game.state.result is not None
        ended[game.state.result.winners[0] if game.state.result.winners else game.state.result.ending] += 1
    return ended


@pytest.mark.parametrize("games", first(1, (12, 36), tier="ci", rest="nightly"))
def test_heuristic_players_beat_random_ones_on_both_sides(games: int) -> None:
    """The same deals with all four pairings; the difference must be far beyond what luck does in so many games."""
    table = {(town, mafia): wins(town, mafia, games) for town, mafia in PAIRINGS}
    sys.stdout.write(f"of {games} games of classic-7   town  mafia  draw\n")
    for (town, mafia), ended in table.items():
        pairing = f"{town} town, {mafia} mafia"
        sys.stdout.write(f"{pairing:30}{ended['town']:4}{ended['mafia']:7}{ended['draw']:6}\n")

    for mafia in ("heuristic", "random"):
        assert table["heuristic", mafia]["town"] >= table["random", mafia]["town"] + games // 4
    for town in ("heuristic", "random"):
        assert table[town, "heuristic"]["mafia"] >= table[town, "random"]["mafia"]
    assert table["random", "heuristic"]["mafia"] >= table["random", "random"]["mafia"] + games // 5
    assert min(table["heuristic", "heuristic"][side] for side in ("town", "mafia")) >= games // 6


@pytest.mark.ci
def test_blackmailed_heuristic_player_does_not_try_to_speak() -> None:
    blackmailed = 0
    for seed in range(6):
        game = open_game([*LOBBIES["social-10"]], seed=seed)
        for record in play(game, dict.fromkeys(range(10), POLICIES["heuristic"]), seed=seed):
            assert record.receipt.kind in (ReceiptKind.ACT, ReceiptKind.OBSERVATION), record
        blackmailed += sum(event.kind is EventKind.BLACKMAILED for event in game.log.events)

    assert blackmailed


@pytest.mark.ci
@pytest.mark.parametrize("name", POLICIES)
def test_every_reply_of_a_scripted_player_is_accepted(name: str) -> None:
    """Over role lists and calendars of every kind, with no correction asked for."""
    chance = Random(11)
    for seed in range(20):
        options = Options(
            discussion_rounds=chance.randint(0, 2),
            night_chat_rounds=chance.randint(0, 2),
            greeting_rounds=chance.randint(0, 1),
            sheriff=chance.choice(["binary", "typed"]),
            max_days=6,
        )
        game = open_game(random_roles(chance), seed=seed, options=options, max_retries=0)
        for record in play(game, POLICIES[name], seed=seed):
            assert record.receipt.kind in (ReceiptKind.ACT, ReceiptKind.OBSERVATION), f"seed {seed}: {record}"


def draws(view: SeatView, count: int) -> Counter[tuple[str, tuple[int, ...], str]]:
    """How often the random player chose each act, as the game would read it."""
    game = open_game(ELEVEN)
    state = game.state
    drawn: Counter[tuple[str, tuple[int, ...], str]] = Counter()
    for number in range(count):
        reading = read(Reply(text=POLICIES["random"](view, Random(number))), state, 0)
        assert isinstance(reading, Chosen)
        drawn[reading.act.verb, reading.act.targets, reading.act.choice] += 1
    return drawn


def test_random_player_is_uniform_over_everything_it_may_do() -> None:
    game = open_game(ELEVEN)
    view = view_of(game.state, game.log, 0)
    options = sum(len(choice.targets) or 1 for choice in view.choices if not ACTS[choice.verb].is_side_act)
    drawn = draws(view, options * 200)

    assert len(drawn) == options == 12
    chi_square = sum((count - 200) ** 2 / 200 for count in drawn.values())
    # 11 degrees of freedom: exceeded by one fair player in a thousand.
    assert chi_square < 31.3


def test_scripted_players_look_at_nothing_but_their_view() -> None:
    """They import what names things, never what holds the truth of a game."""
    hidden = {"conversation", "environment", "game_loop", "rules", "calendar", "channels", "night", "record"}
    truth = {"GameState", "GameLog", "view_of", "Player", "offers"}
    for path in Path(bots.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                assert not hidden & set(node.module.split(".")), path.name
                assert not truth & {name.name for name in node.names}, path.name


@pytest.mark.parametrize("name", POLICIES)
def test_scripted_player_answers_the_same_view_the_same(name: str) -> None:
    one = open_game(("sheriff", "doctor", "escort", "godfather", "jester"))
    other = open_game(("sheriff", "jester", "godfather", "escort", "doctor"))
    replies = {POLICIES[name](view_of(game.state, game.log, 0), Random(4)) for game in (one, other)}

    assert len(replies) == 1


@pytest.mark.parametrize("name", POLICIES)
def test_scripted_player_refuses_a_view_of_another_game(name: str) -> None:
    with pytest.raises(TypeError, match="a SeatView, not"):
        POLICIES[name]("view", Random(1))


def test_heuristic_player_keeps_a_long_will_within_its_limit() -> None:
    game = open_game(["sheriff"] * 19 + ["godfather"])
    names = [player.name for player in game.state.players]
    found = [private(game.state, EventKind.RESULT, (0,), about=name, finding="not suspicious") for name in names[1:]]
    game.log.append(tuple(found))
    for phase in (Phase.GREETING, Phase.DISCUSSION, Phase.VOTING):
        while game.state.phase is not phase:
            game.receive(game.turns()[0], Reply(text="<wait/>"))
        text = POLICIES["heuristic"](view_of(game.state, game.log, 0, ("asked",)), Random(1))
        assert isinstance(read(Reply(text=text), game.state, 0), Chosen)


@pytest.mark.parametrize("verb", ACTS)
def test_written_act_is_read_as_what_was_written(verb: str) -> None:
    """The writer is the inverse of the parser, up to what is legal now."""
    game = open_game(ELEVEN)
    choice = "guilty" if ACTS[verb].form is Form.CHOICE else ""
    text = write(verb, target="Beatrice", second="Caleb", text="words", choice=choice, thought="<wait/>", will="mine")
    reading = read(Reply(text=text), game.state, 0)

    if ACTS[verb].is_side_act:
        assert isinstance(reading, Problem)
        assert reading.cause is Cause.NO_ACT
    elif isinstance(reading, Problem):
        assert reading.reason.startswith(f"{verb} cannot be chosen")
    else:
        assert isinstance(reading, Chosen)
        assert reading.act.verb == verb
        assert [act.text for act in reading.side_acts] == ["mine"]


@pytest.mark.parametrize("role", ["godfather", "framer", "mafioso", "executioner"])
def test_heuristic_player_betrays_itself_to_no_medium(role: str) -> None:
    """What is said in a seance binds what is claimed by day: the truth told there would be told to all."""
    table = Table(("medium", role, *(other for other in ("godfather", "sheriff", "doctor") if other != role)))
    table.night(day=1)
    table.bury("medium")
    table.state = replace(table.state, seance=Seance(medium=0, target=1))
    table.go_to(Phase.NIGHT_CHAT)
    game = open_game([player.dealt for player in table.state.players])
    game.log.append(tuple(table.events))
    view = view_of(table.state, game.log, 1)
    seance = replace(view, choices=(Choice(verb="speak", choices=("seance",)),))

    said = POLICIES["heuristic"](seance, Random(1)).rpartition('">')[2].removesuffix("</speak>")
    claims = understand(said).claims
    assert claims is not None
    assert claims.lower() in ("medium", "sheriff", "doctor", "jailor", "investigator", "escort")


def test_fixed_sentences_are_understood_as_they_were_meant() -> None:
    text = f"{claim('Wizard')} {claim('Sheriff')} {accuse(['Abel', 'Caleb'])} {clear(['Beatrice'])}"

    assert understand(text) == Statement(claims="Sheriff", accuses=("Abel", "Caleb"), clears=("Beatrice",))
    assert understand(claim("Doctor", dead=True)).claims == "Doctor"
    for said in (
        "I like the Sheriff.",
        "I do not think Abel is suspicious.",
        "I am the Sheriff's friend.",
        "Caleb told me: I am the Sheriff.",
        "Never would I say I found that Abel is suspicious.",
    ):
        assert understand(said) == Statement(claims=None, accuses=(), clears=()), said


def test_own_finding_outweighs_the_word_of_a_stranger() -> None:
    game = open_game(ELEVEN)
    text = accuse(["Beatrice"])
    game.log.append(tuple(public(game.state, EventKind.SPEECH, player=who, text=text) for who in ("Caleb", "Dorothea")))
    game.log.append((private(game.state, EventKind.RESULT, (0,), about="Elias", finding="suspicious"),))
    beliefs = form_beliefs(view_of(game.state, game.log, 0))

    assert beliefs.most_suspicious() == ("Elias", beliefs.suspicion["Elias"])
    assert beliefs.suspicion["Elias"] > beliefs.suspicion["Beatrice"] > beliefs.suspicion["Felicity"]


@pytest.mark.ci
def test_silent_players_say_nothing_and_honest_ones_outside_the_town_nothing_but_to_their_team() -> None:
    heard = {EventKind.SPEECH, EventKind.WHISPER, EventKind.CHAT}
    said: dict[str, Counter[tuple[str, str]]] = {"silent": Counter(), "honest": Counter()}
    for name, counts in said.items():
        for seed in range(3):
            game = open_game([*LOBBIES["classic-12"]], seed=seed)
            for record in play(game, dict.fromkeys(range(12), POLICIES[name]), seed=seed):
                assert record.receipt.kind in (ReceiptKind.ACT, ReceiptKind.OBSERVATION), (name, record)
            # In jail and with the dead, the Town's Jailor and Medium talk under the name of their role.
            sides = {player.name: player.faction.value for player in game.state.players}
            sides |= {"Jailor": "town", "Medium": "town"}
            for event in game.log.events:
                if event.kind in heard:
                    counts[sides[event.text("player")], str(event.data.get("channel") or event.kind.value)] += 1
            assert name == "honest" or not any(player.will or player.death_note for player in game.state.players)

    assert not said["silent"]
    assert {words for (side, words) in said["honest"] if side == "mafia"} == {"mafia"}, said["honest"]
    assert {side for (side, words) in said["honest"] if words == "speech"} == {"town"}, said["honest"]


def test_claims_beyond_the_role_list_are_lies_and_those_who_share_a_slot_share_the_doubt() -> None:
    pair = {"Abel": "Sheriff", "Beatrice": "Sheriff"}
    four = {**pair, "Caleb": "Doctor", "Dorothea": "Doctor"}
    named, drawn = ("sheriff", "doctor", "godfather"), ("sheriff", "doctor", "random town", "godfather")
    for lobby, known, claims, chances in (
        (named, (), {"Abel": "Sheriff", "Beatrice": "Doctor"}, [0, 0]),
        (named, (), pair, [0.5, 0.5]),
        (named, ("Sheriff",), {"Abel": "Sheriff"}, [1]),
        # A drawn slot has room for one claim of all beyond the named slots, if it can hold it.
        (drawn, (), pair, [0, 0]),
        (drawn, (), four, [0.25] * 4),
        (("sheriff", "town protective", "godfather"), (), {"Abel": "Bodyguard", "Beatrice": "Escort"}, [0, 1]),
        # A known role fills a drawn slot when no slot names it.
        (("sheriff", "random town", "godfather"), ("Escort",), {"Abel": "Spy"}, [1]),
    ):
        assert [*chances_of_lie(Room(lobby, known=known), claims).items()] == [*zip(claims, chances, strict=True)], (
            claims
        )


def test_chances_add_up_to_the_claims_there_is_no_room_for() -> None:
    """However the claims fall: as many lies as claims beyond the room, each chance between none and certainty."""
    claims = {f"{role} {number}": role for role in ("Sheriff", "Doctor", "Escort", "Mayor") for number in range(2)}
    for name, lobby in LOBBIES.items():
        room = Room(lobby, known=())
        chances = chances_of_lie(room, claims)
        places = sum(room.named[role] for role in set(claims.values())) + len(room.drawn)

        assert all(0 <= chance <= 1 for chance in chances.values()), name
        assert sum(chances.values()) >= len(claims) - places, name
