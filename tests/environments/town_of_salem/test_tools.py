"""What the tools answer: from the asker's view alone, bounded, with an error that helps for every bad request."""

from __future__ import annotations

import json

import jsonschema
import pytest

from mac_runner.environments.testing import SPEECH_CHARS_MAX
from mac_runner.environments.town_of_salem.testing import (
    ATTRIBUTES,
    NOTES_CHARS_MAX,
    OBSERVATION_CHARS_MAX,
    PHASE_RULES,
    ROLES,
    TOOLS,
    Event,
    EventKind,
    GameLog,
    Options,
    Phase,
    SeatView,
    conduct_of,
    observe,
    system_text,
    turn_text,
    view_of,
)
from mac_runner.types import JsonObject, Receipt, ReceiptKind, Reply
from tests.environments.town_of_salem.table import ALL_TOOLS, ELEVEN, Table, Who, open_game

CLASSIC = ELEVEN[:10]
WILL = "my will\nin two lines"
ASKABLE = [(name, argument) for name, tool in TOOLS.items() if tool.argument for argument in ("", "nonsense", "<b>x")]


def seen(table: Table, who: Who) -> SeatView:
    log = GameLog(len(table.state.players))
    log.append(tuple(table.events))
    return view_of(table.state, log, table.seat(who))


def ask(view: SeatView, tool: str, argument: str = "") -> JsonObject:
    answer = json.loads(observe(view, tool, argument))
    assert isinstance(answer, dict)
    return answer


@pytest.fixture
def table() -> Table:
    """The third morning: a speech, a whisper, votes, a lynch and a kill behind it."""
    table = Table(CLASSIC)
    table.go_to(Phase.DISCUSSION, day=2)
    table.act("framer", "speak", text="I am the Sheriff. Beatrice is lying, and Caleb is not suspicious.")
    table.act("doctor", "whisper", "sheriff", text="between us")
    table.act("sheriff", "will", text=WILL)
    table.lynch("framer", {"doctor": "innocent"})
    table.night({"mafioso": ("kill", "sheriff")})
    return table


@pytest.mark.parametrize("name", TOOLS)
def test_tool_answers_everything_its_schema_allows(table: Table, name: str) -> None:
    view, tool = seen(table, "doctor"), TOOLS[name]
    for argument in tool.argument.allowed(view) if tool.argument else [""]:
        schema = tool.schema(view)
        if schema is not None:
            jsonschema.validate(argument, schema)
        answer = ask(view, name, f" {argument.upper()} ")
        assert answer
        assert "error" not in answer


@pytest.mark.parametrize(("name", "argument"), ASKABLE)
def test_argument_outside_the_schema_is_answered_with_what_is_allowed(table: Table, name: str, argument: str) -> None:
    view, tool = seen(table, "doctor"), TOOLS[name]
    error = str(ask(view, name, argument)["error"])

    assert tool.argument is not None
    assert f"{name} takes one of: {', '.join(tool.argument.allowed(view))}" in error
    assert "<" not in error


def test_argument_of_a_tool_that_takes_none_is_refused(table: Table) -> None:
    assert "get_notes takes no argument" in str(ask(seen(table, "doctor"), "get_notes", "Abel")["error"])


def test_unknown_tool_is_answered_with_those_there_are(table: Table) -> None:
    error = str(ask(seen(table, "doctor"), "get_truth")["error"])

    assert error.endswith(f"'get_truth'; the tools are: {', '.join(TOOLS)}")


def test_public_record_of_a_player_is_what_all_could_see(table: Table) -> None:
    framer, doctor = (ask(seen(table, "medium"), "get_player", table.name(who)) for who in ("framer", "doctor"))

    assert framer["state"] == "dead, Framer"
    assert framer["claims"] == ["day 2: Sheriff"]
    assert framer["accuses"] == ["day 2: Beatrice"]
    assert framer["trials"] == ["day 2: lynched"]
    assert doctor["state"] == "alive"
    assert doctor["whispers"] == [f"day 2: to {table.name('sheriff')}"]
    assert doctor["ballots"] == [f"day 2: {table.name('framer')} innocent"]
    assert "between us" not in json.dumps(doctor)


def test_votes_of_a_player_are_told_with_those_taken_back() -> None:
    table = Table(CLASSIC)
    table.go_to(Phase.VOTING)
    table.act("sheriff", "vote", "doctor")
    table.go_to(Phase.VOTING)
    while "sheriff" not in [table.state.players[seat].dealt for seat in table.state.due]:
        table.end_round()
    table.act("sheriff", "unvote")
    doctor = table.name("doctor")

    answer = ask(seen(table, "jailor"), "get_player", table.name("sheriff"))
    assert answer["votes"] == [f"day 2: {doctor}", f"day 2: {doctor}, taken back"]


def test_graves_show_role_cause_and_will_on_one_line(table: Table) -> None:
    dead = ask(seen(table, "doctor"), "get_graveyard")["dead"]

    assert isinstance(dead, list)
    assert [(grave["player"], grave["role"], grave["day"]) for grave in dead if isinstance(grave, dict)] == [
        (table.name("framer"), "Framer", 2),
        (table.name("sheriff"), "Sheriff", 3),
    ]
    assert isinstance(dead[1], dict)
    assert dead[1]["will"] == WILL.replace("\n", " / ")


def test_who_came_back_from_the_dead_has_no_grave() -> None:
    table = Table(("retributionist", "escort", "doctor", "mafioso", "sheriff"), options=Options(retri="revive"))
    table.night({"mafioso": ("kill", "escort")})
    table.night({"retributionist": ("revive", "escort")})

    graves = ask(seen(table, "doctor"), "get_graveyard")
    assert graves["dead"] == []
    assert table.name("escort") in str(graves["living"])


def test_chat_of_a_day_is_what_the_seat_heard_and_no_more(table: Table) -> None:
    told = {who: json.dumps(ask(seen(table, who), "get_chat", "2")) for who in ("doctor", "jailor")}

    assert all("am the Sheriff" in chat for chat in told.values())
    assert "between us" in told["doctor"]
    assert "between us" not in told["jailor"]
    assert "The sun rises" not in json.dumps(ask(seen(table, "doctor"), "get_chat", "1"))


def test_long_day_is_answered_with_its_newest_lines_whole() -> None:
    table = Table(CLASSIC)
    for seat in table.state.due:
        table.act(seat, "speak", text=f"{seat} " * (SPEECH_CHARS_MAX // 2))
    view = seen(table, "doctor")
    answer = ask(view, "get_chat", "1")

    assert len(json.dumps(answer, ensure_ascii=False)) < OBSERVATION_CHARS_MAX + 500
    kept = answer["known_to_all"]
    assert isinstance(kept, list)
    lines = "\n".join(view.public_lines).splitlines()
    assert kept == lines[-len(kept) :]
    assert answer["earlier_lines_left_out"] == len(lines) - len(kept)


@pytest.mark.parametrize("attribute", ATTRIBUTES)
def test_attribute_is_told_with_the_roles_that_have_it(table: Table, attribute: str) -> None:
    answer = ask(seen(table, "doctor"), "get_attribute", attribute)

    assert answer["meaning"]
    assert answer["roles"] == [role.name for role in ROLES.values() if ATTRIBUTES[attribute].holds(role)]
    if attribute == "unique":
        assert "Jailor" in str(answer["roles"])


def test_every_phase_of_the_game_has_its_rules() -> None:
    assert set(PHASE_RULES) == {phase.value for phase in Phase} - {Phase.OVER.value}


def test_system_message_lists_the_arguments_that_are_few() -> None:
    text = system_text(CLASSIC, Options(tools=ALL_TOOLS))

    for few in (*PHASE_RULES, *ATTRIBUTES):
        assert few in text


def say(game_text: str) -> Receipt:
    game = open_game(CLASSIC)
    return game.receive(game.turns()[0], Reply(text=game_text))


def test_notes_are_kept_over_turns_and_shown_to_their_writer_alone() -> None:
    table, note = Table(CLASSIC), "Q7Q: watch Beatrice"
    table.act("sheriff", "notes", text=note)
    table.go_to(Phase.DISCUSSION, day=2)

    for player in table.state.players:
        view = seen(table, player.seat)
        is_writer = player.dealt == "sheriff"
        assert (f"notes: “{note}”" in turn_text(view)) == is_writer
        assert (ask(view, "get_notes")["notes"] == note) == is_writer
    assert "Q7Q" not in repr(table.events)


def test_notes_written_anew_replace_the_old_ones() -> None:
    table = Table(CLASSIC)
    table.act("sheriff", "notes", text="old")
    table.act("sheriff", "notes", text="new")

    assert ask(seen(table, "sheriff"), "get_notes")["notes"] == "new"


def test_notes_do_not_use_up_the_turn_and_are_bounded() -> None:
    assert say(f"<notes>{'n' * NOTES_CHARS_MAX}</notes><wait/>").kind is ReceiptKind.ACT
    assert say("<notes>n</notes>").kind is ReceiptKind.CORRECTION
    assert f"{NOTES_CHARS_MAX} are allowed" in say(f"<notes>{'n' * (NOTES_CHARS_MAX + 1)}</notes><wait/>").detail


def test_public_record_keeps_what_is_claimed_and_whom_somebody_accuses() -> None:
    """`claims/sentences.yaml` says what is a claim."""
    text = "I was the Medium. I am a Jester! I am not the Sheriff. Abel and Elias are mafia. Is Caleb mafia?"
    speech = Event(kind=EventKind.SPEECH, day=1, phase=Phase.DISCUSSION, data={"player": "Beatrice", "text": text})
    kept = conduct_of([speech], ("Beatrice", "Abel", "Caleb", "Elias"))["Beatrice"]

    assert (kept.claims, kept.accuses) == ([(1, "Medium"), (1, "Jester")], [(1, "Abel"), (1, "Elias")])
