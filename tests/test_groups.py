"""`samples_per_task`: each deal is played several times, and nothing but the seeds of requests differs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mac_runner.config import Experiment
from mac_runner.config.identity import differences, identity_of
from mac_runner.plan import AutoShard, Shard, plan_of, request_seed
from mac_runner.store.records import task_from_json, task_json
from mac_runner.types import Task, Turn
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


@pytest.mark.parametrize("k", [1, 3])
def test_a_task_reads_back_from_its_record(k: int) -> None:
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
