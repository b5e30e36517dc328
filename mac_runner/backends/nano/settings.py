"""The settings of an engine of our own in this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from mac_runner.section import IDENTITY, RUNTIME, Section, Text


class NanoConfig(Section):
    """The engine of mac_runner itself, in this process and beside it, on a CPU or on GPUs."""

    model: Annotated[Text, IDENTITY]
    """A directory of the Hugging Face kind, or a name on the hub, which is downloaded."""
    max_num_seqs_upper_bound: Annotated[int, RUNTIME, Field(ge=1, le=100_000)] = 64
    """No more requests at once than this on a replica, however many its KV cache would hold."""
    max_model_len: Annotated[int | None, IDENTITY, Field(ge=1)] = None
    """The longest context in tokens; null leaves it to the model."""
    dtype: Annotated[Literal["auto", "float32", "bfloat16", "float16"], IDENTITY] = "auto"
    """The number format of the weights."""
    device: Annotated[Literal["auto", "cpu", "cuda"], IDENTITY] = "auto"
    """What computes; auto takes a GPU where there is one."""
    num_threads: Annotated[int | None, IDENTITY, Field(ge=1, le=64)] = None
    """Threads of each process on a CPU, whose number decides the last bits of a result; null shares out all cores."""
    tensor_parallel_size: Annotated[int, RUNTIME, Field(ge=1, le=64)] = 1
    """How many processes share each step's work, on GPUs one of its own for each. It must divide the model's heads."""
    data_parallel_size: Annotated[int, RUNTIME, Field(ge=1, le=64)] = 1
    """How many replicas of the model share the requests, each with processes, seats and a KV cache of its own."""
    kv_cache_gib: Annotated[float, RUNTIME, Field(gt=0, le=4096)] = 1.0
    """The memory for the KV cache of a replica on a CPU."""
    gpu_memory_utilization: Annotated[float, RUNTIME, Field(gt=0, le=1)] = 0.9
    """The share of the GPU's memory the engine may take."""
    max_num_batched_tokens: Annotated[int, RUNTIME, Field(ge=16, le=1_000_000)] = 512
    """How many tokens one step computes at most; raised to what the requests at once need."""
    chat_template_kwargs: Annotated[Mapping[str, JsonValue], IDENTITY] = {}
    """What the model's chat template is given besides the messages, such as enable_thinking."""
