"""Results that the journal does not acknowledge: transcripts without a `done` frame, index rows without either.

A resume and a merge judge them alike. Reads only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress

from mac_runner.store.disk import Disk
from mac_runner.store.frames import lines
from mac_runner.store.layout import Layout
from mac_runner.store.publishing import read_published
from mac_runner.store.records import entry
from mac_runner.store.retrying import Attempts
from mac_runner.store.transcripts import with_attempts
from mac_runner.types import JsonObject


def claimed_rows(disk: Disk, layout: Layout, is_known: Callable[[str], bool]) -> dict[str, JsonObject]:
    """The index rows of the tasks that are not `is_known`, as far as they can be read."""
    found: dict[str, JsonObject] = {}
    for line in lines(disk.chunks(layout.index)):
        with suppress(ValueError, RecursionError):
            row = json.loads(line.data)
            if isinstance(row, dict) and not is_known(task_id := entry(row, "task_id", str)):
                entry(row, "sha256", str)
                found[task_id] = row
    return found


def adoptable(
    disk: Disk,
    layout: Layout,
    orphans: Iterable[str],
    *,
    claims: Mapping[str, JsonObject],
    seeds: Mapping[str, int],
    attempts: Attempts,
) -> Iterator[tuple[str, JsonObject | str]]:
    """Of each transcript that the journal does not acknowledge: its row, or why it cannot be taken over.

    Its task must have the seed that is planned, and its digest must be that of its index row, where there is one.
    """
    for task_id in orphans:
        try:
            published = read_published(disk, layout, task_id)
            seed = entry(entry(published.transcript, "task", dict), "seed", int)
            if seed != seeds.get(task_id, seed):
                raise ValueError(f"its seed is {seed}, not {seeds[task_id]}")
            if task_id in claims and claims[task_id]["sha256"] != published.row["sha256"]:
                raise ValueError("its digest is not the one in the index")
            yield task_id, with_attempts(published.row, attempts.get(task_id, ()))
        except ValueError as fault:
            yield task_id, str(fault)
