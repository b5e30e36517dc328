from __future__ import annotations

import re
from pathlib import Path

import pytest

from mac_runner.errors import RunDirectoryError
from mac_runner.store import Disk, identity
from mac_runner.store.identity import read_yaml


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
