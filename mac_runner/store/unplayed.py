"""A run directory in which nothing was ever played: its engines did not start, say, for a mistyped name.

There are no results that others could not stand beside, so the corrected experiment may go on in it. What counts is
what stands there, and not how the sessions before ended: one that was killed leaves the same behind.
"""

from __future__ import annotations

from pathlib import Path

from mac_runner.store import journal
from mac_runner.store.disk import Disk
from mac_runner.store.layout import INDEX_SUFFIX, Layout, shard_path


def is_unplayed(disk: Disk, layout: Layout) -> bool:
    """Whether a run directory has no reply, no transcript, no ending and no death in it, and nothing unknown."""
    opened = (layout.config, layout.manifest, layout.summary, layout.events, layout.journal, layout.transcripts)
    known = {shard_path(layout.directory).name, *(path.name for path in opened)}
    others = (name for name in _visible(disk, layout.directory) if name not in known)
    return (
        all(name.endswith(INDEX_SUFFIX) and not any(disk.chunks(layout.directory / name)) for name in others)
        and not _visible(disk, layout.transcripts)
        and journal.is_blank(disk, layout)
    )


def forget_plan(disk: Disk, layout: Layout) -> None:
    """Remove, durably, what the experiment that was to be played here has planned and counted."""
    for name in _visible(disk, layout.directory):
        if name.endswith(INDEX_SUFFIX):
            disk.remove(layout.directory / name)
    for name in _visible(disk, layout.journal):
        disk.remove(layout.journal / name)
    disk.remove(layout.manifest)
    disk.remove(layout.summary)
    disk.sync_directory(layout.directory)


def _visible(disk: Disk, directory: Path) -> list[str]:
    return [name for name in disk.names(directory) if not name.startswith(".")]
