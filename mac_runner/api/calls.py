"""Playing experiments from Python: `run` and `arun`.

Both do what `mac-run FILE` does, in the same run directory, and the same call goes on where it stopped.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import aclosing
from inspect import iscoroutinefunction
from typing import NamedTuple, TypeAlias

from mac_runner.api.experiment import ExperimentLike, written_of
from mac_runner.api.playing import Event, Playing, events_of, wait_for, waker
from mac_runner.config import Override, override, whole_number
from mac_runner.errors import ConfigError
from mac_runner.plan import parse_shard
from mac_runner.runs.policies import Policy, PolicyRequest
from mac_runner.runs.setup import ExperimentSet, RunRequest, set_up
from mac_runner.runs.view import RunView, directory_of, open_run
from mac_runner.status import Display, choose_display

Settings: TypeAlias = Mapping[str, object] | Iterable[str]
"""Values by dotted key, or texts `KEY=VALUE` as `--set` takes them."""
OnEvent: TypeAlias = Callable[[Event], object]


def run(
    experiment: ExperimentLike,
    *,
    out: str | os.PathLike[str] | None = None,
    set: Settings | None = None,
    profile: str | None = None,
    seed: int | None = None,
    limit: int | None = None,
    shard: str | None = None,
    concurrency: int | None = None,
    pull: bool = False,
    on_event: OnEvent | None = None,
    progress: bool | None = None,
) -> RunView:
    """Play an experiment or a grid, or go on with it, and return its run directory as tables.

    The arguments are the flags of `mac-run`. `on_event` is called in the thread that called `run`; what it raises stops
    the run and comes out. `progress` shows a bar on stderr; by default there is one on a terminal and in a notebook,
    and a line every ten seconds elsewhere.

    Conversations that fail raise nothing: `summary` counts them. Raises ConfigError, RunDirectoryError,
    EngineDeadError, StoreError or ShortageError where `mac-run` would end with an error. KeyboardInterrupt stops the
    run in good order before it comes out: the requests in flight are awaited, and the same call goes on. A second one
    awaits nothing.
    """
    call = call_of(experiment, out, set, profile, seed, limit, shard, concurrency, pull, progress)
    chosen = set_up(call.request)
    woken = threading.Event()
    playing = call.playing(lambda: chosen, woken.set)
    return open_run(wait_for(playing, woken, checked_reaction(on_event)))


async def arun(
    experiment: ExperimentLike,
    *,
    out: str | os.PathLike[str] | None = None,
    set: Settings | None = None,
    profile: str | None = None,
    seed: int | None = None,
    limit: int | None = None,
    shard: str | None = None,
    concurrency: int | None = None,
    pull: bool = False,
    on_event: OnEvent | None = None,
    progress: bool | None = None,
) -> RunView:
    """As `run`, for code that runs in an event loop of asyncio. Several may be awaited together.

    The run has a loop and a thread of its own, so neither loop holds up the other. `on_event` is called in the loop of
    the caller. Cancelling stops the run in good order, as an interrupt stops `run`.
    """
    call = call_of(experiment, out, set, profile, seed, limit, shard, concurrency, pull, progress)
    react = checked_reaction(on_event)
    woken = asyncio.Event()
    playing = call.playing(lambda: set_up(call.request), waker(asyncio.get_running_loop(), woken))
    async with aclosing(events_of(playing, woken)) as events:
        async for event in events:
            react(event)
    # The journal of a large run takes seconds to read.
    return await asyncio.to_thread(open_run, playing.directory())


class Call(NamedTuple):
    """The arguments of a call, checked."""

    request: RunRequest
    concurrency: int | None
    display: Display

    def playing(
        self,
        prepare: Callable[[], ExperimentSet],
        wake: Callable[[], object],
        on_checked: Callable[[ExperimentSet], object] | None = None,
        policy: PolicyRequest | None = None,
    ) -> Playing:
        """The run of this call, not started yet."""
        return Playing(
            prepare,
            wake=wake,
            display=self.display,
            concurrency=self.concurrency,
            can_pull=self.request.can_pull,
            on_checked=on_checked,
            policy=policy,
        )


def call_of(
    experiment: ExperimentLike,
    out: str | os.PathLike[str] | None,
    set: Settings | None,
    profile: str | None,
    seed: int | None,
    limit: int | None,
    shard: str | None,
    concurrency: int | None,
    pull: bool,
    progress: bool | None,
) -> Call:
    """The arguments of a call. Raises ConfigError for one that cannot be used."""
    request = RunRequest(
        file=written_of(experiment),
        profile=profile,
        overrides=_overrides(set),
        seed=None if seed is None else str(seed),
        limit=count_of("limit", limit),
        shard=None if shard is None else parse_shard(str(shard)),
        out=None if out is None else directory_of("out", out),
        can_pull=pull,
    )
    return Call(request, count_of("concurrency", concurrency), display_of(progress))


def _overrides(values: Settings | None) -> tuple[str | Override, ...]:
    if values is None:
        return ()
    if isinstance(values, Mapping):
        return tuple(override(key, value) for key, value in values.items())
    return checked_texts(values)


def checked_texts(values: Iterable[str]) -> tuple[str, ...]:
    """Texts `KEY=VALUE`. Raises ConfigError for anything else."""
    if isinstance(values, str):
        raise ConfigError(f"set: found the text {values!r}; write {{'section.key': value}} or ['section.key=value']")
    texts = tuple(values)
    for text in texts:
        if not isinstance(text, str):
            raise ConfigError(f"set: found {text!r:.60} in a list; write ['section.key=value']")
    return texts


def count_of(name: str, value: int | None) -> int | None:
    """A number of at least 1. Raises ConfigError."""
    return None if value is None else whole_number(name, str(value), at_least=1)


def checked_reaction(on_event: OnEvent | None) -> OnEvent:
    """What is called with each event. Raises TypeError for what cannot be called so."""
    if on_event is not None and not callable(on_event):
        raise TypeError(f"on_event is {type(on_event).__name__}; give a function of one argument, the event")
    if iscoroutinefunction(on_event):
        raise TypeError(
            "on_event is a coroutine function, and is called without await; use a plain function, or stream"
        )
    return on_event or (lambda _event: None)


def display_of(progress: bool | None) -> Display:
    """What a call shows while it plays."""
    stream = sys.stderr
    if progress is False or stream is None:
        return choose_display(sys.__stderr__ or sys.stderr, quiet=True)
    # A notebook shows a bar, though its stderr is not a terminal.
    is_bar = progress is True or "ipykernel" in sys.modules
    return choose_display(stream, live=False, has_bar=is_bar)


def policies_of(given: object) -> tuple[Policy, ...]:
    """The policies of a call. Raises ConfigError for what is none, and for two of one model."""
    listed = () if given is None else given if isinstance(given, list | tuple) else (given,)
    policies = tuple(each for each in listed if isinstance(each, Policy))
    if len(policies) < len(listed):
        raise ConfigError(f"policy: found {given!r}; give a Policy, such as Policy('learner'), or a list of them")
    models = [each.model for each in policies]
    if twice := [model for model in models if models.count(model) > 1]:
        raise ConfigError(f"policy: model {twice[0]!r} has more than one; give one for each model")
    return policies
