"""The settings of a vLLM engine in this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, JsonValue

from mac_runner.section import IDENTITY, RUNTIME, Section, Text


class VllmConfig(Section):
    """A vLLM engine on this machine's GPUs. Any other engine argument may stand here under the name vLLM gives it."""

    # Which names there are is for the installed release to say; the backend checks them before a run begins.
    model_config = ConfigDict(extra="allow")

    model: Annotated[Text, IDENTITY]
    """The model's name or path, as vLLM takes it."""
    max_num_seqs_upper_bound: Annotated[int, RUNTIME, Field(ge=1, le=100_000)] = 256
    """No more requests at once than this, however many the engine's KV cache would hold."""
    tensor_parallel_size: Annotated[int, RUNTIME, Field(ge=1, le=1024)] = 1
    """Over how many GPUs each copy of the model is split."""
    data_parallel_size: Annotated[int, RUNTIME, Field(ge=1, le=1024)] = 1
    """How many copies of the model serve side by side."""
    gpu_memory_utilization: Annotated[float, RUNTIME, Field(gt=0, le=1)] = 0.9
    """The share of each GPU's memory the engine may take."""
    max_model_len: Annotated[int | None, IDENTITY, Field(ge=1)] = None
    """The longest context in tokens; null leaves it to the model."""
    dtype: Annotated[Text, IDENTITY] = "auto"
    """The number format of the weights."""
    enable_prefix_caching: Annotated[bool, IDENTITY] = True
    """Whether prompts that begin alike share their KV cache."""
    attention_backend: Annotated[Text | None, IDENTITY] = None
    """Which attention kernels to use; null leaves it to vLLM."""
    chat_template_kwargs: Annotated[Mapping[str, JsonValue], IDENTITY] = {}
    """What the model's chat template is given besides the messages, such as enable_thinking."""
    admission: Annotated[Literal["token_budget", "full_context"], RUNTIME] = "token_budget"
    """Admit requests while the tokens they need fit the KV cache, or as many as fit at full context length."""
