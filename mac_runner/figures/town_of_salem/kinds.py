"""Claims by their kind. Outcomes do not count kinds, so the transcripts of some games are read."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Final

from mac_runner.figures.data import RunData
from mac_runner.figures.model import Figure, Value
from mac_runner.figures.town_of_salem.games import Key, Tally
from mac_runner.figures.town_of_salem.skills import claims_figure, claims_row
from mac_runner.intervals import one_cluster

READ_MAX: Final = 300
"""As many transcripts are read; of more games every n-th is."""
_VERDICTS: Final = ("honest", "lie", "unclear")


def claims_by_kind(data: RunData) -> Figure | None:
    """What players lie about."""
    clusters = {ended.task_id: ended.cluster for ended in data.ended() if ended.outcome is not None}
    finished = [*clusters]
    step = -(-len(finished) // READ_MAX) if finished else 1
    chosen = frozenset(finished[::step])
    tally, totals = Tally(), dict[str, int]()
    for game, rows in _by_game(data, chosen):
        cases = list[tuple[Key, int, int]]()
        for kind, verdict in rows:
            totals[kind] = totals.get(kind, 0) + 1
            cases += [((kind, each), int(verdict == each), 1) for each in _VERDICTS]
        with one_cluster(clusters[game]):
            tally.add(cases)
    kinds = sorted(totals, key=lambda kind: (-totals[kind], kind))
    rows_of = [row for kind in kinds for row in _rows(kind, tally)]
    notes = (f"Of {len(finished):,} games {len(chosen):,} were read, every {step}th.",) if step > 1 else ()
    return claims_figure(
        "claims-by-kind",
        "What do players lie about?",
        "Claims of all players by what they are about: those that were honest, those that were lies, and those whose "
        "honesty is unclear.",
        rows_of,
        games=len(chosen),
        label="kind of claim",
        notes=notes,
    )


def _by_game(data: RunData, chosen: frozenset[str]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Each game that has claims, and the kind and verdict of each."""
    table = data.read_table("claims", lambda row: row.get("task_id") in chosen)
    for game, rows in groupby(table, lambda row: str(row["conversation"])):
        yield game, [(str(row["kind"]), str(row["verdict"])) for row in rows if row["verdict"] in _VERDICTS]


def _rows(kind: str, tally: Tally) -> Iterator[dict[str, Value]]:
    for verdict in _VERDICTS:
        yield claims_row(kind, verdict, tally.get(kind, verdict))
