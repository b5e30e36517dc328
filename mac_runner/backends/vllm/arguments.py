"""From `vllm_config` to the arguments of an engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Final

from mac_runner.backends.vllm.settings import VllmConfig
from mac_runner.config import AgentDefinition
from mac_runner.errors import ConfigError
from mac_runner.types import JsonValue

OURS: Final = frozenset({"max_num_seqs_upper_bound", "admission", "chat_template_kwargs"})
"""The keys of `vllm_config` that are not vLLM's."""

LOGGING: Final = frozenset({"log_config_file", "log_level", "logging_config"})
"""The arguments that say what vLLM logs, and where. All engines of a process share its loggers, so neither can be said
of one engine; the environment says it of all.
"""

TEMPERATURE_MIN: Final = 0.01
TEMPERATURE_MAX: Final = 2
"""What vLLM's SamplingParams take besides 0: they refuse more, and silently turn less into the minimum."""

RESERVED: Final = frozenset(
    {
        "conversation",
        "messages",
        "tokenize",
        "tokenizer_kwargs",
        "add_generation_prompt",
        "continue_final_message",
        "padding",
        "truncation",
        "max_length",
        "return_tensors",
        "return_dict",
        "return_assistant_tokens_mask",
    }
)
"""The names of what a tokenizer itself is told when it applies a template; no variable of a template can have them."""


def check_keys(name: str, config: VllmConfig, known: Iterable[str]) -> None:
    """Refuse a key of model `name` that vLLM does not know, that no engine has for itself, or that its template cannot
    be given. Raises ConfigError.
    """
    for variable in RESERVED & config.chat_template_kwargs.keys():
        raise ConfigError(
            f"model_definitions.{name}.vllm_config.chat_template_kwargs.{variable}: the name means something else to "
            "every tokenizer",
            key=("model_definitions", name, "vllm_config", "chat_template_kwargs", variable),
        )
    allowed = frozenset(known)
    for key in engine_arguments(config, is_cpu=False):
        if key in LOGGING:
            raise ConfigError(
                f"model_definitions.{name}.vllm_config.{key}: all engines of a process log alike; leave it out, and "
                "set VLLM_LOGGING_LEVEL in the environment, or VLLM_LOGGING_CONFIG_PATH to a file of your own",
                key=("model_definitions", name, "vllm_config", key),
            )
        if key not in allowed:
            near = get_close_matches(key, sorted((allowed | OURS) - LOGGING), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(
                f"model_definitions.{name}.vllm_config.{key}: the installed vLLM knows no such engine argument{hint}",
                key=("model_definitions", name, "vllm_config", key),
            )


def check_agents(name: str, agents: Sequence[AgentDefinition]) -> None:
    """Refuse a temperature of an agent of model `name` that vLLM would refuse or change. Raises ConfigError."""
    for index, agent in enumerate(agents):
        if agent.model != name or agent.temperature == 0 or TEMPERATURE_MIN <= agent.temperature <= TEMPERATURE_MAX:
            continue
        raise ConfigError(
            f"agent_definitions.{index}.temperature: vLLM takes 0, or {TEMPERATURE_MIN} to {TEMPERATURE_MAX}; found "
            f"{agent.temperature}",
            key=("agent_definitions", index, "temperature"),
        )


def engine_arguments(config: VllmConfig, *, is_cpu: bool) -> dict[str, JsonValue]:
    """Every argument the engine is given; what the section leaves open is left to vLLM."""
    given: dict[str, JsonValue] = {
        key: value for key, value in config.model_dump(mode="json").items() if key not in OURS and value is not None
    }
    # Each copy gets its share of the requests.
    share = -(-config.max_num_seqs_upper_bound // config.data_parallel_size)
    # Statistics cost part of a core, and would go to a log that nobody reads.
    defaults: dict[str, JsonValue] = {"max_num_seqs": share, "disable_log_stats": True}
    if is_cpu:
        # After a part of a prompt vLLM takes back the draw it made too many, and torch has no way to do that with a
        # generator on the CPU: the engine dies of the first seeded prompt that is taken in parts.
        defaults["enable_chunked_prefill"] = False
    return {**defaults, **given}
