"""What each key of a mac-fairness file becomes: keys of ours, or the reason why it is left out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from mac_runner.problems import found, suggestion
from mac_runner.section import NAME_PATTERN, KeyPath
from mac_runner.types import JsonObject, JsonValue

NAME: Final[KeyPath] = ("experiment_metadata", "experiment_name")
QUESTIONS: Final[KeyPath] = ("discussion", "questions")
OPENAI_URL: Final = "https://api.openai.com/v1"


class Setting(NamedTuple):
    """A value for a key of ours."""

    path: KeyPath
    value: JsonValue


class LeftOutError(Exception):
    """A key is not carried over; the text is the reason and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What the meaning of a key depends on besides its value."""

    backends: Mapping[str, str]
    """The backend of each model."""
    models: Mapping[int, str]
    """The model of each agent."""
    api: Mapping[str, JsonObject]
    """The `api_config` of each model."""
    rounds: JsonValue
    """How many rounds there are."""
    find: Callable[[str], str]
    """Where a file of questions is, from the folder that our file is written to."""


Rule: TypeAlias = Callable[[Context, KeyPath, JsonValue], Iterator[Setting]]


def rule_of(path: KeyPath, backends: Mapping[str, str]) -> Rule | None:
    """The rule for the key at a path; None for a key that mac-fairness does not have."""
    below = ".".join(map(str, path[2:]))
    if path[0] == "model_definitions" and below:
        return _MODEL.get(backends.get(str(path[1]), ""), {}).get(below) or _ANY_MODEL.get(below)
    if path[0] == "agent_definitions" and below:
        return _AGENT.get(below) if isinstance(path[1], int) else None
    return _RULES.get(".".join(map(str, path)))


def unknown(path: KeyPath) -> str:
    """What to say of a key that mac-fairness does not have."""
    if "vllm_config" in path:
        return "mac-fairness ignores it; for an argument of vLLM, write it in our vllm_config under vLLM's name"
    return "is no key of mac-fairness; write what it means with a key of ours"


def name_of(text: str) -> str:
    """A text as a name has it."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("._-")[:80]


def _to(target: str, change: Callable[[JsonValue], JsonValue] = lambda value: value) -> Rule:
    """A key of another name, and its value changed; `*` in the name is the model or the agent."""

    def rule(_context: Context, path: KeyPath, value: JsonValue) -> Iterator[Setting]:
        ours = tuple(path[1] if part == "*" else part for part in target.split("."))
        yield Setting(ours, change(value))

    return rule


def _left(reason: str) -> Rule:
    def rule(_context: Context, _path: KeyPath, _value: JsonValue) -> Iterator[Setting]:
        raise LeftOutError(reason)

    return rule


def _word(words: Mapping[str, JsonValue]) -> Callable[[JsonValue], JsonValue]:
    def change(value: JsonValue) -> JsonValue:
        if not isinstance(value, str) or value not in words:
            known = suggestion(value, words) if isinstance(value, str) else ""
            raise LeftOutError(f"{found(value)}, which mac-fairness does not have{known}; write a value of ours")
        return words[value]

    return change


def _switch(if_true: JsonValue, if_false: JsonValue) -> Callable[[JsonValue], JsonValue]:
    def change(value: JsonValue) -> JsonValue:
        if not isinstance(value, bool):
            raise LeftOutError(f"{found(value)}; it is true or false")
        return if_true if value else if_false

    return change


def _number(value: JsonValue) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise LeftOutError(f"{found(value)}; it is a number")
    return value


def _threshold(value: JsonValue) -> JsonValue:
    """A likeness out of 1 as one out of 100; ours begins at 50."""
    return float(max(50, min(100, round(100 * _number(value), 2))))


def _name(_context: Context, _path: KeyPath, value: JsonValue) -> Iterator[Setting]:
    text = name_of(str(value))
    if not re.fullmatch(NAME_PATTERN, text):
        raise LeftOutError(f"{found(value)}, which names no directory; write a name")
    yield Setting(NAME, text)
    if text != value:
        raise LeftOutError(f"{found(value)}; the name is {text} (a name has letters, digits, '.', '_' and '-')")


def _questions(context: Context, _path: KeyPath, value: JsonValue) -> Iterator[Setting]:
    if not isinstance(value, str):
        raise LeftOutError(f"{found(value)}; name a file under discussion.questions")
    yield Setting(QUESTIONS, [context.find(value)])


def _routing(_context: Context, _path: KeyPath, value: JsonValue) -> Iterator[Setting]:
    if value != "vanilla":
        raise LeftOutError(f"{found(value)}; only vanilla is known: describe it with discussion.routing_strategy")
    yield Setting(("discussion", "routing_strategy", "history_rounds"), 1)
    yield Setting(("discussion", "routing_strategy", "topology"), "everyone")


def _reveal(key: str, shown: JsonValue, hidden: JsonValue) -> Rule:
    """A key of what is shown; in a first round nothing is, and where it is the only one, ours hides it altogether."""

    def rule(context: Context, _path: KeyPath, value: JsonValue) -> Iterator[Setting]:
        is_shown = _switch(True, False)(value)
        is_never = context.rounds == 1
        yield Setting(("discussion", "identity_reveal_config", key), shown if is_shown and not is_never else hidden)
        if is_shown and is_never:
            raise LeftOutError("with one round no agent there reads another; raise discussion.max_rounds to show it")

    return rule


def _retrying(key: str) -> Rule:
    def rule(_context: Context, _path: KeyPath, value: JsonValue) -> Iterator[Setting]:
        if value is not True:
            raise LeftOutError(f"mac-fairness retries all the same; set {key} to retry less")
        yield from ()

    return rule


def _devices(_context: Context, path: KeyPath, value: JsonValue) -> Iterator[Setting]:
    if not isinstance(value, list):
        raise LeftOutError(f"{found(value)}; it lists GPUs")
    yield Setting(("model_definitions", path[1], "vllm_config", "tensor_parallel_size"), len(value))
    raise LeftOutError("only their number is carried over; choose them with CUDA_VISIBLE_DEVICES")


def _base_url(section: str, key: str) -> Rule:
    def rule(_context: Context, path: KeyPath, value: JsonValue) -> Iterator[Setting]:
        if value is not None:
            yield Setting(("model_definitions", path[1], section, key), [value] if key == "base_urls" else value)

    return rule


def _speakers(key: str, change: Callable[[JsonValue], JsonValue] = lambda value: value) -> Rule:
    """A key of a model that ours have at each agent."""

    def rule(context: Context, path: KeyPath, value: JsonValue) -> Iterator[Setting]:
        for place, model in context.models.items():
            if model == path[1]:
                yield Setting(("agent_definitions", place, key), change(value))

    return rule


def _sampled(context: Context, path: KeyPath, value: JsonValue) -> Iterator[Setting]:
    """A sampling setting, unless the model's backend does not send it."""
    key, model = str(path[2]), context.models.get(int(path[1]), "")
    backend, api = context.backends.get(model, ""), context.api.get(model, {})
    is_hosted = backend in ("openai", "anthropic")
    if key == "temperature" and is_hosted and not api.get("send_temperature", backend == "anthropic"):
        raise LeftOutError(
            f"mac-fairness does not send it to {model} (send_temperature); ours is 1, as by default there"
        )
    if key == "temperature" and backend == "anthropic" and api.get("thinking", "disabled") != "disabled":
        raise LeftOutError(f"mac-fairness does not send it to {model}, which thinks; ours is 1, their default")
    if key == "top_p" and is_hosted and not api.get("send_top_p", False):
        raise LeftOutError(f"mac-fairness does not send it to {model} (send_top_p); write top_p if it should be sent")
    if key in ("top_k", "min_p", "presence_penalty") and is_hosted:
        raise LeftOutError(f"mac-fairness does not send it to {model}, whose backend is {backend}")
    yield Setting(path, None if key == "top_k" and value in (-1, 0) else value)


def _thinking(context: Context, path: KeyPath, value: JsonValue) -> Iterator[Setting]:
    model = context.models.get(int(path[1]), "")
    if context.backends.get(model) not in (None, "vllm"):
        raise LeftOutError(f"mac-fairness uses it with vLLM only, and {model} has {context.backends[model]}")
    if value is not None:
        yield Setting((*path[:2], "thinking"), _switch(True, False)(value))


_FORMATS: Final[Mapping[str, JsonValue]] = {
    "bullet": "bullet",
    "none": "none",
    **{
        f"{theirs}_{sign}": f"{ours}_{word}"
        for theirs, ours in (("letter", "letters"), ("arabic", "numerals"), ("roman", "roman"))
        for sign, word in (("colon", "colon"), ("dot", "dot"), ("paren", "parenthesis"))
    },
}
_ORDERS: Final[Mapping[str, JsonValue]] = {order: order for order in ("answer_first", "rationale_first")}
_PARTICIPANT: Final = "prompt_template_config.for_participant"

_RULES: Final[Mapping[str, Rule]] = {
    "experiment_metadata.experiment_name": _name,
    "experiment_metadata.benchmark_subcategory": _left("only named a folder of results; discussion.questions say it"),
    "experiment_metadata.schema_version": _left("is the format of the other file; ours has the line of its schema"),
    "experiment_metadata.questions_file": _questions,
    "conversation_config.routing_strategy": _routing,
    "conversation_config.max_rounds": _to("discussion.max_rounds"),
    "retry_config.max_retries": _to("retry_config.max_retries"),
    "retry_config.answer_match_threshold": _to("discussion.answers.near_match_threshold", _threshold),
    "retry_config.retry_on_validation_error": _retrying("retry_config.max_retries"),
    "retry_config.retry_on_generation_error": _retrying("retry_config.max_attempts"),
    "identity_reveal_config.reveal_persona": _reveal("persona", True, False),
    "identity_reveal_config.reveal_demographics": _reveal("demographics", True, False),
    "identity_reveal_config.reveal_presence_mode": _reveal("presence_mode", "as_declared", "hidden"),
    f"{_PARTICIPANT}.choice_display_format": _to("discussion.prompt.choice_format", _word(_FORMATS)),
    f"{_PARTICIPANT}.json_field_order": _to("discussion.prompt.answer_order", _word(_ORDERS)),
}

_ANY_MODEL: Final[Mapping[str, Rule]] = {"backend": _to("model_definitions.*.backend")}


def _engine(section: str, keys: Mapping[str, str]) -> Mapping[str, Rule]:
    """Keys of a model that are keys of the section of its backend."""
    return {theirs: _to(f"model_definitions.*.{section}.{ours}") for theirs, ours in keys.items()}


_API: Final = {
    "model_name": "model",
    "model_path": "model",
    "max_num_seqs": "max_in_flight",
    "api_config.max_concurrent_requests": "max_in_flight",
    "api_config.api_key_env": "api_key_env",
    "api_config.timeout_seconds": "timeout_s",
}
_API_RULES: Final[Mapping[str, Rule]] = {
    "api_config.max_retries": _to("retry_config.max_attempts", lambda value: int(_number(value)) + 1),
    "api_config.send_temperature": lambda _context, _path, _value: iter(()),
    "api_config.send_top_p": lambda _context, _path, _value: iter(()),
}
_VLLM_KEYS: Final = (
    "tensor_parallel_size",
    "gpu_memory_utilization",
    "max_model_len",
    "dtype",
    "max_num_seqs_upper_bound",
    "enable_prefix_caching",
    "swap_space",
    "enforce_eager",
    "quantization",
    "attention_backend",
)

_MODEL: Final[Mapping[str, Mapping[str, Rule]]] = {
    "vllm": {
        **_engine("vllm_config", {"model_path": "model", "model_name": "model"}),
        **_engine("vllm_config", {f"vllm_config.{key}": key for key in _VLLM_KEYS}),
        "vllm_config.gpu_device_ids": _devices,
    },
    "ollama": {
        **_engine("ollama_config", {"model_name": "model", "ollama_config.num_ctx": "num_ctx"}),
        **_engine("ollama_config", {"ollama_api_url": "host", "max_num_seqs": "max_in_flight"}),
        "timeout_seconds": _to("retry_config.request_deadline_s"),
    },
    "openai": {
        **_engine("openai_config", _API),
        **_API_RULES,
        "api_config.base_url": _base_url("openai_config", "base_urls"),
        "api_config.reasoning_effort": _speakers("reasoning_effort"),
        "api_config.verbosity": _speakers("verbosity"),
    },
    "anthropic": {
        **_engine("anthropic_config", _API),
        **_API_RULES,
        "api_config.base_url": _base_url("anthropic_config", "base_url"),
        "api_config.thinking": _speakers("thinking", _word({"disabled": False, "adaptive": True})),
        "api_config.effort": _speakers("reasoning_effort"),
    },
}

_AGENT: Final[Mapping[str, Rule]] = {
    **{
        key: _to(f"agent_definitions.*.{key}")
        for key in (
            *("agent_id", "role", "persona", "if_as_human", "model", "max_tokens"),
            "role_specific_config.speak_after_within_round",
        )
    },
    "demographics": _to("agent_definitions.*.demographics", lambda value: {} if value is None else value),
    **dict.fromkeys(("temperature", "top_p", "top_k", "min_p", "presence_penalty"), _sampled),
    "enable_thinking": _thinking,
}
