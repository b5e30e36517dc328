"""A conversation's draws are its own, and the process's stay what they were."""

from __future__ import annotations

import random
from collections.abc import Iterator
from threading import Thread

import numpy as np
import pytest

from mac_runner.environments.adapters.chance import OwnChance


def draws(chance: OwnChance, count: int) -> list[tuple[float, float]]:
    found = []
    for _ in range(count):
        with chance:
            found.append((random.random(), float(np.random.random())))
    return found


def _draw_and_fail(chance: OwnChance) -> None:
    with chance:
        random.random()
        np.random.random()
        raise LookupError


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    """Whatever a test does, what the process draws next is what it would have drawn."""
    random.seed(1)
    np.random.seed(1)
    yield
    drawn = (random.random(), float(np.random.random()))
    random.seed(1)
    np.random.seed(1)
    assert drawn == (random.random(), float(np.random.random()))


def test_conversations_that_take_turns_draw_what_each_draws_alone() -> None:
    alone = [draws(OwnChance(seed), 6) for seed in (7, 8)]
    first, second = OwnChance(7), OwnChance(8)
    together = [draws(chance, 1)[0] for _ in range(6) for chance in (first, second)]

    assert [together[0::2], together[1::2]] == alone
    for library in range(2):
        assert len({draw[library] for drawn in alone for draw in drawn}) == 12, "no draw comes twice"


def test_a_call_that_fails_gives_the_generators_back_and_goes_on_behind_its_draws() -> None:
    whole = draws(OwnChance(3), 2)
    chance = OwnChance(3)
    with pytest.raises(LookupError):
        _draw_and_fail(chance)

    assert draws(chance, 1) == whole[1:]


def test_two_threads_do_not_draw_from_each_other() -> None:
    alone = [draws(OwnChance(seed), 200) for seed in (1, 2)]
    found: dict[int, list[tuple[float, float]]] = {}
    threads = [Thread(target=lambda seed=seed: found.update({seed: draws(OwnChance(seed), 200)})) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [found[1], found[2]] == alone
