"""How many connections this process may hold: each is a file descriptor, of which a process has a bounded number."""

from __future__ import annotations

import resource
from contextlib import suppress

from mac_runner.nano.server.limits import DESCRIPTORS_KEPT


def raise_limit() -> int | None:
    """Let this process have as many descriptors as it is allowed; how many that are, None for no bound."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Where the system has a lower bound of its own, which it does not tell, the limit stays as it is.
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def connections_within(wanted: int, limit: int | None) -> int:
    """So many connections, or what `limit` descriptors leave when files and pipes have theirs; at least one."""
    return wanted if limit is None else max(min(wanted, limit - DESCRIPTORS_KEPT), 1)
