"""What pages show of a game: each part is known from an event that says so itself, or to the truth alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

from mac_runner.environments.town_of_salem.testing import POLICIES, game_scene
from mac_runner.view_model import Cell, Fact, Scene
from tests.environments.town_of_salem.table import ELEVEN, open_game, play

SEEDS = (3, 5, 8)


@cache
def played(seed: int) -> tuple[dict[str, Any], Scene]:
    """A finished game and its scene."""
    game = open_game(ELEVEN, seed=seed)
    play(game, POLICIES["heuristic"], seed=seed)
    transcript: dict[str, Any] = {"record": game.record(), "outcome": game.outcome}
    return transcript, game_scene(transcript)


def cells(scene: Scene) -> Iterator[Cell]:
    for table in scene.tables:
        yield from table.heads
        for row in table.rows:
            yield row.head
            yield from row.cells


def last(facts: tuple[Fact, ...], name: str) -> str:
    return [fact.text for fact in facts if fact.name == name][-1]


def test_a_role_with_an_event_is_in_the_words_of_that_event() -> None:
    for seed in SEEDS:
        transcript, scene = played(seed)
        events = transcript["record"]["events"]
        shown = [(name, fact) for name, facts in scene.members.items() for fact in facts if fact.event is not None]
        assert {fact.name for _, fact in shown} >= {"role", "faction", "fate"}
        for name, fact in shown:
            if fact.name == "role":
                event = events[fact.event]
                assert fact.text in json.dumps(event["data"]), (seed, fact)
                assert event["audience"] == [name] or name in json.dumps(event["data"]), (seed, fact)


def test_no_part_with_an_event_names_a_speaker_whom_the_event_hides() -> None:
    hidden = 0
    for seed in SEEDS:
        transcript, scene = played(seed)
        events = transcript["record"]["events"]
        for cell in cells(scene):
            if cell.event is None or events[cell.event]["kind"] != "chat":
                continue
            shown = events[cell.event]["data"]["player"]
            if shown in scene.members:
                continue
            hidden += 1
            speaker = str(events[cell.event]["turn"]).split("/")[1]
            assert speaker not in events[cell.event]["text"]
            assert speaker not in (cell.text, cell.title)
    assert hidden > 0


def test_facts_end_with_the_truth() -> None:
    for seed in SEEDS:
        transcript, scene = played(seed)
        for player in transcript["outcome"]["players"]:
            facts = scene.members[player["agent"]]
            assert last(facts, "role").lower() == player["final_role"]
            assert last(facts, "faction").lower() == player["faction"]
            assert last(facts, "result") == ("won" if player["won"] else "lost")
            assert (last(facts, "fate") == "lived") is player["alive"]


def test_phases_are_the_days_and_nights_with_who_lives_at_their_end() -> None:
    for seed in SEEDS:
        transcript, scene = played(seed)
        record, outcome = transcript["record"], transcript["outcome"]
        assert [phase.label for phase in scene.phases[:3]] == ["Day 1", "Night 1", "Day 2"]
        living = [sum(share.count for share in phase.standing) for phase in scene.phases]
        assert living == sorted(living, reverse=True)
        assert living[-1] == sum(player["alive"] for player in outcome["players"])
        marks = [mark.symbol for phase in scene.phases for mark in phase.marks]
        assert marks.count("†") == len(record["deaths"])
        assert marks.count("⚖") == sum(trial["verdict"] is not None for trial in record["trials"])


def test_notes_have_each_claim_and_each_night_once() -> None:
    for seed in SEEDS:
        transcript, scene = played(seed)
        notes = [(place, note) for place, found in scene.notes.items() for note in found]
        claims = [(place, note.verdict.partition(",")[0]) for place, note in notes if note.kind == "claim"]
        recorded = [(claim["event"], claim["verdict"]) for claim in transcript["record"]["claims"]]
        assert sorted(claims) == sorted(recorded)
        nights = {note.verdict for _, note in notes if note.kind == "truth"}
        assert nights == {f"Night {night['day']}" for night in transcript["record"]["nights"]}


def test_votes_and_ballots_are_those_of_the_record() -> None:
    for seed in SEEDS:
        transcript, scene = played(seed)
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
    transcript, _ = played(5)
    record = transcript["record"]
    early = {**record, "events": record["events"][:40], "claims": [], "nights": []}

    assert game_scene({"record": early, "outcome": None}).phases
    assert game_scene({"record": {}, "outcome": None}) == Scene()
