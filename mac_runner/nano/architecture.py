"""What a model's `config.json` says about its shape, for the architectures that are known here.

Llama 3, Qwen2 (and 2.5) and Qwen3 are one architecture with switches: biases on the projections, norms on queries and
keys, a sliding window in some layers, and how rotary positions are scaled. The switches are here; `model.py` reads
them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mac_runner.nano.errors import ModelError, ModelNotFoundError, UnknownArchitectureError
from mac_runner.nano.tokenizer import read_json

ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the length a model was first trained on."""

    kind: Literal["default", "linear", "llama3", "yarn"] = "default"
    factor: float = 1.0
    original_max_len: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The shape of a model."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_model_len: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling
    tie_word_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    windows: tuple[int | None, ...]
    """For each layer how many tokens back it sees; None for all."""
    dtype: str
    eos_token_ids: frozenset[int]


def read_model_config(directory: Path) -> ModelConfig:
    """The shape of the model in a directory."""
    if not (directory / "config.json").is_file():
        raise ModelNotFoundError(f"{directory} holds no model: there is no config.json")
    raw = _Raw(read_json(directory / "config.json"), directory / "config.json")
    architecture = next(iter(raw.texts("architectures")), "none named")
    if architecture not in ARCHITECTURES:
        raise UnknownArchitectureError(f"{raw.path}: architecture {architecture}; known are {', '.join(ARCHITECTURES)}")
    num_heads, hidden_size = raw.integer("num_attention_heads"), raw.integer("hidden_size")
    num_layers = raw.integer("num_hidden_layers")
    attention_bias = raw.flag("attention_bias", False)
    generation = _Raw(read_json(directory / "generation_config.json"), directory / "generation_config.json")
    if (activation := raw.get("hidden_act", "silu")) != "silu":
        raise UnknownArchitectureError(f"{raw.path}: activation {activation!r}; known is silu")
    config = ModelConfig(
        architecture=architecture,
        vocab_size=raw.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=raw.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=raw.integer("num_key_value_heads", num_heads),
        head_dim=raw.integer("head_dim", hidden_size // num_heads),
        max_model_len=raw.integer("max_position_embeddings"),
        rms_norm_eps=raw.number("rms_norm_eps", 1e-6),
        rope_theta=raw.rope().positive("rope_theta", raw.positive("rope_theta", 10_000.0)),
        rope_scaling=_rope_scaling(raw.rope(), raw.integer("max_position_embeddings")),
        tie_word_embeddings=raw.flag("tie_word_embeddings", False),
        qkv_bias=True if architecture == "Qwen2ForCausalLM" else attention_bias,
        output_bias=False if architecture == "Qwen2ForCausalLM" else attention_bias,
        mlp_bias=raw.flag("mlp_bias", False) if architecture == "LlamaForCausalLM" else False,
        qk_norm=architecture == "Qwen3ForCausalLM",
        windows=_windows(raw, num_layers) if architecture != "LlamaForCausalLM" else (None,) * num_layers,
        dtype=str(raw.get("dtype", raw.get("torch_dtype", "float32"))).removeprefix("torch."),
        eos_token_ids=raw.token_ids("eos_token_id") | generation.token_ids("eos_token_id"),
    )
    if config.head_dim % 2:
        raise ModelError(f"{raw.path}: heads of {config.head_dim} numbers cannot be rotated in pairs")
    if config.rope_scaling.kind == "yarn" and config.rope_theta <= 1.0:
        raise ModelError(f"{raw.path}: rope_theta is {config.rope_theta!r}, and should be above 1 under yarn")
    if config.num_heads % config.num_kv_heads:
        raise ModelError(f"{raw.path}: {config.num_heads} heads cannot share {config.num_kv_heads} KV heads evenly")
    return config


def rope_frequencies(config: ModelConfig) -> tuple[list[float], float]:
    """The angle per position of each pair of a head's numbers, and what cosine and sine are multiplied by."""
    scaling, dim = config.rope_scaling, config.head_dim
    plain = [config.rope_theta ** (-2.0 * index / dim) for index in range(dim // 2)]
    match scaling.kind:
        case "default":
            return plain, 1.0
        case "linear":
            return [frequency / scaling.factor for frequency in plain], 1.0
        case "llama3":
            return [_llama3(frequency, scaling) for frequency in plain], 1.0
        case "yarn":
            return _yarn(plain, config), scaling.attention_factor


def _llama3(frequency: float, scaling: RopeScaling) -> float:
    """Long waves are stretched, short ones left alone, those in between partly."""
    turns = scaling.original_max_len * frequency / (2 * math.pi)
    if turns < scaling.low_freq_factor:
        return frequency / scaling.factor
    if turns > scaling.high_freq_factor:
        return frequency
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    return (1 - kept) * frequency / scaling.factor + kept * frequency


def _yarn(plain: list[float], config: ModelConfig) -> list[float]:
    """A ramp over the pairs: those before it turn often enough to be left alone, those behind it are stretched."""
    scaling, dim = config.rope_scaling, config.head_dim

    def pair(num_turns: float) -> float:
        return dim * math.log(scaling.original_max_len / (num_turns * 2 * math.pi)) / (2 * math.log(config.rope_theta))

    low = max(math.floor(pair(scaling.beta_fast)), 0)
    high = min(math.ceil(pair(scaling.beta_slow)), dim - 1)
    width = max(high - low, 0.001)
    stretched = [min(max((index - low) / width, 0.0), 1.0) for index in range(dim // 2)]
    return [
        frequency / scaling.factor * share + frequency * (1 - share)
        for frequency, share in zip(plain, stretched, strict=True)
    ]


def _rope_scaling(rope: _Raw, max_model_len: int) -> RopeScaling:
    kind = rope.get("rope_type", rope.get("type", "default"))
    factor = rope.positive("factor", 1.0)
    if kind not in ("default", "linear", "llama3", "yarn"):
        raise UnknownArchitectureError(f"{rope.path}: rope scaling {kind!r}; known are default, linear, llama3, yarn")
    low, high = rope.positive("low_freq_factor", 1.0), rope.positive("high_freq_factor", 4.0)
    if kind == "llama3" and low >= high:
        raise ModelError(f"{rope.path}: low_freq_factor is {low!r}, and should be below high_freq_factor, {high!r}")
    return RopeScaling(
        kind=kind,
        factor=factor,
        original_max_len=rope.integer("original_max_position_embeddings", max_model_len),
        low_freq_factor=low,
        high_freq_factor=high,
        beta_fast=rope.positive("beta_fast", 32.0),
        beta_slow=rope.positive("beta_slow", 1.0),
        attention_factor=rope.positive("attention_factor", 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0),
    )


def _windows(raw: _Raw, num_layers: int) -> tuple[int | None, ...]:
    if not raw.flag("use_sliding_window", False) or raw.get("sliding_window", None) is None:
        return (None,) * num_layers
    window = raw.integer("sliding_window")
    kinds = raw.texts("layer_types")
    if not kinds:
        first = raw.integer("max_window_layers", num_layers)
        kinds = tuple("sliding_attention" if index >= first else "full_attention" for index in range(num_layers))
    if len(kinds) != num_layers:
        raise ModelError(f"{raw.path}: layer_types names {len(kinds)} layers of {num_layers}")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


@dataclass(frozen=True, slots=True)
class _Raw:
    """A JSON object, read with an eye on its types."""

    content: Mapping[str, object]
    path: Path

    def get(self, name: str, default: object) -> object:
        value = self.content.get(name)
        return default if value is None else value

    def integer(self, name: str, default: int | None = None) -> int:
        value = self.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ModelError(f"{self.path}: {name} is {value!r}, and should be a whole number above 0")
        return value

    def number(self, name: str, default: float) -> float:
        value = self.get(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ModelError(f"{self.path}: {name} is {value!r}, and should be a number")
        return float(value)

    def positive(self, name: str, default: float) -> float:
        value = self.number(name, default)
        if not 0.0 < value < math.inf:
            raise ModelError(f"{self.path}: {name} is {value!r}, and should be a finite number above 0")
        return value

    def flag(self, name: str, default: bool) -> bool:
        return bool(self.get(name, default))

    def texts(self, name: str) -> tuple[str, ...]:
        value = self.get(name, ())
        return tuple(str(each) for each in value) if isinstance(value, list | tuple) else ()

    def token_ids(self, name: str) -> frozenset[int]:
        value = self.get(name, [])
        return frozenset(each for each in (value if isinstance(value, list) else [value]) if isinstance(each, int))

    def rope(self) -> _Raw:
        """The rotary settings: one object in newer files, spread over two keys in older ones."""
        for name in ("rope_parameters", "rope_scaling"):
            value = self.content.get(name)
            if isinstance(value, dict):
                return _Raw(value, self.path)
        return _Raw({}, self.path)
