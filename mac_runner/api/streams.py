"""`stream`: the conversations of an experiment as they end, for a loop that learns from them or looks at them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from pathlib import Path

from mac_runner.api.calls import Settings, call_of
from mac_runner.api.events import ConversationEnded
from mac_runner.api.experiment import ExperimentLike
from mac_runner.api.playing import events_of, waker
from mac_runner.errors import RunDirectoryError
from mac_runner.runs.setup import ExperimentSet, set_up
from mac_runner.runs.view import RecordedConversation, RunView, open_run
from mac_runner.store import has_run
from mac_runner.types import JsonObject


async def stream(
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
    skip_ended: bool = False,
    progress: bool | None = None,
) -> AsyncGenerator[RecordedConversation, None]:
    """Play an experiment, or go on with it, and yield each conversation once, when its transcript is on the disk.

    Those that ended before this call come first, in the order of the experiment, unless `skip_ended`; then the others,
    in the order in which they end. Failed ones come too. A loop that is slower than the engines holds up nothing: what
    ended waits on the disk, and only its name in memory.

    Leaving the loop stops the run in good order once the generator is closed; `contextlib.aclosing` closes it at once.
    Raises what `run` raises.
    """
    call = call_of(experiment, out, set, profile, seed, limit, shard, concurrency, pull, progress)
    woken, ended = asyncio.Event(), _Ended()
    playing = call.playing(
        lambda: set_up(call.request),
        waker(asyncio.get_running_loop(), woken),
        on_checked=None if skip_ended else ended.look,
    )
    async with aclosing(events_of(playing, woken)) as events:
        async for event in events:
            while (conversation := await asyncio.to_thread(ended.next)) is not None:
                yield conversation
            if isinstance(event, ConversationEnded):
                yield await asyncio.to_thread(ended.of, event)
    while (conversation := await asyncio.to_thread(ended.next)) is not None:
        yield conversation
    for conversation in ended.repaired():
        yield conversation


class _Ended:
    """The conversations that ended, before this session or in it. Each is read from the disk when its turn comes."""

    def __init__(self) -> None:
        self._earlier: Iterator[RecordedConversation] = iter(())
        self._damaged: dict[str, RecordedConversation] = {}
        self._runs: dict[Path, RunView] = {}

    def look(self, chosen: ExperimentSet) -> None:
        """Note what has ended, before the run begins."""
        found = [(setup, open_run(setup.directory)) for setup in chosen.setups if has_run(setup.directory)]
        self._earlier = (
            conversation
            for setup, view in found
            for wanted in [{task_id for task_id, _ in setup.tasks.ids()}]
            for conversation in view
            if conversation.task_id in wanted
        )

    def next(self) -> RecordedConversation | None:
        """The next that ended before this session. The run repairs a damaged one, or plays it again: it comes later."""
        for conversation in self._earlier:
            try:
                return _read(conversation)
            except RunDirectoryError:
                self._damaged[conversation.task_id] = conversation
        return None

    def of(self, event: ConversationEnded) -> RecordedConversation:
        """A conversation that ended in this session."""
        self._damaged.pop(event.task_id, None)
        if event.directory not in self._runs:
            self._runs[event.directory] = open_run(event.directory)
        row: JsonObject = {
            "task_id": event.task_id,
            "index": event.index,
            "status": event.status,
            "failure": event.failure,
            "sha256": event.sha256,
            "size_bytes": event.size_bytes,
        }
        return _read(self._runs[event.directory].of_row(row))

    def repaired(self) -> Iterator[RecordedConversation]:
        """Those that were damaged when the run began. Raises RunDirectoryError where they still are."""
        return map(_read, self._damaged.values())


def _read(conversation: RecordedConversation) -> RecordedConversation:
    """The same conversation, with its transcript in memory. Raises RunDirectoryError where that is damaged."""
    assert conversation.transcript
    return conversation
