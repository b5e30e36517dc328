"""Every environment keeps the contract that `mac_runner.testing.environments` checks for any."""

from __future__ import annotations

from pathlib import Path

import pytest

from mac_runner.config import Experiment, load_experiment
from mac_runner.environments.testing import EchoConversation
from mac_runner.testing.environments import EnvironmentContract
from mac_runner.testing.promises import PROMISES, BrokenPromiseError
from mac_runner.types import JsonObject, Receipt, Reply, Turn
from tests.environments.discussion.table import everything

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
SHORT = ("game.calendar.max_days=2",)
SPOKEN = "{% block system %}{{ identity }} {{ rounds }}{% endblock %}"


class TestEcho(EnvironmentContract):
    policy = "echo"

    def experiment(self) -> Experiment:
        return load_experiment(EXPERIMENTS / "echo.yaml").experiment


@pytest.mark.ci
class TestGame(EnvironmentContract):
    policy = "heuristic"
    conversations = 1

    def experiment(self) -> Experiment:
        return load_experiment(EXPERIMENTS / "tos_100games.yaml", overrides=SHORT).experiment


class TestGameInTurn(TestGame):
    """Seats speak one after the other, and ask tools."""

    policy = "random"

    def experiment(self) -> Experiment:
        return load_experiment(EXPERIMENTS / "tos_information_lag.yaml", overrides=SHORT).experiment


class TestDiscussion(EnvironmentContract):
    """Every role, a private channel, and replies without use among the others."""

    policy = "clumsy"
    conversations = 6
    template: str | None = None

    def experiment(self) -> Experiment:
        return everything() if self.template is None else everything(template=self.template)


@pytest.mark.ci
class TestDiscussionWithATemplate(TestDiscussion):
    policy = "discussant"
    template = SPOKEN


class InOrder(EchoConversation):
    """It keeps the order in which replies came."""

    came = ""

    def receive(self, turn: Turn, reply: Reply) -> Receipt:
        self.came += turn.agent
        return super().receive(turn, reply)

    def record(self) -> JsonObject:
        return {"events": [], "came": self.came}


@pytest.mark.ci
def test_a_conversation_that_breaks_the_contract_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mac_runner.environments.echo.EchoConversation", InOrder)

    with pytest.raises(BrokenPromiseError) as broken:
        TestEcho().test_the_order_of_open_turns_leaves_no_trace()
    assert "conversation echo-000000" in str(broken.value.__notes__)


def test_the_contract_tries_every_promise() -> None:
    """`test_check.py` breaks each; only the command looks for what is read from outside."""
    tried = ["outside"]

    class Noting(TestEcho):
        def keeps(self, name: str) -> None:
            tried.append(name)

    for name in dir(Noting):
        if name.startswith("test_"):
            getattr(Noting(), name)()

    assert sorted(tried) == sorted(promise.name for promise in PROMISES)
