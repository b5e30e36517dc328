"""The summary of a run: what `summary.json` holds.

Pure, and read from the index alone, never from a scheduler: the summary of a run that was killed and resumed ten
times is that of a run that was not, timing aside. Rows are taken one by one in any order; memory follows the number
of roles, models, reasons, agents and categories, not of conversations.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from mac_runner.reports.discussions import DiscussionCounter
from mac_runner.reports.failures import FailureCounter
from mac_runner.reports.parts import parts_of
from mac_runner.reports.rows import GameResult, IndexRow, parse_row
from mac_runner.reports.wins import WinCounter
from mac_runner.types import JsonObject, JsonValue, TokenCount


def summarise(*, experiment_name: str, rows: Iterable[JsonObject], planned: int, accounting: JsonObject) -> JsonObject:
    """Sum up the rows of an index.

    `accounting` holds what no row knows: `wall_s`, of that `played_s`, and `sessions` over all sessions, from how many
    `merged_runs` they come, what each of `parts` ended, what was ended `untimed` and so is no part of a rate, what was
    `repeated` in vain, and for each of `models` its `capacity`, `played_s`, `busy_slot_s`, `available_slot_s` and
    `requests`. A rate that cannot be told is null.
    """
    totals = _Totals()
    for row in rows:
        totals.add(parse_row(row))
    played_s = _number(accounting, "played_s")
    untimed = accounting.get("untimed")
    untimed = untimed if isinstance(untimed, dict) else {}
    timed_turns = totals.turns - (_number(untimed, "turns") or 0)
    timed_conversations = totals.finished + totals.failed - (_number(untimed, "conversations") or 0)
    summary: JsonObject = {
        "format": SUMMARY_FORMAT,
        "experiment_name": experiment_name,
        "conversations": {"planned": planned, "finished": totals.finished, "failed": totals.failed},
        "turns": totals.turns,
        "corrections": totals.corrections,
        "defaults": totals.defaults,
        "unusable": {name: dict(sorted(causes.items())) for name, causes in sorted(totals.unusable.items())},
        "tokens": _tokens(totals, accounting.get("models")),
        "sessions": accounting.get("sessions"),
        "merged_runs": accounting.get("merged_runs"),
        **times_of(accounting),
        "turns_per_s": _ratio(timed_turns, played_s),
        "conversations_per_s": _ratio(timed_conversations, played_s),
        "models": models_of(accounting.get("models")),
        "failures": totals.failures.report(),
        "parts": parts_of(accounting),
    }
    if totals.retried.conversations:
        summary["retried"] = totals.retried.report()
    if "repeated" in accounting:
        summary["repeated"] = accounting["repeated"]
    if totals.games.n:
        summary["games"] = totals.games.report()
        summary["wins"] = totals.wins.report()
    if totals.discussions.n:
        summary["discussions"] = totals.discussions.report()
    return summary


SUMMARY_FORMAT = 2
"""One of format 1 has no `format`; it has `cached` outside `timing`, and versions differ in what it has at all."""


@dataclass(slots=True)
class _Games:
    """How the games ended."""

    n: int = 0
    draws: int = 0
    capped: int = 0
    days: int = 0
    days_max: int = 0

    def add(self, game: GameResult) -> None:
        self.n += 1
        self.draws += game.ending == "draw"
        self.capped += game.ending == "capped"
        self.days += game.days
        self.days_max = max(self.days_max, game.days)

    def report(self) -> JsonObject:
        return {
            "n": self.n,
            "won": self.n - self.draws - self.capped,
            "draws": self.draws,
            "capped": self.capped,
            "days_mean": _ratio(self.days, self.n),
            "days_max": self.days_max,
        }


@dataclass(slots=True)
class _Retried:
    """Conversations that had failed and were tried again, which are a choice among all of them."""

    conversations: int = 0
    finished: int = 0
    failed_attempts: int = 0

    def add(self, row: IndexRow) -> None:
        if row.failed_attempts:
            self.conversations += 1
            self.finished += row.failure is None
            self.failed_attempts += row.failed_attempts

    def report(self) -> JsonObject:
        return {
            "conversations": self.conversations,
            "finished": self.finished,
            "failed": self.conversations - self.finished,
            "failed_attempts": self.failed_attempts,
        }


@dataclass(slots=True)
class _Totals:
    """Everything that is added up over the rows."""

    finished: int = 0
    failed: int = 0
    turns: int = 0
    uncounted_turns: int = 0
    corrections: int = 0
    defaults: int = 0
    unusable: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    tokens: TokenCount = field(default_factory=TokenCount)
    games: _Games = field(default_factory=_Games)
    wins: WinCounter = field(default_factory=WinCounter)
    failures: FailureCounter = field(default_factory=FailureCounter)
    retried: _Retried = field(default_factory=_Retried)
    discussions: DiscussionCounter = field(default_factory=DiscussionCounter)

    def add(self, row: IndexRow) -> None:
        if row.failure is None:
            self.finished += 1
        else:
            self.failed += 1
        self.turns += row.turns
        self.uncounted_turns += row.uncounted_turns
        self.corrections += row.corrections
        self.defaults += row.defaults
        for name, causes in row.unusable.items():
            self.unusable[name].update(causes)
        self.tokens += row.tokens
        self.failures.add(row)
        self.retried.add(row)
        if row.game is not None:
            self.games.add(row.game)
            self.wins.add(row.game)
        if row.discussion is not None:
            self.discussions.add(row.discussion)


def _tokens(totals: _Totals, models: JsonValue) -> JsonObject:
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


def times_of(accounting: JsonObject) -> JsonObject:
    """How long all sessions were at work, and how much of that was play: the rest they waited for engines to start."""
    times = {key: _number(accounting, key) for key in ("wall_s", "played_s")}
    return {key: None if time is None else round(time, 3) for key, time in times.items()}


def models_of(models: JsonValue) -> JsonObject:
    """What each engine did: its capacity, the slots of it that were in effect on the mean, what part of their time was
    used, and the requests it answered.
    """
    if not isinstance(models, dict):
        return {}
    return {name: _model(account) for name, account in sorted(models.items()) if isinstance(account, dict)}


def _model(account: JsonObject) -> JsonObject:
    available_slot_s = _number(account, "available_slot_s")
    return {
        "capacity": account.get("capacity"),
        "slots_mean": _ratio(available_slot_s, _number(account, "played_s")),
        "slot_utilisation": _ratio(_number(account, "busy_slot_s"), available_slot_s),
        "requests": account.get("requests"),
    }


def _number(source: JsonObject, key: str) -> float | None:
    value = source.get(key)
    return float(value) if isinstance(value, int | float) else None


def _ratio(part: float | None, whole: float | None) -> float | None:
    return round(part / whole, 4) if part is not None and whole else None
