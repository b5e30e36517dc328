"""A model for nano that a test can make, always the same: two layers of random weights, a tokenizer of few words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

CONTEXT_TOKENS: Final = 8192
VOCABULARY: Final = 1024
WORDS: Final = (
    "the player players town mafia who what when where which there their they them this that these those with without "
    "from into over under after before between because through during night nights day days round rounds vote votes "
    "voted voting accuse accused guilty innocent trial trials alive dead death deaths kill killed role roles act actor "
    "actions speak speaks said says word words write note notes answer answers question reply replies message messages "
    "your you may must can cannot will would should could have has had not one two three four five six seven eight no "
    "ten every everybody nobody somebody other others only also name names list target number example choose chosen "
    "json object string true false null content type format field fields value values legal rules rule public private "
)
"""What the tokenizer learns its tokens from. Fixed: what a model says must not change with a page of ours."""
SPECIAL: Final = ["<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
TEMPLATE: Final = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}<|assistant|>"
)
THINKING: Final = "{% if enable_thinking %}<think>\n{% endif %}"


def make_nano_model(directory: Path, *, can_think: bool = False, **generation: float) -> Path:
    """Write the model, which is the same each time, to `directory`; `generation` is its generation_config.json.

    Of one that can think the template opens the thought, and a token of its own closes it.
    """
    from safetensors.torch import save_file

    from mac_runner.nano.architecture import expected_shapes, read_model_config

    directory.mkdir(parents=True, exist_ok=True)
    _write(directory / "config.json", _CONFIG)
    template = TEMPLATE + THINKING if can_think else TEMPLATE
    _write(directory / "tokenizer_config.json", {"chat_template": template, "eos_token": SPECIAL[0]})
    _write(directory / "generation_config.json", generation)
    _make_tokenizer(directory / "tokenizer.json", ["</think>"] if can_think else [])
    save_file(_weights(expected_shapes(read_model_config(directory)), seed=0), str(directory / "model.safetensors"))
    return directory


def write_other_weights(model: Path, directory: Path, *, seed: int = 1) -> Path:
    """Weights for the model of a directory, other ones than its own."""
    from safetensors.torch import save_file

    from mac_runner.nano.architecture import expected_shapes, read_model_config

    directory.mkdir(parents=True, exist_ok=True)
    save_file(_weights(expected_shapes(read_model_config(model)), seed=seed), str(directory / "model.safetensors"))
    return directory


_CONFIG: Final[dict[str, object]] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT_TOKENS,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "eos_token_id": 0,
    "dtype": "float32",
}


def _weights(shapes: dict[str, tuple[int, ...]], *, seed: int) -> dict[str, object]:
    import torch

    generator = torch.Generator().manual_seed(seed)
    noise = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return {name: 1 + 0.2 * each if "norm" in name else 0.15 * each for name, each in noise.items()}


def _make_tokenizer(path: Path, added: list[str]) -> None:
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    from tokenizers.trainers import BpeTrainer

    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([WORDS], trainer)
    tokenizer.add_tokens(added)
    tokenizer.save(str(path))


def _write(path: Path, content: Mapping[str, object]) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")
