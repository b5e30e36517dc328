"""Whatever is drawn from a seed names it when it fails, with the one command that plays it again.

python -m tests.sim.seeds storm 17
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import NamedTuple


class Play(NamedTuple):
    """Where a kind of play is: the function takes a seed, and raises AssertionError when something does not hold."""

    module: str
    function: str

    def load(self) -> Callable[[int], object]:
        """The function."""
        play: Callable[[int], object] = getattr(import_module(self.module), self.function)
        return play


PLAYS = {
    "storm": Play("tests.sim.storm", "play"),
    "storm-twice": Play("tests.sim.storm", "play_twice"),
    "world": Play("tests.sim.workload", "play"),
    "cancellation": Play("tests.sim.storm", "play_cancelled"),
    "crash": Play("tests.faults.test_crashes", "play"),
    "history": Play("tests.faults.test_histories", "play"),
    "mutated-run": Play("tests.attacks.run_mutation", "play"),
    "altered-transcript": Play("tests.attacks.run_mutation", "play_altered"),
    "mutated-file": Play("tests.attacks.file_mutation", "play"),
    "canary": Play("tests.attacks.canary", "play"),
    "address": Play("tests.attacks.addresses", "play"),
    "hostile": Play("tests.attacks.hostile_run", "play"),
}


@contextmanager
def told(kind: str, seed: int) -> Iterator[None]:
    """Whatever goes wrong inside is an AssertionError that says how to see it again."""
    try:
        yield
    except BaseException as fault:
        if isinstance(fault, KeyboardInterrupt):
            raise
        again = f"python -m tests.sim.seeds {kind} {seed}"
        raise AssertionError(f"{kind} {seed}: {type(fault).__name__}: {fault}\nagain: {again}") from fault


def played(kind: str, seeds: Iterable[int]) -> tuple[list[object], list[str]]:
    """What the plays of these seeds came to, and whatever did not hold."""
    play, came, faults = PLAYS[kind].load(), list[object](), list[str]()
    for seed in seeds:
        try:
            with told(kind, seed):
                came.append(play(seed))
        except AssertionError as fault:
            faults.append(str(fault))
    return came, faults


def main(kind: str, seeds: list[str]) -> None:
    """Play these seeds of one kind."""
    play = PLAYS[kind].load()
    for seed in map(int, seeds):
        with told(kind, seed):
            print(f"{kind} {seed}: {play(seed)}")  # noqa: T201 - this is a program


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
