"""Whether what was claimed was so: by the roles held and the results received when it was said."""

from __future__ import annotations

import pytest

from mac_runner.environments.town_of_salem.bots import POLICIES
from mac_runner.environments.town_of_salem.claims import extract
from mac_runner.environments.town_of_salem.game.events import Event, EventKind, private
from mac_runner.environments.town_of_salem.game.lobbies import NAMES
from mac_runner.environments.town_of_salem.record.claim_verdicts import Utterance, claim_rows
from mac_runner.environments.town_of_salem.record.role_history import RoleHistory
from mac_runner.types import JsonObject
from tests.environments.town_of_salem.table import ELEVEN, Table, open_game, play

ROLES = ("sheriff", "investigator", "lookout", "doctor", "godfather", "jester", "serial killer")
SHERIFF, INVESTIGATOR, LOOKOUT, DOCTOR, GODFATHER, JESTER, KILLER = NAMES[:7]


def judged(speaker: str, text: str, *learned: tuple[EventKind, JsonObject]) -> list[tuple[str, str]]:
    """What is claimed in `text`, with the verdicts, when the speaker had learned these things."""
    table = Table(ROLES)
    names = tuple(player.name for player in table.state.players)
    seat = names.index(speaker)
    events: list[Event] = [*table.events]
    events += [private(table.state, kind, (seat,), **data) for kind, data in learned]
    said = Utterance(event=len(events), day=2, phase=table.state.phase, player=speaker, channel="public", text=text)
    told = claim_rows([said], names, RoleHistory(events, table.state.players))
    return [(str(claim["says"]), str(claim["verdict"])) for claim in told if isinstance(claim, dict)]


@pytest.mark.parametrize(
    ("speaker", "text", "verdict"),
    [
        (SHERIFF, "I am the Sheriff.", "true"),
        (GODFATHER, "I am the Sheriff.", "false"),
        (SHERIFF, "I was the Sheriff.", "true"),
        (SHERIFF, f"{GODFATHER} is mafia.", "true"),
        (SHERIFF, f"{KILLER} is mafia.", "false"),
        (SHERIFF, f"{DOCTOR} is mafia.", "false"),
        (SHERIFF, f"{KILLER} is evil.", "true"),
        (SHERIFF, f"Vote {DOCTOR}!", "false"),
        (SHERIFF, f"Vote {JESTER}!", "undecidable"),
        (SHERIFF, f"{GODFATHER} is the Godfather.", "true"),
        (SHERIFF, f"{KILLER} is the Godfather.", "false"),
        (GODFATHER, f"{DOCTOR} is the Doctor.", "true"),
        (GODFATHER, f"{DOCTOR} is town.", "true"),
        (GODFATHER, f"{JESTER} is town.", "false"),
        (GODFATHER, f"{KILLER} is innocent.", "false"),
        (GODFATHER, "I am innocent.", "false"),
        (KILLER, "I am not mafia.", "true"),
    ],
)
def test_claims_about_roles_are_weighed_against_the_roles_held(speaker: str, text: str, verdict: str) -> None:
    assert [found for _, found in judged(speaker, text)] == [verdict]


def finding(about: str, what: str) -> tuple[EventKind, JsonObject]:
    return EventKind.RESULT, {"about": about, "finding": what}


@pytest.mark.parametrize(
    ("speaker", "text", "learned", "verdict"),
    [
        (SHERIFF, f"I found that {KILLER} is suspicious.", finding(KILLER, "suspicious"), "true"),
        (SHERIFF, f"I found that {KILLER} is suspicious.", finding(KILLER, "a serial killer"), "true"),
        (SHERIFF, f"I found that {KILLER} is suspicious.", finding(KILLER, "not suspicious"), "false"),
        (SHERIFF, f"I found that {KILLER} is suspicious.", finding(DOCTOR, "suspicious"), "false"),
        (GODFATHER, f"I found that {KILLER} is suspicious.", None, "false"),
        (
            INVESTIGATOR,
            f"I found that {KILLER} is suspicious.",
            finding(KILLER, "a Doctor, Disguiser or Serial Killer"),
            "undecidable",
        ),
        (
            INVESTIGATOR,
            f"I checked {KILLER}: Doctor, Disguiser or Serial Killer.",
            finding(KILLER, "a Doctor, Disguiser or Serial Killer"),
            "true",
        ),
        (
            INVESTIGATOR,
            f"I checked {KILLER}: Medium, Janitor or Retributionist.",
            finding(KILLER, "a Doctor, Disguiser or Serial Killer"),
            "false",
        ),
        (
            INVESTIGATOR,
            f"I checked {DOCTOR}: Survivor, Vampire Hunter or Amnesiac.",
            finding(DOCTOR, "a Survivor, Vampire Hunter or Amnesiac"),
            "true",
        ),
        (
            INVESTIGATOR,
            f"I checked {KILLER}: Serial Killer.",
            finding(KILLER, "a Doctor, Disguiser or Serial Killer"),
            "undecidable",
        ),
        (
            LOOKOUT,
            f"I watched {DOCTOR} and saw {KILLER} visit.",
            finding(DOCTOR, f"visited by {GODFATHER} and {KILLER}"),
            "true",
        ),
        (LOOKOUT, f"I watched {DOCTOR} and saw {KILLER} visit.", finding(DOCTOR, f"visited by {GODFATHER}"), "false"),
        (LOOKOUT, f"I watched {DOCTOR}. Nobody visited.", finding(DOCTOR, "visited by nobody"), "true"),
        (LOOKOUT, f"I found that {KILLER} is suspicious.", finding(DOCTOR, f"visited by {KILLER}"), "undecidable"),
        (DOCTOR, f"My target {SHERIFF} was attacked.", (EventKind.PATIENT_ATTACKED, {"target": SHERIFF}), "true"),
        (DOCTOR, f"My target {SHERIFF} was attacked.", None, "false"),
        (DOCTOR, "I was roleblocked.", (EventKind.BLOCKED, {}), "true"),
        (DOCTOR, "I was roleblocked.", (EventKind.ATTACKED, {"saved_by": "a Doctor"}), "false"),
    ],
)
def test_results_are_weighed_against_what_the_speaker_was_told(
    speaker: str, text: str, learned: tuple[EventKind, JsonObject] | None, verdict: str
) -> None:
    heard = () if learned is None else (learned,)

    assert [found for _, found in judged(speaker, text, *heard)] == [verdict]


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
    told = claim_rows(said, names, RoleHistory(events, table.state.players))

    assert [claim["verdict"] for claim in told if isinstance(claim, dict)] == ["false", "false", "true", "true"]


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
        assert claim["verdict"] in ("true", "false", "undecidable")

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
    assert claim["verdict"] == "false"
