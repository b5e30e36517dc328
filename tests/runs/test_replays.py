"""Conversations of a run directory played again: the prompts of all turns, and conversations that are still open."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mac_runner.errors import ConfigError, RunDirectoryError
from mac_runner.reports.testing import objects
from mac_runner.runs.testing import Replays, sent_prompt
from mac_runner.store import read_run, replies_of
from mac_runner.store.testing import encode_transcript, entry, replies
from mac_runner.types import JsonObject
from mac_runner.views.testing import whole_view
from tests.kit import copied

RECORDED = Path(__file__).parents[1] / "golden" / "commands" / "runs"


@pytest.fixture(params=("game", "failed", "killed"))
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A recorded run."""
    return copied(RECORDED / str(request.param), tmp_path / "run")


def told(transcript: JsonObject) -> list[object]:
    """The events of a record, without their turns, which earlier versions did not write."""
    events = objects(entry(transcript, "record", dict)["events"])
    return [{key: value for key, value in event.items() if key != "turn"} for event in events]


def test_one_replay_renders_the_prompt_of_every_turn_as_it_was_sent(run: Path) -> None:
    contents = read_run(run)
    replays = Replays(contents)
    for row in contents.rows():
        transcript = contents.transcript(str(row["task_id"]))
        prompts = replays.prompts(transcript)
        for turn in objects(transcript["turns"]):
            assert prompts(str(turn["turn"])).sha256 == turn["prompt_sha256"]
        for last in [str(turn["turn"]) for turn in objects(transcript["turns"])][-1:]:
            assert prompts(last).messages == sent_prompt(contents, transcript, last).messages
        with pytest.raises(RunDirectoryError, match="turn 99/X/0/0"):
            prompts("99/X/0/0")


def test_a_prompt_that_was_not_sent_is_missing_and_the_others_are_not() -> None:
    contents = read_run(RECORDED / "game")
    transcript = contents.transcript(str(next(contents.rows())["task_id"]))
    first, second, third, *_ = turns = objects(transcript["turns"])
    second["prompt_sha256"] = "0" * 64
    third["turn"] = "9/Who/0/0"

    prompts = Replays(contents).prompts(transcript)

    assert prompts(str(first["turn"])).sha256 == first["prompt_sha256"]
    for turn, words in ((second, "is not what was sent"), (third, "cannot play"), (turns[-1], "up to turn 9/Who/0/0")):
        with pytest.raises(RunDirectoryError, match=words):
            prompts(str(turn["turn"]))


def test_an_open_conversation_is_the_beginning_of_the_whole_one(run: Path) -> None:
    contents = read_run(run)
    replays = Replays(contents)
    for row in contents.rows():
        whole = contents.transcript(str(row["task_id"]))
        recorded = replies_of(whole)
        for count in {1, len(recorded) // 2} - {0} if recorded else ():
            found = replays.open_transcript(str(row["task_id"]), recorded[:count])
            events = told(found)

            assert found["turns"] == objects(whole["turns"])[:count]
            assert events == told(whole)[: len(events)]
            assert (found["status"], found["outcome"], found["failure"]) == ("open", None, None)
            assert whole_view(found).status == "open"


def test_half_done_conversations_of_a_killed_run_are_read_from_its_journal() -> None:
    contents = read_run(RECORDED / "killed")
    ended = contents.state.endings
    left = replies(contents.disk, contents.layout, lambda task_id: task_id not in ended)
    assert left
    for task_id, recorded in left.items():
        found = Replays(contents).open_transcript(task_id)

        assert [turn["turn"] for turn in objects(found["turns"])] == [each.turn_key for each in recorded] or len(
            recorded
        ) > 1
        assert len(objects(found["turns"])) == len(recorded)
        encode_transcript(found)
    with pytest.raises(ConfigError, match="'nothing' has no"):
        Replays(contents).open_transcript("nothing")


def test_a_conversation_that_cannot_be_played_here_has_its_replies_and_says_why() -> None:
    contents = read_run(RECORDED / "game")
    row = next(contents.rows())
    whole = contents.transcript(str(row["task_id"]))
    contents.resolved["conversation_config"] = {
        **entry(contents.resolved, "conversation_config", dict),
        "environment": "elsewhere",
    }

    found = Replays(contents).open_transcript(str(row["task_id"]), replies_of(whole))

    view = whole_view(found)
    assert "elsewhere" in view.note
    assert (view.events, view.status) == ((), "open")
    assert {turn.key for turn in view.turns} == {turn["turn"] for turn in objects(whole["turns"])}
    assert {turn.result for turn in view.turns} == {""}
    assert set(view.seats) >= {turn.agent for turn in view.turns}


def test_an_open_discussion_finds_its_questions_by_their_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = read_run(RECORDED / "failed")
    transcripts = (whole.transcript(str(row["task_id"])) for row in whole.rows())
    transcript = next(found for found in transcripts if found["outcome"] is not None)
    task_id = str(entry(transcript, "task", dict)["task_id"])
    begun = copied(RECORDED / "failed", tmp_path / "runs" / "grid" / "one")
    shutil.rmtree(begun / "transcripts")
    (begun / "transcripts").mkdir()
    monkeypatch.chdir(tmp_path)
    replies = replies_of(transcript)[:2]

    missing = Replays(read_run(begun)).open_transcript(task_id, replies)
    questions = tmp_path / "questions.jsonl"
    copied(RECORDED.parent / "questions.jsonl", questions)
    found = Replays(read_run(begun)).open_transcript(task_id, replies)
    questions.write_bytes(questions.read_bytes() + b"\n")
    others = Replays(read_run(begun)).open_transcript(task_id, replies)

    assert "no question" in str(missing["note"])
    assert "note" not in found
    assert told(found) == told(transcript)[: len(told(found))]
    assert len(told(found)) > 1
    assert told(others) == []
