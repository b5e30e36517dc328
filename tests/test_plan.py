"""The plan of a run: who sits where, seeds, shards, and groups of conversations that share a beginning."""

from __future__ import annotations

import tracemalloc
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice, pairwise, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mac_runner
from mac_runner.cli.clusters import Merge
from mac_runner.cli.process import Exit
from mac_runner.config import Experiment, differences, identity_of
from mac_runner.errors import ConfigError
from mac_runner.intervals import ClusteredRate, ExactClusteredMean
from mac_runner.plan import AutoShard, Shard, parse_shard, plan_of, plan_tasks, request_seed, task_count
from mac_runner.results import ends
from mac_runner.runs.testing import RecordedConversation
from mac_runner.store.testing import task_from_json, task_json
from mac_runner.types import Lineup, Task, Turn
from tests.kit import known, own_game, played, written

MILLION = 1_000_000

sizes = st.integers(1, 12)
seeds = st.integers(0, 2**40)


def experiment(*, name: str = "trial", seed: int = 0, conversations: int = 20, agents: int = 1) -> Experiment:
    return Experiment.model_validate(
        {
            "experiment_metadata": {"experiment_name": name},
            "seed": seed,
            "model_definitions": {"m": {"backend": "scripted", "scripted_config": {"policy": "random"}}},
            "agent_definitions": [
                {"agent_id": f"agent_{place}", "role": "player", "model": "m", "temperature": place, "stop": ["x"]}
                for place in range(agents)
            ],
            "conversation_config": {"environment": "town_of_salem", "conversations": conversations},
        }
    )


def lineup(size: int, names: int | None = None, seats: list[int] | None = None) -> Lineup:
    return Lineup(
        slots=tuple(f"slot {place}" for place in range(size)),
        names=tuple(f"name {place}" for place in range(size if names is None else names)),
        seats=None if seats is None else {f"agent_{place}": count for place, count in enumerate(seats)},
        key=("game", "seats"),
    )


@given(size=sizes, seed=seeds, blocks=st.integers(1, 3))
def test_over_a_block_every_entry_fills_each_slot_seat_and_name_once(size: int, seed: int, blocks: int) -> None:
    plan = plan_tasks(experiment(seed=seed, agents=size, conversations=size * blocks), lineup(size, size + 3))
    tasks = list(plan)

    for start in range(0, len(tasks), size):
        block = tasks[start : start + size]
        for task in block:
            assert [agent.seat for agent in task.agents] == list(range(size))
            assert sorted(agent.slot for agent in task.agents) == list(range(size))
            assert len({agent.agent_id for agent in task.agents}) == size
        held: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
        for agent in (agent for task in block for agent in task.agents):
            held[agent.definition].append((agent.slot, agent.seat, agent.agent_id))
        names = {agent.agent_id for agent in block[0].agents}
        for places in held.values():
            assert sorted(slot for slot, _, _ in places) == list(range(size))
            assert sorted(seat for _, seat, _ in places) == list(range(size))
            assert {name for _, _, name in places} == names


def test_slot_seat_and_name_are_not_tied_to_each_other() -> None:
    size, blocks = 10, 60
    tasks = list(plan_tasks(experiment(conversations=size * blocks), lineup(size)))

    for first, second in (("slot", "seat"), ("slot", "agent_id"), ("seat", "agent_id")):
        pairs = Counter((getattr(agent, first), getattr(agent, second)) for task in tasks for agent in task.agents)
        # Each of the 100 pairs is expected 60 times; tied, ten of them would have come 600 times and the others never.
        assert len(pairs) == size * size
        assert max(pairs.values()) < 120


def test_neighbours_in_the_pool_do_not_stay_neighbours() -> None:
    size, blocks = 10, 60
    distances = {"slot": Counter[int](), "seat": Counter[int]()}
    for task in plan_tasks(experiment(agents=size, conversations=size * blocks), lineup(size)):
        pool = sorted(task.agents, key=lambda agent: int(agent.definition.removeprefix("agent_")))
        for one, other in pairwise(pool):
            distances["slot"][(other.slot - one.slot) % size] += 1
            distances["seat"][(other.seat - one.seat) % size] += 1

    for counts in distances.values():
        # 600 tasks of 9 pairs over 9 distances: 600 each.
        assert len(counts) == size - 1
        assert max(counts.values()) < 900


@given(seed=seeds, agents=st.integers(1, 7), size=sizes, few=st.integers(1, 30), more=st.integers(0, 30))
def test_more_conversations_leave_the_first_ones_as_they_were(
    seed: int, agents: int, size: int, few: int, more: int
) -> None:
    short = list(plan_tasks(experiment(seed=seed, agents=agents, conversations=few), lineup(size)))
    longer = plan_tasks(experiment(seed=seed, agents=agents, conversations=few + more), lineup(size))

    assert list(islice(longer, few)) == short


@given(agents=st.integers(1, 15), size=sizes)
def test_shares_are_even_and_the_remainder_goes_round(agents: int, size: int) -> None:
    counts: Counter[str] = Counter()
    for task in plan_tasks(experiment(agents=agents, conversations=agents), lineup(size)):
        here = Counter(agent.definition for agent in task.agents)
        assert all(size // agents <= here[f"agent_{place}"] <= -(-size // agents) for place in range(agents))
        counts += here

    assert counts == {f"agent_{place}": size for place in range(agents)}


def test_all_names_get_used_and_seats_decide_who_fills_how_many() -> None:
    tasks = plan_tasks(experiment(conversations=20), lineup(5, names=17))

    assert len({agent.agent_id for task in tasks for agent in task.agents}) == 17
    for task in plan_tasks(experiment(agents=3), lineup(5, seats=[4, 0, 1])):
        assert Counter(agent.definition for agent in task.agents) == {"agent_0": 4, "agent_2": 1}


def test_a_lineup_that_cannot_be_filled_is_refused_at_once() -> None:
    for bad in (lineup(0), lineup(3, names=2), Lineup(slots=("a", "b"), names=("x", "x"))):
        with pytest.raises(ConfigError, match="line-up has"):
            plan_tasks(experiment(), bad)
    with pytest.raises(ConfigError, match=r"game\.seats: .* 5 seats"):
        plan_tasks(experiment(agents=2), lineup(5, seats=[4, 0]))


def test_without_a_lineup_every_definition_takes_part_once_in_order() -> None:
    tasks = list(plan_tasks(experiment(agents=3, conversations=4), None))

    assert len(tasks) == 4
    for task in tasks:
        assert [agent.agent_id for agent in task.agents] == ["agent_0", "agent_1", "agent_2"]
        assert [(agent.seat, agent.slot) for agent in task.agents] == [(0, 0), (1, 1), (2, 2)]
        assert [agent.sampling.temperature for agent in task.agents] == [0, 1, 2]
        assert all(agent.sampling.stop == ("x",) and agent.sampling.seed is None for agent in task.agents)


def test_tasks_are_made_one_by_one_as_they_are_asked_for() -> None:
    huge = experiment(conversations=MILLION)
    for room in (None, lineup(10, names=20)):
        tracemalloc.start()
        try:
            first = list(islice(plan_tasks(huge, room), 3))
            peak_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

        assert peak_bytes < 1 << 20
        assert [task.index for task in first] == [0, 1, 2]
    assert task_count(huge) == MILLION


def test_ids_and_seeds_are_all_different() -> None:
    tasks = list(plan_tasks(experiment(conversations=5_000), None))

    assert len({task.task_id for task in tasks}) == len({task.seed for task in tasks}) == 5_000
    assert tasks[7].task_id == "trial-000007"


def test_a_task_depends_on_the_seed_and_not_on_the_name() -> None:
    def shape(**changes: int | str) -> list[tuple[int, object]]:
        chosen = experiment(name=str(changes.get("name", "trial")), seed=int(changes.get("seed", 0)), agents=3)
        return [(task.seed, task.agents) for task in plan_tasks(chosen, lineup(7))]

    assert shape(name="renamed") == shape()
    assert shape(seed=1) != shape()


def test_the_plan_of_a_seed_is_the_same_for_ever() -> None:
    """These values were once computed; another result here means that old runs can no longer be resumed."""
    task = next(plan_tasks(experiment(seed=2026, agents=2), lineup(4, names=6)))

    assert task.seed == 7673256400759543766
    assert [(agent.agent_id, agent.definition, agent.slot) for agent in task.agents] == [
        ("name 1", "agent_0", 3),
        ("name 2", "agent_1", 0),
        ("name 3", "agent_0", 1),
        ("name 5", "agent_1", 2),
    ]
    assert request_seed(task, turn(task)) == 1573292845


def turn(task: Task, *, number: int = 0, step: int = 0, attempt: int = 0) -> Turn:
    agent = task.agents[0]
    return Turn(round=number, agent=agent.agent_id, model=agent.model, place=0, step=step, attempt=attempt)


def test_request_seed_differs_for_each_request_of_each_task() -> None:
    """And fits a signed number of 32 bits."""
    requests = [
        request_seed(task, turn(task, number=number, step=step, attempt=attempt))
        for task in plan_tasks(experiment(conversations=10), None)
        for number, step, attempt in product(range(10), range(2), range(2))
    ]

    assert len(set(requests)) == len(requests) == 400
    assert all(0 <= seed < 2**31 for seed in requests)


@given(of=st.integers(1, 9), conversations=st.integers(1, 30))
def test_shards_share_out_every_task_once(of: int, conversations: int) -> None:
    tasks = list(plan_tasks(experiment(conversations=conversations), lineup(3)))
    plan = plan_of(experiment(conversations=conversations), lineup(3))
    shards = [list(plan.part(Shard(number, of))()) for number in range(1, of + 1)]

    assert sorted((task for shard in shards for task in shard), key=lambda task: task.index) == tasks
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


def test_shard_is_read_as_it_is_written_and_refused_saying_what_is_allowed() -> None:
    assert parse_shard("3/8") == Shard(3, 8)
    assert str(Shard(3, 8)) == "3/8"
    for text, complaint in {
        "0/8": "counted from 1, so the first is 1/8",
        "0/0": "at least one shard",
        "9/8": "the last is 8/8",
        "1/0": "at least one shard",
        **dict.fromkeys(("3", "a/8", "-1/8", "1/8 ", "\u0661/8"), "write i/n"),
    }.items():
        with pytest.raises(ConfigError, match=complaint):
            parse_shard(text)


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
        first = plain[known(task.group)]
        assert replace(task, **{key: getattr(first, key) for key in KEYS}) == first
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
    old: Any = sampled(1).dumped()
    del old["conversation_config"]["samples_per_task"]

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
    content: Any = own_game("./dice.py:dice", conversations=conversations)
    content["conversation_config"]["samples_per_task"] = k
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
        assert (known(game.outcome) == first.outcome) == (place % 3 == 0)
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


def test_intervals_are_by_the_first_conversation_of_a_fork_of_its_fork_and_of_a_merge_of_forks(tmp_path: Path) -> None:
    parent = played(file(tmp_path, 1, 3), tmp_path / "run")
    first, second = forked(parent, "first"), forked(parent, "second", turn="2/Cain", draws=2)
    check(first)
    check(forked(first, "again", turn="2/Abel", draws=2))

    assert Merge(target=tmp_path / "whole", sources=(first, second), quiet=True).work() == Exit.OK
    check(tmp_path / "whole")
