"""How fast are the rules? Random legal acts in games of one lobby, the CPU time spent in `apply` alone.

Run `python -m benchmarks.rules`. Prints one JSON row. What chooses the acts is not measured, garbage collection is.
"""

from __future__ import annotations

import argparse
import time
from random import Random

from benchmarks.machine import row
from mac_runner.environments.town_of_salem.acts import ACTS, Act, Form, offers
from mac_runner.environments.town_of_salem.lobbies import LOBBIES, NAMES, deal
from mac_runner.environments.town_of_salem.rules import EndRound, Move, apply, new_game
from mac_runner.environments.town_of_salem.state import GameState, Options


def random_act(state: GameState, seat: int, chance: Random) -> Act:
    """One legal act, all verbs alike."""
    offer = chance.choice([offer for offer in offers(state, seat) if not ACTS[offer.verb].is_side_act])
    targets = tuple(chance.choice(names) for names in (offer.targets, offer.seconds) if names)
    text = "These are some words." if ACTS[offer.verb].form in (Form.TEXT, Form.NAME_AND_TEXT) else ""
    return Act(seat=seat, verb=offer.verb, targets=targets, text=text, choice=chance.choice(offer.choices or ("",)))


def play(lobby: str, seed: int) -> tuple[int, float]:
    """Play one game; how many moves were applied and how long that took."""
    slots, chance = LOBBIES[lobby], Random(seed)
    names = NAMES[: len(slots)]
    state = new_game(seed=seed, names=names, roles=deal(slots, seed), lobby=slots, options=Options()).state
    moves, spent_s = 0, 0.0
    while state.result is None:
        due = state.due
        move: Move = random_act(state, due[0], chance) if due else EndRound()
        began_s = time.process_time()
        state = apply(state, move).state
        spent_s += time.process_time() - began_s
        moves += 1
    return moves, spent_s


def main() -> None:
    """Play the games and print the row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--games", type=int, default=200)
    parser.add_argument("--lobby", default="classic-15")
    asked = parser.parse_args()
    played = [play(asked.lobby, seed) for seed in range(asked.games)]
    moves, spent_s = sum(count for count, _ in played), sum(s for _, s in played)
    print(
        row(
            benchmark="rules",
            lobby=asked.lobby,
            games=asked.games,
            moves=moves,
            spent_s=round(spent_s, 3),
            moves_per_s=round(moves / spent_s),
        )
    )


if __name__ == "__main__":
    main()
