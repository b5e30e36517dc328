"""What the tables hold, for programs (`_schema.json`, the metadata of Parquet) and for people (a page)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from textwrap import wrap
from typing import Final

from mac_runner.data.tables import LEFT_OUT, SCHEMA_VERSION, FlatTable
from mac_runner.flat import FlatColumn
from mac_runner.types import JsonObject

_PAGE_CHARS: Final = 100
_ARROW: Final = {
    "text": "string",
    "integer": "int64",
    "number": "double",
    "truth": "bool",
    "texts": "list<string>",
    "integers": "list<int64>",
    "numbers": "list<double>",
    "messages": "list<role, content>",
    "json": "string (JSON)",
}


def schema_json(tables: Mapping[str, FlatTable], prefix: Mapping[str, FlatColumn]) -> JsonObject:
    """The contents of `_schema.json`."""
    return {
        "version": SCHEMA_VERSION,
        "tables": {name: _table_json(table, prefix) for name, table in tables.items()},
        "left_out": dict(LEFT_OUT),
    }


def _table_json(table: FlatTable, prefix: Mapping[str, FlatColumn]) -> JsonObject:
    columns: JsonObject = {
        name: {
            "type": _ARROW[column.kind],
            **({"unit": column.unit} if column.unit else {}),
            "meaning": column.meaning,
            **({"source": column.source} if column.source else {}),
        }
        for name, column in {**prefix, **table.columns}.items()
    }
    return {"meaning": table.meaning, "key": [*_key_of(table, prefix)], "columns": columns}


def _key_of(table: FlatTable, columns: Iterable[str]) -> tuple[str, ...]:
    """The columns that distinguish rows, where the table has them as well."""
    of_runs = {"run", "combination"}.intersection(columns) - table.columns.keys()
    return (*sorted(of_runs, reverse=True), *table.key)


def metadata_of(table: FlatTable, columns: Iterable[str] = ()) -> Mapping[str, str]:
    """What a file of the table says of itself. `columns` are all of the file, those that distinguish runs too."""
    return {
        "mac_runner.table": table.name,
        "mac_runner.meaning": table.meaning,
        "mac_runner.key": ",".join(_key_of(table, columns)),
        "mac_runner.schema_version": str(SCHEMA_VERSION),
    }


def schema_page(tables: Iterable[FlatTable]) -> Iterator[str]:
    """The tables as lines of Markdown: a heading, what a row is, and a list of the columns."""
    for table in tables:
        optional = " Left out unless it is named." if table.is_optional else ""
        key = ", ".join(f"`{name}`" for name in table.key)
        yield from (f"### `{table.name}`", "", *_wrapped(f"{table.meaning}{optional} Key: {key}."), "")
        for name, column in table.columns.items():
            unit = f", {column.unit}" if column.unit else ""
            yield from _wrapped(f"- `{name}` ({_ARROW[column.kind]}{unit}): {column.meaning}", "  ")
        yield ""


def _wrapped(text: str, indent: str = "") -> list[str]:
    return wrap(text, _PAGE_CHARS, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
