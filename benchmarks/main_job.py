"""How fast is the main job? `mac-run experiments/tos_100games.yaml` as a user runs it, in a process of its own.

Run `python -m benchmarks.main_job`. The last line is one JSON row. The target is 100 games in under 60 s on two cores.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.machine import row

EXPERIMENT = Path(__file__).parent.parent / "experiments" / "tos_100games.yaml"


def main() -> None:
    """Run the job once and print the row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conversations", type=int, default=100)
    parser.add_argument("--lobby", default="classic-10")
    parser.add_argument("--policy", default="heuristic")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "run"
        settings = {
            "conversation_config.conversations": asked.conversations,
            "game.lobby": asked.lobby,
            "model_definitions.townsfolk.scripted_config.policy": asked.policy,
        }
        flags = [flag for key, value in settings.items() for flag in ("--set", f"{key}={value}")]
        subprocess.run([sys.executable, "-m", "mac_runner", EXPERIMENT, "--out", out, "--quiet", *flags], check=True)
        summary = json.loads((out / "summary.json").read_text())
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        row(
            benchmark="main_job",
            lobby=asked.lobby,
            policy=asked.policy,
            conversations=summary["conversations"]["finished"],
            turns=summary["turns"],
            wall_s=summary["wall_s"],
            cpu_s=round(used.ru_utime + used.ru_stime, 2),
            conversations_per_s=summary["conversations_per_s"],
            turns_per_s=summary["turns_per_s"],
            peak_rss_mb=round(used.ru_maxrss / 1024),
        )
    )


if __name__ == "__main__":
    main()
