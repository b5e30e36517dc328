"""From the text of a reply to an act: total, forgiving about form, strict about meaning."""

from __future__ import annotations

from random import Random

import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.environments.testing import SPEECH_CHARS_MAX
from mac_runner.environments.town_of_salem.testing import (
    ACTS,
    TOOLS,
    WILL_CHARS_MAX,
    Act,
    Cause,
    Chosen,
    GameState,
    Phase,
    Problem,
    Reading,
    ToolRequest,
    check,
    read,
)
from mac_runner.types import FinishReason, Reply
from tests.environments.town_of_salem.table import ELEVEN, Table

TEXTS = 2_000


@pytest.fixture
def day() -> GameState:
    """The discussion of the second day; seat 0 is the Sheriff, seat 1 is called Beatrice."""
    table = Table(ELEVEN)
    table.go_to(Phase.DISCUSSION)
    return table.state


@pytest.fixture
def votes() -> GameState:
    table = Table(ELEVEN)
    table.go_to(Phase.VOTING)
    return table.state


def answer(state: GameState, text: str, *, seat: int = 0) -> Reading:
    return read(Reply(text=text), state, seat)


def reason(state: GameState, text: str, *, is_cut: bool = False) -> str:
    finish = FinishReason.LENGTH if is_cut else FinishReason.STOP
    reading = read(Reply(text=text, finish_reason=finish), state, 0)
    assert isinstance(reading, Problem), f"{text!r} was read as {reading}"
    return reading.reason


def test_act_in_a_reply_that_was_cut_off_behind_it_is_refused(day: GameState) -> None:
    """What the model drafted on the way to its token limit was not yet its act."""
    text = "I could <speak>As Godfather I hide</speak> hmm, let me"
    cut = read(Reply(text=text, finish_reason=FinishReason.LENGTH), day, 0)
    whole = read(Reply(text="<speak>hello</speak>", finish_reason=FinishReason.LENGTH), day, 0)

    assert isinstance(cut, Problem)
    assert "cut off" in cut.reason
    assert isinstance(whole, Chosen)


def test_reply_cut_off_at_its_limit_is_told_so(day: GameState) -> None:
    assert "token limit" in reason(day, "<thinking>and furthermore", is_cut=True)


CUT: list[tuple[str, bool, Cause]] = [
    ("<think>so the Sheriff", True, Cause.CUT_OFF_THOUGHT),
    ("<thinking>so the Sheriff", False, Cause.OPEN_THOUGHT),
    ("<think>done</think><speak>hel", True, Cause.CUT_OFF),
    ("<speak>hello</speak> and then", True, Cause.CUT_OFF),
    ('{"act": "spe', True, Cause.CUT_OFF),
    ('{"act": "speak", "text": ', False, Cause.MALFORMED),
    ("<speak>hello", False, Cause.MALFORMED),
    ("I will say hello.", False, Cause.NO_ACT),
    ("<speak>hello</speak><speak>bye</speak>", False, Cause.SEVERAL_ACTS),
    ("<vote>Nobody Known</vote>", False, Cause.ILLEGAL),
]


def test_reasoning_that_was_cut_off_is_told_apart_from_a_malformed_reply(day: GameState) -> None:
    for text, is_cut, cause in CUT:
        finish_reason = FinishReason.LENGTH if is_cut else FinishReason.STOP
        reading = read(Reply(text=text, finish_reason=finish_reason), day, 0)
        assert isinstance(reading, Problem), text
        assert reading.cause is cause, text


@pytest.mark.parametrize("tool", TOOLS)
def test_advertised_tool_request_parses_to_its_tool(day: GameState, tool: str) -> None:
    reading = answer(day, TOOLS[tool].example())
    assert isinstance(reading, ToolRequest)
    assert reading.name == tool


UNUSABLE = (
    *('<speak>a</speak><whisper to="Beatrice">b</whisper>', "<thinking>I might <speak>hello</speak>"),
    *("<thinking>hello", "<speak>hello", "<will>hello", "<speak></speak>", "<speak/>", "<whisper>psst</whisper>"),
    *('<whisper to="Nobody">psst</whisper>', '<whisper to="Abel">psst</whisper>', '<whisper to="Beatrice"></whisper>'),
    *("<vote>Beatrice</vote>", "<heal>Beatrice</heal>", '<speak channel="mafia">now?</speak>'),
    *(f"<speak>{'x' * (SPEECH_CHARS_MAX + 1)}</speak>", f"<wait/><will>{'x' * (WILL_CHARS_MAX + 1)}</will>"),
)


def test_problem_says_what_was_wrong_and_what_is_wanted(day: GameState, snapshot: SnapshotAssertion) -> None:
    assert {text[:60]: reason(day, text) for text in UNUSABLE} == snapshot


def test_longest_allowed_words_are_allowed(day: GameState) -> None:
    text = f"<will>{'w' * WILL_CHARS_MAX}</will><speak>{'x' * SPEECH_CHARS_MAX}</speak>"
    assert isinstance(answer(day, text), Chosen)


def test_ballot_is_recognised_in_any_case() -> None:
    table = Table(ELEVEN)
    table.accuse(3)
    table.go_to(Phase.JUDGEMENT)

    assert answer(table.state, "<ballot>Guilty</ballot>") == Chosen(act=Act(seat=0, verb="ballot", choice="guilty"))
    assert ": guilty, innocent, abstain" in reason(table.state, "<ballot>lynch</ballot>")


def test_channel_is_recognised_in_any_case() -> None:
    table = Table(ELEVEN)
    table.go_to(Phase.NIGHT_CHAT)
    seat = table.seat("framer")

    reading = answer(table.state, '<speak channel=" Mafia ">hm</speak>', seat=seat)
    assert reading == Chosen(act=Act(seat=seat, verb="speak", text="hm", choice="mafia"))


def test_every_text_is_read_as_something_legal_or_a_problem(day: GameState, votes: GameState) -> None:
    """Random texts and mutated replies: nothing raises, and what is read as an act can be done."""
    chance = Random(3)
    pieces = [spec.example(name) for spec in ACTS.values() for name in ("Beatrice", "Abel", "Nobody", "")]
    pieces += [tool.example() for tool in TOOLS.values()]
    pieces += [*'<>/"=\x00\ud800\u202e', " to=", "<ſpeak>x</ſpeak>", "𝐯𝐨𝐭𝐞"]
    pieces += ["<thinking>", "</thinking>", "<thinking/>", "<think />"]
    counts = dict.fromkeys((Chosen, Problem, ToolRequest), 0)
    for number in range(TEXTS):
        text = "".join(chance.choice(pieces) for _ in range(chance.randint(0, 4)))
        for _ in range(chance.randint(0, 3)):
            place = chance.randint(0, len(text))
            text = text[:place] + chance.choice(["", "<", ">", chr(chance.randrange(0x3000))]) + text[place + 1 :]
        state = (day, votes)[number % 2]
        reading = answer(state, text)
        counts[type(reading)] += 1
        if isinstance(reading, Chosen):
            for act in (reading.act, *reading.side_acts):
                check(state, act)

    assert min(counts.values()) > TEXTS // 80
