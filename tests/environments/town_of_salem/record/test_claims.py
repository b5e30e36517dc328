"""Whether speakers said what they knew: by the roles held and the results received when it was said."""

from __future__ import annotations

import pytest

from mac_runner.environments.town_of_salem.bots import POLICIES
from mac_runner.environments.town_of_salem.claims import extract
from mac_runner.environments.town_of_salem.game.events import Event, EventKind, private, public
from mac_runner.environments.town_of_salem.game.lobbies import NAMES
from mac_runner.environments.town_of_salem.record.claim_verdicts import Utterance, claim_row, judged_claims
from mac_runner.environments.town_of_salem.record.role_history import RoleHistory
from mac_runner.types import JsonObject
from tests.environments.town_of_salem.table import ELEVEN, Table, open_game, play

ROLES = ("sheriff", "investigator", "lookout", "doctor", "godfather", "jester", "serial killer", "mafioso")
SHERIFF, INVESTIGATOR, LOOKOUT, DOCTOR, GODFATHER, JESTER, KILLER, MAFIOSO = NAMES[:8]


def rows(speaker: str, text: str, *learned: tuple[EventKind, JsonObject]) -> list[JsonObject]:
    """What is claimed in `text` when the speaker had learned these things; all learn of deaths."""
    table = Table(ROLES)
    names = tuple(player.name for player in table.state.players)
    seat = names.index(speaker)
    events: list[Event] = [*table.events]
    for kind, data in learned:
        is_public = kind in (EventKind.DEATH, EventKind.REVEALED)
        events.append(public(table.state, kind, **data) if is_public else private(table.state, kind, (seat,), **data))
    said = Utterance(event=len(events), day=2, phase=table.state.phase, player=speaker, channel="public", text=text)
    return [claim_row(claim) for claim in judged_claims([said], names, RoleHistory(events, table.state.players))]


def judged(speaker: str, text: str, *learned: tuple[EventKind, JsonObject]) -> list[str]:
    """The verdicts on what is claimed in `text` when the speaker had learned these things."""
    return [str(row["verdict"]) for row in rows(speaker, text, *learned)]


def test_words_about_oneself_are_weighed_against_the_role_held() -> None:
    for speaker, text, verdict in (
        (SHERIFF, "I am the Sheriff.", "honest"),
        (GODFATHER, "I am the Sheriff.", "lie"),
        (SHERIFF, "I was the Sheriff.", "honest"),
        (GODFATHER, "I am innocent.", "lie"),
        (JESTER, "I am innocent.", "unclear"),
        (KILLER, "I am not mafia.", "honest"),
        (KILLER, "I am town.", "lie"),
        (MAFIOSO, f"{MAFIOSO} is the Doctor.", "lie"),
    ):
        assert judged(speaker, text) == [verdict], text


def test_words_about_others_are_weighed_against_what_the_speaker_knew_and_not_against_luck() -> None:
    """Who does not know has an opinion, be it right or wrong; a team knows itself, and who is not of it."""
    for speaker, text, verdict, is_so, truth in (
        (SHERIFF, f"{GODFATHER} is mafia.", "unclear", True, None),
        (SHERIFF, f"{KILLER} is mafia.", "unclear", False, f"{KILLER} is the Serial Killer"),
        (SHERIFF, f"{KILLER} is evil.", "unclear", True, None),
        (SHERIFF, f"Vote {DOCTOR}!", "unclear", False, f"{DOCTOR} is the Doctor"),
        (SHERIFF, f"Vote {JESTER}!", "unclear", None, None),
        (SHERIFF, f"{KILLER} is the Godfather.", "unclear", False, f"{KILLER} is the Serial Killer"),
        (MAFIOSO, f"{GODFATHER} is the Godfather.", "honest", True, None),
        (MAFIOSO, f"{GODFATHER} is innocent.", "lie", False, None),
        (MAFIOSO, f"{GODFATHER} is mafia.", "honest", True, None),
        (MAFIOSO, f"{DOCTOR} is mafia.", "lie", False, None),
        (MAFIOSO, f"{DOCTOR} is not mafia.", "honest", True, None),
        (MAFIOSO, f"{DOCTOR} is the Framer.", "lie", False, None),
        (MAFIOSO, f"{KILLER} is the Serial Killer.", "unclear", True, None),
        (GODFATHER, f"{DOCTOR} is town.", "unclear", True, None),
        (GODFATHER, f"{KILLER} is innocent.", "unclear", False, f"{KILLER} is the Serial Killer"),
    ):
        (row,) = rows(speaker, text)
        assert (row["verdict"], row["is_so"], row.get("truth")) == (verdict, is_so, truth), text


def test_what_was_shown_or_found_out_is_known_be_it_right_or_wrong() -> None:
    shown: tuple[EventKind, JsonObject] = (EventKind.DEATH, {"player": KILLER, "role": "Doctor"})
    hidden: tuple[EventKind, JsonObject] = (EventKind.DEATH, {"player": KILLER, "role": "unknown"})
    cleaned: tuple[EventKind, JsonObject] = (EventKind.CLEANED, {"target": KILLER, "role": "Doctor"})
    for speaker, text, learned, verdict, truth in (
        (SHERIFF, f"{KILLER} is the Doctor.", shown, "honest", f"{KILLER} is the Serial Killer"),
        (SHERIFF, f"{KILLER} is mafia.", shown, "lie", None),
        (SHERIFF, f"{KILLER} is mafia.", hidden, "unclear", "any"),
        (MAFIOSO, f"{KILLER} is the Doctor.", finding(KILLER, "a Serial Killer"), "lie", None),
        (
            MAFIOSO,
            f"{KILLER} is the Doctor.",
            cleaned,
            "honest",
            "any",
        ),
        (SHERIFF, f"{KILLER} is evil.", finding(KILLER, "suspicious"), "honest", None),
        (SHERIFF, f"{DOCTOR} is evil.", finding(DOCTOR, "suspicious"), "honest", f"{DOCTOR} is the Doctor"),
        (SHERIFF, f"{KILLER} is innocent.", finding(KILLER, "suspicious"), "unclear", "any"),
    ):
        (row,) = rows(speaker, text, learned)
        assert row["verdict"] == verdict, text
        assert row.get("truth") == truth if truth != "any" else "truth" in row, text


def test_honest_finding_that_is_wrong_says_what_is_so() -> None:
    """The Godfather is not suspicious, and a framed player is."""
    for text, learned, truth in (
        (
            f"I found that {GODFATHER} is not suspicious.",
            finding(GODFATHER, "not suspicious"),
            f"{GODFATHER} is the Godfather",
        ),
        (f"I found that {DOCTOR} is suspicious.", finding(DOCTOR, "suspicious"), f"{DOCTOR} is the Doctor"),
        (f"I found that {KILLER} is suspicious.", finding(KILLER, "suspicious"), None),
        (f"I found that {DOCTOR} is not suspicious.", finding(DOCTOR, "not suspicious"), None),
    ):
        (row,) = rows(SHERIFF, text, learned)
        assert (row["verdict"], row["is_so"], row.get("truth")) == ("honest", truth is None, truth), text
    framed = finding(DOCTOR, "a Vampire, Framer or Jester")
    (row,) = rows(INVESTIGATOR, f"I checked {DOCTOR}: Vampire, Framer or Jester.", framed)
    assert (row["verdict"], row["truth"]) == ("honest", f"{DOCTOR} is the Doctor")


def finding(about: str, what: str) -> tuple[EventKind, JsonObject]:
    return EventKind.RESULT, {"about": about, "finding": what}


@pytest.mark.parametrize(
    ("speaker", "text", "learned", "verdict"),
    [
        (SHERIFF, f"I found that {KILLER} is suspicious.", finding(KILLER, "suspicious"), "honest"),
        (SHERIFF, f"I found that {KILLER} is suspicious.", finding(KILLER, "a serial killer"), "honest"),
        (SHERIFF, f"I found that {KILLER} is suspicious.", finding(KILLER, "not suspicious"), "lie"),
        (SHERIFF, f"I found that {KILLER} is suspicious.", finding(DOCTOR, "suspicious"), "lie"),
        (GODFATHER, f"I found that {KILLER} is suspicious.", None, "lie"),
        (
            INVESTIGATOR,
            f"I found that {KILLER} is suspicious.",
            finding(KILLER, "a Doctor, Disguiser or Serial Killer"),
            "unclear",
        ),
        (
            INVESTIGATOR,
            f"I checked {KILLER}: Doctor, Disguiser or Serial Killer.",
            finding(KILLER, "a Doctor, Disguiser or Serial Killer"),
            "honest",
        ),
        (
            INVESTIGATOR,
            f"I checked {KILLER}: Medium, Janitor or Retributionist.",
            finding(KILLER, "a Doctor, Disguiser or Serial Killer"),
            "lie",
        ),
        (
            INVESTIGATOR,
            f"I checked {DOCTOR}: Survivor, Vampire Hunter or Amnesiac.",
            finding(DOCTOR, "a Survivor, Vampire Hunter or Amnesiac"),
            "honest",
        ),
        (
            INVESTIGATOR,
            f"I checked {KILLER}: Serial Killer.",
            finding(KILLER, "a Doctor, Disguiser or Serial Killer"),
            "unclear",
        ),
        (
            LOOKOUT,
            f"I watched {DOCTOR} and saw {KILLER} visit.",
            finding(DOCTOR, f"visited by {GODFATHER} and {KILLER}"),
            "honest",
        ),
        (LOOKOUT, f"I watched {DOCTOR} and saw {KILLER} visit.", finding(DOCTOR, f"visited by {GODFATHER}"), "lie"),
        (LOOKOUT, f"I watched {DOCTOR}. Nobody visited.", finding(DOCTOR, "visited by nobody"), "honest"),
        (LOOKOUT, f"I found that {KILLER} is suspicious.", finding(DOCTOR, f"visited by {KILLER}"), "unclear"),
        (DOCTOR, f"My target {SHERIFF} was attacked.", (EventKind.PATIENT_ATTACKED, {"target": SHERIFF}), "honest"),
        (DOCTOR, f"My target {SHERIFF} was attacked.", None, "lie"),
        (DOCTOR, "I was roleblocked.", (EventKind.BLOCKED, {}), "honest"),
        (DOCTOR, "I was roleblocked.", (EventKind.ATTACKED, {"saved_by": "a Doctor"}), "lie"),
    ],
)
def test_results_are_weighed_against_what_the_speaker_was_told(
    speaker: str, text: str, learned: tuple[EventKind, JsonObject] | None, verdict: str
) -> None:
    heard = () if learned is None else (learned,)

    assert judged(speaker, text, *heard) == [verdict]


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
