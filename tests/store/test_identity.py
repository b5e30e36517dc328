"""Whose run directory it is: runtime goes on, identity is refused by name, and what was not played may be another's."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from mac_runner.clock import Clock
from mac_runner.config import Difference, Experiment
from mac_runner.errors import IdentityError, RunDirectoryError, RunLockedError
from mac_runner.plan import Shard
from mac_runner.section import RUNTIME, leaf_fields
from mac_runner.store import Disk, Invocation, RunRecorder, identity, open_run
from mac_runner.store.testing import Layout, changes, encode_config, read_yaml
from mac_runner.types import JsonObject, JsonValue
from tests.store import player
from tests.store.conftest import StillClock, both, edit, edit_journal, tree

EDITIONS: dict[str, JsonObject] = {"game": {"edition": 3}, "discussion": {"edition": 4}}
"""Of what this version reads; another one is no change, it is refused."""
LEAVES = {
    ".".join(map(str, path)): field
    for path, field in leaf_fields(Experiment)
    if path != ("agent_definitions", "*", "agent_id") and path[-1] != "edition"
}


def config(path: str, value: str) -> JsonObject:
    """A config in which only the field at `path` stands."""
    keys = path.split(".")
    if keys[0] == "agent_definitions":
        return {"agent_definitions": [{"agent_id": "*", **_nested(keys[2:], value)}]}
    found = _nested(keys, value)
    section = found[keys[0]]
    return {keys[0]: {**EDITIONS.get(keys[0], {}), **section}} if isinstance(section, dict) else found


def _nested(keys: list[str], value: str) -> JsonObject:
    return {keys[0]: value if len(keys) == 1 else _nested(keys[1:], value)}


def test_change_of_a_runtime_field_goes_on(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for path in (path for path, field in LEAVES.items() if RUNTIME in field.metadata):
        with subtests.test(path):
            (tmp_path / "experiment.yaml").write_bytes(encode_config(config(path, "old")))

            found = changes(Disk(), Layout(directory=tmp_path, experiment_name="toy"), config(path, "new"))

            assert (found.identity, found.runtime) == ((), (Difference(path, "old", "new"),))


def test_change_of_an_identity_field_is_refused_by_name_with_both_values(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for path in (path for path, field in LEAVES.items() if RUNTIME not in field.metadata):
        with subtests.test(path):
            (tmp_path / "experiment.yaml").write_bytes(encode_config(config(path, "old")))
            (tmp_path / "transcripts").mkdir(exist_ok=True)
            (tmp_path / "transcripts/toy_00000.json").touch()

            with pytest.raises(IdentityError) as refusal:
                changes(Disk(), Layout(directory=tmp_path, experiment_name="toy"), config(path, "new"))

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


def resolved(seed: int = 5, **settings: JsonValue) -> JsonObject:
    return {"experiment_metadata": {"experiment_name": "toy"}, "seed": seed, "runtime_config": settings}


DAMAGES: dict[str, tuple[str, str]] = {
    "a value is another one": ("seed: 5", "seed: 6"),
    "it is cut off": (r"runtime_config:(.|\n)*", ""),
    "it is cut off in a key": (r"time_config:(.|\n)*", ""),
    "it is cut off behind its digest": (r"experiment_metadata:(.|\n)*", ""),
    "a line is gone": (r"  mirror: .*\n", ""),
    "its digest is another one": (r"values: \w{4}", "values: 0000"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_experiment_of_a_run_that_is_not_as_it_was_written_is_refused_and_mended_by_a_run(
    tmp_path: Path, damage: str
) -> None:
    file, layout = tmp_path / "experiment.yaml", Layout(directory=tmp_path, experiment_name="toy")
    file.write_bytes(encode_config(resolved(mirror="µ")))
    assert read_yaml(Disk(), file) == resolved(mirror="µ")
    (tmp_path / "transcripts").mkdir()
    (tmp_path / "transcripts/toy_00000.json").touch()

    file.write_text(re.sub(*DAMAGES[damage], file.read_text()))

    with pytest.raises(RunDirectoryError, match=r"experiment\.yaml cannot be read: .*; put back the file"):
        read_yaml(Disk(), file)
    found = changes(Disk(), layout, resolved(mirror="µ"))
    assert found.identity == ()
    assert found.runtime, "it is written again"


def test_damaged_experiment_of_a_run_is_not_taken_for_that_of_another(tmp_path: Path) -> None:
    file = tmp_path / "experiment.yaml"
    file.write_bytes(encode_config(resolved()))
    (tmp_path / "notes").touch()
    file.write_text(file.read_text().replace("seed: 5", "seed: 6"))

    with pytest.raises(IdentityError, match="seed: 6 there, 7 now"):
        changes(Disk(), Layout(directory=tmp_path, experiment_name="toy"), resolved(seed=7))


def test_experiment_of_a_run_may_have_other_comments_and_line_ends_and_no_digest(tmp_path: Path) -> None:
    file = tmp_path / "experiment.yaml"
    text = encode_config(resolved())
    for other in (b"# mine\n" + text, text.replace(b"\n", b"\r\n"), re.sub(rb"# Digest.*\n", b"", text)):
        file.write_bytes(other)
        assert read_yaml(Disk(), file) == resolved()


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


def open_named(run_dir: Path, clock: Clock, name: str, shard: Shard | None = None) -> RunRecorder:
    config: JsonObject = {"experiment_metadata": {"experiment_name": name}, "seed": len(name)}
    layout = Layout(directory=run_dir, experiment_name=name)
    return open_run(Invocation(layout=layout, resolved=config, tasks=player.plan(2), shard=shard), clock=clock)


def planned(run_dir: Path) -> list[str]:
    return [task["task_id"] for task in json.loads((run_dir / "task_manifest.json").read_bytes())["tasks"]]


def test_unplayed_directory_takes_on_a_corrected_experiment(run_dir: Path) -> None:
    with player.open_toy(run_dir, 5) as run:
        run.checkpoint({"models": {}})
        run.write_summary({"conversations": 0})
    corrected = player.resolved(seed=2)
    found = player.surveyed(run_dir, 3, corrected)
    assert (found.changed_settings, found.is_complete) == (("seed: 1 there, 2 now",), False)

    player.played(run_dir, 3, config=corrected)

    assert yaml.safe_load((run_dir / "experiment.yaml").read_bytes()) == corrected
    assert planned(run_dir) == ["toy_00000", "toy_00001", "toy_00002"]
    assert not (run_dir / "summary.json").exists()
    assert b'"changes":["seed: 1 there, 2 now"]' in (run_dir / "events.jsonl").read_bytes()
    assert player.verified(run_dir).ok
    with pytest.raises(IdentityError, match="seed: 2 there, 1 now"):
        player.open_toy(run_dir, 5)


def test_session_that_was_killed_before_its_first_reply_binds_nobody(run_dir: Path) -> None:
    player.open_toy(run_dir, 1).close()
    segment = run_dir / "journal/000001.jsonl"
    segment.write_bytes(segment.read_bytes()[:-9])

    player.open_toy(run_dir, 1, config=player.resolved(seed=2)).close()


def test_unplayed_directory_takes_another_name_and_stays_its_shards(run_dir: Path, clock: Clock) -> None:
    open_named(run_dir, clock, "mistyped", Shard(1, 2)).close()

    with pytest.raises(IdentityError, match="holds shard 1/2"):
        open_named(run_dir, clock, "right", Shard(2, 2))
    open_named(run_dir, clock, "right", Shard(1, 2)).close()
    assert [path.name for path in run_dir.glob("*_index.jsonl")] == ["right_index.jsonl"]


def test_unplayed_directory_is_left_to_whoever_is_at_work_in_it(run_dir: Path, clock: StillClock) -> None:
    lock = {".lock": (0, b"")}  # Some versions of filelock empty the file, which is empty, whenever they try it.

    with player.open_toy(run_dir, 1, clock=clock):
        before = tree(run_dir)
        with pytest.raises(RunLockedError):
            player.open_toy(run_dir, 1, config=player.resolved(seed=2))
        assert tree(run_dir) | lock == before | lock


def death(run_dir: Path) -> None:
    with player.open_toy(run_dir, 1) as run:
        run.death(next(run.unfinished())[0], "0/Ann/0/0")


def ending(run_dir: Path) -> None:
    """Played to its end, and the journal is lost."""
    edit_journal(player.played(run_dir, 1), lambda data: b"")


TRACES: dict[str, Callable[[Path], object]] = {
    "a reply": lambda run: player.played(run, 1, turns=1),
    "a death": death,
    "a damaged reply": lambda run: edit_journal(
        player.played(run, 1, turns=1), lambda data: data.replace(b'"kind":"reply"', b'"kind":"repay"')
    ),
    "an ending": ending,
    "a transcript": both(ending, lambda run: edit(run / "toy_index.jsonl", lambda data: b"")),
    "a row": both(ending, lambda run: (run / "transcripts/toy_00000.json").unlink()),
    "a stranger": lambda run: (run / "notes.txt").write_text("mine"),
}


@pytest.mark.parametrize("trace", TRACES)
def test_directory_in_which_anything_stands_is_refused_to_another_experiment(run_dir: Path, trace: str) -> None:
    player.open_toy(run_dir, 1).close()
    TRACES[trace](run_dir)
    corrected: JsonObject = {**player.resolved(seed=2), "game": {"lobby": "classic-7"}}
    files = {name: held for name, held in tree(run_dir).items() if not name.startswith(".")}

    with pytest.raises(
        IdentityError, match=r"(?s)(?=.*--out)(?=.*seed: 1 there, 2 now).*\{\"lobby\":\"classic-7\"\} now"
    ):
        player.surveyed(run_dir, 1, corrected)
    with pytest.raises(
        IdentityError, match=r"(?s)(?=.*--out)(?=.*seed: 1 there, 2 now).*\{\"lobby\":\"classic-7\"\} now"
    ):
        player.open_toy(run_dir, 1, config=corrected)

    assert {name: held for name, held in tree(run_dir).items() if not name.startswith(".")} == files
