from __future__ import annotations

import dataclasses
from importlib import import_module
from importlib.util import find_spec

import pytest

from mac_runner.backends.testing import find_release

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed; .ci/vllm runs tests/vllm")


def test_engine_arguments_read_off_the_source_are_those_vllm_takes() -> None:
    arguments = import_module("vllm.engine.arg_utils").AsyncEngineArgs

    release = find_release()

    taken = {field.name for field in dataclasses.fields(arguments) if field.init and not field.name.startswith("_")}
    assert release.arguments == taken
    assert {"model", "max_num_seqs", "attention_backend", "data_parallel_size"} <= taken
