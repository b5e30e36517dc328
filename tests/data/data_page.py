"""The page of the tables, docs/data.md: its queries run over two runs, and its lists of columns.

python -m tests.data.data_page      # plays both runs and writes outputs and lists into the page
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Collection, Iterable
from contextlib import chdir
from pathlib import Path
from textwrap import wrap
from typing import Any

import duckdb

from mac_runner.cli.process import Exit
from mac_runner.data.testing import FlatTable, prompt_table, schema_json, tables_of
from mac_runner.environments import Environment
from mac_runner.registry import environment_specs
from tests.cli.lab import run_main
from tests.conftest import kept_signals
from tests.kit import known
from tests.pages import DOCS, ROOT, blocks, commands

PAGE = DOCS / "data.md"
_QUERY = re.compile(r"```sql\n(?P<query>.*?)```\n(?:\n```text\n(?P<output>.*?)```\n)?", re.DOTALL)
_TABLES = re.compile(r"(<!-- tables -->\n).*(<!-- end of tables -->)", re.DOTALL)


def queries(page: str) -> list[re.Match[str]]:
    """The queries of the page, each with its output."""
    return [*_QUERY.finditer(page)]


def play(directory: Path) -> None:
    """Do what the page says comes before the queries."""
    for words in commands(blocks(PAGE, "Queries")[0].text):
        words = [str(ROOT / word) if word.startswith("experiments/") else word for word in words]
        quiet = [] if words[0] == "export" else ["--quiet"]
        with chdir(directory), kept_signals():
            assert run_main(*words, *quiet) == Exit.OK


def answer(query: str, directory: Path) -> str:
    """What DuckDB answers, in columns."""
    with chdir(directory):
        found = known(duckdb.sql(query))
        rows = [list(found.columns), *(["" if one is None else str(one) for one in row] for row in found.fetchall())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)) for row in rows)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def lists() -> str:
    """The lists of columns, of every run and of each environment."""
    specs = environment_specs()
    general = tables_of(None)
    chapters = {"Of every run": [*general.values(), prompt_table(_no_environment)]}
    for name, heading in (("town_of_salem", "Town of Salem"), ("discussion", "Discussions")):
        own = tables_of(known(specs[name].results)())
        more = [_beyond(own[table], general[table]) for table in ("conversations", "agents")]
        chapters[heading] = [*more, *(table for each, table in own.items() if each not in general)]
    parts, keys = [""], {"conversation"}
    for heading, tables in chapters.items():
        parts += [f"### {heading}"] if heading == "Of every run" else [f"### {heading}", ""]
        for table in tables:
            if heading == "Of every run" or table.name == "answers":
                parts += ["", *described(table, keys)]
            else:
                parts += named(table)
            keys.update(table.key)
        parts += [""]
    return "\n".join(parts)


def described(table: FlatTable, keys: Collection[str]) -> list[str]:
    """A table as `_schema.json` has it: a heading, and its columns but for the keys that an earlier table explains."""
    schema: Any = schema_json({table.name: table}, {})
    lines = [f"#### `{table.name}`", "", *_wrapped(_heading(table)), ""]
    for name, column in schema["tables"][table.name]["columns"].items():
        unit = f", {column['unit']}" if "unit" in column else ""
        if table.name == "conversations" or name not in table.key or name not in keys:
            lines += _wrapped(f"- `{name}` ({column['type']}{unit}): {column['meaning']}", "  ")
    return lines


def named(table: FlatTable) -> list[str]:
    """A table with the names of its columns, as an item of a list."""
    columns = [name for name in table.columns if name != "conversation"]
    return _wrapped(f"- **`{table.name}`**: {_heading(table)} Columns: {_named(columns)}.", "  ")


def _heading(table: FlatTable) -> str:
    optional = " Optional." if table.is_optional else ""
    key = [name for name in table.key if name != "conversation"]
    return f"{table.meaning}{optional}{f' Key: {_named(key)}.' if key else ''}"


def _beyond(table: FlatTable, general: FlatTable) -> FlatTable:
    columns = {name: column for name, column in table.columns.items() if name not in general.columns}
    return table._replace(columns=columns, meaning="Besides those of every run.", key=())


def _named(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _wrapped(text: str, indent: str = "") -> list[str]:
    return wrap(text, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _no_environment() -> Environment:
    raise AssertionError


def with_lists(page: str) -> str:
    """The page with its lists of columns made anew."""
    return _TABLES.sub(lambda match: f"{match[1]}{lists()}\n{match[2]}", page)


def main() -> None:
    """Write outputs and lists into the page."""
    page = with_lists(PAGE.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as directory:
        play(Path(directory))
        for match in reversed(queries(page)):
            output = answer(match["query"], Path(directory))
            block = f"```sql\n{match['query']}```\n\n```text\n{output}```\n"
            page = page[: match.start()] + block + page[match.end() :]
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
