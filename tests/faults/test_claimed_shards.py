"""Workers that claim the shards of one directory, killed at random moments: what they merge is what one run leaves."""

from __future__ import annotations

import signal
from pathlib import Path
from random import Random

import pytest

from mac_runner.cli.maintenance import verify
from mac_runner.cli.process import Exit
from mac_runner.types import JsonObject
from tests.cli.lab import RunDir
from tests.faults.forking import Ended, Extras, Forking
from tests.faults.talks import CAPACITY, Talks
from tests.faults.tier import SCALE

IS_LARGE = SCALE >= 3
WORKERS, KILLS = (8, 3) if IS_LARGE else (4, 2)
SEEDS = SCALE // 3 if IS_LARGE else SCALE
SHARDS, CONVERSATIONS = (32, 320) if IS_LARGE else (12, 60)
REPLIES_MAX = 25
TIMED = ("sessions", "merged_runs", "parts", "wall_s", "played_s", "turns_per_s", "conversations_per_s", "models")


@pytest.mark.ci
@pytest.mark.parametrize("seed", range(SEEDS))
def test_workers_killed_at_random_leave_what_one_run_leaves(tmp_path: Path, forking: Forking, seed: int) -> None:
    chance, witness = Random(seed), tmp_path / "witness"
    witness.touch()
    single = Talks(conversations=CONVERSATIONS, out=tmp_path / "single")
    assert forking.run(*single.args()).code == Exit.OK
    shared = Talks(conversations=CONVERSATIONS, out=tmp_path / "shared")
    command = [*shared.args(latency_ms=20), "--shard", f"auto/{SHARDS}", "--quiet"]

    def start(kills: int) -> int:
        after = chance.randrange(1, REPLIES_MAX) if kills < KILLS else None
        extras = Extras(witness=str(witness), after_replies=after, is_slower_than_disk=True)
        return forking.start(*command, extras=extras)

    lives = {start(0): 0 for _ in range(WORKERS)}
    ends: list[Ended] = []
    while lives:
        pid, ended = forking.first_to_end(lives)
        kills = lives.pop(pid)
        if ended.code == -signal.SIGKILL:
            lives[start(kills + 1)] = kills + 1
        else:
            ends.append(ended)

    assert [end.code for end in ends] == [Exit.OK] * WORKERS, [end.err for end in ends]
    # One that comes when all is played leaves nothing behind; at least one worker lives through its kills and plays.
    assert len([*(shared.out / "workers").iterdir()]) > KILLS
    same_results(shared.run_dir, single.run_dir)
    assert verify(shared.out) == Exit.OK
    assert not [*(shared.out / "shards").rglob(".owner.json")]
    assert not [*shared.out.rglob(".tmp-*")]
    # What an engine did again: replies that nobody had written down when a kill came, one for each slot at most.
    made = witness.read_text().splitlines()
    assert len(made) - len({*made}) <= CAPACITY * KILLS * WORKERS


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
