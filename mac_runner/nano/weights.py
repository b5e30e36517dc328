"""Weights by name: read from safetensors files, and checked against what a model of this shape must have.

A state dict that a trainer hands over goes through the same check, so weights of another model are refused before
anything of the old ones is touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from mac_runner.nano.architecture import ModelConfig
from mac_runner.nano.errors import (
    MissingTensorError,
    ModelError,
    ModelNotFoundError,
    UnexpectedTensorError,
    WrongShapeError,
)
from mac_runner.nano.tokenizer import read_json

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
EMBEDDINGS = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
_IGNORED_SUFFIX = ".rotary_emb.inv_freq"
"""Old checkpoints keep the rotary frequencies, which follow from the configuration."""

StateDict = Mapping[str, torch.Tensor]


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of a model of this shape."""
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
    """Whether these are the weights of a model of this shape, no more and no less.

    Raises ModelError: MissingTensorError, WrongShapeError, UnexpectedTensorError, or itself for what is no tensor of
    floating-point numbers. A tied model may name its output layer, if that holds what its embeddings hold.
    """
    shapes = expected_shapes(config)
    for name, shape in shapes.items():
        if name not in state_dict:
            raise MissingTensorError(f"tensor {name} of shape {list(shape)} is missing")
        _require_numbers(name, state_dict[name])
        if tuple(state_dict[name].shape) != shape:
            raise WrongShapeError(f"tensor {name} has shape {list(state_dict[name].shape)}, expected {list(shape)}")
    for name in state_dict:
        if name == HEAD and config.tie_word_embeddings:
            _require_tied(state_dict)
        elif name not in shapes and not name.endswith(_IGNORED_SUFFIX):
            raise UnexpectedTensorError(f"tensor {name} has no place in this {config.architecture}")


def _require_numbers(name: str, tensor: object) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise ModelError(f"tensor {name} is of type {type(tensor).__name__}, expected a torch.Tensor")
    if not tensor.is_floating_point():
        raise ModelError(f"tensor {name} is of {tensor.dtype}, expected floating-point numbers")
    if tensor.is_meta:
        raise ModelError(f"tensor {name} is on the device 'meta' and holds no numbers: load it first")


def _require_tied(state_dict: StateDict) -> None:
    """Many trainers name the output layer of a tied model, too. One of its own would have been trained for nothing."""
    embeddings, head = state_dict[EMBEDDINGS], state_dict[HEAD]
    _require_numbers(HEAD, head)
    if head is not embeddings and not torch.equal(head.to(embeddings), embeddings):
        raise UnexpectedTensorError(
            f"tensor {HEAD} is not {EMBEDDINGS}, and the model's embeddings are tied: leave it out, or set "
            "tie_word_embeddings to false in its config.json"
        )


def read_state_dict(directory: Path) -> dict[str, torch.Tensor]:
    """All tensors of the safetensors files in a directory."""
    return dict(_read(directory))


def _read(directory: Path) -> Iterator[tuple[str, torch.Tensor]]:
    for file in _files(directory):
        try:
            with safe_open(str(file), framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118  The handle is no mapping.
                    yield name, tensors.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{file} cannot be read: {error}") from error


def _files(directory: Path) -> list[Path]:
    if (directory / INDEX_FILE).is_file():
        index = read_json(directory / INDEX_FILE).get("weight_map")
        names = sorted({str(name) for name in index.values()}) if isinstance(index, dict) else []
    else:
        names = [SINGLE_FILE]
    missing = [name for name in names if not (directory / name).is_file()]
    if not names or missing:
        raise ModelNotFoundError(f"{directory} holds no model: {', '.join(missing) or INDEX_FILE} is missing or empty")
    return [directory / name for name in names]
