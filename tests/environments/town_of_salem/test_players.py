"""The scripted players: fair, legal, worth being measured against, and busy with what their role is for.

Nobody idles where acting is always better, nor acts where it is not.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from mac_runner.environments import Policy
from mac_runner.environments.town_of_salem import bots
from mac_runner.environments.town_of_salem.testing import (
    ACTS,
    CHOICE,
    LOBBIES,
    POLICIES,
    RESULT,
    ROLES,
    Cause,
    Choice,
    Chosen,
    Event,
    EventKind,
    Game,
    GameLog,
    Options,
    Phase,
    Problem,
    Room,
    Seance,
    Seat,
    SeatView,
    plain,
    private,
    public,
    understand,
    view_of,
    write,
)
from mac_runner.types import ReceiptKind
from tests.environments.town_of_salem.table import ELEVEN, Table, advance, open_game, play, random_roles, reading_of
from tests.environments.town_of_salem.test_nights import Case, listed
from tests.tiers import first, some

PAIRINGS = [(town, mafia) for town in ("heuristic", "random") for mafia in ("heuristic", "random")]


def seated(game: Game, *, town: str, mafia: str) -> dict[int, Policy]:
    """Who plays for each seat; neutrals play at random, so that only the two sides differ."""
    of_faction = {"town": town, "mafia": mafia, "neutral": "random"}
    return {player.seat: POLICIES[of_faction[player.faction]] for player in game.state.players}


def played(game: Game, policies: Policy | Mapping[int, Policy], seed: int) -> Game:
    """The game, ended, in which every reply was accepted."""
    for record in play(game, policies, seed=seed):
        assert record.receipt.kind in (ReceiptKind.ACT, ReceiptKind.OBSERVATION), f"seed {seed}: {record}"
    return game


def wins(town: str, mafia: str, games: int) -> Counter[str]:
    """How the same deals end with these players."""
    ended: Counter[str] = Counter()
    for seed in range(games):
        roles = [*LOBBIES["classic-7"]]
        Random(seed).shuffle(roles)
        game = open_game(roles, seed=seed)
        result = played(game, seated(game, town=town, mafia=mafia), seed).state.result
        assert result is not None
        ended[result.winners[0] if result.winners else result.ending] += 1
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


@pytest.mark.parametrize("name", some(2, POLICIES))
def test_every_reply_of_a_scripted_player_is_accepted(name: str) -> None:
    """Over role lists and calendars of every kind, with no correction asked for; who is blackmailed does not speak."""
    chance, blackmailed = Random(11), 0
    for seed in range(20):
        options = Options(
            discussion_rounds=chance.randint(0, 2),
            night_chat_rounds=chance.randint(0, 2),
            greeting_rounds=chance.randint(0, 1),
            sheriff=chance.choice(["binary", "typed"]),
            max_days=6,
        )
        played(open_game(random_roles(chance), seed=seed, options=options, max_retries=0), POLICIES[name], seed)
    for seed in range(6):
        game = played(open_game(LOBBIES["social-10"], seed=seed), POLICIES[name], seed)
        blackmailed += sum(str(event.kind) == "blackmailed" for event in game.log.events)
    assert blackmailed


def test_random_player_is_uniform_over_everything_it_may_do() -> None:
    game = open_game(ELEVEN)
    view = view_of(game.state, game.log, 0)
    options = sum(len(choice.targets) or 1 for choice in view.choices if not ACTS[choice.verb].is_side_act)
    drawn: Counter[tuple[str, tuple[int, ...], str]] = Counter()
    for number in range(options * 200):
        reading = reading_of(game.state, POLICIES["random"](view, Random(number)))
        assert isinstance(reading, Chosen)
        drawn[reading.act.verb, reading.act.targets, reading.act.choice] += 1

    assert len(drawn) == options == 12
    chi_square = sum((count - 200) ** 2 / 200 for count in drawn.values())
    # 11 degrees of freedom: exceeded by one fair player in a thousand.
    assert chi_square < 31.3


def test_scripted_players_look_at_nothing_but_their_view() -> None:
    """They import what names things, never what holds the truth of a game."""
    hidden = {"conversation", "environment", "calendar", "night", "record"}
    truth = {"GameState", "NightState", "GameLog", "view_of", "Player", "offers", "check", "apply", "apply_beside"}
    for path in Path(bots.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                assert not hidden & set(node.module.split(".")), path.name
                assert not truth & {name.name for name in node.names}, path.name


def test_scripted_player_refuses_a_view_of_another_game() -> None:
    for policy in POLICIES.values():
        with pytest.raises(TypeError, match="a SeatView, not"):
            policy("view", Random(1))


def test_heuristic_player_keeps_a_long_will_within_its_limit() -> None:
    game = open_game(["sheriff"] * 19 + ["godfather"])
    names = [player.name for player in game.state.players]
    found = [private(game.state, RESULT, (0,), about=name, finding="not suspicious") for name in names[1:]]
    game.log.append(tuple(found))
    for phase in (Phase.GREETING, Phase.DISCUSSION, Phase.VOTING):
        advance(game, phase)
        text = POLICIES["heuristic"](view_of(game.state, game.log, 0, ("asked",)), Random(1))
        assert isinstance(reading_of(game.state, text), Chosen)


def test_written_act_is_read_as_what_was_written() -> None:
    """The writer is the inverse of the parser, up to what is legal now."""
    state = open_game(ELEVEN).state
    for verb, spec in ACTS.items():
        choice = "guilty" if CHOICE in spec.slots else ""
        text = write(
            verb, target="Beatrice", second="Caleb", text="words", choice=choice, thought="<wait/>", will="mine"
        )
        reading = reading_of(state, text)
        if spec.is_side_act:
            assert isinstance(reading, Problem)
            assert reading.cause is Cause.NO_ACT, verb
        elif isinstance(reading, Problem):
            assert reading.reason.startswith(f"{verb} cannot be chosen")
        else:
            assert isinstance(reading, Chosen)
            assert (reading.act.verb, [act.text for act in reading.side_acts]) == (verb, ["mine"])


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


def test_own_finding_outweighs_the_word_of_a_stranger() -> None:
    game = open_game(ELEVEN)
    text = plain("guilty", name="Beatrice")
    game.log.append(tuple(public(game.state, EventKind.SPEECH, player=who, text=text) for who in ("Caleb", "Dorothea")))
    game.log.append((private(game.state, RESULT, (0,), about="Elias", finding="suspicious"),))
    seat = Seat(view_of(game.state, game.log, 0), Random(1))

    assert seat.most_suspicious() == "Elias"
    assert seat.doubt("Elias") > seat.doubt("Beatrice") > seat.doubt("Felicity")


@pytest.mark.ci
def test_silent_players_say_nothing_and_honest_ones_outside_the_town_nothing_but_to_their_team() -> None:
    heard = {EventKind.SPEECH, EventKind.WHISPER, EventKind.CHAT}
    said: dict[str, Counter[tuple[str, str]]] = {"silent": Counter(), "honest": Counter()}
    for name, counts in said.items():
        for seed in range(3):
            game = played(open_game(LOBBIES["classic-12"], seed=seed), POLICIES[name], seed)
            # In jail and with the dead, the Town's Jailor and Medium talk under the name of their role.
            sides = {player.name: player.faction.value for player in game.state.players}
            sides |= {"Jailor": "town", "Medium": "town"}
            for event in game.log.events:
                if event.kind in heard:
                    counts[sides[event.text("player")], str(event.data.get("channel") or event.kind)] += 1
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
        found = Room(lobby, known=known).chances_of_lie(claims)
        assert [*found.items()] == [*zip(claims, chances, strict=True)], claims


def test_chances_add_up_to_the_claims_there_is_no_room_for() -> None:
    """However the claims fall: as many lies as claims beyond the room, each chance between none and certainty."""
    claims = {f"{role} {number}": role for role in ("Sheriff", "Doctor", "Escort", "Mayor") for number in range(2)}
    for name, lobby in LOBBIES.items():
        room = Room(lobby, known=())
        chances = room.chances_of_lie(claims)
        places = sum(room.named[role] for role in set(claims.values())) + len(room.drawn)

        assert all(0 <= chance <= 1 for chance in chances.values()), name
        assert sum(chances.values()) >= len(claims) - places, name


# What the heuristic player does in each role.

DEEDS: Mapping[str, list[dict[str, Any]]] = yaml.safe_load(
    Path(__file__).with_name("deeds.yaml").read_text(encoding="utf-8")
)
COMPANY = ("sheriff", "doctor", "escort", "lookout", "godfather", "mafioso", "framer", "survivor", "vampire")

# What each role does every night in which it can, in a town where one of the Town's Sheriffs is dead.
NIGHTLY = {
    "sheriff": "interrogate",
    "investigator": "investigate",
    "lookout": "watch",
    "spy": "bug",
    "doctor": "heal",
    "bodyguard": "guard",
    "vampire hunter": "check",
    "escort": "block",
    "retributionist": "raise",
    "godfather": "kill",
    "mafioso": "kill",
    "framer": "frame",
    "janitor": "clean",
    "forger": "forge",
    "disguiser": "disguise",
    "blackmailer": "blackmail",
    "consigliere": "look_into",
    "consort": "block",
    "amnesiac": "remember",
    "witch": "control",
    "arsonist": "douse",
    "serial killer": "stab",
    "werewolf": "rampage",
    "vampire": "bite",
}


def town_of(role: str) -> Table:
    """A table at which `role` sits first, with company of every kind and one dead Sheriff."""
    company = [other for other in COMPANY if other != role or not ROLES[role].is_unique]
    return Table((role, "sheriff", *company))


def deed(table: Table, *heard: Event, seat: int = 0, seed: int = 1) -> tuple[str, str]:
    """The verb and what it is aimed at that the heuristic player in a seat chooses after `heard`."""
    view = seen(table, *heard, seat=seat)
    reply = POLICIES["heuristic"](view, Random(seed))
    act = re.sub(r"<(thinking|will|death_note)>.*?</\1>", "", reply).strip()
    found = re.match(r'<(\w+)(?: to="(\w+)")?[^>]*?(?:/>|>(.*)</)', act)
    assert found is not None, reply
    return found[1], found[2] or found[3] or ""


def seen(table: Table, *heard: Event, seat: int = 0) -> SeatView:
    log = GameLog(len(table.state.players))
    log.append((*table.events, *heard))
    return view_of(table.state, log, seat, ("the card",))


def says(table: Table, who: str, text: str) -> Event:
    return public(table.state, EventKind.SPEECH, player=table.name(who), text=text)


def finds(table: Table, about: str, finding: str) -> Event:
    return private(table.state, RESULT, (0,), about=table.name(about), finding=finding)


class Doing(Case):
    """A case of `deeds.yaml` at its table."""

    def __init__(self, setup: Mapping[str, Any]) -> None:
        seats = setup.get("seats") or ", ".join(player.dealt for player in town_of(setup["town"]).state.players)
        super().__init__({"seats": seats})
        self.heard: list[Event] = []

    def line(self, told: Mapping[str, Any]) -> None:
        """Follow a line, of which the words come first."""
        self.heard = [finds(self.table, about, finding) for about, finding in told.get("finds", {}).items()]
        for who, said in told.get("say", {}).items():
            kind, _, role = said.partition(" ")
            is_claim = kind == "claims"
            words = plain("claim", role=role) if is_claim else plain("guilty", name=self.table.name(role))
            self.heard.append(says(self.table, who, words))
        for key, value in told.items():
            if key not in ("town", "finds", "say"):
                self.follow(key, value)

    def look(self, key: str, value: Any) -> Any:
        if key not in ("does", "verb", "claim"):
            return super().look(key, value)
        verb, aim = deed(self.table, *self.heard)
        if key == "claim":
            return understand(aim).claims or "none"
        dealt = {player.name: player.dealt for player in self.table.state.players}
        shown = "" if verb == "speak" or key == "verb" else ", ".join(dealt.get(name, name) for name in listed(aim))
        return f"{verb} {shown}".strip()


def test_heuristic_players_do_what_their_role_is_for(subtests: pytest.Subtests) -> None:
    for title, lines in DEEDS.items():
        with subtests.test(title):
            case = Doing(lines[0])
            for told in lines:
                case.line(told)


@pytest.mark.parametrize("seed", first(2, range(5), tier="ci", rest="nightly"))
@pytest.mark.parametrize("role", NIGHTLY)
def test_no_role_idles_where_acting_is_always_better(role: str, seed: int) -> None:
    table = town_of(role)
    table.night({"mafioso": ("kill", "sheriff 2")}, day=1)
    table.go_to(Phase.NIGHT, day=2)
    verb, target = deed(table, seed=seed)

    assert verb == NIGHTLY[role]
    assert target


def test_role_without_a_reason_harms_nobody() -> None:
    assert NIGHTLY.keys() <= ROLES.keys()
    for role in sorted(ROLES.keys() - NIGHTLY.keys() - {"survivor"}):
        table = town_of(role)
        table.go_to(Phase.NIGHT, day=2)
        assert deed(table)[0] in ("wait", "alert"), f"{role}: `NIGHTLY` is to say what it does every night"


def test_veteran_goes_on_alert_once_known() -> None:
    table = town_of("veteran")
    table.go_to(Phase.NIGHT, day=1)
    known = says(table, "veteran", plain("claim", role="Veteran"))

    assert all(deed(table, known, seed=seed)[0] == "alert" for seed in range(10))
    assert any(deed(table, seed=seed)[0] == "wait" for seed in range(10))


def test_jester_claims_what_cannot_be_true() -> None:
    table = town_of("jester")
    table.go_to(Phase.DISCUSSION, day=2)
    # There are two Sheriffs on the list, and one Doctor.
    claims = (
        says(table, "sheriff", plain("claim", role="Sheriff")),
        says(table, "doctor", plain("claim", role="Doctor")),
    )

    deeds = [deed(table, *claims, seed=seed) for seed in range(10)]
    assert {(verb, understand(words).claims) for verb, words in deeds} == {("speak", "Doctor")}


def test_executioner_accuses_his_target_as_one_who_could_know() -> None:
    table = town_of("executioner")
    table.go_to(Phase.DISCUSSION, day=2)
    quarry = table.player("executioner").quarry
    assert quarry is not None
    verb, words = deed(table)

    assert verb == "speak"
    assert understand(words).accuses == (table.name(quarry),)
    assert understand(words).claims in ("Sheriff", "Lookout")


def test_escort_leaves_alone_who_is_as_good_as_caught_while_a_serial_killer_may_live() -> None:
    """One who is blocked kills the blocker; without such a one the worst is kept busy."""
    for list_of_roles, is_spared in ((("escort", "serial killer", *COMPANY), True), (("escort", *COMPANY), False)):
        table = Table(list_of_roles)
        table.go_to(Phase.NIGHT, day=1)
        blocked = {deed(table, finds(table, "mafioso", "suspicious"), seed=seed)[1] for seed in range(30)}

        assert (table.name("mafioso") not in blocked) is is_spared
        assert is_spared is (len(blocked) > 1)


def test_mafia_kills_whom_its_leader_named_last() -> None:
    table = town_of("godfather")
    table.go_to(Phase.NIGHT, day=1)
    team = [table.seat(who) for who in ("godfather", "mafioso", "framer")]

    def named(who: str, whom: str) -> Event:
        said = {"channel": "mafia", "player": table.name(who), "text": plain("target", name=table.name(whom))}
        return private(table.state, EventKind.CHAT, team, **said)

    chat = named("mafioso", "doctor"), named("godfather", "escort"), named("framer", "lookout")
    for who in ("godfather", "mafioso"):
        assert deed(table, *chat, seat=table.seat(who)) == ("kill", table.name("escort"))
