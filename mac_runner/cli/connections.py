"""How many requests may be in flight as far as file descriptors go: over HTTP each takes a connection, which is one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from mac_runner import descriptors
from mac_runner.config import ModelDefinition
from mac_runner.errors import ShortageError
from mac_runner.limits import DESCRIPTORS_MIN
from mac_runner.registry import backend_specs


class Bound(NamedTuple):
    """How many requests may be in flight, None for no bound, and what to say where that is less than asked for."""

    concurrency: int | None
    words: str | None = None


def connections_of(definitions: Iterable[ModelDefinition]) -> int:
    """How many connections these models take when they have all the requests that they may have."""
    return sum(backend_specs()[definition.backend].connections(definition.settings) for definition in definitions)


def bound(limit: int | None, *, wanted: int, concurrency: int | None, runs_open: int = 1) -> Bound:
    """What `limit` descriptors allow of the `wanted` connections, of which no more than `concurrency` are in use."""
    wanted = wanted if concurrency is None else min(wanted, concurrency)
    if limit is None or wanted <= (room := descriptors.connections_within(limit, runs_open)):
        return Bound(concurrency)
    return Bound(
        room,
        f"{limit} file descriptors leave room for {room} connections and not for {wanted}: at most {room} requests "
        f"are in flight; for all {wanted} raise the hard limit to {wanted + descriptors.kept(runs_open)} before the "
        "run (`ulimit -n`)",
    )


def concurrency_within_descriptors(
    say: Callable[[str], None], *, wanted: int, concurrency: int | None, runs_open: int = 1
) -> int | None:
    """Raise the limit of this process, and return how many requests may be in flight at once under it.

    Raises ShortageError where not even one can be.
    """
    limit = descriptors.raise_limit()
    if limit is not None and limit < DESCRIPTORS_MIN:
        raise ShortageError(
            f"this process may have {limit} file descriptors, and a run needs {DESCRIPTORS_MIN} at least; raise the "
            "limit (`ulimit -n`), and run the same command again"
        )
    found = bound(limit, wanted=wanted, concurrency=concurrency, runs_open=runs_open)
    if found.words is not None:
        say(found.words)
    return found.concurrency
