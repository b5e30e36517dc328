"""Frames: what the displays show, a frozen picture of the run at one moment.

`read_progress` takes a `Reading` off a running scheduler. `Meter` adds the rates and the time left, which need earlier
readings, and makes it a `StatusFrame`. Displays see only frames, so their output is tested without a run.

The results so far, as the live view shows them: `winner town 41%, mafia 55%` of the conversations that finished.

They are counted from outcomes in microseconds. The summary counts everything, with intervals, when the run is over.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

from mac_runner.bottleneck import Usage, bottleneck, time_left_s
from mac_runner.errors import RunDirectoryError
from mac_runner.fleet.lane import LaneStatus
from mac_runner.printable import printable
from mac_runner.results import Columns, Value
from mac_runner.scheduler import Progress, WaitingTurn
from mac_runner.scheduler.policies import PolicyWindow
from mac_runner.types import JsonObject, TokenCount

STATUS_ROWS_MAX: Final = 60
"""Waiting turns that are listed per pool, on the tallest terminal."""
STATUS_RATE_WINDOW_S: Final = 30.0
"""The window over which rates are taken."""
STATUS_LIMIT_WINDOW_S: Final = 10.0
"""The window over which it is judged what limits the run."""
STATUS_RATE_SAMPLES_MAX: Final = 60
"""Samples kept of a window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSlots:
    """One model's slots."""

    name: str
    in_flight: int
    slots: int
    """The slots in effect."""
    ready: int = 0
    """Turns that wait for a slot."""
    utilisation: float | None = None
    """The part of the slot time used since the start."""
    unanswered_s: float | None = None
    """How long an engine under suspicion has answered no request; None for one that works."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRow:
    """One waiting turn."""

    task_id: str
    round: int
    agent: str
    model: str
    note: str = ""
    """Why it waits, such as `after Ann` or `retry 2`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The totals and pools of a run at one moment.

    `finished`, `failed` and `written` count conversations of all sessions; `turns`, `corrections`, `defaults`, `tokens`
    and `results` are this session's.
    """

    experiment_name: str
    profile: str
    elapsed_s: float
    planned: int
    finished: int
    failed: int
    written: int
    resumed_with: int = 0
    """Conversations that had ended when this session began."""
    open: int = 0
    models: tuple[ModelSlots, ...] = ()
    ready: int = 0
    blocked: int = 0
    backing_off: int = 0
    ready_rows: tuple[TurnRow, ...] = ()
    pending_rows: tuple[TurnRow, ...] = ()
    """Turns that wait for other agents or back off before a retry."""
    turns: int = 0
    turns_ended: int = 0
    """The part of `turns` in ended conversations."""
    corrections: int = 0
    defaults: int = 0
    default_shares: Mapping[str, float] = field(default_factory=dict)
    """By agent definition, the part of its turns that ended with the default act."""
    results: str = ""
    """The results so far, in words."""
    usage: Usage | None = None
    is_all_open: bool = False
    """Whether no conversation is left to be opened."""
    concurrency: int | None = None
    """The bound on the requests of all models together."""
    tokens: TokenCount = field(default_factory=TokenCount)
    silent_models: tuple[str, ...] = ()
    """Models that report no token counts; `tokens` are those of the others."""
    lanes: tuple[LaneStatus, ...] = ()
    """The engines of the run's fleet."""
    policies: str = ""
    """The weights that a trainer changes, in words."""

    @property
    def ended(self) -> int:
        """Conversations that have ended, finished or failed."""
        return self.finished + self.failed

    @property
    def unanswered_s(self) -> float | None:
        """How long no engine has answered; None while one works."""
        silences = [model.unanswered_s for model in self.models]
        return min((s for s in silences if s is not None), default=None) if None not in silences else None


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusFrame:
    """A reading with its rates. A rate is None until it is known."""

    reading: Reading
    turns_per_s: float | None = None
    tokens_per_s: float | None = None
    """Generated tokens."""
    eta_s: float | None = None
    limit: str | None = None
    """What limits the run now."""


def read_progress(
    progress: Progress,
    *,
    experiment_name: str,
    profile: str,
    results: str = "",
    lanes: Sequence[LaneStatus] = (),
    windows: Mapping[str, PolicyWindow] = MappingProxyType({}),
) -> Reading:
    """The run now. The cost does not grow with the run."""
    pools = progress.snapshot(STATUS_ROWS_MAX)
    return Reading(
        experiment_name=experiment_name,
        profile=profile,
        elapsed_s=progress.elapsed_s,
        planned=progress.planned,
        finished=progress.finished,
        failed=progress.failed,
        written=progress.written,
        resumed_with=progress.resumed_with,
        open=progress.open,
        models=tuple(
            ModelSlots(
                name=counts.model,
                in_flight=counts.in_flight,
                slots=counts.slots,
                ready=counts.ready,
                utilisation=progress.utilisation(counts.model),
                unanswered_s=progress.unanswered_s(counts.model),
            )
            for counts in pools.models
        ),
        ready=pools.ready,
        blocked=pools.blocked,
        backing_off=pools.backing_off,
        ready_rows=tuple(row(progress.task_id(waiting.conversation), waiting) for waiting in pools.ready_rows),
        pending_rows=tuple(row(progress.task_id(waiting.conversation), waiting) for waiting in pools.pending_rows),
        turns=progress.turns,
        turns_ended=progress.turns_ended,
        corrections=progress.corrections,
        defaults=progress.defaults,
        default_shares=progress.default_shares(),
        results=results,
        usage=progress.usage,
        is_all_open=progress.is_all_open,
        concurrency=progress.concurrency,
        tokens=progress.tokens,
        silent_models=progress.silent_models,
        lanes=tuple(lanes),
        policies="; ".join(_weights(model, window) for model, window in windows.items()),
    )


def _weights(model: str, window: PolicyWindow) -> str:
    """`learner: version 7, oldest open conversation 2 behind`."""
    waits = "" if window.is_open else ", waits for the next"
    return f"{printable(model)}: version {window.version}{waits}, oldest open conversation {window.lag} behind"


def row(task_id: str, waiting: WaitingTurn) -> TurnRow:
    """A waiting turn as the view shows it."""
    turn = waiting.turn
    return TurnRow(task_id=task_id, round=turn.round, agent=turn.agent, model=turn.model, note=_note(waiting))


def _note(waiting: WaitingTurn) -> str:
    if waiting.is_backing_off:
        return f"retry {waiting.sendings}"
    if waiting.waits_for:
        return f"after {', '.join(waiting.waits_for)}"
    if waiting.turn.attempt:
        return f"correction {waiting.turn.attempt}"
    return "goes on" if waiting.turn.step else ""


class _Sample(NamedTuple):
    elapsed_s: float
    total: int


class RateWindow:
    """The rate of a growing total over the last `window_s` seconds."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._spacing_s = window_s / STATUS_RATE_SAMPLES_MAX
        self._samples: deque[_Sample] = deque()

    def add(self, elapsed_s: float, total: int) -> None:
        """Take one sample; one that comes too soon after the last replaces it."""
        samples = self._samples
        if len(samples) > 1 and elapsed_s - samples[-2].elapsed_s < self._spacing_s:
            samples.pop()
        samples.append(_Sample(elapsed_s, total))
        # The oldest sample kept is the last one that is not younger than the window.
        while len(samples) > 2 and samples[1].elapsed_s <= elapsed_s - self._window_s:
            samples.popleft()

    @property
    def rate_per_s(self) -> float | None:
        if len(self._samples) < 2:
            return None
        first, last = self._samples[0], self._samples[-1]
        span_s = last.elapsed_s - first.elapsed_s
        return (last.total - first.total) / span_s if span_s > 0 else None


class UsageWindow:
    """What a run used over about the last `window_s` seconds."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._samples: deque[Usage] = deque()

    def add(self, usage: Usage) -> Usage:
        """Take what was used so far, and return the part of it that lies in the window."""
        samples = self._samples
        if samples and usage.played_s < samples[-1].played_s:
            samples.clear()  # Another phase has begun, with other engines.
        samples.append(usage)
        while len(samples) > 2 and samples[1].played_s <= usage.played_s - self._window_s:
            samples.popleft()
        return usage.since(samples[0]) if len(samples) > 1 else usage


@dataclass(slots=True)
class Meter:
    """Turns the readings of one session, in order, into frames."""

    _turns: RateWindow = field(default_factory=lambda: RateWindow(STATUS_RATE_WINDOW_S))
    _tokens: RateWindow = field(default_factory=lambda: RateWindow(STATUS_RATE_WINDOW_S))
    _usage: UsageWindow = field(default_factory=lambda: UsageWindow(STATUS_LIMIT_WINDOW_S))

    def frame(self, reading: Reading) -> StatusFrame:
        """The frame of `reading`, given all readings before it."""
        self._turns.add(reading.elapsed_s, reading.turns)
        self._tokens.add(reading.elapsed_s, reading.tokens.completion)
        return StatusFrame(
            reading=reading,
            turns_per_s=self._turns.rate_per_s,
            tokens_per_s=self._tokens.rate_per_s,
            eta_s=None if reading.unanswered_s is not None else self._left_s(reading),
            limit=self._limit(reading),
        )

    def _left_s(self, reading: Reading) -> float | None:
        return time_left_s(
            reading.planned - reading.ended,
            ended=reading.ended - reading.resumed_with,
            turns_ended=reading.turns_ended,
            turns=reading.turns,
            turns_per_s=self._turns.rate_per_s,
        )

    def _limit(self, reading: Reading) -> str | None:
        """What limits the run; None while no engine answers, which the view says, and when all has ended."""
        if reading.usage is None or reading.unanswered_s is not None or reading.ended >= reading.planned:
            return None
        used = self._usage.add(reading.usage)
        return bottleneck(used, is_all_open=reading.is_all_open, concurrency=reading.concurrency)


VALUES_MAX: Final = 6
"""Values of a column that are shown, the most frequent ones."""
COLUMNS_MAX: Final = 4
"""Columns of an outcome without columns of its own that are shown."""
_WINNERS: Final = frozenset({"winner", "winners"})


@dataclass(slots=True)
class Tally:
    """Counts the headline values of outcomes; those of an environment without columns are its winners and truths."""

    columns: Columns | None
    finished: int = 0
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    known: Counter[str] = field(default_factory=Counter)
    """By column, how many outcomes have a value."""

    def add(self, outcome: JsonObject) -> None:
        """Count one outcome. One that cannot be read is left to the summary, which says what is wrong with it."""
        try:
            values = self._values(outcome)
        except RunDirectoryError:
            return
        self.finished += 1
        for name, value in values.items():
            if value is not None:
                self.known[name] += 1
                self.counts.setdefault(name, Counter()).update(_words(value))

    def text(self) -> str:
        """`of 45: winner mafia 55%, town 41%`; empty before the first outcome and without anything to count."""
        parts = [part for name, counter in self.counts.items() if (part := self._part(name, counter))]
        return f"of {self.finished}: {', '.join(parts)}" if parts else ""

    def _part(self, name: str, counter: Counter[str]) -> str:
        shares = [f"{word} {count / self.known[name]:.0%}".strip() for word, count in counter.most_common(VALUES_MAX)]
        return f"{name} {', '.join(shares) or '0%'}"

    def _values(self, outcome: JsonObject) -> Mapping[str, Value]:
        if self.columns is not None:
            values = self.columns.read(outcome)
            return {name: values.get(name) for name, column in self.columns.of.items() if column.is_headline}
        found: dict[str, Value] = {}
        for name, value in outcome.items():
            if isinstance(value, bool) or (name in _WINNERS and isinstance(value, str)):
                found[name] = value
            elif name in _WINNERS and isinstance(value, list):
                found[name] = [each for each in value if isinstance(each, str)]
        return dict(list(found.items())[:COLUMNS_MAX])


def _words(value: object) -> list[str]:
    """What is counted of a value: each word once, a truth value without a word of its own, no number."""
    if value is True:
        return [""]
    if isinstance(value, str):
        return [value]
    return sorted({str(word) for word in value}) if isinstance(value, Sequence) else []
