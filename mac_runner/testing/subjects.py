"""The environment that a name or an experiment file means, set up to be tried."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Final

from mac_runner.config import Experiment, load_experiment
from mac_runner.config.document import Document, parse_document
from mac_runner.config.resolution import draft_of, resolved
from mac_runner.environments import build_environment
from mac_runner.environments.base import Environment
from mac_runner.errors import ConfigError, ConversationError, MacRunnerError, boundary
from mac_runner.plan import plan_tasks
from mac_runner.registry import ENVIRONMENTS
from mac_runner.testing.promises import Subject
from mac_runner.testing.request import CheckRequest
from mac_runner.types import JsonObject, JsonValue

SOURCE: Final = "mac-run check"
AGENTS: Final = ("Abel", "Bob", "Caleb", "Dora", "Eve", "Felix", "Grace", "Hugo", "Iris", "Jonas", "Kate", "Leo")
_COUNTS: Final = (5, 2, 3, 4, 6, 7, 8, 1)
"""How many agents are tried, where nothing says how many there are."""


def subject_of(request: CheckRequest) -> Subject:
    """The environment of a request. Raises ConfigError for what cannot be loaded."""
    if request.target.endswith((".yaml", ".yml")):
        if request.agents is not None:
            raise ConfigError(f"--agents: {request.target} has the agents; leave the flag out")
        overrides = [f"settings.{each}" for each in request.settings]
        overrides.append(f"conversation_config.conversations={request.conversations}")
        return _subject(_unlimited(load_experiment(Path(request.target), overrides=overrides).experiment), request)
    if request.target in ENVIRONMENTS:
        raise ConfigError(
            f"{request.target} is built in and needs a whole experiment; name a file: mac-run check FILE.yaml"
        )
    if request.agents is not None:
        return _subject(_experiment(request, request.agents), request)
    first = _experiment(request, _COUNTS[0])
    if build_environment(first).lineup is not None:
        return _subject(_experiment(request, 2), request)
    counts = (count for count in _COUNTS if _opens(_experiment(request, count)))
    return _subject(_experiment(request, next(counts, _COUNTS[0])), request)


def _experiment(request: CheckRequest, count: int) -> Experiment:
    """An experiment of so many agents in which the environment is played."""
    names = [*AGENTS, *(f"Agent{number}" for number in range(len(AGENTS) + 1, count + 1))][:count]
    value: JsonObject = {
        "experiment_metadata": {"experiment_name": "check"},
        "conversation_config": {"environment": request.target, "conversations": request.conversations},
        "model_definitions": {"player": {"backend": "scripted", "scripted_config": {"policy": "random"}}},
        "agent_definitions": [{"agent_id": name, "role": "player", "model": "player"} for name in names],
    }
    if request.settings:
        value["settings"] = _settings(request.settings)
    return _unlimited(resolved(draft_of(value, Document(value=value, lines={}), SOURCE), Path()).experiment)


def _unlimited(experiment: Experiment) -> Experiment:
    """Without a limit on its steps: the process of the check has a watchdog, and tries nothing after one that hangs."""
    conversation = experiment.conversation_config.model_copy(update={"step_limit_s": None})
    return experiment.model_copy(update={"conversation_config": conversation})


def _settings(pairs: tuple[str, ...]) -> JsonObject:
    """The mapping of KEY=VALUE pairs; a key may have dots. Raises ConfigError."""
    settings: JsonObject = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not all(key.split(".")):
            raise ConfigError(f"--settings {pair}: write KEY=VALUE, such as max_days=3")
        value: JsonValue = parse_document(text.encode("utf-8", "surrogatepass"), f"--settings {key}").value
        here = settings
        *parents, last = key.split(".")
        for parent in parents:
            inner = here.setdefault(parent, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"--settings {pair}: {parent} is a single value; it has nothing below it")
            here = inner
        here[last] = value
    return settings


def _opens(experiment: Experiment) -> bool:
    """Whether a first conversation of the experiment begins."""
    try:
        with boundary(ConversationError, ""):
            environment = build_environment(experiment)
            environment.open(next(plan_tasks(experiment, environment.lineup)))
    except ConversationError:
        return False
    return True


def _subject(experiment: Experiment, request: CheckRequest) -> Subject:
    environment = build_environment(experiment)
    spec = experiment.spec
    code = experiment.plugins.get(experiment.conversation_config.environment)
    return Subject(
        build=lambda: build_environment(experiment),
        tasks=tuple(islice(plan_tasks(experiment, environment.lineup), request.conversations)),
        kind=spec.section,
        policy=request.policy if request.policy is not None else _random(environment),
        results=None if spec.results is None else spec.results(),
        turns_max=request.turns,
        stops=12,
        code=Path(code.path) if code is not None and code.sha256 else None,
    )


def _random(environment: Environment) -> str | None:
    """The scripted player `random`, where the environment has it."""
    try:
        with boundary(ConfigError, ""):
            environment.policy("random")
    except MacRunnerError:
        return None
    return "random"
