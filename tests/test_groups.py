"""Conversations that share a beginning: samples of a deal, which differ in the seeds of requests alone, and forks.

They are not independent: intervals take what they share for one cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mac_runner
from mac_runner.cli.maintenance import merge
from mac_runner.cli.process import Exit
from mac_runner.config import Experiment, differences, identity_of
from mac_runner.intervals import ClusteredRate, ExactClusteredMean
from mac_runner.plan import AutoShard, Shard, plan_of, request_seed
from mac_runner.results import ends
from mac_runner.runs.testing import RecordedConversation
from mac_runner.store.testing import task_from_json, task_json
from mac_runner.types import Task, Turn
from tests.kit import own_game, played, written
from tests.test_plan import experiment, lineup

TURN = Turn(round=1, agent="Ada", model="m", place=0)
KEYS = ("index", "task_id", "group", "sample")


def sampled(k: int, *, deals: int = 6, seed: int = 0, agents: int = 2) -> Experiment:
    found = experiment(seed=seed, agents=agents, conversations=deals * k)
    conversation = found.conversation_config.model_copy(update={"samples_per_task": k})
    return found.model_copy(update={"conversation_config": conversation})


def tasks_of(found: Experiment, size: int = 3) -> list[Task]:
    return [*plan_of(found, lineup(size))()]


@given(k=st.integers(2, 5), deals=st.integers(1, 8), size=st.integers(1, 5), seed=st.integers(0, 2**40))
def test_samples_of_a_deal_are_adjacent_and_differ_only_in_the_seeds_of_requests(
    k: int, deals: int, size: int, seed: int
) -> None:
    plain = tasks_of(sampled(1, deals=deals, seed=seed), size)
    tasks = tasks_of(sampled(k, deals=deals, seed=seed), size)

    assert [(task.index, task.group, task.sample) for task in tasks] == [
        (deal * k + sample, deal, sample) for deal in range(deals) for sample in range(k)
    ]
    for task in tasks:
        assert task.group is not None
        assert replace(task, **{key: getattr(plain[task.group], key) for key in KEYS}) == plain[task.group]
    seeds = [request_seed(task, TURN) for task in tasks]
    assert len(set(seeds)) == len(seeds)
    assert seeds[::k] == [request_seed(task, TURN) for task in plain]


def test_a_task_reads_back_from_its_record() -> None:
    for k in (1, 3):
        for task in tasks_of(sampled(k)):
            assert task_from_json(task_json(task)) == task
            assert ("group" in task_json(task)) == (k > 1)


@given(k=st.integers(1, 4), deals=st.integers(1, 9), of=st.integers(1, 12), limit=st.integers(1, 40))
def test_shards_hold_whole_deals_and_together_everything(k: int, deals: int, of: int, limit: int) -> None:
    plan = plan_of(sampled(k, deals=deals), lineup(2))[:limit]
    parts = [[*plan.part(shard)()] for shard in AutoShard(of).shards()]

    assert sorted(task.index for part in parts for task in part) == [*plan.indexes]
    assert [bool(part) for part in parts] == [number < plan.deals for number in range(of)]
    for shard, part in zip(AutoShard(of).shards(), parts, strict=True):
        assert all(Shard.holding(task.index // k, of) == shard for task in part)


def test_another_number_of_samples_is_another_run_and_one_is_what_every_run_had() -> None:
    one, two = sampled(1).dumped(), sampled(2).dumped()
    conversation = one["conversation_config"]
    assert isinstance(conversation, dict)
    old = {
        **one,
        "conversation_config": {key: value for key, value in conversation.items() if key != "samples_per_task"},
    }

    assert [each.path for each in differences(one, two).identity] == ["conversation_config.samples_per_task"]
    assert not differences(old, one).identity
    assert identity_of(sampled(1)) == identity_of(Experiment.model_validate(old))


GAME = """
from mac_runner import Ask, game

@game
def dice(table):
    said = []
    for number in range(4):
        die = table.random(f"die {number}").randint(1, 6)
        table.tell(f"The die shows {die}.")
        said += yield [Ask(name, "Say one.", choices=[*"abcdef"], default="a") for name in table.agents]
    vowels = sum(letter in "ae" for letter in said)
    return {"said": "".join(said), "vowels": vowels, "is_loud": said[-1] in "abc"}
"""


def file(place: Path, k: int, conversations: int) -> Path:
    """An experiment whose players draw from the seeds of their requests."""
    (place / "dice.py").write_text(GAME)
    content = own_game("./dice.py:dice", conversations=conversations)
    content["conversation_config"] = {
        "environment": "./dice.py:dice",
        "conversations": conversations,
        "samples_per_task": k,
    }
    return written(place / f"{k}-{conversations}.yaml", content)


def thrown(game: RecordedConversation) -> list[object]:
    """What the die showed: the chance of the world."""
    return [event["text"] for event in game.events if str(event["text"]).startswith("The die shows")]


def transcripts(directory: Path) -> Mapping[str, bytes]:
    return {path.name: path.read_bytes().partition(b'"timing"')[0] for path in directory.glob("transcripts/*")}


@pytest.mark.ci
def test_a_group_is_dealt_alike_and_played_differently_and_its_first_game_is_the_plain_one(tmp_path: Path) -> None:
    plain = [*mac_runner.run(file(tmp_path, 1, 2), out=tmp_path / "plain", progress=False)]
    run = mac_runner.run(file(tmp_path, 3, 6), out=tmp_path / "groups", progress=False)

    for place, game in enumerate(run):
        first = plain[place // 3]
        assert (game.ended.group, game.ended.sample) == divmod(place, 3)
        assert (game.ended.seed, game.agents) == (first.ended.seed, first.agents)
        assert thrown(game) == thrown(first) != []
        assert game.outcome is not None
        assert (game.outcome == first.outcome) == (place % 3 == 0)
    (verified,) = run.verify()
    assert verified.report.ok
    rows = run.turns(columns=["group", "sample"]).to_pylist()
    assert {(row["group"], row["sample"]) for row in rows} == {(deal, one) for deal in (0, 1) for one in range(3)}


def test_shards_limit_and_extension_make_the_same_games(tmp_path: Path) -> None:
    whole = file(tmp_path, 3, 6)
    played(whole, tmp_path / "whole")
    played(whole, tmp_path / "shards", shard="auto/4")
    played(whole, tmp_path / "grown", limit=2)
    played(file(tmp_path, 3, 3), tmp_path / "grown")
    played(whole, tmp_path / "grown")

    found = transcripts(tmp_path / "whole")
    assert len(found) == 6
    assert transcripts(tmp_path / "shards") == found
    assert transcripts(tmp_path / "grown") == found


def forked(run: Path, out: str, *, turn: str = "1/Abel", draws: int = 4) -> Path:
    place = run.parent / out
    mac_runner.fork(run, where=["finished"], turn=turn, draws=draws, out=place, trust=True, progress=False)
    return place


def check(place: Path) -> None:
    """The intervals of a summary are those by the conversation that was forked."""
    view = mac_runner.open_run(place)
    loud, vowels, origins = ClusteredRate(), ExactClusteredMean(), dict[str, list[Any]]()
    for one in view:
        origins.setdefault(one.task_id[: len("small-000000")], []).append(one.outcome)
    assert len(origins) == 3
    for outcomes in origins.values():
        loud.add(sum(outcome["is_loud"] for outcome in outcomes), len(outcomes))
        vowels.add([outcome["vowels"] for outcome in outcomes])
    summary: Any = view.summary
    values = summary["outcomes"]["dice"]["values"]
    assert values["is_loud"]["interval"] == ends(loud.interval)
    assert values["vowels"]["interval"] == pytest.approx(ends(vowels.interval), abs=1e-3)


def test_intervals_of_a_fork_are_by_the_conversation_that_was_forked(tmp_path: Path) -> None:
    check(forked(played(file(tmp_path, 1, 3), tmp_path / "run"), "fork"))


def test_a_fork_of_a_fork_and_a_merge_of_forks_have_the_clusters_of_the_first_conversations(tmp_path: Path) -> None:
    parent = played(file(tmp_path, 1, 3), tmp_path / "run")
    first, second = forked(parent, "first"), forked(parent, "second", turn="2/Cain", draws=2)
    check(forked(first, "again", turn="2/Abel", draws=2))

    assert merge(tmp_path / "whole", [first, second], is_quiet=True) == Exit.OK
    check(tmp_path / "whole")
