"""Small random models, written as their directories would be: of every shape that the engine knows."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from mac_runner.nano import read_model_config
from mac_runner.nano.testing import expected_shapes

ModelMaker = Callable[[str], Path]

VOCAB_SIZE = 272
EOS = 256
TEMPLATE = "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}{% endfor %}<|assistant|>"

_BASE: dict[str, object] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "eos_token_id": EOS,
    "bos_token_id": None,
    "dtype": "float32",
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 128}

_FAMILIES = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}
KINDS: dict[str, Mapping[str, object]] = {
    "llama": {"rope_parameters": _LLAMA3},
    "llama-biased": {
        "attention_bias": True,
        "mlp_bias": True,
        "rope_scaling": {"type": "linear", "factor": 2.0},
        "rope_theta": 5_000.0,
        "num_key_value_heads": 4,
    },
    "qwen2": {"tie_word_embeddings": True},
    "qwen2-window": {
        "use_sliding_window": True,
        "sliding_window": 20,
        "max_window_layers": 1,
        "num_key_value_heads": 1,
    },
    "qwen2-deep": {"intermediate_size": 2048, "num_hidden_layers": 1},
    "qwen2-yarn": {"rope_parameters": _YARN},
    "qwen3": {"head_dim": 32, "tie_word_embeddings": True},
    "qwen3-wide": {
        "hidden_size": 128,
        "intermediate_size": 320,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "head_dim": 16,
    },
}


def make_model(directory: Path, kind: str, **changes: object) -> Path:
    """Write a model's directory: configuration, weights, tokenizer, chat template."""
    family = kind.partition("-")[0]
    named = {"architectures": [f"{_FAMILIES[family]}ForCausalLM"], "model_type": family}
    settings = {**_BASE, **named, **KINDS[kind], **changes}
    (directory / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    save_file(random_state_dict(directory, seed=0), str(directory / "model.safetensors"))
    make_tokenizer().save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}), encoding="utf-8")
    return directory


def random_state_dict(directory: Path, seed: int) -> dict[str, torch.Tensor]:
    """Weights for the model of a directory. They keep its logits apart: near-equal ones would test only ties."""
    generator = torch.Generator().manual_seed(seed)
    weights = dict[str, torch.Tensor]()
    for name, shape in expected_shapes(read_model_config(directory)).items():
        noise = torch.randn(shape, generator=generator)
        weights[name] = 1 + 0.2 * noise if "norm" in name else 0.15 * noise
    return weights


def make_tokenizer() -> Tokenizer:
    """A token for every byte, and a few special ones behind them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>", "<|system|>", "<|user|>", "<|assistant|>"])
    return tokenizer
