"""What models wrote, and whatever else may stand in a run directory, moves nothing on a terminal and fakes no line."""

from __future__ import annotations

import csv
import io
import unicodedata
from collections.abc import Callable
from functools import cache

import pytest

from mac_runner.environments.testing import defuse
from mac_runner.reports import (
    GridRow,
    csv_bytes,
    grid_table,
    parquet_bytes,
    render_grid,
    render_summary,
    summarise,
    summarise_grid,
    turns_text,
)
from mac_runner.status import ModelSlots, TurnRow, picture
from mac_runner.types import JsonObject
from mac_runner.views.testing import transcript_text
from tests.attacks.strings import ATTACKS, against_all

HARMLESS = "hello"
COLUMNS = 4_000


def controls(text: str) -> set[str]:
    """The characters of `text` that do something on a terminal, line ends of our own left out."""
    return {char for char in text if char != "\n" and unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")}


def transcript(text: str) -> JsonObject:
    """A game of two in which everything that is text is `text`, but for what a player said in words of the record."""
    agents: list[JsonObject] = [{"agent_id": "Abel"}, {"agent_id": "Beatrice"}]
    event: JsonObject = {"when": text, "audience": ["Abel"], "text": text, "data": {}}
    said: JsonObject = {"when": "Day 1", "audience": "all", "text": f"Abel says: “{defuse(text)}”", "data": {}}
    player: JsonObject = {
        "agent": text,
        "role": text,
        "final_role": HARMLESS,
        "won": True,
        "alive": False,
        "death": text,
    }
    turn: JsonObject = {"turn": text, "receipt": {"kind": "correction", "detail": text}}
    return {
        "task": {"task_id": text, "agents": [*agents]},
        "status": "failed",
        "failure": text,
        "record": {"events": [said, event]},
        "outcome": {"kind": "game", "players": [player]},
        "turns": [turn],
    }


FURTHER = "      "
"""What a further line of a message begins with."""


def summary(text: str) -> JsonObject:
    """A summary in which every name and reason is `text`."""
    player: JsonObject = {"definition": text, "model": text, "role": text, "faction": text, "won": True}
    counts: JsonObject = {
        "turns": 1,
        "corrections": 0,
        "defaults": 0,
        "tokens": {"prompt": 1, "cached": 0, "completion": 1},
    }
    game: JsonObject = {"kind": "game", "ending": "win", "days": 2, "winners": [text], "players": [player, player]}
    rows: list[JsonObject] = [
        {"task_id": text, "index": 0, "status": "finished", "counts": counts, "outcome": game},
        {"task_id": text, "index": 1, "status": "failed", "counts": counts, "failure": text, "outcome": None},
    ]
    return summarise(experiment_name=text, rows=rows, planned=2, accounting={"models": {text: {}}})


@against_all
def test_transcript_has_the_lines_it_has_with_harmless_words(text: str) -> None:
    """Further lines of a message are set in deeper than any line of ours."""
    for seat in (None, "Abel"):
        harmless, hostile = (transcript_text(transcript(words), seat=seat) for words in (HARMLESS, text))

        assert not controls(hostile)
        assert not any(line.startswith(FURTHER) for line in harmless.splitlines())
        has_lines = "\n" in text  # Otherwise every line is one of ours, also one that is blank.
        own = [line for line in hostile.splitlines() if not (has_lines and line.startswith(FURTHER))]
        for before, after in zip(harmless.splitlines(), own, strict=True):
            # Where a line begins and who alone learned of it is ours to say.
            assert after.startswith(before.partition(HARMLESS)[0])
            assert after.endswith(before.rpartition(HARMLESS)[2])


@pytest.mark.ci
@against_all
def test_summary_has_the_rows_it_has_with_harmless_names(text: str) -> None:
    harmless, hostile = (render_summary(summary(words), width=COLUMNS) for words in (HARMLESS, text))

    assert not controls(hostile)
    # A name too long for its column goes on in it, and never in a row with figures of its own.
    assert len(rows_with_figures(hostile)) == len(rows_with_figures(harmless))


def rows_with_figures(table: str) -> list[str]:
    """The lines of the tables of wins: those that end in an interval."""
    return [line for line in table.splitlines() if line.rstrip(" *").endswith("100.0%")]


def grid_rows(text: str) -> list[GridRow]:
    """A grid in which every name and every value that is text is `text`."""
    return [GridRow(slug=text, values={text: text, "seed": -1}, session=1, summary=summary(text))]


def printed_grid(text: str) -> str:
    rows = grid_rows(text)
    accounting: JsonObject = {"models": {text: {}}}
    whole = summarise_grid(name=text, profile=text, rows=rows, complete=1, left_out=[], accounting=accounting)
    return render_grid(whole, rows)


SURFACES: dict[str, Callable[[str], str]] = {
    "turns": lambda text: turns_text(transcript(text), [{"turn": text, "time": text, "latency_ms": 3}]),
    "status of a turn": lambda text: picture.turn(TurnRow(task_id=text, round=1, agent=text, note=text, model=text)),
    "status of a model": lambda text: picture.in_flight(
        (ModelSlots(name=text, in_flight=1, slots=2, utilisation=0.5),)
    ),
    "grid": printed_grid,
}


@cache
def harmless_lines(surface: str) -> int:
    return len(SURFACES[surface](HARMLESS).splitlines())


@pytest.mark.ci
@against_all
def test_every_surface_has_the_lines_it_has_with_harmless_words(text: str) -> None:
    for surface, show in SURFACES.items():
        shown = show(text)
        assert not controls(shown), surface
        assert len(shown.splitlines()) == harmless_lines(surface), surface


FORMULAS = ("=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(1,1)", "\t=1", "\r=1", "\n=1")


def test_any_text_goes_into_a_parquet_file_and_none_of_a_csv_is_a_formula_to_a_spreadsheet(
    subtests: pytest.Subtests,
) -> None:
    for text in (*ATTACKS.values(), *FORMULAS):
        with subtests.test(repr(text)):
            table = grid_table(grid_rows(text))
            (head, *rows) = csv.reader(io.StringIO(csv_bytes(table).decode("utf-8"), newline=""))

            assert len(rows) == 1
            texts = [cell for name, cell in zip(head, rows[0], strict=True) if name != "seed"]
            assert not [cell for cell in (*head, *texts) if cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))]
            assert rows[0][head.index("seed")] == "-1", "a number stays a number"
            assert parquet_bytes(table)[:4] == b"PAR1"
