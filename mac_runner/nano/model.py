"""The model: a decoder of the Llama family, from token ids to logits.

    tokens ─ embed ─ layer ─ … ─ layer ─ norm ─ head

    layer:  ─┬─ norm ─ q,k,v ─ (q,k norm) ─ rotate ─ attend ─ o ─ (+) ─┬─ norm ─ silu(gate) × up ─ down ─ (+) ─
             └─────────────────────────────────────────────────────┘   └───────────────────────────────────┘

Weights are immutable: an update makes a new `Model` of the same shape. Tokens of all sequences are rows of one matrix;
only attention separates them. Logits are in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch.nn import functional

from mac_runner.nano.architecture import ModelConfig, check_state_dict, rope_frequencies
from mac_runner.nano.attention import ForwardBatch, KVStore
from mac_runner.nano.checkpoint import StateDict
from mac_runner.nano.cpu.vectors import rms_norm
from mac_runner.nano.parallel.group import ALONE, WHOLE, Group, Shard

MIN_ROWS = 2
"""With a single row oneDNN may sum in another order; no step has fewer rows."""

TILE_ROWS = 32
"""The rows of a product in AMX's tiles: there oneDNN chooses by the number of rows where it cuts a sum."""


def can_pack(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether oneDNN computes in this type on this machine."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()))


class Linear:
    """A matrix and a bias, in the form that this machine multiplies fastest: `x @ weight.T + bias`.

    On a CPU that is oneDNN's own layout, packed once when the weights are loaded. With few rows it is two to three
    times as fast as torch's. Each row of the result has the same bits whatever the other rows are, which torch's
    float32 product does not promise; in AMX's tiles that takes products of `TILE_ROWS` rows each. An activation, or the
    sum or product with another tensor, takes no further pass. Elsewhere it is torch's own product.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.is_packed = can_pack(weight.dtype, weight.device)
        self.is_tiled = self.is_packed and weight.dtype == torch.bfloat16 and torch.cpu._is_amx_tile_supported()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight) if self.is_packed else weight
        self.bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """`x @ weight.T + bias`."""
        if self.is_packed:
            return self._packed(x, "none")
        return functional.linear(x, self.weight, self.bias)

    def swish(self, x: torch.Tensor) -> torch.Tensor:
        """`silu(self(x))`."""
        if self.is_packed:
            return self._packed(x, "swish")
        return functional.silu(functional.linear(x, self.weight, self.bias))

    def with_other(self, x: torch.Tensor, other: torch.Tensor, operation: Literal["add", "mul"]) -> torch.Tensor:
        """`self(x) + other` or `self(x) * other`."""
        if self.is_packed:
            return self._packed(x, operation, other)
        result = functional.linear(x, self.weight, self.bias)
        return result.add_(other) if operation == "add" else result.mul_(other)

    def _packed(self, x: torch.Tensor, operation: str, other: torch.Tensor | None = None) -> torch.Tensor:
        if self.is_tiled and len(x) != TILE_ROWS:
            missing = (0, 0, 0, -len(x) % TILE_ROWS)
            tiles = functional.pad(x, missing).split(TILE_ROWS)
            others = [None] * len(tiles) if other is None else functional.pad(other, missing).split(TILE_ROWS)
            products = [self._packed(tile, operation, its) for tile, its in zip(tiles, others, strict=True)]
            return torch.cat(products)[: len(x)]
        if other is None:
            return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, operation, [], "")
        return torch.ops.mkldnn._linear_pointwise.binary(x, other, self.weight, self.bias, operation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """The weights of one layer; `head_norms` [2, head_dim] are for queries and keys, in float32."""

    attention_norm: torch.Tensor
    qkv: Linear
    head_norms: torch.Tensor | None
    output: Linear
    mlp_norm: torch.Tensor
    gate: Linear
    up: Linear
    down: Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """All weights, or a rank's part, and the rotations [positions, head_dim] in float32.

    `config` counts the rank's own heads.
    """

    config: ModelConfig
    embedding: torch.Tensor
    layers: tuple[Layer, ...]
    norm: torch.Tensor
    head: Linear
    cosine: torch.Tensor
    sine: torch.Tensor


def model_forward(model: Model, batch: ForwardBatch, store: KVStore, group: Group = ALONE) -> torch.Tensor:
    """Compute a batch: put its keys and values into the store, return the logits [logit rows, vocabulary].

    `group` are the ranks that have a part of the model each; they gather what their parts compute.
    """
    device, eps = model.embedding.device, model.config.rms_norm_eps
    attention = store.attention(batch, model.cosine, model.sine)
    hidden = functional.embedding(torch.tensor(_at_least_two(batch.token_ids), device=device), model.embedding)
    for index, layer in enumerate(model.layers):
        normed = rms_norm(hidden, layer.attention_norm, eps)
        attended = group.gather(attention.attend(index, layer.qkv(normed), layer.head_norms))
        hidden = group.gather(layer.output.with_other(attended, group.shard.columns(hidden), "add"))
        normed = rms_norm(hidden, layer.mlp_norm, eps)
        inner = group.gather(layer.up.with_other(normed, layer.gate.swish(normed), "mul"))
        hidden = group.gather(layer.down.with_other(inner, group.shard.columns(hidden), "add"))
    if not batch.logit_rows:
        return torch.empty(0, model.config.vocab_size)
    wanted = torch.tensor(_at_least_two(batch.logit_rows), device=device)
    last = rms_norm(hidden[wanted], model.norm, eps)
    return group.gather(model.head(last))[: len(batch.logit_rows)].float()


def _at_least_two(numbers: tuple[int, ...]) -> tuple[int, ...]:
    """The numbers; a single one is repeated."""
    return numbers if len(numbers) != 1 else numbers * MIN_ROWS


def build_model(
    state_dict: StateDict,
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    max_model_len: int,
    shard: Shard = WHOLE,
) -> Model:
    """A model of these weights, or a rank's part of it. The weights are copied, so they may change later."""
    check_state_dict(state_dict, config)

    def tensor(name: str) -> torch.Tensor:
        return state_dict[name].detach().to(device=device, dtype=dtype, copy=True)

    def rows(*names: str) -> torch.Tensor:
        parts = [shard.rows(state_dict[name]).detach().to(device=device, dtype=dtype) for name in names]
        return torch.cat(parts)  # A copy, even of one.

    def linear(*names: str) -> Linear:
        has_bias = f"{names[0]}.bias" in state_dict
        bias = rows(*(f"{name}.bias" for name in names)) if has_bias else None
        return Linear(rows(*(f"{name}.weight" for name in names)), bias)

    def head_norms(attention: str) -> torch.Tensor:
        return torch.stack([tensor(f"{attention}.{name}.weight").float() for name in ("q_norm", "k_norm")])

    def layer(index: int) -> Layer:
        name = f"model.layers.{index}"
        attention, mlp = f"{name}.self_attn", f"{name}.mlp"
        return Layer(
            attention_norm=tensor(f"{name}.input_layernorm.weight"),
            qkv=linear(f"{attention}.q_proj", f"{attention}.k_proj", f"{attention}.v_proj"),
            head_norms=head_norms(attention) if config.qk_norm else None,
            output=linear(f"{attention}.o_proj"),
            mlp_norm=tensor(f"{name}.post_attention_layernorm.weight"),
            gate=linear(f"{mlp}.gate_proj"),
            up=linear(f"{mlp}.up_proj"),
            down=linear(f"{mlp}.down_proj"),
        )

    with torch.inference_mode():
        cosine, sine = _rotations(config, max_model_len)
        return Model(
            config=shard.local(config),
            embedding=tensor("model.embed_tokens.weight"),
            layers=tuple(layer(index) for index in range(config.num_layers)),
            norm=tensor("model.norm.weight"),
            head=linear("model.embed_tokens" if config.tie_word_embeddings else "lm_head"),
            cosine=cosine.to(device),
            sine=sine.to(device),
        )


def _rotations(config: ModelConfig, max_model_len: int) -> tuple[torch.Tensor, torch.Tensor]:
    frequencies, factor = rope_frequencies(config)
    angles = torch.arange(max_model_len, dtype=torch.float32).unsqueeze(1) * torch.tensor(frequencies)
    cosine, sine = angles.cos() * factor, angles.sin() * factor
    return torch.cat((cosine, cosine), dim=-1), torch.cat((-sine, sine), dim=-1)
