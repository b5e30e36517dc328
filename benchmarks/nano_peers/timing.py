"""What a contestant took, and the figures that follow. No engine is known here: other programs measure with it too.

watch = Stopwatch(clock)          a run begins
watch.step(num_tokens)            a step has ended, which said so many tokens
run = watch.stop(said)            all is said
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

Clock = Callable[[], float]
Prompts = Sequence[list[int]]
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "processor": time.process_time}
"""The second one counts the time that all threads of this process had a processor."""


class Step(NamedTuple):
    """One step: how long it took, and how many tokens it said."""

    seconds: float
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Run:
    """One batch from its prompts to its last token; `said` has the tokens of each prompt, in their order."""

    said: Sequence[Sequence[int]]
    total_s: float
    steps: Sequence[Step]

    def decode_steps_s(self) -> Iterator[float]:
        """The times of steps in which every sequence generates a token and no prompt is computed.

        An engine that computes prompts in pieces finishes the last prompt in the first step in which every sequence
        generates a token. When the first sequences are finished, the others' steps are shorter.
        """
        everybody = len(self.said)
        for before, step in zip(self.steps, self.steps[1:], strict=False):
            if before.num_tokens == step.num_tokens == everybody:
                yield step.seconds

    def as_json(self) -> dict[str, object]:
        """For another process."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Run:
        """What `as_json` gave."""
        return cls(content["said"], content["total_s"], [Step(*step) for step in content["steps"]])


class Stopwatch:
    """Measures one run; it begins when this is made."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._steps = list[Step]()
        self._began_s = self._stepped_s = clock()

    def step(self, num_tokens: int) -> None:
        """A step has ended."""
        now_s = self._clock()
        self._steps.append(Step(now_s - self._stepped_s, num_tokens))
        self._stepped_s = now_s

    def stop(self, said: Sequence[Sequence[int]]) -> Run:
        """The run has ended."""
        return Run(said, self._clock() - self._began_s, self._steps)


def decode_step_s(runs: Sequence[Run]) -> float:
    """The time of a decode step: the 10th percentile, for on a machine that others use too the mean measures them."""
    steps_s = sorted(step for run in runs for step in run.decode_steps_s())
    if not steps_s:
        raise ValueError("there was no step in which every sequence said a token: more new tokens are needed")
    return steps_s[len(steps_s) // 10]


def decode_tokens_per_s(runs: Sequence[Run]) -> float:
    """Tokens a second while all sequences decode."""
    return len(runs[0].said) / decode_step_s(runs)


def tokens_per_s(runs: Sequence[Run]) -> float:
    """Tokens said a second, prompts included, in the best of the runs."""
    return sum(map(len, runs[0].said)) / min(run.total_s for run in runs)
