"""What a changed field means for a run directory: runtime goes on, identity is refused by name with both values."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mac_runner.config import Experiment, upgraded
from mac_runner.errors import IdentityError, RunDirectoryError
from mac_runner.section import RUNTIME, leaf_fields
from mac_runner.store import Disk, identity
from mac_runner.store.testing import Layout, changes, encode_config, read_yaml
from mac_runner.types import JsonObject

LEAVES = {
    ".".join(map(str, path)): field
    for path, field in leaf_fields(Experiment)
    if path != ("agent_definitions", "*", "agent_id")
}


def config(path: str, value: str) -> JsonObject:
    """A config in which only the field at `path` stands."""
    keys = path.split(".")
    if keys[0] == "agent_definitions":
        return {"agent_definitions": [{"agent_id": "*", **_nested(keys[2:], value)}]}
    return _nested(keys, value)


def layout(directory: Path) -> Layout:
    return Layout(directory=directory, experiment_name="toy")


def _nested(keys: list[str], value: str) -> JsonObject:
    return {keys[0]: value if len(keys) == 1 else _nested(keys[1:], value)}


def test_change_of_a_runtime_field_goes_on(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for path in (path for path, field in LEAVES.items() if RUNTIME in field.metadata):
        with subtests.test(path):
            (tmp_path / "experiment.yaml").write_bytes(encode_config(config(path, "old")))

            found = changes(Disk(), layout(tmp_path), upgraded(config(path, "new")))

            assert (found.identity, found.runtime) == ((), ((path, "old", "new"),))


def test_change_of_an_identity_field_is_refused_by_name_with_both_values(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for path in (path for path, field in LEAVES.items() if RUNTIME not in field.metadata):
        with subtests.test(path):
            (tmp_path / "experiment.yaml").write_bytes(encode_config(config(path, "old")))
            (tmp_path / "transcripts").mkdir(exist_ok=True)
            (tmp_path / "transcripts/toy_00000.json").touch()

            with pytest.raises(IdentityError) as refusal:
                changes(Disk(), layout(tmp_path), config(path, "new"))

            name = f"the code of * changed: its {path.split('.')[-1]}" if path.startswith("plugins.") else path
            assert f'{name}: "old"' in str(refusal.value)
            assert '"new" now' in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: 2020-01-01", "a holds 2020-01-01, which is not text, a number or a list"),
        ("a: [1, .nan]", "a.1 holds nan, which is not a finite number"),
        ("a: {b: .inf}", "a.b holds inf, which is not a finite number"),
        ("a: !!set {b}", "a holds {'b'}, which is not text"),
        ("a: !!binary aGk=", "a holds b'hi', which is not text"),
        ("a: {1: b}", "a has the key 1, which is not text"),
        ("2020-01-01: b", "it has the key 2020-01-01, which is not text"),
        ("a: &a [*a]", f"it is nested deeper than {identity.YAML_DEPTH_MAX} levels"),
        ("a: !!python/object:os.system x", "line 1 is not what a run writes (could not determine a constructor"),
        ("b: 1\na: {", " is not what a run writes (did not find expected node content"),
        ("a: !!timestamp 2020-13-45", "it is not valid YAML (month must be in 1..12"),
        ("- 1", "it holds no mapping"),
        ("", "it holds no mapping"),
    ],
)
def test_what_a_run_never_writes_is_refused_on_one_line_that_says_where(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "experiment.yaml").write_text(text)

    with pytest.raises(RunDirectoryError, match=re.escape(told)) as refusal:
        read_yaml(Disk(), tmp_path / "experiment.yaml")
    assert str(refusal.value).isprintable()
    assert str(refusal.value).endswith("the run wrote")


@pytest.mark.ci
def test_copies_by_anchors_are_counted_and_a_file_too_large_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "experiment.yaml"
    laughs = "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
    laughs += "".join(
        f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
    )
    path.write_text(laughs)
    with pytest.raises(RunDirectoryError, match="more than 2000000"):
        read_yaml(Disk(), path)

    monkeypatch.setattr(identity, "YAML_BYTES_MAX", 10)
    with pytest.raises(RunDirectoryError, match="larger than 10"):
        read_yaml(Disk(), path)
