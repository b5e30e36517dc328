"""Does a run take what `mac-run plan` says? Planned from a pilot and from a calibration, then played in real time.

python -m benchmarks.forecast                         # about four minutes
python -m benchmarks.forecast --share 0.25            # a quarter of the conversations
python -m benchmarks.forecast --slower 4              # for a machine on which other programs run

The engines are processes that take each step of a step model at its moment (`tests.sim.step_stub`): 8 ms a step, 0.4 ms
a sequence, 0.02 ms a token read, 0.0005 ms a token of context. The pilot is a run of 20 conversations with 16 requests
in flight; the calibration is `mac-run calibrate` with sweeps of 3 s. Each row is planned by both, and played once. The
last line is one JSON row.

| column | |
|---|---|
| actual | seconds of play, by the run's own summary |
| pilot | what the plan from the pilot is off by |
| calibrated | what the plan from the calibration is off by, with replies of a scripted player |
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from benchmarks.machine import row
from mac_runner.latency import StepModel
from mac_runner.types import JsonValue
from tests.sim.step_stub import TOKENS, serving
from tests.sim.studies import STEPS

ROOT: Final = Path(__file__).parents[1]
PILOT_CONVERSATIONS: Final = 20


@dataclass(frozen=True, kw_only=True)
class Case:
    """An experiment on so many servers."""

    name: str
    conversations: int
    slots: int
    lanes: int = 1
    agents: int = 4
    rounds: int = 3


CASES: Final = (
    Case(name="8 slots", conversations=40, slots=8),
    Case(name="16 slots", conversations=120, slots=16),
    Case(name="32 slots", conversations=200, slots=32),
    Case(name="2 lanes of 16", conversations=200, slots=16, lanes=2),
    Case(name="6 agents, 5 rounds", conversations=60, slots=16, agents=6, rounds=5),
)


def experiment(case: Case, urls: list[str], path: Path) -> Path:
    """The file of an experiment on these servers."""
    content = {
        "experiment_metadata": {"experiment_name": path.stem},
        "seed": 11,
        "conversation_config": {"environment": "discussion", "conversations": case.conversations},
        "discussion": {"max_rounds": case.rounds, "topics": ["Should the town build a bridge or run a ferry?"]},
        "model_definitions": {
            "panel": {
                "backend": "openai",
                "openai_config": {"model": "stub", "base_urls": urls, "max_in_flight": case.slots * case.lanes},
            }
        },
        "agent_definitions": [
            {"agent_id": f"spkr_{seat:03d}", "role": "participant", "model": "panel"} for seat in range(case.agents)
        ],
    }
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return path


def mac_run(*words: str | Path) -> str:
    """What a command prints."""
    command = [sys.executable, "-m", "mac_runner", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def planned_s(file: Path, calibration: Path, *flags: str) -> float:
    """What the plan says."""
    found = json.loads(mac_run("plan", file, "--calibration", calibration, "--resamplings", "0", "--json", *flags))
    return 3600 * float(found["rows"][0]["hours"])


def played_s(file: Path, directory: Path, *flags: str) -> float:
    """What the run takes."""
    mac_run(file, "--out", directory, *flags)
    return float(json.loads((directory / "summary.json").read_text(encoding="utf-8"))["played_s"])


def main() -> None:
    """Plan and play each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=1.0, help="of the conversations of each case")
    parser.add_argument("--slower", type=float, default=1.0, help="how many times as long each step takes")
    asked = parser.parse_args()
    steps = StepModel(**{name: asked.slower * milliseconds for name, milliseconds in STEPS})
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        directory = Path(folder)
        urls = [stack.enter_context(serving(steps=steps, seats=64)) for _ in range(2)]
        pilot = experiment(
            Case(name="", conversations=PILOT_CONVERSATIONS, slots=16), urls[:1], directory / "pilot.yaml"
        )
        played_s(pilot, directory / "pilot")
        calibration = directory / "calibration.json"
        mac_run("calibrate", pilot, "--seconds", str(3 * asked.slower), "--out", calibration)
        figures = dict[str, JsonValue]()
        print(f"{'':20} {'actual s':>9} {'pilot':>8} {'calibrated':>11}")
        for number, case in enumerate(CASES):
            fewer = Case(**{**vars(case), "conversations": round(case.conversations * asked.share)})
            file = experiment(fewer, urls[: case.lanes], directory / f"case_{number}.yaml")
            from_pilot = planned_s(file, directory / "pilot")
            tokens = str(sum(TOKENS) // 2)
            from_file = planned_s(file, calibration, "--policy", "discussant", "--reply-tokens", tokens)
            actual = played_s(file, directory / f"case-{number}")
            off = (from_pilot / actual - 1, from_file / actual - 1)
            figures[case.name] = {
                "actual_s": round(actual, 2),
                "pilot": round(off[0], 3),
                "calibrated": round(off[1], 3),
            }
            print(f"{case.name:20} {actual:9.1f} {off[0]:+8.1%} {off[1]:+11.1%}", flush=True)
    print(row(benchmark="forecast", share=asked.share, slower=asked.slower, **figures))


if __name__ == "__main__":
    main()
