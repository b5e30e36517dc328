"""How a token is chosen, and what may be asked of its choice."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from mac_runner.nano import InvalidRequestError, SamplingParams, sample_with_logprobs
from mac_runner.nano.testing import FACTOR_MAX, PENALTY_MAX, Row, choose

LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0, 3.0])
DRAWS = 1_000


def row(uniform: float = 0.0, **settings: object) -> Row:
    return Row(params=SamplingParams(**settings), uniform=uniform)  # type: ignore[arg-type]


def drawn(logits: torch.Tensor, **settings: object) -> list[float]:
    """How often each token is drawn, with evenly spread numbers."""
    uniforms = [(index + 0.5) / DRAWS for index in range(DRAWS)]
    chosen = choose(logits.expand(DRAWS, -1), [row(uniform, **settings) for uniform in uniforms])
    return [sum(choice.token_id == token for choice in chosen) / DRAWS for token in range(len(logits))]


def test_greedy_takes_the_likeliest() -> None:
    choice = choose(LOGITS.unsqueeze(0), [row(temperature=0.0)])[0]

    assert choice.token_id == 4
    assert choice.logprob == pytest.approx(float(torch.log_softmax(LOGITS, -1)[4]), abs=1e-6)


def test_tokens_are_drawn_as_often_as_they_are_likely() -> None:
    for temperature in (0.3, 1.0, 4.0):
        expected = torch.softmax(LOGITS / temperature, -1).tolist()
        assert drawn(LOGITS, temperature=temperature) == pytest.approx(expected, abs=2 / DRAWS)
    two = torch.softmax(torch.tensor([2.0, -math.inf, -math.inf, -math.inf, 3.0]), -1).tolist()
    assert drawn(LOGITS, top_k=2) == pytest.approx(two, abs=2 / DRAWS)


def test_top_p_keeps_the_fewest_that_have_the_mass_and_min_p_what_is_likely_enough_beside_the_likeliest() -> None:
    """Probabilities are 0.636, 0.234, 0.086, 0.032, 0.012."""
    kept: tuple[tuple[dict[str, object], list[int]], ...] = (
        ({"top_p": 0.6}, [4]),
        ({"top_p": 0.65}, [0, 4]),
        ({"top_p": 0.9}, [0, 1, 4]),
        ({"min_p": 0.3}, [0, 4]),
        ({"min_p": 0.1}, [0, 1, 4]),
        # Of the two that top_k leaves the first has 0.73.
        ({"top_k": 2, "top_p": 0.7}, [4]),
    )
    for settings, tokens in kept:
        assert [token for token, share in enumerate(drawn(LOGITS, **settings)) if share > 0] == tokens, settings


def test_top_p_looks_beyond_the_likeliest_thousand_if_it_must() -> None:
    flat = torch.zeros(5_000)
    share = sum(
        choice.token_id >= 0 for choice in choose(flat.expand(3, -1), [row(u, top_p=0.9) for u in (0.0, 0.5, 1.0)])
    )
    kept = {choose(flat.unsqueeze(0), [row(index / 600, top_p=0.9)])[0].token_id for index in range(600)}

    assert share == 3
    assert len(kept) == 600


def test_largest_number_below_one_never_leads_past_the_possible_tokens() -> None:
    last = math.nextafter(1.0, 0.0)
    impossible_end = torch.tensor([[0.0, 1.0, -math.inf, -math.inf]])
    logits = torch.randn(300, 50, generator=torch.Generator().manual_seed(0))
    logits[:, 40:] = -math.inf

    assert choose(impossible_end, [row(last)])[0].token_id == 1
    assert choose(impossible_end, [row(last, top_k=3)])[0].token_id in (0, 1)
    assert max(choice.token_id for choice in choose(logits, [row(last)] * 300)) < 40


@pytest.mark.parametrize("settings", [{}, {"top_k": 3}, {"top_p": 0.8}, {"min_p": 0.05}, {"temperature": 0.0}])
def test_row_is_chosen_the_same_way_in_any_company(settings: dict[str, object]) -> None:
    logits = torch.randn(33, 500, generator=torch.Generator().manual_seed(0))
    ours = row(0.37, **settings)
    company = [row(index / 33, temperature=index % 3, top_k=index % 5) for index in range(33)]
    alone = choose(logits[7:8], [ours])[0]

    for place in (0, 7, 32):
        mixed = logits.clone()
        mixed[place] = logits[7]
        assert choose(mixed, [*company[:place], ours, *company[place + 1 :]])[place] == alone


def test_penalties_change_the_choice_and_not_the_logprobs() -> None:
    params = SamplingParams(temperature=0.0, repetition_penalty=2.0, presence_penalty=0.4, frequency_penalty=0.3)
    # 4 was in the prompt: 3 / 2. 0 was said twice: 2 / 2 - 0.4 - 2 x 0.3.
    choice = choose(LOGITS.unsqueeze(0), [Row(params=params, prompt=[4], generated={0: 2})])[0]

    assert choice.token_id == 4
    assert choice.logprob == pytest.approx(float(torch.log_softmax(LOGITS, -1)[4]), abs=1e-6)
    params = SamplingParams(temperature=0.0, presence_penalty=1.5)
    assert choose(LOGITS.unsqueeze(0), [Row(params=params, generated={4: 1})])[0].token_id == 0
    params = SamplingParams(temperature=0.0, repetition_penalty=10.0)
    assert choose(torch.tensor([[-1.0, -2.0]]), [Row(params=params, prompt=[0])])[0].token_id == 1


def test_given_logits_are_left_as_they_are() -> None:
    logits = LOGITS.repeat(2, 1)
    choose(logits, [Row(params=SamplingParams(presence_penalty=1.0), generated={1: 1}), row(top_k=1)])

    assert torch.equal(logits, LOGITS.repeat(2, 1))


def test_only_what_is_allowed_is_chosen() -> None:
    allowed = torch.tensor([False, True, True, False, False])
    greedy = Row(params=SamplingParams(temperature=0.0), allowed=allowed)
    sampled = Row(params=SamplingParams(top_p=0.9), uniform=0.99, allowed=allowed)

    assert [choice.token_id for choice in choose(LOGITS.repeat(2, 1), [greedy, sampled])] == [1, 2]


def test_likeliest_tokens_are_told_beside_the_chosen_one() -> None:
    choice = choose(LOGITS.unsqueeze(0), [row(0.3, top_logprobs=2)])[0]

    assert [token.token_id for token in choice.top] == [4, 0]
    assert choice.token_id == 1


SMALLEST = (1e-3, 1e-30, 1e-39, 1e-45, 1e-300)


@pytest.mark.parametrize("temperature", SMALLEST)
@pytest.mark.parametrize("settings", [{}, {"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.1}])
def test_smallest_temperatures_take_the_likeliest(temperature: float, settings: dict[str, object]) -> None:
    logits = torch.cat((LOGITS - 1e4, torch.tensor([-math.inf]))).unsqueeze(0)
    chosen = [choose(logits, [row(uniform, temperature=temperature, **settings)])[0] for uniform in (0.0, 0.5, 0.999)]

    assert [choice.token_id for choice in chosen] == [4, 4, 4]
    assert sample_with_logprobs(logits, torch.tensor([temperature]), torch.tensor([0.5]).double())[0].tolist() == [4]


def test_largest_temperature_draws_evenly_from_what_is_allowed() -> None:
    allowed = torch.tensor([True, False, True, False, False])
    rows = [
        Row(params=SamplingParams(temperature=1e300, top_p=top_p), uniform=uniform, allowed=allowed)
        for top_p in (1.0, 0.999)
        for uniform in (0.1, 0.9)
    ]

    assert [choice.token_id for choice in choose(LOGITS.repeat(4, 1), rows)] == [0, 2, 0, 2]


@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {}, {"top_k": 2}])
def test_penalties_that_lead_beyond_all_numbers_leave_no_logprob(settings: dict[str, object]) -> None:
    params = SamplingParams(repetition_penalty=1 / FACTOR_MAX, **settings)  # type: ignore[arg-type]
    logits = torch.tensor([[3e37, 1.0, 2e37], [3.0, 1.0, 2.0]])
    chosen = choose(logits, [Row(params=params, uniform=0.5, prompt=[0])] * 2)

    assert [math.isfinite(choice.logprob) for choice in chosen] == [False, True]


def test_where_nothing_may_be_said_or_logits_are_no_numbers_there_is_no_logprob() -> None:
    nothing = Row(params=SamplingParams(), allowed=torch.zeros(5, dtype=torch.bool))
    broken = torch.tensor([[math.nan, 1.0], [math.inf, 1.0]])

    assert math.isnan(choose(LOGITS.unsqueeze(0), [nothing])[0].logprob)
    assert not any(math.isfinite(choice.logprob) for choice in choose(broken, [row(0.5), row(0.5, temperature=0.0)]))


def test_penalties_at_their_bounds_leave_numbers() -> None:
    for factor, penalty in ((FACTOR_MAX, PENALTY_MAX), (1 / FACTOR_MAX, -PENALTY_MAX)):
        params = SamplingParams(
            repetition_penalty=factor, presence_penalty=penalty, frequency_penalty=penalty, temperature=1e-45
        )
        chosen = choose(LOGITS.unsqueeze(0) * 1e30, [Row(params=params, prompt=[0, 4], generated={4: 100_000})])[0]
        assert math.isfinite(chosen.logprob)


def test_sampling_is_a_function_of_its_own() -> None:
    logits = LOGITS.repeat(3, 1)
    tokens, logprobs = sample_with_logprobs(
        logits, torch.tensor([0.0, 1.0, 1.0]), torch.tensor([0.9, 0.0, 0.999]).double()
    )

    assert tokens.tolist() == [4, 0, 4]
    assert torch.allclose(logprobs, torch.log_softmax(LOGITS, -1)[tokens])
    assert sample_with_logprobs(logits.bfloat16(), torch.ones(3))[1].dtype == torch.float32


# What may be asked.


WRONG: tuple[dict[str, object], ...] = (
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
    {"choices": ("a",), "json_schema": "{}"},
    {"json_schema": 5},
    {"json_schema": {"enum": {1}}},
    {"json_schema": {"enum": b""}},
)


def test_setting_that_cannot_be_is_refused_by_name() -> None:
    for wrong in WRONG:
        with pytest.raises(InvalidRequestError, match=next(iter(wrong))):
            SamplingParams(**wrong)  # type: ignore[arg-type]
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
