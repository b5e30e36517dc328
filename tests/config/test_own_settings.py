"""Models of settings that users write: read, recorded and read back, or refused with the reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from mac_runner import run
from mac_runner.config import load_experiment
from mac_runner.errors import ConfigError
from mac_runner.types import JsonObject

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


def loaded(folder: Path, body: str, settings: JsonObject) -> object:
    """The recorded settings of a game whose model has this body."""
    (folder / "words.py").write_text(WORDS)
    (folder / "own.py").write_text(f"{HEAD}{body}{TAIL}")
    (folder / "own.yaml").write_text(
        yaml.safe_dump(
            {
                "experiment_metadata": {"experiment_name": "own"},
                "conversation_config": {"environment": "./own.py:own", "conversations": 1},
                "settings": settings,
                "model_definitions": {"m": {"backend": "scripted", "scripted_config": {"policy": "random"}}},
                "agent_definitions": [{"agent_id": "Ann", "role": "player", "model": "m"}],
            }
        )
    )
    return load_experiment(folder / "own.yaml").experiment.settings


def test_settings_are_recorded_as_they_read_back(tmp_path: Path) -> None:
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
        folder = tmp_path / name
        folder.mkdir()

        assert loaded(folder, body, given) == recorded, name


def test_a_model_that_cannot_be_read_or_written_is_refused_with_the_reason(tmp_path: Path) -> None:
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
        folder = tmp_path / name
        folder.mkdir()

        with pytest.raises(ConfigError) as refused:
            loaded(folder, body, {"days": 4} if name == "raising" else {})

        assert reason in str(refused.value), name


def test_what_a_game_changes_in_its_settings_stays_in_its_conversation(tmp_path: Path) -> None:
    loaded(tmp_path, "    seen: list[int] = []", {})
    code = tmp_path / "own.py"
    code.write_text(
        code.read_text() + "    table.settings.seen.append(1)\n    return {'seen': len(table.settings.seen)}\n"
    )

    run(tmp_path / "own.yaml", out=tmp_path / "run", set={"conversation_config.conversations": 3})

    transcripts = [json.loads(path.read_text()) for path in tmp_path.glob("run/transcripts/*.json")]
    assert [transcript["outcome"]["seen"] for transcript in transcripts] == [1, 1, 1]
