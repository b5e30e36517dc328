"""The inspector of a turn, two conversations beside each other, and forks as trees."""

from __future__ import annotations

from random import Random

import pytest

from mac_runner.errors import ConfigError, RunDirectoryError
from mac_runner.reports.testing import objects
from mac_runner.store.testing import entry
from mac_runner.structs import encode
from mac_runner.types import JsonObject, Message, Prompt, TokenTrace
from mac_runner.view_model import CompareView, ForkArm, TokenView
from mac_runner.views.testing import difference, fork_trees, perspective, whole_view
from tests.environments.discussion.table import everything
from tests.kit import known
from tests.views.playing import compared, experiment, marker, transcripts, turn_view


@pytest.fixture(scope="module")
def transcript() -> JsonObject:
    """A discussion of all roles with corrections."""
    return transcripts(experiment("experiments/tos_100games.yaml", "game.calendar.max_days=2"), "heuristic")[0]


def prompt_of(key: str) -> Prompt:
    number = key.split("/")[0]
    rules, own = Message(role="system", content="Rules.\n"), Message(role="user", content=f"Turn {number}.")
    return Prompt(messages=(rules, own))


def test_a_turn_has_what_is_recorded_of_it(transcript: JsonObject) -> None:
    whole = whole_view(transcript)
    for turn in objects(transcript["turns"]):
        view = turn_view(transcript, whole, str(turn["turn"]), prompt_of)
        reply = entry(turn, "reply", dict)

        assert (view.reply, view.agent, view.model) == (reply["text"], turn["agent"], turn["model"])
        assert (view.queue_s, view.generate_s) == (0.5, 1.5)
        assert view.thought.startswith(marker(view.key))
        assert "<thinking>" not in view.said
        assert [message.content for message in view.prompt] == ["Rules.\n", f"Turn {turn['round']}."]
        assert view.key in [head.key for head in view.siblings]
        assert {(head.round, head.agent) for head in view.siblings} == {(turn["round"], turn["agent"])}
        assert view.sampling["temperature"] == "0.8"
        assert "".join(piece.text for piece in view.difference if piece.kind != "gone") == (
            f"=== system\nRules.\n\n=== user\nTurn {turn['round']}.\n" if view.previous else ""
        )
    assert turn_view(transcript, whole, str(objects(transcript["turns"])[1]["turn"]), None).faults == ("refused",)


def test_a_seat_inspects_its_own_turns_and_learns_of_no_others(transcript: JsonObject) -> None:
    keys = [str(turn["turn"]) for turn in objects(transcript["turns"])]
    agents = {key: key.split("/")[1] for key in keys}
    whole = whole_view(transcript)
    for seat in sorted(set(agents.values())):
        view = perspective(whole, seat)
        for key in keys:
            if agents[key] == seat:
                sent = encode(turn_view(transcript, view, key, prompt_of)).decode()
                others = [other for other in keys if agents[other] != seat]
                assert not [other for other in others if other in sent or marker(other) in sent]
                assert '"model":"townsfolk"' not in sent
                continue
            with pytest.raises(ConfigError) as refused:
                turn_view(transcript, view, key, prompt_of)
            with pytest.raises(ConfigError) as absent:
                turn_view(transcript, view, f"x{key}", prompt_of)
            assert str(refused.value) == str(absent.value).replace(f"x{key}", key)


def test_a_missing_prompt_says_why(transcript: JsonObject) -> None:
    def missing(_key: str) -> Prompt:
        raise RunDirectoryError("not imported: add --trust")

    whole, key = whole_view(transcript), str(objects(transcript["turns"])[5]["turn"])

    assert turn_view(transcript, whole, key, missing).prompt_missing == "not imported: add --trust"
    assert turn_view(transcript, whole, key, None, prompt_missing="left out").prompt_missing == "left out"
    assert turn_view(transcript, whole, key, missing).prompt == ()


def test_recorded_tokens_have_their_log_probabilities(transcript: JsonObject) -> None:
    turn = objects(transcript["turns"])[0]
    key = str(turn["turn"])
    traces = {key: TokenTrace(prompt_ids=(1,), completion_ids=(7, 9), logprobs=(-0.25, -3.0))}

    found = turn_view(transcript, whole_view(transcript), key, None, traces=traces)

    assert found.tokens == (TokenView("#7", -0.25), TokenView("#9", -3.0))


def test_a_difference_leads_from_one_text_to_the_other_and_keeps_what_is_the_same() -> None:
    words = ("one ", "two ", "three", "\n", "\n", "  ", "four\r\n", "", "\u2028", "ä")
    for number in range(300):
        chance = Random(number)
        before = "".join(chance.choices(words, k=chance.randrange(30)))
        other = "".join(chance.choices(words, k=chance.randrange(30)))
        after = other if number % 2 else before[:9] + "new" + before[12:]
        pieces = difference(before, after)

        assert "".join(piece.text for piece in pieces if piece.kind != "new") == before, number
        assert "".join(piece.text for piece in pieces if piece.kind != "gone") == after, number
        assert all(piece.text for piece in pieces)
    assert [(piece.kind, piece.text) for piece in difference("a\nb c d\ne", "a\nb x d\ne\nf")] == [
        *(("same", "a\nb "), ("gone", "c "), ("new", "x "), ("same", "d\n"), ("gone", "e"), ("new", "e\nf")),
    ]
    # Texts that have nothing in common are not compared at length.
    assert [piece.kind for piece in difference("a\n" * 5000, "b\n" * 5000)] == ["gone", "new"]


GAME = experiment("experiments/tos_100games.yaml", "game.calendar.max_days=2")


def in_order(view: CompareView) -> None:
    """Every event of both has one row, in its order."""
    left = [row.left for row in view.rows if row.left is not None]
    right = [row.right for row in view.rows if row.right is not None]

    assert left == [event.place for event in view.left.events]
    assert right == [event.place for event in view.right.events]
    for row in view.rows:
        same = row.left is not None and row.right is not None
        if same and row.left is not None and row.right is not None:
            one, other = view.left.events[row.left], view.right.events[row.right]
            same = (one.when, one.text, one.audience) == (other.when, other.text, other.audience)
        assert row.is_equal == same


def test_conversations_of_one_seed_are_aligned_up_to_the_first_turn_with_another_reply() -> None:
    for one in (GAME, everything()):
        policies = ("heuristic", "random") if one is GAME else ("discussant", "clumsy")
        left, right = (transcripts(one, policy)[0] for policy in policies)
        view = compared(left, right)
        pairs = zip(objects(left["turns"]), objects(right["turns"]), strict=False)
        first = next(a for a, b in pairs if entry(a, "reply", dict)["text"] != entry(b, "reply", dict)["text"])

        assert view.first_turn == first["turn"]
        assert view.reason.endswith("the same seed")
        in_order(view)
        begins = next(place for place, row in enumerate(view.rows) if not row.is_equal)
        assert all(row.left == row.right for row in view.rows[:begins])
        assert begins > 0


def test_a_conversation_differs_from_its_own_beginning_at_the_next_turn_and_never_from_itself() -> None:
    game, begun = transcripts(GAME, "heuristic")[0], transcripts(GAME, "heuristic", turns=20)[0]
    view, same = compared(game, begun), compared(game, game)

    assert view.first_turn == objects(game["turns"])[20]["turn"]
    assert (same.first_turn, all(row.is_equal for row in same.rows)) == ("", True)
    in_order(view)
    in_order(same)


def test_what_has_no_beginning_in_common_is_refused_and_a_fork_is_not() -> None:
    first, second = transcripts(GAME, "heuristic", count=2)
    with pytest.raises(ConfigError, match=r"000000 .*000001 cannot be"):
        compared(first, second)
    fork = _fork(second, "tos_100games-000000")

    for left, right in ((first, fork), (fork, first)):
        assert compared(left, right).reason.startswith("tos_100games-000001 is")
    assert compared(_fork(first, "p"), _fork(second, "p")).reason.startswith("both")


def _fork(transcript: JsonObject, of: str) -> JsonObject:
    fork: JsonObject = {"of": of, "turn": "0/Abel/0/0", "arm": "said", "draw": 1, "off_policy": False}
    return {**transcript, "task": {**entry(transcript, "task", dict), "fork": fork}}


def row(index: int, arm: str, won: bool | None, *, of: str = "p", turn: str = "3/Abel/0/0") -> JsonObject:
    """An index row of a fork; None: it failed."""
    outcome: JsonObject | None = None if won is None else {"kind": "mine", "winner": "Abel" if won else "Cain"}
    named: JsonObject = {"agents": {"Abel": ["d", "m", 0], "Cain": ["d", "m", 1]}}
    return {"index": index, "fork_of": of, "turn": turn, "arm": arm, "draw": index, "outcome": outcome, **named}


def test_an_arm_has_the_chance_to_win_of_the_agent_of_its_turn_with_its_interval() -> None:
    rows = [row(n, "said", n < 3) for n in range(4)] + [row(4, "said", None), row(5, "other", False)]
    rows.append(row(6, "said", True, of="q", turn="12/Cain/0/0"))
    rows.append({"index": 7, "outcome": None})

    first, second = fork_trees(rows)

    said = ForkArm("3/Abel/0/0", "said", (0, 1, 2, 3, 4), "won of Abel", 0.75, first.arms[1].lo, first.arms[1].hi)
    assert [arm.arm for arm in first.arms] == ["other", "said"]
    assert first.arms[1] == said
    assert 0.29 < known(said.lo) < 0.31
    assert 0.95 < known(said.hi) < 0.96
    assert [arm.figure for arm in second.arms] == ["won of Cain"]
    assert fork_trees(rows, 6) == (second,)
    assert fork_trees(rows, 7) == ()


def test_an_arm_without_a_reward_has_its_conversations_and_no_figure() -> None:
    found = fork_trees([{**row(0, "said", True), "outcome": {"kind": "mine", "length": 3}}])

    assert found[0].arms == (ForkArm("3/Abel/0/0", "said", (0,)),)
