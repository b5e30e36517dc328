"""What a changed field means for a run directory: runtime goes on, identity is refused by name with both values."""

from __future__ import annotations

from pathlib import Path

import pytest

from mac_runner.config import Experiment, upgraded
from mac_runner.errors import IdentityError
from mac_runner.section import RUNTIME, leaf_fields
from mac_runner.store import Disk
from mac_runner.store.identity import changes, encode_config
from mac_runner.store.layout import Layout
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
