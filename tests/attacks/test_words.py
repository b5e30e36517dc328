"""What players write can be anything; to others, on a terminal and in a file it is their words and nothing else."""

from __future__ import annotations

import csv
import io
import json
import re
import unicodedata
from collections.abc import Callable
from functools import cache

import pytest
from pydantic import ValidationError

from mac_runner.environments.discussion.testing import DiscussionConversation
from mac_runner.environments.testing import defuse, holds_thought
from mac_runner.environments.town_of_salem.testing import EventKind, GameLog, Prompts, SeatView, observe, view_of
from mac_runner.reports import (
    GridRow,
    csv_bytes,
    grid_table,
    parquet_bytes,
    summarise,
    summarise_grid,
    turns_text,
)
from mac_runner.spec import AgentDefinition
from mac_runner.status import ModelSlots, TurnRow, picture
from mac_runner.store.testing import entry, objects
from mac_runner.types import JsonObject, Reply
from mac_runner.views.testing import transcript_text
from tests.attacks.strings import ATTACKS, against_all
from tests.environments.discussion.table import agent, opener, talk, turn_of
from tests.environments.town_of_salem.table import ELEVEN, Table, open_game
from tests.kit import game_player, render_grid, render_summary, totals_of

CLASSIC = ELEVEN[:10]
HARMLESS = "hello"

# Nothing a player wrote may hold what a template, our markup or the record is made of.
_STRUCTURE = re.compile(r"[<>|\[\]“”\n\r\v\f\x1c-\x1f\x85\u2028\u2029\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
_OURS = "thinking|think|speak|vote|kill|notes|tool_request|observation|correction"
_CONTROL = re.compile(rf"<(?!/?(?:{_OURS})[\s/>])[^<>]*>|\[/?[A-Z]{{3,}}\]")
_SAYS = re.compile(r"^(?:\([a-z]+ chat\) )?(\w+)(?: says| whispers to \w+)?: “(.*)”$")


def view_for(table: Table, seat: int) -> SeatView:
    log = GameLog(len(table.state.players))
    log.append(tuple(table.events))
    return view_of(table.state, log, seat)


def prompt_of(table: Table, seat: int) -> str:
    return Prompts().turn(view_for(table, seat))


def spoken(text: str) -> Table:
    """A game in which one player says, whispers, chats and bequeaths the same words."""
    table = Table(CLASSIC)
    table.act("sheriff", "speak", text=text)
    table.act("doctor", "whisper", "sheriff", text=text)
    table.act("sheriff", "will", text=text)
    table.act("sheriff", "notes", text=text)
    table.act("doctor", "notes", text=text)
    table.act("mafioso", "death_note", text=text)
    table.act("jailor", "jail", "doctor")
    table.end_round()
    table.act("jailor", "speak", text=text)
    table.act("framer", "speak", text=text)
    table.night({"mafioso": ("kill", "sheriff")})
    return table


def speakers(prompt: str) -> list[str]:
    return [found.group(1) for line in prompt.splitlines() if (found := _SAYS.match(line))]


def check_words_stay_words_of_their_speaker(text: str) -> None:
    harmless, hostile = spoken(HARMLESS), spoken(text)

    for role in ("sheriff", "doctor", "jailor", "framer", "escort"):
        seat = harmless.seat(role)
        expected, shown = prompt_of(harmless, seat), prompt_of(hostile, seat)
        assert speakers(shown) == speakers(expected)
        assert len(shown.splitlines()) == len(expected.splitlines())
        for before, after in zip(expected.splitlines(), shown.splitlines(), strict=True):
            assert after.startswith(before.partition(HARMLESS)[0])
            assert after.endswith(before.rpartition(HARMLESS)[2])
            assert HARMLESS in before or after == before
            assert after.count("“") == after.count("”") == before.count("“")


@pytest.mark.ci
@against_all
def test_words_stay_words_of_their_speaker(text: str) -> None:
    check_words_stay_words_of_their_speaker(text)


@against_all
def test_hostile_reply_acts_for_its_own_seat_alone(text: str) -> None:
    """The same words as a reply, bare and inside a tag: whatever is read from them, nobody else is made to speak."""
    for reply in (text, f"<speak>{text}</speak>", f"<thinking>{text}</thinking><wait/>"):
        game = open_game(CLASSIC, max_retries=0)
        agent = game.turns()[0].agent
        game.receive(game.turns()[0], Reply(text=reply))
        said = [event.data["player"] for event in game.log.events if event.kind is EventKind.SPEECH]
        assert set(said) <= {agent}
        assert game.turns()[0].agent != agent or game.turns()[0].step == 1


@against_all
def test_raw_words_are_kept_in_the_record(text: str) -> None:
    table = Table(CLASSIC)
    table.act("sheriff", "speak", text=text)

    assert table.events[-1].data["text"] == text


@pytest.mark.ci
@against_all
def test_tools_show_words_as_words(text: str) -> None:
    """Answers of the tools keep their shape whatever players wrote, and hold nothing that could close them."""
    harmless, hostile = spoken(HARMLESS), spoken(text)
    for name, argument in (("get_graveyard", ""), ("get_chat", "1"), ("get_notes", "")):
        expected, shown = (
            json.loads(observe(view_for(table, table.seat("doctor")), name, argument)) for table in (harmless, hostile)
        )
        assert list(shown) == list(expected)
        assert shape(shown) == shape(expected)
        assert "<" not in observe(view_for(hostile, hostile.seat("doctor")), name, argument)
    # What a player said of roles and others is told in names of ours alone.
    conduct = json.loads(observe(view_for(hostile, 0), "get_player", hostile.name("sheriff")))
    assert all(re.fullmatch(r"day \d: [A-Z][A-Za-z ]+|day \d: (to|from) [A-Z][a-z]+", of) for of in conduct["claims"])


def shape(value: object) -> object:
    """A JSON value with its texts left out."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    return [shape(item) for item in value] if isinstance(value, list) else type(value)


@pytest.mark.ci
@against_all
def test_requests_and_corrections_echo_words_as_words(text: str) -> None:
    """What is sent back in the middle of a turn: the system's part is one frame, the player's own part arms nothing."""
    replies = (
        text,
        f"<vote>{text}</vote>",
        f'<tool_request name="{text}">x</tool_request>',
        f'<tool_request name="get_role">{text}</tool_request>',
        json.dumps({"act": text}),
        json.dumps({"tool": text, "argument": text}),
        json.dumps({"act": "wait", text: text}),
    )
    for reply in replies:
        game = open_game(CLASSIC)
        turn = game.turns()[0]
        game.receive(turn, Reply(text=reply))
        thread = game.prompt(game.turns()[0]).messages[2:]
        for own, said in zip(thread[::2], thread[1::2], strict=True):
            tag = said.content[1 : said.content.index(">")]
            assert tag in ("observation", "correction")
            assert said.content.startswith(f"<{tag}>")
            assert said.content.endswith(f"</{tag}>")
            assert not _CONTROL.search(own.content)
            assert not _CONTROL.search(said.content)


def test_there_are_enough_attacks_and_no_two_alike() -> None:
    assert len(set(ATTACKS.values())) == len(ATTACKS) >= 100


@against_all
def test_shown_words_hold_nothing_of_structure(text: str) -> None:
    assert not _STRUCTURE.search(defuse(text))


@against_all
def test_name_of_a_definition_cannot_be_an_attack(text: str) -> None:
    definition = {"agent_id": text, "role": "player", "model": "m"}
    with pytest.raises(ValidationError):
        AgentDefinition.model_validate(definition)


_UNQUOTED = re.compile(r"[<>|\[\]“”\x00-\x1f\x7f-\x9f\u2028\u2029]")
_FRAME = re.compile(r'^<statement round="\d+" speaker="(\w+)">(.*)</statement>$')


TALKS = {
    # A moderator hears a speaker.
    "moderated": lambda: talk(agent("ann"), agent("mod", "moderator", after=("ann",)), topics=("rain",), max_rounds=2),
    "in turn": lambda: talk(agent("ann"), agent("bob", after=("ann",)), topics=("rain",), max_retries=0),
    "at once": lambda: talk(agent("ann"), agent("bob")),
    "all roles": lambda: talk(
        agent("ann"),
        agent("bob"),
        agent("dev", "devils_advocate", after=("ann", "bob")),
        agent("mod", "moderator", after=("ann", "bob", "dev")),
        agent("jud", "judge", after=("ann", "bob", "mod")),
        max_rounds=3,
        max_retries=0,
        routing_strategy={"channels": {"duo": ["ann", "bob"]}},
    ),
}


@cache
def opener_of(name: str) -> Callable[[], DiscussionConversation]:
    return opener(TALKS[name]())


def told(conversation: DiscussionConversation, reader: str) -> list[str]:
    """The lines of what a reader is asked."""
    return conversation.prompt(turn_of(conversation, reader)).messages[1].content.split("\n")


def answered(name: str, **said: str) -> DiscussionConversation:
    """A discussion in which ann has said something."""
    conversation = opener_of(name)()
    conversation.receive(turn_of(conversation, "ann"), Reply(text=json.dumps({"rationale": "fine", **said})))
    return conversation


def heard(conversation: DiscussionConversation, text: str) -> list[str]:
    """The lines the moderator is sent after ann has said `text`."""
    ann, mod = conversation.turns()
    conversation.receive(ann, Reply(text=text))
    if conversation.turns()[0].agent == "ann":
        conversation.receive(conversation.turns()[0], Reply(text=HARMLESS))
    return [line for message in conversation.prompt(mod).messages for line in message.content.split("\n")]


@pytest.mark.ci
@against_all
def test_statement_stays_in_its_frame_under_its_speaker(text: str) -> None:
    lines = heard(opener_of("moderated")(), text)

    framed = [found for line in lines if (found := _FRAME.match(line))]
    assert [found.group(1) for found in framed] == ["ann"]
    assert not _UNQUOTED.search(framed[0].group(2))
    assert sum("<" in line for line in lines) == 2, "the frame, and the rule that speaks of it"
    assert len("\n".join(lines).splitlines()) == len(lines)


@pytest.mark.ci
@against_all
def test_statement_is_raw_in_the_record_and_defused_for_readers(text: str) -> None:
    conversation = opener_of("moderated")()
    heard(conversation, text)
    (_, event) = objects(conversation.record(), "events")
    said = str(entry(entry(event, "data", dict), "said", dict)["text"])

    # What begins as a thought is said by nobody: the reply is asked for again.
    is_said = defuse(text.strip()) and not holds_thought(text)
    assert said == (text.strip() if is_said else HARMLESS)
    assert event["text"] == f"ann: {defuse(said)}"


# Wherever else words of a model come into a prompt of another: each as it is written, and where it may stand.
PLACES = {
    "rationale": ("ann", '<statement round="1" speaker="ann" answer="The boy">'),
    "summary": ("mod", '<statement round="1" speaker="mod" role="moderator">'),
    "question": ("mod", '<statement round="1" speaker="mod" role="moderator">'),
    "argument": ("dev", '<statement round="1" speaker="dev" role="devils_advocate" argues_for="The grandmother">'),
    "verdict": ("jud", '<statement round="1" speaker="jud" role="judge">'),
    "to_duo": ("ann", '<aside channel="duo" round="1" speaker="ann">'),
}


def replies(place: str, text: str) -> dict[str, JsonObject]:
    """What each of the five says in the first round, with `text` in one place."""
    said: dict[str, JsonObject] = {
        "ann": {"rationale": "fine", "answer": "The boy"},
        "bob": {"rationale": "fine", "answer": "The boy"},
        "dev": {"argument": "fine", "alternative": "The grandmother"},
        "mod": {"summary": "fine", "question": "fine"},
        "jud": {"rationale": "fine", "verdict": "continue"},
    }
    agent_id, _ = PLACES[place]
    said[agent_id] |= {"rationale" if place == "verdict" else place: text}
    return said


@pytest.mark.ci
@against_all
def test_words_stay_in_their_frame_wherever_they_are_shown(text: str) -> None:
    for place, (agent_id, frame) in PLACES.items():
        conversation = opener_of("all roles")()
        for speaker, said in replies(place, text).items():
            conversation.receive(turn_of(conversation, speaker), Reply(text=json.dumps(said)))
        lines = told(conversation, "bob")

        frames = {"<statement": 5, "<aside": int(place == "to_duo" and bool(defuse(text)))}
        assert {tag: sum(tag in line for line in lines) for tag in frames} == frames, place
        assert sum(line.count("<") for line in lines) == sum(2 if "</" in line else 1 for line in lines if "<" in line)
        assert len("\n".join(lines).splitlines()) == len(lines), place
        if defuse(text) and frames["<aside"] == (place == "to_duo"):
            passes = any(f'speaker="{agent_id}"' in line and "passes/>" in line for line in lines)
            assert sum(line.startswith(frame) for line in lines) == (not passes), place


@pytest.mark.ci
@against_all
def test_an_answer_in_words_of_its_own_stays_inside_its_quotes(text: str) -> None:
    (line,) = (line for line in told(answered("in turn", answer=text), "bob") if "<statement" in line)

    assert re.fullmatch(r'<statement round="1" speaker="ann"( answer="[^"<>\n]*">fine</statement>| passes/>)', line)


@pytest.mark.ci
@against_all
def test_a_correction_quotes_an_answer_harmlessly(text: str) -> None:
    lines = "\n".join(told(answered("at once", answer=f"somebody {text}"), "ann")).splitlines()
    (line,) = (line for line in lines if "could not be used" in line)

    assert not _UNQUOTED.search(line)


COLUMNS = 4_000


def controls(text: str) -> set[str]:
    """The characters of `text` that do something on a terminal, line ends of our own left out."""
    return {char for char in text if char != "\n" and unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")}


def transcript(text: str) -> JsonObject:
    """A game of two in which everything that is text is `text`, but for what a player said in words of the record."""
    agents: list[JsonObject] = [{"agent_id": "Abel"}, {"agent_id": "Beatrice"}]
    seen: JsonObject = {"turn": None, "day": 1, "phase": "discussion", "kind": "speech", "data": {}}
    event: JsonObject = {**seen, "when": text, "audience": ["Abel"], "text": text}
    said: JsonObject = {**seen, "when": "Day 1", "audience": "all", "text": f"Abel says: “{defuse(text)}”"}
    named = dict.fromkeys(("agent", "definition", "model", "role", "faction", "death"), text)
    player = game_player(**named, final_role=HARMLESS, won=True, alive=False, died_on_day=1)
    ended: JsonObject = {"kind": "game", "ending": text, "reason": text, "winners": [text], "days": 1}
    turn: JsonObject = {"turn": text, "receipt": {"kind": "correction", "detail": text}}
    return {
        "task": {"task_id": text, "agents": [*agents]},
        "status": "failed",
        "failure": text,
        "record": {"events": [said, event]},
        "outcome": {**ended, "players": [player]},
        "turns": [turn],
    }


FURTHER = "      "
"""What a further line of a message begins with."""


def summary(text: str) -> JsonObject:
    """A summary in which every name and reason is `text`."""
    named = dict.fromkeys(("agent", "definition", "model", "role", "faction"), text)
    player = game_player(**named, won=True)
    counts: JsonObject = {
        "turns": 1,
        "corrections": 0,
        "defaults": 0,
        "tokens": {"prompt": 1, "completion": 1, "timing": {"cached": 0}},
    }
    game: JsonObject = {"kind": "game", "ending": "win", "days": 2, "winners": [text], "players": [player, player]}
    rows: list[JsonObject] = [
        {"task_id": text, "index": 0, "status": "finished", "counts": counts, "outcome": game},
        {"task_id": text, "index": 1, "status": "failed", "counts": counts, "failure": text, "outcome": None},
    ]
    return summarise(totals_of(rows), experiment_name=text, planned=2, accounting={"models": {text: {}}})


@against_all
def test_transcript_has_the_lines_it_has_with_harmless_words(text: str) -> None:
    """Further lines of a message are set in deeper than any line of ours."""
    for seat in (None, "Abel"):
        harmless, hostile = (transcript_text(transcript(words), seat=seat) for words in (HARMLESS, text))

        assert not controls(hostile)
        assert not any(line.startswith(FURTHER) for line in harmless.splitlines())
        has_lines = "\n" in text  # Otherwise every line is one of ours, also one that is blank.
        own = [line for line in hostile.splitlines() if not (has_lines and line.startswith(FURTHER))]
        for before, after in zip(harmless.splitlines(), own, strict=True):
            # Where a line begins and who alone learned of it is ours to say.
            assert after.startswith(before.partition(HARMLESS)[0])
            assert after.endswith(before.rpartition(HARMLESS)[2])


@pytest.mark.ci
@against_all
def test_summary_has_the_rows_it_has_with_harmless_names(text: str) -> None:
    harmless, hostile = (render_summary(summary(words), width=COLUMNS) for words in (HARMLESS, text))

    assert not controls(hostile)
    # A name too long for its column goes on in it, and never in a row with figures of its own.
    assert len(rows_with_figures(hostile)) == len(rows_with_figures(harmless))


def rows_with_figures(table: str) -> list[str]:
    """The lines of the tables of wins: those that end in an interval."""
    return [line for line in table.splitlines() if line.rstrip(" *").endswith("100.0%")]


def grid_rows(text: str) -> list[GridRow]:
    """A grid in which every name and every value that is text is `text`."""
    return [GridRow(slug=text, values={text: text, "seed": -1}, session=1, summary=summary(text))]


def printed_grid(text: str) -> str:
    rows = grid_rows(text)
    accounting: JsonObject = {"models": {text: {}}}
    whole = summarise_grid(name=text, profile=text, rows=rows, complete=1, left_out=[], accounting=accounting)
    # A line that is longer than the terminal is wide goes on below; here none is.
    return render_grid(whole, rows, width=100_000)


SURFACES: dict[str, Callable[[str], str]] = {
    "turns": lambda text: turns_text(transcript(text), [{"turn": text, "time": text, "latency_ms": 3}]),
    "status of a turn": lambda text: picture.turn(TurnRow(task_id=text, round=1, agent=text, note=text, model=text)),
    "status of a model": lambda text: picture.in_flight(
        (ModelSlots(name=text, in_flight=1, slots=2, utilisation=0.5),)
    ),
    "grid": printed_grid,
}


@cache
def harmless_lines(surface: str) -> int:
    return len(SURFACES[surface](HARMLESS).splitlines())


@pytest.mark.ci
@against_all
def test_every_surface_has_the_lines_it_has_with_harmless_words(text: str) -> None:
    for surface, show in SURFACES.items():
        shown = show(text)
        assert not controls(shown), surface
        assert len(shown.splitlines()) == harmless_lines(surface), surface


FORMULAS = ("=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(1,1)", "\t=1", "\r=1", "\n=1")


def test_any_text_goes_into_a_parquet_file_and_none_of_a_csv_is_a_formula_to_a_spreadsheet(
    subtests: pytest.Subtests,
) -> None:
    for text in (*ATTACKS.values(), *FORMULAS):
        with subtests.test(repr(text)):
            table = grid_table(grid_rows(text))
            (head, *rows) = csv.reader(io.StringIO(csv_bytes(table).decode("utf-8"), newline=""))

            assert len(rows) == 1
            texts = [cell for name, cell in zip(head, rows[0], strict=True) if name != "seed"]
            assert not [cell for cell in (*head, *texts) if cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))]
            assert rows[0][head.index("seed")] == "-1", "a number stays a number"
            assert parquet_bytes(table)[:4] == b"PAR1"
