"""Code and settings of a user's own in an experiment file: what is loaded, what it is, what is said of each slip."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from syrupy.assertion import SnapshotAssertion

from mac_runner import File, run
from mac_runner.config import (
    Difference,
    Experiment,
    Grid,
    Loaded,
    differences,
    identity_of,
    load,
    load_experiment,
    revised,
)
from mac_runner.config import recorded as read_again
from mac_runner.errors import ConfigError
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


READING = """\
from typing import Annotated
from pydantic import BaseModel
from mac_runner import RUNTIME, Ask, OwnBackend, File, game

class Settings(BaseModel):
    one: File | None = None
    some: list[File] = []
    named: dict[str, File] | None = None
    either: File | list[File] | None = None
    deep: dict[str, list[File]] = {}
    pair: tuple[File, str] | None = None
    free: Annotated[File | None, RUNTIME] = None

@game(settings=Settings)
def reader(table):
    yield Ask(table.agents[0], "Well?")

class Engine(OwnBackend):
    Settings = Settings

    async def generate(self, request):
        return "Well."
"""


def reading(folder: str, settings: JsonObject) -> tuple[Loaded, Loaded]:
    """An environment and a backend with these settings, whose experiment file and code are in a folder."""
    Path(folder, "reading.py").write_text(READING)
    model = {"backend": "./reading.py:Engine", "settings": settings}
    files = (
        text(environment="./reading.py:reader", settings=settings),
        text(environment="echo", echo={"rounds": 1}, model_definitions={"m": model}).replace("player", "participant"),
    )
    found = []
    for file in files:
        Path(folder, FILE).write_text(file)
        found.append(load_experiment(Path(folder, FILE)))
    return found[0], found[1]


def words(folder: str, content: str) -> None:
    Path(folder).mkdir(exist_ok=True)
    Path(folder, "words.txt").write_text(content)


@pytest.mark.parametrize(
    "settings",
    [
        {"one": "words.txt"},
        {"some": ["words.txt"]},
        {"named": {"x": "words.txt"}},
        {"either": "words.txt"},
        {"either": ["words.txt"]},
        {"deep": {"x": ["words.txt"]}},
        {"pair": ["words.txt", "x"]},
    ],
)
def test_of_a_file_that_settings_name_the_content_is_identity_and_the_place_is_not(settings: JsonObject) -> None:
    for folder, content in (("here", "a"), ("moved", "a"), ("edited", "b")):
        words(folder, content)
    here, moved, edited = (reading(folder, settings) for folder in ("here", "moved", "edited"))

    for before, same, other in zip(here, moved, edited, strict=True):
        runtime = differences(before.resolved, same.resolved)
        (digest,) = differences(before.resolved, other.resolved).identity

        assert (runtime.identity, identity_of(before.experiment)) == ((), identity_of(same.experiment))
        moves = [one.path.rpartition(".")[2] for one in runtime.runtime if not one.path.startswith("plugins.")]
        assert moves == ["path"]
        assert (digest.path.rpartition(".")[2], digest.file) == ("sha256", str(Path("edited/words.txt").resolve()))
        assert identity_of(before.experiment) != identity_of(other.experiment)


def test_of_a_file_that_is_marked_runtime_nothing_is_identity() -> None:
    words("here", "a")
    words("edited", "b")

    for before, other in zip(*(reading(folder, {"free": "words.txt"}) for folder in ("here", "edited")), strict=True):
        assert differences(before.resolved, other.resolved).identity == ()
        assert identity_of(before.experiment) == identity_of(other.experiment)


def test_who_has_settings_reads_the_file_that_they_name_as_it_was_when_they_were_loaded() -> None:
    words("here", "one two")
    game, engine = reading("here", {"one": "words.txt"})
    (model,) = engine.experiment.model_definitions.values()
    named = [game.experiment.environment_settings.one, model.backend_settings.one]

    assert [(one.path, one.text()) for one in named] == [(Path("here/words.txt").resolve(), "one two")] * 2
    assert {*named} == {File.at("here/words.txt")}
    words("here", "one three")
    for one in named:
        with pytest.raises(ConfigError, match=r"here/words.txt: its content changed: sha256 [0-9a-f]{64} when the .*"):
            one.content()


def test_a_file_that_is_no_text_is_named() -> None:
    Path("words.txt").write_bytes(b"a\xff")

    with pytest.raises(ConfigError, match=r"words.txt: not UTF-8: invalid start byte at byte 1; convert it"):
        File.at("words.txt").text()


def test_a_recorded_file_need_not_be_there_any_more() -> None:
    words("here", "one two")
    both = reading("here", {"one": "words.txt"})
    Path("here/words.txt").unlink()

    for found in both:
        assert read_again(found.resolved, "record") == found.experiment


def test_a_file_that_cannot_be_used_is_refused_with_its_line() -> None:
    Path("reading.py").write_text(READING)
    here = Path.cwd()
    Path("words.txt").write_text("a")
    digest = File.at("words.txt").sha256
    rows: dict[str, tuple[object, str]] = {
        "missing": ("none.txt", "none.txt: cannot be read: No such file or directory; name a file that exists"),
        "directory": (".", ".: cannot be read: it is a directory, not a regular file; name a file that exists"),
        "no path": (3, "found 3; allowed: the path of a file"),
        "a list": (["words.txt"], "found a list; allowed: the path of a file"),
        "no name": ({"path": 3}, "found a mapping; allowed: the path of a file"),
        "unknown key": ({"path": "words.txt", "colour": 1}, "unknown key; allowed: path, sha256"),
        "another": (
            {"path": "words.txt", "sha256": "0" * 64},
            f"{here}/words.txt: its sha256 is {digest}, not '{'0' * 64}'; put back the file that has it",
        ),
    }
    for name, (value, said) in rows.items():
        place = "settings.one.colour" if name == "unknown key" else "settings.one"
        (line,) = refused(text(environment="./reading.py:reader", settings={"one": value}))

        assert line.startswith("trial.yaml:"), name
        assert line.endswith(f": {place}: {said}"), name


def test_a_file_may_pin_the_content_of_a_file() -> None:
    Path("reading.py").write_text(READING)
    Path("words.txt").write_text("a")
    pinned = {"path": "words.txt", "sha256": File.at("words.txt").sha256}
    named, held = (
        loaded(text(environment="./reading.py:reader", settings={"one": one})) for one in ("words.txt", pinned)
    )

    assert named.resolved == held.resolved


def test_a_file_of_a_recorded_experiment_is_not_changed() -> None:
    """A fork keeps the files of its run."""
    words("here", "one two")

    for found, key in zip(
        reading("here", {"one": "words.txt"}), ("settings", "model_definitions.m.settings"), strict=True
    ):
        with pytest.raises(ConfigError, match=f"{key}.one: found 'b.txt'; a file is read with the experiment file"):
            revised(found.resolved, [f"{key}.one=b.txt"], "record")
