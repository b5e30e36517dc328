"""Experiment → Tasks: which conversations to run, who takes part in each, and from which seed. Pure and lazy.

A task depends on the experiment's seed, its definitions and its own index, and on nothing else: not on how many
conversations are planned, not on the experiment's name (which is only part of the id), not on the order or
number of those that run together. So a run can be extended, renamed and resumed without moving any result.

A deal is what a task is about: its seed, who sits where, its material. With `samples_per_task: k` the tasks k·d to
k·d + k - 1 are of deal d, so they depend on d where other tasks depend on their index. They differ in the seeds of
their requests alone. The first of them is the task d of the experiment without samples.

Over a line-up of n slots the agents rotate in blocks of n tasks. Inside a block each entry of the pool fills each
slot once, sits in each seat once and bears each of the block's n names once. Each of the three is a Latin square
of its own, shuffled for each block in rows, columns and symbols, so that no slot is tied to a seat or a name
and no two entries of the pool travel together.

Which name and which seat go with a slot depends on the experiment's seed and the task's index alone. Who plays the
slot is decided apart from that: by rotation, by `Lineup.seats` or by `Lineup.cast`. So two experiments of one seed that
differ in their players alone have the same deals.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from mac_runner.config import Experiment
from mac_runner.errors import ConfigError
from mac_runner.spec import AgentDefinition
from mac_runner.types import Agent, Lineup, Sampling, Task, Turn, stable_hash

REQUEST_SEED_BITS = 31
"""Engines take a sampling seed as a signed 32-bit number."""


_SHARD = re.compile(r"([0-9]{1,9}|auto)/([0-9]{1,9})")
CLAIMED_MAX = 1_000
"""A worker that looks for a free shard looks at the note of each."""


class Shard(NamedTuple):
    """Part `number` of `of` parts of an experiment, from 1: the deals with `deal % of == number - 1`."""

    number: int
    of: int

    def holds(self, deal: int) -> bool:
        """Whether the tasks of a deal belong to this part; each belongs to exactly one."""
        return deal % self.of == self.number - 1

    @staticmethod
    def holding(deal: int, of: int) -> Shard:
        """The part that holds the tasks of a deal."""
        return Shard(deal % of + 1, of)

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


class AutoShard(NamedTuple):
    """Any of `of` parts: those that no other worker has claimed."""

    of: int

    def shards(self) -> Iterator[Shard]:
        """All of them, in their order."""
        return (Shard(number, self.of) for number in range(1, self.of + 1))

    def __str__(self) -> str:
        return f"auto/{self.of}"


def parse_shard(text: str) -> Shard | AutoShard:
    """`3/8` as a Shard, `auto/8` as an AutoShard. Raises ConfigError saying what is allowed."""
    match = _SHARD.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"{text!r} is not a shard; write i/n, such as 1/8 for the first of eight, or auto/8 to claim any of eight"
        )
    if match[1] == "auto":
        return _auto(text, int(match[2]))
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


def _auto(text: str, of: int) -> AutoShard:
    if not 1 <= of <= CLAIMED_MAX:
        raise ConfigError(
            f"there is no shard {text}: an experiment is split into 1 to {CLAIMED_MAX:,} shards; "
            "write auto/n with 4 to 8 times as many shards as workers"
        )
    return AutoShard(of)


_Casting: TypeAlias = Callable[[int, Sequence[int]], tuple[AgentDefinition, ...]]
"""From the number of a deal, and the slot of each entry of its rotation, to the definition of each entry."""


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


class Plan:
    """Tasks in order of their index; calling it yields them lazily, from the start each time.

    Making a task takes far longer than naming it, so tasks are made only when they are used. Each deal has `samples`
    tasks, one after the other.
    """

    def __init__(
        self,
        indexes: Sequence[int],
        *,
        name_of: Callable[[int], str],
        make: Callable[[int, str], Task],
        samples: int = 1,
    ) -> None:
        self._indexes = indexes
        self._name_of = name_of
        self._make = make
        self._samples = samples

    def __len__(self) -> int:
        return len(self._indexes)

    def __call__(self) -> Iterator[Task]:
        """All of them."""
        return self.those(lambda _task_id: True)

    def __getitem__(self, part: slice) -> Plan:
        """Some of them, as of a list: `plan[:5]` are the first five, `plan[1::4]` every fourth from the second on."""
        return self._of(self._indexes[part])

    def part(self, shard: Shard | None) -> Plan:
        """The tasks of one shard; all of them where there is none."""
        if shard is None:
            return self
        # All that were planned: a range of them, at no cost.
        if self._samples == 1 and self._indexes == range(len(self._indexes)):
            return self[shard.number - 1 :: shard.of]
        return self._of([index for index in self._indexes if shard.holds(index // self._samples)])

    def among(self, task_ids: Collection[str]) -> Plan:
        """The tasks that are among these."""
        return self._of([index for task_id, index in self.ids() if task_id in task_ids])

    def made_by(self, make: Callable[[Task], Task]) -> Plan:
        """The same tasks as `make` completes them."""
        return self._of(self._indexes, lambda index, task_id: make(self._make(index, task_id)))

    @property
    def deals(self) -> int:
        """How many deals its tasks are of."""
        return len(self) if self._samples == 1 else len({index // self._samples for index in self._indexes})

    @property
    def indexes(self) -> Sequence[int]:
        """The index of each task."""
        return self._indexes

    def ids(self) -> Iterator[tuple[str, int]]:
        """What each task is called, and its index."""
        return ((self._name_of(index), index) for index in self._indexes)

    def those(self, is_wanted: Callable[[str], bool]) -> Iterator[Task]:
        """The tasks that are wanted by their names."""
        return (self._make(index, task_id) for task_id, index in self.ids() if is_wanted(task_id))

    def _of(self, indexes: Sequence[int], make: Callable[[int, str], Task] | None = None) -> Plan:
        return Plan(indexes, name_of=self._name_of, make=make or self._make, samples=self._samples)


def task_name(experiment_name: str, index: int) -> str:
    """What the task of an index is called."""
    return f"{experiment_name}-{index:06d}"


def index_of(task_id: str) -> int | None:
    """The index of the task with a name of `task_name`; None for any other name."""
    digits = task_id.rpartition("-")[2]
    return int(digits) if digits.isascii() and digits.isdecimal() else None


def task_count(experiment: Experiment) -> int:
    """How many tasks are planned."""
    count = experiment.conversation_config.conversations
    if count == "all":
        raise ConfigError("conversations: all was not counted; load the experiment from its own file")
    return count


def request_seed(task: Task, turn: Turn) -> int:
    """The sampling seed of the request for `turn`: the same whenever, and beside whatever, it is sent.

    The number of a sample enters it, from the second sample of a deal on. The draws of a fork enter it from the turn of
    the fork on.
    """
    drawn: list[str | int] = ["sample", task.sample] if task.sample else []
    for draw in () if task.fork is None else task.fork.draws:
        drawn += ("draw", draw.number) if draw.holds(turn) else ()
    return stable_hash(task.seed, turn.key, *drawn) % (1 << REQUEST_SEED_BITS)


def plan_tasks(experiment: Experiment, lineup: Lineup | None) -> Iterator[Task]:
    """The tasks of `plan_of`, in order of their index."""
    return plan_of(experiment, lineup)()


def plan_of(experiment: Experiment, lineup: Lineup | None) -> Plan:
    """All tasks of an experiment.

    With a line-up, its slots are filled from the agent definitions: by its `cast` or its `seats`, or in equal shares
    with a remainder that rotates from task to task. Without one, every definition takes part once. Raises ConfigError
    here, not at the first task, when the line-up cannot be filled.
    """
    name, spec, settings = experiment.name, experiment.known_spec, experiment.environment_settings
    agents_of = _everyone(experiment) if lineup is None else _rotation(experiment, lineup, _casting(experiment, lineup))
    samples = experiment.conversation_config.samples_per_task

    def make(index: int, task_id: str) -> Task:
        deal, sample = divmod(index, samples)
        return Task(
            index=index,
            task_id=task_id,
            seed=_task_seed(experiment, deal),
            agents=agents_of(deal),
            material=None if spec is None or settings is None else spec.material(settings, deal),
            group=None if samples == 1 else deal,
            sample=sample,
        )

    indexes = range(task_count(experiment))
    return Plan(indexes, name_of=lambda index: task_name(name, index), make=make, samples=samples)


def _task_seed(experiment: Experiment, deal: int) -> int:
    return stable_hash(experiment.seed, "task", deal)


def _everyone(experiment: Experiment) -> Callable[[int], tuple[Agent, ...]]:
    definitions = enumerate(experiment.agent_definitions)
    agents = tuple(
        _agent(definition, sampling_of(definition), definition.agent_id, i, i) for i, definition in definitions
    )
    return lambda _deal: agents


def _rotation(experiment: Experiment, lineup: Lineup, casting: _Casting) -> Callable[[int], tuple[Agent, ...]]:
    n = len(lineup.slots)
    samplings = {definition.agent_id: sampling_of(definition) for definition in experiment.agent_definitions}
    # Tasks are asked for in order, so the block of the last one is nearly always that of the next.
    block_of = lru_cache(maxsize=1)(lambda number: _block(experiment.seed, number, lineup))

    def agents_of(deal: int) -> tuple[Agent, ...]:
        number, row = divmod(deal, n)
        block = block_of(number)
        slots = tuple(block.slot.at(row, i) for i in range(n))
        agents = (
            _agent(
                definition,
                samplings[definition.agent_id],
                block.names[block.name.at(row, i)],
                block.seat.at(row, i),
                slots[i],
            )
            for i, definition in enumerate(casting(deal, slots))
        )
        return tuple(sorted(agents, key=lambda agent: agent.seat))

    return agents_of


def _block(seed: int, number: int, lineup: Lineup) -> _Block:
    n, names = len(lineup.slots), lineup.names
    # Names rotate over the blocks, so that all are used even if a conversation needs few.
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
    """0..n-1 in an order drawn from `key`. By hash, because library shuffles may change."""
    return tuple(sorted(range(n), key=lambda i: (stable_hash(*key, i), i)))


def _casting(experiment: Experiment, lineup: Lineup) -> _Casting:
    """Who fills the n slots of a task."""
    n, definitions = len(lineup.slots), experiment.agent_definitions
    if n == 0 or len(set(lineup.names)) < n:
        raise ConfigError(
            f"the line-up has {n} slots and {len(set(lineup.names))} names; it needs a slot, and a name for each"
        )
    seats, cast = lineup.seats, lineup.cast
    if cast is not None:
        by_id = {definition.agent_id: definition for definition in definitions}

        def cast_for(deal: int, slots: Sequence[int]) -> tuple[AgentDefinition, ...]:
            by_slot = cast(deal, _task_seed(experiment, deal))
            return tuple(by_id[by_slot[slot]] for slot in slots)

        return cast_for
    if seats is not None:
        fixed = tuple(definition for definition in definitions for _ in range(seats.get(definition.agent_id, 0)))
        if len(fixed) != n:
            counts = ", ".join(f"{agent_id}: {count}" for agent_id, count in seats.items())
            raise ConfigError(
                f"{'.'.join(lineup.key)}: the counts ({counts}) add up to {len(fixed)}; the line-up has {n} seats",
                key=lineup.key,
            )
        return lambda _deal, _slots: fixed
    share, rest = divmod(n, len(definitions))
    even = tuple(definition for definition in definitions for _ in range(share))
    return lambda deal, _slots: even + tuple(definitions[(deal * rest + i) % len(definitions)] for i in range(rest))


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
        reasoning_effort=definition.reasoning_effort,
        verbosity=definition.verbosity,
        thinking=definition.thinking,
    )


def _agent(definition: AgentDefinition, sampling: Sampling, agent_id: str, seat: int, slot: int) -> Agent:
    return Agent(
        agent_id=agent_id,
        definition=definition.agent_id,
        model=definition.model,
        seat=seat,
        slot=slot,
        sampling=sampling,
    )
