from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest

import mac_runner.config
from mac_runner.config import Grid, load
from mac_runner.config.testing import file_schema, parse_document, schema_text
from mac_runner.section import Section
from tests.config.conftest import GAME

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "experiments").glob("*.yaml"))
FIRST_LINE = "# yaml-language-server: $schema=../configs/experiment.schema.json"


def is_valid(text: str) -> bool:
    return jsonschema.Draft202012Validator(file_schema()).is_valid(parse_document(text.encode(), "f").value)


def test_schema_file_is_current() -> None:
    file = ROOT / "configs" / "experiment.schema.json"

    assert file.read_text(encoding="utf-8") == schema_text(), f"run python -m mac_runner.config.schema {file}"


def test_schema_is_itself_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(file_schema())


def test_each_example_names_the_schema_and_satisfies_it(subtests: pytest.Subtests) -> None:
    assert {"discussion_small.yaml", "tos_100games.yaml"} <= {example.name for example in EXAMPLES}
    validator = jsonschema.Draft202012Validator(file_schema())
    for example in EXAMPLES:
        with subtests.test(example.name):
            text = example.read_text(encoding="utf-8")

            assert text.splitlines()[0] == FIRST_LINE
            validator.validate(parse_document(text.encode(), example.name).value)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_example_loads_in_each_of_its_profiles(example: Path) -> None:
    value: Any = parse_document(example.read_bytes(), example.name).value
    for profile in (None, "embedded", *value.get("profiles", {})):
        loaded = load(example, profile=profile)
        asked = [one.loaded for one in loaded.combinations] if isinstance(loaded, Grid) else [loaded]

        assert {one.experiment.profile for one in asked} == {profile or "embedded"}
        for one in asked:
            assert one.experiment.experiment_metadata.experiment_name.startswith(example.stem)


OVERLAYS = {
    "": True,
    "profiles: {a: {game: {calendar: {max_days: 3}}, conversation_config: {conversations: 1}}, b: }": True,
    "profiles: {a: {game: {calendar: {max_days: x}}}}": False,
    "profiles: {a: {profile: b}}": False,
    "profiles: {a: {model_definitions: {m: {backend: vllm, vllm_config: {model: q}}}}}": True,
    "profiles: {a: {model_definitions: {m: {backend: vllm}}}}": False,
    "profiles: {a: {model_definitions: {m: {vllm_config: {model: q}}}}}": False,
    "profiles: {a: {gmae: {}}}": False,
    "sede: 1": False,
}


def test_schema_lets_an_overlay_leave_out_what_the_file_may_not() -> None:
    assert {more: is_valid(GAME + more) for more in OVERLAYS} == OVERLAYS


def test_schema_holds_an_engine_to_its_own_section() -> None:
    assert not is_valid(GAME.replace("backend: scripted", "backend: vllm"))


def test_public_names_are_there_and_sorted() -> None:
    names = mac_runner.config.__all__

    assert sorted(set(names)) == names
    assert all(getattr(mac_runner.config, name).__doc__ for name in names)


def test_every_section_of_the_room_is_public() -> None:
    own = (section for section in Section.__subclasses__() if section.__module__.startswith("mac_runner.config."))
    sections = {section.__name__.removeprefix("_") for section in own}

    assert sections <= set(mac_runner.config.__all__)
