"""How engines end that do not end well."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from mac_runner.backends.vllm.backend import VllmBackend
from mac_runner.clock import SystemClock
from mac_runner.errors import ConfigError, EngineDeadError
from mac_runner.types import Reply
from tests.patience import until
from tests.sim.requests import request
from tests.vllm.processes import engine_processes
from tests.vllm.table import BOUND, config, sampling, started
from tests.vllm.tiny_model import CONTEXT_TOKENS


def test_engine_process_that_is_killed_ends_the_run_and_leaves_nothing(tiny_model: Path) -> None:
    with started(config(tiny_model, admission="full_context", max_model_len=4096)) as table:
        assert table.backend.token_budget is None
        assert table.backend.capacity == BOUND

        async def program() -> list[Reply | BaseException]:
            asking = [
                asyncio.create_task(table.backend.generate(request(sampling=sampling(n, max_tokens=4000))))
                for n in range(3)
            ]
            await until(lambda: table.unfinished() == 3, "the requests")
            for process in engine_processes():
                os.kill(process.pid, signal.SIGKILL)
            return await asyncio.gather(*asking, return_exceptions=True)

        faults = table.runner.run(program())
        with pytest.raises(EngineDeadError):
            table.ask(request())

    assert all(isinstance(fault, EngineDeadError) for fault in faults), faults
    assert engine_processes() == []
    log = Path(str(faults[0]).rsplit(" is in ", 1)[1])
    assert "Initializing a V1 LLM engine" in log.read_text(), "the log of an engine that broke is kept"


def test_settings_vllm_refuses_are_the_users_error(tiny_model: Path) -> None:
    too_long = config(tiny_model, max_model_len=10 * CONTEXT_TOKENS)
    with pytest.raises(ConfigError, match=r"model_definitions\.m\.vllm_config: vLLM .* refuses it"), started(too_long):
        pass

    assert engine_processes() == []


def test_template_that_can_never_work_is_told_of_before_the_model_is_loaded(tiny_model: Path) -> None:
    broken = config(tiny_model, chat_template_kwargs={"chat_template": "{{ broken"})
    with pytest.raises(ConfigError, match="kwargs: the chat template does not work") as told, started(broken):
        pass

    assert told.value.key == ("model_definitions", "m", "vllm_config", "chat_template_kwargs")
    assert engine_processes() == []


def test_reasoning_parser_that_there_is_not_is_the_users_error(tiny_model: Path) -> None:
    unknown = config(tiny_model, reasoning_parser="deepseek_r9")
    with pytest.raises(ConfigError, match="Reasoning parser 'deepseek_r9' not found"), started(unknown):
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
