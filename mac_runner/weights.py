"""New weights for the engines of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Weights that a trainer sends with its `WeightSender`, which listens at `address`, `host:port`.

    An engine waits for `timeout_s` while the trainer neither sends nor ends.
    """

    address: str
    timeout_s: float = 300.0


Weights: TypeAlias = Mapping[str, Any] | Path | Broadcast
"""Tensors by the names of the model's checkpoint; a safetensors file or a directory of them; or a trainer's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightUpdate:
    """All weights of a model, and their version."""

    version: int
    """Above the version that the engine has; 0 is what it loaded."""
    weights: Weights
    blocking: bool = True
    """Whether the engine makes no token while the weights come; else it goes on with those it has until then."""
