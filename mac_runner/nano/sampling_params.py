"""What is asked of one request: how tokens are chosen, and when to stop. Frozen, and checked as it is built."""

from __future__ import annotations

from dataclasses import dataclass, field

from mac_runner.nano.errors import InvalidRequestError

LOGPROBS_MAX = 100
STOPS_MAX = 64
CHOICES_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one request's tokens are chosen.

    Applied in this order: penalties, the constraint, temperature, `min_p`, `top_k`, `top_p`. A temperature of 0 takes
    the likeliest token. `seed` makes the request's choices its own, whatever else runs; without it they follow from
    the engine's seed and the order of requests. `top_logprobs` asks for that many likeliest tokens beside the one
    chosen. `choices` and `json_schema` (as text) constrain what may be said; at most one of them.
    """

    temperature: float = 1.0
    max_tokens: int = 256
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    stop_token_ids: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    top_logprobs: int = 0
    seed: int | None = None
    choices: tuple[str, ...] = field(default=())
    json_schema: str | None = None

    def __post_init__(self) -> None:
        self._require(0.0 <= self.temperature < float("inf"), "temperature", "is a finite number from 0 up")
        self._require(self.max_tokens >= 1, "max_tokens", "must be at least 1")
        self._require(self.top_k >= 0, "top_k", "must be at least 0, which means all")
        self._require(0.0 < self.top_p <= 1.0, "top_p", "is in (0, 1]")
        self._require(0.0 <= self.min_p <= 1.0, "min_p", "is in [0, 1]")
        self._require(0.0 < self.repetition_penalty < float("inf"), "repetition_penalty", "is a finite number above 0")
        self._require(abs(self.presence_penalty) < float("inf"), "presence_penalty", "must be finite")
        self._require(abs(self.frequency_penalty) < float("inf"), "frequency_penalty", "must be finite")
        self._require(0 <= self.top_logprobs <= LOGPROBS_MAX, "top_logprobs", f"is from 0 to {LOGPROBS_MAX}")
        self._require(
            len(self.stop) <= STOPS_MAX and "" not in self.stop, "stop", f"is up to {STOPS_MAX} texts, none empty"
        )
        self._require(len(self.choices) <= CHOICES_MAX and "" not in self.choices, "choices", "must not be empty texts")
        self._require(not (self.choices and self.json_schema), "json_schema", "cannot be had together with choices")

    def _require(self, is_met: bool, name: str, rule: str) -> None:
        if not is_met:
            raise InvalidRequestError(f"SamplingParams.{name} = {getattr(self, name)!r}: {name} {rule}")

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        """Whether what was said before changes what may be said next."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @property
    def has_filters(self) -> bool:
        """Whether unlikely tokens are cut off before one is drawn."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0

    @property
    def is_constrained(self) -> bool:
        """Whether a grammar decides which tokens may follow."""
        return bool(self.choices) or self.json_schema is not None
