"""What an engine is given, what is refused before it starts, and how much it takes once it has started."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Literal, cast

import pytest
from pydantic import BaseModel, field_validator

from mac_runner.backends.testing import (
    Capacity,
    EngineConfig,
    argument_names,
    cache_tokens,
    capacity_of,
    check_keys,
    engine_arguments,
    gist_of,
    objections,
    refusals,
    too_old,
)
from mac_runner.backends.vllm import VllmConfig
from mac_runner.errors import ConfigError
from mac_runner.spec import AgentDefinition
from mac_runner.types import JsonObject

SECTION = ("model_definitions", "m", "vllm_config")
KNOWN = {*VllmConfig.model_fields, "max_num_seqs", "disable_log_stats", "enforce_eager", "kv_cache_dtype"}

SOURCE = '''
class Other:
    nothing: int = 0

class EngineArgs:
    """Arguments."""
    model: str = "m"
    dtype: str = field(default="auto")
    _private: int = 0
    constant = 3

    def check(self) -> None:
        local: int = 0

class AsyncEngineArgs(EngineArgs):
    enable_log_requests: bool = False
'''


def config(**more: object) -> VllmConfig:
    return VllmConfig.model_validate({"model": "some/model", **more})


def arguments(**more: object) -> JsonObject:
    return engine_arguments(config(**more), is_cpu=False)


def test_argument_names_are_the_fields_of_vllms_two_classes() -> None:
    assert argument_names(SOURCE) == {"model", "dtype", "enable_log_requests"}


def test_release_is_taken_unless_it_is_too_old() -> None:
    for version in ("0.31.0", "0.32.1+cpu", "0.40.0", "1.0.0", "0.dev1", "of unknown version"):
        assert too_old(version, (0, 31)) is None
    for version in ("0.30.2", "0.9.1"):
        assert too_old(version, (0, 31)) == f"vLLM {version} is installed, and 0.31 or newer is needed"


def test_engine_is_given_what_the_section_says_and_nothing_it_leaves_open_or_that_is_ours() -> None:
    asked = {"attention_backend": "FLASHINFER", "enforce_eager": True, "hf_overrides": {"a": [1]}}
    given = arguments(**asked, max_num_seqs_upper_bound=9, admission="full_context", chat_template_kwargs={"a": 1})

    assert {name: given[name] for name in asked} == asked
    assert given["enable_prefix_caching"] is True
    assert not {"max_model_len", "max_num_seqs_upper_bound", "admission", "chat_template_kwargs"} & given.keys()


@pytest.mark.parametrize(
    ("more", "seqs"),
    [
        ({"max_num_seqs_upper_bound": 10}, 10),
        ({"max_num_seqs_upper_bound": 10, "data_parallel_size": 4}, 3),
        ({"max_num_seqs_upper_bound": 10, "max_num_seqs": 64}, 64),
    ],
)
def test_each_copy_batches_its_share_of_the_requests(more: JsonObject, seqs: int) -> None:
    assert arguments(**more)["max_num_seqs"] == seqs


def test_prompts_are_taken_in_whole_on_the_cpu_unless_asked_otherwise() -> None:
    assert engine_arguments(config(), is_cpu=True)["enable_chunked_prefill"] is False
    assert engine_arguments(config(enable_chunked_prefill=True), is_cpu=True)["enable_chunked_prefill"] is True
    assert "enable_chunked_prefill" not in arguments()


@pytest.mark.parametrize(
    ("more", "key", "told"),
    [
        ({"enforce_eagr": True}, ("enforce_eagr",), "did you mean 'enforce_eager'"),
        ({"zzz": 1}, ("zzz",), "such engine argument$"),
        *(
            ({name: "DEBUG"}, (name,), "VLLM_LOGGING_LEVEL")
            for name in ("log_level", "logging_config", "log_config_file")
        ),
        *(
            ({"chat_template_kwargs": {"a": True, name: True}}, ("chat_template_kwargs", name), "the name means")
            for name in ("tokenize", "conversation", "return_dict")
        ),
    ],
)
def test_key_that_the_engine_has_not_is_refused_with_its_place(
    more: JsonObject, key: tuple[str, ...], told: str
) -> None:
    with pytest.raises(ConfigError, match=rf"vllm_config\.{'.'.join(key)}: .*{told}") as caught:
        check_keys("m", config(**more), KNOWN | {"log_level", "logging_config", "log_config_file"})

    assert caught.value.key == (*SECTION, *key)
    check_keys("m", config(enforce_eager=True, kv_cache_dtype="fp8"), KNOWN)


@pytest.mark.parametrize(
    ("temperature", "is_taken"), [(0, True), (0.01, True), (2, True), (0.001, False), (2.1, False)]
)
def test_temperature_that_vllm_would_refuse_or_change_is_refused(temperature: float, is_taken: bool) -> None:
    found = dict(objections(AgentDefinition(agent_id="a", role="r", model="m", temperature=temperature)))

    assert set(found) == (set() if is_taken else {"temperature"})
    assert found.get("temperature", "vLLM takes").startswith("vLLM takes")


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


class Nested(BaseModel):
    backend: Literal["auto"] = "auto"
    cache_dtype: int = 8


def refused(raising: Exception | type[BaseModel], **given: object) -> ConfigError:
    """What becomes of this error, or of that of a model which is given these values."""
    with pytest.raises(ConfigError) as caught, refusals(SECTION, GIVEN, "0.32.0"):
        raise raising if isinstance(raising, Exception) else AssertionError(raising.model_validate(given))
    return caught.value


@pytest.mark.parametrize(
    ("error", "key", "told"),
    [
        (refused(Arguments, block_size="many"), ("block_size",), "vllm_config.block_size: vLLM 0.32.0 "),
        (
            refused(Nested, backend="xgramar"),
            ("structured_outputs_config", "backend"),
            "vllm_config.structured_outputs_config.backend: vLLM",
        ),
        # Under another name than the file has.
        (refused(Nested, cache_dtype="tiny"), (), ": cache_dtype: allowed: "),
        # It quotes the model.
        (refused(OSError("tiny/model: gated\nIf it is a private one, log in")), ("model",), ": tiny/model: gated"),
        (refused(NotImplementedError()), (), "refuses it: NotImplementedError"),
    ],
)
def test_refusal_of_vllms_own_is_one_line_with_its_key(error: ConfigError, key: tuple[str, ...], told: str) -> None:
    assert error.key == (*SECTION, *key)
    assert told in str(error)
    assert "https" not in str(error)
    assert "\n" not in str(error)


def test_refusal_of_our_own_passes_as_it_is() -> None:
    error = ConfigError("ours", key=("a",))

    assert refused(error) is error


def test_gist_of_a_validator_is_the_first_line_that_it_says() -> None:
    with pytest.raises(ValueError, match="look there") as caught:
        Arguments(model="x")

    assert gist_of(caught.value) == ("model", "no model 'x'")


def engine(
    *, seqs: int = 64, copies: int = 1, length: int = 4000, blocks: int | None = 1000, tokens: int | None = None
) -> EngineConfig:
    """An engine's configuration, with blocks of 16 tokens."""
    made = SimpleNamespace(
        cache_config=SimpleNamespace(num_gpu_blocks=blocks, block_size=16, kv_cache_size_tokens=tokens),
        model_config=SimpleNamespace(max_model_len=length),
        parallel_config=SimpleNamespace(data_parallel_size=copies),
        scheduler_config=SimpleNamespace(max_num_seqs=seqs),
    )
    return cast("EngineConfig", made)


@pytest.mark.parametrize(
    ("found", "tokens"),
    [
        (engine(), 16_000),
        (engine(copies=2), 16_000),  # vLLM sums the blocks of all copies itself.
        (engine(tokens=9_000), 9_000),
        (engine(tokens=9_000, copies=2), 18_000),
        (engine(blocks=None), 0),
    ],
)
def test_cache_holds_what_the_engine_says_of_each_copy_or_its_blocks(found: EngineConfig, tokens: int) -> None:
    assert cache_tokens(found) == tokens


def capacity(admission: str, *, bound: int = 64, seqs: int = 64, copies: int = 1, length: int = 4000) -> Capacity:
    asked = config(admission=admission, max_num_seqs_upper_bound=bound, data_parallel_size=copies)
    return capacity_of(asked, engine(seqs=seqs, copies=copies, length=length))


@pytest.mark.parametrize(
    ("length", "copies", "requests", "lookahead"),
    [(4000, 1, 4, 0), (100, 1, 64, 8), (16_001, 1, 1, 0), (5000, 2, 2, 0)],  # No request lies in two copies.
)
def test_at_full_length_as_many_as_fit_and_one_at_least(
    length: int, copies: int, requests: int, lookahead: int
) -> None:
    assert capacity("full_context", length=length, copies=copies) == Capacity(
        requests=requests, lookahead=lookahead, token_budget=None, context_tokens=length
    )


@pytest.mark.parametrize(
    ("bound", "seqs", "copies", "requests", "lookahead"),
    [
        # Never more requests than the bound or the engine's batches.
        (64, 8, 1, 8, 1),
        (64, 8, 2, 16, 2),
        (4, 8, 2, 4, 0),
        # The engine is handed more only where its own bound makes them wait.
        (64, 64, 1, 64, 8),
        (3, 3, 1, 3, 1),
        (64, 32, 2, 64, 8),
        (65, 33, 2, 65, 9),  # Shares are rounded up: one copy has a slot to spare that the bound does not count.
        (64, 100, 1, 64, 0),
        (100, 64, 1, 64, 8),
    ],
)
def test_by_tokens_requests_and_lookahead_go_by_the_bound_and_the_batches_and_share_the_cache(
    bound: int, seqs: int, copies: int, requests: int, lookahead: int
) -> None:
    assert capacity("token_budget", bound=bound, seqs=seqs, copies=copies) == Capacity(
        requests=requests, lookahead=lookahead, token_budget=16_000, context_tokens=4000
    )
