"""Shards, and runs made into one: what comes out is what a single run would have left."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from mac_runner.clock import Clock
from mac_runner.errors import IdentityError, RunDirectoryError, RunLockedError, StoreError
from mac_runner.plan import Shard
from mac_runner.store import Disk, Merged, System
from mac_runner.store.testing import locked, objects
from mac_runner.types import JsonObject
from tests.store import player
from tests.store.conftest import FaultySystem, both, edit, failing_calls, files, lose_frames, tree
from tests.store.frames import scan

CONVERSATIONS = 7


def play_shard(
    directory: Path, shard: Shard | None, *, turns: int | None = None, config: JsonObject | None = None
) -> Path:
    """Play a shard of the toy experiment, or only so many turns of it."""
    with player.open_toy(directory, player.plan(CONVERSATIONS).part(shard), config=config, shard=shard) as run:
        player.play(run, turns=turns)
        run.checkpoint({"models": {"m": {"requests": 1}}})
    return directory


def merged(target: Path, *sources: Path, disk: Disk | None = None) -> Merged:
    return player.merged(target, *sources, tasks=CONVERSATIONS, disk=disk)


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    return [play_shard(tmp_path / f"part-{n}", Shard(n, 3)) for n in (1, 2, 3)]


@pytest.fixture
def single(tmp_path: Path) -> Path:
    return play_shard(tmp_path / "single", None)


def test_merged_shards_are_what_a_single_run_leaves(tmp_path: Path, shards: Sequence[Path], single: Path) -> None:
    target, before = tmp_path / "whole", [tree(shard) for shard in shards]
    found = merged(target, *shards)

    assert [tree(shard) for shard in shards] == before
    assert (found.contents.counts.finished, found.contents.counts.planned) == (CONVERSATIONS, CONVERSATIONS)
    assert found.missing == ()
    assert files(target / "transcripts") == files(single / "transcripts")
    assert (target / "toy_index.jsonl").read_bytes() == (single / "toy_index.jsonl").read_bytes()
    assert _json(target / "task_manifest.json")["tasks"] == _json(single / "task_manifest.json")["tasks"]
    assert _events(target) == _events(single)
    assert (target / "experiment.yaml").read_bytes() == (single / "experiment.yaml").read_bytes()
    assert not (target / "shard.json").exists()
    assert player.verified(target).findings == ()


def test_accounts_add_up_and_sessions_are_copied_as_they_are_and_tell_the_runs_they_come_from(
    tmp_path: Path, shards: Sequence[Path]
) -> None:
    accounting = merged(tmp_path / "whole", *shards).contents.accounting

    assert (accounting["sessions"], accounting["merged_runs"]) == (3, 3)
    tokens = {"prompt": 84, "cached": 28, "completion": 56}
    assert accounting["models"] == {"m": {"requests": CONVERSATIONS * player.TURNS, "tokens": tokens}}
    assert [(part["run"], part["indexes"]) for part in objects(accounting, "parts")] == [
        ("part-1", [[0, 6, 3]]),
        ("part-2", [[1, 1, 1], [4, 4, 1]]),
        ("part-3", [[2, 2, 1], [5, 5, 1]]),
    ]
    for number in (1, 2, 3):
        segment = (tmp_path / f"whole/journal/{number:06d}.jsonl").read_bytes()
        head = scan(segment).records[0]
        assert (head["run"], head["session"]) == (f"part-{number}", 1)
        played = (shards[number - 1] / "journal/000001.jsonl").read_bytes()
        assert segment.split(b"\n")[1:] == played.split(b"\n")[1:]


def test_events_stand_in_the_order_of_their_times(tmp_path: Path, shards: Sequence[Path]) -> None:
    log = shards[0] / "events.jsonl"
    log.write_bytes(log.read_bytes() + b'{"time":"2025-01-01T00:0')

    merged(tmp_path / "whole", *shards)

    times = [json.loads(line)["time"] for line in (tmp_path / "whole/events.jsonl").read_bytes().splitlines()]
    assert times == sorted(times)


@pytest.mark.parametrize("turns", [0, 3])
def test_missing_shard_is_told_and_a_half_done_one_goes_on_in_the_merged_directory(
    tmp_path: Path, shards: Sequence[Path], single: Path, turns: int
) -> None:
    half = [play_shard(tmp_path / "half", Shard(2, 3), turns=turns)] if turns else []
    target = tmp_path / "whole"
    found = merged(target, shards[2], *half, shards[0])
    assert found.missing == (() if turns else (Shard(2, 3),))

    play_shard(target, None)

    assert files(target / "transcripts") == files(single / "transcripts")
    assert _events(target) == _events(single)
    assert player.verified(target).findings == ()


def test_merged_directory_can_be_merged_and_extended(tmp_path: Path, shards: Sequence[Path]) -> None:
    merged(tmp_path / "two", *shards[:2])
    merged(tmp_path / "all", tmp_path / "two", shards[2])

    with player.open_toy(tmp_path / "all", CONVERSATIONS + 2) as run:
        assert player.play(run) == 2 * player.TURNS
    assert player.verified(tmp_path / "all").acknowledged == CONVERSATIONS + 2


def test_runs_of_different_experiments_are_refused_naming_the_fields(tmp_path: Path, shards: Sequence[Path]) -> None:
    other = play_shard(tmp_path / "other", Shard(2, 3), config=player.resolved(seed=2))

    with pytest.raises(IdentityError, match=r"seed: 1 .*, 2 .*other"):
        merged(tmp_path / "whole", shards[0], other)

    assert not (tmp_path / "whole").exists()


def test_runs_that_share_a_conversation_are_refused_naming_it(tmp_path: Path, shards: Sequence[Path]) -> None:
    half = play_shard(tmp_path / "half", None, turns=1)

    for other in (half, tmp_path / "half" / ".." / "part-1"):
        with pytest.raises(RunDirectoryError, match=rf"part-1 and {re.escape(str(other))} .*toy_00000"):
            merged(tmp_path / "whole", shards[1], shards[0], other)


def test_merge_into_a_directory_in_use_is_refused_and_leaves_it_alone(
    tmp_path: Path, shards: Sequence[Path], single: Path
) -> None:
    before = tree(single)
    for sources in (shards, [single]):
        with pytest.raises(RunDirectoryError, match="single holds"):
            merged(single, *sources)
    assert tree(single) == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("mine")
    with pytest.raises(RunDirectoryError, match=r"holds 'notes\.txt'"):
        merged(tmp_path / "mine", *shards)
    assert tree(tmp_path / "mine").keys() == {"notes.txt"}


def test_source_that_is_being_run_is_refused_naming_its_owner(tmp_path: Path, shards: Sequence[Path]) -> None:
    with (
        player.begun(player.open_toy(tmp_path / "busy", 1)),
        pytest.raises(RunLockedError, match=f"busy .*pid {os.getpid()} on "),
    ):
        merged(tmp_path / "whole", shards[1], tmp_path / "busy")


def test_damage_of_a_journal_stays_behind(tmp_path: Path, shards: Sequence[Path]) -> None:
    segment = shards[0] / "journal/000001.jsonl"
    segment.write_bytes(segment.read_bytes().replace(b'"turn":"1/', b'"turn":"2/', 1) + b"deadbeef {torn")

    merged(tmp_path / "whole", *shards)

    assert player.verified(tmp_path / "whole").findings == ()


@pytest.mark.ci
def test_merge_broken_off_at_any_call_is_done_over_by_the_same_command(
    tmp_path: Path, shards: Sequence[Path], single: Path, system: FaultySystem, disk: Disk
) -> None:
    before, reference = [tree(shard) for shard in shards], tmp_path / "reference"
    played = merged(reference, *shards[:2]).contents.counts.finished
    system.fail_at = 60
    with pytest.raises(StoreError):
        merged(tmp_path / "begun", *shards[:2], disk=disk)
    # Killed when only the summary was missing.
    shutil.copytree(reference, tmp_path / "ended")
    (tmp_path / "ended/summary.json").unlink()
    shutil.copy(tmp_path / "begun/.merging.json", tmp_path / "ended")
    for left in ("", "ended"):

        def place(name: str, left: str = left) -> Path:
            target = tmp_path / f"{left}-{name}"
            if left:
                shutil.copytree(tmp_path / left, target)
            return target

        system.fail_at = None
        for fail_at in failing_calls(system, lambda: merged(place("sound"), *shards[:2], disk=disk)):
            target = place(str(fail_at))
            with pytest.raises(StoreError, match="ENOSPC"):
                merged(target, *shards[:2], disk=disk)
            if (target / "experiment.yaml").exists():
                assert player.verified(target).acknowledged == played, "a part of it is taken for the run"
            if not (target / "summary.json").exists():
                merged(target, *shards[:2])
            assert player.verified(target).findings == ()
            assert files(target / "transcripts") == files(reference / "transcripts")
            assert not list(target.rglob(".tmp-*"))
    assert [tree(shard) for shard in shards] == before


def test_broken_off_merge_is_neither_run_nor_merged_with_others(
    tmp_path: Path, shards: Sequence[Path], system: FaultySystem, disk: Disk
) -> None:
    target = tmp_path / "whole"
    system.fail_at = 60
    with pytest.raises(StoreError):
        merged(target, *shards, disk=disk)

    with pytest.raises(RunDirectoryError, match="broken off; finish"):
        play_shard(target, None)
    with pytest.raises(RunDirectoryError, match="of other runs"):
        merged(target, *shards[:2])

    merged(target, *shards)


class Watched(System):
    """Lets something happen right after the `at`-th look into a directory."""

    def __init__(self, directory: Path, at: int, happen: Callable[[], object]) -> None:
        self.directory, self.looks_left, self.happen = directory, at, happen


def _watched(call: str) -> Callable[..., object]:
    def watched(system: Watched, path: Path) -> object:
        try:
            return getattr(System, call)(system, path)
        finally:
            if path.is_relative_to(system.directory):
                system.looks_left -= 1
                if system.looks_left == 0:
                    system.happen()

    return watched


for _call in ("exists", "is_directory", "names", "open_read"):
    setattr(Watched, _call, _watched(_call))


@pytest.mark.parametrize("look", range(1, 5))
def test_the_same_merge_by_another_process_keeps_this_one_out_by_its_lock_and_then_by_its_run(
    tmp_path: Path, shards: Sequence[Path], system: FaultySystem, disk: Disk, look: int
) -> None:
    broken_off, begins, ends = tmp_path / "broken off", tmp_path / "begins", tmp_path / "ends"
    system.fail_at = 60
    with pytest.raises(StoreError):
        merged(broken_off, *shards, disk=disk)
    with ExitStack() as other:

        def begin() -> None:
            shutil.copytree(broken_off, begins, dirs_exist_ok=True)
            other.enter_context(locked(Disk(), begins))

        with pytest.raises(RunLockedError):
            merged(begins, *shards, disk=Disk(Watched(begins, look, begin)))

    shutil.copytree(broken_off, ends)
    with pytest.raises(RunDirectoryError, match=r"ends holds .* already"):
        merged(ends, *shards, disk=Disk(Watched(ends, look, lambda: merged(ends, *shards))))
    assert player.verified(ends).findings == ()


def _json(path: Path) -> JsonObject:
    value = json.loads(path.read_bytes())
    assert isinstance(value, dict)
    return value


def _events(run_dir: Path) -> Counter[tuple[str, str, str]]:
    """What happened to conversations, without the times."""
    events = map(json.loads, (run_dir / "events.jsonl").read_bytes().splitlines())
    return Counter((event["event"], event["task"], event.get("turn")) for event in events if "task" in event)


JOURNAL_HARMS: dict[str, Callable[[Path], object]] = {
    "every ending lost": lambda run: lose_frames(run, b'"kind":"done"'),
    "the journal cut": lambda run: os.truncate(run / "journal/000001.jsonl", 300),
    "the journal emptied": lambda run: os.truncate(run / "journal/000001.jsonl", 0),
    "the journal gone": lambda run: shutil.rmtree(run / "journal"),
    "the journal and the index gone": both(
        lambda run: shutil.rmtree(run / "journal"), lambda run: (run / "toy_index.jsonl").unlink()
    ),
}
"""Of these every transcript is whole."""


def test_results_that_a_journal_has_lost_are_adopted(tmp_path: Path, shards: Sequence[Path], single: Path) -> None:
    for name, harm in {**JOURNAL_HARMS, **_flips(shards[0] / "journal/000001.jsonl")}.items():
        victim, target = tmp_path / "victim", tmp_path / "whole"
        shutil.copytree(shards[0], victim)
        harm(victim)
        before = tree(victim)

        found = merged(target, victim, *shards[1:])

        assert files(target / "transcripts") == files(single / "transcripts"), name
        assert (target / "toy_index.jsonl").read_bytes() == (single / "toy_index.jsonl").read_bytes(), name
        assert found.contents.counts.finished == CONVERSATIONS, name
        assert any("victim" in note for note in found.notes), name
        assert player.verified(target).findings == (), name
        assert tree(victim) == before, name
        shutil.rmtree(victim)
        shutil.rmtree(target)


def test_results_that_are_damaged_or_lost_are_refused_by_name_and_nothing_is_written(
    tmp_path: Path, shards: Sequence[Path]
) -> None:
    def alter(path: Path) -> None:
        edit(path, lambda data: data.replace(b'"detail": "says"', b'"detail": "sayz"', 1))

    for result in (Path.unlink, alter):
        for name, harm in {"": lambda _run: None, **JOURNAL_HARMS}.items():
            victim, target = tmp_path / "victim", tmp_path / "whole"
            shutil.copytree(shards[0], victim)
            result(victim / "transcripts/toy_00003.json")
            harm(victim)
            before = tree(victim)
            if result is alter and "index" in name:
                # Nobody knows what it was.
                merged(target, victim, *shards[1:])
                shutil.rmtree(target)
            else:
                with pytest.raises(RunDirectoryError) as refusal:
                    merged(target, victim, *shards[1:])
                told = (
                    "lost results: 1\n",
                    "toy_00003",
                    f"`mac-run verify {victim} --repair`",
                    f" --shard 1/3 --out {victim}`;",
                )
                assert [words for words in told if words not in str(refusal.value)] == [], name
                assert not target.exists(), name
            assert tree(victim) == before, name
            shutil.rmtree(victim)


def test_every_damaged_result_of_every_run_is_named_at_once(tmp_path: Path, shards: Sequence[Path]) -> None:
    for shard in shards:
        for path in (shard / "transcripts").iterdir():
            os.truncate(path, 9)

    with pytest.raises(RunDirectoryError) as refusal:
        merged(tmp_path / "whole", *shards)

    assert all(f"toy_{n:05d}.json is not" in str(refusal.value) for n in range(CONVERSATIONS))


def test_conversation_adopted_from_two_runs_is_refused(tmp_path: Path, shards: Sequence[Path]) -> None:
    shutil.copytree(shards[0], tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy/journal")

    with pytest.raises(RunDirectoryError, match="both worked on toy_00000"):
        merged(tmp_path / "whole", shards[0], tmp_path / "copy")


def _flips(segment: Path) -> dict[str, Callable[[Path], object]]:
    """One byte of each frame of an ending altered."""
    data = segment.read_bytes()
    offsets = [match.start() for match in re.finditer(rb'"kind":"done"', data)]

    def flip(run: Path, at: int) -> None:
        (run / "journal" / segment.name).write_bytes(data[:at] + bytes([data[at] ^ 2]) + data[at + 1 :])

    return {f"the ending at {at}": partial(flip, at=at) for at in offsets}


@pytest.mark.parametrize(("first", "second"), [(Shard(1, 2), Shard(2, 2)), (None, Shard(1, 1)), (Shard(1, 2), None)])
def test_directory_of_another_part_is_refused(run_dir: Path, first: Shard | None, second: Shard | None) -> None:
    player.open_toy(run_dir, 1, shard=first).close()
    before = tree(run_dir / "journal")

    with pytest.raises(IdentityError):
        player.open_toy(run_dir, 1, shard=second)

    assert tree(run_dir / "journal") == before
    player.open_toy(run_dir, 1, shard=first).close()


@pytest.mark.ci
def test_shard_stands_before_the_directory_counts_as_a_run(
    tmp_path: Path, clock: Clock, system: FaultySystem, disk: Disk
) -> None:
    """Whatever call a beginning fails at, no run directory of a shard is ever taken for the whole experiment."""

    def begin(run_dir: Path, disk: Disk | None = None) -> None:
        player.open_toy(run_dir, 1, clock=clock, shard=Shard(1, 2), disk=disk).close()

    for fail_at in failing_calls(system, lambda: begin(tmp_path / "reference", disk)):
        run_dir = tmp_path / str(fail_at)
        with pytest.raises(StoreError, match="ENOSPC"):
            begin(run_dir, disk)
        if (run_dir / "experiment.yaml").exists():
            with pytest.raises(IdentityError, match="holds shard 1/2"):
                player.open_toy(run_dir, 1)
        begin(run_dir)


def test_shard_that_was_given_up_before_it_began_binds_nobody(run_dir: Path) -> None:
    run_dir.mkdir(parents=True)
    (run_dir / "shard.json").write_text('{"of": 2, "shard": 1}')

    player.open_toy(run_dir, 1).close()

    assert not (run_dir / "shard.json").exists()
