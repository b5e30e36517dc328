"""Runs of one experiment made into one: what comes out is what a single run would have left."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from mac_runner.clock import SystemClock
from mac_runner.errors import IdentityError, RunDirectoryError, RunLockedError, StoreError
from mac_runner.plan import Shard
from mac_runner.store import Disk, Merged, RunContents, merge_runs, verify_run
from mac_runner.store.testing import scan
from mac_runner.types import JsonObject
from tests.store import player
from tests.store.conftest import FaultySystem, tree

CONVERSATIONS = 7


def play_shard(
    directory: Path,
    shard: Shard | None,
    *,
    turns: int | None = None,
    config: JsonObject | None = None,
) -> Path:
    """Play a shard of the toy experiment, or only so many turns of it."""
    with player.open_toy(directory, player.plan(CONVERSATIONS).part(shard), config=config, shard=shard) as run:
        player.play(run, turns=turns)
        run.checkpoint({"models": {"m": {"requests": 1}}})
    return directory


def merged(target: Path, *sources: Path, disk: Disk | None = None) -> Merged:
    return merge_runs(
        target,
        sources,
        summarise=_summary,
        plan=lambda _run: player.plan(CONVERSATIONS),
        clock=SystemClock(),
        disk=disk,
    )


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    return [play_shard(tmp_path / f"part-{n}", Shard(n, 3)) for n in (1, 2, 3)]


@pytest.fixture
def single(tmp_path: Path) -> Path:
    return play_shard(tmp_path / "single", None)


def test_merged_shards_are_what_a_single_run_leaves(tmp_path: Path, shards: Sequence[Path], single: Path) -> None:
    target = tmp_path / "whole"
    found = merged(target, *shards)

    assert (found.contents.counts.finished, found.contents.counts.planned) == (CONVERSATIONS, CONVERSATIONS)
    assert found.missing == ()
    assert _files(target / "transcripts") == _files(single / "transcripts")
    assert (target / "toy_index.jsonl").read_bytes() == (single / "toy_index.jsonl").read_bytes()
    assert _json(target / "task_manifest.json")["tasks"] == _json(single / "task_manifest.json")["tasks"]
    assert _events(target) == _events(single)
    assert (target / "experiment.yaml").read_bytes() == (single / "experiment.yaml").read_bytes()
    assert not (target / "shard.json").exists()
    assert verify_run(target, rebuild=player.rebuild).findings == ()


def test_merge_only_reads_its_sources(tmp_path: Path, shards: Sequence[Path]) -> None:
    before = [tree(shard) for shard in shards]

    merged(tmp_path / "whole", *shards)

    assert [tree(shard) for shard in shards] == before


def test_accounts_add_up_and_tell_the_runs_they_come_from(tmp_path: Path, shards: Sequence[Path]) -> None:
    accounting = merged(tmp_path / "whole", *shards).contents.accounting

    assert (accounting["sessions"], accounting["merged_runs"]) == (3, 3)
    assert accounting["models"] == {"m": {"requests": 3}}
    parts = accounting["parts"]
    assert isinstance(parts, list)
    assert [(part["run"], part["indexes"]) for part in parts if isinstance(part, dict)] == [
        ("part-1", [[0, 6, 3]]),
        ("part-2", [[1, 1, 1], [4, 4, 1]]),
        ("part-3", [[2, 2, 1], [5, 5, 1]]),
    ]


def test_sessions_are_numbered_anew(tmp_path: Path, shards: Sequence[Path]) -> None:
    merged(tmp_path / "whole", *shards)

    for number in (1, 2, 3):
        records = scan((tmp_path / f"whole/journal/{number:06d}.jsonl").read_bytes()).records
        told = [(record["id"], record["session"]) for record in records if "session" in record]
        assert told == [(str(number), number)] * len(told)
        assert records[0]["run"] == f"part-{number}"


def test_events_stand_in_the_order_of_their_times(tmp_path: Path, shards: Sequence[Path]) -> None:
    log = shards[0] / "events.jsonl"
    log.write_bytes(log.read_bytes() + b'{"time":"2025-01-01T00:0')

    merged(tmp_path / "whole", *shards)

    times = [json.loads(line)["time"] for line in (tmp_path / "whole/events.jsonl").read_bytes().splitlines()]
    assert times == sorted(times)


def test_missing_shard_is_told_and_can_be_run_in_the_merged_directory(
    tmp_path: Path, shards: Sequence[Path], single: Path
) -> None:
    target = tmp_path / "whole"
    found = merged(target, shards[2], shards[0])
    assert found.missing == (Shard(2, 3),)

    play_shard(target, None)

    assert _files(target / "transcripts") == _files(single / "transcripts")
    assert verify_run(target, rebuild=player.rebuild).findings == ()


def test_half_done_conversations_go_on_from_their_recorded_replies(
    tmp_path: Path, shards: Sequence[Path], single: Path
) -> None:
    half = play_shard(tmp_path / "half", Shard(2, 3), turns=3)
    target = tmp_path / "whole"
    merged(target, shards[0], half, shards[2])

    play_shard(target, None)

    assert _files(target / "transcripts") == _files(single / "transcripts")
    assert _events(target) == _events(single)
    assert verify_run(target, rebuild=player.rebuild).findings == ()


def test_merged_directory_can_be_merged_and_extended(tmp_path: Path, shards: Sequence[Path]) -> None:
    merged(tmp_path / "two", *shards[:2])
    merged(tmp_path / "all", tmp_path / "two", shards[2])

    with player.open_toy(tmp_path / "all", CONVERSATIONS + 2) as run:
        assert player.play(run) == 2 * player.TURNS
    assert verify_run(tmp_path / "all", rebuild=player.rebuild).acknowledged == CONVERSATIONS + 2


def test_runs_of_different_experiments_are_refused_naming_the_fields(tmp_path: Path, shards: Sequence[Path]) -> None:
    other = play_shard(tmp_path / "other", Shard(2, 3), config=player.resolved(seed=2))

    with pytest.raises(IdentityError, match=r"seed: 1 .*, 2 .*other"):
        merged(tmp_path / "whole", shards[0], other)

    assert not (tmp_path / "whole").exists()


def test_runs_that_share_a_conversation_are_refused_naming_it(tmp_path: Path, shards: Sequence[Path]) -> None:
    half = play_shard(tmp_path / "half", None, turns=1)

    with pytest.raises(RunDirectoryError, match=r"part-1 .*half .*toy_00000"):
        merged(tmp_path / "whole", shards[1], shards[0], half)


@pytest.mark.parametrize("places", [("part-1", "part-1"), ("part-1", "part-2", "x/../part-1"), ("whole", "part-1")])
def test_directory_named_twice_is_refused(
    tmp_path: Path, shards: Sequence[Path], single: Path, places: Sequence[str]
) -> None:
    (tmp_path / "x").mkdir()
    single.rename(tmp_path / "whole")

    with pytest.raises(RunDirectoryError, match="named twice"):
        merged(tmp_path / "whole", *(tmp_path / place for place in places))


def test_merge_into_a_directory_in_use_is_refused_and_leaves_it_alone(
    tmp_path: Path, shards: Sequence[Path], single: Path
) -> None:
    before = tree(single)
    with pytest.raises(RunDirectoryError, match="single holds"):
        merged(single, *shards)
    assert tree(single) == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("mine")
    with pytest.raises(RunDirectoryError, match=r"holds 'notes\.txt'"):
        merged(tmp_path / "mine", *shards)
    assert tree(tmp_path / "mine").keys() == {"notes.txt"}


def test_source_that_is_not_what_was_acknowledged_is_refused(tmp_path: Path, shards: Sequence[Path]) -> None:
    (shards[1] / "transcripts/toy_00001.json").write_bytes(b"{}")

    with pytest.raises(RunDirectoryError, match=r"toy_00001\.json is not"):
        merged(tmp_path / "whole", *shards)


def test_source_that_is_being_run_is_refused_naming_its_owner(tmp_path: Path, shards: Sequence[Path]) -> None:
    with (
        player.open_toy(tmp_path / "busy", 1),
        pytest.raises(RunLockedError, match=f"busy .*pid {os.getpid()} on "),
    ):
        merged(tmp_path / "whole", shards[1], tmp_path / "busy")


def test_damage_of_a_journal_stays_behind(tmp_path: Path, shards: Sequence[Path]) -> None:
    segment = shards[0] / "journal/000001.jsonl"
    segment.write_bytes(segment.read_bytes().replace(b'"turn":"1/', b'"turn":"2/', 1) + b"deadbeef {torn")

    merged(tmp_path / "whole", *shards)

    assert verify_run(tmp_path / "whole", rebuild=player.rebuild).findings == ()


@pytest.mark.ci
def test_merge_broken_off_at_any_call_is_done_over_by_the_same_command(
    tmp_path: Path, shards: Sequence[Path], single: Path, system: FaultySystem, disk: Disk
) -> None:
    merged(tmp_path / "reference", *shards[:2], disk=disk)
    calls, before = len(system.calls), [tree(shard) for shard in shards]
    for fail_at in range(1, calls + 1):
        system.calls.clear()
        system.fail_at = fail_at
        target = tmp_path / f"whole-{fail_at}"
        with pytest.raises(StoreError, match="ENOSPC"):
            merged(target, *shards[:2], disk=disk)
        if not (target / "summary.json").exists():
            merged(target, *shards[:2])
        assert verify_run(target, rebuild=player.rebuild).findings == ()
        assert _files(target / "transcripts") == _files(tmp_path / "reference" / "transcripts")
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


def _summary(contents: RunContents) -> JsonObject:
    return {"finished": contents.counts.finished}


def _files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def _json(path: Path) -> JsonObject:
    value = json.loads(path.read_bytes())
    assert isinstance(value, dict)
    return value


def _events(run_dir: Path) -> Counter[tuple[str, str, str]]:
    """What happened to conversations, without the times."""
    events = map(json.loads, (run_dir / "events.jsonl").read_bytes().splitlines())
    return Counter((event["event"], event["task"], event.get("turn")) for event in events if "task" in event)


JOURNAL_HARMS: dict[str, Callable[[Path], object]] = {
    "every ending lost": lambda run: _rewrite(run, lambda line: b'"kind":"done"' not in line),
    "the journal cut": lambda run: os.truncate(run / "journal/000001.jsonl", 300),
    "the journal emptied": lambda run: os.truncate(run / "journal/000001.jsonl", 0),
    "the journal gone": lambda run: shutil.rmtree(run / "journal"),
    "the journal and the index gone": lambda run: _remove(run / "journal", run / "toy_index.jsonl"),
}
"""Of these every transcript is whole."""


def test_results_that_a_journal_has_lost_are_adopted(tmp_path: Path, shards: Sequence[Path], single: Path) -> None:
    for name, harm in {**JOURNAL_HARMS, **_flips(shards[0] / "journal/000001.jsonl")}.items():
        victim, target = tmp_path / "victim", tmp_path / "whole"
        shutil.copytree(shards[0], victim)
        harm(victim)
        before = tree(victim)

        found = merged(target, victim, *shards[1:])

        assert _files(target / "transcripts") == _files(single / "transcripts"), name
        assert (target / "toy_index.jsonl").read_bytes() == (single / "toy_index.jsonl").read_bytes(), name
        assert found.contents.counts.finished == CONVERSATIONS, name
        assert any("victim" in note for note in found.notes), name
        assert verify_run(target, rebuild=player.rebuild).findings == (), name
        assert tree(victim) == before, name
        shutil.rmtree(victim)
        shutil.rmtree(target)


def test_results_that_are_damaged_or_lost_are_refused_by_name_and_nothing_is_written(
    tmp_path: Path, shards: Sequence[Path]
) -> None:
    def lose(run: Path) -> None:
        (run / "transcripts/toy_00003.json").unlink()

    def alter(run: Path) -> None:
        path = run / "transcripts/toy_00003.json"
        path.write_bytes(path.read_bytes().replace(b'"detail": "says"', b'"detail": "sayz"', 1))

    for result in (lose, alter):
        for name, harm in {"": lambda _run: None, **JOURNAL_HARMS}.items():
            victim, target = tmp_path / "victim", tmp_path / "whole"
            shutil.copytree(shards[0], victim)
            result(victim)
            harm(victim)
            before = tree(victim)
            if result is alter and "index" in name:
                # Nobody knows what it was.
                merged(target, victim, *shards[1:])
                shutil.rmtree(target)
            else:
                with pytest.raises(RunDirectoryError) as refusal:
                    merged(target, victim, *shards[1:])
                told = str(refusal.value)
                assert "lost results: 1\n" in told, name
                assert "toy_00003" in told, name
                assert f"`mac-run repair {victim}`" in told, name
                assert f" --shard 1/3 --out {victim}`;" in told, name
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


def _rewrite(run: Path, keeps: Callable[[bytes], bool]) -> None:
    segment = run / "journal/000001.jsonl"
    segment.write_bytes(b"".join(line for line in segment.read_bytes().splitlines(keepends=True) if keeps(line)))


def _remove(directory: Path, file: Path) -> None:
    shutil.rmtree(directory)
    file.unlink()
