"""What may be asked of a request, and what is refused by its name."""

from __future__ import annotations

import json

import numpy as np
import pytest

from mac_runner.nano import InvalidRequestError, SamplingParams


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"temperature": "hot"},
        {"max_tokens": 2.5},
        {"max_tokens": 0},
        {"max_tokens": True},
        {"top_k": 1.0},
        {"top_p": 0.0},
        {"top_p": None},
        {"min_p": 1.5},
        {"repetition_penalty": 1e-38},
        {"repetition_penalty": 1e38},
        {"presence_penalty": 1e38},
        {"frequency_penalty": float("-inf")},
        {"top_logprobs": 101},
        {"seed": 0.5},
        {"stop_token_ids": [[1]]},
        {"stop_token_ids": 5},
        {"stop_token_ids": ["a"]},
        {"stop": ("",)},
        {"stop": (1,)},
        {"choices": "yes"},
        {"choices": {"a": 1}},
        {"json_schema": 5},
        {"json_schema": {"enum": {1}}},
        {"json_schema": {"enum": b""}},
    ],
)
def test_setting_that_cannot_be_is_refused_by_name(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError, match=next(iter(wrong))):
        SamplingParams(**wrong)  # type: ignore[arg-type]


def test_stop_that_is_a_text_hears_that_a_tuple_is_wanted() -> None:
    with pytest.raises(InvalidRequestError, match=r"tuple .* 64 texts"):
        SamplingParams(stop="abc")  # type: ignore[arg-type]


def test_lists_and_dicts_are_held_as_what_can_be_hashed() -> None:
    given = {"stop": ["a"], "stop_token_ids": [1, 2], "choices": ["x", "y"]}
    params = SamplingParams(**given)  # type: ignore[arg-type]
    schema = {"type": "string"}

    assert (params.stop, params.stop_token_ids, params.choices) == (("a",), frozenset({1, 2}), ("x", "y"))
    assert hash(params) == hash(SamplingParams(stop=("a",), stop_token_ids=frozenset({1, 2}), choices=("x", "y")))
    assert SamplingParams(json_schema=schema).json_schema == json.dumps(schema)  # type: ignore[arg-type]


def test_numbers_of_numpy_are_numbers() -> None:
    params = SamplingParams(temperature=np.float32(0.5), max_tokens=np.int64(3))

    assert (params.temperature, params.max_tokens) == (0.5, 3)
