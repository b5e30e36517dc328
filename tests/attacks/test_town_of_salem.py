"""What players write can be anything; to others it is words of that player, on one line, and nothing else."""

from __future__ import annotations

import json
import re

import pytest
from pydantic import ValidationError

from mac_runner.config import AgentDefinition
from mac_runner.environments.testing import defuse
from mac_runner.environments.town_of_salem.testing import EventKind, GameLog, SeatView, observe, turn_text, view_of
from mac_runner.types import Reply
from tests.attacks.strings import ATTACKS, against_all
from tests.environments.town_of_salem.table import ELEVEN, Table, open_game

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
    return turn_text(view_for(table, seat))


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
