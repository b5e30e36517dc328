"""The game keeps what every environment promises, and its rules are what they should be."""

from pathlib import Path

from mac_runner.config import Experiment, load_experiment
from mac_runner.testing.environments import EnvironmentContract

FILE = Path(__file__).with_name("new_game.yaml")


class TestNewGame(EnvironmentContract):
    """One test for each promise; `mac-run check` tries the same ones and more."""

    policy = "random"

    def experiment(self) -> Experiment:
        """The experiment that is played."""
        return load_experiment(FILE).experiment
