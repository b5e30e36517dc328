"""Which part of a model is a rank's: rows of every matrix, and with them whole heads. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from mac_runner.nano.architecture import ModelConfig
from mac_runner.nano.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Shard:
    """Part `rank` of `size` equal parts."""

    rank: int = 0
    size: int = 1

    def rows(self, tensor: torch.Tensor) -> torch.Tensor:
        """This part's rows of a weight [outputs, inputs] or a bias [outputs]."""
        return tensor.chunk(self.size)[self.rank]

    def columns(self, tensor: torch.Tensor) -> torch.Tensor:
        """This part's columns of an activation [tokens, width]: those that its rows of a weight compute."""
        return tensor.chunk(self.size, dim=-1)[self.rank] if self.size > 1 else tensor

    def local(self, config: ModelConfig) -> ModelConfig:
        """The shape of what this part attends with: its own heads."""
        heads, kv_heads = config.num_heads // self.size, config.num_kv_heads // self.size
        return replace(config, num_heads=heads, num_kv_heads=kv_heads)


WHOLE = Shard()


def require_divisible(config: ModelConfig, size: int) -> None:
    """Whether a model can be cut into `size` equal parts; raises ConfigError, which names all that cannot."""
    counts = {
        "attention heads": config.num_heads,
        "KV heads": config.num_kv_heads,
        "numbers of hidden_size": config.hidden_size,
        "numbers of intermediate_size": config.intermediate_size,
        "tokens of the vocabulary": config.vocab_size,
    }
    uneven = [f"{count} {name}" for name, count in counts.items() if count % size]
    if uneven:
        raise ConfigError(
            f"EngineConfig.tensor_parallel_size = {size}: {', '.join(uneven)} cannot be divided among {size} ranks "
            "evenly; choose a number that divides them all"
        )
