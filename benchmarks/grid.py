"""Do the slots stay full between the settings of a grid? A grid of four discussions on an engine with 64 slots.

Run `python -m benchmarks.grid`. It plays the grid as a user does, in its own process, and then its settings one after
the other, each in its own run. The requests in flight are read off the event logs. It prints the timeline of
both in slices of the longer one, with the seams between settings marked, and one JSON row last. The target is a slot
utilisation of 0.95 over the whole grid, and no slice below it until the last setting is under way.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import yaml

from benchmarks.machine import row
from mac_runner.types import JsonObject

SLOTS = 64
SETTINGS = 4
SLICES = 30


class Span(NamedTuple):
    """One request: its setting, and when it was in flight."""

    setting: str
    start_s: float
    end_s: float


def experiment(conversations: int, kernel_ms: int) -> JsonObject:
    """A moderated discussion of four agents over three rounds; long replies take longer."""
    agents: list[JsonObject] = [{"agent_id": f"spkr_{n}", "role": "participant", "model": "m"} for n in range(3)]
    waits: JsonObject = {"speak_after_within_round": [f"spkr_{n}" for n in range(3)]}
    agents.append({"agent_id": "mod", "role": "moderator", "model": "m", "role_specific_config": waits})
    return {
        "experiment_metadata": {"experiment_name": "seams"},
        "conversation_config": {"environment": "discussion", "conversations": conversations},
        "discussion": {"max_rounds": 3, "topics": ["Should the town build a bridge or run a ferry?"]},
        "model_definitions": {
            "m": {
                "backend": "scripted",
                "scripted_config": {"policy": "discussant", "capacity": SLOTS},
                "latency": {"prefill_ms": 50, "kernel_ms": kernel_ms, "quantum": 4},
            }
        },
        "agent_definitions": [*agents],
    }


def played(file: Path, out: Path) -> None:
    """Run `mac-run` once."""
    subprocess.run([sys.executable, "-m", "mac_runner", file, "--out", out, "--quiet"], check=True)


def spans(directory: Path) -> list[Span]:
    """The requests of a run directory, timed from the first of them."""
    began: dict[tuple[str, str], float] = {}
    found: list[tuple[str, float, float]] = []
    for line in (directory / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["event"] not in ("EVENT_INFER_START", "EVENT_INFER_DONE"):
            continue
        turn = event["task"], event["turn"]
        at_s = datetime.fromisoformat(event["time"]).timestamp()
        if event["event"] == "EVENT_INFER_START":
            began[turn] = at_s
        else:
            setting = event["task"].rpartition("-")[0]
            found.append((setting, began.pop(turn), at_s))
    first_s = min(start_s for _, start_s, _ in found)
    return sorted(Span(setting, start_s - first_s, end_s - first_s) for setting, start_s, end_s in found)


def utilisation(found: Sequence[Span], start_s: float, end_s: float) -> float:
    """The part of the slots' time in use between two moments."""
    busy_s = sum(max(0.0, min(span.end_s, end_s) - max(span.start_s, start_s)) for span in found)
    return busy_s / (SLOTS * (end_s - start_s))


def timeline(found: Sequence[Span], width_s: float) -> Iterator[str]:
    """One line per slice: its utilisation as a number and a bar, and the settings whose first request falls into it."""
    starts: dict[str, float] = {}
    for span in found:
        starts[span.setting] = min(span.start_s, starts.get(span.setting, span.start_s))
    order = sorted(starts, key=lambda setting: starts[setting])
    end_s = max(span.end_s for span in found)
    at_s = 0.0
    while at_s < end_s:
        used = utilisation(found, at_s, min(at_s + width_s, end_s))
        begun = [f"setting {order.index(name) + 1} begins" for name in order if at_s <= starts[name] < at_s + width_s]
        yield f"{at_s:7.1f} s  {used:5.1%}  {'#' * round(50 * used):50}  {', '.join(begun)}".rstrip()
        at_s += width_s


def main() -> None:
    """Play the grid and its settings one by one, and print the row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conversations", type=int, default=200, help="of each setting")
    parser.add_argument("--kernel-ms", type=int, default=40, help="for each four tokens of a reply")
    asked = parser.parse_args()
    content = experiment(asked.conversations, asked.kernel_ms)
    seeds = list(range(SETTINGS))
    with tempfile.TemporaryDirectory() as name:
        lab = Path(name)
        (lab / "grid.yaml").write_text(yaml.safe_dump({**content, "_grid": {"sweep": {"seed": seeds}}}))
        played(lab / "grid.yaml", lab / "grid")
        pooled = spans(lab / "grid")
        alone: list[Span] = []
        for seed in seeds:
            (lab / "one.yaml").write_text(yaml.safe_dump({**content, "seed": seed}))
            played(lab / "one.yaml", lab / f"one-{seed}")
            offset_s = max((span.end_s for span in alone), default=0.0)
            found = spans(lab / f"one-{seed}")
            alone += [Span(f"seed {seed}", span.start_s + offset_s, span.end_s + offset_s) for span in found]
    report(pooled, alone, asked.conversations)


def report(pooled: Sequence[Span], alone: Sequence[Span], conversations: int) -> None:
    """Print both timelines and the row. The time between two runs is left out: only the engine's tail counts."""
    ends_s = {"pooled": max(span.end_s for span in pooled), "one by one": max(span.end_s for span in alone)}
    width_s = max(ends_s.values()) / SLICES
    for name, found in (("pooled", pooled), ("one by one", alone)):
        print(f"{name}:\n" + "\n".join(timeline(found, width_s)))
    # Until the last setting is under way, there is work for every slot.
    starts = [
        min(span.start_s for span in pooled if span.setting == name) for name in {span.setting for span in pooled}
    ]
    slices = int(max(starts) / width_s)
    interior = [utilisation(pooled, n * width_s, (n + 1) * width_s) for n in range(1, slices + 1)]
    print(
        row(
            benchmark="grid",
            settings=SETTINGS,
            conversations_of_each=conversations,
            requests=len(pooled),
            slots=SLOTS,
            pooled_s=round(ends_s["pooled"], 2),
            one_by_one_s=round(ends_s["one by one"], 2),
            slot_utilisation=round(utilisation(pooled, 0.0, ends_s["pooled"]), 4),
            slot_utilisation_one_by_one=round(utilisation(alone, 0.0, ends_s["one by one"]), 4),
            lowest_slice_across_seams=round(min(interior, default=0.0), 4),
        )
    )


if __name__ == "__main__":
    main()
