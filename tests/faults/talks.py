"""An experiment of many short discussions, and what its run directory holds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mac_runner.store.testing import decode_traces
from mac_runner.types import TokenTrace
from tests.cli.lab import RunDir
from tests.faults.forking import ROOT

FILE = str(ROOT / "experiments" / "discussion_small.yaml")
CAPACITY = 4
TALKERS = f"{{backend: {ROOT}/tests/faults/talkers.py:SPEC, record_tokens: true, settings: {{policy: discussant}}}}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Talks:
    """The arguments of `mac-run` for so many of them, or for a grid of so many with each of its seeds."""

    conversations: int
    out: Path
    traced: bool = False
    """Whether the engine reports tokens, and the run records them."""
    seeds: int = 0

    def args(self, *, latency_ms: float = 0, **settings: float) -> list[str]:
        """As a command line; `settings` belong to `retry_config`."""
        panel = "model_definitions.panel"
        section = f"{panel}.settings" if self.traced else f"{panel}.scripted_config"
        sets = {
            "conversation_config.conversations": self.conversations,
            **({panel: TALKERS} if self.traced else {}),
            **({"_grid.sweep.seed": [*range(self.seeds)]} if self.seeds else {}),
            f"{section}.capacity": CAPACITY,
            f"{section}.latency_ms": latency_ms,
            **{f"retry_config.{key}": value for key, value in settings.items()},
        }
        return [
            FILE,
            "--out",
            str(self.out),
            *(arg for key, value in sets.items() for arg in ("--set", f"{key}={value}")),
        ]

    @property
    def traces(self) -> dict[str, dict[str, TokenTrace]]:
        """The tokens of every turn, by file name and turn, as the files of traces have them."""
        return {path.name: decode_traces(path.read_bytes()) for path in sorted((self.out / "traces").iterdir())}

    @property
    def run_dir(self) -> RunDir:
        return RunDir(path=self.out)
