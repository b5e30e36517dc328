"""What a record tells of a game, and what pages show of it: trials, deaths, changes of role, the cast, the truth."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect
from syrupy.assertion import SnapshotAssertion

from mac_runner.environments.town_of_salem.testing import (
    EventKind,
    GameRecord,
    NightState,
    Outcome,
    Phase,
    RoleHistory,
    death_rows,
    event_row,
    game_scene,
    play_out,
    read_record,
    trial_rows,
)
from mac_runner.flat import described
from mac_runner.view_model import Cell, Fact, Scene
from tests.environments.town_of_salem.table import Table, ended, rows

CROWD = ("sheriff", "doctor", "investigator", "mafioso", "godfather", "escort")
SEEDS = (3, 5, 8)


def as_written(rows: Iterable[msgspec.Struct]) -> list[dict[str, Any]]:
    """Parts of a record as a transcript has them."""
    written: list[dict[str, Any]] = msgspec.to_builtins([*rows])
    return written


def trials(table: Table) -> list[dict[str, Any]]:
    names = [player.name for player in table.state.players]
    return as_written(trial_rows(event_row(event, None, names) for event in table.events))


def test_trial_is_told_with_the_votes_that_made_it_in_their_order_and_with_its_verdict_once_there_is_one() -> None:
    table = Table(CROWD)
    table.go_to(Phase.VOTING)
    table.act("sheriff", "vote", "doctor")
    for voter in ("doctor", "investigator", "escort"):
        table.act(voter, "vote", "godfather")
    table.end_round()
    # The first to vote changes their mind in the next round, and so votes last.
    table.act("sheriff", "vote", "godfather")
    assert [(trial["accused"], trial["verdict"]) for trial in trials(table)] == [(table.name("godfather"), None)]
    table.go_to(Phase.JUDGEMENT)
    for judge in CROWD:
        if judge != "godfather":
            table.act(judge, "ballot", choice="abstain" if judge == "escort" else "guilty")
    table.end_round()

    assert trials(table) == [
        {
            "day": 2,
            "accused": table.name("godfather"),
            "votes": [
                {"voter": table.name(who), "order": order}
                for order, who in enumerate(("doctor", "investigator", "escort", "sheriff"), start=1)
            ],
            "guilty": [table.name(who) for who in CROWD[:4]],
            "innocent": [],
            "abstain": [table.name("escort")],
            "verdict": "guilty",
        }
    ]


def test_death_is_told_with_its_killer_and_true_role() -> None:
    table = Table(("janitor", *CROWD))
    table.go_to(Phase.NIGHT)
    table.act("mafioso", "kill", "sheriff")
    table.act("janitor", "clean", "sheriff")
    nights: dict[int, NightState] = {1: play_out(table.state)}
    table.lynch("godfather")
    names = [player.name for player in table.state.players]
    history = RoleHistory(table.events, table.state.players)
    at_night, by_day = as_written(death_rows(table.events, nights, history, names))

    assert at_night == {
        "day": 1,
        "at": "night",
        "player": table.name("sheriff"),
        "role": "Sheriff",
        "role_shown": None,
        "causes": ["mafia"],
        "killers": [table.name("mafioso")],
    }
    lynch = {"day": 2, "at": "day", "player": table.name("godfather"), "causes": ["lynch"], "killers": []}
    assert lynch.items() <= by_day.items()


def changes(table: Table) -> dict[str, Any]:
    """The changes of role, by player."""
    found = as_written(RoleHistory(table.events, table.state.players).changes())
    return {change.pop("player"): change for change in found}


def test_change_of_role_is_told_with_its_reason(snapshot: SnapshotAssertion) -> None:
    promoted, lost = Table(CROWD), Table(("executioner", *CROWD))
    promoted.lynch("godfather")
    quarry = lost.player("executioner").quarry
    assert quarry is not None
    lost.night({"mafioso": ("kill", quarry)})

    assert changes(promoted) == {promoted.name("mafioso"): snapshot}
    assert changes(lost).keys() == {lost.name("executioner")}
    assert [(change["to"], change["why"]) for change in changes(lost).values()] == snapshot


def test_reasons_of_changes_are_told_apart() -> None:
    roles = ("vampire", "vampire hunter", "amnesiac", "executioner", "sheriff", "doctor", "lookout", "spy")
    table = Table(roles)
    quarry = table.player("executioner").quarry
    assert quarry is not None
    first = next(seat for seat in range(4, 8) if seat != quarry)
    table.lynch(first)
    table.night({"vampire": ("bite", quarry), "amnesiac": ("remember", first)}, day=2)

    assert {name: change["why"] for name, change in changes(table).items()} == {
        table.name(quarry): "bitten by a Vampire",
        table.name("amnesiac"): "remembered",
    }
    table.lynch("vampire")
    table.lynch(quarry)
    assert changes(table)[table.name("vampire hunter")]["why"].endswith("Vampire was left")


def test_record_holds_the_whole_truth_of_a_game() -> None:
    game, _ = ended()
    cast = {player["role"]: player for player in rows(game, "cast")}
    chosen = [event for event in game.log.events if event.kind is EventKind.ACTION_CHOSEN]
    (quarry,) = (event for event in game.log.events if event.kind is EventKind.QUARRY)
    nights = rows(game, "nights")

    assert sum(len(night["deeds"]) for night in nights) == len(chosen)
    assert [night["day"] for night in nights] == list(range(1, len(nights) + 1))
    assert cast["executioner"]["target"] == quarry.data["target"]
    assert {"slot", "definition", "model", "seat", "name"} <= cast["sheriff"].keys()
    buried = [player.name for player in game.state.players if not player.alive]
    assert sorted(death["player"] for death in rows(game, "deaths")) == sorted(buried)
    assert game.record() == game.record()


def test_all_that_a_transcript_says_of_a_game_is_read_from_it_and_says_what_it_means() -> None:
    for seed in SEEDS:
        game, _ = ended(seed)
        assert as_written([read_record(game.record())]) == [game.record()]
        assert as_written([msgspec.convert(game.outcome, Outcome)]) == [game.outcome]
    assert {*unexplained(GameRecord), *unexplained(Outcome)} == set()


def unexplained(row: type[msgspec.Struct] | inspect.StructType) -> Iterator[str]:
    """The fields that hold a value and do not say what it means."""
    for field in described(row):
        inner = field.of.item_type if isinstance(field.of, inspect.ListType) else field.of
        if isinstance(inner, inspect.StructType):
            yield from unexplained(inner)
        elif not field.meaning:
            yield field.key


MADE_BY_THE_RULES = {"game_start", "role_card", "day_start", "night_start", "voting_start", "death", "game_end"}


def test_what_a_player_did_is_of_its_turn_and_what_the_rules_do_of_none() -> None:
    game, records = ended()
    answered = {record.turn.key: record.turn.agent for record in records}
    kinds: set[str] = set()
    for event in rows(game, "events"):
        kind, turn = event["kind"], event["turn"]
        kinds.add(kind)
        if kind in ("speech", "vote", "unvote"):
            assert answered[turn] == event["data"]["player"]
        elif kind in MADE_BY_THE_RULES:
            assert turn is None, kind
        else:
            assert turn is None or turn in answered

    assert kinds >= {"speech", "vote", "death", "trial", "chat"}


# The scene: each part is known from an event that says so itself, or to the truth alone.


@cache
def played() -> list[tuple[dict[str, Any], Scene]]:
    """Finished games and their scenes."""
    games = [ended(seed)[0] for seed in SEEDS]
    transcripts: list[dict[str, Any]] = [{"record": game.record(), "outcome": game.outcome} for game in games]
    return [(transcript, game_scene(transcript)) for transcript in transcripts]


def cells(scene: Scene) -> Iterator[Cell]:
    for table in scene.tables:
        yield from table.heads
        for row in table.rows:
            yield row.head
            yield from row.cells


def last(facts: tuple[Fact, ...], name: str) -> str:
    return [fact.text for fact in facts if fact.name == name][-1]


def test_a_role_with_an_event_is_in_the_words_of_that_event() -> None:
    for transcript, scene in played():
        events = transcript["record"]["events"]
        shown = [(name, fact) for name, facts in scene.members.items() for fact in facts if fact.event is not None]
        assert {fact.name for _, fact in shown} >= {"role", "faction", "fate"}
        for name, fact in shown:
            if fact.name == "role":
                event = events[fact.event]
                assert fact.text in json.dumps(event["data"]), fact
                assert event["audience"] == [name] or name in json.dumps(event["data"]), fact


def test_no_part_with_an_event_names_a_speaker_whom_the_event_hides() -> None:
    hidden = 0
    for transcript, scene in played():
        events = transcript["record"]["events"]
        for cell in cells(scene):
            if cell.event is None or events[cell.event]["kind"] != "chat":
                continue
            event = events[cell.event]
            if event["data"]["player"] in scene.members:
                continue
            hidden += 1
            speaker = str(event["turn"]).split("/")[1]
            assert speaker not in event["text"]
            assert speaker not in (cell.text, cell.title)
    assert hidden > 0


def test_facts_end_with_the_truth() -> None:
    for transcript, scene in played():
        for player in transcript["outcome"]["players"]:
            facts = scene.members[player["agent"]]
            assert last(facts, "role").lower() == player["final_role"]
            assert last(facts, "faction").lower() == player["faction"]
            assert last(facts, "result") == ("won" if player["won"] else "lost")
            assert (last(facts, "fate") == "lived") is player["alive"]


def test_winners_are_those_of_the_list_of_games_and_seats_read_those_that_all_were_told() -> None:
    neutrals = 0
    for transcript, scene in played():
        won = {player["faction"] for player in transcript["outcome"]["players"] if player["won"]}
        facts = {fact.name: fact for fact in scene.facts}
        assert facts["winners"].text.lower() == (", ".join(sorted({*transcript["outcome"]["winners"], *won})) or "none")
        assert facts["winners"].event is None
        assert facts["announced winners"].text.lower() == (", ".join(transcript["outcome"]["winners"]) or "none")
        neutrals += facts["winners"].text != facts["announced winners"].text
    assert neutrals > 0


def test_phases_are_the_days_and_nights_with_who_lives_at_their_end() -> None:
    for transcript, scene in played():
        record, outcome = transcript["record"], transcript["outcome"]
        assert [phase.label for phase in scene.phases[:3]] == ["Day 1", "Night 1", "Day 2"]
        living = [sum(share.count for share in phase.standing) for phase in scene.phases]
        assert living == sorted(living, reverse=True)
        assert living[-1] == sum(player["alive"] for player in outcome["players"])
        marks = [mark.symbol for phase in scene.phases for mark in phase.marks]
        assert marks.count("†") == len(record["deaths"])
        assert marks.count("⚖") == sum(trial["verdict"] is not None for trial in record["trials"])


def long_game(days: int) -> dict[str, Any]:
    """A game in which a player dies and comes back, and claims the same role, day after day."""
    member = {"name": "Abel", "seat": 0, "slot": None, "role": "sheriff", "target": None}
    events = [
        {
            "when": f"Day {day}, discussion",
            "day": day,
            "phase": "discussion",
            "kind": kind,
            "turn": None,
            "audience": "all",
            "text": kind,
            "data": {"player": "Abel"},
        }
        for day, kind in enumerate(("death", "revived") * (days // 2), start=1)
    ]
    said = {"phase": "discussion", "player": "Abel", "channel": "public", "about": "Abel", "start": 0, "end": 4}
    claims = [
        {**said, "event": day - 1, "day": day, "kind": "role", "says": "role", "roles": [role], "verdict": "honest"}
        for day, role in enumerate(["Sheriff"] * (days - 1) + ["Doctor"], start=1)
    ]
    return {
        "cast": [{**member, "definition": "player", "model": "m"}],
        "events": events,
        "claims": [{**claim, "is_so": True} for claim in claims],
    }


def test_an_event_of_a_long_game_takes_no_more_work_than_one_of_a_short_game() -> None:
    def calls(days: int) -> int:
        made = Counter[str]()
        transcript: dict[str, Any] = {"record": long_game(days), "outcome": None}
        sys.setprofile(lambda _frame, event, _told: made.update((event,)))
        try:
            scene = game_scene(transcript)
        finally:
            sys.setprofile(None)
        assert [len(phase.standing) for phase in scene.phases] == [0, 1] * (days // 2)
        later = [row.cells[-1].text for row in scene.tables[0].rows]
        assert later == [f"Day {days}: claims to be the Doctor"] * (days - 1) + [""]
        return made.total()

    calls(2)
    assert calls(400) < 2.2 * calls(200)


def test_notes_have_each_claim_and_each_night_once() -> None:
    for transcript, scene in played():
        notes = [(place, note) for place, found in scene.notes.items() for note in found]
        claims = [(place, note.verdict.partition(",")[0]) for place, note in notes if note.kind == "claim"]
        recorded = [(claim["event"], claim["verdict"]) for claim in transcript["record"]["claims"]]
        assert sorted(claims) == sorted(recorded)
        nights = {note.verdict for _, note in notes if note.kind == "truth"}
        assert nights == {f"Night {night['day']}" for night in transcript["record"]["nights"]}


def test_votes_and_ballots_are_those_of_the_record() -> None:
    for transcript, scene in played():
        trials = transcript["record"]["trials"]
        tables = [table for table in scene.tables if "trial of" in table.title]
        assert [table.title.partition("trial of ")[2] for table in tables] == [trial["accused"] for trial in trials]
        for table, trial in zip(tables, trials, strict=True):
            column = [head.text for head in table.heads].index(trial["accused"])
            kept = {row.head.text for row in table.rows if row.cells[column].text.isdecimal()}
            assert kept == {vote["voter"] for vote in trial["votes"]}
            guilty = {row.head.text for row in table.rows if row.cells[-1].text == "G"}
            assert guilty == {*trial["guilty"]}


def test_a_game_that_has_not_ended_and_one_without_a_record_have_scenes_too() -> None:
    record = played()[1][0]["record"]
    early = {**record, "events": record["events"][:40], "claims": [], "nights": []}

    assert game_scene({"record": early, "outcome": None}).phases
    assert game_scene({"record": {}, "outcome": None}) == Scene()
