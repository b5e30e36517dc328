"""A model of the Qwen2 kind as llama.cpp reads it: one GGUF file with the same weights, and no vocabulary.

Matrices are kept in the type that is asked for. Norms and biases are in float32 whatever that is, as llama.cpp's own
converter writes them. The tensors' names are the `gguf` package's.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import torch

from mac_runner.nano.architecture import ModelConfig, read_model_config
from mac_runner.nano.checkpoint import read_state_dict


def write_gguf(directory: Path, dtype: torch.dtype, file: Path) -> Path:
    """Write the model of a directory to a file; `dtype` is float32 or bfloat16."""
    config = read_model_config(directory)
    kind = gguf.GGMLQuantizationType.BF16 if dtype == torch.bfloat16 else gguf.GGMLQuantizationType.F32
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, config.num_layers)
    writer = gguf.GGUFWriter(file, gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH.QWEN2])
    _describe(writer, config)
    for name, tensor in read_state_dict(directory).items():
        theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if tensor.dim() == 1 or kind == gguf.GGMLQuantizationType.F32:
            # A number that this type does not have would make it another model.
            writer.add_tensor(theirs, tensor.to(dtype).float().numpy())
        else:
            writer.add_tensor(theirs, tensor.to(dtype).view(torch.uint8).numpy(), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _describe(writer: gguf.GGUFWriter, config: ModelConfig) -> None:
    writer.add_context_length(config.max_model_len)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("none")
