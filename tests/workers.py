"""Runs that workers share, as a worker that was killed leaves them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import pytest

import mac_runner
from mac_runner.errors import StoreError
from mac_runner.plan import Shard
from mac_runner.runs import claims
from mac_runner.runs.setup import ExperimentSet
from mac_runner.types import JsonObject


def play_shards(experiment: Path | JsonObject, out: Path, of: int, *numbers: int) -> Path:
    """Play these shards of a run or a grid as a worker that is gone before the run has ended; the run directory."""

    def left(chosen: ExperimentSet) -> dict[str, list[Shard]]:
        monkeypatch.setattr(claims, "is_over", gone)
        return {setup.slug: [Shard(number, of) for number in numbers] for setup in chosen.setups}

    def gone(_chosen: ExperimentSet) -> NoReturn:
        raise StoreError("the worker is gone")

    with pytest.MonkeyPatch.context() as monkeypatch, suppress(StoreError):
        monkeypatch.setattr(claims, "shards_left", left)
        mac_runner.run(experiment, out=out, shard=f"auto/{of}", progress=False)
    return out
