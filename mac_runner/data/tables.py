"""The flat tables of a run: those that every run has, and those of its environment.

A column names the place of its value in a transcript, so these declarations are all there is: rows, `_schema.json`, the
page of the tables and the check that nothing of a transcript is left out follow from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from typing import Final, NamedTuple, TypeAlias

from mac_runner.environments.reading import thoughts
from mac_runner.errors import ConfigError
from mac_runner.flat import NUMBER, Cells, FlatColumn, JsonColumns, RowMaker, cell, value_at
from mac_runner.measures import ResultsSpec
from mac_runner.results import AgentColumns, Export, export_of, objects, section
from mac_runner.rewards import AgentRewards, rewards_by_agent
from mac_runner.store import Run
from mac_runner.store.rows import DoneRow
from mac_runner.store.traces import Traces
from mac_runner.types import JsonObject, JsonValue, RecordedReply

SCHEMA_VERSION: Final = 1
"""Grows when a column of a table that every run has changes its type, its meaning or its name."""

LEFT_OUT: Final[Mapping[str, str]] = {
    "format": "the version of the file: rows are the same for each that can be read",
    "traces.sha256": "the digest of the rows of the table `traces`",
    "traces.turns": "how many rows that table has",
    "counts.turns_by_definition": "counted from the rows of the table `turns`",
}
"""What of a transcript is in no table, with the reason."""

Wanted = frozenset[str]
"""The names of columns."""


IndexCells: TypeAlias = Callable[[Sequence[DoneRow], JsonObject, Wanted], Mapping[str, Sequence[Cells]]]


class Ended:
    """One conversation that has ended: its index row, and its transcript, read when it is first needed.

    `environment` gives the environment that played it, where its own method says the rewards; else None.
    """

    def __init__(
        self,
        contents: Run,
        done: DoneRow,
        environment: Callable[[], object | None] = lambda: None,
        check_rewards: Callable[[], None] = lambda: None,
    ) -> None:
        self.contents = contents
        self.done = done
        self.environment = environment
        self._check_rewards = check_rewards

    @property
    def task_id(self) -> str:
        """Its id, which names its files."""
        return self.done.task_id

    @cached_property
    def row(self) -> JsonObject:
        """Its index row."""
        return self.done.whole()

    @cached_property
    def transcript(self) -> JsonObject:
        """All that is recorded of it. Raises RunDirectoryError naming the file where that is damaged."""
        return self.contents.acknowledged(self.row)

    @property
    def traces(self) -> Traces:
        """The tokens of its replies by turn, where `record_tokens` kept them; read from the disk each time.

        Raises RunDirectoryError naming the file where that is damaged, and ConfigError where pyarrow is not installed.
        """
        return self.contents.traces(self.transcript)

    @cached_property
    def worth(self) -> dict[str, AgentRewards]:
        """What it is worth to each agent. Raises ConfigError where a weight is that of no reward of the run."""
        self._check_rewards()
        return rewards_by_agent(self.environment(), self.transcript, self.contents.resolved)


class Training(NamedTuple):
    """What is particular to a table in the format of a trainer."""

    kind: str
    """The format of its files."""
    check: Callable[[], None]
    """Raises ConfigError where the run has not got what the format needs."""
    basis: Callable[[], str]
    """What its rows depend on besides their conversations and the experiment."""
    is_bare: bool = False
    """Whether it has no columns that distinguish runs."""


class FlatTable(NamedTuple):
    """A table: its columns, and the rows that it has of a conversation."""

    name: str
    meaning: str
    key: tuple[str, ...]
    columns: Mapping[str, FlatColumn]
    rows: Callable[[Ended, Wanted], Iterable[Mapping[str, Cells]]]
    """From a conversation and the names of columns, rows with at least these cells."""
    of_index: Wanted = frozenset()
    """The columns that need no transcript."""
    index_cells: IndexCells | None = None
    """From index rows, the experiment and names of such columns, the cells of each."""
    is_optional: bool = False
    """Whether it is left out unless it is asked for by name."""
    training: Training | None = None
    """Where it is in the format of a trainer."""


# Conversations.

_GROUP_COLUMNS: Final[Mapping[str, FlatColumn]] = {
    "group": FlatColumn(
        "integer", "the deal; empty unless `samples_per_task` plays it several times", source="task.group"
    ),
    "sample": FlatColumn("integer", "its number among the conversations of that deal, from 0", source="task.sample"),
}
_INDEX_COLUMNS: Final[Mapping[str, FlatColumn]] = {
    "conversation": FlatColumn("text", "the id of the conversation", source="task.task_id"),
    "index": FlatColumn("integer", "its number in the experiment, from 0", source="task.index"),
    **_GROUP_COLUMNS,
    "status": FlatColumn("text", "`finished` or `failed`", source="status"),
    "failure": FlatColumn("text", "why it failed", source="failure"),
    "experiment": FlatColumn("text", "the name of the experiment", source="experiment_name"),
    "environment": FlatColumn("text", "the kind of conversation", source="environment"),
    "turns": FlatColumn("integer", "how many replies it took", "replies", "counts.turns"),
    "corrections": FlatColumn("integer", "replies that were to be corrected", "replies", "counts.corrections"),
    "defaults": FlatColumn("integer", "default acts in place of an answer", "replies", "counts.defaults"),
    "unusable": FlatColumn("json", "unusable replies by agent definition and cause", source="counts.unusable"),
    "prompt_tokens": FlatColumn("integer", "tokens of all prompts", "tokens", "counts.tokens.prompt"),
    "cached_tokens": FlatColumn("integer", "those of them from a cache", "tokens", "counts.tokens.timing.cached"),
    "completion_tokens": FlatColumn("integer", "tokens of all replies", "tokens", "counts.tokens.completion"),
    "ended_at": FlatColumn("text", "when it ended, in UTC", source="timing.ended_at"),
    "open_s": FlatColumn("number", "how long it was open", "s", "timing.open_s"),
    "outcome": FlatColumn("json", "the whole outcome", source="outcome"),
    "metrics": FlatColumn("json", "what the metrics of the experiment made of it", source="metrics"),
    "metric_errors": FlatColumn("json", "by metric, why it could not be computed", source="metric_errors"),
    "shaped_rewards": FlatColumn("json", "the rewards of `rewards.shaped`, by name and agent", source="shaped_rewards"),
    "reward_errors": FlatColumn("json", "by shaped reward, why it could not be computed", source="reward_errors"),
    "attempts": FlatColumn("integer", "how often it was tried: 1, and each failed attempt before", "attempts"),
    "size_bytes": FlatColumn("integer", "the size of its transcript", "bytes", "row.size_bytes"),
    "sha256": FlatColumn("text", "the digest of its transcript", source="row.sha256"),
}
_TRANSCRIPT_COLUMNS: Final[Mapping[str, FlatColumn]] = {
    "seed": FlatColumn("integer", "the seed of the conversation", source="task.seed"),
    "material": FlatColumn("json", "what it is about, such as a question", source="task.material"),
    "final_state_sha256": FlatColumn("text", "the digest of its final state", source="final_state_sha256"),
    "timing": FlatColumn("json", "what else is known of its times", source="timing.*"),
    "record": FlatColumn("json", "what no other table has of the environment's record", source="record.*"),
}

_OF_EXPERIMENT: Final[Mapping[str, Sequence[str]]] = {
    "experiment": ("experiment_metadata", "experiment_name"),
    "environment": ("conversation_config", "environment"),
}
"""Where an experiment has what a transcript has of it and an index row has not."""


def _conversations(own: Mapping[str, FlatColumn], beside: Iterable[str]) -> FlatTable:
    columns = _joined("conversations", {**_INDEX_COLUMNS, **_TRANSCRIPT_COLUMNS}, own)
    read = {**columns, "attempts": FlatColumn("texts", "those that failed", source="row.failed_attempts[]")}
    held = [*(column.source for column in read.values()), *beside]
    maker = RowMaker("", read, beside=held)
    of_index = frozenset(name for name, column in columns.items() if not column.source.endswith(".*"))

    @cache
    def reader(wanted: Wanted) -> JsonColumns:
        sources = {name: read[name].source.removeprefix("task.").removeprefix("row.") for name in wanted}
        return JsonColumns({name: read[name]._replace(source=source) for name, source in sources.items()})

    def index_cells(rows: Sequence[DoneRow], experiment: JsonObject, wanted: Wanted) -> Mapping[str, Sequence[Cells]]:
        cells = reader(wanted.difference(_OF_EXPERIMENT)).cells(row.json for row in rows)
        if failed := cells.get("attempts"):
            cells["attempts"] = [attempts(each) for each in failed]
        return cells | {
            name: [cell("text", value_at(experiment, path), name)] * len(rows) for name, path in _OF_EXPERIMENT.items()
        }

    def rows(ended: Ended, wanted: Wanted) -> Iterator[Mapping[str, Cells]]:
        (row,) = maker.rows({**ended.transcript, "row": ended.row}, wanted)
        yield {**row, "attempts": attempts(row.get("attempts"))}

    def attempts(failed: Cells) -> int:
        return 1 + (len(failed) if isinstance(failed, list) else 0)

    return FlatTable(
        "conversations",
        "One row for each ended conversation.",
        ("conversation",),
        columns,
        rows,
        of_index.difference(_TRANSCRIPT_COLUMNS),
        index_cells,
    )


# Agents.

_AGENT: Final = "task.agents[]"
_AGENT_COLUMNS: Final[Mapping[str, FlatColumn]] = {
    "conversation": FlatColumn("text", "the conversation", source="task.task_id"),
    "agent": FlatColumn("text", "its name in the conversation", source=f"{_AGENT}.agent_id"),
    "seat": FlatColumn("integer", "where it sat, from 0", source=f"{_AGENT}.seat"),
    "slot": FlatColumn("integer", "the place of the line-up that it filled, from 0", source=f"{_AGENT}.slot"),
    "definition": FlatColumn("text", "its entry of `agent_definitions`", source=f"{_AGENT}.definition"),
    "model": FlatColumn("text", "its entry of `model_definitions`", source=f"{_AGENT}.model"),
    "sampling": FlatColumn("json", "how its replies were drawn", source=f"{_AGENT}.sampling"),
}
_RESULTS: Final = {
    "results": FlatColumn("json", "its part of each object of the outcome that has agents as keys", source="outcome"),
    "rewards": FlatColumn("json", "by name, what the outcome is worth to it; empty where the conversation failed"),
    "reward": FlatColumn("number", "what its rewards come to, as `rewards.total` weighs them"),
}


def _agents(own: Sequence[AgentColumns]) -> FlatTable:
    columns: Mapping[str, FlatColumn] = _AGENT_COLUMNS
    for part in own:
        columns = _joined("agents", columns, part.columns)
    columns = _joined("agents", columns, _RESULTS)
    maker = RowMaker(_AGENT, _AGENT_COLUMNS)
    joins = [
        RowMaker(part.where, {**part.columns, "agent": FlatColumn("text", "", source=f"{part.where}.{part.name}")})
        for part in own
    ]

    def rows(ended: Ended, wanted: Wanted) -> Iterator[Mapping[str, Cells]]:
        transcript = ended.transcript
        more: dict[Cells, dict[str, Cells]] = {}
        for join in joins:
            for row in join.rows(transcript):
                more.setdefault(row["agent"], {}).update(row)
        is_rewarded = not wanted.isdisjoint(("rewards", "reward"))
        rewards = ended.worth if is_rewarded else {}
        for row in maker.rows(transcript):
            outcome, agent = transcript.get("outcome"), str(row["agent"])
            results = _results_of(outcome, agent) if "results" in wanted else None
            found = rewards.get(agent)
            by_name: JsonObject | None = None if found is None else {**found.by_name}
            derived = {
                "results": cell("json", results, "results"),
                "rewards": cell("json", by_name, "rewards"),
                "reward": None if found is None else found.total,
            }
            yield {**more.get(row["agent"], {}), **row, **derived}

    return FlatTable("agents", "One row for each participant of a conversation.", _AGENT_KEY, columns, rows)


_AGENT_KEY: Final = ("conversation", "agent")


def _results_of(outcome: JsonValue, agent: str) -> JsonObject | None:
    """Of each object of an outcome that has the agent as a key, what it has of it."""
    parts = outcome.items() if isinstance(outcome, dict) else ()
    return {name: part[agent] for name, part in parts if isinstance(part, dict) and agent in part} or None


# Turns.

_TURN: Final = "turns[]"
TURN_COLUMNS: Final[Mapping[str, FlatColumn]] = {
    "conversation": FlatColumn("text", "the conversation", source="task.task_id"),
    **_GROUP_COLUMNS,
    "turn": FlatColumn("text", "its name: `round/agent/step/attempt`", source=f"{_TURN}.turn"),
    "number": FlatColumn("integer", "its place in the conversation, from 0", source=NUMBER),
    "round": FlatColumn("integer", "the round, from 0", source=f"{_TURN}.round"),
    "agent": FlatColumn("text", "who was asked", source=f"{_TURN}.agent"),
    "model": FlatColumn("text", "the entry of `model_definitions` that answered", source=f"{_TURN}.model"),
    "place": FlatColumn("integer", "its place in the round", source=f"{_TURN}.place"),
    "step": FlatColumn("integer", "how many tools were used before", source=f"{_TURN}.step"),
    "attempt": FlatColumn("integer", "how many corrections there were before", source=f"{_TURN}.attempt"),
    "text": FlatColumn("text", "the reply as it came", source=f"{_TURN}.reply.text"),
    "thought": FlatColumn(
        "text", "its thoughts: those in the text, and those the engine gave apart", source=f"{_TURN}.reply.thinking"
    ),
    "finish_reason": FlatColumn(
        "text",
        "`stop`, `length`, `overflow`, `unknown` or the engine's own word",
        source=f"{_TURN}.reply.finish_reason",
    ),
    "prompt_tokens": FlatColumn("integer", "tokens of the prompt", "tokens", f"{_TURN}.reply.tokens.prompt"),
    "cached_tokens": FlatColumn(
        "integer", "those of them from a cache", "tokens", f"{_TURN}.reply.tokens.timing.cached"
    ),
    "completion_tokens": FlatColumn("integer", "tokens of the reply", "tokens", f"{_TURN}.reply.tokens.completion"),
    "policy_start": FlatColumn(
        "integer",
        "the version of the weights that began it, where its engine says so",
        source=f"{_TURN}.reply.policy.0",
    ),
    "policy_end": FlatColumn("integer", "the version that ended it", source=f"{_TURN}.reply.policy.1"),
    "receipt": FlatColumn(
        "text", "`act`, `observation`, `correction`, `default` or `failure`", source=f"{_TURN}.receipt.kind"
    ),
    "detail": FlatColumn("text", "the act, the answer of a tool, or the reason", source=f"{_TURN}.receipt.detail"),
    "cause": FlatColumn("text", "why the reply could not be used", source=f"{_TURN}.receipt.cause"),
    "queue_s": FlatColumn("number", "how long it waited for a slot", "s", f"{_TURN}.timing.queue_s"),
    "generate_s": FlatColumn("number", "how long the engine took", "s", f"{_TURN}.timing.generate_s"),
    "faults": FlatColumn("texts", "the failed sendings before", source=f"{_TURN}.timing.faults[]"),
    "server": FlatColumn(
        "text", "the server that answered, where its backend says so", source=f"{_TURN}.timing.server"
    ),
    "lane": FlatColumn("text", "the lane of a fleet that answered", source=f"{_TURN}.timing.lane"),
    "gpu": FlatColumn("text", "the GPUs of that lane", source=f"{_TURN}.timing.gpu"),
}


def _turns() -> FlatTable:
    maker = RowMaker(_TURN, TURN_COLUMNS)

    def rows(ended: Ended, wanted: Wanted) -> Iterator[Mapping[str, Cells]]:
        is_thought_wanted = "thought" in wanted
        for row in maker.rows(ended.transcript, wanted | {"text", "thought"} if is_thought_wanted else wanted):
            yield {**row, "thought": thought_of(row["thought"], row["text"])} if is_thought_wanted else row

    return FlatTable("turns", "One row for each reply.", _TURN_KEY, TURN_COLUMNS, rows)


_TURN_KEY: Final = ("conversation", "turn")


def thought_of(apart: Cells, text: Cells) -> str | None:
    """The thoughts of a reply: those that the engine gave apart, and those in its text."""
    said = text if isinstance(text, str) else ""
    return thoughts(said, apart if isinstance(apart, str) else None).thought or None


# Events.

_EVENT: Final = "record.events[]"
_EVENT_COLUMNS: Final[Mapping[str, FlatColumn]] = {
    "conversation": FlatColumn("text", "the conversation", source="task.task_id"),
    "event": FlatColumn("integer", "its number in the conversation, from 0", source=NUMBER),
    "when": FlatColumn("text", "when it happened, in words", source=f"{_EVENT}.when"),
    "day": FlatColumn("integer", "the day, where the environment has days", "days", f"{_EVENT}.day"),
    "phase": FlatColumn("text", "the phase of the day", source=f"{_EVENT}.phase"),
    "kind": FlatColumn("text", "its kind, where the environment names kinds", source=f"{_EVENT}.kind"),
    "turn": FlatColumn("text", "the turn that made it; none where no single reply did", source=f"{_EVENT}.turn"),
    "is_public": FlatColumn("truth", "whether all learned of it"),
    "audience": FlatColumn("texts", "who learned of it; empty where all did", source=f"{_EVENT}.audience[]"),
    "text": FlatColumn("text", "what happened, in words", source=f"{_EVENT}.text"),
    "data": FlatColumn("json", "what happened, as data", source=f"{_EVENT}.data"),
    "more": FlatColumn("json", "what else the record has of it", source=f"{_EVENT}.*"),
}


def _events() -> FlatTable:
    # Of an event that all learned of, the audience is a word in place of a list.
    read = {name: column for name, column in _EVENT_COLUMNS.items() if name not in ("is_public", "audience")}
    maker = RowMaker(_EVENT, read, beside=[_EVENT_COLUMNS["audience"].source])

    def rows(ended: Ended, wanted: Wanted) -> Iterator[Mapping[str, Cells]]:
        transcript = ended.transcript
        chains = maker.chains(transcript)
        for row, chain in zip(maker.rows(transcript, wanted), chains, strict=True):
            audience = value_at(chain[-1], ("audience",))
            is_listed = isinstance(audience, list)
            learned = cell("texts", audience, "audience") if is_listed else None
            yield {**row, "is_public": not is_listed, "audience": learned}

    return FlatTable("events", "What happened, and who learned of it.", ("conversation", "event"), _EVENT_COLUMNS, rows)


# Tables that are left out unless they are asked for.

_NAMES: Final[Mapping[str, FlatColumn]] = {
    "conversation": FlatColumn("text", "the conversation", source="task.task_id"),
    "turn": FlatColumn("text", "the turn", source=f"{_TURN}.turn"),
}
OPTIONAL: Final[Mapping[str, Export]] = {
    "digests": export_of(
        _TURN,
        {**_NAMES, "prompt_sha256": FlatColumn("text", "the digest of its prompt", source=f"{_TURN}.prompt_sha256")},
        key=_TURN_KEY,
        meaning="The digest of each prompt, which does not compress.",
        is_optional=True,
    ),
}

_TRACE_COLUMNS: Final[Mapping[str, FlatColumn]] = {
    **_NAMES,
    "prompt_ids": FlatColumn("integers", "the tokens of the prompt"),
    "completion_ids": FlatColumn("integers", "the tokens of the reply"),
    "logprobs": FlatColumn("numbers", "the natural logarithm of how likely each was"),
}


def _traces() -> FlatTable:
    def rows(ended: Ended, _wanted: Wanted) -> Iterator[Mapping[str, Cells]]:
        traces = ended.traces
        for turn in objects(ended.transcript.get("turns")):
            row: dict[str, Cells] = {"conversation": ended.task_id, "turn": str(turn["turn"])}
            if (trace := traces.get(str(turn["turn"]))) is not None:
                row |= {
                    "prompt_ids": [*trace.prompt_ids],
                    "completion_ids": [*trace.completion_ids],
                    "logprobs": [*trace.logprobs],
                }
            yield row

    meaning = "The tokens of each reply; empty unless `record_tokens` keeps them."
    return FlatTable("traces", meaning, _TURN_KEY, _TRACE_COLUMNS, rows, is_optional=True)


# All of them.


def flat_table(name: str, export: Export) -> FlatTable:
    """The table of an environment's declaration."""
    columns, rows, meaning, key, is_optional = export
    return FlatTable(
        name,
        meaning,
        key,
        columns,
        lambda ended, _wanted: rows(ended.transcript, ended.contents.resolved),
        is_optional=is_optional,
    )


def tables_of(results: ResultsSpec | None) -> Mapping[str, FlatTable]:
    """The tables of a run, by name, with those of its environment. Raises ConfigError for names that collide."""
    exports = {} if results is None else results.exports
    beside = [column.source for export in exports.values() for column in export.columns.values()]
    agents = _agents(() if results is None else results.agent_columns)
    beside += [f"{_EVENT}.text", *(column.source for column in agents.columns.values())]
    conversations = _conversations({} if results is None else results.conversation_columns, beside)
    tables = {table.name: table for table in (conversations, agents, _turns(), _events(), _traces())}
    for name, export in {**exports, **OPTIONAL}.items():
        if name in tables:
            raise ConfigError(f"table {name!r} of the environment has the name of one that every run has; rename it")
        tables[name] = flat_table(name, export)
    return tables


def _joined(table: str, columns: Mapping[str, FlatColumn], more: Mapping[str, FlatColumn]) -> Mapping[str, FlatColumn]:
    if taken := columns.keys() & more.keys():
        raise ConfigError(
            f"table {table!r}: the environment has a column {min(taken)!r}, which is there already; rename it"
        )
    return {**columns, **more}


# The replies of conversations that have not ended: what the journal has of them.


OPEN_COLUMN: Final = FlatColumn("truth", "whether the conversation has not ended")


def open_rows(contents: Run) -> Iterator[Mapping[str, Cells]]:
    """A row for each reply of an open conversation, in the order of the replies.

    What an environment made of a reply is not in the journal, nor is the model that was asked: those cells are empty.
    """
    group_of = _groups(contents)
    for task_id, recorded in contents.open_replies().items():
        group = group_of(task_id)
        for number, reply in enumerate(recorded):
            yield {**dict.fromkeys(TURN_COLUMNS), **_row(reply), **group, "conversation": task_id, "number": number}


def _groups(contents: Run) -> Callable[[str], dict[str, Cells]]:
    """The deal of a planned conversation and its place among those of the deal; nothing where each is played once."""
    if contents.fork is not None:
        tasks = {task.task_id: task for task in contents.fork.tasks}
        return lambda task_id: (
            {"group": task.group, "sample": task.sample} if (task := tasks.get(task_id)) is not None else {}
        )
    samples = section(contents.resolved, "conversation_config").get("samples_per_task", 1)
    if not isinstance(samples, int) or samples == 1:
        return lambda _task_id: {}
    planned = contents.planned()

    def group_of(task_id: str) -> dict[str, Cells]:
        if (index := planned.get(task_id)) is None:
            return {}
        group, sample = divmod(index, samples)
        return {"group": group, "sample": sample}

    return group_of


def _row(recorded: RecordedReply) -> dict[str, Cells]:
    reply = recorded.reply
    # The name of an agent may hold a slash.
    number, _, rest = recorded.turn_key.partition("/")
    agent, step, attempt = rest.rsplit("/", 2)
    return {
        "turn": recorded.turn_key,
        "round": int(number),
        "agent": agent,
        "step": int(step),
        "attempt": int(attempt),
        "text": reply.text,
        "thought": thought_of(reply.thinking, reply.text),
        "finish_reason": str(reply.finish_reason),
        "prompt_tokens": reply.tokens.prompt,
        "cached_tokens": reply.tokens.cached,
        "completion_tokens": reply.tokens.completion,
        "policy_start": None if reply.policy is None else reply.policy.start,
        "policy_end": None if reply.policy is None else reply.policy.end,
        "queue_s": reply.timing.queue_s,
        "generate_s": reply.timing.generate_s,
        "faults": list(reply.timing.faults),
        "server": reply.timing.server,
        "lane": reply.timing.lane,
        "gpu": reply.timing.gpu,
    }


# What the tables hold, for programs: `_schema.json`, and the metadata of Parquet.


_ARROW: Final = {
    "text": "string",
    "integer": "int64",
    "number": "double",
    "truth": "bool",
    "texts": "list<string>",
    "integers": "list<int64>",
    "numbers": "list<double>",
    "messages": "list<role, content>",
    "json": "string (JSON)",
}


def schema_json(tables: Mapping[str, FlatTable], prefix: Mapping[str, FlatColumn]) -> JsonObject:
    """The contents of `_schema.json`."""
    return {
        "version": SCHEMA_VERSION,
        "tables": {name: _table_json(table, prefix) for name, table in tables.items()},
        "left_out": dict(LEFT_OUT),
    }


def _table_json(table: FlatTable, prefix: Mapping[str, FlatColumn]) -> JsonObject:
    columns: JsonObject = {
        name: {
            "type": _ARROW[column.kind],
            **({"unit": column.unit} if column.unit else {}),
            "meaning": column.meaning,
            **({"source": column.source} if column.source else {}),
        }
        for name, column in {**prefix, **table.columns}.items()
    }
    return {"meaning": table.meaning, "key": [*_key_of(table, prefix)], "columns": columns}


def _key_of(table: FlatTable, columns: Iterable[str]) -> tuple[str, ...]:
    """The columns that distinguish rows, where the table has them as well."""
    of_runs = {"run", "combination"}.intersection(columns) - table.columns.keys()
    return (*sorted(of_runs, reverse=True), *table.key)


def metadata_of(table: FlatTable, columns: Iterable[str] = ()) -> Mapping[str, str]:
    """What a file of the table says of itself. `columns` are all of the file, those that distinguish runs too."""
    return {
        "mac_runner.table": table.name,
        "mac_runner.meaning": table.meaning,
        "mac_runner.key": ",".join(_key_of(table, columns)),
        "mac_runner.schema_version": str(SCHEMA_VERSION),
    }
