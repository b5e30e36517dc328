"""Operations on rows: as torch does them, and each row by itself."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from mac_runner.nano.testing import argmax_and_logsumexp, rms_norm


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(shape[0])) * 5


@pytest.mark.parametrize("dim", [1, 15, 16, 64, 96, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norm_is_that_of_torch(dtype: torch.dtype, dim: int) -> None:
    rows, weights = random(7, dim).to(dtype), random(dim).to(dtype)

    expected = functional.rms_norm(rows.float(), (dim,), weights.float(), 1e-6)

    assert rms_norm(rows, weights, 1e-6).dtype == dtype
    assert rms_norm(rows, weights, 1e-6).float().sub(expected).abs().max() <= (
        1e-5 if dtype == torch.float32 else expected.abs().max() / 256
    )
    assert torch.equal(rms_norm(rows[2:4], weights, 1e-6), rms_norm(rows, weights, 1e-6)[2:4])


@pytest.mark.parametrize("width", [1, 2, 15, 16, 17, 272, 1000])
def test_summary_is_that_of_torch(width: int) -> None:
    logits = random(5, width)

    places, sums = argmax_and_logsumexp(logits)

    assert torch.equal(places, logits.argmax(-1))
    assert sums.sub(logits.logsumexp(-1)).abs().max() < 1e-5
    assert torch.equal(argmax_and_logsumexp(logits[3:])[1], sums[3:])


def test_first_of_equal_numbers_is_taken() -> None:
    logits = torch.zeros(2, 40)
    logits[1, [7, 20, 39]] = 1.0

    assert argmax_and_logsumexp(logits)[0].tolist() == [0, 7]


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
@pytest.mark.parametrize("place", [0, 20, 39])
def test_sum_of_what_is_no_number_is_none(place: int, wrong: float) -> None:
    logits = torch.zeros(2, 40)
    logits[1, place] = wrong

    _, sums = argmax_and_logsumexp(logits)

    assert sums[0].isfinite()
    assert not sums[1].isfinite()


def test_impossible_tokens_count_for_nothing() -> None:
    logits = torch.full((1, 40), float("-inf"))
    logits[0, 33] = 2.0

    places, sums = argmax_and_logsumexp(logits)

    assert (places.tolist(), sums.tolist()) == ([33], [2.0])
