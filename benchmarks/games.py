"""How do whole games end? The heuristic player on all seats of one lobby.

Run `python -m benchmarks.games`. Prints how often each group wins and how often each role's seat wins, with Wilson 95%
intervals; the last line is one JSON row. An exception ends the run, so a printed table means there was none. The
number of processes changes only how long it takes.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path
from random import Random
from typing import NamedTuple

from benchmarks.machine import row
from mac_runner.backends.scripted import ScriptedConfig
from mac_runner.config import Experiment, load_experiment
from mac_runner.environments.base import Policy
from mac_runner.environments.town_of_salem.environment import TownOfSalem
from mac_runner.environments.town_of_salem.model.state import GameState
from mac_runner.environments.town_of_salem.roles import ROLES
from mac_runner.environments.town_of_salem.rules.calendar import has_won
from mac_runner.intervals import wilson
from mac_runner.plan import plan_tasks, request_seed
from mac_runner.types import JsonValue, Reply, Task

EXPERIMENT = Path(__file__).parent.parent / "experiments" / "tos_100games.yaml"


class Tally(NamedTuple):
    """How games ended (winning group, draw or capped), and by dealt role how many seats there were and how many won."""

    endings: Counter[str]
    seats: Counter[str]
    wins: Counter[str]

    def add(self, state: GameState) -> None:
        """Count one finished game."""
        result = state.result
        if result is None:
            raise ValueError("cannot count a game that is not over; play it to its end first")
        self.endings[" and ".join(result.winners) or result.ending] += 1
        for player in state.players:
            self.seats[player.dealt] += 1
            self.wins[player.dealt] += has_won(state, player)


class Share(NamedTuple):
    """The part of the games that one process plays: every `of`-th, from number `first`."""

    lobby: str
    games: int
    first: int
    of: int


class Played(NamedTuple):
    """The results of a share, and its CPU time."""

    tally: Tally
    cpu_s: float


def play(share: Share) -> Played:
    """Play a share of the games."""
    overrides = (f"conversation_config.conversations={share.games}", f"game.lobby={share.lobby}")
    experiment = load_experiment(EXPERIMENT, overrides=overrides).experiment
    environment = TownOfSalem(experiment)
    tally = Tally(Counter(), Counter(), Counter())
    began_s = time.process_time()
    policies = policies_of(experiment, environment)
    for task in islice(plan_tasks(experiment, environment.lineup), share.first, None, share.of):
        tally.add(finished(environment, task, policies))
    return Played(tally, time.process_time() - began_s)


def policies_of(experiment: Experiment, environment: TownOfSalem) -> dict[str, Policy]:
    """The scripted player of each model."""
    settings = {name: model.backend_settings for name, model in experiment.model_definitions.items()}
    return {name: environment.policy(one.policy) for name, one in settings.items() if isinstance(one, ScriptedConfig)}


def finished(environment: TownOfSalem, task: Task, policies: Mapping[str, Policy]) -> GameState:
    """Play one game to its end, with a policy for each model."""
    game = environment.open(task)
    while game.outcome is None:
        turns = game.turns()
        asked = {turn.agent for turn in turns}
        turn = next(turn for turn in turns if not turn.after & asked)
        policy = policies[turn.model]
        game.receive(turn, Reply(text=policy(game.prompt(turn).view, Random(request_seed(task, turn)))))
    return game.state


def main() -> None:
    """Play the games and print the tables and the row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--games", type=int, default=1000)
    parser.add_argument("--lobby", default="classic-15")
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args()
    shares = [Share(asked.lobby, asked.games, first, asked.processes) for first in range(asked.processes)]
    with ProcessPoolExecutor(asked.processes) as processes:
        played = [*processes.map(play, shares)]
    tally = Tally(*(sum(counts, Counter()) for counts in zip(*(part.tally for part in played), strict=True)))
    cpu_s = sum(part.cpu_s for part in played)
    _print(tally, asked.games)
    endings: dict[str, JsonValue] = {**tally.endings}
    roles: dict[str, JsonValue] = {
        role: {"won": tally.wins[role], "n": tally.seats[role]} for role in ROLES if tally.seats[role]
    }
    capped = tally.endings["capped"] / asked.games
    figures = {"games": asked.games, "capped_share": capped, "cpu_s": round(cpu_s, 1)}
    print(row(benchmark="games", lobby=asked.lobby, **figures, endings=endings, roles=roles))


def _print(tally: Tally, games: int) -> None:
    print(f"{'ending':<16} {'n':>5}  of {games} games")
    for ending, count in tally.endings.most_common():
        print(f"{ending:<16} {count:>5}  {share_text(count, games)}")
    print(f"\n{'dealt role':<16} {'seats':>5}  {'won':>5}  share")
    for role_id, role in ROLES.items():
        if tally.seats[role_id]:
            seats, wins = tally.seats[role_id], tally.wins[role_id]
            print(f"{role.name:<16} {seats:>5}  {wins:>5}  {share_text(wins, seats)}")


def share_text(wins: int, n: int) -> str:
    """A rate with its interval."""
    interval = wilson(wins, n)
    return "–" if interval is None else f"{wins / n:.1%} ({interval.lo:.1%} – {interval.hi:.1%})"


if __name__ == "__main__":
    main()
