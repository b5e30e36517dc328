"""llama.cpp, through the batch interface of llama-cpp-python: the same weights, and the likeliest token each time.

It runs as it is fastest here: with a KV buffer for each sequence, and in bfloat16 with KV in half precision and flash
attention, which are its defaults.
"""

from __future__ import annotations

import ctypes
import tempfile
from pathlib import Path

import llama_cpp
import numpy as np

from benchmarks.nano_peers.gguf_file import write_gguf
from benchmarks.nano_peers.setting import TOKENS_PER_STEP, Setting
from benchmarks.nano_peers.timing import Prompts, Run, Stopwatch


class LlamaCpp:
    """A model, and a context with room for all sequences."""

    name = "llama.cpp"

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._vocab_size = setting.model.vocab_size
        llama_cpp.llama_log_set(_be_silent, ctypes.c_void_p())
        with tempfile.TemporaryDirectory() as scratch:
            file = write_gguf(setting.directory, setting.torch_dtype, Path(scratch) / "model.gguf")
            self._model = llama_cpp.llama_model_load_from_file(
                str(file).encode(), llama_cpp.llama_model_default_params()
            )
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {setting.directory} as it was converted")
        self._context = llama_cpp.llama_init_from_model(self._model, _context_params(setting))
        if not self._context:
            raise RuntimeError(f"llama.cpp has no room for {setting.max_batch} x {setting.max_length} tokens")
        self._tokens = _Tokens(TOKENS_PER_STEP)

    def run(self, prompts: Prompts, num_new: int) -> Run:
        """Prompts in steps of many tokens, then one token of each at a time."""
        said = np.empty((len(prompts), num_new), dtype=np.int32)
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), False)
        watch = Stopwatch(self._setting.clock)
        said[:, 0] = self._prefill(prompts)
        watch.step(len(prompts))
        everybody = np.arange(len(prompts), dtype=np.int32)
        positions = np.array([len(prompt) for prompt in prompts], dtype=np.int32)
        for step in range(1, num_new):
            said[:, step] = self._decode(said[:, step - 1], everybody, positions, np.ones_like(everybody))
            positions += 1
            watch.step(len(prompts))
        return watch.stop(said.tolist())

    def close(self) -> None:
        """Give the memory back."""
        llama_cpp.llama_free(self._context)
        llama_cpp.llama_model_free(self._model)

    def _prefill(self, prompts: Prompts) -> np.ndarray:
        """The first token behind every prompt."""
        lengths = [len(prompt) for prompt in prompts]
        tokens = np.concatenate([np.array(prompt, dtype=np.int32) for prompt in prompts])
        sequences = np.repeat(np.arange(len(prompts), dtype=np.int32), lengths)
        positions = np.concatenate([np.arange(length, dtype=np.int32) for length in lengths])
        is_last = np.zeros_like(tokens)
        is_last[np.cumsum(lengths) - 1] = 1
        pieces = [slice(start, start + TOKENS_PER_STEP) for start in range(0, len(tokens), TOKENS_PER_STEP)]
        return np.concatenate([self._decode(tokens[p], sequences[p], positions[p], is_last[p]) for p in pieces])

    def _decode(
        self, tokens: np.ndarray, sequences: np.ndarray, positions: np.ndarray, wanted: np.ndarray
    ) -> np.ndarray:
        """Compute these tokens; the likeliest behind each that is wanted."""
        if llama_cpp.llama_decode(self._context, self._tokens.fill(tokens, sequences, positions, wanted)):
            raise RuntimeError(f"llama.cpp could not compute {len(tokens)} tokens")
        shape = (int(wanted.sum()), self._vocab_size)
        if not shape[0]:
            return np.empty(0, dtype=np.int32)
        return np.ctypeslib.as_array(llama_cpp.llama_get_logits(self._context), shape).argmax(1).astype(np.int32)


class _Tokens:
    """A `llama_batch` over arrays that are written without a loop."""

    def __init__(self, room: int) -> None:
        self._tokens, self._sequences, self._positions = (np.zeros(room, dtype=np.int32) for _ in range(3))
        self._wanted = np.zeros(room, dtype=np.int8)
        self._counts = np.ones(room, dtype=np.int32)
        begin, size = self._sequences.ctypes.data, self._sequences.itemsize
        places = [ctypes.cast(begin + size * index, _INTS) for index in range(room)]
        self._places = (_INTS * room)(*places)

    def fill(
        self, tokens: np.ndarray, sequences: np.ndarray, positions: np.ndarray, wanted: np.ndarray
    ) -> llama_cpp.llama_batch:
        """A batch of these; each token belongs to one sequence."""
        count = len(tokens)
        self._tokens[:count], self._sequences[:count] = tokens, sequences
        self._positions[:count], self._wanted[:count] = positions, wanted
        return llama_cpp.llama_batch(
            n_tokens=count,
            token=self._tokens.ctypes.data_as(_INTS),
            pos=self._positions.ctypes.data_as(_INTS),
            n_seq_id=self._counts.ctypes.data_as(_INTS),
            seq_id=self._places,
            logits=self._wanted.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )


_INTS = ctypes.POINTER(ctypes.c_int32)


def _context_params(setting: Setting) -> llama_cpp.llama_context_params:
    params = llama_cpp.llama_context_default_params()
    params.n_seq_max = setting.max_batch
    # Each sequence has its share of this, which llama.cpp wants in multiples of 256 tokens.
    params.n_ctx = setting.max_batch * -(-setting.max_length // 256) * 256
    params.n_batch = TOKENS_PER_STEP
    params.n_threads = params.n_threads_batch = setting.num_threads
    if setting.dtype == "float32":
        # KV in half precision would say other tokens than the rest. In float32 its flash attention is the slower one.
        params.type_k = params.type_v = llama_cpp.GGML_TYPE_F32
        params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    return params


def _ignore(level: int, text: bytes, user_data: ctypes.c_void_p) -> None:
    """Silence llama.cpp, which prints a page about every model."""


_be_silent = llama_cpp.llama_log_callback(_ignore)
"""Held here, because llama.cpp calls it until the process ends."""
