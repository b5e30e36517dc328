"""A run beside its mirror: each run directory that ends is copied, and those that ended before."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mac_runner.backends.redaction import Redactor
from mac_runner.runs import claims
from mac_runner.runs.setup import ExperimentSet
from mac_runner.secrecy import secrets_in
from mac_runner.store import Disk
from mac_runner.store.lock import read_owner
from mac_runner.store.mirror import Mirror


@contextmanager
def mirrored(
    chosen: ExperimentSet, url: str | None, say: Callable[[str], None], *, is_quiet: bool
) -> Iterator[Callable[[Path], object]]:
    """Yields what is to be called with each run directory that has ended. Waits for the copies at the end."""
    if url is None:
        yield lambda _directory: None
        return
    # A file system has its secrets from the environment, and its errors quote what a server says.
    redactor = Redactor(*secrets_in(os.environ))
    mirror = Mirror(url, chosen.directory, say=say, quoted=redactor.quoted)
    # Where nothing is left to play, a copy may have failed before.
    if read_owner(Disk(), chosen.directory) is None and all(map(claims.is_finished, chosen.setups)):
        mirror.add(chosen.directory)
    try:
        yield mirror.add
    finally:
        if not is_quiet and (waiting := mirror.waiting):
            say(f"waiting for {waiting} copies to {url}")
        mirror.close()
