"""The page of the tables, docs/data.md: its queries run over two runs, and its lists of columns.

python -m tests.data.data_page      # plays both runs and writes outputs and lists into the page
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from contextlib import chdir
from pathlib import Path
from typing import cast

import duckdb

from mac_runner.cli.process import Exit
from mac_runner.data.testing import FlatTable, TrainingRun, prompt_table, schema_page, tables_of, training_tables
from mac_runner.environments import Environment
from mac_runner.registry import environment_specs
from mac_runner.store import Run
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
    for words in commands(blocks(PAGE, "Ten queries")[0].text):
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


def without_times(output: str) -> str:
    """An output without the cells of a last column that holds seconds."""
    lines = output.splitlines()
    return "\n".join(line.rsplit(maxsplit=1)[0] for line in lines) if lines[0].endswith("_s") else output.strip()


def lists() -> str:
    """The lists of columns, of every run and of each environment."""
    specs = environment_specs()
    general = tables_of(None)
    run = TrainingRun(cast(Run, None), _no_environment, lambda _ended: ())
    parts = ["", "## Of every run", "", *schema_page([*general.values(), prompt_table(_no_environment)])]
    parts += ["## For trainers", "", *schema_page(training_tables(run).values())]
    for name, heading in (("town_of_salem", "Town of Salem"), ("discussion", "Discussions")):
        own = tables_of(known(specs[name].results)())
        parts += [f"## {heading}", ""]
        more = {table: _beyond(own[table], general[table]) for table in ("conversations", "agents")}
        for table in more.values():
            parts += [*schema_page([table._replace(meaning="Columns besides those of every run.")])]
        parts += [*schema_page([table for each, table in own.items() if each not in general])]
    return "\n".join(parts).replace("\n## ", "\n### ").replace("\n### `", "\n#### `")


def _no_environment() -> Environment:
    raise AssertionError


def _beyond(table: FlatTable, general: FlatTable) -> FlatTable:
    columns: Mapping[str, object] = general.columns
    return table._replace(columns={name: one for name, one in table.columns.items() if name not in columns})


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
