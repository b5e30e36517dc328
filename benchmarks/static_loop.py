"""The least that decoding takes on a CPU: a batch of equal lengths in one rectangle, packed weights, no bookkeeping.

What an engine adds to this is the price of requests that come, go and differ in length. It gives neither
log-probabilities nor choices; of every sequence the likeliest token is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional

from mac_runner.nano.architecture import read_model_config
from mac_runner.nano.model import Layer, Model, build_model
from mac_runner.nano.weights import read_state_dict


class StaticLoop:
    """A model with room for `batch` sequences of `length` tokens."""

    def __init__(self, directory: Path, dtype: torch.dtype, batch: int, length: int) -> None:
        config = read_model_config(directory)
        self.model: Model = build_model(read_state_dict(directory), config, dtype, torch.device("cpu"), length)
        self.cosine, self.sine = self.model.cosine.to(dtype), self.model.sine.to(dtype)
        shape = (config.num_layers, 2, batch, config.num_kv_heads, length, config.head_dim)
        self.kv = torch.zeros(shape, dtype=dtype)

    def generate(self, prompts: torch.Tensor, num_new: int, tick: Callable[[], None]) -> torch.Tensor:
        """Say `num_new` tokens behind every prompt; `tick` is called after each."""
        tokens, start, said = prompts, 0, list[torch.Tensor]()
        with torch.inference_mode():
            for _ in range(num_new):
                tokens, start = self._forward(tokens, start).argmax(-1, keepdim=True), start + tokens.shape[1]
                said.append(tokens)
                tick()
        return torch.cat(said, dim=1)

    def _forward(self, tokens: torch.Tensor, start: int) -> torch.Tensor:
        """The logits behind the last of these tokens."""
        model, eps = self.model, self.model.config.rms_norm_eps
        hidden = functional.embedding(tokens, model.embedding)
        for index, layer in enumerate(model.layers):
            normed = functional.rms_norm(hidden, hidden.shape[-1:], layer.attention_norm, eps)
            attended = self._attend(layer, normed, self.kv[index], start)
            hidden = layer.output.with_other(attended, hidden, "add")
            normed = functional.rms_norm(hidden, hidden.shape[-1:], layer.mlp_norm, eps)
            hidden = layer.down.with_other(layer.up.with_other(normed, layer.gate.swish(normed), "mul"), hidden, "add")
        last = functional.rms_norm(hidden[:, -1], hidden.shape[-1:], model.norm, eps)
        return torch.as_tensor(model.head(last))

    def _attend(self, layer: Layer, normed: torch.Tensor, kv: torch.Tensor, start: int) -> torch.Tensor:
        config = self.model.config
        batch, count, _ = normed.shape
        groups = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        queries, keys, values = layer.qkv(normed).view(batch, count, -1, config.head_dim).split(groups, dim=2)
        cosine = self.cosine[start : start + count].unsqueeze(1)
        sine = self.sine[start : start + count].unsqueeze(1)
        half = config.head_dim // 2
        queries = queries * cosine + queries.roll(half, -1) * sine
        kv[0, :, :, start : start + count] = (keys * cosine + keys.roll(half, -1) * sine).transpose(1, 2)
        kv[1, :, :, start : start + count] = values.transpose(1, 2)
        found = functional.scaled_dot_product_attention(
            self._fold(queries) if count == 1 else queries.transpose(1, 2),
            kv[0, :, :, : start + count],
            kv[1, :, :, : start + count],
            is_causal=count > 1,
            enable_gqa=count > 1,
        )
        return (found if count == 1 else found.transpose(1, 2)).reshape(batch, count, -1)

    def _fold(self, queries: torch.Tensor) -> torch.Tensor:
        """One token's heads that share keys become queries of one head."""
        config = self.model.config
        return queries.view(len(queries), config.num_kv_heads, -1, config.head_dim)
