"""A transcript as text: who sees what, and the truth where it is asked for."""

from __future__ import annotations

import re
from functools import partial

import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.environments.town_of_salem.testing import game_scene
from mac_runner.errors import ConfigError, RunDirectoryError
from mac_runner.reports import turns_text
from mac_runner.types import JsonObject, JsonValue
from mac_runner.views.testing import transcript_text


def event(when: str, day: int, text: str, *audience: str) -> JsonObject:
    phase = "night" if when.startswith("Night") else when.partition(", ")[2] or "discussion"
    seen: JsonObject = {"turn": None, "audience": [*audience] if audience else "all", "text": text, "data": {}}
    return {"when": when, "day": day, "phase": phase, "kind": "speech", **seen}


def claim(place: int, player: str, **said: JsonValue) -> JsonObject:
    where: JsonObject = {"event": place, "day": 1, "phase": "discussion", "player": player, "channel": "public"}
    judged: JsonObject = {"start": 0, "end": 1, "verdict": "lie", "is_so": False}
    return {**where, "about": player, **judged, **said}


def act(name: str, target: str) -> JsonObject:
    return {"act": name, "targets": [target]}


def attack(victim: str, defence: str | None, outcome: str) -> JsonObject:
    how: JsonObject = {"attacker": "Ann", "cause": "mafia", "strength": "basic"}
    return {**how, "victim": victim, "defence": defence, "outcome": outcome}


def cast(**roles: str) -> list[JsonValue]:
    player: JsonObject = {"slot": None, "target": None, "definition": "d", "model": "m"}
    return [{"name": name, "seat": seat, "role": role, **player} for seat, (name, role) in enumerate(roles.items())]


EVENTS: list[JsonValue] = [
    event("Day 1, greeting", 1, "Ann says: “I am the Sheriff.”"),
    event("Day 1, greeting", 1, "You are the Doctor.", "Bob"),
    event("Night 1", 1, "(mafia chat) Ann: “hm”", "Ann", "Cid"),
    event("Day 2, discussion", 2, "The sun rises."),
]
NIGHT: JsonObject = {
    "day": 1,
    "jail": None,
    "deeds": [{"player": "Ann", "role": "Mafioso", **act("kill", "Bob")}],
    "changes": [
        {"how": "controlled", "players": ["Ann"], "by": "Cid", "was": act("kill", "Bob"), "now": act("kill", "Dan")},
        {"how": "blocked", "players": ["Bob"], "by": "Eve", "was": act("heal", "Ann"), "now": None},
        {"how": "moved", "players": ["Bob", "Dan"], "by": "Fay", "was": None, "now": None},
        {"how": "raised", "players": ["Gus"], "by": "Fay", "was": None, "now": act("heal", "Ann")},
    ],
    "visits": [],
    "protections": [
        {"how": "healed", "player": "Dan", "by": "Bob"},
        {"how": "defended", "player": "Eve", "by": "Eve", "strength": "basic"},
    ],
    "marks": [{"player": "Bob", "mark": "framed"}, {"player": "Ann", "mark": "disguised", "as": "Bob"}],
    "attacks": [attack("Dan", "powerful", "survived"), attack("Eve", None, "out of reach")],
    "findings": [],
    "deaths": [],
}


def transcript(*claims: JsonObject, **record: JsonValue) -> JsonObject:
    return {
        "task": {"task_id": "game-1", "agents": [{"agent_id": "Ann"}, {"agent_id": "Bob"}, {"agent_id": "Cid"}]},
        "status": "finished",
        "failure": None,
        "record": {"events": EVENTS, "claims": [*claims], "nights": [NIGHT], **record},
        "outcome": None,
    }


def in_truth(*claims: JsonObject, **record: JsonValue) -> str:
    return transcript_text(transcript(*claims, **record), has_truth=True)


def test_conversation_is_told_whole_to_a_seat_and_in_truth(snapshot: SnapshotAssertion) -> None:
    """With who learned of it. Speakers of a night chat may go by another name to a seat, and others may listen in."""
    lie = claim(0, "Ann", kind="role", says="role", roles=["Sheriff"])
    told = {
        "whole": transcript_text(transcript()),
        "to Bob": transcript_text(transcript(), seat="Bob"),
        "to Cid": transcript_text(transcript(), seat="Cid"),
        "in truth": in_truth(lie),
    }

    assert {how: text.splitlines() for how, text in told.items()} == snapshot


def test_claims_are_told_in_words() -> None:
    cases: list[tuple[str, str, JsonObject, str]] = [
        ("role", "role held before", {"about": "Ann", "roles": ["Spy"]}, "claims to have been the Spy"),
        ("result", "suspicious", {}, "claims to know that Bob is suspicious"),
        ("result", "mafia", {}, "claims to know that Bob is of the Mafia"),
        ("result", "attacked", {}, "claims to know that Bob was attacked"),
        ("result", "one of the roles", {"roles": ["Spy", "Doctor"]}, "claims to know that Bob is one of Spy or Doctor"),
        ("result", "visited by", {"names": ["Ann", "Cid"]}, "claims to know that Bob was visited by Ann and Cid"),
        ("result", "visited by", {"names": []}, "claims to know that Bob was visited by nobody"),
        ("accusation", "mafia", {}, "says that Bob is of the Mafia"),
        ("accusation", "role", {"roles": ["Spy"]}, "says that Bob is the Spy"),
        ("accusation", "evil", {}, "speaks against Bob"),
        ("defence", "not evil", {}, "stands up for Bob"),
    ]
    for kind, says, more, told in cases:
        said: JsonObject = {"about": "Bob", "kind": kind, "says": says, **more}
        assert f"    ~ {told}: lie\n" in in_truth(claim(0, "Ann", **said))


def test_verdicts_are_told_with_the_truth() -> None:
    result: JsonObject = {"kind": "result", "says": "not suspicious", "about": "Bob"}
    opinion: JsonObject = {"kind": "accusation", "says": "evil", "about": "Bob"}
    wrong: JsonObject = {"verdict": "honest", "is_so": False, "truth": "Bob is the Godfather"}
    cases: list[tuple[JsonObject, JsonObject, str]] = [
        (result, {"verdict": "honest"}, "honest"),
        (result, wrong, "honest, but wrong: Bob is the Godfather"),
        (result, {"verdict": "unclear", "is_so": None}, "unclear"),
        (opinion, {"verdict": "lie", "about": "Ann"}, "lie"),
    ]
    for kind, more, told in cases:
        said = kind | more
        words = f"speaks against {said['about']}" if kind is opinion else "claims to know that Bob is not suspicious"
        assert f"    ~ {words}: {told}\n" in in_truth(claim(0, "Ann", **said)), said


def test_claim_in_a_channel_that_hides_its_speaker_names_them_and_is_told_to_no_seat_that_did_not_see_it() -> None:
    hidden = claim(2, "Ann", channel="mafia", kind="role", says="role", roles=["Spy"])

    assert "~ Ann claims" in in_truth(hidden)
    assert "Spy" not in transcript_text(transcript(hidden), seat="Bob", has_truth=True)


def test_turn_is_told_in_one_line_of_bounded_length() -> None:
    talk = transcript()
    receipt: JsonObject = {"kind": "observation", "detail": "x" * 5_000}
    talk["turns"] = [{"turn": "0/Ann/0/0", "receipt": receipt}]
    (line,) = turns_text(talk, []).splitlines()

    assert line.endswith(f"observation: {'x' * 100}…")


def test_truth_puts_the_role_of_the_moment_behind_names_but_not_into_quotations() -> None:
    changed: JsonObject = {**event("Night 1", 1, "You are now a Vampire.", "Cid"), "kind": "converted"}
    changed["data"] = {"role": "Vampire"}
    events: list[JsonValue] = [
        event("Day 1, greeting", 1, "Ann says: “I trust Bob.”"),
        event("Day 1, greeting", 1, "The Mafia: Ann (Mafioso).", "Ann", "Bob"),
        changed,
        event("Day 2, voting", 2, "Bob votes for Cid, and Bobby for Ann."),
    ]
    roles = {"Ann": "mafioso", "Bob": "serial killer", "Cid": "doctor"}
    lines = in_truth(cast=cast(**roles), events=events).splitlines()

    assert lines[2:5] == [
        "The cast",
        f"  {'Ann':<12} {'Mafioso':<24} d (model m)",
        f"  {'Bob':<12} {'Serial Killer':<24} d (model m)",
    ]
    for said in (
        "  Ann (Mafioso) says: “I trust Bob.”",
        "  To Ann (Mafioso), Bob (Serial Killer): The Mafia: Ann (Mafioso).",
        "  To Cid (Vampire): You are now a Vampire.",
        "  Bob (Serial Killer) votes for Cid (Vampire), and Bobby for Ann (Mafioso).",
    ):
        assert said in lines


def happened(kind: str, day: int = 2, **data: JsonValue) -> JsonObject:
    return {**event(f"Day {day}", day, kind), "kind": kind, "data": data}


def test_a_lie_in_ones_own_defence_fools_those_who_then_judge_the_liar_innocent() -> None:
    lie = claim(1, "Ann", kind="role", says="role", roles=["Spy"])
    events: list[JsonValue] = [
        happened("trial", accused="Ann"),
        happened("speech", player="Ann", text="…"),
        happened("ballots", guilty=["Bob"], innocent=["Cid", "Eve"], abstain=["Dan"]),
    ]
    dealt = cast(Ann="mafioso", Bob="spy", Cid="doctor", Dan="jester", Eve="framer")

    assert in_truth(lie, events=events, cast=dealt).splitlines()[-1].split("  ")[-1] == "Cid"


def test_fooled_are_those_who_did_what_a_lie_asks_for_later_that_day() -> None:
    """Not those of the liar's team, who know better; not on another day; and only by what was said to all."""
    dealt = cast(Ann="mafioso", Bob="spy", Cid="doctor", Dan="jester", Eve="framer", Fay="mayor")
    events: list[JsonValue] = [
        happened("vote", player="Fay", target="Bob"),
        happened("speech", player="Ann", text="…"),
        *(happened("vote", player=name, target="Bob") for name in ("Cid", "Dan", "Eve", "Ann")),
        happened("vote", player="Fay", target="Cid"),
        happened("trial", accused="Bob"),
        happened("ballots", guilty=["Cid", "Eve"], innocent=["Fay"], abstain=[]),
        happened("trial", accused="Ann"),
        happened("ballots", guilty=["Dan"], innocent=["Cid", "Eve", "Fay"], abstain=[]),
        happened("vote", 3, player="Fay", target="Bob"),
    ]
    asked: dict[tuple[str, str, str, str, str], str] = {
        ("result", "suspicious", "Bob", "Spy", "public"): "Cid, Dan",
        ("accusation", "mafia", "Bob", "Spy", "public"): "Cid, Dan",
        ("accusation", "mafia", "Bob", "Spy", "whisper"): "",
        ("defence", "not evil", "Bob", "Spy", "public"): "Fay",
        ("role", "role", "Ann", "Spy", "public"): "Cid, Fay",
        ("role", "role", "Ann", "Jester", "public"): "Dan",
        ("role", "role held before", "Ann", "Spy", "public"): "",
        # A role that is not registered here: nobody knows on which side it is.
        ("role", "role", "Ann", "Nurse", "public"): "",
        ("result", "attacked", "Ann", "", "public"): "",
    }
    for (kind, says, about, role, channel), fooled in asked.items():
        said: JsonObject = {"kind": kind, "says": says, "about": about, "channel": channel}
        lie = claim(1, "Ann", **said, roles=[role] if role else [], verdict="lie")
        right = claim(1, "Dan", kind="role", says="role", roles=["Jester"], verdict="honest")
        lines = in_truth(lie, right, events=events, cast=dealt).splitlines()
        title = lines.index("Who lied, and whom they fooled")
        table = [re.split(r" {2,}", line.strip()) for line in lines[title + 2 :]]
        counts = ["1", "0", "1", "0", *([fooled] if fooled else [])]
        # Liars come first.
        assert sorted(table) == [["Ann (Mafioso)", *counts], ["Dan (Jester)", "1", "1", "0", "0"]], (kind, says)


def test_what_cannot_be_told_is_refused_by_name() -> None:
    bare = transcript() | {"record": {"events": EVENTS}}

    with pytest.raises(ConfigError, match="--truth: "):
        transcript_text(bare, has_truth=True)
    with pytest.raises(RunDirectoryError, match=r"got `str` - at `\$.nights`"):
        transcript_text(transcript(nights="?"), has_truth=True)
    for place in (len(EVENTS), -1):
        damaged = transcript(claim(place, "Ann", kind="role", says="role", roles=["Spy"]))
        for shown in (partial(transcript_text, has_truth=True), game_scene):
            with pytest.raises(RunDirectoryError, match=rf"record of the game: claims\[0\] .* event {place}, .* 4"):
                shown(damaged)
    with pytest.raises(ConfigError, match=r"--seat: .*'Zoe' .*Cid"):
        transcript_text(transcript(), seat="Zoe")
