"""Prompts of models whose chat template is code, by the tokenizers vLLM has for them."""

from __future__ import annotations

import shutil
from importlib import import_module
from pathlib import Path

import pytest

from mac_runner.backends.testing import Rendered
from mac_runner.backends.vllm.testing import Tokenizer, renderer_for
from mac_runner.types import JsonValue, Message

PROMPT = (Message(role="system", content="rules"), Message(role="user", content="ask"))


def rendered(tokenizer: Tokenizer, **settings: JsonValue) -> Rendered:
    return renderer_for(tokenizer, settings, section=("m",)).render(PROMPT)


def test_deepseek_prompt_is_written_by_its_code(tiny_model: Path) -> None:
    plain = import_module("transformers").AutoTokenizer.from_pretrained(tiny_model)
    plain.chat_template = None
    tokenizer = import_module("vllm.tokenizers.deepseek_v32").get_deepseek_v32_tokenizer(plain)

    assert rendered(tokenizer).text.endswith("rules<｜User｜>ask<｜Assistant｜></think>")
    assert rendered(tokenizer, thinking=True).text.endswith("<｜Assistant｜><think>")


@pytest.mark.parametrize("file", ["tekken_240911.json", "mistral_instruct_tokenizer_241114.model.v7"])
def test_mistral_prompt_has_the_tokens_of_its_own_code(file: str, tmp_path: Path) -> None:
    package = Path(import_module("mistral_common").__path__[0])
    name = "tekken.json" if file.startswith("tekken") else "tokenizer.model.v7"
    shutil.copy(package / "data" / file, tmp_path / name)
    tokenizer = import_module("vllm.tokenizers.mistral").MistralTokenizer.from_pretrained(tmp_path)
    conversation = [{"role": message.role, "content": message.content} for message in PROMPT]

    prompt = rendered(tokenizer)

    assert prompt.ids == tokenizer.apply_chat_template(conversation, tokenize=True, add_generation_prompt=True)
    assert prompt.text.startswith("<s>[")
    assert prompt.text.endswith("[/INST]")
    assert "rules" in prompt.text
