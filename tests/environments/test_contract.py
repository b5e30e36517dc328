"""Every environment keeps the contract that `mac_runner.testing.environments` checks for any.

A conversation is rebuilt from its recorded replies; the smallest environment, echo, is played by hand.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from mac_runner.config import Experiment, load_experiment
from mac_runner.environments import build_environment
from mac_runner.environments.testing import EchoConversation, gated, play_until, receive, replay
from mac_runner.environments.town_of_salem.testing import Options
from mac_runner.errors import ConfigError, ConversationError
from mac_runner.plan import plan_tasks
from mac_runner.registry import environment_specs
from mac_runner.section import Section
from mac_runner.testing.environments import EnvironmentContract
from mac_runner.testing.promises import PROMISES, BrokenPromiseError
from mac_runner.types import JsonObject, Receipt, ReceiptKind, RecordedReply, Reply, Turn
from tests.environments.discussion.table import everything
from tests.environments.town_of_salem.table import ELEVEN, clumsy, open_game, play, recorded

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


class TestGameInTurn(EnvironmentContract):
    """Seats speak one after the other, and ask tools."""

    policy = "random"
    conversations = 1

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


class TestWerewolf(EnvironmentContract):
    """A generator, some of whose turns are open together."""

    policy = "random"
    conversations = 10

    def experiment(self) -> Experiment:
        return load_experiment(EXPERIMENTS.parent / "examples" / "werewolf.yaml").experiment


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


def test_settings_of_each_that_is_built_in_refuse_unknown_keys() -> None:
    plain = [name for name, spec in environment_specs().items() if not issubclass(spec.settings, Section)]
    assert plain == [], "derive their settings from mac_runner.section.Section"


def test_an_unknown_environment_and_settings_that_are_missing_are_refused_by_name() -> None:
    for name, experiment in {"echo": TestEcho().experiment(), "discussion": everything()}.items():
        chess = experiment.conversation_config.model_copy(update={"environment": "chess"})
        with pytest.raises(ConfigError, match=r"'chess'; .* discussion, echo"):
            build_environment(experiment.model_copy(update={"conversation_config": chess}))
        with pytest.raises(ConfigError, match=f"section `{name}`"):
            build_environment(experiment.model_copy(update={name: None}))


def test_checked_replay_records_the_digest_of_the_prompt_rendered_now_and_names_the_turns_that_differ() -> None:
    game = open_game(ELEVEN)
    turn = game.turns()[0]
    rendered = game.prompt(turn).sha256
    reply = RecordedReply(turn_key=turn.key, prompt_sha256="0" * 64, reply=Reply(text="<wait/>"))
    replayed = replay(game, [reply], check_prompts=True)

    assert replayed.changed_prompts == (turn.key,)
    assert [record.prompt_sha256 for record in replayed.records] == [rendered]
    assert [record.prompt_sha256 for record in replay(open_game(ELEVEN), [reply]).records] == ["0" * 64]


def test_conversation_can_be_taken_up_at_any_turn() -> None:
    """It renders what was sent then, and goes on to the same end; the turn after the last reply is one of them."""
    played = open_game(ELEVEN, seed=3, options=Options(max_days=4))
    records = play(played, clumsy, seed=3, order=Random(3))
    replies = recorded(records)
    for place in (0, 1, len(records) // 2, len(records) - 1):
        game = open_game(ELEVEN, seed=3, options=Options(max_days=4))
        turn = play_until(game, replies[: place + place % 2], records[place].turn.key)
        assert (turn.key, game.prompt(turn).sha256) == (records[place].turn.key, records[place].prompt_sha256)
        replay(game, replies[place:])
        assert game.fingerprint() == played.fingerprint()
    with pytest.raises(ConversationError, match="7/Zoe/0/0 is not"):
        play_until(open_game(ELEVEN, seed=3, options=Options(max_days=4)), replies, "7/Zoe/0/0")
    reply = RecordedReply(turn_key="7/Abel/0/0", prompt_sha256="", reply=Reply(text="<wait/>"))
    with pytest.raises(ConversationError, match="turn 7/Abel/0/0 answers"):
        replay(open_game(ELEVEN), [reply])


class Breaking(EchoConversation):
    """It cannot go on from the word `stop`, and has a bug for the word `bug`."""

    def receive(self, turn: Turn, reply: Reply) -> Receipt:
        if reply.text == "stop":
            raise ConversationError("nothing can follow")
        if reply.text == "bug":
            raise ZeroDivisionError("by zero")
        return super().receive(turn, reply)


def test_failure_is_in_the_record_live_and_replayed_and_ends_the_replay() -> None:
    task = next(plan_tasks(TestEcho().experiment(), None))
    keys = [turn.key for turn in Breaking(task, 1).turns()]
    for text, told in {"stop": "nothing can follow", "bug": f"turn {keys[1]}: ZeroDivisionError"}.items():
        given = zip(keys, ["fine", text, "never"], strict=True)
        replies = [RecordedReply(turn_key=key, prompt_sha256="x", reply=Reply(text=said)) for key, said in given]
        records = replay(Breaking(task, 1), replies).records

        assert [record.receipt.kind for record in records] == [ReceiptKind.ACT, ReceiptKind.FAILURE]
        assert told in records[-1].receipt.detail
        live = Breaking(task, 1)
        assert records == tuple(receive(live, live.turns()[0], reply) for reply in replies[:2])


def test_echo_asks_all_agents_at_once_and_ends_after_its_rounds_with_the_right_replies_counted() -> None:
    experiment = TestEcho().experiment()
    environment = build_environment(experiment)
    conversation, player = environment.open(next(plan_tasks(experiment, None))), environment.policy("echo")
    for number in range(3):
        turns = conversation.turns()
        assert [(turn.round, turn.agent, turn.after) for turn in turns] == [
            (number, agent.agent_id, frozenset()) for agent in experiment.agent_definitions
        ]
        assert conversation.rounds_completed == number
        assert conversation.outcome is None
        for turn in turns:
            said = player(conversation.prompt(turn).view, Random(0)) if number else "I'd rather not"
            conversation.receive(turn, Reply(text=said))
    assert conversation.turns() == ()
    assert conversation.outcome == {"kind": "echo", "rounds": 3, "echoed": 6}
    opened = map(environment.open, list(plan_tasks(experiment, None))[:2])
    assert len({one.prompt(turn).sha256 for one in opened for turn in one.turns()}) == 6, "numbers differ"


def test_gated_moves_only_those_who_wait_behind_those_they_wait_for() -> None:
    assert gated([3, 1, 2], {}) == [3, 1, 2]
    waiting = gated(["mod", "ann", "bob", "judge"], {"mod": {"ann", "bob"}, "judge": {"mod"}})
    assert waiting == ["ann", "bob", "mod", "judge"]
    assert gated(["mod", "ann"], {"mod": {"bob"}}) == ["mod", "ann"]
    with pytest.raises(ValueError, match="for each other"):
        gated(["a", "b"], {"a": {"b"}, "b": {"a"}})
