"""What pages ask for (`Source`), and where it comes from: a run directory or a grid (`RunSource`).

A request names a combination by its slug and a conversation by its number or its task id. Both are looked up among what
is there, so no text of a request becomes a path. A source is used by one thread at a time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from mac_runner.clock import Clock, SystemClock
from mac_runner.errors import ConfigError
from mac_runner.reports import status_json
from mac_runner.store import RunContents, begun_combinations, is_grid, read_run, read_standing
from mac_runner.types import JsonObject
from mac_runner.view_model import ConversationView, IndexColumns, RunPage
from mac_runner.viewer import stand_in


class NotThereError(ConfigError):
    """A request names something that the run does not have."""


class Source(Protocol):
    """What pages ask for. Raises NotThereError for a name that is not there, RunDirectoryError for damage."""

    def run(self, slug: str) -> RunPage:
        """The head of the run, or of a combination."""
        ...

    def index(self, slug: str, since: int) -> IndexColumns:
        """The list of conversations from row `since` on."""
        ...

    def conversation(self, slug: str, name: str, seat: str) -> ConversationView:
        """A conversation, whole or as a seat saw it."""
        ...


class RunSource:
    """The run or grid in a directory."""

    def __init__(self, directory: Path, *, clock: Clock | None = None) -> None:
        self.directory = directory
        self._clock = clock or SystemClock()

    def run(self, slug: str) -> RunPage:  # noqa: D102
        directory = self._directory(slug)
        standing = status_json(read_standing(directory), self._clock.utc_now())
        contents = read_run(directory)
        counts = contents.counts
        return stand_in.run_page(
            str(directory),
            contents.experiment_name,
            contents.environment_name,
            str(standing["state"]),
            (counts.planned, counts.done, counts.failed),
        )

    def index(self, slug: str, since: int) -> IndexColumns:  # noqa: D102
        rows = list(read_run(self._directory(slug)).rows())
        return stand_in.index_columns(rows[since:], since)

    def conversation(self, slug: str, name: str, seat: str) -> ConversationView:  # noqa: D102
        directory = self._directory(slug)
        contents = read_run(directory)
        return stand_in.conversation_view(_transcript(contents, name), str(directory))

    def _directory(self, slug: str) -> Path:
        if not is_grid(self.directory):
            if slug:
                raise NotThereError(f"{self.directory} is a single run: leave run={slug!r:.60} out")
            return self.directory
        slugs = [entry.slug for entry in begun_combinations(self.directory)]
        if slug in slugs:
            return self.directory / slug
        raise NotThereError(f"no combination of the grid that has begun is called {slug!r:.60}")


def _transcript(contents: RunContents, name: str) -> JsonObject:
    for task_id, ending in contents.state.endings.items():
        if name in (task_id, str(ending.task_index)):
            return contents.transcript(task_id)
    raise NotThereError(f"no conversation that has ended is called {name!r:.60}")
