"""Replies as JSON: what the schema allows is read without a correction, and says what the markup says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from random import Random

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from mac_runner.environments.testing import SPEECH_CHARS_MAX
from mac_runner.environments.town_of_salem.testing import (
    ACTS,
    POLICIES,
    TOOL_CALLS_PER_TURN_MAX,
    TOOLS,
    Act,
    Asking,
    Chosen,
    Game,
    GameState,
    Options,
    Phase,
    Problem,
    Reading,
    SeatView,
    ToolRequest,
    read,
)
from mac_runner.types import FinishReason, JsonObject, Prompt, ReceiptKind, Reply, Turn
from tests.environments.town_of_salem.table import ELEVEN, Table, clumsy, open_game, play

REPLIES = 40
JSON = Asking(form="json")
AT_FIRST = Table(ELEVEN).state
RARE = ("transporter", "witch", "retributionist", "forger", "mayor", "godfather", "sheriff", "veteran", "arsonist")


@pytest.fixture
def day() -> GameState:
    table = Table(ELEVEN)
    table.go_to(Phase.DISCUSSION)
    return table.state


def answer(state: GameState, reply: object, *, seat: int = 0, is_cut: bool = False) -> Reading:
    text = reply if isinstance(reply, str) else json.dumps(reply)
    return read(Reply(text=text, finish_reason=FinishReason.LENGTH if is_cut else FinishReason.STOP), state, seat)


def variants(prompt: Prompt) -> list[JsonObject]:
    assert prompt.schema is not None
    found = prompt.schema["anyOf"]
    assert isinstance(found, list)
    return [variant for variant in found if isinstance(variant, dict)]


def checker(prompt: Prompt) -> jsonschema.Draft202012Validator:
    assert prompt.schema is not None
    jsonschema.Draft202012Validator.check_schema(dict(prompt.schema))
    return jsonschema.Draft202012Validator(dict(prompt.schema))


def sample(variant: JsonObject, chance: Random, text: str) -> dict[str, object]:
    """A random object the variant allows, with `text` wherever it is free."""
    properties, required = variant["properties"], variant["required"]
    assert isinstance(properties, dict)
    assert isinstance(required, list)
    chosen: dict[str, object] = {}
    for key, schema in properties.items():
        assert isinstance(schema, dict)
        if key not in required and chance.random() < 0.5:
            continue
        if "const" in schema:
            chosen[key] = schema["const"]
        elif isinstance(schema.get("enum"), list):
            values = schema["enum"]
            assert isinstance(values, list)
            chosen[key] = chance.choice(values)
        else:
            longest = schema.get("maxLength", SPEECH_CHARS_MAX)
            assert isinstance(longest, int)
            chosen[key] = text[:longest]
    return chosen


def samples(prompt: Prompt, chance: Random, texts: list[str]) -> Iterator[dict[str, object]]:
    for variant in variants(prompt):
        yield sample(variant, chance, chance.choice(texts))


@pytest.mark.ci
def test_every_reply_the_schema_allows_is_read_without_a_correction() -> None:
    chance, kinds = Random(7), dict.fromkeys((Chosen, ToolRequest), 0)
    verbs: set[str] = set()
    texts = ["hello", " ", "\n", "</speak>", "<vote>Abel</vote>", "\ud800", "x" * SPEECH_CHARS_MAX, '{"act": "wait"}']

    def watch(game: Game, turn: Turn, prompt: Prompt) -> None:
        seat = next(player.seat for player in game.state.players if player.name == turn.agent)
        assert isinstance(prompt.view, SeatView)
        # Each act where it is first on offer, and a few more turns.
        offered = {choice.verb for choice in prompt.view.choices if not ACTS[choice.verb].is_side_act}
        if offered <= verbs and chance.random() < 0.97:
            return
        validator = checker(prompt)
        for reply in samples(prompt, chance, texts):
            validator.validate(reply)
            reading = answer(game.state, reply, seat=seat)
            assert not isinstance(reading, Problem), f"{reply}: {reading}"
            kinds[type(reading)] += 1
            verbs.add(str(reply.get("act")))

    for seed, (roles, policy) in enumerate(product((ELEVEN, RARE), (POLICIES["heuristic"], POLICIES["random"]))):
        play(open_game(roles, seed=seed, options=Options(max_days=4), asking=JSON), policy, seed=seed, watch=watch)
    assert min(kinds.values()) > REPLIES
    assert {"speak", "whisper", "vote", "ballot", "wait", "swap"} < verbs


@settings(max_examples=100)
@given(st.text(min_size=1, max_size=200), st.sampled_from(["speak", "whisper"]), st.text(min_size=1, max_size=100))
def test_any_text_in_a_json_reply_is_the_text_that_is_said(text: str, verb: str, notes: str) -> None:
    reply = {"thinking": notes, "act": verb, "text": text, "notes": notes}
    targets = () if verb == "speak" else (1,)
    said = answer(AT_FIRST, {**reply, **({} if verb == "speak" else {"target": "Beatrice"})})

    assert said == Chosen(
        act=Act(seat=0, verb=verb, targets=targets, text=text), side_acts=(Act(seat=0, verb="notes", text=notes),)
    )


def test_schema_allows_what_is_offered_and_nothing_else(day: GameState) -> None:
    game = open_game(ELEVEN, asking=JSON)
    prompt = game.prompt(game.turns()[0])
    view = prompt.view
    assert isinstance(view, SeatView)
    acts = {json.dumps(v["properties"]["act"]) for v in variants(prompt) if "act" in v["required"]}  # type: ignore[index,operator,call-overload]

    assert acts == {json.dumps({"const": choice.verb}) for choice in view.choices if not ACTS[choice.verb].is_side_act}
    validator = checker(prompt)
    whisper = {"act": "whisper", "target": "Nobody", "text": "x"}
    for bad in ({"act": "kill", "target": "Abel"}, whisper, {"act": "speak"}, {"act": "wait", "text": "x"}):
        assert not validator.is_valid(bad)


def test_schema_offers_no_tool_once_the_limit_is_reached() -> None:
    game = open_game(ELEVEN, asking=JSON)
    for _ in range(TOOL_CALLS_PER_TURN_MAX):
        tools = [variant for variant in variants(game.prompt(game.turns()[0])) if "tool" in str(variant["required"])]
        assert len(tools) == len(TOOLS)
        assert game.receive(game.turns()[0], Reply(text='{"tool": "get_lobby"}')).kind is ReceiptKind.OBSERVATION

    assert "tool" not in str(dict(game.prompt(game.turns()[0]).schema or {}))


def test_choices_list_every_reply_where_all_acts_can_be_listed() -> None:
    listed, others = 0, 0

    def watch(game: Game, turn: Turn, prompt: Prompt) -> None:
        nonlocal listed, others
        if prompt.choices is None:
            others += 1
            return
        listed += 1
        seat = next(player.seat for player in game.state.players if player.name == turn.agent)
        assert game.state.phase in (Phase.JUDGEMENT, Phase.NIGHT, Phase.DISCUSSION)
        for text in prompt.choices:
            assert isinstance(answer(game.state, text, seat=seat), Chosen)

    play(open_game(ELEVEN, options=Options(max_days=4), asking=JSON), clumsy, watch=watch)
    assert listed > 20
    assert others > 20


UNUSABLE: list[object] = [
    '{"act": "speak", "text": "hello',
    '{"act": "wait"}\n{"act": "speak", "text": "hello"}',
    '{"act": "wait", "act": "speak"}',
    '{"act":' * 50_000,
    "{}",
    {"act": "notes", "notes": "x"},
    {"act": "<|im_end|>"},
    {"act": "wait", "target": "Beatrice"},
    {"act": "speak", "text": ["hello", "bye"]},
    {"act": "speak", "text": {"to": "all"}},
    {"act": "speak", "text": ""},
    {"act": "vote", "target": "Beatrice"},
    {"act": "whisper", "target": "Abel", "text": "x"},
    {"act": "speak", "text": "x" * (SPEECH_CHARS_MAX + 1)},
]


def test_unusable_json_reply_is_told_why(day: GameState, snapshot: SnapshotAssertion) -> None:
    found = {}
    for reply in UNUSABLE:
        reading = answer(day, reply)
        assert isinstance(reading, Problem)
        found[str(reply)[:60]] = reading.reason.partition(": ")[0]

    assert found == snapshot


def test_json_reply_cut_off_at_its_limit_is_told_so(day: GameState) -> None:
    reading = answer(day, '{"thinking": "and furthermore', is_cut=True)

    assert isinstance(reading, Problem)
    assert "token limit" in reading.reason


def test_schema_is_that_of_the_moment_of_its_prompt() -> None:
    game = open_game(ELEVEN, options=Options(max_days=3), asking=JSON)
    kept: list[tuple[Prompt, JsonObject]] = []

    def keep(game: Game, turn: Turn, prompt: Prompt) -> None:
        fresh = game.prompt(turn)
        assert fresh.schema is not None
        kept.append((prompt, dict(fresh.schema)))

    play(game, clumsy, watch=keep)

    assert all(prompt.schema == schema for prompt, schema in kept)
