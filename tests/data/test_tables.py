"""The flat tables: what they hold of a transcript, and what they leave out."""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pyarrow
import pyarrow.parquet
import pytest

from mac_runner.data.testing import LEFT_OUT, Ended, FlatTable, encoder, metadata_of, tables_of
from mac_runner.errors import ConfigError, RunDirectoryError
from mac_runner.flat import Cells, FlatColumn, JsonColumns, Kind, cell, covers, leaves
from mac_runner.measures import MeasuredResults, ResultsSpec
from mac_runner.registry import environment_specs
from mac_runner.results import export_of
from mac_runner.store import index_row
from mac_runner.store.rows import DoneRow
from mac_runner.store.testing import decode_transcript
from mac_runner.types import JsonObject, JsonValue

GOLDEN = Path(__file__).parents[1] / "golden"


def tables_for(transcript: JsonObject) -> Mapping[str, FlatTable]:
    spec = environment_specs().get(str(transcript["environment"]))
    return tables_of(None if spec is None or spec.results is None else spec.results())


def rows_of(
    table: FlatTable, transcript: JsonObject, experiment: JsonObject | None = None
) -> list[Mapping[str, Cells]]:
    contents: Any = SimpleNamespace(
        resolved=experiment or {}, acknowledged=lambda _row: transcript, traces=lambda _transcript: {}
    )
    return [*table.rows(Ended(contents, DoneRow.of(index_row(transcript))), frozenset(table.columns))]


def values_at(value: JsonValue, path: str, here: str = "") -> Iterator[JsonValue]:
    """Every value of a transcript at a path."""
    if here == path:
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from values_at(inner, path, f"{here}.{key}" if here else key)
    elif isinstance(value, list):
        for inner in value:
            yield from values_at(inner, path, f"{here}[]")


def recorded() -> Iterator[tuple[str, JsonObject]]:
    """Transcripts of all environments and formats, with their files."""
    for path in sorted(GOLDEN.rglob("transcripts/*.json")):
        yield str(path.relative_to(GOLDEN)), decode_transcript(path.read_bytes())


def test_every_field_of_a_transcript_is_in_a_column_or_left_out_with_a_reason() -> None:
    lost = set()
    for file, transcript in recorded():
        sources = [column.source for table in tables_for(transcript).values() for column in table.columns.values()]
        for leaf in {*leaves(transcript)}:
            if not any(covers(source, leaf) for source in (*filter(None, sources), *LEFT_OUT)):
                lost.add((file, leaf))

    assert lost == set()


@pytest.mark.ci
def test_a_column_holds_the_values_of_its_place_and_no_others() -> None:
    for file, transcript in recorded():
        for table in tables_for(transcript).values():
            rows = rows_of(table, transcript)
            kinds = ("integer", "number", "truth", "text")
            plain = {name: one for name, one in table.columns.items() if one.kind in kinds}
            depth = max(column.source.count("[]") for column in plain.values())
            for name, column in plain.items():
                # Thoughts in a text are added to those apart; votes are gathered from several places.
                if column.source.count("[]") != depth or "." not in column.source or name == "thought":
                    continue
                if table.name == "votes" or column.source.startswith("row."):
                    continue
                there = [value for value in values_at(transcript, column.source) if value is not None]
                here = [row.get(name) for row in rows if row.get(name) is not None]
                assert Counter(map(repr, here)) == Counter(map(repr, there)), (file, table.name, name)


def test_an_index_row_has_in_its_columns_what_the_transcript_has() -> None:
    def value(kind: str, cell: Any) -> Any:
        return ("JSON", json.loads(cell)) if kind == "json" and cell is not None else cell

    for file, transcript in [("hostile", hostile_transcript()), *recorded()]:
        table = tables_for(transcript)["conversations"]
        experiment: JsonObject = {
            "conversation_config": {"environment": transcript["environment"]},
            "experiment_metadata": {"experiment_name": transcript["experiment_name"]},
        }
        (of_transcript,) = rows_of(table, transcript, experiment)
        assert table.index_cells is not None
        of_index = table.index_cells([DoneRow.of(index_row(transcript))], experiment, table.of_index)
        for name in table.of_index:
            kind = table.columns[name].kind
            (cell,) = of_index[name]
            assert value(kind, cell) == value(kind, of_transcript[name]), (file, name)


def test_a_value_in_json_is_the_cell_that_it_is_in_a_transcript() -> None:
    def read(cells: Callable[[], Cells]) -> Cells:
        try:
            return cells()
        except RunDirectoryError:
            return "refused"

    odd: list[JsonValue] = [None, True, 7, -(2**63), 2**63, 10**40, 1.0, 1e-7, 1e30, "é\ud800", "a-b+c", [], {}]
    values: list[JsonValue] = [*odd, *([value] for value in odd), {"é": odd}, ["x", "y"], [1, 2], [0.5, 2], "null"]
    for kind, value in itertools.product(get_args(Kind), values):
        reader = JsonColumns({"column": FlatColumn(kind, "", source="of.some key")})
        text = json.dumps({"of": {"some key": value}}, separators=(",", ":")).encode()
        assert read(lambda: reader.cells([text])["column"][0]) == read(lambda: cell(kind, value, "")), (kind, value)  # noqa: B023
    columns = {"whole": FlatColumn("json", "", source="of"), "inside": FlatColumn("text", "", source="of.some key")}
    found = JsonColumns(columns).cells([b'{"of":{"some key":"x"}}', b'{"of":null}', b"{}"])
    assert {name: [*cells] for name, cells in found.items()} == {
        "whole": ['{"some key":"x"}', None, None],
        "inside": ["x", None, None],
    }


def test_every_column_of_every_environment_says_what_it_means() -> None:
    specs = [spec.results() for spec in environment_specs().values() if spec.results is not None]
    for results in (None, *specs):
        for table in tables_of(results).values():
            assert table.meaning.endswith("."), table.name
            assert {*table.key} <= table.columns.keys(), table.name
            for name, column in table.columns.items():
                assert column.meaning, (table.name, name)


def test_the_key_of_a_table_names_one_row() -> None:
    for file, transcript in recorded():
        for table in tables_for(transcript).values():
            keys = Counter(tuple(str(row[name]) for name in table.key) for row in rows_of(table, transcript))
            assert not [key for key, count in keys.items() if count > 1], (file, table.name)


def test_turns_say_which_weights_made_them() -> None:
    transcript: Any = hostile_transcript()
    transcript["turns"][0]["reply"]["policy"] = [6, 7]
    rows = rows_of(tables_of(None)["turns"], transcript)

    assert [(row["policy_start"], row["policy_end"]) for row in rows[:2]] == [(6, 7), (None, None)]
    assert any(covers("turns[].reply.policy.0", leaf) for leaf in leaves(transcript) if leaf.endswith("policy[]"))


def test_a_column_or_table_of_an_environment_with_a_name_that_is_taken_is_refused() -> None:
    column = FlatColumn("text", "mine", source="outcome.mine")
    table = export_of("turns[]", {"mine": column}, key=("mine",), meaning="Mine.")

    for taken, words in (
        ({"conversation_columns": {"turns": column}}, r"column 'turns', .*; rename"),
        ({"exports": {"turns": table}}, r"table 'turns' .* rename"),
    ):
        with pytest.raises(ConfigError, match=words):
            tables_of(ResultsSpec(counter=lambda: MeasuredResults(()), **taken))


def test_a_value_that_does_not_fit_its_column_is_named() -> None:
    for kind, value in (("integer", 2**63), ("integer", 1.5), ("truth", 1), ("number", 10**400), ("texts", "x")):
        with pytest.raises(RunDirectoryError, match="turns of x"):
            cell(kind, value, "turns of x")  # type: ignore[arg-type]


SAMPLING: JsonObject = {"temperature": 1.0, "max_tokens": 512}
HOSTILE = ("\0", "half \ud800 a pair", "\u202eright to left\u202c", "=1+1", '"quoted", and\r\nmore', "x" * 10**6, "NaN")


def hostile_transcript() -> JsonObject:
    """A conversation in which everything that can be a text is an odd one."""
    seats: list[JsonValue] = ["__proto__", "a/b", "=cmd", "\ud800"]
    tokens: JsonObject = {"prompt": 1, "completion": 1, "timing": {"cached": 0}}
    return {
        "format": 2,
        "experiment_name": "odd",
        "environment": "own",
        "task": {
            "task_id": "odd-000000",
            "index": 0,
            "seed": 2**63 - 1,
            "agents": [
                {"agent_id": seat, "definition": "d", "model": "m", "seat": place, "slot": place, "sampling": SAMPLING}
                for place, seat in enumerate(seats)
            ],
        },
        "status": "finished",
        "failure": None,
        "counts": {"turns": len(HOSTILE), "corrections": 0, "defaults": 0, "tokens": tokens},
        "outcome": {"kind": "own", "won": dict.fromkeys(map(str, seats), 10**40), "turns": 7, "conversation": "x"},
        "final_state_sha256": "0",
        "record": {
            "board": {"huge": 10**40},
            "events": [
                {"when": text[:20], "audience": seats, "text": text, "data": {"n": 10**40, "t": text}, "mood": text[:9]}
                for text in HOSTILE
            ],
        },
        "turns": [
            {
                "turn": f"0/{seats[0]}/0/{place}",
                "round": 0,
                "agent": seats[0],
                "model": "m",
                "place": 0,
                "step": 0,
                "attempt": place,
                "prompt_sha256": "0",
                "reply": {"text": text, "finish_reason": "stop", "tokens": tokens},
                "receipt": {"kind": "act", "detail": text[:30]},
                "timing": {"queue_s": 0.0, "generate_s": 0.5, "faults": [text[:10]]},
            }
            for place, text in enumerate(HOSTILE)
        ],
        "timing": {"ended_at": "2026-01-01T00:00:00.000Z", "open_s": 1.0},
    }


@pytest.mark.parametrize("name", ["conversations", "agents", "turns", "events", "digests"])
def test_odd_texts_names_and_numbers_come_out_of_each_format_as_they_went_in(name: str) -> None:
    transcript = hostile_transcript()
    table = tables_of(None)[name]
    rows = rows_of(table, transcript)

    def written(kind: str) -> bytes:
        made = encoder(kind, table.columns, metadata_of(table))
        return made.rows(rows) + made.end()

    from_parquet = pyarrow.parquet.read_table(io.BytesIO(written("parquet"))).to_pylist()
    from_jsonl = [json.loads(line) for line in written("jsonl").decode().splitlines()]
    lines = io.StringIO(written("csv").decode(), newline="")
    csv.field_size_limit(10_000_000)
    from_csv = [*csv.DictReader(lines)]

    assert len(from_parquet) == len(from_jsonl) == len(from_csv) == len(rows)
    for row, parquet, jsonl, line in zip(rows, from_parquet, from_jsonl, from_csv, strict=True):
        for column, declared in table.columns.items():
            value = row.get(column)
            if declared.kind == "json":
                expected = None if value is None else json.loads(str(value))
                assert jsonl[column] == expected
                assert parquet[column] is None if value is None else json.loads(parquet[column]) == expected
            elif declared.kind == "text":
                assert jsonl[column] == value
                spelt = None if value is None else str(value).encode("utf-8", "backslashreplace").decode()
                assert parquet[column] == spelt
                assert line[column].removeprefix("'") == (spelt or "").removeprefix("'")
                assert not line[column].startswith(("=", "+", "-", "@"))
            elif declared.kind != "texts":
                assert (parquet[column], jsonl[column]) == (value, value)
    if name == "events":
        assert [json.loads(str(row["more"])) for row in rows] == [{"mood": text[:9]} for text in HOSTILE]
        assert all(json.loads(str(row["data"]))["n"] == 10**40 for row in rows)
    if name == "agents":
        assert [json.loads(str(row["results"])) for row in rows] == [{"won": 10**40}] * 4
    if name == "conversations":
        assert json.loads(str(rows[0]["record"])) == {"board": {"huge": 10**40}}


def test_a_table_of_arrow_says_what_its_columns_mean() -> None:
    table = tables_of(None)["turns"]
    made = encoder("parquet", table.columns, metadata_of(table))

    schema = pyarrow.parquet.read_schema(io.BytesIO(made.rows([]) + made.end()))

    assert schema.metadata[b"mac_runner.key"] == b"conversation,turn"
    assert schema.metadata[b"mac_runner.schema_version"] == b"1"
    assert schema.field("generate_s").metadata == {b"meaning": b"how long the engine took", b"unit": b"s"}
