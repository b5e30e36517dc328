"""From the text of a reply, in markup or JSON, to an act: total, forgiving about form, strict about meaning.

The corpus holds some 500 replies as small models write them: read as meant, or asked again, and never read as something
else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from mac_runner.environments.reading import BLANK, is_placeholder
from mac_runner.environments.testing import SPEECH_CHARS_MAX
from mac_runner.environments.town_of_salem.testing import (
    ACTS,
    POLICIES,
    TOOL_CALLS_PER_TURN_MAX,
    TOOLS,
    WILL_CHARS_MAX,
    Act,
    Asking,
    Cause,
    Chosen,
    Game,
    GameState,
    Options,
    Phase,
    Problem,
    Reading,
    SeatView,
    ToolRequest,
    check,
    check_beside,
)
from mac_runner.types import JsonObject, Prompt, ReceiptKind, Turn
from tests.environments.town_of_salem.table import (
    ELEVEN,
    Table,
    answer,
    clumsy,
    open_game,
    play,
    reading_of,
    state_in,
    variants,
)

TEXTS, REPLIES, DAMAGES = 2_000, 40, 8
CORPUS = Path(__file__).parent / "corpus"
JSON = Asking(form="json")
MANY = (*ELEVEN, "sheriff", "doctor", "escort", "medium", "framer", "lookout", "lookout", "lookout")
RARE = ("sheriff", "doctor", "mafioso", "jester", "transporter", "forger", "veteran", "godfather")


def day() -> GameState:
    """The discussion of the second day; seat 0 is the Sheriff, seat 1 is called Beatrice."""
    return state_in(Phase.DISCUSSION)


def reason(state: GameState, reply: object) -> str:
    """What is said against a reply, which may be an object."""
    reading = reading_of(state, reply if isinstance(reply, str) else json.dumps(reply))
    assert isinstance(reading, Problem), f"{reply!r} was read as {reading}"
    return reading.reason


CUT: list[tuple[str, bool, Cause | None]] = [
    # What the model drafted on the way to its token limit was not yet its act.
    ("I could <speak>As Godfather I hide</speak> hmm, let me", True, Cause.CUT_OFF),
    ("<speak>hello</speak>", True, None),
    ("<think>so the Sheriff", True, Cause.CUT_OFF_THOUGHT),
    ("<thinking>so the Sheriff", False, Cause.OPEN_THOUGHT),
    ("<think>done</think><speak>hel", True, Cause.CUT_OFF),
    ("<speak>hello</speak> and then", True, Cause.CUT_OFF),
    ('{"act": "spe', True, Cause.CUT_OFF),
    ('{"thinking": "and furthermore', True, Cause.CUT_OFF),
    ('{"act": "speak", "text": ', False, Cause.MALFORMED),
    ("<speak>hello", False, Cause.MALFORMED),
    ("I will say hello.", False, Cause.NO_ACT),
    ("<speak>hello</speak><speak>bye</speak>", False, Cause.SEVERAL_ACTS),
    ("<vote>Nobody Known</vote>", False, Cause.ILLEGAL),
    ("<speak>“…”</speak>", False, Cause.PLACEHOLDER),
    ('{"act": "whisper", "target": "Beatrice", "text": "..."}', False, Cause.PLACEHOLDER),
    ("<speak>Hello.</speak><notes>...</notes>", False, Cause.PLACEHOLDER),
    (f"<speak>{ACTS['speak'].help}: I am the Sheriff</speak>", False, Cause.PLACEHOLDER),
    ('{"act": "speak", "text": ...}', False, Cause.PLACEHOLDER),
    ('{"act": "speak", "text": "text"}', False, Cause.PLACEHOLDER),
    # What is no number equals nothing, itself not either.
    ('{"act": NaN}', False, Cause.MALFORMED),
    ('{"act": "whisper", "target": NaN, "text": "psst"}', False, Cause.ILLEGAL),
    ("<speak>... so it was you.</speak>", False, None),
]


def test_reply_that_was_cut_off_is_told_so_and_apart_from_a_malformed_one() -> None:
    for text, is_cut, cause in CUT:
        reading = reading_of(day(), text, is_cut=is_cut)
        assert (reading.cause if isinstance(reading, Problem) else None) is cause, text
        if isinstance(reading, Problem):
            assert ("token limit" in reading.reason) is is_cut, text


def test_advertised_tool_request_parses_to_its_tool() -> None:
    for name, tool in TOOLS.items():
        reading = reading_of(day(), tool.example())
        assert isinstance(reading, ToolRequest)
        assert reading.name == name


UNUSABLE: tuple[object, ...] = (
    *('<speak>a</speak><whisper to="Beatrice">b</whisper>', "<thinking>I might <speak>hello</speak>"),
    *("<thinking>hello", "<speak>hello", "<will>hello", "<speak></speak>", "<speak/>", "<whisper>psst</whisper>"),
    *('<whisper to="Nobody">psst</whisper>', '<whisper to="Abel">psst</whisper>', '<whisper to="Beatrice"></whisper>'),
    *("<vote>Beatrice</vote>", "<heal>Beatrice</heal>", '<speak channel="mafia">now?</speak>'),
    *(f"<speak>{'x' * (SPEECH_CHARS_MAX + 1)}</speak>", f"<wait/><will>{'x' * (WILL_CHARS_MAX + 1)}</will>"),
)
UNUSABLE_JSON: tuple[object, ...] = (
    *('{"act": "speak", "text": "hello', '{"act": "wait"}\n{"act": "speak", "text": "hello"}'),
    *('{"act": "wait", "act": "speak"}', '{"act":' * 50_000, "{}", {"act": "notes", "notes": "x"}),
    *({"act": "<|im_end|>"}, {"act": "wait", "target": "Beatrice"}, {"act": "speak", "text": ["hello", "bye"]}),
    *({"act": "speak", "text": {"to": "all"}}, {"act": "speak", "text": ""}, {"act": "vote", "target": "Beatrice"}),
    *({"act": "whisper", "target": "Abel", "text": "x"}, {"act": "speak", "text": "x" * (SPEECH_CHARS_MAX + 1)}),
)


def test_problem_says_what_was_wrong_and_what_is_wanted(snapshot: SnapshotAssertion) -> None:
    assert {str(text)[:60]: reason(day(), text) for text in UNUSABLE} == snapshot
    assert {str(reply)[:60]: reason(day(), reply).partition(": ")[0] for reply in UNUSABLE_JSON} == snapshot
    longest = f"<will>{'w' * WILL_CHARS_MAX}</will><speak>{'x' * SPEECH_CHARS_MAX}</speak>"
    assert isinstance(reading_of(day(), longest), Chosen)


def test_ballots_and_channels_are_recognised_in_any_case() -> None:
    judging, chatting, framer = state_in(Phase.JUDGEMENT, accused=3), state_in(Phase.NIGHT_CHAT), ELEVEN.index("framer")

    assert reading_of(judging, "<ballot>Guilty</ballot>") == Chosen(act=Act(seat=0, verb="ballot", choice="guilty"))
    assert ": guilty, innocent, abstain" in reason(judging, "<ballot>lynch</ballot>")
    reading = reading_of(chatting, '<speak channel=" Mafia ">hm</speak>', seat=framer)
    assert reading == Chosen(act=Act(seat=framer, verb="speak", text="hm", choice="mafia"))


def check_legal(state: GameState, reading: Reading) -> None:
    """What is read as acts can be done."""
    if isinstance(reading, Chosen):
        for act in (reading.act, *reading.side_acts):
            check(state, act)
        if reading.speech is not None:
            check_beside(state, reading.speech)


def test_every_text_is_read_as_something_legal_or_a_problem() -> None:
    """Random texts and mutated replies: nothing raises, and what is read as an act can be done."""
    chance = Random(3)
    names = ("Beatrice", "Abel", "Nobody", "")
    pieces = [spec.example(target=name).replace(BLANK, "words") for spec in ACTS.values() for name in names]
    pieces += [tool.example() for tool in TOOLS.values()]
    pieces += [*'<>/"=\x00\ud800\u202e', " to=", "<ſpeak>x</ſpeak>", "𝐯𝐨𝐭𝐞"]
    pieces += ["<thinking>", "</thinking>", "<thinking/>", "<think />"]
    counts = dict.fromkeys((Chosen, Problem, ToolRequest), 0)
    for number in range(TEXTS):
        text = "".join(chance.choice(pieces) for _ in range(chance.randint(0, 4)))
        for _ in range(chance.randint(0, 3)):
            place = chance.randint(0, len(text))
            text = text[:place] + chance.choice(["", "<", ">", chr(chance.randrange(0x3000))]) + text[place + 1 :]
        state = (day(), state_in(Phase.VOTING))[number % 2]
        reading = reading_of(state, text)
        counts[type(reading)] += 1
        check_legal(state, reading)

    assert min(counts.values()) > TEXTS // 80


# JSON: what the schema allows is read without a correction, and says what the markup says.


def checker(prompt: Prompt) -> jsonschema.Draft202012Validator:
    assert prompt.schema is not None
    jsonschema.Draft202012Validator.check_schema(dict(prompt.schema))
    return jsonschema.Draft202012Validator(dict(prompt.schema))


def sample(variant: Any, chance: Random, text: str) -> dict[str, Any]:
    """A random object the variant allows, with `text` wherever it is free."""
    chosen: dict[str, Any] = {}
    for key, schema in variant["properties"].items():
        if key not in variant["required"] and chance.random() < 0.5:
            continue
        if "const" in schema:
            chosen[key] = schema["const"]
        elif "enum" in schema:
            chosen[key] = chance.choice(schema["enum"])
        else:
            chosen[key] = text[: schema.get("maxLength", SPEECH_CHARS_MAX)]
    return chosen


def seat_of(game: Game, turn: Turn) -> int:
    return next(player.seat for player in game.state.players if player.name == turn.agent)


@pytest.mark.ci
def test_every_reply_the_schema_allows_is_read_without_a_correction() -> None:
    chance, kinds = Random(7), dict.fromkeys((Chosen, ToolRequest), 0)
    verbs: set[str] = set()
    texts = ["hello", " ", "\n", "</speak>", "<vote>Abel</vote>", "\ud800", "x" * SPEECH_CHARS_MAX, '{"act": "wait"}']
    rare = ("transporter", "witch", "retributionist", "forger", "mayor", "godfather", "sheriff", "veteran", "arsonist")

    def watch(game: Game, turn: Turn, prompt: Prompt) -> None:
        assert isinstance(prompt.view, SeatView)
        # Each act where it is first on offer, and a few more turns.
        offered = {choice.verb for choice in prompt.view.choices if not ACTS[choice.verb].is_side_act}
        if offered <= verbs and chance.random() < 0.97:
            return
        validator = checker(prompt)
        for variant in variants(prompt):
            reply = sample(variant, chance, chance.choice(texts))
            validator.validate(reply)
            reading = reading_of(game.state, json.dumps(reply), seat=seat_of(game, turn))
            assert not isinstance(reading, Problem), f"{reply}: {reading}"
            kinds[type(reading)] += 1
            verbs.add(str(reply.get("act")))

    for seed, (roles, policy) in enumerate(product((ELEVEN, rare), (POLICIES["heuristic"], POLICIES["random"]))):
        play(open_game(roles, seed=seed, options=Options(max_days=4), asking=JSON), policy, seed=seed, watch=watch)
    assert min(kinds.values()) > REPLIES
    assert {"speak", "whisper", "vote", "ballot", "wait", "swap"} < verbs


OWN_WORDS = st.text(min_size=1, max_size=200).filter(
    lambda text: text.strip() not in ("text", *ACTS) and not is_placeholder(text)
)


@settings(max_examples=100)
@given(OWN_WORDS, st.sampled_from(["speak", "whisper"]), OWN_WORDS)
def test_any_text_in_a_json_reply_is_the_text_that_is_said(text: str, verb: str, notes: str) -> None:
    reply = {"thinking": notes, "act": verb, "text": text, "notes": notes}
    targets = () if verb == "speak" else (1,)
    reply |= {} if verb == "speak" else {"target": "Beatrice"}

    assert reading_of(state_in(Phase.GREETING), json.dumps(reply)) == Chosen(
        act=Act(seat=0, verb=verb, targets=targets, text=text), side_acts=(Act(seat=0, verb="notes", text=notes),)
    )


def test_schema_allows_what_is_offered_and_nothing_else() -> None:
    game = open_game(ELEVEN, asking=JSON)
    prompt = game.prompt(game.turns()[0])
    assert isinstance(prompt.view, SeatView)
    acts = [variant["properties"]["act"] for variant in variants(prompt) if "act" in variant["required"]]
    offered = {choice.verb for choice in prompt.view.choices if not ACTS[choice.verb].is_side_act}

    assert {act["const"] for act in acts} == offered
    assert all(len(act) == 1 for act in acts)
    validator = checker(prompt)
    whisper = {"act": "whisper", "target": "Nobody", "text": "x"}
    for bad in ({"act": "kill", "target": "Abel"}, whisper, {"act": "speak"}, {"act": "wait", "text": "x"}):
        assert not validator.is_valid(bad)


def test_schema_offers_no_tool_once_the_limit_is_reached() -> None:
    game = open_game(ELEVEN, asking=JSON)
    for _ in range(TOOL_CALLS_PER_TURN_MAX):
        tools = [variant for variant in variants(game.prompt(game.turns()[0])) if "tool" in str(variant["required"])]
        assert len(tools) == len(TOOLS)
        assert answer(game, '{"tool": "get_lobby"}').kind is ReceiptKind.OBSERVATION

    assert "tool" not in str(dict(game.prompt(game.turns()[0]).schema or {}))


def test_choices_list_every_reply_where_all_acts_can_be_listed_and_the_schema_is_that_of_the_moment() -> None:
    listed: list[bool] = []
    kept: list[tuple[Prompt, JsonObject]] = []

    def watch(game: Game, turn: Turn, prompt: Prompt) -> None:
        kept.append((prompt, dict(game.prompt(turn).schema or {})))
        listed.append(prompt.choices is not None)
        assert prompt.choices is None or game.state.phase in (Phase.JUDGEMENT, Phase.NIGHT, Phase.DISCUSSION)
        for text in prompt.choices or ():
            assert isinstance(reading_of(game.state, text, seat=seat_of(game, turn)), Chosen)

    play(open_game(ELEVEN, options=Options(max_days=4), asking=JSON), clumsy, watch=watch)
    assert min(listed.count(is_listed) for is_listed in (True, False)) > 20
    assert all(prompt.schema == schema for prompt, schema in kept)


class Scene(NamedTuple):
    """A moment of a game, and the seat that answers."""

    state: GameState
    seat: int


def corpus() -> Iterator[tuple[str, str, str]]:
    """The scene of each reply of the corpus, what it has to be read as, and its text."""
    for file in sorted(CORPUS.glob("*.yaml")):
        for scene, verdicts in yaml.safe_load(file.read_text(encoding="utf-8")).items():
            for verdict, replies in verdicts.items():
                if verdict == "asked":
                    for cause, texts in replies.items():
                        yield from ((scene, f"asked {cause}", text) for text in texts)
                else:
                    yield from ((scene, verdict, text) for text in replies)


@cache
def scenes() -> dict[str, Scene]:
    def at(phase: Phase, who: str, roles: tuple[str, ...] = ELEVEN, *, day: int = 2, **options: str) -> Scene:
        table = Table(roles, options=Options(**options))  # type: ignore[arg-type]
        if phase in (Phase.DEFENCE, Phase.JUDGEMENT):
            table.accuse("godfather")
        table.go_to(phase, day=day)
        return Scene(table.state, table.seat(who))

    revoting = Table(ELEVEN)
    revoting.go_to(Phase.VOTING)
    revoting.act("sheriff", "vote", "investigator")
    revoting.end_round()
    return {
        "voting": at(Phase.VOTING, "sheriff"),
        "revote": Scene(revoting.state, 0),
        "many": at(Phase.VOTING, "sheriff", MANY),
        "greeting": at(Phase.GREETING, "sheriff", day=1),
        "discussion": at(Phase.DISCUSSION, "sheriff"),
        "jailor": at(Phase.DISCUSSION, "jailor"),
        "bidding": at(Phase.BIDDING, "sheriff", discussion_mode="bidding"),
        "defence": at(Phase.DEFENCE, "godfather"),
        "judgement": at(Phase.JUDGEMENT, "sheriff"),
        "sheriff": at(Phase.NIGHT, "sheriff"),
        "doctor": at(Phase.NIGHT, "doctor"),
        "mafia": at(Phase.NIGHT_CHAT, "godfather"),
        **{role: at(Phase.NIGHT, role, RARE) for role in ("transporter", "forger", "veteran")},
    }


def read_in(scene: str, text: str, *, is_cut: bool = False) -> Reading:
    state, seat = scenes()[scene]
    return reading_of(state, text, seat=seat, is_cut=is_cut)


def shown(reading: Reading, state: GameState) -> str:
    """A reading in the words of the corpus."""
    match reading:
        case Problem(cause):
            return f"asked {cause}"
        case ToolRequest():
            return f"tool {reading.name}({reading.argument})"
        case Chosen():
            acts = [reading.act, *([reading.speech] if reading.speech else []), *reading.side_acts]
            return " + ".join(_shown(act, state) for act in acts)


def _shown(act: Act, state: GameState) -> str:
    where = [f"in {act.choice}"] if act.verb == "speak" and act.choice else [act.choice] if act.choice else []
    head = " ".join([act.verb, *(state.players[seat].name for seat in act.targets), *where])
    return f"{head}: {act.text}" if act.text else head


def test_every_reply_of_the_corpus_is_read_as_meant_or_asked_again() -> None:
    wrong = []
    for scene, verdict, text in corpus():
        reading = read_in(scene, text)
        found = shown(reading, scenes()[scene].state)
        if found != verdict:
            why = f" ({reading.reason})" if isinstance(reading, Problem) else ""
            wrong.append(f"{scene}: {text!r}\n    is {verdict!r}, was {found!r}{why}")
    texts = [(scene, text) for scene, _, text in corpus()]

    assert not wrong, f"{len(wrong)} replies:\n" + "\n".join(wrong)
    assert len(set(texts)) == len(texts) >= 480


def test_no_misspelling_of_one_name_is_read_as_another() -> None:
    """Every slip of one letter in every name, at a table of nineteen: its player, or asked again."""
    asked = 0
    for player in scenes()["many"].state.players[1:]:
        for slip in _slips(player.name):
            reading = read_in("many", f"<vote>{slip}</vote>")
            meant = Chosen(act=Act(seat=0, verb="vote", targets=(player.seat,)))
            assert isinstance(reading, Problem) or reading == meant
            asked += isinstance(reading, Problem)
    assert asked, "some slips are as near to another name"


def _slips(name: str) -> Iterator[str]:
    for place in range(len(name)):
        yield name[:place] + name[place + 1 :]
        yield from (name[:place] + letter + name[place + 1 :] for letter in "aeilmnsx")
        yield from (name[:place] + letter + name[place:] for letter in "aeilmnsx")


def test_correction_names_those_whom_a_name_may_mean() -> None:
    for text, expected in (
        ("<vote>Slias</vote>", "which may be Elias or Silas; write the name in full"),
        ("<vote>Caleb and Hester</vote>", "names Caleb and Hester; name one player"),
        ("<vote>Tabitha</vote>", "who is not a player; name one of: Beatrice, Caleb,"),
    ):
        assert expected in reason(scenes()["many"].state, text)


def test_reply_that_was_cut_off_is_not_mended() -> None:
    for text in ('{"act": "vote", "target": "Caleb"', "<vote>Caleb", '<vote target="Caleb">', "Vote: Caleb"):
        assert isinstance(read_in("voting", text), Chosen)
        assert isinstance(read_in("voting", text, is_cut=True), Problem)


@pytest.mark.ci
def test_any_damage_to_a_reply_of_the_corpus_is_read_as_something_legal_or_a_problem() -> None:
    chance, counts = Random(11), dict.fromkeys((Chosen, Problem, ToolRequest), 0)
    pieces = [text for _, _, text in corpus()]
    junk = ["", *"<>{}\"'[]\\:,\n", "[[[[", '"spec": 1,', *"\ud800\u0130𝐯"]
    for scene, _, text in corpus():
        for _ in range(DAMAGES):
            damaged = text + chance.choice(["", "\n", " "]) + chance.choice(["", chance.choice(pieces)])
            for _ in range(chance.randint(1, 3)):
                place = chance.randint(0, len(damaged))
                damaged = damaged[:place] + chance.choice(junk) + damaged[place + chance.randint(0, 2) :]
            reading = read_in(scene, damaged)
            counts[type(reading)] += 1
            check_legal(scenes()[scene].state, reading)
    assert min(counts.values()) > DAMAGES
