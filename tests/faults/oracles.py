"""What finds a bug out: each a small deterministic part of a test, silent as long as all is well.

An oracle raises AssertionError at the first violation. It is the very code of the test that it stands for, with few of
its cases, so that a planted bug is found in about a second.
"""

from __future__ import annotations

from tests.attacks import test_town_of_salem
from tests.attacks.strings import ATTACKS
from tests.backends.openai import test_backend
from tests.scheduler import test_poison
from tests.sim import cancelling, storm, workload
from tests.sim.seeds import told


def storms() -> None:
    """The scheduler on engines and a disk in a storm (`tests/scheduler/test_storms.py`)."""
    for seed in range(20):
        with told("storm", seed):
            storm.play(seed)


def worlds() -> None:
    """The pure scheduler in random worlds (`tests/scheduler/test_state.py`)."""
    for seed in range(20):
        with told("world", seed):
            workload.play(seed)


def poisons() -> None:
    """An engine that dies over one turn (`tests/scheduler/test_poison.py`)."""
    for dice in range(4):
        test_poison.test_poison_fails_its_conversation_at_the_third_death_and_the_run_goes_on(dice, 20.0)


def cancellations() -> None:
    """A run cancelled at some of its awaits, its last ones among them (`tests/scheduler/test_cancelling.py`)."""
    turns = cancelling.turns()
    for turn in (*range(7, turns, 37), *range(turns - 6, turns)):
        with told("cancellation", turn):
            cancelling.play(turn)


def servers() -> None:
    """A server that takes connections and answers nobody (`tests/backends/openai/test_backend.py`)."""
    test_backend.test_server_whose_engine_has_ended_is_dead()


def attacks() -> None:
    """Words that look like somebody else's (`tests/attacks/test_town_of_salem.py`)."""
    for text in ATTACKS.values():
        test_town_of_salem.test_words_stay_words_of_their_speaker(text)
