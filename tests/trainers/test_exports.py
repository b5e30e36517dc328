"""`mac-run export --format` for trainers, and `mac_runner.rollouts`: sums, counts and prompts are those of the run."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from mac_runner import fork, open_run, rollouts
from mac_runner.data.testing import FORMATS
from mac_runner.errors import ConfigError
from mac_runner.runs.testing import RunView, export
from tests.cli.lab import Lab, experiment, scripted
from tests.trainers.learner import HOSTILE, learning, play

ESCAPED = HOSTILE.replace("\ud800", "\\ud800")


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a run of a learner among scripted players, and one without tokens; not to be changed."""
    directory = tmp_path_factory.mktemp("learned")
    play(directory, learning())
    play(directory, experiment("text", conversations=1, models={"learner": scripted("random"), "bot": scripted()}))
    return directory


@pytest.fixture
def run(learned: Path) -> RunView:
    return open_run(learned / "small")


def exported(run: RunView, to: Path, name: str, **more: Any) -> list[Any]:
    """The rows of a format."""
    (made,) = export(run, to, format=name, **more)
    rows: list[Any] = []
    for path in sorted((to / name).iterdir()):
        if path.suffix == ".jsonl":
            rows += map(json.loads, path.read_text(encoding="utf-8").splitlines())
        else:
            rows += pyarrow.parquet.read_table(path).to_pylist()
    assert len(rows) == made.rows
    return rows


def sent(run: RunView) -> dict[tuple[str, str], list[dict[str, str]]]:
    """Each prompt of a run, with hostile text escaped."""
    return {
        (row["conversation"], row["turn"]): [
            {key: text.replace("\ud800", "\\ud800") for key, text in message.items()}
            for message in json.loads(row["messages"])
        ]
        for row in run.table("prompts").to_pylist()
    }


def test_rollouts_have_each_turn_and_the_sums_of_the_run(run: RunView, tmp_path: Path) -> None:
    rows = exported(run, tmp_path, "rollouts")
    turns = run.turns().to_pylist()
    agents = {(row["conversation"], row["agent"]): row for row in run.agents().to_pylist()}
    learned = [row for row in rows if row["model"] == "learner"]

    assert [(row["conversation"], row["turn"]) for row in rows] == [(one["conversation"], one["turn"]) for one in turns]
    assert Counter(row["receipt"] for row in rows) == Counter(one["receipt"] for one in turns)
    assert {row["receipt"] for row in learned} >= {"act", "correction"}
    worths = {conversation.task_id: conversation.rewards for conversation in run}
    for row, turn in zip(rows, turns, strict=True):
        assert len(row["prompt_ids"]) == (turn["prompt_tokens"] if row["trainable"] else 0)
        assert len(row["completion_ids"]) == len(row["logprobs"])
        assert len(row["logprobs"]) == (turn["completion_tokens"] if row["trainable"] else 0)
        agent = agents[row["conversation"], row["agent"]]
        assert json.loads(row["rewards"]) == json.loads(agent["rewards"])
        worth = worths[row["conversation"]][row["agent"]]
        assert {**json.loads(row["rewards"]), "reward": row["reward"]} == worth
        assert (row["role"], row["faction"]) == (agent["role"], agent["faction"])
        assert row["group_id"] == f"{row['conversation']}/{row['agent']}"
    assert all(row["trainable"] == (row["model"] == "learner") for row in rows)
    assert all(row["is_truncated"] == (row["finish_reason"] == "length") for row in rows)
    assert {row["policy_end"] - row["policy_start"] for row in learned} == {0, 1}
    assert {row["policy_start"] for row in rows if row["model"] == "bot"} == {None}


def test_the_weights_of_a_seat_sum_to_one(run: RunView) -> None:
    for conversation in run:
        sums: dict[str, float] = defaultdict(float)
        for rollout in rollouts(conversation):
            sums[rollout.agent] += rollout.weight
            assert (rollout.weight > 0) == rollout.trainable
        expected = {agent.name: float(agent.model == "learner") for agent in conversation.agents if agent.name in sums}
        assert sums == pytest.approx(expected)


def test_rollouts_in_python_are_the_rows_of_the_file(run: RunView, tmp_path: Path) -> None:
    rows = exported(run, tmp_path, "rollouts")
    found = [rollout for conversation in run for rollout in rollouts(conversation)]

    assert len(found) == len(rows)
    for rollout, row in zip(found, rows, strict=True):
        names = ("turn", "agent", "definition", "model", "reward", "group_id", "trainable", "weight", "role")
        assert [getattr(rollout, name) for name in names] == [row[name] for name in names]
        assert list(rollout.prompt_ids) == row["prompt_ids"]
        assert list(rollout.logprobs) == row["logprobs"]
        assert (rollout.policy_version or (None, None)) == (row["policy_start"], row["policy_end"])


def test_formats_of_text_have_the_prompts_that_were_sent_and_the_usable_replies(run: RunView, tmp_path: Path) -> None:
    prompts = sent(run)
    turns = {(row["conversation"], row["turn"]): row for row in run.turns().to_pylist()}
    usable = [key for key, row in turns.items() if row["receipt"] in ("act", "observation")]
    has_replies = {key for key, prompt in prompts.items() if any(each["role"] == "assistant" for each in prompt)}

    tuned = exported(run, tmp_path, "trl-sft")
    verl = exported(run, tmp_path, "verl-sft")
    chat = exported(run, tmp_path, "openai-chat")

    assert [(row["conversation"], row["turn"]) for row in tuned] == usable
    assert has_replies.intersection(usable)
    for row in tuned:
        key = (row["conversation"], row["turn"])
        assert row["prompt"] == prompts[key]
        assert row["completion"] == [{"role": "assistant", "content": turns[key]["text"]}]
    left = [row for row in tuned if (row["conversation"], row["turn"]) not in has_replies]
    assert [row["messages"] for row in verl] == [[*row["prompt"], *row["completion"]] for row in left]
    for row, line in zip(tuned, chat, strict=True):
        plain = [{key: message[key] for key in ("role", "content")} for message in line["messages"]]
        assert plain == [*row["prompt"], *row["completion"]]
        assert [message.get("weight") for message in line["messages"]] == [
            0 if message["role"] == "assistant" else None for message in row["prompt"]
        ] + [None]


def test_kto_has_every_reply_and_likes_usable_ones_of_winners(run: RunView, tmp_path: Path) -> None:
    rows = exported(run, tmp_path, "trl-kto", only=["learner"])
    turns = {(one["conversation"], one["turn"]): one for one in run.turns().to_pylist() if one["model"] == "learner"}
    won = {(one["conversation"], one["agent"]): one["won"] for one in run.agents().to_pylist()}

    assert [(row["conversation"], row["turn"]) for row in rows] == [*turns]
    for row in rows:
        turn = turns[row["conversation"], row["turn"]]
        assert row["label"] == (turn["receipt"] == "act" and won[row["conversation"], row["agent"]])
    assert {row["completion"][0]["content"] == ESCAPED for row in rows} == {True, False}
    assert {row["label"] for row in rows} == {True, False}


def test_only_chooses_models_and_definitions_and_another_choice_writes_again(run: RunView, tmp_path: Path) -> None:
    counts = {name: len(exported(run, tmp_path, "trl-sft", only=only)) for name, only in _CHOICES.items()}
    (again,) = export(run, tmp_path, format="trl-sft", only=["bot", "learner"])

    assert counts["model"] == counts["definition"]
    assert counts["all"] == counts["both"] == counts["model"] + counts["bot"]
    assert (again.written, again.rows) == (0, counts["all"])


_CHOICES: dict[str, list[str]] = {
    "all": [],
    "model": ["learner"],
    "definition": ["with_learner"],
    "bot": ["bot"],
    "both": ["learner", "bot"],
}


def test_episodes_have_a_branch_for_each_turn(run: RunView, tmp_path: Path) -> None:
    """Read by the classes of verifiers in test_read_back.py."""
    found = {(one.conversation, one.turn): one for each in run for one in rollouts(each)}
    episodes = exported(run, tmp_path, "verifiers")

    calls = 0
    for episode, conversation in zip(episodes, run, strict=True):
        assert episode["run"]["work"]["policy"]["start"] == 0 or episode["run"]["work"]["policy"]["end"] > 0
        for trace in episode["traces"]:
            own = [one for one in conversation.turns if one.agent == trace["agent"]["name"]]
            for call, turn in zip(trace["calls"], own, strict=True):
                node, rollout = trace["nodes"][call["node"]], found[episode["id"], turn.key]
                assert node["token_ids"] == [*rollout.prompt_ids, *rollout.completion_ids]
                assert sum(node["mask"]) == len(node["logprobs"]) == len(rollout.completion_ids)
                assert node["sampled"]
                calls += 1
    assert calls == len(found)


def test_several_processes_write_the_same_files(learned: Path, run: RunView, tmp_path: Path) -> None:
    formats = [name for name in FORMATS if name != "trl-dpo"]
    export(run, tmp_path / "one", format=formats, only=["learner"])
    flags = [flag for name in formats for flag in ("--format", name)]
    lab = Lab(path=learned)
    lab.done("export", "small", "--to", f"{tmp_path}/two", *flags, "--only", "learner", "--jobs", "2")

    found = [
        {path.relative_to(place): path.read_bytes() for path in place.rglob("part-*")}
        for place in (tmp_path / "one", tmp_path / "two")
    ]
    assert found[0] == found[1]
    assert len(found[0]) == len(formats)


def test_pairs_are_the_best_and_the_worst_reply_to_one_prompt(tmp_path: Path) -> None:
    parent = play(tmp_path, experiment(conversations=1, models={"m": scripted("random")}))
    turn = next(one.key for one in parent.conversation(0).turns if one.round > 2)
    run = fork(tmp_path / "small", 0, turn=turn, draws=8, out=tmp_path / "forks", progress=False)
    agent = turn.split("/")[1]
    values = defaultdict(list)
    for conversation in run:
        (said,) = (one.raw for one in conversation.turns if one.key == turn)
        (won,) = (row["won"] for row in conversation.rows("agents") if row["agent"] == agent)
        values[said].append(float(bool(won)))
    means = {said: sum(found) / len(found) for said, found in values.items()}

    rows = exported(run, tmp_path / "out", "trl-dpo")

    assert len(means) > 1, "the draws say different things"
    assert len(rows) == (1 if len({*means.values()}) > 1 else 0)
    for row in rows:
        assert row["prompt"] == sent(parent)[row["conversation"], turn]
        best, worst = row["chosen"][0]["content"], row["rejected"][0]["content"]
        assert (row["chosen_value"], row["rejected_value"]) == (means[best], means[worst])
        assert (means[best], means[worst]) == (max(means.values()), min(means.values()))
        assert row["chosen_draws"] == len(values[best])


def test_no_pair_prefers_a_reply_that_could_not_be_used(tmp_path: Path) -> None:
    play(tmp_path, learning(1))
    run = fork(tmp_path / "small", 0, turn="0/Dorothea/0/0", draws=3, out=tmp_path / "forks", progress=False)
    said = {turn.raw for one in run for turn in one.turns if turn.key == "0/Dorothea/0/0"}

    rows = exported(run, tmp_path / "out", "trl-dpo")

    assert HOSTILE in said, "an unusable reply is among those compared"
    assert len(said) > 1
    assert not [row for row in rows if "</script>" in row["chosen"][0]["content"]]


def test_a_fork_trains_on_what_is_new_in_it(tmp_path: Path) -> None:
    play(tmp_path, experiment(conversations=1))

    for conversation in fork(tmp_path / "small", 0, turn="#20", draws=2, out=tmp_path / "forks", progress=False):
        row = next(iter(conversation.rows("trl-kto")))
        assert row["turn"] == conversation.turns[20].key
        assert len(conversation.rows("trl-kto")) == len(conversation.turns) - 20


def test_what_cannot_be_exported_is_refused_before_anything_is_written(learned: Path, tmp_path: Path) -> None:
    wrong = {}
    refused: dict[str, dict[str, Any]] = {
        "no tokens of learner: ": {"run": learned / "text", "format": "rollouts", "only": ["learner"]},
        "has no tokens of bot, learner: ": {"run": learned / "text", "format": "rollouts"},
        "is not a fork": {"run": learned / "small", "format": "trl-dpo"},
        "did you mean 'learner'": {"run": learned / "small", "format": "trl-sft", "only": ["lerner"]},
        "--only: chooses what trainers learn from": {"run": learned / "small", "format": "jsonl", "only": ["learner"]},
        "--tables: the formats of trainers have no tables": {
            "run": learned / "small",
            "format": "trl-sft",
            "tables": ["turns"],
        },
        "only: 'learner' is one name": {"run": learned / "small", "format": "trl-sft", "only": "learner"},
        "format: found 'trl'; there are: csv": {"run": learned / "small", "format": "trl"},
    }
    for text, asked in refused.items():
        try:
            export(to=tmp_path / "out", **asked)
        except ConfigError as fault:
            if text in str(fault):
                continue
            wrong[text] = str(fault)
        else:
            wrong[text] = "accepted"
    assert wrong == {}
    assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match="has no tokens"):
        rollouts(open_run(learned / "text").conversation(0))


def test_a_run_without_tokens_has_all_formats_of_text(learned: Path, tmp_path: Path) -> None:
    run = open_run(learned / "text")
    for name in ("trl-sft", "trl-kto", "verl-sft", "openai-chat", "verifiers"):
        assert exported(run, tmp_path, name), name
    (episode,) = exported(run, tmp_path, "verifiers")
    assert all(trace["agent"]["trainable"] for trace in episode["traces"] if trace["calls"])


def test_samples_of_a_deal_share_the_groups_of_their_seats(tmp_path: Path) -> None:
    content = experiment(conversations=2, lobby="classic-7")
    content["conversation_config"] = {"environment": "town_of_salem", "conversations": 2, "samples_per_task": 2}
    groups: dict[str, set[str]] = defaultdict(set)
    grid = play(tmp_path, {**content, "_grid": {"sweep": {"game.flags.mafia_parity": [False, True]}}})

    for row in exported(grid, tmp_path / "out", "trl-sft"):
        assert row["combination"]
    for line in exported(grid, tmp_path / "out", "openai-chat"):
        assert [*line] == ["messages"]
    for episode in exported(grid, tmp_path / "out", "verifiers"):
        assert "combination" not in episode
        groups[episode["group"]["id"]].add(episode["task"]["data"]["id"])
    assert [len(found) for found in groups.values()] == [2, 2]
