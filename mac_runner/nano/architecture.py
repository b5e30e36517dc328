"""The shape of a model: what its `config.json` says, and the tensors that a model of this shape has.

Llama 3, Qwen2 (and 2.5) and Qwen3 are one architecture with switches, which `model.py` reads. Every state dict is
checked first, so weights of another model are refused before anything of the old ones is touched.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from mac_runner.nano.checkpoint import Settings, StateDict, read_settings
from mac_runner.nano.errors import (
    MissingTensorError,
    ModelError,
    ModelNotFoundError,
    NonFiniteWeightError,
    UnexpectedTensorError,
    UnknownArchitectureError,
    WrongDtypeError,
    WrongShapeError,
)

ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
EMBEDDINGS = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
_IGNORED_SUFFIX = ".rotary_emb.inv_freq"
"""Old checkpoints keep the rotary frequencies, which follow from the configuration."""


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
    """For each layer how many tokens it sees; None for all."""
    dtype: str
    eos_token_ids: frozenset[int]


def read_model_config(directory: Path) -> ModelConfig:
    """The shape of the model in a directory. Raises ModelError."""
    if not (directory / "config.json").is_file():
        raise ModelNotFoundError(f"{directory} holds no model: there is no config.json")
    raw = read_settings(directory / "config.json")
    architecture = next(iter(raw.texts("architectures")), "none named")
    if architecture not in ARCHITECTURES:
        raise UnknownArchitectureError(f"{raw.path}: architecture {architecture}; known are {', '.join(ARCHITECTURES)}")
    # The rotary settings are one object in newer files, and spread over two keys in older ones.
    rope = raw.section("rope_parameters", "rope_scaling")
    num_heads, hidden_size = raw.integer("num_attention_heads"), raw.integer("hidden_size")
    num_layers = raw.integer("num_hidden_layers")
    attention_bias = raw.flag("attention_bias", False)
    generation = read_settings(directory / "generation_config.json")
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
        rope_theta=rope.positive("rope_theta", raw.positive("rope_theta", 10_000.0)),
        rope_scaling=_rope_scaling(rope, raw.integer("max_position_embeddings")),
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
    """The angle per position of each pair of a head's numbers, and the factor of cosine and sine."""
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
    """Stretch long waves, leave short ones, and stretch those in between partly."""
    turns = scaling.original_max_len * frequency / (2 * math.pi)
    if turns < scaling.low_freq_factor:
        return frequency / scaling.factor
    if turns > scaling.high_freq_factor:
        return frequency
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    return (1 - kept) * frequency / scaling.factor + kept * frequency


def _yarn(plain: list[float], config: ModelConfig) -> list[float]:
    """Stretch the pairs behind a ramp; those before it turn often enough to stay as they are."""
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


def _rope_scaling(rope: Settings, max_model_len: int) -> RopeScaling:
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


def _windows(raw: Settings, num_layers: int) -> tuple[int | None, ...]:
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


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor of such a model, by name."""
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    queries, keys = config.num_heads * dim, config.num_kv_heads * dim
    shapes: dict[str, tuple[int, ...]] = {EMBEDDINGS: (config.vocab_size, hidden)}
    for index in range(config.num_layers):
        layer = f"model.layers.{index}"
        shapes[f"{layer}.input_layernorm.weight"] = (hidden,)
        shapes[f"{layer}.post_attention_layernorm.weight"] = (hidden,)
        for name, size in (("q", queries), ("k", keys), ("v", keys)):
            shapes[f"{layer}.self_attn.{name}_proj.weight"] = (size, hidden)
            if config.qkv_bias:
                shapes[f"{layer}.self_attn.{name}_proj.bias"] = (size,)
        shapes[f"{layer}.self_attn.o_proj.weight"] = (hidden, queries)
        if config.output_bias:
            shapes[f"{layer}.self_attn.o_proj.bias"] = (hidden,)
        if config.qk_norm:
            shapes[f"{layer}.self_attn.q_norm.weight"] = (dim,)
            shapes[f"{layer}.self_attn.k_norm.weight"] = (dim,)
        for name, shape in (("gate", (inner, hidden)), ("up", (inner, hidden)), ("down", (hidden, inner))):
            shapes[f"{layer}.mlp.{name}_proj.weight"] = shape
            if config.mlp_bias:
                shapes[f"{layer}.mlp.{name}_proj.bias"] = shape[:1]
    shapes["model.norm.weight"] = (hidden,)
    if not config.tie_word_embeddings:
        shapes[HEAD] = (config.vocab_size, hidden)
    return shapes


def check_state_dict(state_dict: StateDict, config: ModelConfig) -> None:
    """Raise ModelError unless these are exactly the weights of a model of this shape.

    MissingTensorError, WrongShapeError, UnexpectedTensorError, or WrongDtypeError for what is not a tensor of
    floating-point numbers. A tied model may name its output layer, if that equals its embeddings.
    """
    check_layout(state_dict, config)
    for name in expected_shapes(config):
        if state_dict[name].is_meta:
            raise ModelError(f"tensor {name} is on the device 'meta' and holds no numbers: load it first")
    if config.tie_word_embeddings and HEAD in state_dict:
        _require_tied(state_dict)


def check_update(state_dict: StateDict, config: ModelConfig) -> None:
    """Check new weights like `check_state_dict`, and that all are finite numbers. Raises NonFiniteWeightError too."""
    check_state_dict(state_dict, config)
    for name in expected_shapes(config):
        tensor = state_dict[name].detach()
        # Much faster than `isfinite`, which makes tensors of its own. Floats of 8 bits have no extremes in torch.
        low, high = (tensor if tensor.itemsize > 1 else tensor.float()).aminmax()
        if not (math.isfinite(low) and math.isfinite(high)):
            raise NonFiniteWeightError(f"tensor {name} has NaN or an infinity: give finite numbers")


def check_layout(state_dict: StateDict, config: ModelConfig) -> None:
    """Check names, shapes and dtypes like `check_state_dict`, and no numbers: tensors may be on the device 'meta'."""
    shapes = expected_shapes(config)
    for name, shape in shapes.items():
        if name not in state_dict:
            raise MissingTensorError(f"tensor {name} of shape {list(shape)} is missing")
        _require_numbers(name, state_dict[name])
        if tuple(state_dict[name].shape) != shape:
            raise WrongShapeError(f"tensor {name} has shape {list(state_dict[name].shape)}, expected {list(shape)}")
    for name in state_dict:
        if name == HEAD and config.tie_word_embeddings:
            _require_numbers(HEAD, state_dict[HEAD])
        elif name not in shapes and not name.endswith(_IGNORED_SUFFIX):
            raise UnexpectedTensorError(f"tensor {name} has no place in this {config.architecture}")


def _require_numbers(name: str, tensor: object) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise WrongDtypeError(f"tensor {name} is of type {type(tensor).__name__}, expected a torch.Tensor")
    if not tensor.is_floating_point():
        raise WrongDtypeError(f"tensor {name} is of {tensor.dtype}, expected floating-point numbers")


def _require_tied(state_dict: StateDict) -> None:
    """Refuse an output layer that differs from the embeddings; many trainers name one that is equal."""
    embeddings, head = state_dict[EMBEDDINGS], state_dict[HEAD]
    if head is not embeddings and not torch.equal(head.to(embeddings), embeddings):
        raise UnexpectedTensorError(
            f"tensor {HEAD} is not {EMBEDDINGS}, and the model's embeddings are tied: leave it out, or set "
            "tie_word_embeddings to false in its config.json"
        )
