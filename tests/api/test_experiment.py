"""The public names, and experiments that are written in Python or as YAML."""

from __future__ import annotations

import random
import subprocess
import sys
import typing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

import mac_runner
from mac_runner import ConfigError, Experiment, errors, load
from mac_runner.api.experiment import written_of
from mac_runner.config import Grid, Written, identity_of, plain_value, yaml_text
from mac_runner.config import load as load_config
from mac_runner.config.testing import parse_document
from mac_runner.types import JsonObject
from tests.cli.lab import experiment

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "experiments").glob("*.yaml"))


def _identities(experiment: Path | Written, profile: str) -> list[object]:
    found = load_config(experiment, profile=profile)
    loaded = [part.loaded for part in found.combinations] if isinstance(found, Grid) else [found]
    return [(identity_of(one.experiment), one.resolved) for one in loaded]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_dumped_experiment_is_the_same_experiment_under_every_profile(path: Path) -> None:
    found = load(path)
    profiles = found.content.get("profiles", {})
    assert isinstance(profiles, dict)
    again = Experiment(parse_document(found.to_yaml().encode(), "dumped").value, base=found.base)  # type: ignore[arg-type]

    assert again == found
    assert again.name == found.name
    for profile in ["embedded", *profiles]:
        assert _identities(written_of(again), profile) == _identities(path, profile) != []


def test_yaml_of_an_experiment_is_a_file(tmp_path: Path) -> None:
    built = Experiment(experiment(), base=tmp_path)
    (tmp_path / "small.yaml").write_text(built.to_yaml())

    assert load(tmp_path / "small.yaml") == built
    assert repr(built) == "<Experiment 'small'>"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**18) + 1, 10**18 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.sampled_from(
        ["yes", "no", "~", "null", "1e3", "0x1f", "1_000", "12:30", "<<", "*", "&a", "- a", "a: b", " ", "#", "'"]
    ),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner)
    ),
    max_leaves=12,
)


@pytest.mark.ci
@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), JSON, min_size=1))
def test_any_value_reads_back_from_its_yaml_as_it_was(value: JsonObject) -> None:
    back = parse_document(yaml_text(value).encode(), "dumped").value

    assert back == value
    assert repr(back) == repr(value)  # 1 and 1.0 and True are equal, and different.


def test_problems_name_the_key_as_in_a_file(snapshot: SnapshotAssertion) -> None:
    content = experiment()
    content["seed"] = "x"
    with pytest.raises(ConfigError) as refused:
        Experiment(content)

    assert str(refused.value) == snapshot


def a_game(table: object) -> object:
    return table


def in_a_cell(table: object) -> object:
    return table


in_a_cell.__module__ = "__main__"


def test_values_that_no_file_can_hold_are_refused_with_their_place_and_a_remedy() -> None:
    for value, words in (
        (float("nan"), "nan is not a finite number"),
        (10**18, "too many digits"),
        ("\ud800", "half a surrogate pair"),
        (b"x", "found a bytes; write a text"),
        ({1: 2}, "the key 1 is not a text"),
        ({"a", "b"}, "found a set; write"),
        (lambda: None, "cannot be found again as"),
        # Of a notebook or a script; with the remedy.
        (in_a_cell, "in a notebook: %%writefile in_a_cell.py) and name it: './in_a_cell.py:in_a_cell'"),
        (random.Random(1), "found a Random"),
    ):
        with pytest.raises(ConfigError) as refused:
            Experiment({**experiment(), "game": {"lobby": value}})
        assert words in str(refused.value)
        assert str(refused.value).startswith("experiment: game.lobby")
    with pytest.raises(ConfigError, match="mapping of sections"):
        Experiment(["seed"])  # type: ignore[arg-type]
    nested: JsonObject = {}
    nested["inside"] = nested
    with pytest.raises(ConfigError, match="more than 32 levels"):
        Experiment({**experiment(), "game": nested})


def test_tuples_paths_and_objects_of_modules_become_what_a_file_would_say() -> None:
    assert plain_value({"a": (1, 2), "b": Path("x/y"), "c": a_game}) == {
        "a": [1, 2],
        "b": "x/y",
        "c": f"{__name__}:a_game",
    }


def test_content_is_a_copy() -> None:
    built = Experiment(experiment())
    built.content["seed"] = 99

    assert built.content["seed"] == 11


def test_every_public_name_is_there_and_says_what_it_is() -> None:
    for name in mac_runner.__all__:
        found = getattr(mac_runner, name)
        if isinstance(found, type) or callable(found):
            assert found.__doc__, name
            assert found.__module__.startswith("mac_runner."), name
        else:
            assert typing.get_args(found) or isinstance(found, str), name


def test_name_that_is_not_public_is_an_attribute_error() -> None:
    assert not hasattr(mac_runner, "play")


def test_errors_that_come_out_of_the_interface_are_public() -> None:
    """An error that a caller may tell apart by its class; the others are subclasses that say more in words."""
    private = {"FormRefusedError", "EngineCrashedError", "MissingPackageError", "UnusablePathError"}
    ours = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}

    assert ours - private <= {*mac_runner.__all__}


@pytest.mark.ci
def test_importing_the_package_imports_nothing_else() -> None:
    program = (
        "import sys, typing, __future__; before = {*sys.modules}\n"
        "import mac_runner\n"
        "print(sorted({*sys.modules} - before))\n"
        "mac_runner.ConfigError\n"
        "print(any(name in sys.modules for name in ('pydantic', 'asyncio', 'aiohttp', 'rich', 'pyarrow')))\n"
        "mac_runner.run, mac_runner.open_run\n"
        "print('pyarrow' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert told.stdout.splitlines() == ["['mac_runner']", "False", "False"]
