"""The list of a run's conversations with what is added up over them, as far as they were read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mac_runner.reports import listed
from mac_runner.reports.conversations import Listed
from mac_runner.results import section
from mac_runner.store.rows import DoneRow, RowTotals
from mac_runner.types import JsonObject
from mac_runner.views.index import IndexTable


class Listing:
    """The list of one run.

    `resolved` is its experiment. Where that leaves open which columns there are, rows decide.
    """

    def __init__(self, resolved: JsonObject, version: int, rows: Iterable[DoneRow] = ()) -> None:
        environment = section(resolved, "conversation_config").get("environment")
        self._how = listed(environment if isinstance(environment, str) else "")
        self._has_open_columns = not self._how.own.of or bool(resolved.get("metrics"))
        self._kinds: dict[str, set[str]] = {}
        self.totals = RowTotals()
        how = self._columns(rows)
        self._note(how)
        self.table = IndexTable(how, version)

    def fits(self, rows: Sequence[DoneRow]) -> bool:
        """Whether the list has all columns of these rows. Where it does not, `add` leaves out what has no column."""
        return not self._has_open_columns or not self._note(self._columns(rows))

    def add(self, rows: Sequence[DoneRow]) -> None:
        """Add rows."""
        self.table.add(rows)
        for row in rows:
            self.totals.add(row)

    def _columns(self, rows: Iterable[DoneRow]) -> Listed:
        if not self._has_open_columns:
            return self._how
        found = [row.whole() for row in rows]
        return self._how.with_outcomes(found).with_metrics(found)

    def _note(self, how: Listed) -> bool:
        """Whether columns have a name or a kind that no row before had."""
        is_new = False
        for name, column in how.columns.items():
            kinds = self._kinds.setdefault(name, set())
            is_new |= column.kind not in kinds
            kinds.add(column.kind)
        return is_new
