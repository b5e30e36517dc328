"""The step model that is fitted to what requests took.

A request stays in an engine for as long as the steps that it takes part in:

    stay = a * steps + b * tokens decoded + c * prompt tokens read + d * context tokens read

where the last three count what all requests do during the stay. One concurrency cannot separate `a` from `b` well, so
a calibration has several.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations, pairwise
from statistics import median
from typing import Final, TypeAlias

from mac_runner.errors import ConfigError
from mac_runner.latency import StepModel

SAMPLES_MIN: Final = 8
"""The fewest replies that a model is fitted to."""
_FITS: Final = 3
_PASSES: Final = 20
_LEAST: Final = 0.02
"""The least share of the time between two moments that is taken for decoding at first."""

_Counts: TypeAlias = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """One request: when it was sent and answered, and its tokens."""

    beside: Hashable
    """Requests with the same value were in the engine together, and its clock is theirs."""
    sent_s: float
    answered_s: float
    prompt_tokens: int
    read_tokens: int
    """Those of the prompt that were not in the cache."""
    completion_tokens: int

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.answered_s - self.sent_s


def fit(what: str, stays: Sequence[Stay]) -> tuple[StepModel, float]:
    """The step model nearest to the stays, by relative error, and the median of that error.

    Raises ConfigError, which begins with `what` the stays are of, where they are too few.
    """
    whole = [stay for stay in stays if stay.seconds > 0]
    if len(whole) < SAMPLES_MIN:
        raise ConfigError(
            f"{what}: {len(whole)} replies with counted tokens, and {SAMPLES_MIN} are the fewest that show how an "
            "engine works; measure for longer with mac-run calibrate, or name a longer run"
        )
    rows, found = list[list[float]](), [0.0] * 4
    for _ in range(_FITS):
        counted = _counted(whole, found[2])
        rows = [[count / stay.seconds for count in counts] for stay, counts in zip(whole, counted, strict=True)]
        found = non_negative_least_squares(rows, [1.0] * len(rows))
    error = median(abs(1 - sum(a * x for a, x in zip(row, found, strict=True))) for row in rows)
    names = ("step_ms", "token_ms", "prompt_token_ms", "context_token_ms")
    return StepModel(**{name: float(f"{1000 * x:.4g}") for name, x in zip(names, found, strict=True)}), error


def _counted(stays: Sequence[Stay], prompt_token_s: float) -> list[_Counts]:
    """The counts of each stay. `prompt_token_s` is what the fit before found."""
    groups: dict[Hashable, list[Stay]] = {}
    for stay in sorted(stays, key=lambda stay: stay.sent_s):
        groups.setdefault(stay.beside, []).append(stay)
    engines = {key: _Engine(of, prompt_token_s) for key, of in groups.items()}
    return [engines[stay.beside].counts(stay) for stay in stays]


class _Engine:
    """The requests of one engine, and how many steps it had made at each moment at which one was sent or answered.

    Each request gets one token a step. So the steps between two moments are spread evenly over the time at first, with
    few in the time in which a prompt is read, and then fitted to the tokens of one request after the other until all
    agree.
    """

    def __init__(self, stays: Sequence[Stay], prompt_token_s: float) -> None:
        """`stays` in the order in which they were sent."""
        self._stays = stays
        self._longest_s = max(stay.seconds for stay in stays)
        moments = sorted({moment for stay in stays for moment in (stay.sent_s, stay.answered_s)})
        at = {moment: number for number, moment in enumerate(moments)}
        rate = sum(stay.completion_tokens for stay in stays) / sum(stay.seconds for stay in stays)
        read_s = dict.fromkeys(moments, 0.0)
        for stay in stays:
            read_s[stay.sent_s] += stay.read_tokens * prompt_token_s
        steps = [
            rate * max(after - before - read_s[before], (after - before) * _LEAST)
            for before, after in pairwise(moments)
        ]
        spans = [(at[stay.sent_s], at[stay.answered_s], stay.completion_tokens) for stay in stays]
        for _ in range(_PASSES):
            for begin, end, tokens in spans:
                factor = tokens / sum(steps[begin:end])
                steps[begin:end] = [count * factor for count in steps[begin:end]]
        self._made = dict(zip(moments, accumulate(steps, initial=0.0), strict=True))

    def counts(self, stay: Stay) -> _Counts:
        """The steps of a stay, and what all requests decode, read of prompts and of context during it."""
        decoded = read = context = 0.0
        for other in self._stays:
            if other.sent_s >= stay.answered_s:
                break
            if other.sent_s < stay.sent_s - self._longest_s or other.answered_s <= stay.sent_s:
                continue
            behind = self._steps(stay.sent_s, other.sent_s)
            shared = self._steps(max(stay.sent_s, other.sent_s), min(stay.answered_s, other.answered_s))
            decoded += shared
            context += shared * (other.prompt_tokens + max(0.0, -behind) + shared / 2)
            # A prompt is read in the next step after its sending; the chance that this is a step of the stay.
            seen = 1 + behind if behind <= 0 else self._steps(other.sent_s, stay.answered_s)
            read += other.read_tokens * min(1.0, max(0.0, seen))
        return float(stay.completion_tokens), decoded, read, context

    def _steps(self, before_s: float, after_s: float) -> float:
        """The steps from one moment to a later one; negative where it is earlier."""
        return self._made[after_s] - self._made[before_s]


def non_negative_least_squares(rows: Sequence[Sequence[float]], targets: Sequence[float]) -> list[float]:
    """The non-negative factors of the columns with the least squared error, for a handful of columns.

    Each set of columns is tried by its normal equations; the others get 0. The best set without a negative factor wins.
    """
    width = len(rows[0])
    # Columns differ by orders of magnitude; brought to one scale, the equations lose no digits.
    scales = [max(abs(row[at]) for row in rows) or 1.0 for at in range(width)]
    scaled = [[value / scale for value, scale in zip(row, scales, strict=True)] for row in rows]
    products = [[sum(row[a] * row[b] for row in scaled) for b in range(width)] for a in range(width)]
    right = [sum(row[at] * target for row, target in zip(scaled, targets, strict=True)) for at in range(width)]
    best, best_gain = [0.0] * width, 0.0
    for size in range(1, width + 1):
        for chosen in combinations(range(width), size):
            found = _solved([[products[a][b] for b in chosen] for a in chosen], [right[a] for a in chosen])
            if found is None or min(found) < 0:
                continue
            # What is taken off the squared error, at the solution of the normal equations.
            gain = sum(x * right[at] for x, at in zip(found, chosen, strict=True))
            if gain > best_gain:
                best_gain, best = gain, [0.0] * width
                for x, at in zip(found, chosen, strict=True):
                    best[at] = x / scales[at]
    return best


def _solved(matrix: list[list[float]], right: list[float]) -> list[float] | None:
    """The solution of a small system by elimination with pivots; None for a singular one."""
    size = len(right)
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for at in range(size):
        pivot = max(range(at, size), key=lambda row: abs(rows[row][at]))
        if abs(rows[pivot][at]) < 1e-12:
            return None
        rows[at], rows[pivot] = rows[pivot], rows[at]
        for below in range(at + 1, size):
            factor = rows[below][at] / rows[at][at]
            rows[below] = [value - factor * top for value, top in zip(rows[below], rows[at], strict=True)]
    found = [0.0] * size
    for at in reversed(range(size)):
        found[at] = (rows[at][size] - sum(rows[at][k] * found[k] for k in range(at + 1, size))) / rows[at][at]
    return found
