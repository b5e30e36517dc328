"""Rates of a run and the time left, from its readings.

Pure: each reading brings its time. A rate covers a sliding window, so it follows a run that speeds up or stalls. The
window keeps a bounded number of samples.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from mac_runner.bottleneck import Usage, bottleneck
from mac_runner.status.frame import Reading, StatusFrame

STATUS_RATE_WINDOW_S: Final = 30.0
"""The window over which rates are taken."""
STATUS_LIMIT_WINDOW_S: Final = 10.0
"""The window over which it is judged what limits the run."""
STATUS_RATE_SAMPLES_MAX: Final = 60
"""Samples kept of a window."""


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
        """Growth per second, None until two moments are known."""
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
    _ended: RateWindow = field(default_factory=lambda: RateWindow(STATUS_RATE_WINDOW_S))
    _usage: UsageWindow = field(default_factory=lambda: UsageWindow(STATUS_LIMIT_WINDOW_S))

    def frame(self, reading: Reading) -> StatusFrame:
        """The frame of `reading`, given all readings before it."""
        self._turns.add(reading.elapsed_s, reading.turns)
        self._tokens.add(reading.elapsed_s, reading.tokens.completion)
        self._ended.add(reading.elapsed_s, reading.ended)
        return StatusFrame(
            reading=reading,
            turns_per_s=self._turns.rate_per_s,
            tokens_per_s=self._tokens.rate_per_s,
            conversations_per_s=self._ended.rate_per_s,
            eta_s=None if reading.unanswered_s is not None else time_left_s(reading, self._turns.rate_per_s),
            limit=self._limit(reading),
        )

    def _limit(self, reading: Reading) -> str | None:
        """What limits the run; None while no engine answers, which the view says, and when all has ended."""
        if reading.usage is None or reading.unanswered_s is not None or reading.ended >= reading.planned:
            return None
        used = self._usage.add(reading.usage)
        return bottleneck(used, is_all_open=reading.is_all_open, concurrency=reading.concurrency)


def time_left_s(reading: Reading, turns_per_s: float | None) -> float | None:
    """How long the rest will take, None while nothing can be said.

    Counted in turns where the length of an ended conversation is known: a hundred conversations that run side by
    side all end near the end, so a rate of conversations would say nothing for most of the run, while half-played
    ones count half here. Otherwise by the conversations this session has ended so far.
    """
    remaining = reading.planned - reading.ended
    if remaining <= 0:
        return 0.0
    ended_here = reading.ended - reading.resumed_with
    if ended_here <= 0:
        return None
    if reading.turns_ended is None:
        return remaining * reading.elapsed_s / ended_here
    if not turns_per_s:
        return None
    turns_each = reading.turns_ended / ended_here
    turns_open = reading.turns - reading.turns_ended
    # Those still open may be the long ones: each has at least one turn to go.
    return max(remaining * turns_each - turns_open, remaining) / turns_per_s
