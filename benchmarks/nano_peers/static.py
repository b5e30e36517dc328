"""The least that decoding takes on a CPU: a batch of equal lengths in one rectangle, packed weights, no bookkeeping.

What an engine adds to this is the price of requests that come, go and differ in length. It gives neither
log-probabilities nor choices; of every sequence the likeliest token is taken. Of nano it has the readers of files, the
packed products and the rotary frequencies; attention, cache and the order of operations are its own, so that a change
of the engine is measured against something that stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from benchmarks.nano_peers.setting import TOKENS_PER_STEP, Setting
from benchmarks.nano_peers.timing import Prompts, Run, Stopwatch
from mac_runner.nano.architecture import ModelConfig, rope_frequencies
from mac_runner.nano.checkpoint import StateDict, read_state_dict
from mac_runner.nano.model import Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    attention_norm: torch.Tensor
    qkv: Linear
    output: Linear
    mlp_norm: torch.Tensor
    gate: Linear
    up: Linear
    down: Linear


class StaticLoop:
    """A Qwen2 model with a rectangle of KV: [layers, keys or values, batch, heads, length, dim]."""

    name = "static"

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._config = config = setting.model
        weights = read_state_dict(setting.directory)
        weights = {name: tensor.to(setting.torch_dtype) for name, tensor in weights.items()}
        self._layers = [_layer(weights, index) for index in range(config.num_layers)]
        self._embedding, self._norm = weights["model.embed_tokens.weight"], weights["model.norm.weight"]
        self._head = Linear(weights.get("lm_head.weight", self._embedding))
        self._cosine, self._sine = _rotations(config, setting)
        shape = (config.num_layers, 2, setting.max_batch, config.num_kv_heads, setting.max_length, config.head_dim)
        self._kv = torch.zeros(shape, dtype=setting.torch_dtype)

    def run(self, prompts: Prompts, num_new: int) -> Run:
        """Prompts, which are of one length, a few at a time; then one token of each at a time."""
        tokens, length = torch.tensor(prompts), len(prompts[0])
        said = torch.empty(len(prompts), num_new, dtype=torch.long)
        watch = Stopwatch(self._setting.clock)
        with torch.inference_mode():
            at_once = max(TOKENS_PER_STEP // length, 1)
            for first in range(0, len(prompts), at_once):
                rows = slice(first, first + at_once)
                said[rows, 0] = self._forward(tokens[rows], self._kv[:, :, : len(prompts)][:, :, rows], 0)
            watch.step(len(prompts))
            kv = self._kv[:, :, : len(prompts)]
            for step in range(1, num_new):
                said[:, step] = self._forward(said[:, step - 1 : step], kv, length + step - 1)
                watch.step(len(prompts))
        return watch.stop(said.tolist())

    def close(self) -> None:
        """Do nothing: it holds only memory, which the garbage collector frees."""

    def _forward(self, tokens: torch.Tensor, kv: torch.Tensor, start: int) -> torch.Tensor:
        """The likeliest token after the last of these [batch, count], which begin at `start`."""
        eps, end = self._config.rms_norm_eps, start + tokens.shape[1]
        cosine, sine = self._cosine[start:end].unsqueeze(1), self._sine[start:end].unsqueeze(1)
        hidden = functional.embedding(tokens, self._embedding)
        for layer, layer_kv in zip(self._layers, kv[..., :end, :].unbind(), strict=True):
            normed = functional.rms_norm(hidden, hidden.shape[-1:], layer.attention_norm, eps)
            attended = self._attend(layer.qkv(normed), cosine, sine, layer_kv)
            hidden = layer.output.with_other(attended, hidden, "add")
            normed = functional.rms_norm(hidden, hidden.shape[-1:], layer.mlp_norm, eps)
            hidden = layer.down.with_other(layer.up.with_other(normed, layer.gate.swish(normed), "mul"), hidden, "add")
        last = functional.rms_norm(hidden[:, -1], hidden.shape[-1:], self._norm, eps)
        return torch.as_tensor(self._head(last).argmax(-1))

    def _attend(self, qkv: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        """Rotate queries and keys in place, put keys and values after those in `kv`, and attend to all."""
        config = self._config
        batch, count, _ = qkv.shape
        heads = qkv.view(batch, count, -1, config.head_dim)
        rotated = heads[:, :, : config.num_heads + config.num_kv_heads]
        turned = rotated.roll(config.head_dim // 2, -1)
        rotated.mul_(cosine).addcmul_(turned, sine)
        queries, fresh = heads[:, :, : config.num_heads], heads[:, :, config.num_heads :]
        fresh = fresh.unflatten(2, (2, config.num_kv_heads)).permute(2, 0, 3, 1, 4)
        kv[..., -count:, :] = fresh
        keys, values = kv.unbind()
        if count == 1:
            # Heads that share keys are further queries of one head.
            queries = queries.reshape(batch, config.num_kv_heads, -1, config.head_dim)
            return functional.scaled_dot_product_attention(queries, keys, values).view(batch, 1, -1)
        found = functional.scaled_dot_product_attention(
            queries.transpose(1, 2), keys, values, is_causal=True, enable_gqa=True
        )
        return found.transpose(1, 2).reshape(batch, count, -1)


def _layer(weights: StateDict, index: int) -> _Layer:
    attention, mlp = f"model.layers.{index}.self_attn", f"model.layers.{index}.mlp"
    projections = [f"{attention}.{name}_proj" for name in "qkv"]
    return _Layer(
        attention_norm=weights[f"model.layers.{index}.input_layernorm.weight"],
        qkv=Linear(
            torch.cat([weights[f"{name}.weight"] for name in projections]),
            torch.cat([weights[f"{name}.bias"] for name in projections]),
        ),
        output=Linear(weights[f"{attention}.o_proj.weight"]),
        mlp_norm=weights[f"model.layers.{index}.post_attention_layernorm.weight"],
        gate=Linear(weights[f"{mlp}.gate_proj.weight"]),
        up=Linear(weights[f"{mlp}.up_proj.weight"]),
        down=Linear(weights[f"{mlp}.down_proj.weight"]),
    )


def _rotations(config: ModelConfig, setting: Setting) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine of every position; the sine carries the sign of the half that is turned."""
    frequencies, factor = rope_frequencies(config)
    angles = torch.arange(setting.max_length, dtype=torch.float32).unsqueeze(1) * torch.tensor(frequencies)
    cosine, sine = angles.cos() * factor, angles.sin() * factor
    both = torch.cat((cosine, cosine), dim=-1), torch.cat((-sine, sine), dim=-1)
    return both[0].to(setting.torch_dtype), both[1].to(setting.torch_dtype)
