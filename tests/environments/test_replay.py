"""A conversation is rebuilt from its recorded replies: its state, its record, its prompts and its future."""

from __future__ import annotations

from random import Random

import pytest

from mac_runner.environments import Conversation
from mac_runner.environments.testing import play_until, receive, replay
from mac_runner.environments.town_of_salem.testing import Options
from mac_runner.errors import ConversationError
from mac_runner.types import JsonObject, Message, Prompt, Receipt, ReceiptKind, RecordedReply, Reply, Turn
from tests.environments.town_of_salem.table import ELEVEN, clumsy, open_game, play, random_roles, recorded
from tests.tiers import first

SHORT = Options(max_days=4)


@pytest.mark.parametrize("seed", first(4, range(10), rest="nightly"))
def test_replay_rebuilds_a_finished_game_with_every_prompt(seed: int) -> None:
    roles = random_roles(Random(seed)) if seed % 2 else [*ELEVEN]
    played = open_game(roles, seed=seed, options=SHORT)
    records = play(played, clumsy, seed=seed, order=Random(seed))
    rebuilt = open_game(roles, seed=seed, options=SHORT)
    replayed = replay(rebuilt, recorded(records), check_prompts=True)

    assert replayed.changed_prompts == ()
    assert list(replayed.records) == records
    assert rebuilt.fingerprint() == played.fingerprint()
    assert rebuilt.record() == played.record()
    assert rebuilt.outcome == played.outcome


def test_replay_names_the_turns_whose_prompt_came_out_different() -> None:
    game = open_game(ELEVEN)
    key = game.turns()[0].key
    reply = RecordedReply(turn_key=key, prompt_sha256="0" * 64, reply=Reply(text="<wait/>"))

    assert replay(game, [reply], check_prompts=True).changed_prompts == (key,)


def test_checked_replay_records_the_digest_of_the_prompt_rendered_now() -> None:
    game = open_game(ELEVEN)
    turn = game.turns()[0]
    rendered = game.prompt(turn).sha256
    reply = RecordedReply(turn_key=turn.key, prompt_sha256="0" * 64, reply=Reply(text="<wait/>"))

    assert [record.prompt_sha256 for record in replay(game, [reply], check_prompts=True).records] == [rendered]
    assert [record.prompt_sha256 for record in replay(open_game(ELEVEN), [reply]).records] == ["0" * 64]


def test_conversation_can_be_taken_up_at_any_turn() -> None:
    """It renders what was sent then, and goes on to the same end; the turn after the last reply is one of them."""
    played = open_game(ELEVEN, seed=3, options=SHORT)
    records = play(played, clumsy, seed=3, order=Random(3))
    replies = recorded(records)
    for place in (0, 1, len(records) // 2, len(records) - 1):
        game = open_game(ELEVEN, seed=3, options=SHORT)
        turn = play_until(game, replies[: place + place % 2], records[place].turn.key)
        assert (turn.key, game.prompt(turn).sha256) == (records[place].turn.key, records[place].prompt_sha256)
        replay(game, replies[place:])
        assert game.fingerprint() == played.fingerprint()
    with pytest.raises(ConversationError, match="7/Zoe/0/0 is not"):
        play_until(open_game(ELEVEN, seed=3, options=SHORT), replies, "7/Zoe/0/0")


def test_reply_to_a_turn_that_is_not_open_is_refused_by_name() -> None:
    reply = RecordedReply(turn_key="7/Abel/0/0", prompt_sha256="", reply=Reply(text="<wait/>"))

    with pytest.raises(ConversationError, match="turn 7/Abel/0/0 answers"):
        replay(open_game(ELEVEN), [reply])


class Breaking:
    """A conversation of one agent that cannot go on from the word `stop`, and has a bug for the word `bug`."""

    outcome: JsonObject | None = None
    rounds_completed = 0

    def turns(self) -> tuple[Turn, ...]:
        return (Turn(round=self.rounds_completed, agent="a", model="m", place=0),)

    def prompt(self, turn: Turn) -> Prompt:
        return Prompt(messages=(Message(role="user", content=turn.key),))

    def receive(self, turn: Turn, reply: Reply) -> Receipt:
        if reply.text == "stop":
            raise ConversationError("nothing can follow")
        if reply.text == "bug":
            raise ZeroDivisionError("by zero")
        self.rounds_completed += 1
        return Receipt(kind=ReceiptKind.ACT, detail=reply.text)

    def record(self) -> JsonObject:
        return {}

    def fingerprint(self) -> str:
        return ""


def test_failure_is_in_the_record_and_ends_the_replay() -> None:
    for text, told in {"stop": "nothing can follow", "bug": "turn 1/a/0/0: ZeroDivisionError"}.items():
        replies = [
            RecordedReply(turn_key=f"{n}/a/0/0", prompt_sha256="", reply=Reply(text=said))
            for n, said in enumerate(["fine", text, "never"])
        ]
        records = replay(Breaking(), replies).records

        assert [record.receipt.kind for record in records] == [ReceiptKind.ACT, ReceiptKind.FAILURE]
        assert told in records[-1].receipt.detail


def test_failure_is_recorded_alike_live_and_replayed() -> None:
    live: Conversation = Breaking()
    reply = RecordedReply(turn_key="0/a/0/0", prompt_sha256="x", reply=Reply(text="bug"))
    record = receive(live, live.turns()[0], reply)

    assert replay(Breaking(), [reply]).records == (record,)
