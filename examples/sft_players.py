"""A small model learns Town of Salem from games of the scripted players, and plays it under nano.

`python sft_players.py --out DIR` plays the games of the teachers, trains, writes a model for nano to `DIR/model`, and
lets it play. docs/learning.md has the recipe, its time and its figures. Needs `mac_runner[nano]`.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers.models import BPE
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

NAMES = (
    *("Abel", "Beatrice", "Caleb", "Dorothea", "Elias", "Felicity", "Gideon", "Hester", "Isaac", "Josephine"),
    *("Kenelm", "Lydia", "Matthias", "Naomi", "Obadiah", "Prudence", "Quentin", "Rosamund", "Silas", "Tabitha"),
)
MARK = "\n--\n"  # Behind it a prompt says what the record does not: sft_players.jinja.
END, REPLY = "<|end|>", "<|reply|>"
CHAT = (
    "{% for message in messages %}{% if message.role == 'user' %}{{ message.content }}\n<|reply|>"
    "{% elif message.role == 'assistant' %}{{ message.content }}<|end|>{% endif %}{% endfor %}"
)
_THOUGHT = re.compile(r"<thinking>.*?</thinking>\s*", re.DOTALL)
_NAME = re.compile("|".join(NAMES))


@dataclass(frozen=True)
class Shape:
    """The shape of the model, under the names of a Hugging Face configuration."""

    vocab_size: int = 2048
    hidden_size: int = 192
    intermediate_size: int = 512
    num_hidden_layers: int = 4
    num_attention_heads: int = 6
    num_key_value_heads: int = 6
    max_position_embeddings: int = 4096
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-6


class Sample(NamedTuple):
    """One turn: the record that all players see, what only this one is shown, its reply."""

    record: str
    own: str
    reply: str


class Rope(nn.Module):
    """Rotary positions."""

    def __init__(self, dim: int, shape: Shape) -> None:
        super().__init__()
        angles = torch.outer(
            torch.arange(shape.max_position_embeddings).float(),
            shape.rope_theta ** (-torch.arange(0, dim, 2).float() / dim),
        )
        self.cos, self.sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        """Turn `x`, [batch, heads, length, dim], by the positions `at`, [batch, length]."""
        left, right = x.chunk(2, -1)
        return x * self.cos[at][:, None] + torch.cat((-right, left), -1) * self.sin[at][:, None]


class Layer(nn.Module):
    """One layer of a Llama, under its names."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        size, inner = shape.hidden_size, shape.intermediate_size
        self.heads = shape.num_attention_heads
        self.input_layernorm = nn.RMSNorm(size, shape.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(size, shape.rms_norm_eps)
        self.self_attn = nn.ModuleDict({f"{name}_proj": nn.Linear(size, size, bias=False) for name in "qkvo"})
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(size, inner, bias=False),
                "up_proj": nn.Linear(size, inner, bias=False),
                "down_proj": nn.Linear(inner, size, bias=False),
            }
        )

    def forward(
        self, x: Tensor, rope: Rope, at: Tensor, trunk: tuple[Tensor, Tensor] | None, mask: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The layer for `x`, which also sees the keys and values of `trunk` where `mask` says so."""
        batch, length, size = x.shape
        normed = self.input_layernorm(x)
        q, k, v = (
            self.self_attn[f"{name}_proj"](normed).view(batch, length, self.heads, -1).transpose(1, 2)
            for name in "qkv"
        )
        q, k = rope(q, at), rope(k, at)
        keys, values = k, v
        if trunk is not None:
            keys, values = (
                torch.cat((one.expand(batch, -1, -1, -1), own), 2) for one, own in zip(trunk, (k, v), strict=True)
            )
        seen = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, is_causal=mask is None)
        x = x + self.self_attn["o_proj"](seen.transpose(1, 2).reshape(batch, length, size))
        normed = self.post_attention_layernorm(x)
        gated = F.silu(self.mlp["gate_proj"](normed)) * self.mlp["up_proj"](normed)
        return x + self.mlp["down_proj"](gated), (k, v)


class Player(nn.Module):
    """A Llama that reads a game once: its record is the trunk, and each turn a branch that leaves it."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = nn.RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.rope = Rope(shape.hidden_size // shape.num_attention_heads, shape)
        for name, weight in self.named_parameters():
            if weight.dim() > 1:
                scale = 0.02 / (2 * shape.num_hidden_layers) ** 0.5 if name.endswith(("o_proj.weight", "down_proj.weight")) else 0.02
                nn.init.normal_(weight, std=scale)

    def forward(self, trunk: Tensor, branches: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states of the trunk, [1, R, size], and of branches [B, L] that leave it at `starts`, [B]."""
        reach, length = trunk.shape[1], branches.shape[1]
        at_trunk = torch.arange(reach)[None]
        at = starts[:, None] + torch.arange(length)
        sees_trunk = (torch.arange(reach) < starts[:, None])[:, None, None].expand(-1, 1, length, -1)
        sees_own = torch.ones(length, length, dtype=torch.bool).tril().expand(len(starts), 1, -1, -1)
        mask = torch.cat((sees_trunk, sees_own), 3)
        x, y = self.embed_tokens(trunk), self.embed_tokens(branches)
        for layer in self.layers:
            x, known = layer(x, self.rope, at_trunk, None, None)
            y, _ = layer(y, self.rope, at, known, mask)
        return self.norm(x), self.norm(y)

    def losses(self, game: Game) -> tuple[Tensor, Tensor]:
        """The mean loss of a reply's tokens, and of the record's."""
        record, replies = self(game.trunk, game.branches[:, :-1], game.starts)
        head, targets = self.embed_tokens.weight, game.branches[:, 1:]
        said = game.is_reply[:, 1:]
        return (
            F.cross_entropy(replies[said] @ head.T, targets[said]),
            F.cross_entropy(record[0, :-1] @ head.T, game.trunk[0, 1:]),
        )


class Game(NamedTuple):
    """The tokens of one game."""

    trunk: Tensor
    branches: Tensor
    starts: Tensor
    is_reply: Tensor
