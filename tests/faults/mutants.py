"""Bugs to be planted, one at a time, and by which oracle each is found out.

A check that never fired is no evidence. Each mutant replaces one function of the package by one with a mistake that a
programmer could make there; where the function is gone or called otherwise, planting it fails, and says so.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from mac_runner.backends import Backend
from mac_runner.backends.testing import DataPlane, Endpoint, Waiting
from mac_runner.clock import Clock
from mac_runner.environments.town_of_salem.seat import knowledge
from mac_runner.errors import StoreError, TransientBackendError
from mac_runner.scheduler import RequestScheduler, attempt, engine_policy, runner
from mac_runner.scheduler.testing import (
    Action,
    AttemptRunner,
    Event,
    HeldTurn,
    LiveConversation,
    ModelPool,
    ModelReady,
    Pools,
    Resized,
    RetryDue,
    Stage,
    Stop,
    generate,
)
from mac_runner.store import Disk, index_row, journal, records
from mac_runner.store.testing import DeathFrame, Entry, Item, OpenFile, RunState, Session, TranscriptItem
from mac_runner.types import JsonObject, RecordedReply, Reply, Request, Sampling, Turn
from tests.faults import oracles
from tests.sim.engine import ServersEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A bug: how it is planted, and what finds it out."""

    name: str
    plant: Callable[[pytest.MonkeyPatch], None]
    oracle: Callable[[], None]


# Of the store.


def skip_fsync(patch: pytest.MonkeyPatch) -> None:
    """What is appended is never synced."""
    patch.setattr(Disk, "sync", lambda _disk, _file: None)


def skip_fsync_of_new_files(patch: pytest.MonkeyPatch) -> None:
    """A file gets its name before its bytes are durable."""

    def write(disk: Disk, path: Path, pieces: Iterable[bytes]) -> Path:
        temporary = path.with_name(f".tmp-{disk._system.token()}")
        descriptor = disk._system.create(temporary)
        for piece in pieces:
            disk._write(descriptor, piece)
        disk._system.close(descriptor)
        return temporary

    patch.setattr(Disk, "_write_temporary", write)


def skip_directory_fsync(patch: pytest.MonkeyPatch) -> None:
    """The names of published transcripts are never synced."""
    patch.setattr(Disk, "sync_directory", lambda _disk, _path: None)


def note_before_transcript(patch: pytest.MonkeyPatch) -> None:
    """The `done` frame is written before the transcript that it tells of."""
    publish = Session._publish

    def note_first(session: Session, items: Sequence[TranscriptItem]) -> None:
        session._segment.write([journal.done_frame(index_row(item.transcript)) for item in items])
        publish(session, items)

    patch.setattr(Session, "_publish", note_first)


def acknowledged_before_fsync(patch: pytest.MonkeyPatch) -> None:
    """A conversation counts as written when it is handed over."""
    commit = Session.commit

    def count_first(session: Session, items: Sequence[Item]) -> None:
        for item in items:
            if isinstance(item, TranscriptItem):
                session._manifest.settle(item.task_id, str(item.transcript["status"]))
        commit(session, items)

    patch.setattr(Session, "commit", count_first)


def ignored_short_write(patch: pytest.MonkeyPatch) -> None:
    """A write that took half of the bytes is taken for one that took all."""
    patch.setattr(
        Disk, "_write", lambda disk, descriptor, data: disk._system.write(descriptor, memoryview(data)) and None
    )


def torn_tail_taken_for_a_line(patch: pytest.MonkeyPatch) -> None:
    """What a kill left half written is read like the rest."""
    blocks = records.blocks

    def all_ended(chunks: Iterable[bytes]) -> Iterator[records.Block]:
        return (block._replace(is_ended=True) for block in blocks(chunks))

    patch.setattr(records, "blocks", all_ended)


def accepted_checksum(patch: pytest.MonkeyPatch) -> None:
    """A frame is believed whatever its checksum says."""

    def decode(data: bytes) -> JsonObject | None:
        try:
            record = json.loads(data[9:])
        except (ValueError, RecursionError):
            return None
        return record if isinstance(record, dict) else None

    patch.setattr(records, "decode_frame", decode)


def second_publication_wins(patch: pytest.MonkeyPatch) -> None:
    """A transcript takes the place of one that was published before."""

    def replace(disk: Disk, temporary: Path, path: Path) -> bool:
        disk._system.replace(temporary, path)
        return True

    patch.setattr(Disk, "_link", replace)


def failed_sync_tried_again(patch: pytest.MonkeyPatch) -> None:
    """A sync that failed is believed when it succeeds the next time."""
    sync = Disk.sync

    def insist(disk: Disk, file: OpenFile) -> None:
        try:
            sync(disk, file)
        except StoreError:
            sync(disk, file)

    patch.setattr(Disk, "sync", insist)


def forgotten_deaths(patch: pytest.MonkeyPatch) -> None:
    """Each session counts the deaths over a turn from the beginning."""
    apply = RunState.apply

    def forget(state: RunState, record: Entry, end: int = 0) -> None:
        if not isinstance(record, DeathFrame):
            apply(state, record, end)

    patch.setattr(RunState, "apply", forget)


# Of the scheduler, of a backend and of an environment.


def retry_on_cancel(patch: pytest.MonkeyPatch) -> None:
    """A cancellation is taken for a fault of the engine, and the request is sent again."""

    async def asked(backend: Backend, request: Request, _clock: Clock) -> Reply:
        try:
            return await backend.generate(request)
        except (ConnectionError, TimeoutError, asyncio.CancelledError) as fault:
            raise TransientBackendError("no answer") from fault

    patch.setattr(attempt, "_asked", asked)


def engine_left_open_on_cancel(patch: pytest.MonkeyPatch) -> None:
    """A cancellation while engines are closed leaves the rest of them open."""
    patch.setattr(runner, "_close", lambda backends, _policies: runner._close_each(backends))


def leaked_slot(patch: pytest.MonkeyPatch) -> None:
    """A request that was sent before does not give its slot back."""
    leave = Pools._leave

    def leaking(pools: Pools, held: HeldTurn) -> None:
        if held.stage is not Stage.IN_FLIGHT or held.sendings < 2:
            leave(pools, held)

    patch.setattr(Pools, "_leave", leaking)


def double_release(patch: pytest.MonkeyPatch) -> None:
    """A request that was sent before gives its slot back twice."""
    leave = Pools._leave

    def releasing(pools: Pools, held: HeldTurn) -> None:
        leave(pools, held)
        if held.stage is Stage.IN_FLIGHT and held.sendings > 1:
            pools.in_flight -= 1

    patch.setattr(Pools, "_leave", releasing)


def newest_first(patch: pytest.MonkeyPatch) -> None:
    """The latest conversation goes first, and the earliest may wait for ever."""
    queue = Pools.queue

    def queue_newest_first(pools: Pools, held: HeldTurn) -> None:
        index = held.conversation.index
        held.conversation.index = -index
        queue(pools, held)
        held.conversation.index = index

    patch.setattr(Pools, "queue", queue_newest_first)


def ignored_token_budget(patch: pytest.MonkeyPatch) -> None:
    """Whatever the tokens, a free slot is enough."""
    patch.setattr(ModelPool, "_has_tokens_for", lambda _pool, _held: True)


def departure_after_stop(patch: pytest.MonkeyPatch) -> None:
    """What was ready when the run was told to stop is sent all the same."""
    handle = RequestScheduler.handle

    def handle_first(scheduler: RequestScheduler, event: Event, now_s: float = 0.0) -> list[Action]:
        actions = handle(scheduler, event, now_s)
        if isinstance(event, Stop):
            scheduler._stopped = False
        return actions

    patch.setattr(RequestScheduler, "handle", handle_first)


def forgotten_deadline(patch: pytest.MonkeyPatch) -> None:
    """The deadline is that of one sign of life, not of the whole request."""

    async def patient(
        backend: Backend, request: Request, *, deadline_s: float, clock: Clock, waiting: Waiting
    ) -> Reply:
        return await generate(backend, request, deadline_s=100 * deadline_s, clock=clock, waiting=waiting)

    patch.setattr(attempt, "generate", patient)


def another_seed_at_each_sending(patch: pytest.MonkeyPatch) -> None:
    """What is sent again is not what was sent."""
    request = LiveConversation.request

    def reseeded(live: LiveConversation, turn: Turn, *, is_suspect: bool) -> Request:
        made = request(live, turn, is_suspect=is_suspect)
        return replace(made, sampling=replace(made.sampling, seed=7)) if turn.key in live.requests else made

    patch.setattr(LiveConversation, "request", reseeded)


def ignored_gates(patch: pytest.MonkeyPatch) -> None:
    """Nobody waits for those who speak before."""

    def place(scheduler: RequestScheduler, held: HeldTurn, now_s: float) -> None:
        if held.stage is not Stage.READY:
            scheduler._pools.move(held, Stage.READY, now_s)

    patch.setattr(RequestScheduler, "_place", place)


def lost_wakeup(patch: pytest.MonkeyPatch) -> None:
    """The end of a pause between two sendings is not noticed when a conversation has been paused before."""
    retry_due = RequestScheduler._retry_due

    def deaf(scheduler: RequestScheduler, event: RetryDue, now_s: float) -> None:
        held = scheduler._pools.conversations[event.conversation].turns[event.turn.key]
        if held.sendings < 2:
            retry_due(scheduler, event, now_s)

    patch.setattr(RequestScheduler, "_retry_due", deaf)


def unjournaled_reply(patch: pytest.MonkeyPatch) -> None:
    """A reply to a turn that was sent twice goes to the conversation and not to the journal."""
    journal = AttemptRunner._journal

    def forgetful(self: AttemptRunner, live: LiveConversation, turn: Turn, recorded: RecordedReply) -> bool:
        return live.wants(turn) if recorded.reply.timing.faults else journal(self, live, turn, recorded)

    patch.setattr(AttemptRunner, "_journal", forgetful)


def judged_in_company(patch: pytest.MonkeyPatch) -> None:
    """A turn is never tried alone: the third death is held against all that were there."""
    patch.setattr(engine_policy, "is_suspect", lambda _deaths: False)


def poison_sent_for_ever(patch: pytest.MonkeyPatch) -> None:
    """Deaths are counted, and nobody looks at the count."""
    for module in (attempt, engine_policy):
        patch.setattr(module, "is_poison", lambda _deaths: False)


def suspect_in_company(patch: pytest.MonkeyPatch) -> None:
    """A suspect waits for nobody."""
    patch.setattr(ModelPool, "_has_room_for", ModelPool._has_tokens_for)


def engine_reserved_for_a_suspect(patch: pytest.MonkeyPatch) -> None:
    """A suspect has the whole engine, though one server would do."""
    patch.setattr(ServersEngine, "isolates", False)


def suspects_in_a_crowd(patch: pytest.MonkeyPatch) -> None:
    """An engine that isolates suspects gets them like any other request."""
    request = LiveConversation.request

    def unmarked(live: LiveConversation, turn: Turn, *, is_suspect: bool) -> Request:
        return replace(request(live, turn, is_suspect=is_suspect), is_suspect=False)

    patch.setattr(LiveConversation, "request", unmarked)


def deaf_to_resizes(patch: pytest.MonkeyPatch) -> None:
    """An engine that serves less goes on to get as much as before."""
    resize = RequestScheduler._resize

    def deaf(scheduler: RequestScheduler, event: ModelReady | Resized) -> None:
        if isinstance(event, ModelReady):
            resize(scheduler, event)

    patch.setattr(RequestScheduler, "_resize", deaf)


def shrunk_at_the_cost_of_others(patch: pytest.MonkeyPatch) -> None:
    """What a shrunken engine still has in flight takes the slots of others."""
    resize = RequestScheduler._resize

    def shrinking(scheduler: RequestScheduler, event: ModelReady | Resized) -> None:
        resize(scheduler, event)
        scheduler._in_flight_max = scheduler._slots

    patch.setattr(RequestScheduler, "_resize", shrinking)


def trusted_server(patch: pytest.MonkeyPatch) -> None:
    """A server that takes connections is taken for one that answers: no canary is sent."""

    async def sing(_plane: DataPlane, _endpoint: Endpoint, _settings: Sampling | None = None) -> None:
        return None

    patch.setattr(DataPlane, "canary", sing)


def speaker_told_by_the_words(patch: pytest.MonkeyPatch) -> None:
    """What a player wrote is shown as it stands, a line of somebody else's in it and all."""
    patch.setattr(knowledge, "defuse", str)


MUTANTS = (
    Mutant(name="skip fsync", plant=skip_fsync, oracle=oracles.crashes),
    Mutant(name="skip fsync of new files", plant=skip_fsync_of_new_files, oracle=oracles.crashes),
    Mutant(name="skip directory fsync", plant=skip_directory_fsync, oracle=oracles.crashes),
    Mutant(name="note before transcript", plant=note_before_transcript, oracle=oracles.crashes),
    Mutant(name="acknowledged before fsync", plant=acknowledged_before_fsync, oracle=oracles.crashes),
    Mutant(name="ignored short write", plant=ignored_short_write, oracle=oracles.failing_disks),
    Mutant(name="torn tail taken for a line", plant=torn_tail_taken_for_a_line, oracle=oracles.damaged_frames),
    Mutant(name="accepted checksum", plant=accepted_checksum, oracle=oracles.damaged_frames),
    Mutant(name="second publication wins", plant=second_publication_wins, oracle=oracles.sessions),
    Mutant(name="failed sync tried again", plant=failed_sync_tried_again, oracle=oracles.failing_disks),
    Mutant(name="forgotten deaths", plant=forgotten_deaths, oracle=oracles.sessions),
    Mutant(name="retry on cancel", plant=retry_on_cancel, oracle=oracles.cancellations),
    Mutant(name="engine left open on cancel", plant=engine_left_open_on_cancel, oracle=oracles.cancellations),
    Mutant(name="leaked slot", plant=leaked_slot, oracle=oracles.storms),
    Mutant(name="double release", plant=double_release, oracle=oracles.storms),
    Mutant(name="newest first", plant=newest_first, oracle=oracles.storms),
    Mutant(name="ignored token budget", plant=ignored_token_budget, oracle=oracles.worlds),
    Mutant(name="departure after stop", plant=departure_after_stop, oracle=oracles.worlds),
    Mutant(name="forgotten deadline", plant=forgotten_deadline, oracle=oracles.storms),
    Mutant(name="another seed at each sending", plant=another_seed_at_each_sending, oracle=oracles.storms),
    Mutant(name="ignored gates", plant=ignored_gates, oracle=oracles.worlds),
    Mutant(name="lost wakeup", plant=lost_wakeup, oracle=oracles.storms),
    Mutant(name="unjournaled reply", plant=unjournaled_reply, oracle=oracles.storms),
    Mutant(name="judged in company", plant=judged_in_company, oracle=oracles.poisons),
    Mutant(name="poison sent for ever", plant=poison_sent_for_ever, oracle=oracles.storms),
    Mutant(name="trusted server", plant=trusted_server, oracle=oracles.servers),
    Mutant(name="speaker told by the words", plant=speaker_told_by_the_words, oracle=oracles.attacks),
    Mutant(name="suspect in company", plant=suspect_in_company, oracle=oracles.worlds),
    Mutant(name="engine reserved for a suspect", plant=engine_reserved_for_a_suspect, oracle=oracles.isolations),
    Mutant(name="suspects in a crowd", plant=suspects_in_a_crowd, oracle=oracles.servers_in_storms),
    Mutant(name="deaf to resizes", plant=deaf_to_resizes, oracle=oracles.worlds),
    Mutant(name="shrunk at the cost of others", plant=shrunk_at_the_cost_of_others, oracle=oracles.resizes),
)
