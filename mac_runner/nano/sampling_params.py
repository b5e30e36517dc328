"""The settings of one request: how tokens are chosen, and when to stop. Frozen, and checked as they are built.

`recommended_sampling` reads the settings that a model's makers recommend, from its `generation_config.json`. Servers
begin from these where a request leaves a setting open. `InferenceEngine` itself does not look at them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from mac_runner.nano.checkpoint import read_settings
from mac_runner.nano.config import are_texts, are_token_ids, is_number, is_whole
from mac_runner.nano.errors import InvalidRequestError, ModelError

LOGPROBS_MAX = 100
STOPS_MAX = 64
CHOICES_MAX = 10_000
FACTOR_MAX = 100
"""`repetition_penalty` lies between 1 / FACTOR_MAX and this. Beyond it logits exceed the precision of float32."""
PENALTY_MAX = 100
_TAKEN: dict[str, tuple[tuple[type, ...], type]] = {
    "stop": ((list,), tuple),
    "choices": ((list,), tuple),
    "stop_token_ids": ((list, tuple, set), frozenset),
}
"""The kinds that are converted, and the kind that a field holds."""
GENERATION_FILE = "generation_config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one request's tokens are chosen.

    Applied in this order: penalties, the constraint, temperature, `min_p`, `top_k`, `top_p`. A temperature of 0 takes
    the likeliest token. With a `seed` the choices do not depend on other requests; without it they follow from the
    engine's seed and the order of requests. `top_logprobs` is how many of the likeliest tokens to return beside the
    chosen one. `choices` and `json_schema` constrain the reply; at most one of them.

    Lists are accepted for tuples and sets, and a dict for a schema; the fields hold tuples, a frozenset, and the
    schema's text. Raises InvalidRequestError, which names the setting.
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
        self._normalize()
        self._require(is_number(self.temperature) and 0.0 <= self.temperature < inf, "temperature", "is finite, from 0")
        self._require(is_whole(self.max_tokens) and self.max_tokens >= 1, "max_tokens", "is a whole number from 1")
        self._require(is_whole(self.top_k) and self.top_k >= 0, "top_k", "is a whole number; 0 means all")
        self._require(is_number(self.top_p) and 0.0 < self.top_p <= 1.0, "top_p", "is in (0, 1]")
        self._require(is_number(self.min_p) and 0.0 <= self.min_p <= 1.0, "min_p", "is in [0, 1]")
        factor = self.repetition_penalty
        is_bounded = is_number(factor) and 1 / FACTOR_MAX <= factor <= FACTOR_MAX
        self._require(is_bounded, "repetition_penalty", f"is from {1 / FACTOR_MAX} to {FACTOR_MAX}")
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            self._require(
                is_number(value) and abs(value) <= PENALTY_MAX, name, f"is from -{PENALTY_MAX} to {PENALTY_MAX}"
            )
        is_listed = is_whole(self.top_logprobs) and 0 <= self.top_logprobs <= LOGPROBS_MAX
        self._require(is_listed, "top_logprobs", f"is a whole number from 0 to {LOGPROBS_MAX}")
        self._require(self.seed is None or is_whole(self.seed), "seed", "is a whole number or None")
        self._require(are_token_ids(self.stop_token_ids), "stop_token_ids", "is a set of token ids")
        for name, most in (("stop", STOPS_MAX), ("choices", CHOICES_MAX)):
            texts = getattr(self, name)
            self._require(
                are_texts(texts) and len(texts) <= most, name, f"is a tuple of up to {most} texts, none empty"
            )
        self._require(
            self.json_schema is None or isinstance(self.json_schema, str), "json_schema", "is a text or a dict"
        )
        self._require(not (self.choices and self.json_schema), "json_schema", "cannot be had together with choices")

    def _normalize(self) -> None:
        """Convert lists and a schema to what the fields hold; leave other kinds to be refused."""
        for name, (kinds, held_as) in _TAKEN.items():
            if isinstance(given := getattr(self, name), kinds):
                with suppress(TypeError):  # An item that no set can hold.
                    object.__setattr__(self, name, held_as(given))
        schema: Any = self.json_schema
        if isinstance(schema, Mapping):
            object.__setattr__(self, "json_schema", _dumped(schema))

    def _require(self, is_met: bool, name: str, rule: str) -> None:
        if not is_met:
            raise InvalidRequestError(f"SamplingParams.{name} = {getattr(self, name)!r}: {name} {rule}")

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is always chosen."""
        return self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        """Whether earlier tokens change the logits."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @property
    def has_filters(self) -> bool:
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0

    @property
    def is_constrained(self) -> bool:
        """Whether a grammar decides which tokens may follow."""
        return bool(self.choices) or self.json_schema is not None


def _dumped(schema: Mapping[str, object]) -> str:
    try:
        return json.dumps(schema)
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(f"SamplingParams.json_schema cannot be written as JSON: {error}") from error


def recommended_sampling(directory: Path, base: SamplingParams | None = None) -> SamplingParams:
    """`base` with what the model in `directory` recommends. Raises ModelError for settings that are wrong."""
    base, recommended = base or SamplingParams(), read_settings(directory / GENERATION_FILE)
    top_k = recommended.get("top_k", base.top_k)
    if not isinstance(top_k, int) or isinstance(top_k, bool):
        raise ModelError(f"{recommended.path}: top_k is {top_k!r}, and should be a whole number")
    try:
        return SamplingParams(
            temperature=recommended.number("temperature", base.temperature),
            top_p=recommended.number("top_p", base.top_p),
            min_p=recommended.number("min_p", base.min_p),
            repetition_penalty=recommended.number("repetition_penalty", base.repetition_penalty),
            top_k=max(top_k, 0),
        )
    except InvalidRequestError as error:
        raise ModelError(f"{recommended.path} recommends a wrong setting: {error}") from error
