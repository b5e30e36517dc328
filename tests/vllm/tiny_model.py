"""A model small enough to be made by a test: four layers of random weights, and a tokenizer learned from questions."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

CORPUS = Path(__file__).parents[2] / "experiments" / "questions" / "bbq_200.jsonl"
"""English that stays as it is: other words would make other tokens, and another model of the same weights."""
MODEL_TOKENS = 8192
VOCABULARY = 1024
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking or '/think' in messages[-1].content %}<think>\n{% endif %}{% endif %}"
)
THOUGHT = ("<think>", "</think>")
"""The last two tokens."""


def make_tiny_model(directory: Path, *, is_brief: bool = False, has_special_tags: bool = False) -> Path:
    """Write the model, which is the same each time, to `directory`, and return that.

    A brief one soon ends a thought. The tags of thoughts are ordinary tokens, or special ones, which are left out of a
    text.
    """
    _make_tokenizer(directory, has_special_tags=has_special_tags)
    torch, transformers = import_module("torch"), import_module("transformers")
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=MODEL_TOKENS,
        bos_token_id=0,
        pad_token_id=0,
        eos_token_id=2,
        tie_word_embeddings=False,
    )
    model = transformers.Qwen2ForCausalLM(config)
    if is_brief:
        # What it makes of the end of a thought depends on the text as of any token, and is by far more extreme.
        model.lm_head.weight.data[-1] *= 10
    model.save_pretrained(directory)
    return directory


def _make_tokenizer(directory: Path, *, has_special_tags: bool) -> None:
    tokenizers, transformers = import_module("tokenizers"), import_module("transformers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(THOUGHT),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS.read_text(encoding="utf-8").splitlines(), trainer)
    add = tokenizer.add_special_tokens if has_special_tags else tokenizer.add_tokens
    add(list(THOUGHT))
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(THOUGHT) if has_special_tags else [],
    )
    wrapped.chat_template = TEMPLATE
    wrapped.save_pretrained(directory)
