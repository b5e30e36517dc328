"""The Methods section of a report: what was done, in sentences made from the figures that did it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from mac_runner.figures.model import Method
from mac_runner.printable import printable


def methods_text(methods: Iterable[Method]) -> tuple[str, ...]:
    """A paragraph for each thing that was done. What several figures did alike is said once, with the range of n."""
    alike: dict[str, list[Method]] = {}
    for method in methods:
        alike.setdefault(method.statement, []).append(method)
    return tuple(printable(_paragraph(statement, found)) for statement, found in alike.items())


def _paragraph(statement: str, methods: Sequence[Method]) -> str:
    sentence = statement if statement.endswith((".", "!", "?")) else f"{statement}."
    details = "; ".join(_details(methods))
    return f"{sentence} ({_capitalised(details)}.)" if details else sentence


def _details(methods: Sequence[Method]) -> Iterator[str]:
    if counts := [method.n for method in methods if method.n is not None]:
        units = _each(_units(method.unit or "unit", max(counts)) for method in methods)
        numbers = f"{min(counts):,}" if min(counts) == max(counts) else f"{min(counts):,} to {max(counts):,}"
        yield f"n = {numbers} {units}"
    elif units := _each(method.unit for method in methods):
        yield f"unit: {units}"
    if intervals := _each(method.interval for method in methods):
        yield f"interval: {intervals}"
    if resamples := _each(f"{method.resamples:,}" for method in methods if method.resamples):
        yield f"{resamples} resamples"
    if seeds := _each(str(method.seed) for method in methods if method.seed is not None):
        yield f"seed {seeds}"
    if corrections := _each(method.correction for method in methods):
        yield f"correction: {corrections}"


def _units(unit: str, n: int) -> str:
    return unit if n == 1 else f"{unit}s"


def _each(words: Iterable[str]) -> str:
    """Different words, each once."""
    return " or ".join(dict.fromkeys(filter(None, words)))


def _capitalised(text: str) -> str:
    return text if text.startswith("n =") else f"{text[:1].upper()}{text[1:]}"
