"""Whether a run directory changes while it is read: a process is at work in it, or was in the meantime."""

from __future__ import annotations

from mac_runner.store import journal
from mac_runner.store.disk import Disk
from mac_runner.store.layout import Layout
from mac_runner.store.machine import Machine
from mac_runner.store.owner import is_alive, read_owner


class Motion:
    """Looks at a run directory when it is made, and again when asked."""

    def __init__(self, disk: Disk, layout: Layout, machine: Machine) -> None:
        self._disk = disk
        self._layout = layout
        self._machine = machine
        latest = max(journal.sessions(disk, layout), default=0)
        self._seen = at_work(disk, layout, machine)
        self.session = latest + (self._seen is None)
        """The first session that may be at work."""

    def owner(self) -> str | None:
        """Who is at work, or was since then, in words; None when nobody is."""
        if (owner := self._seen or at_work(self._disk, self._layout, self._machine)) is not None:
            return owner
        has_begun = max(journal.sessions(self._disk, self._layout), default=0) >= self.session
        return "it was, by a process that has ended meanwhile" if has_begun else None

    def told(self, owner: str, unjudged: int) -> str:
        """What to know of a check of a run under way."""
        return (
            f"the run is under way ({owner}); what is written meanwhile is not judged ({unjudged} such places): "
            "verify it again when it has ended"
        )


def at_work(disk: Disk, layout: Layout, machine: Machine) -> str | None:
    """Who has left a note in the directory and may be alive, in words; None when nobody is."""
    owner = read_owner(disk, layout.directory)
    if owner is None:
        return None
    match is_alive(owner, machine):
        case True:
            return str(owner)
        case None:
            return f"it may be: this machine cannot tell whether {owner} is alive"
        case False:
            return None
