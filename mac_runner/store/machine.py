"""The machine as its kernel describes it: which one this is, which processes it has, what a path is stored on.

Only the kernel's own accounts in `/proc` are read here, and no run directory. Where they are missing (on macOS) less
can be told, and the answers say so: a process is told by its number alone, and a filesystem is of unknown type.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
from functools import cached_property
from pathlib import Path

_ESCAPED = re.compile(r"\\([0-7]{3})")
_NETWORK_TYPES = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "coda", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs"}
    | {"nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "vboxsf", "virtiofs", "wekafs"}
)
# What is mounted through FUSE is as often remote as not, and does not say.
_NETWORK_PREFIXES = ("fuse.", "fuseblk.")


class Machine:
    """This machine. A test puts another in its place."""

    @cached_property
    def identity(self) -> str:
        """Tells machines apart, and this one before and after a restart; the same in all processes that see each other.

        A process number means a process only together with this: containers of one machine number theirs each anew.
        """
        told = (self.host, _told("/proc/sys/kernel/random/boot_id").strip(), _pid_namespace())
        return hashlib.blake2b("\x1f".join(told).encode("utf-8", "replace"), digest_size=4).hexdigest()

    @property
    def host(self) -> str:
        """The name of the machine, for people."""
        return platform.node()

    def process_start(self, pid: int) -> str | None:
        """When a process began, in the kernel's own count: numbers are given out again, and this tells them apart.

        Empty where the kernel does not say, None when there is no such process.
        """
        try:
            os.kill(pid, 0)
        except (ProcessLookupError, OverflowError):
            return None
        except PermissionError:
            pass  # It is there, and somebody else's.
        # The name of the program stands in parentheses and may hold anything; the start is the 20th field behind it.
        fields = _told(f"/proc/{pid}/stat").rpartition(")")[2].split()
        return fields[19] if len(fields) > 19 else ""

    def filesystem(self, path: Path) -> str:
        """The type of the filesystem that a path is on; empty where the kernel does not say."""
        return filesystem_at(_told("/proc/self/mountinfo"), path.resolve())


def filesystem_at(mountinfo: str, path: Path) -> str:
    """The type of the filesystem of an absolute path, by the kernel's list of mounts; empty when none covers it."""
    found, depth = "", -1
    for line in mountinfo.splitlines():
        place, dash, kind = line.partition(" - ")
        fields = place.split()
        if not dash or len(fields) < 5 or not kind.split():
            continue
        mount = Path(_ESCAPED.sub(lambda match: chr(int(match[1], 8)), fields[4]))
        # Of two mounts on one place the later one is seen.
        if path.is_relative_to(mount) and len(mount.parts) >= depth:
            found, depth = kind.split()[0], len(mount.parts)
    return found


def is_network(filesystem: str) -> bool:
    """Whether several machines may have a filesystem of this type in use at once, each with locks of its own."""
    return filesystem in _NETWORK_TYPES or filesystem.startswith(_NETWORK_PREFIXES)


def _told(path: str) -> str:
    """What the kernel says under `path`; empty when it says nothing."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").stat().st_ino)
    except OSError:
        return ""
