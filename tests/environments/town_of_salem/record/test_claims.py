"""Whether speakers said what they knew: by the roles held and the results received when it was said."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from mac_runner.environments.town_of_salem.testing import (
    NAMES,
    POLICIES,
    Event,
    EventKind,
    RoleHistory,
    Utterance,
    claim_row,
    extract,
    judged_claims,
    private,
    public,
)
from mac_runner.types import JsonObject
from tests.environments.town_of_salem.table import ELEVEN, Table, open_game, play

ROLES = ("sheriff", "investigator", "lookout", "doctor", "godfather", "jester", "serial killer", "mafioso")
BY_ROLE = dict(zip((role.split()[-1] for role in ROLES), NAMES, strict=False))
JESTER, KILLER = BY_ROLE["jester"], BY_ROLE["killer"]
CASES: Mapping[str, list[dict[str, Any]]] = yaml.safe_load(
    Path(__file__).with_name("claims.yaml").read_text(encoding="utf-8")
)


def named(value: Any) -> Any:
    return value.format(**BY_ROLE) if isinstance(value, str) else value


def rows(speaker: str, text: str, learned: Mapping[str, Mapping[str, str]]) -> list[JsonObject]:
    """What is claimed in `text` when the speaker had learned these things; all learn of deaths."""
    table = Table(ROLES)
    names = tuple(player.name for player in table.state.players)
    seat = names.index(speaker)
    events: list[Event] = [*table.events]
    for kind, data in (
        (EventKind(name), {key: named(value) for key, value in told.items()}) for name, told in learned.items()
    ):
        is_public = kind in (EventKind.DEATH, EventKind.REVEALED)
        events.append(public(table.state, kind, **data) if is_public else private(table.state, kind, (seat,), **data))
    said = Utterance(event=len(events), day=2, phase=table.state.phase, player=speaker, channel="public", text=text)
    return [claim_row(claim) for claim in judged_claims([said], names, RoleHistory(events, table.state.players))]


def test_claims_are_judged_by_what_their_speaker_knew(subtests: pytest.Subtests) -> None:
    for group, cases in CASES.items():
        for case in cases:
            speaker, text = BY_ROLE[case["speaker"]], str(case["says"]).format(**BY_ROLE)
            with subtests.test(group, text=text):
                (row,) = rows(speaker, text, case.get("learned", {}))
                expected = {key: named(value) for key, value in case["is"].items()}
                assert {key: row.get(key) for key in expected} == expected


def test_claim_counts_with_the_role_and_the_results_of_the_moment_it_was_made() -> None:
    """The same words before and after a change of role, and before and after the night of the result."""
    table = Table(ROLES)
    names = tuple(player.name for player in table.state.players)
    events: list[Event] = [*table.events]
    early = len(events)
    events.append(private(table.state, EventKind.CONVERTED, (5,), role="Sheriff"))
    events.append(private(table.state, EventKind.RESULT, (5,), about=KILLER, finding="suspicious"))
    text = f"I am the Sheriff. I found that {KILLER} is suspicious."
    said = [
        Utterance(event=event, day=1, phase=table.state.phase, player=JESTER, channel="public", text=text)
        for event in (len(events), early)
    ]
    told = judged_claims(said, names, RoleHistory(events, table.state.players))

    assert [claim.verdict for claim in told] == ["lie", "lie", "honest", "honest"]


def claims_of(record: JsonObject) -> list[JsonObject]:
    claims = record["claims"]
    assert isinstance(claims, list)
    return [claim for claim in claims if isinstance(claim, dict)]


def test_record_tells_where_each_claim_stands() -> None:
    game = open_game(ELEVEN, seed=5)
    play(game, POLICIES["heuristic"], seed=5)
    record = game.record()
    events = record["events"]
    assert isinstance(events, list)
    channels = {str(claim["channel"]) for claim in claims_of(record)}
    for claim in claims_of(record):
        event, start, end = events[int(str(claim["event"]))], claim["start"], claim["end"]
        assert isinstance(event, dict)
        assert isinstance(event["data"], dict)
        assert isinstance(start, int)
        assert isinstance(end, int)
        text = str(event["data"].get("text") or event["data"].get("will"))
        assert (start, end, claim["kind"]) in [(found.start, found.end, found.kind) for found in extract(text, NAMES)]
        roles = claim.get("roles", [])
        assert isinstance(roles, list)
        named = [str(role) for role in roles] + [str(claim["about"])] * (claim["about"] != claim["player"])
        assert [name for name in named if name.lower() not in text[start:end].lower()] == [], text[start:end]
        assert claim["verdict"] in ("honest", "lie", "unclear")

    assert {"public", "jail", "dead"} <= channels


def test_claim_of_a_speaker_under_another_name_is_told_of_who_it_was() -> None:
    """The Jailor speaks as `Jailor`: the record knows who that is."""
    game = open_game(ELEVEN, seed=5)
    play(game, POLICIES["heuristic"], seed=5)
    jailed = [claim for claim in claims_of(game.record()) if claim["channel"] == "jail"]

    assert jailed
    assert all(claim["player"] in {player.name for player in game.state.players} for claim in jailed)


def test_forged_will_is_told_as_the_words_of_its_forger() -> None:
    table = Table(("forger", "mafioso", "sheriff", "doctor", "investigator", "escort"))
    game = open_game(("forger", "mafioso", "sheriff", "doctor", "investigator", "escort"))

    def policy(view: object, chance: object) -> str:
        choices = {choice.verb: choice for choice in view.choices}  # type: ignore[attr-defined]
        victim = table.name("sheriff")
        if "forge" in choices and victim in choices["forge"].targets:
            return f'<forge to="{victim}">I was the Godfather.</forge>'
        if "kill" in choices and victim in choices["kill"].targets:
            return f"<kill>{victim}</kill>"
        return "<wait/>"

    play(game, policy)
    (claim,) = [claim for claim in claims_of(game.record()) if claim["channel"] == "will"]

    assert claim["player"] == table.name("forger")
    assert claim["verdict"] == "lie"
