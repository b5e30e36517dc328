"""Experiment → Tasks: which conversations to run, who takes part in each, and from which seed. Pure and lazy.

A task depends on the experiment's seed, its definitions and its own index, and on nothing else: not on how many
conversations are planned, not on what the experiment is called (the name only stands in the id), not on the order
or number of those that run at once. So a run can be extended, renamed and resumed without moving any result.

Over a line-up of n slots the agents rotate in blocks of n tasks. Inside a block each entry of the pool fills each
slot once, sits in each seat once and bears each of the block's n names once. Each of the three is a Latin square
of its own, shuffled anew for each block in rows, columns and symbols, so that no slot is tied to a seat or a name
and no two entries of the pool travel together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from mac_runner.config import AgentDefinition, Experiment
from mac_runner.errors import ConfigError
from mac_runner.types import Agent, Lineup, Sampling, Task, Turn, stable_hash

REQUEST_SEED_BITS = 31
"""Engines take a sampling seed as a signed 32-bit number."""


_SHARD = re.compile(r"([0-9]{1,9})/([0-9]{1,9})")


class Shard(NamedTuple):
    """The `number`-th of `of` parts of an experiment, counted from 1: the tasks whose index leaves `number - 1`."""

    number: int
    of: int

    def holds(self, task: Task) -> bool:
        """Whether a task belongs to this part; each task belongs to exactly one."""
        return task.index % self.of == self.number - 1

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


def parse_shard(text: str) -> Shard:
    """`3/8` as a Shard. Raises ConfigError saying what is allowed."""
    match = _SHARD.fullmatch(text)
    if match is None:
        raise ConfigError(f"{text!r} is no shard; write i/n, such as 1/8 for the first of eight")
    shard = Shard(int(match[1]), int(match[2]))
    if shard.of == 0:
        raise ConfigError(f"there is no shard {text}: there is at least one shard, 1/1")
    if shard.number == 0:
        raise ConfigError(
            f"there is no shard {text}: shards are counted from 1, so the first is 1/{shard.of}; "
            "where a job array counts from 0, add 1 to its index"
        )
    if shard.number > shard.of:
        raise ConfigError(f"there is no shard {text}: of {shard.of} shards the last is {shard.of}/{shard.of}")
    return shard


class _Square(NamedTuple):
    """A Latin square: entry `column` of the pool gets `symbols[(columns[column] + rows[row]) % n]` in task `row`."""

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    symbols: tuple[int, ...]

    def at(self, row: int, column: int) -> int:
        return self.symbols[(self.rows[row] + self.columns[column]) % len(self.symbols)]


class _Block(NamedTuple):
    """The rotation of n consecutive tasks."""

    slot: _Square
    seat: _Square
    name: _Square
    names: tuple[str, ...]


def task_count(experiment: Experiment) -> int:
    """How many tasks `plan_tasks` yields."""
    return experiment.conversation_config.conversations


def request_seed(task: Task, turn: Turn) -> int:
    """The sampling seed of the request for `turn`: the same whenever, and beside whatever, it is sent."""
    return stable_hash(task.seed, turn.key) % (1 << REQUEST_SEED_BITS)


def plan_tasks(experiment: Experiment, lineup: Lineup | None) -> Iterator[Task]:
    """The tasks in order of their index, made one by one as they are asked for.

    With a line-up its slots are filled from the agent definitions (`game.seats`, or equal shares, the remainder
    going round from task to task); without one every definition takes part once. Raises ConfigError at once, not
    at the first task, when the line-up cannot be filled.
    """
    if lineup is None:
        definitions = enumerate(experiment.agent_definitions)
        agents = tuple(_agent(definition, definition.agent_id, i, i) for i, definition in definitions)
        return (_task(experiment, index, agents) for index in range(task_count(experiment)))
    return _rotate(experiment, lineup, _pool(experiment, lineup))


def _rotate(
    experiment: Experiment, lineup: Lineup, pool_of: Callable[[int], tuple[AgentDefinition, ...]]
) -> Iterator[Task]:
    n = len(lineup.slots)
    block = _block(experiment.seed, 0, lineup)
    for index in range(task_count(experiment)):
        number, row = divmod(index, n)
        if row == 0:
            block = _block(experiment.seed, number, lineup)
        agents = (
            _agent(definition, block.names[block.name.at(row, i)], block.seat.at(row, i), block.slot.at(row, i))
            for i, definition in enumerate(pool_of(index))
        )
        yield _task(experiment, index, tuple(sorted(agents, key=lambda agent: agent.seat)))


def _block(seed: int, number: int, lineup: Lineup) -> _Block:
    n, names = len(lineup.slots), lineup.names
    # The names go round over the blocks, so that all of them are used however few a conversation needs.
    order = _shuffled(len(names), seed, "names")
    return _Block(
        slot=_square(n, seed, "slot", number),
        seat=_square(n, seed, "seat", number),
        name=_square(n, seed, "name", number),
        names=tuple(names[order[(number * n + i) % len(names)]] for i in range(n)),
    )


def _square(n: int, *key: str | int) -> _Square:
    rows, columns, symbols = (_shuffled(n, *key, part) for part in ("rows", "columns", "symbols"))
    return _Square(rows, columns, symbols)


def _shuffled(n: int, *key: str | int) -> tuple[int, ...]:
    """0..n-1 in an order drawn from `key`. By hash, because no library promises the order of its shuffle for ever."""
    return tuple(sorted(range(n), key=lambda i: (stable_hash(*key, i), i)))


def _pool(experiment: Experiment, lineup: Lineup) -> Callable[[int], tuple[AgentDefinition, ...]]:
    """Who fills the n slots of the task with a given index."""
    n, definitions = len(lineup.slots), experiment.agent_definitions
    if n == 0 or len(set(lineup.names)) < n:
        raise ConfigError(
            f"the line-up has {n} slots and {len(set(lineup.names))} names; it needs a slot, and a name for each"
        )
    seats = None if experiment.game is None else experiment.game.seats
    if seats is not None:
        fixed = tuple(definition for definition in definitions for _ in range(seats.get(definition.agent_id, 0)))
        if len(fixed) != n:
            counts = ", ".join(f"{agent_id}: {count}" for agent_id, count in seats.items())
            raise ConfigError(
                f"game.seats: the counts ({counts}) add up to {len(fixed)}; the line-up has {n} seats",
                key=("game", "seats"),
            )
        return lambda _index: fixed
    share, rest = divmod(n, len(definitions))
    even = tuple(definition for definition in definitions for _ in range(share))
    return lambda index: even + tuple(definitions[(index * rest + i) % len(definitions)] for i in range(rest))


def _task(experiment: Experiment, index: int, agents: tuple[Agent, ...]) -> Task:
    name = experiment.experiment_metadata.experiment_name
    seed = stable_hash(experiment.seed, "task", index)
    material = None if experiment.discussion is None else experiment.discussion.question_at(index).to_json()
    return Task(index=index, task_id=f"{name}-{index:06d}", seed=seed, agents=agents, material=material)


def sampling_of(definition: AgentDefinition) -> Sampling:
    """How agents of `definition` draw tokens; each request adds a seed of its own."""
    return Sampling(
        temperature=definition.temperature,
        max_tokens=definition.max_tokens,
        top_p=definition.top_p,
        top_k=definition.top_k,
        min_p=definition.min_p,
        presence_penalty=definition.presence_penalty,
        frequency_penalty=definition.frequency_penalty,
        repetition_penalty=definition.repetition_penalty,
        stop=definition.stop,
    )


def _agent(definition: AgentDefinition, agent_id: str, seat: int, slot: int) -> Agent:
    return Agent(
        agent_id=agent_id,
        definition=definition.agent_id,
        model=definition.model,
        seat=seat,
        slot=slot,
        sampling=sampling_of(definition),
    )
