"""An environment of a user's own in an experiment file: its settings, its identity, and what is said of each slip."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from mac_runner.config import Difference, Experiment, Grid, Loaded, differences, identity_of, load
from mac_runner.errors import ConfigError
from mac_runner.types import JsonObject

Load = Callable[..., Loaded]

VILLAGE = """\
from typing import Annotated
from pydantic import BaseModel, Field
from mac_runner.environments.generators import Ask, generator_spec
from mac_runner.section import IDENTITY, RUNTIME, Section

class Inner(Section):
    depth: Annotated[int, IDENTITY, Field(ge=0)] = 1
    note: Annotated[str, RUNTIME] = ""

class Config(Section):
    days: Annotated[int, IDENTITY, Field(ge=1, le=9)] = 3
    verbose: Annotated[bool, RUNTIME] = False
    inner: Inner = Inner()

class Plain(BaseModel):
    days: int = 3
    size: tuple[int, int] = (1, 2)

def play(table):
    answer = yield Ask(table.agents[0], "Well?")
    return {"answer": answer}

village = generator_spec("village", play, Config)
plain = generator_spec("plain", play, Plain)
needy = generator_spec("needy", play, Config, needs="days")
game = play
def echo(table):
    yield
class Broken: ...
def no_yield(table): return {}
sound = 3
"""
NAME = "./village.py:village"


@pytest.fixture(autouse=True)
def code(tmp_path: Path) -> Path:
    file = tmp_path / "village.py"
    file.write_text(VILLAGE)
    return file


def text(name: str = "village", **more: object) -> str:
    return yaml.safe_dump(
        {
            "experiment_metadata": {"experiment_name": "trial"},
            "conversation_config": {"environment": f"./village.py:{name}", "conversations": 3},
            "model_definitions": {"m": {"backend": "scripted", "scripted_config": {"policy": "random"}}},
            "agent_definitions": [{"agent_id": "a", "role": "player", "model": "m"}],
            **more,
        },
        sort_keys=False,
    )


def test_settings_are_checked_and_filled_in_by_the_model_of_the_environment(load: Load) -> None:
    own = load(text(settings={"days": 5}))
    plain = load(text("plain", settings={"size": [3, 4]}))

    assert own.resolved["settings"] == {"days": 5, "verbose": False, "inner": {"depth": 1, "note": ""}}
    assert own.experiment.environment_settings.inner.depth == 1
    assert plain.resolved["settings"] == {"days": 3, "size": [3, 4]}
    assert plain.experiment.environment_settings.size == (3, 4)
    assert Experiment.model_validate(own.resolved) == own.experiment


def test_the_code_is_recorded_and_built_in_environments_record_none(load: Load, code: Path, game_text: str) -> None:
    record = load(text()).experiment.plugins[NAME]

    assert (record.distribution, record.version, record.path) == (None, None, str(code))
    assert len(record.sha256) == 64
    assert record.runtime_settings == ("verbose", "inner.note")
    assert not {"plugins", "settings"} & load(game_text).resolved.keys()


def test_code_and_settings_are_identity_but_what_is_marked_runtime(load: Load, code: Path) -> None:
    def changed(**settings: object) -> Loaded:
        return load(text(settings=settings))

    first, same = changed(), changed(days=3, verbose=True, inner={"note": "x"})
    deeper = changed(inner={"depth": 2})
    code.write_text(VILLAGE + "# another comment\n")
    edited = changed()

    assert identity_of(first.experiment) == identity_of(same.experiment)
    assert differences(first.resolved, same.resolved) == (
        (),
        (Difference("settings.verbose", False, True), Difference("settings.inner.note", "", "x")),
    )
    assert [one.path for one in differences(first.resolved, deeper.resolved).identity] == ["settings.inner.depth"]
    (digest,) = differences(first.resolved, edited.resolved).identity
    assert digest.path == f"plugins.{NAME}.sha256"
    assert len({identity_of(one.experiment) for one in (first, deeper, edited)}) == 3


def test_a_file_may_pin_the_code_that_it_is_played_with(load: Load, code: Path) -> None:
    pinned = load(text()).resolved["plugins"]
    load(text(plugins=pinned))
    code.write_text(VILLAGE + "# another comment\n")

    with pytest.raises(ConfigError, match=r"trial.yaml:\d+: plugins.*sha256: "):
        load(text(plugins=pinned))


def test_settings_can_be_set_by_flags_and_profiles_and_vary_in_grids(tmp_path: Path, load: Load) -> None:
    assert load(text(), overrides=["settings.inner.depth=7"]).experiment.environment_settings.inner.depth == 7
    night = text(profiles={"night": {"settings": {"days": 9}}})
    assert load(night, profile="night").experiment.environment_settings.days == 9
    file = tmp_path / "grid.yaml"
    names = [NAME, "./village.py:plain"]
    file.write_text(text(_grid={"sweep": {"settings.days": [1, 2], "conversation_config.environment": names}}))

    grid = load_grid(file)

    settings = [one.loaded.experiment.environment_settings for one in grid.combinations]
    assert [(type(each).__name__, each.days) for each in settings] == [
        *(("Config", 1), ("Plain", 1), ("Config", 2), ("Plain", 2))
    ]
    assert len({one.slug for one in grid.combinations}) == 4


def load_grid(file: Path) -> Grid:
    found = load(file)
    assert isinstance(found, Grid)
    return found


SLIPS: dict[str, tuple[JsonObject, str]] = {
    "unknown": ({"settings": {"dyas": 3}}, r"trial.yaml:\d+: settings.dyas: unknown key.*did you mean 'days'"),
    "bound": ({"settings": {"days": 99}}, r"trial.yaml:\d+: settings.days: found 99; allowed: at most 9"),
    "kind": ({"settings": {"days": "x"}}, r"settings.days: found the text \"x\"; allowed: a whole number"),
    "deep": ({"settings": {"inner": {"depth": -1}}}, r"settings.inner.depth: found -1; allowed: at least 0"),
    "no mapping": ({"settings": 3}, r"settings: found 3; allowed: a mapping"),
    "plain unknown": ({"name": "plain", "settings": {"dyas": 3}}, r"settings.dyas: unknown key.*'days'"),
    "no settings": ({"name": "play", "settings": {"days": 3}}, "settings: the environment .* has no settings"),
    "needs": ({"name": "needy"}, "settings: is missing; the environment .* needs its days"),
    "no such name": ({"name": "vilage"}, r"trial.yaml:\d+: conversation_config.environment: .*did you mean"),
    "no file": (
        {"environment": "./nowhere.py:x"},
        r"trial.yaml:\d+: conversation_config.environment: .* cannot be read",
    ),
    "no name": (
        {"environment": "chess"},
        r"there is no 'chess' here; allowed: .*town_of_salem.* or write .*\./file.py:name",
    ),
    "a class": (
        {"name": "Broken"},
        "is the class 'Broken', which lacks outcome, .*; write what mac_runner.Conversation describes",
    ),
    "no generator": ({"name": "no_yield"}, "is the function 'no_yield' without a `yield`.*; allowed"),
    "a number": ({"name": "sound"}, "is a value of type 'int'.*; allowed"),
    "a kind of ours": ({"name": "echo"}, "outcomes of the kind 'echo' are those of a built-in environment"),
    "of a built-in": (
        {"environment": "echo", "settings": {}},
        "settings: sets up an environment that is not built in; 'echo' has a section of its own",
    ),
    "another's section": ({"echo": {"rounds": 1}}, r"trial.yaml:\d+: echo: belongs to the environment 'echo'"),
    "unused code": ({"plugins": {"./other.py:x": {}}}, "plugins.*: the file names no such code"),
    "of another program": ({"name": "play", "plugins": 3}, "plugins: found 3; allowed: a mapping"),
}


def test_each_slip_is_named_with_its_place_and_a_remedy(load: Load) -> None:
    wrong = {}
    for what, (changes, message) in SLIPS.items():
        values = dict(changes)
        file = yaml.safe_load(text(str(values.pop("name", "village"))))
        if "environment" in values:
            file["conversation_config"]["environment"] = values.pop("environment")
        try:
            load(yaml.safe_dump({**file, **values}, sort_keys=False))
        except ConfigError as fault:
            if not re.search(message, str(fault)) or "\n" in str(fault):
                wrong[what] = str(fault)
        else:
            wrong[what] = "accepted"

    assert wrong == {}
