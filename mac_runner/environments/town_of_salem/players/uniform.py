"""The random player: uniform over its legal acts, each target and choice of an act counted as an act of its own."""

from __future__ import annotations

from random import Random

from mac_runner.environments.town_of_salem.acts import ACTS
from mac_runner.environments.town_of_salem.knowledge import SeatView
from mac_runner.environments.town_of_salem.players.writing import write


def play_at_random(view: object, chance: Random) -> str:
    """Draw one legal act."""
    if not isinstance(view, SeatView):
        raise TypeError(f"a player of this game needs a SeatView, not {type(view).__name__}")
    options: list[tuple[str, str, str, str]] = []
    for choice in view.choices:
        if ACTS[choice.verb].is_side_act:
            continue
        for target in choice.targets or ("",):
            for second in choice.seconds or ("",):
                for option in choice.choices or ("",):
                    options.append((choice.verb, target, second, option))
    verb, target, second, option = chance.choice(options)
    return write(verb, target=target, second=second, choice=option, text=_words(view, chance))


def _words(view: SeatView, chance: Random) -> str:
    """Something to say that means nothing: the random player is the baseline without talk."""
    return f"I am {view.name}, and I look at {chance.choice(view.living)}."
