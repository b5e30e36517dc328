"""The stance flow of many discussions: how participants went from one stance to another, round by round."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise

from mac_runner.registry import results_specs
from mac_runner.results import Stances, percent_text
from mac_runner.types import JsonObject
from mac_runner.view_model import Cell, Fact, Flow, FlowPage, TableRow, ViewTable


def flow_page(rows: Iterable[JsonObject]) -> FlowPage:
    """The flow over the chosen index rows. Rows without stances, such as failed ones, are not counted.

    Raises RunDirectoryError for a damaged outcome.
    """
    steps: Counter[tuple[int, str, str]] = Counter()
    moved: defaultdict[str, defaultdict[str, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
    named: dict[str, Fact] = {}
    count = rounds = 0
    for row in rows:
        if (found := _stances(row)) is None:
            continue
        facts, stances = found
        named |= {fact.name: fact for fact in facts}
        count += 1
        rounds = max(rounds, *map(len, stances.by_agent.values()), 0)
        for held in stances.by_agent.values():
            steps.update((number, *pair) for number, pair in enumerate(pairwise(held), start=1))
        for author, readers in stances.moved.items():
            for reader, share in readers.items():
                moved[author][reader].append(share)
    seen = {name for _, before, after in steps for name in (before, after)}
    order = {name: place for place, name in enumerate(named)}
    flows = (Flow(number, before, after, steps[number, before, after]) for number, before, after in steps)
    return FlowPage(
        conversations=count,
        rounds=rounds,
        stances=tuple(fact for name, fact in named.items() if name in seen),
        flows=tuple(sorted(flows, key=lambda flow: (flow.round, order[flow.before], order[flow.after]))),
        moved=_moved(moved) if moved else None,
    )


def _stances(row: JsonObject) -> tuple[tuple[Fact, ...], Stances] | None:
    outcome = row.get("outcome")
    if not isinstance(outcome, dict):
        return None
    results = results_specs().get(str(outcome.get("kind")))
    if results is None or results.stances is None or (found := results.stances.of(outcome)) is None:
        return None
    return results.stances.named, found


def _moved(moved: Mapping[str, Mapping[str, list[tuple[int, int]]]]) -> ViewTable:
    readers = sorted({reader for those in moved.values() for reader in those})
    return ViewTable(
        name="moved",
        title="Who moved whom",
        kind="matrix",
        corner="author / reader",
        heads=tuple(map(Cell, readers)),
        rows=tuple(
            TableRow(Cell(author), tuple(_cell(those.get(reader, ())) for reader in readers))
            for author, those in sorted(moved.items())
        ),
        note="Changes to the author's answer, of the times that the reader had read it and held another.",
    )


def _cell(shares: Iterable[tuple[int, int]]) -> Cell:
    listed = [*shares]
    count, cases = (sum(share[place] for share in listed) for place in (0, 1))
    if not cases:
        return Cell("")
    return Cell(f"{count}/{cases}", "one" if count else "quiet", title=percent_text(count / cases))
