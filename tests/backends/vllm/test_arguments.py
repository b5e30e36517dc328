from __future__ import annotations

from contextlib import nullcontext

import pytest

from mac_runner.backends.vllm import VllmConfig
from mac_runner.backends.vllm.testing import check_agents, check_keys, engine_arguments
from mac_runner.config import AgentDefinition
from mac_runner.errors import ConfigError
from mac_runner.types import JsonObject

KNOWN = {*VllmConfig.model_fields, "max_num_seqs", "disable_log_stats", "enforce_eager", "kv_cache_dtype"}


def config(**more: object) -> VllmConfig:
    return VllmConfig.model_validate({"model": "some/model", **more})


def arguments(**more: object) -> JsonObject:
    return engine_arguments(config(**more), is_cpu=False)


def test_engine_is_given_what_the_section_says_and_nothing_it_leaves_open() -> None:
    given = arguments(attention_backend="FLASHINFER", enforce_eager=True, hf_overrides={"a": [1]})

    assert given["attention_backend"] == "FLASHINFER"
    assert given["enforce_eager"] is True
    assert given["hf_overrides"] == {"a": [1]}
    assert given["enable_prefix_caching"] is True
    assert "max_model_len" not in given


def test_keys_of_ours_are_not_vllms() -> None:
    given = arguments(max_num_seqs_upper_bound=9, admission="full_context", chat_template_kwargs={"a": 1})

    assert not {"max_num_seqs_upper_bound", "admission", "chat_template_kwargs"} & given.keys()


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
    assert "enable_chunked_prefill" not in engine_arguments(config(), is_cpu=False)


def test_known_keys_pass() -> None:
    check_keys("m", config(enforce_eager=True, kv_cache_dtype="fp8"), KNOWN)


def test_an_unknown_key_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(ConfigError, match=r"vllm_config\.enforce_eagr: .* did you mean 'enforce_eager'") as caught:
        check_keys("m", config(enforce_eagr=True), KNOWN)

    assert caught.value.key == ("model_definitions", "m", "vllm_config", "enforce_eagr")


def test_a_key_like_no_other_is_refused_without_a_guess() -> None:
    with pytest.raises(ConfigError, match=r"such engine argument$"):
        check_keys("m", config(zzz=1), KNOWN)


@pytest.mark.parametrize("key", ["log_level", "logging_config", "log_config_file"])
def test_logging_of_one_engine_is_refused_with_what_sets_it_for_all(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"m\.vllm_config\.{key}: .*VLLM_LOGGING_LEVEL") as caught:
        check_keys("m", config(**{key: "DEBUG"}), {*KNOWN, key})

    assert caught.value.key == ("model_definitions", "m", "vllm_config", key)


@pytest.mark.parametrize("variable", ["tokenize", "conversation", "return_dict"])
def test_a_name_that_no_variable_of_a_template_can_have_is_refused(variable: str) -> None:
    section = config(chat_template_kwargs={"enable_thinking": True, variable: True})

    with pytest.raises(ConfigError, match=rf"chat_template_kwargs\.{variable}: the name means") as caught:
        check_keys("m", section, KNOWN)

    assert caught.value.key == ("model_definitions", "m", "vllm_config", "chat_template_kwargs", variable)


@pytest.mark.parametrize(
    ("temperature", "is_taken"), [(0, True), (0.01, True), (2, True), (0.001, False), (2.1, False)]
)
def test_temperature_that_vllm_would_refuse_or_change_is_refused_with_its_place(
    temperature: float, is_taken: bool
) -> None:
    others = AgentDefinition(agent_id="a", role="r", model="other", temperature=9)
    agents = (others, AgentDefinition(agent_id="b", role="r", model="m", temperature=temperature))
    with (
        nullcontext()
        if is_taken
        else pytest.raises(ConfigError, match=r"^agent_definitions\.1\.temperature: vLLM takes")
    ):
        check_agents("m", agents)
