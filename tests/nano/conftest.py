"""Tests of the embedded engine. They need what `[nano]` brings; elsewhere one line says that they were left out."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from importlib.util import find_spec
from inspect import iscoroutinefunction, signature
from pathlib import Path
from typing import Any

import pytest
from tqdm import tqdm

from tests.patience import LIMIT_S
from tests.sim.held_steps import HeldSteps, held_steps

HAS_ENGINE = all(find_spec(package) is not None for package in ("torch", "tokenizers", "fastapi", "uvicorn"))

collect_ignore_glob = [] if HAS_ENGINE else ["*test_[!i]*.py"]
"""Without the engine all but test_installed.py."""

os.environ["HF_HUB_OFFLINE"] = "1"  # Read when the library is loaded: no test asks a server for anything.

if HAS_ENGINE:
    from tests.nano.crowds import started
    from tests.nano.tiny_models import ModelMaker, make_model


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Play a test that is a coroutine in a loop of its own, a `LOOP` of its module's where there is one.

    What a fixture gives it that has to be entered in the loop, such as a server, is entered before and left behind it.
    """
    test = pyfuncitem.obj
    if not iscoroutinefunction(test):
        return None
    given: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in signature(test).parameters}

    async def program() -> None:
        async with asyncio.timeout(LIMIT_S), AsyncExitStack() as stack:
            for name, value in given.items():
                if isinstance(value, AbstractAsyncContextManager):
                    given[name] = await stack.enter_async_context(value)
            await test(**given)

    with asyncio.Runner(loop_factory=getattr(pyfuncitem.module, "LOOP", None)) as runner:
        runner.run(program())
    return True


@pytest.fixture(scope="session", autouse=True)
def no_monitor() -> None:
    """Transformers shows progress when it loads weights; the thread that would watch over that is never ended."""
    tqdm.monitor_interval = 0


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelMaker:
    """Makes the directory of a small random model, each kind once."""
    made = dict[str, Path]()

    def make(kind: str) -> Path:
        if kind not in made:
            made[kind] = make_model(tmp_path_factory.mktemp(kind), kind)
        return made[kind]

    return make


@pytest.fixture(scope="session")
def path(model: ModelMaker) -> Path:
    """The directory of a model, where one kind is as good as another."""
    return model("qwen2")


@pytest.fixture
def engine(path: Path, request: pytest.FixtureRequest) -> Any:
    """An engine for many callers, for a coroutine."""
    return started(path, **getattr(request, "param", {}))


@pytest.fixture
def other(path: Path) -> Any:
    """Another such engine."""
    return started(path)


@pytest.fixture
def steps() -> Iterator[HeldSteps]:
    """Holds the engines of this process where the test needs a request under way."""
    with held_steps() as steps:
        yield steps
