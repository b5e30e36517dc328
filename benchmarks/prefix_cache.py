"""How much of a game's prompts has an engine seen before? One full game, prompt by prompt, against the best possible.

Run `python -m benchmarks.prefix_cache`. The last line is one JSON row. Tokens are taken to be blocks of four
characters, and the engine to keep every prompt it was sent: a block counts as cached when the prompt up to its end is
the beginning of an earlier prompt of the game.

`best` is an upper bound over all orders of the same lines. A cached prefix is the beginning of one earlier
prompt, so it has only lines that the two share. The bound is the most that a prompt has in common with any earlier
prompt.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from random import Random

from benchmarks.machine import row
from mac_runner.config import Experiment
from mac_runner.environments import build_environment
from mac_runner.environments.base import Environment
from mac_runner.plan import plan_tasks
from mac_runner.types import Prompt, Reply, stable_hash

CHARS_PER_TOKEN = 4


@dataclass(slots=True)
class PrefixMeter:
    """Counts tokens of prompts in the order they are sent: all, those cached, those cached at best."""

    total: int = 0
    cached: int = 0
    common: float = 0.0
    prefixes: set[int] = field(default_factory=set)
    sent: list[frozenset[str]] = field(default_factory=list)

    @property
    def share(self) -> float:
        """The cached part of all tokens."""
        return self.cached / self.total

    @property
    def best(self) -> float:
        """The part no order of the lines could exceed."""
        return self.common / self.total

    def add(self, prompt: Prompt) -> None:
        """Send one more prompt."""
        text = "".join(f"\x1e{message.role}\x1f{message.content}\n" for message in prompt.messages)
        prefix, is_prefix = 0, True
        for start in range(0, len(text), CHARS_PER_TOKEN):
            prefix = hash((prefix, text[start : start + CHARS_PER_TOKEN]))
            is_prefix = is_prefix and prefix in self.prefixes
            self.cached += is_prefix
            self.total += 1
            self.prefixes.add(prefix)
        lines = text.splitlines(keepends=True)
        # Lines that occur twice in a prompt count as often as they occur: the bound errs upwards.
        new = min((_chars(lines, earlier) for earlier in self.sent), default=len(text))
        self.common += (len(text) - new) / CHARS_PER_TOKEN
        self.sent.append(frozenset(lines))


def _chars(lines: list[str], earlier: frozenset[str]) -> int:
    """The characters of the lines that are not in an earlier prompt."""
    return sum(len(line) for line in lines if line not in earlier)


def measure(environment: Environment, experiment: Experiment, *, words: str = "") -> PrefixMeter:
    """Play the first game of an experiment, with `words` said in addition in every speech."""
    task = next(iter(plan_tasks(experiment, environment.lineup)))
    game, policy, meter = environment.open(task), environment.policy("heuristic"), PrefixMeter()
    while turns := game.turns():
        prompt = game.prompt(turns[0])
        meter.add(prompt)
        text = policy(prompt.view, Random(stable_hash(task.seed, turns[0].key)))
        game.receive(turns[0], Reply(text=text.replace("</speak>", f"{words}</speak>")))
    return meter


def trial(lobby: str) -> Experiment:
    """One game of heuristic players."""
    model = {"backend": "scripted", "scripted_config": {"policy": "heuristic"}}
    return Experiment.model_validate(
        {
            "experiment_metadata": {"experiment_name": "prefix_cache"},
            "conversation_config": {"environment": "town_of_salem", "conversations": 1},
            "model_definitions": {"m": model},
            "agent_definitions": [{"agent_id": "player", "role": "player", "model": "m"}],
            "game": {"lobby": lobby},
        }
    )


def main() -> None:
    """Play one game and print the row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lobby", default="classic-15")
    parser.add_argument("--speech-chars", type=int, default=200, help="characters added to every speech")
    asked = parser.parse_args()
    experiment = trial(asked.lobby)
    meter = measure(build_environment(experiment), experiment, words=" So I say." * (asked.speech_chars // 10))
    print(
        row(
            benchmark="prefix_cache",
            lobby=asked.lobby,
            speech_chars=asked.speech_chars,
            prompt_tokens=meter.total,
            cached_share=round(meter.share, 4),
            best_share=round(meter.best, 4),
        )
    )


if __name__ == "__main__":
    main()
