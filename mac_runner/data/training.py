"""Tables in the formats that trainers read, one row for each reply, pair or conversation (`mac-run export --format`).

Each format names the release whose own classes read it back in `tests/trainers`. Formats of trainers change from month
to month; the columns of `rollouts` are the stable contract.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from mac_runner.data.episodes import EPISODE_COLUMNS, VERIFIERS_VERSION, episode_rows
from mac_runner.data.files import JSONL, PARQUET
from mac_runner.data.pairs import PAIR_COLUMNS, Pairs
from mac_runner.data.rollouts import ROLLOUT_COLUMNS, Rollout, rollout_row
from mac_runner.data.samples import MESSAGES, TrainingRun
from mac_runner.data.tables import Ended, FlatTable, Training
from mac_runner.errors import ConfigError
from mac_runner.flat import Cells, FlatColumn, json_text
from mac_runner.problems import suggestion
from mac_runner.types import JsonObject, JsonValue

ROLLOUTS: Final = "rollouts"
DPO: Final = "trl-dpo"
_COMMON: Final[Mapping[str, FlatColumn]] = {
    "conversation": FlatColumn("text", "the conversation"),
    "turn": FlatColumn("text", "the turn"),
    "agent": FlatColumn("text", "who was asked"),
    "reward": FlatColumn("number", "what the outcome is worth to the agent"),
    "weight": FlatColumn("number", "1 / trainable turns of the seat"),
}
_PROMPT: Final = MESSAGES._replace(meaning="what the engine was sent")
_REPLY: Final = MESSAGES._replace(meaning="the reply, as one message")


# The rows of each format.


def _rollout_rows(run: TrainingRun, ended: Ended) -> Iterator[Mapping[str, Cells]]:
    return map(rollout_row, run.rollouts(ended, ended.traces()))


def _common(rollout: Rollout) -> dict[str, Cells]:
    return {name: getattr(rollout, name) for name in _COMMON}


def _sft_rows(run: TrainingRun, ended: Ended) -> Iterator[Mapping[str, Cells]]:
    for each in run.samples(ended):
        if each.is_usable:
            yield {"prompt": each.prompt, "completion": [each.reply], **_common(each.rollout)}


def _kto_rows(run: TrainingRun, ended: Ended) -> Iterator[Mapping[str, Cells]]:
    for each in run.samples(ended):
        if each.rollout.trainable and each.rollout.reward is not None:
            row = {"prompt": each.prompt, "completion": [each.reply], **_common(each.rollout)}
            yield {**row, "label": each.is_usable and each.rollout.reward > 0}


def _verl_rows(run: TrainingRun, ended: Ended) -> Iterator[Mapping[str, Cells]]:
    for each in run.samples(ended):
        if each.is_usable and not any(message["role"] == "assistant" for message in each.prompt):
            yield {"messages": [*each.prompt, each.reply], **_common(each.rollout)}


def _chat_rows(run: TrainingRun, ended: Ended) -> Iterator[Mapping[str, Cells]]:
    for each in run.samples(ended):
        if each.is_usable:
            # Without a weight of 0 the replies of a prompt are learned as well.
            prompt: list[JsonValue] = [
                {**message, **({"weight": 0} if message["role"] == "assistant" else {})} for message in each.prompt
            ]
            yield {"messages": json_text([*prompt, {**each.reply}])}


# All of them.

_TURN: Final = ("conversation", "turn")
RowsOf = Callable[[Ended], Iterable[Mapping[str, Cells]]]


class _Format(NamedTuple):
    """A format: what a row is, the columns, the kind of file, and its rows."""

    meaning: str
    columns: Mapping[str, FlatColumn]
    kind: str
    rows_of: Callable[[TrainingRun], RowsOf]
    key: tuple[str, ...] = _TURN
    is_bare: bool = False
    """Whether a reader refuses, or ignores, further columns."""
    has_tokens: bool = False
    """Whether it has the tokens of replies that have them."""


def _each(rows: Callable[[TrainingRun, Ended], Iterable[Mapping[str, Cells]]]) -> Callable[[TrainingRun], RowsOf]:
    return lambda run: partial(rows, run)


_FORMATS: Final[Mapping[str, _Format]] = {
    ROLLOUTS: _Format(
        "One row for each reply, with its tokens.", ROLLOUT_COLUMNS, PARQUET, _each(_rollout_rows), has_tokens=True
    ),
    "verifiers": _Format(
        f"One `Episode` of verifiers {VERIFIERS_VERSION} for each conversation.",
        EPISODE_COLUMNS,
        JSONL,
        _each(episode_rows),
        ("id",),
        is_bare=True,
        has_tokens=True,
    ),
    "trl-sft": _Format(
        "The usable replies, for `SFTTrainer` of trl 1.16.",
        {"prompt": _PROMPT, "completion": _REPLY, **_COMMON},
        PARQUET,
        _each(_sft_rows),
    ),
    "trl-kto": _Format(
        "All replies, for `KTOTrainer` of trl 1.16.",
        {
            "prompt": _PROMPT,
            "completion": _REPLY,
            "label": FlatColumn("truth", "whether the reply was usable and its reward is above 0"),
            **_COMMON,
        },
        PARQUET,
        _each(_kto_rows),
    ),
    DPO: _Format(
        "Of each turn that forks leave, the best usable and the worst reply, for `DPOTrainer` of trl 1.16.",
        PAIR_COLUMNS,
        PARQUET,
        lambda run: Pairs(run).rows,
    ),
    "verl-sft": _Format(
        "The usable replies to prompts without replies, for `MultiTurnSFTDataset` of verl 0.9.",
        {"messages": MESSAGES._replace(meaning="the prompt and the reply"), **_COMMON},
        PARQUET,
        _each(_verl_rows),
    ),
    "openai-chat": _Format(
        "The usable replies as chat messages, for fine-tuning services.",
        {"messages": FlatColumn("json", "the prompt and the reply")},
        JSONL,
        _each(_chat_rows),
        (),
        is_bare=True,
    ),
}


FORMATS: Final = tuple(_FORMATS)
"""The formats that trainers read."""
WITH_TOKENS: Final = tuple(name for name, found in _FORMATS.items() if found.has_tokens)
"""Those that read token traces where a run has them."""


def training_tables(run: TrainingRun) -> dict[str, FlatTable]:
    """A table for each format. Each is left out unless it is named."""
    return {name: _table(run, name, found) for name, found in _FORMATS.items()}


def _table(run: TrainingRun, name: str, found: _Format) -> FlatTable:
    rows = found.rows_of(run)
    return FlatTable(
        name,
        found.meaning,
        found.key,
        found.columns,
        lambda ended, _wanted: rows(ended),
        is_optional=True,
        training=Training(found.kind, partial(check_format, run, name), partial(_basis, run, name), found.is_bare),
    )


def check_format(run: TrainingRun, name: str) -> None:
    """Raise ConfigError for names of `only` that the run has not got, and for a run without what the format needs."""
    contents = run.contents
    models = _entries(contents.resolved, "model_definitions")
    agents = _entries(contents.resolved, "agent_definitions")
    for one in run.only:
        if one not in models and one not in agents:
            raise ConfigError(
                f"--only: {contents.layout.directory} has no model and no agent definition {one!r}"
                f"{suggestion(one, [*models, *agents])}"
            )
    if name == ROLLOUTS:
        # A definition is asked for by its model; without names any model with tokens will do.
        asked = {agents[one].get("model") if one in agents else one for one in run.only} or models.keys()
        silent = sorted(str(one) for one in asked if one in models and not models[str(one)].get("record_tokens"))
        if silent and (run.only or len(silent) == len(asked)):
            raise ConfigError(
                f"--format {name}: {contents.layout.directory} has no tokens of {', '.join(silent)}: a run records "
                f"them with model_definitions.{silent[0]}.record_tokens: true; the other formats need none"
            )
    if name == DPO and contents.fork is None:
        raise ConfigError(
            f"--format {name}: {contents.layout.directory} is not a fork: a pair is two replies to the same prompt, "
            "which mac-run fork plays"
        )


def _entries(experiment: JsonObject, section: str) -> dict[str, JsonObject]:
    """The entries of a section by name: a mapping, or a list of objects with an `agent_id`."""
    found: Any = experiment.get(section) or {}
    return dict(found) if isinstance(found, dict) else {each["agent_id"]: each for each in found}


def _basis(run: TrainingRun, name: str) -> str:
    """The names of `only`; for pairs also all conversations, because one of them has the pair of others."""
    rows = [[row["task_id"], row["sha256"]] for row in run.contents.rows_in_task_order()] if name == DPO else []
    return json.dumps([sorted(run.only), rows])
