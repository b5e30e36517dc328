"""How a model's makers recommend to choose its tokens: the sampling settings of its `generation_config.json`.

What serves a model begins from these where a request leaves a setting open, as other servers do. `InferenceEngine`
itself does not look at them: it does what it is told.
"""

from __future__ import annotations

from pathlib import Path

from mac_runner.nano.errors import InvalidRequestError, ModelError
from mac_runner.nano.sampling_params import SamplingParams
from mac_runner.nano.tokenizer import read_json

GENERATION_FILE = "generation_config.json"
_NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty")


def recommended_sampling(directory: Path, base: SamplingParams | None = None) -> SamplingParams:
    """`base` with what the model in `directory` recommends; raises ModelError where that makes no sense."""
    base, path = base or SamplingParams(), directory / GENERATION_FILE
    said = read_json(path)
    numbers = {name: _number(said, name, getattr(base, name), path) for name in _NUMBERS}
    top_k = said.get("top_k")
    if top_k is not None and (not isinstance(top_k, int) or isinstance(top_k, bool)):
        raise ModelError(f"{path}: top_k is {top_k!r}, and should be a whole number")
    try:
        return SamplingParams(
            temperature=numbers["temperature"],
            top_p=numbers["top_p"],
            min_p=numbers["min_p"],
            repetition_penalty=numbers["repetition_penalty"],
            top_k=base.top_k if top_k is None else max(top_k, 0),
        )
    except InvalidRequestError as error:
        raise ModelError(f"{path} recommends what cannot be: {error}") from error


def _number(said: dict[str, object], name: str, default: float, path: Path) -> float:
    value = said.get(name)
    if value is None:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ModelError(f"{path}: {name} is {value!r}, and should be a number")
    return float(value)
