"""The inspector of a turn: what was sent, what came back, and how the prompt differs from the one before."""

from __future__ import annotations

from random import Random

import pytest

from mac_runner.errors import ConfigError, RunDirectoryError
from mac_runner.reports.testing import objects
from mac_runner.store.testing import entry, inline_traces
from mac_runner.structs import encode
from mac_runner.types import JsonObject, Message, Prompt
from mac_runner.view_model import TokenView
from mac_runner.views.testing import difference, turn_view
from tests.views.playing import experiment, marker, transcripts


@pytest.fixture(scope="module")
def transcript() -> JsonObject:
    """A discussion of all roles with corrections."""
    return transcripts(experiment("experiments/tos_100games.yaml", "game.calendar.max_days=2"), "heuristic")[0]


def prompt_of(key: str) -> Prompt:
    number = key.split("/")[0]
    return Prompt(
        messages=(Message(role="system", content="Rules.\n"), Message(role="user", content=f"Turn {number}."))
    )


def test_a_turn_has_what_is_recorded_of_it(transcript: JsonObject) -> None:
    for turn in objects(transcript["turns"]):
        view = turn_view(transcript, str(turn["turn"]), prompt_of)
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
    assert turn_view(transcript, str(objects(transcript["turns"])[1]["turn"]), None).faults == ("refused",)


def test_a_seat_inspects_its_own_turns_and_learns_of_no_others(transcript: JsonObject) -> None:
    keys = [str(turn["turn"]) for turn in objects(transcript["turns"])]
    agents = {key: key.split("/")[1] for key in keys}
    for seat in sorted(set(agents.values())):
        for key in keys:
            if agents[key] == seat:
                sent = encode(turn_view(transcript, key, prompt_of, seat=seat)).decode()
                assert not [
                    other for other in keys if agents[other] != seat and (other in sent or marker(other) in sent)
                ]
                assert '"model":"townsfolk"' not in sent
                continue
            with pytest.raises(ConfigError) as refused:
                turn_view(transcript, key, prompt_of, seat=seat)
            with pytest.raises(ConfigError) as absent:
                turn_view(transcript, f"x{key}", prompt_of, seat=seat)
            assert str(refused.value) == str(absent.value).replace(f"x{key}", key)
    with pytest.raises(ConfigError, match="no agent 'Nobody'"):
        turn_view(transcript, keys[0], prompt_of, seat="Nobody")


def test_a_missing_prompt_says_why(transcript: JsonObject) -> None:
    def missing(_key: str) -> Prompt:
        raise RunDirectoryError("not imported: add --trust")

    key = str(objects(transcript["turns"])[5]["turn"])

    assert turn_view(transcript, key, missing).prompt_missing == "not imported: add --trust"
    assert turn_view(transcript, key, None, prompt_missing="left out").prompt_missing == "left out"
    assert turn_view(transcript, key, missing).prompt == ()


def test_recorded_tokens_have_their_log_probabilities(transcript: JsonObject) -> None:
    turn = objects(transcript["turns"])[0]
    traced: JsonObject = {"prompt_ids": [1], "completion_ids": [7, 9], "logprobs": [-0.25, -3.0]}
    changed: JsonObject = {**transcript, "turns": [{**turn, "reply": {**entry(turn, "reply", dict), "trace": traced}}]}

    expected = (TokenView("#7", -0.25), TokenView("#9", -3.0))
    traces = inline_traces(changed)

    assert turn_view(changed, str(turn["turn"]), None).tokens == expected
    assert turn_view(transcript, str(turn["turn"]), None, traces=traces).tokens == expected


def test_a_difference_leads_from_one_text_to_the_other_and_keeps_what_is_the_same() -> None:
    words = ("one ", "two ", "three", "\n", "\n", "  ", "four\r\n", "", "\u2028", "ä")
    for number in range(300):
        chance = Random(number)
        before = "".join(chance.choices(words, k=chance.randrange(30)))
        after = (
            "".join(chance.choices(words, k=chance.randrange(30))) if number % 2 else before[:9] + "new" + before[12:]
        )
        pieces = difference(before, after)

        assert "".join(piece.text for piece in pieces if piece.kind != "new") == before, number
        assert "".join(piece.text for piece in pieces if piece.kind != "gone") == after, number
        assert all(piece.text for piece in pieces)
    assert [(piece.kind, piece.text) for piece in difference("a\nb c d\ne", "a\nb x d\ne\nf")] == [
        ("same", "a\nb "),
        ("gone", "c "),
        ("new", "x "),
        ("same", "d\n"),
        ("gone", "e"),
        ("new", "e\nf"),
    ]


def test_texts_that_have_nothing_in_common_are_not_compared_at_length() -> None:
    before, after = "a\n" * 5000, "b\n" * 5000

    assert [piece.kind for piece in difference(before, after)] == ["gone", "new"]
