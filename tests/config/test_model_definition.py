from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from mac_runner.config import Difference, Loaded, differences
from mac_runner.config.testing import file_schema, parse_document
from mac_runner.types import JsonValue

Load = Callable[..., Loaded]


@pytest.fixture
def vllm_text(game_text: str) -> str:
    section = "vllm_config: {model: q, enforce_eager: true, hf_overrides: {a: [1]}, chat_template_kwargs: {b: 1}}"
    return game_text.replace("scripted\n", "vllm\n").replace("scripted_config: {policy: random}", section)


def test_engine_arguments_the_schema_does_not_name_are_kept(load: Load, vllm_text: str) -> None:
    resolved: Any = load(vllm_text).resolved
    section = resolved["model_definitions"]["folk"]["vllm_config"]

    assert section["enforce_eager"] is True
    assert section["hf_overrides"] == {"a": [1]}
    assert section["admission"] == "token_budget"


def test_file_with_them_satisfies_the_schema(vllm_text: str) -> None:
    jsonschema.validate(parse_document(vllm_text.encode(), "f").value, file_schema())


def test_changing_them_makes_another_run(load: Load, vllm_text: str) -> None:
    changes: dict[str, tuple[JsonValue, JsonValue]] = {
        "enforce_eager": (True, False),
        "hf_overrides.a": ([1], [2]),
        "chat_template_kwargs.b": (1, 2),
        "swap": (None, 3),
    }
    before = load(vllm_text).resolved
    for key, (old, new) in changes.items():
        override = f"model_definitions.folk.vllm_config.{key}"
        after = load(vllm_text, overrides=[f"{override}={str(new).lower()}"]).resolved

        assert differences(before, after) == ((Difference(override, old, new),), ())
