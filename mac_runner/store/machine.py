"""The machine: its identity, its processes and the types of its filesystems.

psutil answers what it can. Where the system says less, so do the answers: an unknown process start or filesystem type
is an empty text. No run directory is read here.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterable
from contextlib import suppress
from functools import cached_property
from pathlib import Path

import psutil

from mac_runner.files import read_regular

_NETWORK_TYPES = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "coda", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs"}
    | {"nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "vboxsf", "virtiofs", "wekafs"}
)
# A FUSE mount is often remote, and its type does not say so.
_NETWORK_PREFIXES = ("fuse.", "fuseblk.")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_BOOT_ID_BYTES_MAX = 128
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Machine:
    """This machine. A test puts another in its place."""

    @cached_property
    def identity(self) -> str:
        """Eight hex digits that differ by machine, boot and pid namespace; equal in processes that see each other.

        A process number identifies a process only together with this: containers of one machine number theirs
        independently. psutil has no pid namespace and no boot id, and its boot time moves when the clock is set.
        """
        boot_id, namespace = "", ""
        with suppress(OSError):
            boot_id = read_regular(_BOOT_ID, _BOOT_ID_BYTES_MAX).decode("ascii", "replace").strip()
        with suppress(OSError):
            namespace = str(Path("/proc/self/ns/pid").stat().st_ino)
        parts = "\x1f".join((self.host, boot_id, namespace))
        return hashlib.blake2b(parts.encode("utf-8", "replace"), digest_size=4).hexdigest()

    @property
    def host(self) -> str:
        return platform.node()

    def process_start(self, pid: int) -> str | None:
        """When a process started; distinguishes reused process numbers. None when there is no such process.

        One that has ended is none any more, though its parent may never collect it.

        On Linux in kernel ticks since boot, which do not move with the clock; elsewhere in seconds since the epoch.
        Empty where the system does not say.
        """
        try:
            booted_at_s = psutil.boot_time()
            process = psutil.Process(pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                return None
            started_at_s = process.create_time()
            if psutil.boot_time() != booted_at_s:  # The clock was set in between, and psutil adds the boot time.
                return self.process_start(pid)
        except (psutil.NoSuchProcess, ValueError):
            return None
        except (psutil.Error, OSError, RuntimeError):
            return ""
        # Ticks, as earlier versions wrote them into `.owner.json`: a process they began is still recognised.
        return str(round((started_at_s - booted_at_s) * _TICKS_PER_S)) if psutil.LINUX else str(started_at_s)

    def filesystem(self, path: Path) -> str:
        """The type of the filesystem that a path is on; empty where the system does not say."""
        try:
            mounts = [(mount.mountpoint, mount.fstype) for mount in psutil.disk_partitions(all=True)]
        except OSError:
            return ""
        return filesystem_at(mounts, path.resolve())


def filesystem_at(mounts: Iterable[tuple[str, str]], path: Path) -> str:
    """The type of the filesystem of an absolute path, from (mount point, type) pairs; empty when none covers it."""
    found, depth = "", -1
    for place, kind in mounts:
        # Of two mounts on one place the later one is visible.
        if path.is_relative_to(place) and len(Path(place).parts) >= depth:
            found, depth = kind, len(Path(place).parts)
    return found


def is_network(filesystem: str) -> bool:
    """Whether several machines may use a filesystem of this type at once, each with locks of its own."""
    return filesystem in _NETWORK_TYPES or filesystem.startswith(_NETWORK_PREFIXES)
