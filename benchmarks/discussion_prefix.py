"""How much of the prompts of discussions has an engine seen before? Ten of them, in sequence.

Run `python -m benchmarks.discussion_prefix`. The last line is one JSON row. It counts like
`benchmarks.prefix_cache`: tokens are blocks of four characters, the engine keeps every prompt, and `best_share` is an
upper bound over all orders of the same lines.
"""

from __future__ import annotations

import argparse
import json
from itertools import islice
from pathlib import Path
from random import Random

from benchmarks.machine import row
from benchmarks.prefix_cache import PrefixMeter
from mac_runner.config import Experiment, load_experiment
from mac_runner.environments import build_environment
from mac_runner.plan import plan_tasks
from mac_runner.types import Reply, stable_hash

EXPERIMENT = Path(__file__).parents[1] / "experiments" / "bbq_moderated.yaml"


def measure(experiment: Experiment, *, discussions: int, words: str = "") -> PrefixMeter:
    """Play the first discussions of an experiment, with `words` added to every long statement."""
    environment = build_environment(experiment)
    policy, meter = environment.policy("discussant"), PrefixMeter()
    for task in islice(plan_tasks(experiment, environment.lineup), discussions):
        discussion = environment.open(task)
        while turns := discussion.turns():
            prompt = discussion.prompt(turns[0])
            meter.add(prompt)
            said = json.loads(policy(prompt.view, Random(stable_hash(task.seed, turns[0].key))))
            longer = {
                name: f"{text}{words}" if name in {"rationale", "summary"} else text for name, text in said.items()
            }
            discussion.receive(turns[0], Reply(text=json.dumps(longer)))
    return meter


def main() -> None:
    """Play the discussions and print the row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--discussions", type=int, default=10)
    parser.add_argument("--speech-chars", type=int, default=300, help="characters added to every statement")
    parser.add_argument("--identity-place", choices=("system", "last"), default="system")
    parser.add_argument("--history-rounds", type=int, default=1, help="0: all of them")
    asked = parser.parse_args()
    history = asked.history_rounds or "null"
    overrides = {"routing_strategy.history_rounds": history, "prompt.identity_place": asked.identity_place}
    loaded = load_experiment(
        EXPERIMENT, overrides=["_grid=null", *(f"discussion.{key}={value}" for key, value in overrides.items())]
    )
    words = " So I say." * (asked.speech_chars // 10)
    meter = measure(loaded.experiment, discussions=asked.discussions, words=words)
    print(
        row(
            benchmark="discussion_prefix",
            discussions=asked.discussions,
            speech_chars=asked.speech_chars,
            history_rounds=history,
            identity_place=asked.identity_place,
            prompt_tokens=meter.total,
            cached_share=round(meter.share, 4),
            best_share=round(meter.best, 4),
        )
    )


if __name__ == "__main__":
    main()
