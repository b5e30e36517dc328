"""What nano is held to, and whether what was measured meets it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarks.nano_peers.contest import Line, SharedPrefix
from benchmarks.nano_peers.fresh import Start
from mac_runner.types import JsonObject

OVER_TRANSFORMERS = {"float32": 2.0, "bfloat16": 3.0}
OVER_STATIC = {8: 0.9, 32: 0.75}
END_TO_END_OVER = {"static": 0.95, "transformers": 2.0}
OVER_LLAMA_CPP = 0.95
"""What counts as level."""
LLAMA_CPP_BATCH_MIN = 8
SHARED_PREFIX_TIMES = 8.0
START_S = 3.0
MEMORY_GROWTH = 1.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A bound, and every figure that it is for, with the place where it was taken."""

    name: str
    kind: Literal["at_least", "at_most"]
    bound: float
    figures: Sequence[tuple[str, float]]

    def is_met_by(self, figure: float) -> bool:
        """Whether one figure is within the bound."""
        return figure >= self.bound if self.kind == "at_least" else figure <= self.bound

    def as_json(self) -> JsonObject:
        """With the worst figure and all places that miss the bound; `met` is null where nothing was measured."""
        row: JsonObject = {"target": self.name, self.kind: self.bound}
        if not self.figures:
            return {**row, "met": None}
        choose = min if self.kind == "at_least" else max
        place, worst = choose(self.figures, key=lambda pair: pair[1])
        missed = [place for place, figure in self.figures if not self.is_met_by(figure)]
        return {**row, "met": not missed, "worst": round(worst, 3), "worst_at": place, "missed_at": list(missed)}


def targets(
    lines: Sequence[Line], prefixes: Sequence[SharedPrefix], start: Start | None, rss_mb: Sequence[float]
) -> Iterator[Target]:
    """All of them, in the order of the documentation."""
    for dtype, bound in OVER_TRANSFORMERS.items():
        for batch in OVER_STATIC:
            chosen = [line for line in lines if (line.dtype, line.batch) == (dtype, batch)]
            yield _decoding("transformers", bound, chosen, f"{dtype}, batch {batch}")
    for batch, bound in OVER_STATIC.items():
        yield _decoding("static", bound, [line for line in lines if line.batch == batch], f"batch {batch}")
    chosen = [line for line in lines if line.batch >= LLAMA_CPP_BATCH_MIN]
    yield _decoding("llama.cpp", OVER_LLAMA_CPP, chosen, f"from batch {LLAMA_CPP_BATCH_MIN} up")
    for peer, bound in END_TO_END_OVER.items():
        chosen = [line for line in lines if line.batch in OVER_STATIC]
        figures = _known((line.place, line.end_to_end_over(peer)) for line in chosen)
        yield Target(name=f"end to end over {peer}", kind="at_least", bound=bound, figures=figures)
    yield Target(
        name="shared prefix, times as fast as transformers",
        kind="at_least",
        bound=SHARED_PREFIX_TIMES,
        figures=_known((prefix.place, prefix.times_as_fast("transformers")) for prefix in prefixes),
    )
    ready_s = [] if start is None else [("5m", start.ready_s)]
    yield Target(name="start-up of 5m, seconds", kind="at_most", bound=START_S, figures=ready_s)
    # Of the first round nothing is said: it takes what the rounds need.
    growth = [(f"{len(rss_mb)} rounds", rss_mb[-1] / rss_mb[1])] if len(rss_mb) > 1 else []
    yield Target(name="memory, last round over second", kind="at_most", bound=MEMORY_GROWTH, figures=growth)


def _decoding(peer: str, bound: float, lines: Sequence[Line], which: str) -> Target:
    figures = _known((line.place, line.decode_over(peer)) for line in lines)
    return Target(name=f"decode over {peer}, {which}", kind="at_least", bound=bound, figures=figures)


def _known(figures: Iterable[tuple[str, float | None]]) -> list[tuple[str, float]]:
    return [(place, figure) for place, figure in figures if figure is not None]
