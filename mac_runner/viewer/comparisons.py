"""The comparisons of a publication: which pairs of conversations a reader can lay beside each other.

A server compares any two that have a beginning in common. A folder holds what was compared when it was written: the
conversations of one number in two combinations of a grid, and the forks of one parent. Of more than `ALL_MAX` of them,
each is compared with the first alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import combinations
from typing import Final, NamedTuple

from mac_runner.errors import ConfigError, RunDirectoryError
from mac_runner.reports.turns import readable
from mac_runner.store import Run
from mac_runner.types import JsonObject
from mac_runner.view_model import ComparedRow, ConversationView
from mac_runner.views.compare import compare_view
from mac_runner.views.conversation import whole_view

ALL_MAX: Final = 4
_KEPT_MAX: Final = 8


class Member(NamedTuple):
    """A conversation of a publication: the folder of its run, its number, its task."""

    folder: int
    number: int
    task_id: str


class Compared(NamedTuple):
    """How the events of a conversation lie beside those of another, which is of the same folder or of a later one."""

    folder: int
    number: int
    rows: tuple[ComparedRow, ...]
    first_turn: str
    reason: str


class Comparisons:
    """Compares the conversations that are published. `runs` are by folder."""

    def __init__(self, members: Iterable[Member], runs: Mapping[int, Run]) -> None:
        self._runs = runs
        self._shown = lru_cache(_KEPT_MAX)(self._read)
        self._others: defaultdict[Member, list[Member]] = defaultdict(list)
        groups: defaultdict[object, list[Member]] = defaultdict(list)
        if len(runs) > 1:
            for member in members:
                groups[member.number].append(member)
        elif any(run.fork is not None for run in runs.values()):
            parents = {str(row["task_id"]): row.get("fork_of") for one in runs.values() for row in one.rows()}
            for member in members:
                groups[parents[member.task_id]].append(member)
        for group in groups.values():
            for left, right in _pairs(sorted(group)):
                self._others[left].append(right)

    def __bool__(self) -> bool:
        return bool(self._others)

    def of(self, member: Member) -> Iterator[Compared]:
        """The comparisons in which a conversation is on the left."""
        for other in self._others.get(member, ()):
            try:
                with readable(f"{member.task_id} or {other.task_id}"):
                    (left, left_view), (right, right_view) = self._shown(member), self._shown(other)
                    found = compare_view(left, right, left_view, right_view)
            except (ConfigError, RunDirectoryError):
                # Two combinations may differ in their seeds: these have nothing in common. A damaged one is left out.
                continue
            yield Compared(other.folder, other.number, found.rows, found.first_turn, found.reason)

    def _read(self, member: Member) -> tuple[JsonObject, ConversationView]:
        transcript = self._runs[member.folder].transcript(member.task_id)
        return transcript, whole_view(transcript)


def _pairs(group: list[Member]) -> Iterator[tuple[Member, Member]]:
    yield from combinations(group, 2) if len(group) <= ALL_MAX else ((group[0], other) for other in group[1:])
