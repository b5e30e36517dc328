from __future__ import annotations

from typing import Literal

import pytest
from pydantic import BaseModel, field_validator

from mac_runner.backends.vllm.testing import cause_in, gist_of, refusals
from mac_runner.errors import ConfigError
from mac_runner.types import JsonObject

SECTION = ("model_definitions", "m", "vllm_config")
LINE = "2026-11-22 00:40:13,604 32119 vllm.v1"
TRACE = 'Traceback (most recent call last):\n  File "x.py", line 9, in run\n    run(\n        ^^^\n'
TOO_SMALL = "ValueError: 0.5 GiB of KV cache is needed, and 0.1 GiB is there."


def error(message: str, raised: str) -> str:
    return f"ERROR {LINE}.core {message}\n{TRACE}{raised}\n"


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ("", None),
        (f"INFO {LINE}.core ERROR is what it does not say\nValueError: nor here\n", None),
        (f"ERROR {LINE}.core No room is left.\nINFO {LINE}.core bye\nValueError: not of it\n", "No room is left."),
        (error("EngineCore failed to start.", TOO_SMALL), TOO_SMALL),
        (error("An early one.", "KeyError: 'a'") + error("EngineCore failed to start.", TOO_SMALL), TOO_SMALL),
        (error("EngineCore failed to start.", TOO_SMALL) + f"ERROR {LINE}.core Worker died unexpectedly.\n", TOO_SMALL),
        (error("A worker failed.", "torch.OutOfMemoryError: no more\n  of it"), "torch.OutOfMemoryError: no more"),
    ],
)
def test_cause_is_the_last_error_of_the_log(log: str, cause: str | None) -> None:
    assert cause_in(log) == cause


@pytest.mark.parametrize(
    ("message", "raised"),
    [
        ("WorkerProc failed to start.", "BrokenPipeError: [Errno 32] Broken pipe"),
        ("EngineCore failed.", "Exception: WorkerProc initialization failed. See stack trace for root cause."),
        ("output_handler failed.", "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."),
    ],
)
def test_what_an_error_brought_down_is_not_the_cause(message: str, raised: str) -> None:
    follow_on = error(message, raised)

    assert cause_in(follow_on) is None
    assert cause_in(error("A worker failed.", TOO_SMALL) + follow_on) == TOO_SMALL


GIVEN: JsonObject = {
    "model": "tiny/model",
    "block_size": "many",
    "kv_cache_dtype": "tiny",
    "structured_outputs_config": {"backend": "xgramar"},
}


class Arguments(BaseModel):
    model: str = ""
    block_size: int = 16

    @field_validator("model")
    @classmethod
    def _known(cls, value: str) -> str:
        if value:
            raise ValueError(f"no model {value!r}:\n1. look here\n2. look there")
        return value


def refused(raising: Exception) -> ConfigError:
    with pytest.raises(ConfigError) as caught, refusals(SECTION, GIVEN, "0.32.0"):
        raise raising
    return caught.value


def test_refusal_of_one_setting_is_one_line_with_its_key() -> None:
    with pytest.raises(ConfigError) as caught, refusals(SECTION, GIVEN, "0.32.0"):
        Arguments.model_validate({"block_size": "many"})

    assert caught.value.key == (*SECTION, "block_size")
    assert "vllm_config.block_size: vLLM 0.32.0 " in str(caught.value)
    assert not {"\n", "https"} & {*str(caught.value).split()}
    assert "\n" not in str(caught.value)


class Nested(BaseModel):
    backend: Literal["auto"] = "auto"
    cache_dtype: int = 8


def test_refusal_of_a_part_of_a_setting_has_the_keys_of_both() -> None:
    with pytest.raises(ConfigError) as caught, refusals(SECTION, GIVEN, "0.32.0"):
        Nested.model_validate({"backend": "xgramar"})

    assert "vllm_config.structured_outputs_config.backend: vLLM" in str(caught.value)
    assert caught.value.key == (*SECTION, "structured_outputs_config", "backend")


def test_refusal_under_another_name_than_the_file_has_is_about_the_section_and_says_the_name() -> None:
    with pytest.raises(ConfigError) as caught, refusals(SECTION, GIVEN, "0.32.0"):
        Nested.model_validate({"cache_dtype": "tiny"})

    assert ": cache_dtype: allowed: " in str(caught.value)
    assert caught.value.key == SECTION


def test_refusal_that_quotes_the_model_is_about_the_model() -> None:
    error = refused(OSError("tiny/model: gated\nIf this is a private one, log in"))

    assert error.key == (*SECTION, "model")
    assert str(error).endswith(": tiny/model: gated")


def test_refusal_of_nothing_in_particular_is_about_the_section() -> None:
    assert refused(NotImplementedError()).key == SECTION
    assert str(refused(NotImplementedError())).endswith("refuses it: NotImplementedError")


def test_refusal_of_our_own_passes_as_it_is() -> None:
    error = ConfigError("ours", key=("a",))

    assert refused(error) is error


def test_gist_of_a_validator_is_the_first_line_that_it_says() -> None:
    with pytest.raises(ValueError, match="look there") as caught:
        Arguments(model="x")

    assert gist_of(caught.value) == ("model", "no model 'x'")
