"""Runs, and workers that claim shards, killed anywhere, again and again, lose nothing and double nothing."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import psutil
import pytest

from mac_runner.cli.checks import Verify
from mac_runner.cli.process import Exit
from mac_runner.store import FindingKind, read_run, verify_run
from mac_runner.store.testing import LEASES
from mac_runner.types import JsonObject
from tests.cli.lab import RunDir
from tests.faults.forking import Ended, Extras, Forking
from tests.faults.talks import CAPACITY, Talks
from tests.faults.tier import SCALE
from tests.kit import stale_files
from tests.patience import wait_for
from tests.tiers import some

KILLS = 4 * SCALE

CHANGES_MAX, REPLIES_MAX = 120, 40

CONVERSATIONS = 6 * KILLS
"""More than get done between the kills: one takes twelve replies, and more than ten changes."""

LOOK_EVERY = 2


@pytest.fixture(scope="module")
def forking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forking]:
    """Starts `mac-run` within milliseconds, and what records tokens too."""
    forking = Forking(tmp_path_factory.mktemp("forking"), preload="tests.faults.talkers")
    yield forking
    forking.close()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, forking: Forking) -> dict[bool, Talks]:
    """The run that was not killed, without tokens and with them."""
    place = tmp_path_factory.mktemp("undisturbed")
    runs = {
        traced: Talks(conversations=CONVERSATIONS, out=place / str(traced), traced=traced) for traced in (False, True)
    }
    for talks in runs.values():
        assert forking.run(*talks.args()).code == Exit.OK
    return runs


@pytest.mark.parametrize("traced", some(2, (True, False)))
@pytest.mark.parametrize("at", ["change", "reply"])
def test_run_killed_again_and_again_ends_like_one_that_was_not(
    tmp_path: Path, forking: Forking, undisturbed: dict[bool, Talks], at: str, traced: bool
) -> None:
    """Before a change of the disk, which is start-up, resume and commits, or in the middle of a reply."""
    talks = Talks(conversations=CONVERSATIONS, out=tmp_path / "killed", traced=traced)
    witness, chance = tmp_path / "witness", Random(f"{at} {traced}")
    acknowledged = 0

    for kill in range(KILLS):
        extras = Extras(
            witness=str(witness),
            is_slower_than_disk=True,
            after_changes=chance.randrange(CHANGES_MAX) if at == "change" else None,
            after_replies=chance.randrange(REPLIES_MAX) if at == "reply" else None,
        )
        ended = forking.run(*talks.args(), extras=extras)
        assert ended.code == -signal.SIGKILL, ended.err
        if kill % LOOK_EVERY == LOOK_EVERY - 1 and (talks.out / "task_manifest.json").exists():
            done = read_run(talks.out).counts.done
            assert done >= acknowledged
            acknowledged = done
            assert lost_in(talks.out) == []
    assert acknowledged < CONVERSATIONS
    assert forking.run(*talks.args()).code == Exit.OK

    assert talks.run_dir.transcripts == undisturbed[traced].run_dir.transcripts
    assert len(talks.run_dir.index) == CONVERSATIONS
    if traced:
        check_tokens(talks, undisturbed[traced])
    assert Verify(directory=talks.out).work() == Exit.OK
    assert stale_files(talks.out) == []
    assert not list(talks.out.rglob(".tmp-*"))
    # What the engine did again: replies that nobody had written down when the kill came, one for each slot at most.
    made = Counter(witness.read_text().splitlines())
    assert sum(made.values()) - len(made) <= CAPACITY * KILLS


SEEDS_OF_GRID = 3
CLAIMED = ("--shard", "auto/4")


@pytest.mark.ci
@pytest.mark.parametrize("at", ["change", "reply"])
def test_grid_killed_again_and_again_ends_like_one_that_was_not(tmp_path: Path, forking: Forking, at: str) -> None:
    """By turns it is played as a whole, and by two workers at once; and so it is ended."""
    conversations, chance = CONVERSATIONS // SEEDS_OF_GRID, Random(at)
    undisturbed, killed = (
        Talks(conversations=conversations, out=tmp_path / name, seeds=SEEDS_OF_GRID) for name in ("whole", "killed")
    )
    assert forking.run(*undisturbed.args()).code == Exit.OK

    def start(*more: str) -> int:
        extras = Extras(
            is_slower_than_disk=True,
            after_changes=chance.randrange(CHANGES_MAX) if at == "change" else None,
            after_replies=chance.randrange(REPLIES_MAX) if at == "reply" else None,
        )
        return forking.start(*killed.args(), *more, extras=extras)

    for kill in range(KILLS):
        at_work = [start(*CLAIMED), start(*CLAIMED)] if kill % 2 else [start()]
        ends = [forking.ended(pid) for pid in at_work]
        assert [end.code for end in ends] == [-signal.SIGKILL] * len(at_work), [end.err for end in ends]
    assert len(killed.run_dir.transcripts) < SEEDS_OF_GRID * conversations
    ended = forking.run(*killed.args(), *(CLAIMED if at == "change" else ()))
    assert ended.code == Exit.OK, ended.err

    assert killed.run_dir.transcripts == undisturbed.run_dir.transcripts
    assert (killed.out / "grid.csv").read_bytes() == (undisturbed.out / "grid.csv").read_bytes()
    assert Verify(directory=killed.out).work() == Exit.OK
    assert stale_files(killed.out) == []
    # The place of a lease is swept by the worker that claims it next: one that is late may be writing there.
    assert {path.relative_to(killed.out).parts[0] for path in killed.out.rglob(".tmp-*")} <= {"leases"}


def check_tokens(talks: Talks, undisturbed: Talks) -> None:
    """Each reply of each conversation has its tokens, and they are those of the other run."""
    traces = talks.traces
    assert traces == undisturbed.traces
    assert len(traces) == CONVERSATIONS
    for name, data in talks.run_dir.transcripts.items():
        said = {turn["turn"]: turn["reply"]["text"] for turn in json.loads(data)["turns"]}
        tokens = traces[Path(name).with_suffix(".parquet").name]
        assert {key: bytes(trace.completion_ids).decode() for key, trace in tokens.items()} == said
        assert all(len(trace.logprobs) == len(trace.completion_ids) for trace in tokens.values())


def lost_in(run: Path) -> list[str]:
    """What was acknowledged and is not there: whenever a run is killed, manifest and transcripts lag and no more."""
    found = verify_run(run, rebuild=lambda transcript: transcript).findings
    return [finding.text for finding in found if finding.kind is FindingKind.LOST]


IS_LARGE = SCALE >= 3

WORKERS, DEATHS = (8, 3) if IS_LARGE else (4, 2)

SEEDS = SCALE // 3 if IS_LARGE else SCALE

SHARDS, SHARED = (32, 320) if IS_LARGE else (12, 60)

DEATH_REPLIES_MAX = 25
TIMED = ("sessions", "merged_runs", "parts", "wall_s", "played_s", "turns_per_s", "conversations_per_s", "models")


@pytest.mark.ci
@pytest.mark.parametrize("seed", range(SEEDS))
def test_workers_killed_and_stopped_at_random_leave_what_one_run_leaves(
    tmp_path: Path, forking: Forking, seed: int
) -> None:
    chance, witness = Random(seed), tmp_path / "witness"
    witness.touch()
    single = Talks(conversations=SHARED, out=tmp_path / "single")
    assert forking.run(*single.args()).code == Exit.OK
    shared = Talks(conversations=SHARED, out=tmp_path / "shared")
    command = [*shared.args(latency_ms=20), "--shard", f"auto/{SHARDS}", "--quiet"]

    def start(kills: int) -> int:
        after, is_last = chance.randrange(1, DEATH_REPLIES_MAX), kills == DEATHS
        stops = [signal.SIGSTOP] * chance.randrange(2)
        signals = [*stops, *([] if is_last else [signal.SIGKILL])]
        extras = Extras(witness=str(witness), signals=signals, after_replies=after, is_slower_than_disk=True)
        return forking.start(*command, extras=extras)

    def go_on() -> None:
        """Of those that are stopped each goes on after a while of its own; others work or wait meanwhile."""
        for pid in lives:
            if psutil.Process(pid).status() == psutil.STATUS_STOPPED and chance.random() < 0.02:
                os.kill(pid, signal.SIGCONT)
                continued.append(pid)

    continued: list[int] = []
    lives = {start(0): 0 for _ in range(WORKERS)}
    ends: list[Ended] = []
    while lives:
        pid, ended = forking.first_to_end(lives, go_on)
        kills = lives.pop(pid)
        if ended.code == -signal.SIGKILL:
            lives[start(kills + 1)] = kills + 1
        else:
            ends.append(ended)

    assert [end.code for end in ends] == [Exit.OK] * WORKERS, [end.err for end in ends]
    assert continued
    # One that comes when all is played leaves nothing behind; at least one worker lives through its kills and plays.
    assert len([*(shared.out / "workers").iterdir()]) > DEATHS
    same_results(shared.run_dir, single.run_dir)
    assert Verify(directory=shared.out).work() == Exit.OK
    assert not [*(shared.out / "leases").rglob(".owner.json")]
    assert not (shared.out / LEASES).exists()
    assert not [*shared.out.rglob(".tmp-*")]
    # What an engine did again: replies that nobody had written down when a kill came, one for each slot at most.
    made = witness.read_text().splitlines()
    assert len(made) - len({*made}) <= CAPACITY * DEATHS * WORKERS


PAUSES = 2 * SCALE
FEW, FEW_SHARDS = 12, 2


@pytest.mark.ci
def test_worker_stopped_for_longer_than_its_lease_goes_on_and_doubles_nothing(tmp_path: Path, forking: Forking) -> None:
    """Another machine takes its shard. It is stopped too, perhaps, and the first one takes that again."""
    single, taken = Talks(conversations=FEW, out=tmp_path / "single"), 0
    assert forking.run(*single.args()).code == Exit.OK
    for seed in range(PAUSES):
        chance, shared = Random(seed), Talks(conversations=FEW, out=tmp_path / str(seed))

        def start(machine: str, after: int, command: tuple[str, ...] = tuple(shared.args())) -> int:
            extras = Extras(machine=machine, signals=[signal.SIGSTOP], after_replies=after, is_slower_than_disk=True)
            pid = forking.start(*command, "--shard", f"auto/{FEW_SHARDS}", "--quiet", extras=extras)
            at_rest = {psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE}
            wait_for(lambda: psutil.Process(pid).status() in at_rest, "its stop or its end")
            return pid

        workers = [start("first", chance.randrange(1, 60)), start("second", chance.randrange(1, 200))]
        for pid in workers:
            os.kill(pid, signal.SIGCONT)
            assert (ended := forking.ended(pid)).code == Exit.OK, ended.err

        # Beside one for each shard, and one that ends the run.
        taken += len([*(shared.out / "journal").iterdir()]) - FEW_SHARDS - 1
        same_results(shared.run_dir, single.run_dir)
        assert Verify(directory=shared.out).work() == Exit.OK
        assert stale_files(shared.out) == []
        assert not (shared.out / LEASES).exists()
    assert taken >= PAUSES // 2


def same_results(shared: RunDir, single: RunDir) -> None:
    """Everything but times and processes is equal, byte for byte."""
    assert shared.transcripts == single.transcripts
    assert [*map(untimed, shared.index)] == [*map(untimed, single.index)]
    assert shared.statuses == single.statuses
    assert {key: value for key, value in shared.summary.items() if key not in TIMED} == {
        key: value for key, value in single.summary.items() if key not in TIMED
    }


def untimed(row: JsonObject) -> JsonObject:
    """An index row without what depends on time."""
    return {key: value for key, value in row.items() if key not in {"timing", "sha256", "size_bytes"}}
