"""Attention by kernels compiled for this CPU: one pass over the cache, in place, for all sequences."""

from __future__ import annotations

from threading import Lock

import numba
import numpy as np
import torch

from mac_runner.nano.architecture import ModelConfig
from mac_runner.nano.compiling import flat
from mac_runner.nano.errors import ConfigError
from mac_runner.nano.forward_batch import ForwardBatch, Piece, make_batch
from mac_runner.nano.kernels import TILE, Heads, Rows, Work, attend_share, attend_together, store_rows

UNIT_ROWS = 16
"""So many rows, a token's heads each being one, share what is read of the cache."""

TOGETHER_FROM = 2_000_000
"""From so many multiplications on it pays to wake up other threads, which takes some ten microseconds."""

_NO_NORMS = np.empty(0, dtype=np.float32)
_one_at_a_time = Lock()
"""Not all of numba's ways to share work out among threads stand two callers at once."""


class CompiledKVStore:
    """Keys and values in the tiles that the kernels read; see `kernels`. Memory is taken as it is first written."""

    def __init__(self, config: ModelConfig, num_blocks: int, block_size: int, dtype: torch.dtype) -> None:
        if block_size % TILE:
            raise ConfigError(f"EngineConfig.block_size = {block_size}: on a CPU it is a multiple of {TILE}")
        if config.head_dim % TILE:
            raise ConfigError(
                f"the model's heads have {config.head_dim} numbers: on a CPU that is a multiple of {TILE}, "
                "unless EngineConfig.attention = 'torch'"
            )
        if dtype == torch.float16:
            raise ConfigError("EngineConfig.dtype = 'float16': on a CPU it is 'bfloat16' or 'float32'")
        self.config = config
        self.block_size = block_size
        self.num_slots = num_blocks * block_size
        shape = (config.num_layers, 2, config.num_kv_heads * self.num_slots * config.head_dim)
        # Numpy's, which asks the system for large pages. Not zeroed: nothing is read that was not written before.
        self.memory = np.empty(shape, dtype=np.int16 if dtype == torch.bfloat16 else np.float32)
        self._start_threads(dtype)

    def attention(self, batch: ForwardBatch, cosine: torch.Tensor, sine: torch.Tensor) -> CompiledAttention:
        """Prepare for a batch."""
        return CompiledAttention(self, batch, cosine, sine)

    def _start_threads(self, dtype: torch.dtype) -> None:
        """Have the kernel for several threads ready, which the first batches of an engine may be too small for."""
        num_threads = torch.get_num_threads()
        if num_threads == 1:
            return
        batch = make_batch([Piece([0], 0, 1, [0])], self.block_size)
        rotation = torch.ones(1, self.config.head_dim)
        width = (self.config.num_heads + 2 * self.config.num_kv_heads) * self.config.head_dim
        attention = self.attention(batch, rotation, rotation)
        attention.num_threads = num_threads
        attention.attend(0, torch.zeros(1, width, dtype=dtype), None)
        if torch.get_num_threads() != num_threads:
            # Numba sets this thread's number when it first starts its own, and torch's products depend on it.
            torch.set_num_threads(num_threads)


class CompiledAttention:
    """One batch; see `Attention`."""

    def __init__(self, store: CompiledKVStore, batch: ForwardBatch, cosine: torch.Tensor, sine: torch.Tensor) -> None:
        config = store.config
        self._config, self._memory = config, store.memory
        self._heads = Heads(config.num_heads, config.num_kv_heads, config.head_dim)
        positions, slots = (np.array(numbers, dtype=np.int64) for numbers in (batch.positions, batch.slots))
        self._rows = Rows(positions, slots, flat(cosine), flat(sine))
        self._queries = np.empty(len(batch.slots) * config.num_heads * config.head_dim, dtype=np.float32)
        self._units, self._tiles = _units(batch, store.block_size // TILE, _tokens_per_unit(config))
        # Kernels look at no bounds.
        _require_within("slot", slots, store.num_slots)
        _require_within("tile", self._tiles, store.num_slots // TILE)
        _require_within("position", positions, len(cosine))
        _require_within("row", self._units[:, :2].sum(axis=1) - 1, len(slots))
        self.num_threads = self._worthwhile_threads()

    def attend(self, index: int, qkv: torch.Tensor, head_norms: torch.Tensor | None) -> torch.Tensor:
        """See `Attention`."""
        config, (keys, values) = self._config, self._memory[index]
        width = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        projections, num_rows = flat(qkv), len(self._rows.slots)
        if len(qkv) < num_rows or qkv.shape[1] != width or projections.dtype != self._memory.dtype:
            raise ValueError(f"qkv is {tuple(qkv.shape)} of {qkv.dtype}, for {num_rows} rows of {width} numbers")
        attended = qkv.new_zeros(len(qkv), config.num_heads * config.head_dim)
        norms = _NO_NORMS if head_norms is None else flat(head_norms)
        store_rows(projections, self._rows, norms, config.rms_norm_eps, self._heads, self._queries, keys, values)
        work = Work(self._units, self._tiles, config.windows[index] or 0)
        cache = (self._queries, keys, values, work, self._heads, flat(attended))
        if self.num_threads == 1:
            attend_share(*cache, 0, 1)
        else:
            with _one_at_a_time:
                numba.set_num_threads(min(self.num_threads, numba.config.NUMBA_NUM_THREADS))
                attend_together(*cache, self.num_threads)
        return attended

    def _worthwhile_threads(self) -> int:
        """How many threads to use; the result does not depend on it."""
        tokens, ends = self._units[:, 1], self._units[:, 1] + self._units[:, 2]
        per_key = 2 * self._config.num_heads * self._config.head_dim
        return torch.get_num_threads() if int((tokens * ends).sum()) * per_key > TOGETHER_FROM else 1


def _require_within(name: str, numbers: np.ndarray, count: int) -> None:
    if numbers.size and not 0 <= numbers.min() <= numbers.max() < count:
        raise IndexError(f"{name}s from {numbers.min()} to {numbers.max()} where there are {count}")


def _tokens_per_unit(config: ModelConfig) -> int:
    return max(UNIT_ROWS * config.num_kv_heads // config.num_heads, 1)


def _units(batch: ForwardBatch, tiles_per_block: int, num_tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Pieces of at most so many tokens [units, 4] (see `attend_share`), and the sequences' tables of tiles."""
    units, blocks = list[tuple[int, int, int, int]](), list[int]()
    for span in batch.spans:
        if len(span.block_ids) * tiles_per_block * TILE < span.start + span.num_tokens:
            raise IndexError(f"{len(span.block_ids)} blocks do not hold {span.start + span.num_tokens} tokens")
        table = len(blocks) * tiles_per_block
        blocks.extend(span.block_ids)
        for offset in range(0, span.num_tokens, num_tokens):
            count = min(num_tokens, span.num_tokens - offset)
            units.append((span.first_row + offset, count, span.start + offset, table))
    tiles = np.array(blocks, dtype=np.int64)[:, None] * tiles_per_block + np.arange(tiles_per_block)
    return np.array(units, dtype=np.int64), tiles.reshape(-1)
