"""Where the workers of a directory of shards run: this machine, Slurm or Ray."""

from __future__ import annotations

__all__: list[str] = []
