"""How engines end that do not come to serve, and prompts of models whose chat template is code."""

from __future__ import annotations

import asyncio
import shutil
from importlib import import_module
from pathlib import Path

import pytest

from mac_runner.backends.testing import Rendered, Tokenizer, VllmBackend, renderer_for
from mac_runner.clock import SystemClock
from mac_runner.errors import ConfigError
from mac_runner.types import JsonValue, Message
from tests.patience import until, wait_for
from tests.sim.building import request_for
from tests.vllm.processes import engine_processes
from tests.vllm.table import config, started
from tests.vllm.tiny_model import MODEL_TOKENS

REFUSED: tuple[tuple[dict[str, object], str, tuple[str, ...]], ...] = (
    ({"max_model_len": 10 * MODEL_TOKENS}, r"m\.vllm_config: vLLM .* refuses", ()),
    # Told of before the model is loaded: it can never work.
    ({"chat_template_kwargs": {"chat_template": "{{ broken"}}, "chat template does not", ("chat_template_kwargs",)),
    ({"reasoning_parser": "deepseek_r9"}, "parser 'deepseek_r9' not found", ()),
)


@pytest.mark.parametrize(("settings", "told", "key"), REFUSED)
def test_settings_vllm_refuses_are_the_users_error(
    tiny_model: Path, settings: dict[str, object], told: str, key: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError, match=told) as refused, started(config(tiny_model, **settings)):
        pass

    assert not key or refused.value.key == ("model_definitions", "m", "vllm_config", *key)
    assert engine_processes() == []


def test_start_that_is_given_up_leaves_nothing(tiny_model: Path) -> None:
    backend = VllmBackend(request_for(config(tiny_model), SystemClock()))

    async def program() -> None:
        task = asyncio.create_task(backend.start())
        await until(lambda: any("spawn_main" in process.command for process in engine_processes()), "an engine")
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        await backend.close()

    asyncio.run(program())

    wait_for(lambda: not engine_processes(), "the engine's end")


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
