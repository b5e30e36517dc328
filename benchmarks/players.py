"""Who wins? The scripted players against each other, the Town's seats against the Mafia's.

Run `python -m benchmarks.players`. Prints a table with Wilson 95% intervals; the last line is one JSON row.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from random import Random

from benchmarks.machine import row
from mac_runner.config import load_experiment
from mac_runner.environments.town_of_salem.environment import TownOfSalem
from mac_runner.intervals import wilson
from mac_runner.plan import plan_tasks, request_seed
from mac_runner.types import JsonValue, Reply, Task

EXPERIMENT = Path(__file__).parent.parent / "experiments" / "tos_100games.yaml"
MATCHES = (("heuristic", "heuristic"), ("heuristic", "random"), ("random", "heuristic"), ("random", "random"))


def winners(environment: TownOfSalem, task: Task, *, mafia: str, others: str) -> list[str]:
    """Play one game; the winning groups. Neutral seats are played like the Town's."""
    game = environment.open(task)
    factions = {player.name: player.faction.value for player in game.state.players}
    while game.outcome is None:
        turns = game.turns()
        asked = {turn.agent for turn in turns}
        turn = next(turn for turn in turns if not turn.after & asked)
        policy = environment.policy(mafia if factions[turn.agent] == "mafia" else others)
        game.receive(turn, Reply(text=policy(game.prompt(turn).view, Random(request_seed(task, turn)))))
    result = game.state.result
    return list(result.winners) if result else []


def main() -> None:
    """Play all matches and print the table and the row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--games", type=int, default=200)
    parser.add_argument("--lobby", default="classic-10")
    asked = parser.parse_args()
    overrides = (f"conversation_config.conversations={asked.games}", f"game.lobby={asked.lobby}")
    experiment = load_experiment(EXPERIMENT, overrides=overrides).experiment
    environment = TownOfSalem(experiment)
    figures: dict[str, JsonValue] = {}
    print(f"{'town':<10} {'mafia':<10} {'town wins':<22} {'mafia wins':<22} draws")
    for others, mafia in MATCHES:
        results = [
            winners(environment, task, mafia=mafia, others=others)
            for task in plan_tasks(experiment, environment.lineup)
        ]
        town, evil = (sum(group in result for result in results) for group in ("town", "mafia"))
        figures[f"{others}_town_{mafia}_mafia"] = {"town": town, "mafia": evil, "n": len(results)}
        cells = [_cell(wins, len(results)) for wins in (town, evil)]
        print(f"{others:<10} {mafia:<10} {cells[0]:<22} {cells[1]:<22} {len(results) - town - evil}")
    print(row(benchmark="players", lobby=asked.lobby, **figures))


def _cell(wins: int, n: int) -> str:
    interval = wilson(wins, n)
    return "–" if interval is None else f"{wins / n:.1%} ({interval.lo:.1%} – {interval.hi:.1%})"


if __name__ == "__main__":
    main()
