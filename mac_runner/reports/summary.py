"""The summary of a run: what `summary.json` holds.

Pure, and read from the index alone, never from a scheduler: the summary of a run that was killed and resumed ten
times is that of a run that was not, timing aside. Rows are taken one by one in any order; memory follows the number
of roles, models, reasons, agents and categories, not of conversations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from mac_runner.intervals import one_cluster
from mac_runner.registry import results_specs
from mac_runner.reports.failures import FailureCounter, by_model
from mac_runner.reports.metrics import MetricCounter
from mac_runner.reports.outcomes import UNNAMED, OutcomeResults, outcomes_report
from mac_runner.results import Results, number, objects, section
from mac_runner.store.rows import CountedRows, IndexRow
from mac_runner.types import JsonObject, JsonValue, TokenCount

SUMMARY_FORMAT: Final = 6
STRETCHES_MAX: Final = 8
"""How many stretches of indexes are named of each part."""


def summarise(
    totals: Totals,
    *,
    experiment_name: str,
    planned: int,
    accounting: JsonObject,
    decoding: Mapping[str, JsonObject] | None = None,
    speakers: Mapping[str, str] | None = None,
) -> JsonObject:
    """The summary of the rows of an index, which were added up.

    `accounting` holds what no row knows: `wall_s`, of that `played_s`, and `sessions` over all sessions, from how many
    `merged_runs` they come, what each of `parts` ended, what was ended `untimed` and so counts in no rate, for each of
    `models` its `capacity`, `played_s`, `busy_slot_s`, `available_slot_s` and `requests`, and the `damaged_lines` of a
    journal. `decoding` has the `constrained_decoding` and `reply_form` of each model, where they are recorded.
    `speakers` has the model of each agent definition.
    A rate that is not known is null.
    """
    played_s = number(accounting.get("played_s"))
    untimed = accounting.get("untimed")
    untimed = untimed if isinstance(untimed, dict) else {}
    timed_conversations = totals.finished + totals.failed - (number(untimed.get("conversations")) or 0)
    summary: JsonObject = {
        "format": SUMMARY_FORMAT,
        "experiment_name": experiment_name,
        "conversations": {"planned": planned, "finished": totals.finished, "failed": totals.failed},
        "turns": totals.counted.turns,
        "corrections": totals.counted.corrections,
        "defaults": totals.counted.defaults,
        "unusable": {name: dict(sorted(causes.items())) for name, causes in sorted(totals.counted.unusable.items())},
        "tokens": _tokens(totals, accounting.get("models")),
        "sessions": accounting.get("sessions"),
        "merged_runs": accounting.get("merged_runs"),
        **times_of(accounting),
        "turns_per_s": _ratio(_timed_turns(accounting, untimed), played_s),
        "conversations_per_s": _ratio(timed_conversations, played_s),
        "models": models_of(accounting.get("models"), decoding),
        "failures": totals.failures.report(),
        "parts": _parts(accounting),
    }
    if "damaged_lines" in accounting:
        summary["damaged_lines"] = accounting["damaged_lines"]
    if unusable := by_model(section(summary, "unusable"), speakers or {}):
        summary["unusable_by_model"] = unusable
    if totals.counted.taken:
        summary["turns_by_definition"] = {name: dict(found) for name, found in sorted(totals.counted.taken.items())}
        summary["turns_by_model"] = by_model(section(summary, "turns_by_definition"), speakers or {})
    if totals.retried.conversations:
        summary["retried"] = totals.retried.report()
    for kind in results_specs():
        if kind in totals.results:
            summary |= totals.results[kind].report()
    return summary | outcomes_report(totals.outcomes) | totals.metrics.report()


@dataclass(slots=True)
class _Retried:
    """Conversations that had failed and were tried again, which are a choice among all of them."""

    conversations: int = 0
    finished: int = 0
    failed_attempts: int = 0

    def add(self, row: IndexRow) -> None:
        if row.failed_attempts:
            self.conversations += 1
            self.finished += row.reason is None
            self.failed_attempts += len(row.failed_attempts)

    def report(self) -> JsonObject:
        return {
            "conversations": self.conversations,
            "finished": self.finished,
            "failed": self.conversations - self.finished,
            "failed_attempts": self.failed_attempts,
        }


@dataclass(slots=True)
class Totals:
    """Everything that is added up over the rows of an index."""

    finished: int = 0
    failed: int = 0
    uncounted_turns: int = 0
    counted: CountedRows = field(default_factory=CountedRows)
    tokens: TokenCount = field(default_factory=TokenCount)
    failures: FailureCounter = field(default_factory=FailureCounter)
    retried: _Retried = field(default_factory=_Retried)
    results: dict[str, Results] = field(default_factory=dict)
    outcomes: dict[str, OutcomeResults] = field(default_factory=dict)
    metrics: MetricCounter = field(default_factory=MetricCounter)

    def add(self, row: IndexRow) -> None:
        """Add a row. Rows of one cluster come together."""
        if row.reason is None:
            self.finished += 1
            with one_cluster(row.cluster):
                self._add_outcome(row)
                self.metrics.add(row)
        else:
            self.failed += 1
        self.uncounted_turns += row.uncounted_turns
        self.counted.add(row.counts)
        self.tokens += row.tokens
        self.failures.add(row)
        self.retried.add(row)

    def _add_outcome(self, row: IndexRow) -> None:
        if not isinstance(row.outcome, dict):
            return
        kind = str(row.outcome.get("kind", UNNAMED))
        if (spec := results_specs().get(kind)) is not None:
            if kind not in self.results:
                self.results[kind] = spec.counter()
            self.results[kind].add(row.outcome, f"the index row of {row.task_id!r}, outcome")
        else:
            self.outcomes.setdefault(kind, OutcomeResults()).add(row.outcome, row.agents)


def _tokens(totals: Totals, models: JsonValue) -> JsonObject:
    """What the engines counted; where one does not count, its name and the turns of conversations without a count."""
    tokens: JsonObject = {
        "prompt": totals.tokens.prompt,
        "completion": totals.tokens.completion,
        "timing": {"cached": totals.tokens.cached},
    }
    if totals.uncounted_turns:
        tokens["uncounted_turns"] = totals.uncounted_turns
    accounts = models if isinstance(models, dict) else {}
    if silent := [name for name, account in sorted(accounts.items()) if is_silent(account)]:
        tokens["uncounted_models"] = [*silent]
    return tokens


def is_silent(account: JsonValue) -> bool:
    """Whether an engine has answered and never said how many tokens it took."""
    if not isinstance(account, dict) or not account.get("requests"):
        return False
    tokens = account.get("tokens")
    return isinstance(tokens, dict) and tokens.get("prompt") == 0


def turns_answered(models: JsonValue) -> int | None:
    """Turns that the engines answered, of conversations that have not ended too; None without any account."""
    if not isinstance(models, dict) or not models:
        return None
    return sum(int(number(account.get("requests")) or 0) for account in models.values() if isinstance(account, dict))


def _timed_turns(accounting: JsonObject, untimed: JsonObject) -> float | None:
    answered = turns_answered(accounting.get("models"))
    return None if answered is None else answered - (number(untimed.get("requests")) or 0)


def times_of(accounting: JsonObject) -> JsonObject:
    """How long all sessions were at work, and how much of that was play: the rest they waited for engines to start."""
    times = {key: number(accounting.get(key)) for key in ("wall_s", "played_s")}
    return {key: None if time is None else round(time, 3) for key, time in times.items()}


def models_of(models: JsonValue, decoding: Mapping[str, JsonObject] | None = None) -> JsonObject:
    """What each engine did: its capacity, the slots of it that were in effect on the mean, what part of their time was
    used, and the requests it answered; then what its replies were held to, and their form, where that is known.

    A combination of a grid has the latter alone: its engines are the grid's.
    """
    accounts = models if isinstance(models, dict) else {}
    found = {name: _model(account) for name, account in accounts.items() if isinstance(account, dict)}
    for name, settings in (decoding or {}).items():
        found[name] = {**found.get(name, {}), **settings}
    return dict(sorted(found.items()))


def slots_mean(account: JsonObject) -> float | None:
    """The slots of an engine that were in effect, on the mean over the time of a session."""
    return _ratio(number(account.get("available_slot_s")), number(account.get("played_s")))


def slots_used(account: JsonObject) -> float | None:
    """The part of the time of all slots of an engine in which they had a request.

    Workers side by side and servers that come and go change the slots, so requests in flight over slots would not be a
    part of anything.
    """
    return _ratio(number(account.get("busy_slot_s")), number(account.get("available_slot_s")))


def _model(account: JsonObject) -> JsonObject:
    return {
        "capacity": account.get("capacity"),
        "slots_mean": slots_mean(account),
        "slot_utilisation": slots_used(account),
        "requests": account.get("requests"),
    }


def _parts(accounting: JsonObject) -> list[JsonValue]:
    """The sessions that ended conversations: when each began, and what it ended."""
    parts = objects(accounting.get("parts"))
    return [{**part, "indexes": ", ".join(_stretches(part.get("indexes")))} for part in parts]


def _stretches(indexes: JsonValue) -> Iterator[str]:
    """`0-31`, `40`, `41-99 by 2`, and how many more there are."""
    stretches = indexes if isinstance(indexes, list) else []
    for stretch in stretches[:STRETCHES_MAX]:
        if isinstance(stretch, list):
            first, last, step = stretch
            yield f"{first}" if first == last else f"{first}-{last}" if step == 1 else f"{first}-{last} by {step}"
    if (hidden := len(stretches) - STRETCHES_MAX) > 0:
        yield f"and {hidden} more stretches"


def _ratio(part: float | None, whole: float | None) -> float | None:
    return round(part / whole, 4) if part is not None and whole else None
