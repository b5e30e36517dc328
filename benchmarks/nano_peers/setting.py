"""What is measured: random models of the Qwen2 kind, and under which conditions all contestants run them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from safetensors.torch import save_file

from benchmarks.nano_peers.timing import CLOCKS, Clock, Prompts
from mac_runner.nano.architecture import ModelConfig, read_model_config
from mac_runner.nano.checkpoint import SINGLE_FILE, read_state_dict
from tests.nano.tiny_models import make_model

SIZES: dict[str, dict[str, int]] = {
    "5m": {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4, "num_attention_heads": 4,
           "num_key_value_heads": 2, "vocab_size": 8_192},
    "50m": {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 12, "num_attention_heads": 8,
            "num_key_value_heads": 4, "vocab_size": 32_000},
    "125m": {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 12,
             "num_key_value_heads": 4, "vocab_size": 32_000},
}  # fmt: skip
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
TOKENS_PER_STEP = 2_048
CALM = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A model on disk, and what every contestant is given to run it: room for so many sequences of such a length."""

    directory: Path
    dtype: str
    num_threads: int
    max_batch: int
    max_length: int
    clock_name: str

    @property
    def torch_dtype(self) -> torch.dtype:
        """The type of weights and KV."""
        return DTYPES[self.dtype]

    @property
    def clock(self) -> Clock:
        """The clock that all contestants are timed by."""
        return CLOCKS[self.clock_name]

    @property
    def model(self) -> ModelConfig:
        """The model's shape."""
        return read_model_config(self.directory)

    @property
    def kv_bytes_per_token(self) -> int:
        """What one token's keys and values take in all layers."""
        model = self.model
        return model.num_layers * 2 * model.num_kv_heads * model.head_dim * int(self.torch_dtype.itemsize)


def make_random_model(size: str, parent: Path, *, window: int = 4_096) -> Path:
    """A random model's directory, made in another."""
    directory = parent / size
    directory.mkdir()
    make_model(directory, "qwen2", max_position_embeddings=window, **SIZES[size])
    file = str(directory / SINGLE_FILE)
    # As they are made, attention sees almost a single token, and the last bits decide which. These look around.
    save_file({name: _calmer(name, weight) for name, weight in read_state_dict(directory).items()}, file)
    return directory


def _calmer(name: str, weight: torch.Tensor) -> torch.Tensor:
    return weight * CALM if "_proj.weight" in name else weight


def random_prompts(count: int, length: int, vocab_size: int) -> Prompts:
    """Prompts that have nothing in common."""
    chance = Random(count)
    return [[chance.randrange(vocab_size) for _ in range(length)] for _ in range(count)]
