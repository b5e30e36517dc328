"""The model: a decoder of the Llama family, from token ids to logits, on one page.

    tokens ─ embed ─┬─ norm ─ q,k,v ─ (q,k norm) ─ rotate ─ attend ─ o ─(+)─┬─ norm ─ silu(gate) × up ─ down ─(+)─ … ─
    norm ─ head
                    └────────────────────────────────────────────────────┘ └──────────────────────────────┘

Weights are immutable: an update makes a new `Model` of the same shape. Tokens of all sequences stand in the rows of
one matrix; only attention tells them apart. Logits come out in float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from mac_runner.nano.architecture import ModelConfig, rope_frequencies
from mac_runner.nano.attention import AttentionPlan, KVStore
from mac_runner.nano.forward_batch import ForwardBatch
from mac_runner.nano.linear import MIN_ROWS, Linear
from mac_runner.nano.parallel.group import ALONE, Group
from mac_runner.nano.parallel.shard import WHOLE, Shard
from mac_runner.nano.weights import StateDict, check_state_dict


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """The weights of one layer."""

    attention_norm: torch.Tensor
    qkv: Linear
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    output: Linear
    mlp_norm: torch.Tensor
    gate: Linear
    up: Linear
    down: Linear
    window: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """All weights, or a rank's part of them, and the rotations of every position. `config` counts its own heads."""

    config: ModelConfig
    embedding: torch.Tensor
    layers: tuple[Layer, ...]
    norm: torch.Tensor
    head: Linear
    cosine: torch.Tensor
    sine: torch.Tensor


def model_forward(model: Model, batch: ForwardBatch, store: KVStore, group: Group = ALONE) -> torch.Tensor:
    """Compute a batch: its keys and values go into the store, the logits of its `logit_rows` are returned.

    `group` are the ranks that have a part of the model each: what a matrix was split to compute is gathered.
    """
    device, config = model.embedding.device, model.config
    rows = _Rows.of(batch, store, model)
    hidden = functional.embedding(rows.token_ids, model.embedding)
    plans = {window: AttentionPlan(batch.spans, store, config, window) for window in dict.fromkeys(config.windows)}
    for index, layer in enumerate(model.layers):
        queries = _store_keys(layer, hidden, rows, index, store, config)
        attended = group.gather(_with_idle_row(plans[layer.window].attend(queries, index).flatten(1)))
        hidden = group.gather(layer.output.with_other(attended, group.shard.columns(hidden), "add"))
        normed = functional.rms_norm(hidden, hidden.shape[-1:], layer.mlp_norm, config.rms_norm_eps)
        inner = group.gather(layer.up.with_other(normed, layer.gate.swish(normed), "mul"))
        hidden = group.gather(layer.down.with_other(inner, group.shard.columns(hidden), "add"))
    if not batch.logit_rows:
        return torch.empty(0, config.vocab_size)
    wanted = torch.tensor(_at_least_two(batch.logit_rows), device=device)
    last = functional.rms_norm(hidden[wanted], hidden.shape[-1:], model.norm, config.rms_norm_eps)
    return group.gather(model.head(last))[: len(batch.logit_rows)].float()


def _store_keys(
    layer: Layer, hidden: torch.Tensor, rows: _Rows, index: int, store: KVStore, config: ModelConfig
) -> torch.Tensor:
    """The queries of one layer; its keys and values go into the store."""
    eps, kv_heads = config.rms_norm_eps, config.num_kv_heads
    normed = functional.rms_norm(hidden, hidden.shape[-1:], layer.attention_norm, eps)
    qkv = layer.qkv(normed).view(len(hidden), -1, config.head_dim)
    queries, keys, values = qkv.split((config.num_heads, kv_heads, kv_heads), dim=1)
    if layer.query_norm is not None and layer.key_norm is not None:
        queries = functional.rms_norm(queries, queries.shape[-1:], layer.query_norm, eps)
        keys = functional.rms_norm(keys, keys.shape[-1:], layer.key_norm, eps)
        rotated = _rotate(torch.cat((queries, keys), dim=1), rows)
    else:
        rotated = _rotate(qkv[:, : config.num_heads + kv_heads], rows)
    queries, keys = rotated.split((config.num_heads, kv_heads), dim=1)
    store.write(index, rows.slots, keys, values)
    return queries


def _rotate(heads: torch.Tensor, rows: _Rows) -> torch.Tensor:
    """Turn each pair (i, i + dim/2) of a head's numbers by its angle; the sine carries the sign.

    Two products and a sum, each rounded for itself: fused, the last bit would depend on where in memory a row begins.
    """
    return (heads * rows.cosine).add_(heads.roll(heads.shape[-1] // 2, dims=-1).mul_(rows.sine))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """A batch's numbers as tensors, with a row that belongs to nobody where there would be one alone."""

    token_ids: torch.Tensor
    slots: torch.Tensor
    cosine: torch.Tensor
    sine: torch.Tensor

    @classmethod
    def of(cls, batch: ForwardBatch, store: KVStore, model: Model) -> _Rows:
        device = model.embedding.device
        positions = torch.tensor(_at_least_two(batch.positions), device=device)
        idle = [store.idle_slot] * (MIN_ROWS - len(batch.slots))
        return cls(
            token_ids=torch.tensor(_at_least_two(batch.token_ids), device=device),
            slots=torch.tensor([*batch.slots, *idle], device=device),
            cosine=model.cosine[positions].unsqueeze(1),
            sine=model.sine[positions].unsqueeze(1),
        )


def _with_idle_row(attended: torch.Tensor) -> torch.Tensor:
    """What was attended to; nothing, for the row that belongs to nobody."""
    return attended if len(attended) >= MIN_ROWS else functional.pad(attended, (0, 0, 0, MIN_ROWS - len(attended)))


def _at_least_two(numbers: tuple[int, ...]) -> tuple[int, ...]:
    """The numbers, the last once more if it is the only one."""
    return numbers if len(numbers) != 1 else numbers * MIN_ROWS


def build_model(
    state_dict: StateDict,
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    max_model_len: int,
    shard: Shard = WHOLE,
) -> Model:
    """Make a model of weights by name, or a rank's part of it.

    The weights are copied: what becomes of them later is of no concern.
    """
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

    def layer(index: int) -> Layer:
        name = f"model.layers.{index}"
        attention, mlp = f"{name}.self_attn", f"{name}.mlp"
        return Layer(
            attention_norm=tensor(f"{name}.input_layernorm.weight"),
            qkv=linear(f"{attention}.q_proj", f"{attention}.k_proj", f"{attention}.v_proj"),
            query_norm=tensor(f"{attention}.q_norm.weight") if config.qk_norm else None,
            key_norm=tensor(f"{attention}.k_norm.weight") if config.qk_norm else None,
            output=linear(f"{attention}.o_proj"),
            mlp_norm=tensor(f"{name}.post_attention_layernorm.weight"),
            gate=linear(f"{mlp}.gate_proj"),
            up=linear(f"{mlp}.up_proj"),
            down=linear(f"{mlp}.down_proj"),
            window=config.windows[index],
        )

    with torch.inference_mode():
        cosine, sine = _rotations(config, max_model_len)
        return Model(
            config=shard.local(config),
            embedding=tensor("model.embed_tokens.weight"),
            layers=tuple(layer(index) for index in range(config.num_layers)),
            norm=tensor("model.norm.weight"),
            head=linear("model.embed_tokens" if config.tie_word_embeddings else "lm_head"),
            cosine=cosine.to(device=device, dtype=dtype),
            sine=sine.to(device=device, dtype=dtype),
        )


def _rotations(config: ModelConfig, max_model_len: int) -> tuple[torch.Tensor, torch.Tensor]:
    frequencies, factor = rope_frequencies(config)
    angles = torch.arange(max_model_len, dtype=torch.float32).unsqueeze(1) * torch.tensor(frequencies)
    cosine, sine = angles.cos() * factor, angles.sin() * factor
    return torch.cat((cosine, cosine), dim=-1), torch.cat((-sine, sine), dim=-1)
