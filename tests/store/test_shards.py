from __future__ import annotations

from pathlib import Path

import pytest

from mac_runner.clock import Clock
from mac_runner.errors import IdentityError, RunDirectoryError, StoreError
from mac_runner.plan import Shard
from mac_runner.store import Disk, Run
from tests.store import player
from tests.store.conftest import FaultySystem, tree


def open_shard(run_dir: Path, clock: Clock, shard: Shard | None, disk: Disk | None = None) -> Run:
    return player.open_toy(run_dir, 1, clock=clock, shard=shard, disk=disk)


@pytest.mark.parametrize(("first", "second"), [(Shard(1, 2), Shard(2, 2)), (None, Shard(1, 1)), (Shard(1, 2), None)])
def test_directory_of_another_part_is_refused(
    run_dir: Path, clock: Clock, first: Shard | None, second: Shard | None
) -> None:
    open_shard(run_dir, clock, first).close()
    before = tree(run_dir / "journal")

    with pytest.raises(IdentityError):
        open_shard(run_dir, clock, second)

    assert tree(run_dir / "journal") == before
    open_shard(run_dir, clock, first).close()


@pytest.mark.ci
def test_shard_stands_before_the_directory_counts_as_a_run(
    tmp_path: Path, clock: Clock, system: FaultySystem, disk: Disk
) -> None:
    """Whatever call a beginning fails at, no run directory of a shard is ever taken for the whole experiment."""
    open_shard(tmp_path / "reference", clock, Shard(1, 2), disk).close()
    for fail_at in range(1, len(system.calls) + 1):
        system.calls.clear()
        system.fail_at = fail_at
        run_dir = tmp_path / str(fail_at)
        with pytest.raises(StoreError, match="ENOSPC"):
            open_shard(run_dir, clock, Shard(1, 2), disk).close()
        if (run_dir / "experiment.yaml").exists():
            with pytest.raises(IdentityError, match="holds shard 1/2"):
                open_shard(run_dir, clock, None)
        open_shard(run_dir, clock, Shard(1, 2)).close()


def test_shard_that_was_given_up_before_it_began_binds_nobody(run_dir: Path, clock: Clock) -> None:
    run_dir.mkdir(parents=True)
    (run_dir / "shard.json").write_text('{"of": 2, "shard": 1}')

    open_shard(run_dir, clock, None).close()

    assert not (run_dir / "shard.json").exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"shard": "1", "of": 2}'])
def test_shard_that_cannot_be_read_is_refused(run_dir: Path, clock: Clock, text: str) -> None:
    open_shard(run_dir, clock, Shard(1, 2)).close()
    (run_dir / "shard.json").write_text(text)

    with pytest.raises(RunDirectoryError, match=r"shard\.json"):
        open_shard(run_dir, clock, Shard(1, 2))
