"""New weights for the engines of a run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from mac_runner.errors import ConfigError, WeightUpdateError

TIMEOUT_S_MAX: Final = 86_400.0
"""The longest that a trainer may be silent."""


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Weights that a trainer sends with its `WeightSender`, which listens at `address`, `host:port`.

    An engine waits for `timeout_s` while the trainer neither sends nor ends.
    """

    address: str
    timeout_s: float = 300.0

    def __post_init__(self) -> None:
        address: object = self.address
        if not isinstance(address, str):
            raise ConfigError(f"Broadcast: address is {address!r}; give host:port, such as 127.0.0.1:29600")
        if not _is_wait(self.timeout_s):
            raise ConfigError(
                f"Broadcast: timeout_s is {self.timeout_s!r}; allowed: a number above 0, at most {TIMEOUT_S_MAX:g}"
            )


Weights: TypeAlias = Mapping[str, Any] | Path | Broadcast
"""Tensors by the names of the model's checkpoint; a safetensors file or a directory of them; or a trainer's."""


def weights_of(given: object) -> Weights:
    """What a caller gives as weights; a text is a path. Raises WeightUpdateError for what cannot be weights."""
    if isinstance(given, Broadcast | Mapping):
        return given
    if isinstance(given, str | os.PathLike) and isinstance(text := os.fspath(given), str) and text and "\0" not in text:
        try:
            return Path(text).expanduser()
        except RuntimeError as fault:
            raise WeightUpdateError(f"weights: {text!r}: {fault}") from fault
    found = repr(given) if isinstance(given, str | None) else f"of type {type(given).__name__}"
    more = "; of a module, give its state_dict()" if hasattr(given, "state_dict") else ""
    raise WeightUpdateError(
        f"the weights are {found}; give tensors by name, the path of safetensors, or a Broadcast{more}"
    )


def stale(version: int, present: int, holder: str = "the engine") -> str:
    """What is wrong with a version that is not above the one that `holder` has."""
    return f"weights of version {version}: {holder} has version {present}; give a version above it"


def _is_wait(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= TIMEOUT_S_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightUpdate:
    """All weights of a model, and their version."""

    version: int
    """Above the version that the engine has; 0 is what it loaded."""
    weights: Weights
    blocking: bool = True
    """Whether the engine makes no token while the weights come; else it goes on with those it has until then."""
    is_shared: bool = False
    """Whether other engines of the run take the same weights at the same time."""
