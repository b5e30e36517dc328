"""Replies that must be one of a list or follow a schema, from a model that would say anything."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Iterator
from typing import Any
from weakref import ref

import pytest
import torch

from mac_runner.nano import ConstraintError, InferenceEngine, QueueFullError, SamplingParams, Tokenizer, constraints
from mac_runner.nano.testing import (
    CHOICES_MAX,
    GRAMMARS_MAX,
    PLAIN_CHARS_MAX,
    Constraint,
    GrammarCompiler,
    knows_bounds,
    tried,
)
from tests.nano.crowds import alone
from tests.nano.tiny_models import EOS, VOCAB_SIZE, ModelMaker

pytest.importorskip("llguidance")

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"vote": {"enum": ["Ann", "Bob"]}, "sure": {"type": "boolean"}},
        "required": ["vote", "sure"],
        "additionalProperties": False,
    }
)

EXPLODING = json.dumps(
    {
        "anyOf": [
            {
                "type": "string",
                "pattern": f"^{''.join(f'[{chr(97 + i * j % 26)}-z]{{1,{50 + i}}}' for j in range(10))}$",
            }
            for i in range(60)
        ]
    }
)
"""Compiled at once, and too large some tokens later."""


@pytest.fixture
def engine(model: ModelMaker) -> Iterator[InferenceEngine]:
    with alone(model("qwen2")) as made:
        yield made


@pytest.fixture
def tokenizer(model: ModelMaker) -> Tokenizer:
    return Tokenizer(model("qwen2"))


@pytest.fixture
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer, frozenset({EOS}))


def begun(compiler: GrammarCompiler, **settings: object) -> Constraint:
    """The constraint of a new completion."""
    grammar = compiler.compile(SamplingParams(**settings))  # type: ignore[arg-type]
    assert grammar is not None
    return grammar.constraint()


def texts(engine: InferenceEngine, count: int = 8, **settings: object) -> list[str]:
    params = SamplingParams(max_tokens=120, **settings)  # type: ignore[arg-type]
    samples = engine.generate(["Who?"], params, num_samples_per_prompt=count)
    assert {sample.finish_reason for sample in samples} == {"stop"}
    return [sample.text or "" for sample in samples]


def test_choices_are_all_that_is_said(engine: InferenceEngine) -> None:
    choices = ("Ann", "Anna", 'say "no"\n', "naïve 世界", "back\\slash")
    said = texts(engine, 60, choices=choices, temperature=3.0)

    assert set(said) <= set(choices)
    assert len(set(said)) >= 3


def test_choices_are_followed_however_many_begin_alike(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    choices = tuple(f"the player in seat {seat:05}" for seat in range(CHOICES_MAX))
    constraint = begun(compiler, choices=choices)
    for token_id in tokenizer.encode(choices[-1]):
        assert constraint.allowed(VOCAB_SIZE)[token_id]
        constraint.accept(token_id)

    assert constraint.is_complete


def test_schema_is_followed(engine: InferenceEngine) -> None:
    for text in texts(engine, json_schema=SCHEMA, temperature=2.0):
        reply = json.loads(text)
        assert (set(reply), reply["vote"] in ("Ann", "Bob")) == ({"vote", "sure"}, True)


def test_constraint_with_stream_and_greedy_gives_the_same_text(engine: InferenceEngine) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=60, choices=("yes", "no"))
    engine.add_request("Well?", params, stream=True)
    shown, sample = "", None
    while engine.has_pending():
        for delta in engine.step_deltas():
            shown, sample = shown + delta.text, delta.sample or sample

    assert sample is not None
    assert shown == sample.text
    assert shown in ("yes", "no")


def test_schema_lets_json_be_written_in_every_usual_way(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    """As far as this release of llguidance can bound blanks."""
    ways: list[dict[str, Any]] = [{"separators": (",", ":")}, {"indent": 2}, {"indent": 4}, {"indent": "\t"}, {}]
    for written in ways if knows_bounds() else ways[:1]:
        constraint = begun(compiler, json_schema=SCHEMA)
        for token_id in tokenizer.encode(json.dumps({"vote": "Ann", "sure": True}, **written)):
            constraint.accept(token_id)

        assert constraint.allowed(VOCAB_SIZE)[EOS] or constraint.is_complete


def test_model_that_says_whitespace_wherever_it_may_comes_to_an_end(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    constraint, said = begun(compiler, json_schema=SCHEMA), list[int]()
    blanks = {token_id for letter in " \n\t\r" for token_id in tokenizer.encode(letter)}
    while not constraint.is_complete:
        may_say = constraint.allowed(VOCAB_SIZE).nonzero().flatten().tolist()
        said.append(min(may_say, key=lambda token_id: token_id not in blanks))
        constraint.accept(said[-1])
        assert len(said) < 400

    text = tokenizer.decode(said)
    assert set(json.loads(text)) == {"vote", "sure"}
    assert max((len(blank) for blank in re.findall(r"\s+", text)), default=0) <= 22


def test_schema_may_bring_its_own_whitespace(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    tabbed = json.dumps({**json.loads(SCHEMA), "x-guidance": {"whitespace_pattern": "\t"}})
    constraint = begun(compiler, json_schema=tabbed)
    constraint.accept(tokenizer.encode("{")[0])
    allowed = constraint.allowed(VOCAB_SIZE)

    assert [bool(allowed[tokenizer.encode(blank)[0]]) for blank in "\t "] == [True, False]


def test_what_constrains_is_compiled_once(compiler: GrammarCompiler) -> None:
    params = SamplingParams(json_schema=SCHEMA)
    first = compiler.compile(params)

    assert compiler.compile(SamplingParams(json_schema=SCHEMA, max_tokens=5)) is first
    assert compiler.compile(SamplingParams(json_schema=json.loads(SCHEMA))) is first
    assert compiler.compile(SamplingParams(choices=("a",))) is not compiler.compile(SamplingParams(choices=("b",)))
    assert compiler.compile(SamplingParams()) is None


def test_only_the_last_used_grammars_are_kept(compiler: GrammarCompiler) -> None:
    kept, forgotten = (SamplingParams(choices=(name,)) for name in ("kept", "forgotten"))
    before = compiler.compile(kept), compiler.compile(forgotten)
    for index in range(GRAMMARS_MAX - 1):
        compiler.compile(SamplingParams(choices=(f"{index}",)))
        compiler.compile(kept)

    assert compiler.compile(kept) is before[0]
    assert compiler.compile(forgotten) is not before[1]


def test_completions_of_one_grammar_do_not_see_each_other(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    one, other = (begun(compiler, choices=("yes", "no")) for _ in range(2))
    at_first = other.allowed(VOCAB_SIZE)
    for token_id in tokenizer.encode("yes"):
        one.accept(token_id)

    assert (one.is_complete, other.is_complete) == (True, False)
    assert torch.equal(other.allowed(VOCAB_SIZE), at_first)
    assert torch.equal(begun(compiler, choices=("yes", "no")).allowed(VOCAB_SIZE), at_first)


def test_schema_that_cannot_be_followed_is_refused(engine: InferenceEngine) -> None:
    for schema in (
        "{",
        '{"type": "nothing"}',
        '{"$ref": "#/$defs/missing"}',
        '{"items": {"const": 1e999}}',
        *garbage(),
    ):
        with pytest.raises(ConstraintError):
            engine.add_request("x", SamplingParams(json_schema=schema))
    assert not engine.has_pending()


def garbage() -> Iterator[str]:
    """What no parser should stumble over, and no schema is."""
    dice = random.Random(5)
    yield from ("[]", "3", "null", '"', "\ud800", "1" * 5000, '{"a":' * 5000)
    for depth in (200, 1000, 100_000):
        yield "[" * depth
        yield "[" * depth + "]" * depth
        yield "".join(dice.choice(("[", '{"a":', '{"items":', '{"anyOf":[')) for _ in range(depth))


def names(dice: random.Random, number: int) -> dict[str, Any]:
    return {f"{dice.choice('abc')}{index}": {} for index in range(number)}


def hostile(dice: random.Random) -> dict[str, Any]:
    """A short text that asks for much."""
    huge = 10 ** dice.randint(5, 12)
    return dice.choice(
        (
            {"type": "array", dice.choice(("minItems", "maxItems")): huge},
            {"anyOf": [{"type": "string"}, {"items": {"type": "array", "minItems": huge}}]},
            {"type": "integer", "multipleOf": dice.randint(10**6, 10**7)},
            {"type": "object", "additionalProperties": False, "minProperties": 1, "properties": names(dice, 3000)},
            {"allOf": [{"type": "array", "maxItems": huge}, {"minItems": 3}]},
            {
                "type": "object",
                "properties": {"a": {"prefixItems": [{"$ref": "#/$defs/b"}]}},
                "$defs": {"b": {"maxItems": huge}},
            },
        )
    )


async def compiled(compiler: GrammarCompiler, params: SamplingParams) -> None:
    """As an engine does it."""
    trial = compiler.trial(params)
    compiler.compile(params, 0 if trial is None else await tried(trial))


async def test_schema_takes_no_more_than_its_budget_whatever_it_asks_for(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constraints, "COMPILE_S_MAX", 1)
    dice = random.Random(11)
    for schema in [hostile(dice) for _ in range(12)]:
        params, began_s = SamplingParams(json_schema=json.dumps(schema)), time.process_time()
        with pytest.raises(ConstraintError, match=r"at most 10000|takes more than|cannot be followed"):
            await compiled(compiler, params)
        assert time.process_time() - began_s < 1, schema


async def test_schema_that_may_take_long_is_compiled_once_it_was_tried(compiler: GrammarCompiler) -> None:
    params = SamplingParams(json_schema='{"type": "array", "maxItems": 5000, "items": {"type": "string"}}')
    trial = compiler.trial(params)
    assert trial is not None

    compiler.compile(params, await tried(trial))

    assert compiler.trial(params) is None
    with pytest.raises(ConstraintError, match="cannot be followed"):
        await tried({**trial, "grammar": "start: missing"})


def test_grammars_in_use_leave_room_for_others_only_within_the_bound(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constraints, "GRAMMARS_BYTES_MAX", 100 << 20)
    dice, held = random.Random(2), list[tuple[int, Constraint]]()
    for index in range(40):
        num_bytes = dice.randint(1, 60) << 20
        grammar = None  # The one before is held by its constraint alone.
        if sum(size for size, _ in held) + num_bytes <= 100 << 20:
            grammar = compiler.compile(SamplingParams(choices=(f"{index}",)), num_bytes)
            assert grammar is not None
            held.append((num_bytes, grammar.constraint()))
        else:
            with pytest.raises(QueueFullError):
                compiler.compile(SamplingParams(choices=(f"{index}",)), num_bytes)
            held.pop(dice.randrange(len(held)))


def follow(constraint: Constraint, num_letters: int, dice: random.Random) -> None:
    """Say a text of so many letters, without its end."""
    constraint.accept(ord('"') - ord("!"))
    for _ in range(num_letters):
        may_say = constraint.allowed(VOCAB_SIZE)
        constraint.accept(dice.choice([each for each in range(LETTER_A, LETTER_A + 26) if may_say[each]]))


LETTER_A = ord("a") - ord("!")
"""Its token."""
GROWING: list[dict[str, Any]] = [
    {"pattern": ".*a.{200}"},
    {"pattern": "(.*a.{30})|(.*b.{31})"},
    {"pattern": "|".join(f"(([a-z]{{{size}}})*_{size})" for size in (*range(2, 30), 101, 103))},
    {"maxLength": 2000},
]


def test_what_a_grammar_grows_by_while_it_is_followed_counts(compiler: GrammarCompiler) -> None:
    for schema in GROWING:
        grammar = compiler.compile(SamplingParams(json_schema=json.dumps({"type": "string", **schema})))
        assert grammar is not None
        sizes = [grammar.num_bytes]
        for _ in range(3):
            follow(grammar.constraint(), 20, random.Random(len(sizes)))
            sizes.append(grammar.num_bytes)
        assert 0 < sizes[0] < sizes[1] <= sizes[2] <= sizes[3], schema


def test_grammars_that_outgrow_the_bound_give_way_the_largest_first(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constraints, "GRAMMARS_BYTES_MAX", 2 << 20)
    steady = begun(compiler, json_schema=SCHEMA)
    greedy, other = (begun(compiler, json_schema={"type": "string", **GROWING[2]}) for _ in range(2))
    with pytest.raises(ConstraintError, match="outgrew the 2 MiB"):
        follow(greedy, 100, random.Random(4))

    with pytest.raises(ConstraintError, match="outgrew the 2 MiB"):
        other.allowed(VOCAB_SIZE)
    assert steady.allowed(VOCAB_SIZE).any()
    follow(begun(compiler, json_schema={"type": "string", **GROWING[2]}), 5, random.Random(4))


def plain(dice: random.Random, depth: int = 0) -> dict[str, Any]:
    """A schema as programs write them, without what can make a grammar explode."""
    kinds = ["enum", "const", "string", "integer", *(["object", "array", "anyOf"] if depth < 4 else [])]
    match dice.choice(kinds):
        case "enum":
            return {"enum": ["x" * dice.randint(1, 30) + str(index) for index in range(dice.randint(1, 40))]}
        case "const":
            return {"const": dice.choice([None, 7, "a", [1, {"b": 2}]])}
        case "string":
            return {"type": "string", "minLength": dice.randint(0, 9), "maxLength": dice.randint(9, 10**9)}
        case "object":
            fields = {name: plain(dice, depth + 1) for name in names(dice, dice.randint(0, 40))}
            return {
                "type": "object",
                "properties": fields,
                "required": [name for name in fields if dice.random() < 0.5],
            }
        case "array":
            bounds = {"minItems": dice.randint(0, 50), "maxItems": dice.randint(50, 100)}
            return {"type": "array", "items": plain(dice, depth + 1), **(bounds if dice.random() < 0.7 else {})}
        case "anyOf":
            return {"anyOf": [plain(dice, depth + 1) for _ in range(dice.randint(1, 8))]}
    return {"type": "integer"}


def test_plain_schema_of_any_shape_is_compiled_quickly_without_a_trial(compiler: GrammarCompiler) -> None:
    dice, slow, count = random.Random(3), list[str](), 0
    compiler.compile(SamplingParams(choices=("load", "the library")))
    while count < 60:
        text = json.dumps(plain(dice))
        if not 500 <= len(text) <= PLAIN_CHARS_MAX // 2:  # Closing adds to it.
            continue
        count += 1
        params, began_s = SamplingParams(json_schema=text), time.process_time()
        assert compiler.trial(params) is None
        compiler.compile(params)
        if time.process_time() - began_s > 0.5:
            slow.append(text)

    assert slow == []


def test_what_stands_beside_alternatives_is_tried_because_it_is_joined_with_each(compiler: GrammarCompiler) -> None:
    dice = random.Random(7)
    for _ in range(20):
        schema: dict[str, Any] = {"type": "integer"}
        for level in range(dice.randint(1, 20)):
            beside = dice.choice(({"properties": {"a": schema}}, {"items": schema}, {"required": ["b"]}))
            either = [{"properties": {"b": {}}}, {"properties": {"c": {}}}, {"$ref": "#"}]
            schema = {**beside, "anyOf": dice.sample(either, 2), "title": f"level {level}"}
        assert compiler.trial(SamplingParams(json_schema=json.dumps(schema))) is not None, schema
    for lone in ({"anyOf": [{"type": "null"}, {"$ref": "#"}], "default": None}, {"$ref": "#", "title": "x"}):
        assert compiler.trial(SamplingParams(json_schema=json.dumps(lone))) is None, lone


def follows(compiler: GrammarCompiler, tokenizer: Tokenizer, schema: object, text: str) -> bool:
    """Whether a schema lets a text be said, up to its end."""
    constraint = begun(compiler, json_schema=schema)
    for token_id in tokenizer.encode(text):
        if not constraint.allowed(VOCAB_SIZE)[token_id]:
            return False
        constraint.accept(token_id)
    return constraint.is_complete or bool(constraint.allowed(VOCAB_SIZE)[EOS])


def test_object_has_the_listed_keys_once_and_others_only_where_the_schema_says_so(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    dice, number = random.Random(9), {"type": "integer"}
    for _ in range(10):
        keys = dice.sample("abcdefgh", 3)
        inner: dict[str, Any] = {"properties": dict.fromkeys(keys, number), "required": keys[:1]}
        right = "{" + ",".join(f'"{key}":1' for key in keys) + "}"
        wrong = [right[:-1] + f',"{key}":1}}' for key in ("z", keys[0], keys[2])]
        places = (
            (inner, "{}"),
            ({"anyOf": [inner, {"type": "null"}]}, "{}"),
            ({"type": "array", "items": inner}, "[{}]"),
            ({"$ref": "#/$defs/x", "$defs": {"x": inner}}, "{}"),
            ({"type": "object", "properties": {"in": inner}, "required": ["in"]}, '{{"in":{}}}'),
        )
        for schema, place in places:
            said = place.replace("{}", "%s").replace("{{", "{").replace("}}", "}")
            assert follows(compiler, tokenizer, schema, said % right), schema
            assert not any(follows(compiler, tokenizer, schema, said % each) for each in wrong), schema
        for more in (True, number):
            assert follows(compiler, tokenizer, {**inner, "additionalProperties": more}, wrong[0])
        joined = {"allOf": [inner, {"properties": {"z": number}, "required": ["z"]}]}
        assert follows(compiler, tokenizer, joined, wrong[0])


def broken(constraint: Constraint) -> str:
    """Say one of what may be said, in turn, until the grammar breaks down: what it says then."""
    for index in range(400):
        try:
            may_say = constraint.allowed(VOCAB_SIZE)
        except ConstraintError as error:
            return str(error)
        may_say[EOS] = False
        ids = may_say.nonzero().flatten().tolist()
        constraint.accept(ids[index % len(ids)])
    raise AssertionError("it holds")


def test_grammar_that_breaks_down_on_the_way_says_so_for_good(compiler: GrammarCompiler) -> None:
    constraint = begun(compiler, json_schema=EXPLODING)

    assert "too many expressions" in broken(constraint)
    with pytest.raises(ConstraintError, match="too many expressions"):
        constraint.accept(0)
    with pytest.raises(ConstraintError, match="too many expressions"):
        _ = constraint.is_complete


def test_constraint_that_no_text_can_satisfy_says_so(compiler: GrammarCompiler) -> None:
    for schema in ({"$ref": "#"}, {"anyOf": [{"$ref": "#"}]}, {"allOf": [{"$ref": "#"}]}):
        with pytest.raises(ConstraintError, match="no text can satisfy it"):
            begun(compiler, json_schema=schema).allowed(VOCAB_SIZE)


def test_grammar_that_broke_down_is_compiled_anew_for_the_next_request(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    broken(begun(compiler, json_schema=EXPLODING))
    anew = begun(compiler, json_schema=EXPLODING)
    for token_id in tokenizer.encode('"zzz'):
        assert anew.allowed(VOCAB_SIZE)[token_id]
        anew.accept(token_id)

    params = SamplingParams(json_schema=EXPLODING)
    assert compiler.compile(params) is compiler.compile(params)


def test_grammar_that_broke_down_is_kept_no_longer_than_it_is_in_use(compiler: GrammarCompiler) -> None:
    grammar = compiler.compile(SamplingParams(json_schema=EXPLODING))
    assert grammar is not None
    broken(grammar.constraint())
    kept = ref(grammar)
    del grammar

    assert kept() is None


def test_token_that_does_not_follow_is_refused(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    with pytest.raises(ConstraintError):
        begun(compiler, choices=("yes", "no")).accept(tokenizer.encode("x")[0])
