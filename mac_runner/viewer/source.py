"""What pages ask for, whether they are served or published. `run_source.py` answers it from a run directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from mac_runner.errors import ConfigError
from mac_runner.view_model import (
    CompareView,
    ConversationView,
    EnginesPage,
    FlowPage,
    ForkTree,
    IndexColumns,
    RunPage,
    TurnView,
)


class NotThereError(ConfigError):
    """A request names something that the run does not have."""


class Text(NamedTuple):
    """A conversation whose transcript can be searched."""

    number: int
    task_id: str
    path: Path


class Pulse(NamedTuple):
    """How a run has changed. `touched` are the numbers of conversations with replies since the last pulse."""

    version: int
    rows: int | None
    """How long the list is; None for a grid, which has none."""
    touched: frozenset[int]
    state: object
    """Changes when the head of the run may have."""
    is_reading: bool = False
    """Whether some of it was not read yet."""


class Source(Protocol):
    """What pages ask for. Raises NotThereError for a name that is not there, RunDirectoryError for damage.

    `slug` names a combination of a grid, and is empty otherwise. All methods but `engines` are called on one thread,
    and `engines` on another.
    """

    def run(self, slug: str) -> RunPage:
        """The head of the run, or of a combination."""
        ...

    def index(self, slug: str, since: int, version: int | None, most: int | None = None) -> IndexColumns:
        """The list of conversations from row `since` on, `most` rows of it; all where it is of another version."""
        ...

    def conversation(self, slug: str, name: str, seat: str) -> ConversationView:
        """A conversation, whole or as a seat saw it. In a fork, the task id of a parent names that too."""
        ...

    def turn(self, slug: str, name: str, key: str, seat: str) -> TurnView:
        """A turn of a conversation, whole or as a seat saw it."""
        ...

    def compare(self, slug: str, left: str, right: str, other: str) -> CompareView:
        """Two conversations beside each other; with `other` the right one is of that combination."""
        ...

    def forks(self, slug: str, name: str) -> Sequence[ForkTree]:
        """The forks of each parent; with `name` only of that parent, or of the parent of that conversation."""
        ...

    def flow(self, slug: str, only: str) -> FlowPage:
        """The stance flow over the conversations that a filter chooses."""
        ...

    def engines(self, slug: str) -> EnginesPage:
        """What the engines did over time."""
        ...

    def texts(self, slug: str) -> Sequence[Text]:
        """The conversations that have ended, in the order of their numbers."""
        ...

    def pulse(self, slug: str) -> Pulse:
        """How the run has changed."""
        ...

    def is_reading(self, slug: str) -> bool:
        """Whether some of a run was not read yet."""
        ...

    def read_on(self) -> bool:
        """Read a part of what was not read of the runs; False where all is read.

        Other answers are of what was read until then. Raises nothing: what cannot be read fails where it is asked for.
        """
        ...

    def let_go(self) -> None:
        """Close the files of what is half read; it is read anew if anybody asks again."""
        ...
