"""Every environment keeps the contract that `mac_runner.testing.environments` checks for any."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from mac_runner.config import Experiment, load_experiment
from mac_runner.environments.echo import EchoConversation
from mac_runner.testing.environments import EnvironmentContract
from mac_runner.types import JsonObject, Message, Prompt, Receipt, ReceiptKind, Reply, Turn
from tests.environments.discussion.table import everything

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
SHORT = ("game.calendar.max_days=3",)
SPOKEN = "{% block system %}{{ identity }} {{ rounds }}{% endblock %}"


class TestEcho(EnvironmentContract):
    policy = "echo"

    def experiment(self) -> Experiment:
        return load_experiment(EXPERIMENTS / "echo.yaml").experiment


class TestGame(EnvironmentContract):
    policy = "heuristic"
    conversations = 2

    def experiment(self) -> Experiment:
        return load_experiment(EXPERIMENTS / "tos_100games.yaml", overrides=SHORT).experiment


class TestGameInTurn(TestGame):
    """Seats speak one after the other, and ask tools."""

    conversations = 1
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


class TestDiscussionWithATemplate(TestDiscussion):
    policy = "discussant"
    template = SPOKEN


_counter = itertools.count()


class Nondeterministic(EchoConversation):
    def prompt(self, turn: Turn) -> Prompt:
        found = super().prompt(turn)
        return Prompt(messages=(*found.messages, Message(role="user", content=str(next(_counter)))), view=found.view)


class Forgetful(EchoConversation):
    """It counts the prompts that it is asked for."""

    asked = 0

    def prompt(self, turn: Turn) -> Prompt:
        self.asked += 1
        return super().prompt(turn)

    def fingerprint(self) -> str:
        return f"{super().fingerprint()} {self.asked}"


class InOrder(EchoConversation):
    """It keeps the order in which replies came."""

    came = ""

    def receive(self, turn: Turn, reply: Reply) -> Receipt:
        self.came += turn.agent
        return super().receive(turn, reply)

    def record(self) -> JsonObject:
        return {"events": [], "came": self.came}


class Raising(EchoConversation):
    def receive(self, turn: Turn, reply: Reply) -> Receipt:
        int(reply.text)
        return super().receive(turn, reply)


class Endless(EchoConversation):
    def receive(self, turn: Turn, reply: Reply) -> Receipt:
        return Receipt(kind=ReceiptKind.ACT, detail="")


class Gossiping(EchoConversation):
    def record(self) -> JsonObject:
        return {"events": [{"when": "now", "text": "psst", "audience": ["nobody here"], "data": {}}]}


class Unwritable(EchoConversation):
    def record(self) -> JsonObject:
        return {"events": [], "score": float("nan")}


MUTANTS: dict[type[EchoConversation], Callable[[EnvironmentContract], None]] = {
    Nondeterministic: EnvironmentContract.test_the_same_replies_lead_to_the_same_conversation,
    Forgetful: EnvironmentContract.test_asking_for_a_prompt_changes_nothing,
    InOrder: EnvironmentContract.test_the_order_of_open_turns_leaves_no_trace,
    Raising: EnvironmentContract.test_garbage_is_survived,
    Endless: EnvironmentContract.test_a_conversation_ends_with_an_outcome_of_its_own_kind,
    Gossiping: EnvironmentContract.test_a_record_is_json_and_its_audiences_are_agents,
    Unwritable: EnvironmentContract.test_a_record_is_json_and_its_audiences_are_agents,
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_conversation_that_breaks_the_contract_is_found_out(
    mutant: type[EchoConversation], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mac_runner.environments.echo.EchoConversation", mutant)

    with pytest.raises((AssertionError, ValueError)):
        MUTANTS[mutant](TestEcho())
