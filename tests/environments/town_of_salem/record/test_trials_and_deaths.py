"""Trials with their votes, deaths with their killers, changes of role with their reasons, the cast."""

from __future__ import annotations

from syrupy.assertion import SnapshotAssertion

from mac_runner.environments.town_of_salem.testing import (
    POLICIES,
    EndRound,
    EventKind,
    NightState,
    Phase,
    RoleHistory,
    death_rows,
    play_out,
    trial_rows,
)
from mac_runner.types import JsonObject
from tests.environments.town_of_salem.table import ELEVEN, Table, open_game, play

CROWD = ("sheriff", "doctor", "investigator", "mafioso", "godfather", "escort")


def objects(value: object) -> list[JsonObject]:
    assert isinstance(value, list)
    return [item for item in value if isinstance(item, dict)]


def test_trial_is_told_with_the_votes_that_made_it_in_their_order() -> None:
    table = Table(CROWD)
    table.go_to(Phase.VOTING)
    voters = list(table.state.due)
    accused = next(seat for seat in voters if table.state.players[seat].dealt == "godfather")
    first, *others = (seat for seat in voters if seat != accused)
    table.act(first, "vote", others[0])
    for voter in others[:3]:
        table.act(voter, "vote", accused)
    # The first to vote changes their mind in the next round, and so votes last.
    while table.is_in(Phase.VOTING):
        if table.state.due and table.state.due[0] == first:
            table.act(first, "vote", accused)
        elif table.state.due:
            table.act(table.state.due[0], "wait")
        else:
            table.make(EndRound())
    table.go_to(Phase.JUDGEMENT)
    judges = table.state.due
    for seat in judges[:-1]:
        table.act(seat, "ballot", choice="guilty")
    table.act(judges[-1], "ballot", choice="abstain")
    table.end_round()
    (trial,) = objects(trial_rows(table.events))
    names = [player.name for player in table.state.players]

    assert trial == {
        "day": 2,
        "accused": names[accused],
        "votes": [{"voter": names[seat], "order": place} for place, seat in enumerate([*others[:3], first], start=1)],
        "guilty": [names[seat] for seat in judges[:-1]],
        "innocent": [],
        "abstain": [names[judges[-1]]],
        "verdict": "guilty",
    }


def test_trial_that_came_to_no_verdict_has_none() -> None:
    table = Table(CROWD)
    table.accuse("godfather")
    (trial,) = objects(trial_rows(table.events))

    assert (trial["accused"], trial["verdict"]) == (table.name("godfather"), None)


def deaths(table: Table, nights: dict[int, NightState]) -> list[JsonObject]:
    names = [player.name for player in table.state.players]
    return objects(death_rows(table.events, nights, RoleHistory(table.events, table.state.players), names))


def test_death_at_night_is_told_with_its_killer_and_true_role() -> None:
    table = Table(("janitor", *CROWD))
    table.go_to(Phase.NIGHT)
    table.act("mafioso", "kill", "sheriff")
    table.act("janitor", "clean", "sheriff")
    nights = {1: play_out(table.state)}
    table.end_round()

    assert deaths(table, nights) == [
        {
            "day": 1,
            "at": "night",
            "player": table.name("sheriff"),
            "role": "Sheriff",
            "role_shown": None,
            "causes": ["mafia"],
            "killers": [table.name("mafioso")],
        }
    ]


def test_lynch_has_no_killer() -> None:
    table = Table(CROWD)
    table.lynch("godfather")
    (death,) = deaths(table, {})

    assert (death["day"], death["at"], death["causes"], death["killers"]) == (2, "day", ["lynch"], [])


def test_change_of_role_is_told_with_its_reason(snapshot: SnapshotAssertion) -> None:
    table = Table(CROWD)
    table.lynch("godfather")
    (change,) = objects(RoleHistory(table.events, table.state.players).changes())

    assert change.pop("player") == table.name("mafioso")
    assert change == snapshot


def test_reasons_of_changes_are_told_apart() -> None:
    roles = ("vampire", "vampire hunter", "amnesiac", "executioner", "sheriff", "doctor", "lookout", "spy")
    table = Table(roles)
    quarry = table.player("executioner").quarry
    assert quarry is not None
    first = next(seat for seat in range(4, 8) if seat != quarry)
    table.lynch(first)
    table.night({"vampire": ("bite", quarry), "amnesiac": ("remember", first)}, day=2)
    told = {str(change["player"]): change["why"] for change in objects(_changes(table))}

    assert [told[table.name(who)] for who in (quarry, "amnesiac")] == ["bitten by a Vampire", "remembered"]
    assert len(told) == 2
    table.lynch("vampire")
    table.lynch(quarry)
    told = {str(change["player"]): change["why"] for change in objects(_changes(table))}
    assert str(told[table.name("vampire hunter")]).endswith("Vampire was left")


def _changes(table: Table) -> object:
    return RoleHistory(table.events, table.state.players).changes()


def test_executioner_whose_target_is_killed_at_night_is_told_to_have_lost_it(snapshot: SnapshotAssertion) -> None:
    table = Table(("executioner", *CROWD))
    quarry = table.player("executioner").quarry
    assert quarry is not None
    table.night({"mafioso": ("kill", quarry)})
    (change,) = objects(_changes(table))

    assert (change["to"], change["why"]) == snapshot


def test_record_holds_the_whole_truth_of_a_game() -> None:
    game = open_game(ELEVEN, seed=5)
    play(game, POLICIES["heuristic"], seed=5)
    record = game.record()
    cast = {str(player["role"]): player for player in objects(record["cast"])}
    chosen = [event for event in game.log.events if event.kind is EventKind.ACTION_CHOSEN]
    nights = objects(record["nights"])

    assert sum(len(objects(night["deeds"])) for night in nights) == len(chosen)
    assert [night["day"] for night in nights] == list(range(1, len(nights) + 1))
    assert (
        cast["executioner"]["target"] == next(e for e in game.log.events if e.kind is EventKind.QUARRY).data["target"]
    )
    assert {"slot", "definition", "model", "seat", "name"} <= cast["sheriff"].keys()
    buried = [player.name for player in game.state.players if not player.alive]
    assert sorted(str(death["player"]) for death in objects(record["deaths"])) == sorted(buried)
    assert record == game.record()


MADE_BY_THE_RULES = {"game_start", "role_card", "day_start", "night_start", "voting_start", "death", "game_end"}


def test_what_a_player_did_is_of_its_turn_and_what_the_rules_do_of_none() -> None:
    game = open_game(ELEVEN, seed=5)
    answered = {record.turn.key: record.turn.agent for record in play(game, POLICIES["heuristic"], seed=5)}
    events = game.record()["events"]
    assert isinstance(events, list)
    kinds: set[str] = set()
    for event in events:
        assert isinstance(event, dict)
        data, kind, turn = event["data"], str(event["kind"]), event["turn"]
        assert isinstance(data, dict)
        kinds.add(kind)
        if kind in ("speech", "vote", "unvote"):
            assert answered[str(turn)] == data["player"]
        elif kind in MADE_BY_THE_RULES:
            assert turn is None, kind
        else:
            assert turn is None or turn in answered

    assert kinds >= {"speech", "vote", "death", "trial", "chat"}
