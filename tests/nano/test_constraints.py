"""Replies that must be one of a list or follow a schema, from a model that would say anything."""

from __future__ import annotations

import json

import pytest

from mac_runner.nano import ConstraintError, EngineConfig, InferenceEngine, InvalidRequestError, SamplingParams
from tests.nano.tiny_models import ModelMaker

pytest.importorskip("llguidance")

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"vote": {"enum": ["Ann", "Bob"]}, "sure": {"type": "boolean"}},
        "required": ["vote", "sure"],
        "additionalProperties": False,
    }
)


@pytest.fixture
def engine(model: ModelMaker) -> InferenceEngine:
    return InferenceEngine(EngineConfig(model_path=str(model("qwen2")), num_threads=1))


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


@pytest.mark.parametrize("schema", ["{", '{"type": "nothing"}', '{"$ref": "#/$defs/missing"}'])
def test_schema_that_cannot_be_followed_is_refused(engine: InferenceEngine, schema: str) -> None:
    with pytest.raises(ConstraintError):
        engine.add_request("x", SamplingParams(json_schema=schema))
    assert not engine.has_pending()


def test_choices_and_schema_cannot_be_had_together() -> None:
    with pytest.raises(InvalidRequestError):
        SamplingParams(choices=("a",), json_schema="{}")
