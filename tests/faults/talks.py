"""An experiment of many short discussions, and what its run directory holds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.cli.lab import RunDir
from tests.faults.forking import ROOT

FILE = str(ROOT / "experiments" / "discussion_small.yaml")
CAPACITY = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Talks:
    """The arguments of `mac-run` for so many of them."""

    conversations: int
    out: Path

    def args(self, *, latency_ms: float = 0, **settings: float) -> list[str]:
        """As a command line; `settings` belong to `retry_config`."""
        sets = {
            "conversation_config.conversations": self.conversations,
            "model_definitions.panel.scripted_config.capacity": CAPACITY,
            "model_definitions.panel.scripted_config.latency_ms": latency_ms,
            **{f"retry_config.{key}": value for key, value in settings.items()},
        }
        return [
            FILE,
            "--out",
            str(self.out),
            *(arg for key, value in sets.items() for arg in ("--set", f"{key}={value}")),
        ]

    @property
    def run_dir(self) -> RunDir:
        return RunDir(path=self.out)
