"""The arguments of a vLLM engine: which there are, what is refused, and what the engine gets from `vllm_config`.

Which arguments there are is read from the source of the installed release. Nothing of vLLM is imported for it: an
import takes seconds, and a misspelt key is to be refused at once.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import metadata
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from mac_runner.backends.redaction import clipped
from mac_runner.backends.vllm import VllmConfig
from mac_runner.config import AgentDefinition, allowed
from mac_runner.errors import ConfigError, MissingPackageError, boundary
from mac_runner.extras import install_command
from mac_runner.types import JsonValue

OLDEST: Final = (0, 31)
"""The oldest release that has the names in `library`. docs/engines.md says which releases were run."""

_ARGUMENT_CLASSES: Final = frozenset({"EngineArgs", "AsyncEngineArgs"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """An installed vLLM that can be used: its version, and every argument that its engine takes."""

    version: str
    arguments: frozenset[str]


def find_release() -> Release:
    """The installed release. Raises ConfigError when vLLM is missing or cannot be used."""
    spec = find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        raise MissingPackageError(f"vLLM is not installed: {install_command('vllm')}, or choose another backend")
    # Builds for other hardware than NVIDIA's have distribution names of their own.
    names = metadata.packages_distributions().get("vllm", ())
    version = metadata.version(names[0]) if names else "of unknown version"
    check_version(version)
    path = Path(spec.submodule_search_locations[0]) / "engine" / "arg_utils.py"
    arguments = argument_names(SourceFileLoader("arg_utils", str(path)).get_source("arg_utils") or "")
    if not arguments:
        raise ConfigError(f"vLLM {version} lists no engine arguments in {path}; install an older one")
    return Release(version=version, arguments=arguments)


def check_version(version: str) -> None:
    """Raise ConfigError for a release older than OLDEST. Newer ones than were ever run are accepted."""
    if lack := too_old(version, OLDEST):
        raise ConfigError(f"{lack}: {install_command('vllm')}")


def too_old(version: str, oldest: tuple[int, int]) -> str | None:
    """What to say of a release that is older than `oldest`; None where it is not, or its version has no number."""
    parts = version.split(".")[:2]
    if not all(part.isdigit() for part in parts) or tuple(map(int, parts)) >= oldest:
        return None
    return f"vLLM {version} is installed, and {'.'.join(map(str, oldest))} or newer is needed"


def argument_names(source: str) -> frozenset[str]:
    return frozenset(
        statement.target.id
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef) and node.name in _ARGUMENT_CLASSES
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
        and isinstance(statement.target, ast.Name)
        and not statement.target.id.startswith("_")
    )


OURS: Final = frozenset({"max_num_seqs_upper_bound", "admission", "chat_template_kwargs"})
"""The keys of `vllm_config` that are not vLLM's."""

LOGGING: Final = frozenset({"log_config_file", "log_level", "logging_config"})
"""The arguments for what vLLM logs, and where. All engines of a process share its loggers, so the environment sets both
for all of them.
"""

TEMPERATURE_MIN: Final = 0.01
TEMPERATURE_MAX: Final = 2
"""The bounds of vLLM's SamplingParams besides 0: they refuse more, and silently raise less to the minimum."""

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
"""The tokenizer's own parameters when it applies a template; no variable of a template can have these names."""


def check_keys(name: str, config: VllmConfig, known: Iterable[str]) -> None:
    """Raise ConfigError for a key of model `name` that vLLM does not know, or that its engine or template cannot take.

    `known` are the arguments of the installed release.
    """
    section = ("model_definitions", name, "vllm_config")
    for variable in RESERVED & config.chat_template_kwargs.keys():
        place = (*section, "chat_template_kwargs", variable)
        raise ConfigError.at(place, "the name means something else to every tokenizer")
    allowed = frozenset(known)
    for key in engine_arguments(config, is_cpu=False):
        if key in LOGGING:
            text = "all engines of a process log alike; leave it out, and set VLLM_LOGGING_LEVEL in the environment"
            raise ConfigError.at((*section, key), f"{text}, or VLLM_LOGGING_CONFIG_PATH to a file of your own")
        if key not in allowed:
            near = get_close_matches(key, sorted((allowed | OURS) - LOGGING), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError.at((*section, key), f"the installed vLLM knows no such engine argument{hint}")


def objections(agent: AgentDefinition) -> Iterator[tuple[str, str]]:
    """A temperature that vLLM would refuse or change, with the reason."""
    if agent.temperature != 0 and not TEMPERATURE_MIN <= agent.temperature <= TEMPERATURE_MAX:
        text = f"vLLM takes 0, or {TEMPERATURE_MIN} to {TEMPERATURE_MAX}; found {agent.temperature}"
        yield "temperature", text


def engine_arguments(config: VllmConfig, *, is_cpu: bool) -> dict[str, JsonValue]:
    """Every argument of the engine; vLLM decides what the section leaves open."""
    given: dict[str, JsonValue] = {
        key: value for key, value in config.model_dump(mode="json").items() if key not in OURS and value is not None
    }
    # Each copy gets its share of the requests.
    share = -(-config.max_num_seqs_upper_bound // config.data_parallel_size)
    # Statistics cost part of a core, and go to a log that the user does not see.
    defaults: dict[str, JsonValue] = {"max_num_seqs": share, "disable_log_stats": True}
    if is_cpu:
        # After a part of a prompt vLLM reverts one draw, which torch cannot do with a generator on the CPU: the engine
        # dies at the first seeded prompt that is computed in parts.
        defaults["enable_chunked_prefill"] = False
    return {**defaults, **given}


@contextmanager
def refusals(section: tuple[str, ...], settings: Mapping[str, JsonValue], release: str) -> Iterator[None]:
    """Turn any error that vLLM raises while it checks the `settings` of a section into a ConfigError.

    The error has the key of the setting at fault if vLLM names it. `release` is the version of vLLM.
    """
    try:
        with boundary(ConfigError, f"vLLM {release} refuses it"):
            yield
    except ConfigError as error:
        if error.__cause__ is None or error.key:
            raise
        setting, gist = gist_of(error.__cause__)
        key = section + _place_of("model" if setting is None and str(settings["model"]) in gist else setting, settings)
        if setting is not None and key[-1] != setting:
            gist = f"{setting}: {gist}"
        raise ConfigError.at(key, f"vLLM {release} refuses it: {gist}") from error.__cause__


def _place_of(setting: str | None, settings: Mapping[str, JsonValue]) -> tuple[str, ...]:
    """The keys below the section of a setting that vLLM names; empty if it is not found there.

    vLLM uses the name in its own configuration. The section may have that part as a mapping, or another name for it.
    """
    if setting is None:
        return ()
    if setting in settings:
        return (setting,)
    parts = (part for part, given in settings.items() if isinstance(given, dict) and setting in given)
    return next(((part, setting) for part in parts), ())


def gist_of(fault: BaseException) -> tuple[str | None, str]:
    """The setting that an error names, if any, and the first line of its text.

    An error of pydantic has a list of errors instead, each with a place and a message; the first one counts.
    """
    listed: Callable[[], list[dict[str, object]]] | None = getattr(fault, "errors", None)
    text, setting = str(fault), None
    if listed is not None and (first := next(iter(listed()), None)) is not None:
        place = first.get("loc")
        setting = next((part for part in place if isinstance(part, str)), None) if isinstance(place, tuple) else None
        context = first.get("ctx")
        wanted = allowed(str(first.get("type")), context if isinstance(context, dict) else {})
        message = str(first.get("msg")).removeprefix("Value error, ").removeprefix("Assertion failed, ")
        text = message if wanted is None else f"allowed: {wanted}"
    line = next((line for line in text.splitlines() if line.strip()), type(fault).__name__)
    return setting, clipped(line).rstrip(":")
