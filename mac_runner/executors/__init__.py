"""Where the workers of a run or a grid are: this machine, Slurm or Ray."""

from __future__ import annotations

__all__: list[str] = []
