"""How many actions do the rules apply a second, on one core? Random legal acts in games of one lobby.

An applied action is an act of a seat, checked and carried out, or the end of a round with all that follows from it,
verdicts and whole nights included. `acts` and `rounds` count the two. It measures the processor time of these calls
alone, with garbage collection and without the choice of acts.

Run `python -m benchmarks.rules`. Prints one JSON row.
"""

from __future__ import annotations

import argparse
import time
from random import Random
from typing import NamedTuple

from benchmarks.machine import row
from mac_runner.environments.town_of_salem.model.state import GameState, Options
from mac_runner.environments.town_of_salem.rules.acts import ACTS, Act, apply, offers
from mac_runner.environments.town_of_salem.rules.calendar import end_round, new_game
from mac_runner.environments.town_of_salem.rules.lobbies import LOBBIES, NAMES, deal


def random_act(state: GameState, seat: int, chance: Random) -> Act:
    """One legal act, all verbs alike."""
    offer = chance.choice([offer for offer in offers(state, seat) if not ACTS[offer.verb].is_side_act])
    targets = tuple(chance.choice(names) for names in (offer.targets, offer.seconds) if names)
    text = "These are some words." if ACTS[offer.verb].takes_words else ""
    return Act(seat=seat, verb=offer.verb, targets=targets, text=text, choice=chance.choice(offer.choices or ("",)))


class Played(NamedTuple):
    """What was applied in a game, and the processor time it took."""

    acts: int
    rounds: int
    spent_s: float


def moved(state: GameState, act: Act | None) -> GameState:
    """The state after an act; None: after the end of the round."""
    return (end_round(state) if act is None else apply(state, act)).state


def play(lobby: str, seed: int) -> Played:
    """Play one game, then do all that happened in it once more by the clock."""
    slots, chance = LOBBIES[lobby], Random(seed)
    names = NAMES[: len(slots)]
    start = new_game(seed=seed, names=names, roles=deal(slots, seed), lobby=slots, options=Options()).state
    state, acts = start, list[Act | None]()
    while state.result is None:
        due = state.due
        acts.append(random_act(state, due[0], chance) if due else None)
        state = moved(state, acts[-1])
    began_s = time.process_time()
    state = start
    for act in acts:
        state = moved(state, act)
    spent_s = time.process_time() - began_s
    rounds = acts.count(None)
    return Played(acts=len(acts) - rounds, rounds=rounds, spent_s=spent_s)


def main() -> None:
    """Play the games and print the row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--games", type=int, default=200)
    parser.add_argument("--lobby", default="classic-15")
    asked = parser.parse_args()
    played = [play(asked.lobby, seed) for seed in range(asked.games)]
    acts, rounds, spent_s = map(sum, zip(*played, strict=True))
    print(
        row(
            benchmark="rules",
            lobby=asked.lobby,
            games=asked.games,
            acts=acts,
            rounds=rounds,
            spent_s=round(spent_s, 3),
            actions_per_s=round((acts + rounds) / spent_s),
        )
    )


if __name__ == "__main__":
    main()
