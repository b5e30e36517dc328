"""From logits to tokens.

A request draws one uniform number for each token, and takes the first token whose cumulative probability exceeds it. So
a token depends only on the request's own numbers and logits. A draw needs no noise for the whole vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from mac_runner.nano.config import SamplingParams
from mac_runner.nano.cpu.vectors import argmax_and_logsumexp
from mac_runner.nano.sequence import TokenLogprob

_LIKELY = 1024
"""This many of the likeliest tokens nearly always hold what `top_p` keeps; otherwise all are sorted."""
_LIMITS = torch.finfo(torch.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """How the token of one row of logits is chosen. `uniform` is in [0, 1), `generated` counts the reply's tokens."""

    params: SamplingParams
    uniform: float = 0.0
    prompt: Sequence[int] = ()
    generated: Mapping[int, int] = field(default_factory=dict)
    allowed: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A chosen token. Where logits, original or adjusted, are not finite, `logprob` is not finite either."""

    token_id: int
    logprob: float
    top: tuple[TokenLogprob, ...] = ()


def sample_with_logprobs(
    logits: torch.Tensor, temperatures: torch.Tensor, uniforms: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """A token for each row of `logits` [rows, vocabulary], and its log-probability at temperature 1.

    A row with temperature 0 takes its likeliest token. Where logits hold NaN or plus infinity, the log-probability is
    not finite either. `uniforms` [rows] are in [0, 1); without them torch's own generator draws them.
    """
    logits = logits.float()
    if uniforms is None:
        uniforms = torch.rand(len(logits), dtype=torch.float64)
    is_greedy = temperatures == 0
    scaled = _scaled(logits, temperatures.masked_fill(is_greedy, 1.0))
    tokens = torch.where(is_greedy, logits.argmax(-1), _draw(scaled, uniforms))
    logprobs = logits.gather(-1, tokens.unsqueeze(-1)).squeeze(-1) - logits.logsumexp(-1)
    return tokens, logprobs


def choose(logits: torch.Tensor, rows: Sequence[Row]) -> list[Choice]:
    """The next token of each row of `logits` [rows, vocabulary]. Log-probabilities are of the logits as they are."""
    adjusted = _adjust(logits, rows)
    temperatures = torch.tensor([row.params.temperature for row in rows], device=logits.device)
    uniforms = torch.tensor([row.uniform for row in rows], dtype=torch.float64, device=logits.device)
    tokens, normalizers = argmax_and_logsumexp(logits)
    if adjusted is not logits:
        tokens = adjusted.argmax(-1)
        # The largest is NaN if any is, and minus infinity if no token is allowed.
        is_sound = adjusted.gather(-1, tokens.unsqueeze(-1)).squeeze(-1).isfinite()
        normalizers = normalizers.masked_fill(~is_sound, math.nan)
    # Rows without filters are drawn together, the others one by one.
    plain = [i for i, row in enumerate(rows) if not row.params.is_greedy and not row.params.has_filters]
    if plain:
        tokens[plain] = _draw(_scaled(adjusted[plain], temperatures[plain]), uniforms[plain])
    for index, row in enumerate(rows):
        if row.params.has_filters and not row.params.is_greedy:
            tokens[index] = _draw_filtered(_scaled(adjusted[index], temperatures[index]), row)
    logprobs = logits.gather(-1, tokens.unsqueeze(-1)).squeeze(-1) - normalizers
    return [
        Choice(token_id=token_id, logprob=logprob, top=_top(logits[index], normalizers[index], row.params.top_logprobs))
        for index, (row, token_id, logprob) in enumerate(zip(rows, tokens.tolist(), logprobs.tolist(), strict=True))
    ]


def _scaled(logits: torch.Tensor, temperatures: torch.Tensor) -> torch.Tensor:
    """Logits [..., vocabulary] over temperatures [...] above 0; the largest of each row is 0.

    So the likeliest stays finite however small the temperature is; the others may become minus infinity.
    """
    usable = temperatures.float().clamp(min=_LIMITS.tiny, max=_LIMITS.max)
    return (logits - logits.amax(-1, keepdim=True)) / usable.unsqueeze(-1)


def _draw(logits: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Each row's first token whose cumulative probability exceeds the row's number.

    The sum is in float64. There a large vocabulary does not lose unlikely tokens, and a number below 1 times the sum is
    below the sum, so the token found is a possible one.
    """
    cumulative = torch.softmax(logits, -1).cumsum(-1, dtype=torch.float64)
    below = uniforms.to(cumulative) * cumulative[..., -1]
    # From logits that are not finite nothing can be drawn; any token will do, because the request will fail.
    return torch.searchsorted(cumulative, below.unsqueeze(-1), right=True).squeeze(-1).clamp(max=logits.shape[-1] - 1)


def _draw_filtered(scaled: torch.Tensor, row: Row) -> torch.Tensor:
    """Draw from the tokens that `min_p`, `top_k` and `top_p` keep; the likeliest is always kept."""
    params = row.params
    # `top_p` is a share of the mass of all tokens, unless `top_k` or `min_p` has cut some off.
    mass = scaled.logsumexp(-1) if params.top_k == 0 and params.min_p == 0.0 else None
    values, ids = scaled.topk(min(params.top_k or _LIKELY, len(scaled)))
    if params.top_k == 0 and not _holds_all(values, mass, params):
        values, ids = scaled.sort(descending=True)
    if params.min_p > 0.0:
        values = values[values >= values[0] + math.log(params.min_p)]
    probabilities = (values - (values.logsumexp(-1) if mass is None else mass)).double().exp()
    is_kept = probabilities.cumsum(-1) - probabilities < params.top_p
    is_kept[0] = True
    uniform = torch.tensor(row.uniform, dtype=torch.float64, device=scaled.device)
    return ids[_draw(values[is_kept], uniform)]


def _holds_all(values: torch.Tensor, mass: torch.Tensor | None, params: SamplingParams) -> bool:
    """Whether no other token than these, the likeliest, could be kept."""
    if params.min_p > 0.0:
        return bool(values[-1] < values[0] + math.log(params.min_p))
    return bool((values - mass).double().exp().sum() >= params.top_p)


def _adjust(logits: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
    """A copy of the logits with penalties and constraints; the logits themselves if there are none."""
    changed = [i for i, row in enumerate(rows) if row.params.has_penalties or row.allowed is not None]
    if not changed:
        return logits
    adjusted = logits.clone()
    for index in changed:
        row = rows[index]
        if row.params.has_penalties:
            _penalize(adjusted[index], row)
        if row.allowed is not None:
            adjusted[index].masked_fill_(~row.allowed.to(logits.device), float("-inf"))
    return adjusted


def _penalize(logits: torch.Tensor, row: Row) -> None:
    """Make tokens less likely, in place: by a factor if they occurred, by a sum if the completion has them."""
    params = row.params
    if params.repetition_penalty != 1.0 and (seen := sorted({*row.prompt, *row.generated})):
        ids = torch.tensor(seen, device=logits.device)
        found = logits[ids]
        factor = params.repetition_penalty
        logits[ids] = torch.where(found > 0, found / factor, found * factor)
    if row.generated:
        ids = torch.tensor(list(row.generated), device=logits.device)
        counts = torch.tensor(list(row.generated.values()), dtype=logits.dtype, device=logits.device)
        logits[ids] -= params.presence_penalty + params.frequency_penalty * counts


def _top(logits: torch.Tensor, normalizer: torch.Tensor, count: int) -> tuple[TokenLogprob, ...]:
    if count == 0:
        return ()
    values, ids = logits.topk(min(count, logits.shape[-1]))
    return tuple(map(TokenLogprob, ids.tolist(), (values - normalizer).tolist()))
