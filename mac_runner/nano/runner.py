"""A model and its KV memory on one device: what a batch is computed with.

It knows nothing of sequences and decides nothing. The weights are replaced as a whole, between two batches.
"""

from __future__ import annotations

import torch

from mac_runner.nano.architecture import ModelConfig
from mac_runner.nano.attention import KVStore, bytes_per_token, make_kv_store
from mac_runner.nano.config import EngineConfig
from mac_runner.nano.errors import ConfigError, EngineStoppedError
from mac_runner.nano.forward_batch import ForwardBatch
from mac_runner.nano.kv_cache import blocks_for
from mac_runner.nano.linear import can_pack
from mac_runner.nano.model import Model, build_model, model_forward
from mac_runner.nano.weights import StateDict

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class ModelRunner:
    """Computes batches."""

    def __init__(self, config: EngineConfig, model_config: ModelConfig, state_dict: StateDict) -> None:
        self.device = _device(config)
        self.dtype = _dtype(config, model_config, self.device)
        self.max_model_len = min(config.max_model_len, model_config.max_model_len)
        self._model_config = model_config
        self._block_size = config.block_size
        self._is_compiled = self.device.type == "cpu" and config.attention != "torch"
        self._model: Model | None = self.build(state_dict)
        self.num_blocks = config.num_blocks or self._affordable_blocks(config)
        self._store: KVStore | None = self._new_store()

    def build(self, state_dict: StateDict) -> Model:
        """A model of other weights, ready to be put in; may run while batches are computed."""
        return build_model(state_dict, self._model_config, self.dtype, self.device, self.max_model_len)

    def replace(self, model: Model) -> None:
        """Compute with this model from now on."""
        self._model = model

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """The logits of the rows that were asked for, in float32."""
        if self._model is None or self._store is None:
            raise EngineStoppedError("the engine is asleep: wake it up first")
        with torch.inference_mode():
            return model_forward(self._model, batch, self._store)

    @property
    def has_weights(self) -> bool:
        """Whether there is a model in memory."""
        return self._model is not None

    def drop_store(self) -> None:
        """Give the KV memory back."""
        self._store = None

    def drop_weights(self) -> None:
        """Give the weights' memory back."""
        self._model = None

    def restore_store(self) -> None:
        """Take KV memory again, empty."""
        self._store = self._store or self._new_store()

    def _new_store(self) -> KVStore:
        return make_kv_store(
            self._model_config, self.num_blocks, self._block_size, self.dtype, self.device, compiled=self._is_compiled
        )

    def _affordable_blocks(self, config: EngineConfig) -> int:
        budget = config.kv_cache_bytes
        if self.device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self.device)
            budget = int(free - total * (1.0 - config.gpu_memory_utilization))
        per_block = bytes_per_token(self._model_config, self.dtype) * self._block_size
        # More than the most requests at once can fill would never be touched.
        most = config.max_batch_size * blocks_for(self.max_model_len, self._block_size)
        count = min(budget // per_block, most)
        if count < 1:
            raise ConfigError(f"{budget} bytes of KV cache do not hold one block of {per_block}: give it more")
        return count


def _device(config: EngineConfig) -> torch.device:
    if config.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("EngineConfig.device = 'cuda': torch finds no such device here")
    return torch.device(config.device)


def _dtype(config: EngineConfig, model_config: ModelConfig, device: torch.device) -> torch.dtype:
    if config.dtype != "auto":
        return _DTYPES[config.dtype]
    wanted = _DTYPES.get(model_config.dtype, torch.float32)
    # Without instructions for it a CPU computes in half the bits at a fraction of the speed.
    return wanted if device.type != "cpu" or can_pack(wanted, device) else torch.float32
