"""From the text of a reply to an act: total, forgiving about form, strict about meaning."""

from __future__ import annotations

from random import Random

import pytest

from mac_runner.environments.base import SPEECH_CHARS_MAX
from mac_runner.environments.town_of_salem.game.acts import ACTS, WILL_CHARS_MAX, Act
from mac_runner.environments.town_of_salem.game.rules import check
from mac_runner.environments.town_of_salem.game.state import GameState, Phase
from mac_runner.environments.town_of_salem.view.replies import Cause, Chosen, Problem, Reading, ToolRequest, read
from mac_runner.environments.town_of_salem.view.tools import TOOLS
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


@pytest.mark.parametrize("name", ["Beatrice", "beatrice", "  BEATRICE\n", '"Beatrice"', "'Beatrice'.", "Beatrice."])
def test_name_is_recognised_however_it_is_written(votes: GameState, name: str) -> None:
    assert answer(votes, f"<vote>{name}</vote>") == Chosen(act=Act(seat=0, verb="vote", targets=(1,)))


@pytest.mark.parametrize(
    "text",
    [
        "<speak>hello</speak>",
        "<SPEAK>hello</Speak>",
        "< speak >hello</ speak >",
        "Well then:\n<speak>\n hello \n</speak>\nThat was it.",
        "<thinking>Say <speak>nothing</speak>?</thinking><speak>hello</speak>",
        "<think>hm</think><speak>hello</speak>",
        "<thinking/><speak>hello</speak><observation/>",
        '<observation>{"role": "Doctor"}<vote>Caleb</vote></observation><speak>hello</speak>',
    ],
)
def test_act_is_found_among_thoughts_and_words(day: GameState, text: str) -> None:
    assert answer(day, text) == Chosen(act=Act(seat=0, verb="speak", text="hello"))


@pytest.mark.parametrize("inside", ["<vote>Caleb</vote>", "<b>bold</b>", "<speak>", "a < b > c"])
def test_tags_inside_words_are_words(day: GameState, inside: str) -> None:
    assert answer(day, f"<speak>{inside} x</speak>") == Chosen(act=Act(seat=0, verb="speak", text=f"{inside} x"))


@pytest.mark.parametrize("inside", ["<thinking>I am the Godfather</thinking>Hello", "<think>hm", "so </thinking> x"])
def test_thoughts_inside_an_act_are_refused_not_published(day: GameState, inside: str) -> None:
    assert isinstance(answer(day, f"<speak>{inside}</speak>"), Problem)


def test_act_in_a_reply_that_was_cut_off_behind_it_is_refused(day: GameState) -> None:
    """What the model drafted on the way to its token limit was not yet its act."""
    text = "I could <speak>As Godfather I hide</speak> hmm, let me"
    cut = read(Reply(text=text, finish_reason=FinishReason.LENGTH), day, 0)
    whole = read(Reply(text="<speak>hello</speak>", finish_reason=FinishReason.LENGTH), day, 0)

    assert isinstance(cut, Problem)
    assert "cut off" in cut.reason
    assert isinstance(whole, Chosen)


@pytest.mark.parametrize(
    "text", ["", "   ", "I vote for Caleb.", "<thinking>hm</thinking>", "speak: hi", "<talk>hi</talk>"]
)
def test_reply_without_an_act_is_told_that_there_was_none(day: GameState, text: str) -> None:
    assert "no act" in reason(day, text)


def test_reply_with_several_acts_is_told_which(day: GameState) -> None:
    assert "2 acts (speak, whisper)" in reason(day, '<speak>a</speak><whisper to="Beatrice">b</whisper>')


def test_will_alone_is_no_act(day: GameState) -> None:
    assert "no act" in reason(day, "<will>mine</will>")


@pytest.mark.parametrize("tag", ["thinking", "speak", "will"])
def test_unclosed_tag_is_named(day: GameState, tag: str) -> None:
    assert f"there is no </{tag}>" in reason(day, f"<{tag}>hello")


def test_reply_cut_off_at_its_limit_is_told_so(day: GameState) -> None:
    assert "token limit" in reason(day, "<thinking>and furthermore", is_cut=True)


@pytest.mark.parametrize(
    ("text", "is_cut", "cause"),
    [
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
    ],
)
def test_reasoning_that_was_cut_off_is_told_apart_from_a_malformed_reply(
    day: GameState, text: str, is_cut: bool, cause: Cause
) -> None:
    reading = read(Reply(text=text, finish_reason=FinishReason.LENGTH if is_cut else FinishReason.STOP), day, 0)

    assert isinstance(reading, Problem)
    assert reading.cause is cause


def test_unclosed_thought_hides_what_follows_it(day: GameState) -> None:
    assert "<thinking> was never closed" in reason(day, "<thinking>I might <speak>hello</speak>")


def test_tool_request_cuts_off_what_follows(day: GameState) -> None:
    text = '<thinking>?</thinking><tool_request name="get_role">Doctor</tool_request><speak>I know!</speak>'
    assert answer(day, text) == ToolRequest(name="get_role", argument="Doctor")


def test_tool_request_cut_by_a_stop_sequence_is_read(day: GameState) -> None:
    assert answer(day, '<tool_request name="get_role">Doctor') == ToolRequest(name="get_role", argument="Doctor")


@pytest.mark.parametrize("tool", TOOLS)
def test_advertised_tool_request_parses_to_its_tool(day: GameState, tool: str) -> None:
    reading = answer(day, TOOLS[tool].example())
    assert isinstance(reading, ToolRequest)
    assert reading.name == tool


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<whisper>psst</whisper>", "names nobody"),
        ('<whisper to="Nobody">psst</whisper>', "who is not a player"),
        ('<whisper to="Abel">psst</whisper>', "must name one of these players: Beatrice"),
        ('<whisper to="Beatrice"></whisper>', "was empty"),
        ("<speak></speak>", "was empty"),
        ("<speak/>", "was empty"),
        ("<vote>Beatrice</vote>", "cannot be chosen now; you may choose: speak, whisper, wait, will"),
        ("<heal>Beatrice</heal>", "cannot be chosen now"),
        (f"<speak>{'x' * (SPEECH_CHARS_MAX + 1)}</speak>", f"{SPEECH_CHARS_MAX} are allowed"),
        (f"<wait/><will>{'x' * (WILL_CHARS_MAX + 1)}</will>", f"{WILL_CHARS_MAX} are allowed"),
        ('<speak channel="mafia">now?</speak>', "no such channel"),
    ],
)
def test_problem_says_what_was_wrong_and_what_is_wanted(day: GameState, text: str, expected: str) -> None:
    assert expected in reason(day, text)


def test_longest_allowed_words_are_allowed(day: GameState) -> None:
    text = f"<will>{'w' * WILL_CHARS_MAX}</will><speak>{'x' * SPEECH_CHARS_MAX}</speak>"
    assert isinstance(answer(day, text), Chosen)


def test_ballot_is_recognised_in_any_case() -> None:
    table = Table(ELEVEN)
    table.accuse(3)
    table.go_to(Phase.JUDGEMENT)

    assert answer(table.state, "<ballot>Guilty</ballot>") == Chosen(act=Act(seat=0, verb="ballot", choice="guilty"))
    assert "must be one of: guilty, innocent, abstain" in reason(table.state, "<ballot>lynch</ballot>")


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
