"""Records run directories of the format as it is now: `python -m tests.golden.record tests/golden/runs`.

Run it for a format that users have, and not again for that one. `finished` was
extended, and one of its conversations failed and was tried again. `killed` was left half-way by a process that was
killed in the middle of a write.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from mac_runner.runs.testing import summary_of
from mac_runner.types import JsonObject
from tests.store import player

FAILED = "toy_00001"
KILLED_AFTER_TURNS = 10
ACCOUNTING: JsonObject = {
    "models": {
        "m": {
            "capacity": 4,
            "slots": 4,
            "busy_slot_s": 1.5,
            "available_slot_s": 2.0,
            "requests": 12,
            "faults": 0,
            "tokens": {"prompt": 36, "cached": 12, "completion": 24},
        }
    }
}


def main() -> None:
    target = Path(sys.argv[1])
    finish(target / "finished")
    subprocess.run([sys.executable, "-m", "tests.golden.record", str(target / "killed"), "and die"], check=False)
    tear(target / "killed")


def finish(run_dir: Path) -> None:
    """A run of three sessions that is complete."""
    with player.open_toy(run_dir, 2) as run:
        player.play(run, failing={FAILED})
        run.checkpoint(ACCOUNTING)
    with player.open_toy(run_dir, 2, is_retried=FAILED.__eq__) as run:
        player.play(run)
        run.checkpoint(ACCOUNTING)
    with player.open_toy(run_dir, 3) as run:
        player.play(run)
        run.checkpoint(ACCOUNTING)
        run.write_summary(summary_of(run.contents()))


def die(run_dir: Path) -> None:
    """Play some turns, have them written, and end without a word."""
    run = player.open_toy(run_dir, 5)
    player.play(run, turns=KILLED_AFTER_TURNS)
    run.checkpoint(ACCOUNTING)
    run.contents()
    os._exit(1)


def tear(run_dir: Path) -> None:
    """What a write that was cut short leaves, and nothing that tells of this machine."""
    segment = run_dir / "journal/000001.jsonl"
    data = segment.read_bytes()
    segment.write_bytes(data + data.splitlines()[1][:57])
    (run_dir / "transcripts/.tmp-0badcafe-4242-000000000000").write_bytes(b'{\n"format": 1,')
    note = json.loads((run_dir / ".owner.json").read_bytes())
    note |= {"pid": 4242, "host": "node17", "machine": "0badcafe", "process_start": "1", "command": "mac-run toy.yaml"}
    (run_dir / ".owner.json").write_text(json.dumps(note, separators=(",", ":"), sort_keys=True) + "\n")


if __name__ == "__main__":
    die(Path(sys.argv[1])) if sys.argv[2:] else main()
