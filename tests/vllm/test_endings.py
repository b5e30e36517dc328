"""How engines end that do not come to serve."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mac_runner.backends.vllm.testing import VllmBackend
from mac_runner.clock import SystemClock
from mac_runner.errors import ConfigError
from tests.patience import until
from tests.vllm.processes import engine_processes
from tests.vllm.table import config, started
from tests.vllm.tiny_model import MODEL_TOKENS


def test_settings_vllm_refuses_are_the_users_error(tiny_model: Path) -> None:
    too_long = config(tiny_model, max_model_len=10 * MODEL_TOKENS)
    with pytest.raises(ConfigError, match=r"m\.vllm_config: vLLM .* refuses"), started(too_long):
        pass

    assert engine_processes() == []


def test_template_that_can_never_work_is_told_of_before_the_model_is_loaded(tiny_model: Path) -> None:
    broken = config(tiny_model, chat_template_kwargs={"chat_template": "{{ broken"})
    with pytest.raises(ConfigError, match="chat template does not") as told, started(broken):
        pass

    assert told.value.key == ("model_definitions", "m", "vllm_config", "chat_template_kwargs")
    assert engine_processes() == []


def test_reasoning_parser_that_there_is_not_is_the_users_error(tiny_model: Path) -> None:
    unknown = config(tiny_model, reasoning_parser="deepseek_r9")
    with pytest.raises(ConfigError, match="parser 'deepseek_r9' not found"), started(unknown):
        pass

    assert engine_processes() == []


def test_start_that_is_given_up_leaves_nothing(tiny_model: Path) -> None:
    backend = VllmBackend(name="m", config=config(tiny_model), traces=False, clock=SystemClock(), say=lambda line: None)

    async def program() -> None:
        task = asyncio.create_task(backend.start())
        await until(lambda: any("spawn_main" in process.command for process in engine_processes()), "an engine")
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        await backend.close()

    asyncio.run(program())

    assert engine_processes() == []
