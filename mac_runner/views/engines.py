"""The engines over the time of a run, from the lines of its `events.jsonl`.

`EngineClock` takes one line at a time and keeps a bounded amount: at most `BINS_MAX` bins, which double their width
when the run outgrows them, one histogram of latencies for each model, and the requests in flight. So a page can follow
a log that grows.

The axis is the time in which a process was at work: the pause before a session is cut out. Times come from the clock of
the machine, so the sessions of a merged run, which were played side by side, lie beside each other.

A log may miss events: one is written after what it describes, and a kill can cut it short. Lines that are not
events, and events of other kinds, are skipped. A reply whose beginning is missing counts from its latency.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from datetime import datetime
from itertools import accumulate
from typing import Final, NamedTuple, TypeVar

import msgspec

from mac_runner.view_model import EngineSeries, EnginesPage

BINS_MAX: Final = 600
FIRST_BIN_S: Final = 2**-8

_CLASSES_PER_DECADE: Final = 20
_LEAST_MS: Final = 0.1
_BOUNDS_MS: Final = tuple(_LEAST_MS * 10 ** (n / _CLASSES_PER_DECADE) for n in range(8 * _CLASSES_PER_DECADE + 1))
"""Upper bounds of the classes of a histogram: 0.1 ms to 2.8 hours, each 12 % above the one before."""
Figure = TypeVar("Figure", int, float)

_OF_PLAY: Final = frozenset(
    f"EVENT_{name}" for name in ("RUN_START", "RUN_STOP", "RESIZE", "INFER_START", "INFER_DONE", "RETRY", "GIVE_UP")
)
"""Events of the time in which a process plays."""


class _Event(msgspec.Struct):
    event: str
    time: datetime
    task: str = ""
    turn: str = ""
    model: str = ""
    engine: str = ""
    latency_ms: float = 0.0
    tokens_out: int = 0
    tokens_in: int | None = None
    tokens_cached: int | None = None
    queue_s: float | None = None
    models: dict[str, int] = {}
    capacity: int = 0
    concurrency: int | None = None

    @property
    def at(self) -> str:
        """The engine. Its name is that of the model, where it serves no other."""
        return self.engine or self.model


_decode: Final = msgspec.json.Decoder(_Event).decode


class Classes(NamedTuple):
    """A histogram: the upper bounds of its classes, and the counts."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]


class _Open(NamedTuple):
    model: str
    since_s: float


class _Histogram:
    def __init__(self) -> None:
        self.counts = [0] * (len(_BOUNDS_MS) + 1)
        self.total = 0

    def add(self, duration_ms: float) -> None:
        self.counts[bisect_left(_BOUNDS_MS, duration_ms)] += 1
        self.total += 1

    def quantile_ms(self, share: float) -> float | None:
        """The duration that `share` of all do not exceed, within 6 %; None where there is none.

        Durations below the least class are 0.
        """
        if not self.total:
            return None
        place = bisect_left([*accumulate(self.counts)], share * self.total)
        if place == 0:
            return 0.0
        upper = _BOUNDS_MS[min(place, len(_BOUNDS_MS) - 1)]
        return float(f"{math.sqrt(upper * _BOUNDS_MS[place - 1]):.3g}")

    def classes(self) -> Classes:
        """The bounds and the counts from the first to the last class that is not empty; the last one has no bound."""
        used = [place for place, count in enumerate(self.counts) if count]
        if not used:
            return Classes((), ())
        part = slice(used[0], used[-1] + 1)
        return Classes(_BOUNDS_MS[part], tuple(self.counts[part]))


class _Model:
    """What one model did: a list for each figure, with an entry for each bin so far."""

    def __init__(self, bins: int) -> None:
        self.slots = 0
        self.busy_s = [0.0] * bins
        self.done = [0] * bins
        self.tokens = [0] * bins
        self.retries = [0] * bins
        self.latency = _Histogram()
        self.queue = _Histogram()
        self.reply_tokens = _Histogram()
        self.prompt_tokens = 0
        self.cached_tokens = 0

    def grow(self, bins: int) -> None:
        more = bins - len(self.done)
        self.busy_s += [0.0] * more
        for figures in (self.done, self.tokens, self.retries):
            figures += [0] * more

    def halve(self) -> None:
        self.busy_s = _pairs(self.busy_s)
        self.done, self.tokens, self.retries = _pairs(self.done), _pairs(self.tokens), _pairs(self.retries)


class EngineClock:
    """The engines of a run as far as its log was read. Not for two threads at once."""

    def __init__(self) -> None:
        self._bin_s = FIRST_BIN_S
        self._bins = 0
        self._models: dict[str, _Model] = {}
        self._open: dict[tuple[str, str], _Open] = {}
        self._sessions: list[float] = []
        self._concurrency: int | None = None
        self._zero: float | None = None
        """The time of the clock at the beginning of the axis; later by each pause that was cut out."""
        self._now_s = 0.0
        self._counted_until_s = 0.0
        """Until when requests that a session left open are counted."""

    def add(self, line: bytes) -> None:
        """Take a line of the log, with or without its newline."""
        try:
            event = _decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return
        if event.event not in _OF_PLAY:
            return  # It may be of the pause between two sessions.
        now_s = self._position(event)
        match event.event:
            case "EVENT_INFER_START":
                self._open[event.task, event.turn] = _Open(event.at, now_s)
            case "EVENT_INFER_DONE":
                self._end(event, now_s)
                self._answered(event, now_s)
            case "EVENT_RETRY":
                self._end(event, now_s)
                self._model(event.at).retries[self._bin(now_s)] += 1
            case "EVENT_GIVE_UP":
                self._end(event, now_s)
            case "EVENT_RUN_START":
                self._start(event, now_s)
            case "EVENT_RESIZE":
                # An engine serves another number of requests: the page shows the most that it served at once.
                model = self._model(event.model)
                model.slots = max(model.slots, self._bound(event.capacity))
            case "EVENT_RUN_STOP":
                self._close(now_s)

    def page(self) -> EnginesPage:
        """The engines until the last line."""
        if self._models:
            self._bin(self._now_s)
        return EnginesPage(
            bin_s=self._bin_s,
            elapsed_s=round(self._now_s, 3),
            sessions=tuple(round(start_s, 3) for start_s in self._sessions),
            engines=tuple(self._series(name) for name in sorted(self._models)),
        )

    def reply_tokens(self) -> Mapping[str, Classes]:
        """By model, how many tokens its replies had."""
        return {name: model.reply_tokens.classes() for name, model in sorted(self._models.items())}

    # Time.

    def _position(self, event: _Event) -> float:
        """The place of an event on the axis. The first one is at 0, and so is one from before it."""
        moment_s = event.time.timestamp()
        if self._zero is None:
            self._zero = moment_s
            self._sessions.append(0.0)
        elif event.event == "EVENT_RUN_START":
            self._zero += max(0.0, moment_s - self._zero - self._now_s)
            if self._models:
                self._sessions.append(max(0.0, moment_s - self._zero))
        now_s = max(0.0, moment_s - self._zero)
        self._now_s = max(self._now_s, now_s)
        return now_s

    def _bin(self, at_s: float) -> int:
        """The bin of a moment. Makes bins until there is one."""
        while at_s >= self._bin_s * BINS_MAX:
            self._bin_s *= 2
            self._bins = (self._bins + 1) // 2
            for model in self._models.values():
                model.halve()
        place = int(at_s / self._bin_s)
        if place >= self._bins:
            self._bins = place + 1
            for model in self._models.values():
                model.grow(self._bins)
        return place

    # Events.

    def _start(self, event: _Event, now_s: float) -> None:
        """A session begins. Where the one before it was killed, its requests ended with it."""
        self._close(now_s)
        self._concurrency = event.concurrency
        for name, capacity in event.models.items():
            self._model(name).slots = self._bound(capacity)

    def _bound(self, capacity: int) -> int:
        return capacity if self._concurrency is None else min(capacity, self._concurrency)

    def _close(self, now_s: float) -> None:
        for request in self._open.values():
            self._busy(request.model, request.since_s, now_s)
        self._open.clear()
        self._counted_until_s = now_s

    def _end(self, event: _Event, now_s: float) -> None:
        request = self._open.pop((event.task, event.turn), None)
        if request is not None:
            self._busy(event.at, request.since_s, now_s)
        elif event.latency_ms > 0:
            self._busy(event.at, max(self._counted_until_s, now_s - event.latency_ms / 1000), now_s)

    def _answered(self, event: _Event, now_s: float) -> None:
        model, place = self._model(event.at), self._bin(now_s)
        model.done[place] += 1
        model.tokens[place] += event.tokens_out
        model.latency.add(event.latency_ms)
        model.reply_tokens.add(event.tokens_out)
        if event.queue_s is not None:
            model.queue.add(1000 * event.queue_s)
        if event.tokens_in is not None:
            model.prompt_tokens += event.tokens_in
            model.cached_tokens += event.tokens_cached or 0

    def _busy(self, name: str, since_s: float, until_s: float) -> None:
        """Count a request as in flight for a stretch of time."""
        model = self._model(name)
        self._bin(until_s)
        _spread(model.busy_s, since_s, until_s, self._bin_s)

    def _model(self, name: str) -> _Model:
        model = self._models.get(name)
        if model is None:
            model = self._models[name] = _Model(self._bins)
        return model

    # The page.

    def _series(self, name: str) -> EngineSeries:
        model = self._models[name]
        bounds, counts = model.latency.classes()
        return EngineSeries(
            model=name,
            slots=model.slots,
            busy=self._busy_until_now(name),
            done=tuple(model.done),
            tokens=tuple(model.tokens),
            retries=tuple(model.retries),
            tokens_per_s=round(sum(model.tokens) / self._now_s, 3) if self._now_s else None,
            # Between the classes: the last one is open.
            latency_bounds_ms=tuple(float(f"{bound:.4g}") for bound in bounds[: max(0, len(counts) - 1)]),
            latency_counts=counts,
            latency_p50_ms=model.latency.quantile_ms(0.5),
            latency_p95_ms=model.latency.quantile_ms(0.95),
            queue_p50_s=_seconds(model.queue.quantile_ms(0.5)),
            queue_p95_s=_seconds(model.queue.quantile_ms(0.95)),
            cached_share=round(model.cached_tokens / model.prompt_tokens, 4) if model.prompt_tokens else None,
        )

    def _busy_until_now(self, name: str) -> tuple[float, ...]:
        """The mean of the requests in flight in each bin, with those that are in flight now."""
        busy_s = [*self._models[name].busy_s]
        for request in self._open.values():
            if request.model == name:
                _spread(busy_s, request.since_s, self._now_s, self._bin_s)
        return tuple(
            round(total_s / self._covered_s(place), 3) if self._covered_s(place) else 0.0
            for place, total_s in enumerate(busy_s)
        )

    def _covered_s(self, place: int) -> float:
        """How much of a bin has passed."""
        return min(self._bin_s, self._now_s - place * self._bin_s)


def _spread(busy_s: list[float], since_s: float, until_s: float, bin_s: float) -> None:
    """Add a stretch of time to the bins that it lies in."""
    first, last = int(since_s / bin_s), int(until_s / bin_s)
    if first >= last:
        busy_s[last] += max(0.0, until_s - since_s)
        return
    busy_s[first] += (first + 1) * bin_s - since_s
    for place in range(first + 1, last):
        busy_s[place] += bin_s
    busy_s[last] += until_s - last * bin_s


def _pairs(figures: list[Figure]) -> list[Figure]:
    """The sums of each two bins."""
    rest = figures[len(figures) & ~1 :]
    return [before + after for before, after in zip(figures[::2], figures[1::2], strict=False)] + rest


def _seconds(duration_ms: float | None) -> float | None:
    return None if duration_ms is None else round(duration_ms / 1000, 6)
