"""Code and settings of a user's own in an experiment file: what is loaded, what it is, what is said of each slip."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from syrupy.assertion import SnapshotAssertion

from mac_runner import run
from mac_runner.config import Difference, Experiment, Grid, Loaded, differences, identity_of, load
from mac_runner.types import JsonObject
from tests.config.conftest import FILE, GAME, loaded, refused

VILLAGE = """\
from typing import Annotated
from pydantic import BaseModel, Field
from mac_runner.environments.generators import Ask, Game, generator_spec
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

village = generator_spec("village", Game(play, Config))
plain = generator_spec("plain", Game(play, Plain))
needy = generator_spec("needy", Game(play, Config), needs="days")
game = play
def echo(table):
    yield
class Broken: ...
def no_yield(table): return {}
sound = 3
"""
NAME = "./village.py:village"


CODE = Path("village.py")


@pytest.fixture(autouse=True)
def village(folder: Path) -> None:
    CODE.write_text(VILLAGE)


def text(name: str = "village", environment: str = "", **more: object) -> str:
    return yaml.safe_dump(
        {
            "experiment_metadata": {"experiment_name": "trial"},
            "conversation_config": {"environment": environment or f"./village.py:{name}", "conversations": 3},
            "model_definitions": {"m": {"backend": "scripted", "scripted_config": {"policy": "random"}}},
            "agent_definitions": [{"agent_id": "a", "role": "player", "model": "m"}],
            **more,
        },
        sort_keys=False,
    )


def test_settings_are_checked_and_filled_in_by_the_model_of_the_environment() -> None:
    own = loaded(text(settings={"days": 5}))
    plain = loaded(text("plain", settings={"size": [3, 4]}))

    assert own.resolved["settings"] == {"days": 5, "verbose": False, "inner": {"depth": 1, "note": ""}}
    assert own.experiment.environment_settings.inner.depth == 1
    assert plain.resolved["settings"] == {"days": 3, "size": [3, 4]}
    assert plain.experiment.environment_settings.size == (3, 4)
    assert Experiment.model_validate(own.resolved) == own.experiment


def test_the_code_is_recorded_and_built_in_environments_record_none() -> None:
    record = loaded(text()).experiment.plugins[NAME]

    assert (record.distribution, record.version, record.path) == (None, None, str(CODE.resolve()))
    assert len(record.sha256) == 64
    assert record.runtime_settings == ("verbose", "inner.note")
    assert not {"plugins", "settings"} & loaded(GAME).resolved.keys()


def test_code_and_settings_are_identity_but_what_is_marked_runtime() -> None:
    def changed(**settings: object) -> Loaded:
        return loaded(text(settings=settings))

    first, same = changed(), changed(days=3, verbose=True, inner={"note": "x"})
    deeper = changed(inner={"depth": 2})
    CODE.write_text(VILLAGE + "# another comment\n")
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


def test_a_file_may_pin_the_code_that_it_is_played_with() -> None:
    pinned = loaded(text()).resolved["plugins"]
    loaded(text(plugins=pinned))
    CODE.write_text(VILLAGE + "# another comment\n")

    (line,) = refused(text(plugins=pinned))
    assert line.startswith("trial.yaml:")
    assert f"plugins.{NAME}.sha256: " in line


def test_settings_can_be_set_by_flags_and_profiles_and_vary_in_grids() -> None:
    assert loaded(text(), overrides=["settings.inner.depth=7"]).experiment.environment_settings.inner.depth == 7
    night = text(profiles={"night": {"settings": {"days": 9}}})
    assert loaded(night, profile="night").experiment.environment_settings.days == 9
    names = [NAME, "./village.py:plain"]
    FILE.write_text(text(_grid={"sweep": {"settings.days": [1, 2], "conversation_config.environment": names}}))

    grid = load(FILE)

    assert isinstance(grid, Grid)
    settings = [one.loaded.experiment.environment_settings for one in grid.combinations]
    assert [(type(each).__name__, each.days) for each in settings] == [
        *(("Config", 1), ("Plain", 1), ("Config", 2), ("Plain", 2))
    ]
    assert len({one.slug for one in grid.combinations}) == 4


SLIPS: dict[str, str] = {
    "unknown": text(settings={"dyas": 3}),
    "bound": text(settings={"days": 99}),
    "kind": text(settings={"days": "x"}),
    "deep": text(settings={"inner": {"depth": -1}}),
    "no mapping": text(settings=3),
    "plain unknown": text("plain", settings={"dyas": 3}),
    "no settings": text("play", settings={"days": 3}),
    "needs": text("needy"),
    "no such name": text("vilage"),
    "no file": text(environment="./nowhere.py:x"),
    "no name": text(environment="chess"),
    "a class": text("Broken"),
    "no generator": text("no_yield"),
    "a number": text("sound"),
    "a kind of ours": text("echo"),
    "of a built-in": text(environment="echo", settings={}),
    "another's section": text(echo={"rounds": 1}),
    "unused code": text(plugins={"./other.py:x": {}}),
    "of another program": text("play", plugins=3),
}


def test_each_slip_is_named_with_its_place_and_a_remedy(snapshot: SnapshotAssertion) -> None:
    here = f"{Path.cwd()}/"
    said = {what: [line.replace(here, "") for line in refused(file)] for what, file in SLIPS.items()}

    assert [lines for lines in said.values() if len(lines) != 1 or not lines[0].startswith("trial.yaml:")] == []
    assert said == snapshot


HEAD = """\
from __future__ import annotations
from datetime import date
from pydantic import BaseModel, ConfigDict, Field, RootModel, SecretStr, computed_field, field_validator
from mac_runner import Ask, game
from words import Words

class Own(BaseModel):
"""
TAIL = """
@game(settings=Own)
def own(table):
    yield Ask(table.agents[0], "Well?")
"""
WORDS = """\
from __future__ import annotations
from pydantic import BaseModel

class Words(BaseModel):
    first: Word | None = None

class Word(BaseModel):
    text: str = "x"
"""


def own(body: str, settings: JsonObject) -> str:
    """A file for a game whose model of settings has this body."""
    Path("words.py").write_text(WORDS)
    Path("own.py").write_text(f"{HEAD}{body}{TAIL}")
    return text(environment="./own.py:own", settings=settings)


def test_settings_are_recorded_as_they_read_back() -> None:
    cases: dict[str, tuple[str, JsonObject, JsonObject]] = {
        "alias": ("    days: int = Field(3, alias='length')", {"length": 5}, {"length": 5}),
        "computed": (
            "    days: int = 3\n    @computed_field\n    @property\n    def nights(self) -> int: return self.days",
            {},
            {"days": 3},
        ),
        "date": ("    day: date = date(2020, 1, 1)", {}, {"day": "2020-01-01"}),
        "beside": ("    words: Words", {"words": {"first": {}}}, {"words": {"first": {"text": "x"}}}),
    }
    for name, (body, given, recorded) in cases.items():
        assert loaded(own(body, given)).experiment.settings == recorded, name


def test_a_model_that_cannot_be_read_or_written_is_refused_with_the_reason() -> None:
    cases = {
        "itself": ("    inner: Own | None = None", "Own contains itself"),
        "missing": ("    kind: Missing | None = None", "Own is not complete: name 'Missing' is not defined"),
        "set": ("    names: list[frozenset[str]] = []", "Own.names is a set, whose order differs between processes"),
        "root": ("    pass\nclass Own(RootModel[list[int]]): ...", "Own is a RootModel, which has no keys"),
        "object": (
            "    model_config = ConfigDict(arbitrary_types_allowed=True)\n    thing: object = object()",
            "settings: the model Own of the environment './own.py:own' cannot read or write them",
        ),
        "secret": ("    key: SecretStr = SecretStr('x')", "key does not read back from what is recorded of it"),
        "raising": (
            "    days: int = 3\n    @field_validator('days')\n    def check(cls, days): raise KeyError('week')",
            "own.py:10: KeyError: 'week'; mend the model",
        ),
    }
    for name, (body, reason) in cases.items():
        (line,) = refused(own(body, {"days": 4} if name == "raising" else {}))

        assert reason in line, name


def test_what_a_game_changes_in_its_settings_stays_in_its_conversation() -> None:
    body = "    table.settings.seen.append(1)\n    return {'seen': len(table.settings.seen)}\n"
    FILE.write_text(own("    seen: list[int] = []", {}))
    with Path("own.py").open("a") as code:
        code.write(body)

    run(FILE, out=Path("run"), progress=False)

    transcripts = [json.loads(path.read_text()) for path in Path("run/transcripts").glob("*.json")]
    assert [transcript["outcome"]["seen"] for transcript in transcripts] == [1, 1, 1]
