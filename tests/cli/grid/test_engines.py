"""Which engines a grid needs, and which of its combinations are at work at the same time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from mac_runner.backends import Backend
from mac_runner.backends.testing import build_backend
from mac_runner.clock import SystemClock
from mac_runner.config import Loaded, ModelDefinition
from mac_runner.errors import ConfigError
from mac_runner.runs import ExperimentSet, RunRequest, engines, set_up
from mac_runner.runs.testing import Engine, EnginePlan, plan_engines
from mac_runner.types import JsonObject, JsonValue
from tests.cli.lab import experiment, scripted

Lay = Callable[..., ExperimentSet]
OPENAI: JsonObject = {"backend": "openai", "openai_config": {"model": "x", "base_urls": ["http://127.0.0.1:1/v1"]}}


@pytest.fixture
def lay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lay:
    """The combinations of a sweep over an experiment."""
    monkeypatch.chdir(tmp_path)

    def laid(sweep: JsonObject, **more: JsonValue) -> ExperimentSet:
        content = {**experiment(**more), "_grid": {"sweep": sweep}}  # type: ignore[arg-type]
        Path("grid.yaml").write_text(yaml.safe_dump(content))
        return set_up(RunRequest(file=Path("grid.yaml")))

    return laid


def plan(setup: ExperimentSet) -> EnginePlan:
    return plan_engines(setup.setups, setup.setups, SystemClock(), lambda line: None)


def engines_of(setup: ExperimentSet) -> list[dict[str, str]]:
    """For each combination, which engine serves which model."""
    found = plan(setup)
    return [dict(found.served[one.slug]) for one in setup.setups]


def test_combinations_that_differ_elsewhere_share_their_engine(lay: Lay) -> None:
    setup = lay({"seed": [1, 2], "agent_definitions.0.temperature": [0.1, 0.9], "game.lobby": ["classic-7"]})

    assert engines_of(setup) == [{"m": "m"}] * 4


def test_models_of_equal_definition_are_one_engine_whatever_they_are_called(lay: Lay) -> None:
    setup = lay({"seed": [1]}, models={"a": scripted(), "b": scripted(), "c": scripted(capacity=9)})

    assert engines_of(setup) == [{"a": "a", "b": "a", "c": "c"}]
    assert {agent.model for agent in plan(setup).engines["a"].agents.values()} == {"a", "b"}


POLICIES: JsonObject = {"model_definitions.m.scripted_config.policy": ["heuristic", "random"]}


def test_definitions_of_one_name_differ_by_a_stable_digest(lay: Lay) -> None:
    setup = lay({**POLICIES, "seed": [1, 2]})
    names = [served["m"] for served in engines_of(setup)]
    rest = plan_engines(setup.setups[2:], setup.setups, SystemClock(), lambda line: None)

    assert names[0] == names[1] != names[2] == names[3]
    assert all(name.startswith("m#") for name in names)
    assert [rest.served[one.slug]["m"] for one in setup.setups[2:]] == names[2:]


def test_messages_of_engines_of_one_name_are_distinct(lay: Lay, monkeypatch: pytest.MonkeyPatch) -> None:
    def talkative(name: str, *args: Any, say: Callable[[str], None], **settings: Any) -> Backend:
        say(f"model {name}: ready")
        return build_backend(name, *args, say=say, **settings)

    told: list[str] = []
    found = [*plan(lay({**POLICIES, "seed": [1]})).engines.values(), *plan(lay({"seed": [1]})).engines.values()]
    monkeypatch.setattr(engines, "build_backend", talkative)
    for one in found:
        one.build(SystemClock(), told.append, can_pull=False)

    assert told == [f"{found[0].name}: model m: ready", f"{found[1].name}: model m: ready", "model m: ready"]
    assert len(set(told)) == 3


def test_setting_that_an_engine_cannot_honour_is_refused_with_its_place_in_the_grid(lay: Lay) -> None:
    models: JsonObject = {"m": {**OPENAI}}
    setup = lay({"agent_definitions.0.min_p": [None, 0.5]}, models=models)

    with pytest.raises(ConfigError, match=r"^grid\.yaml:\d+: \S+\.0\.min_p: "):
        plan(setup)


def definition(backend: str, model: str) -> ModelDefinition:
    config: JsonObject = {"model": model}
    return ModelDefinition.model_validate({"backend": backend, f"{backend}_config": config})


def engine(name: str, definition: ModelDefinition, loaded: Loaded) -> Engine:
    return Engine(name=name, model=name, loaded=loaded, definition=definition, policy=None)


def test_engines_that_hold_memory_are_up_only_for_the_combinations_that_need_them(lay: Lay) -> None:
    setup = lay({"seed": [*range(6)]})
    loaded = setup.setups[0].loaded
    judge = engine("judge", ModelDefinition.model_validate(OPENAI), loaded)
    small = engine("small", definition("vllm", "s"), loaded)
    large = engine("large", definition("ollama", "l"), loaded)
    needs = [("small", "judge"), ("large", "judge"), ("small", "judge"), ("judge",), ("small", "large"), ("judge",)]
    served = {one.slug: {name: name for name in names} for one, names in zip(setup.setups, needs, strict=True)}
    phases = EnginePlan(engines={"judge": judge, "small": small, "large": large}, served=served).phases(setup.setups)
    seeds = [[one.experiment.seed for one in phase.setups] for phase in phases]

    assert seeds == [[0, 2, 3, 5], [1], [4]]
    assert [sorted(engine.name for engine in phase.engines) for phase in phases] == [
        ["judge", "small"],
        ["judge", "large"],
        ["large", "small"],
    ]


def test_engines_elsewhere_are_all_up_together(lay: Lay) -> None:
    setup = lay({**POLICIES, "seed": [1, 2]})

    (phase,) = plan(setup).phases(setup.setups)
    assert (len(phase.setups), len(phase.engines)) == (4, 2)


def test_nothing_left_has_no_phase(lay: Lay) -> None:
    assert plan(lay({"seed": [1]})).phases(()) == []
