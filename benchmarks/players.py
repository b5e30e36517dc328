"""Who wins? The scripted players against each other, the Town's seats against the Mafia's.

Run `python -m benchmarks.players`. Prints a table with Wilson 95% intervals; the last line is one JSON row.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from benchmarks.games import finished, policies_of, share_text
from benchmarks.machine import row
from mac_runner.config import Experiment, Grid, load
from mac_runner.environments.town_of_salem.environment import TownOfSalem
from mac_runner.plan import plan_tasks
from mac_runner.types import JsonValue

EXPERIMENT = Path(__file__).parent.parent / "experiments" / "tos_a_vs_b.yaml"
NAMES = {"a": "heuristic", "b": "random"}
"""What plays for the agent definitions of the experiment."""
SIDES = "_grid={sweep: {game.casting.*: [a, b], game.casting.mafia: [a, b]}}"
"""Each against each and against itself, over the same deals. Neutral seats are played like the Town's."""


def winners(experiment: Experiment) -> Counter[str]:
    """How many games each group wins."""
    environment = TownOfSalem(experiment)
    policies = policies_of(experiment, environment)
    results = (finished(environment, task, policies).result for task in plan_tasks(experiment, environment.lineup))
    return Counter(group for result in results if result is not None for group in result.winners)


def main() -> None:
    """Play all matches and print the table and the row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--games", type=int, default=200)
    parser.add_argument("--lobby", default="classic-10")
    asked = parser.parse_args()
    game = f"game={{lobby: {asked.lobby}, casting: {{}}}}"
    matches = load(EXPERIMENT, overrides=(f"conversation_config.conversations={asked.games}", game, SIDES))
    assert isinstance(matches, Grid)
    figures: dict[str, JsonValue] = {}
    print(f"{'town':<10} {'mafia':<10} {'town wins':<22} {'mafia wins':<22} draws")
    for match in matches.combinations:
        town, mafia = (NAMES[str(match.values[f"game.casting.{key}"])] for key in ("*", "mafia"))
        wins = winners(match.loaded.experiment)
        figures[f"{town}_town_{mafia}_mafia"] = {"town": wins["town"], "mafia": wins["mafia"], "n": asked.games}
        cells = [share_text(wins[group], asked.games) for group in ("town", "mafia")]
        print(f"{town:<10} {mafia:<10} {cells[0]:<22} {cells[1]:<22} {asked.games - wins['town'] - wins['mafia']}")
    print(row(benchmark="players", lobby=asked.lobby, **figures))


if __name__ == "__main__":
    main()
