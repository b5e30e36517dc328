"""An engine of several replicas, each a process with a whole engine: the leader's side, which computes nothing.

When one of independent replicas is lost, its requests are dealt again with their numbers and seeds, so they come to the
same tokens. It is started again, and joins the others with the weights in use. The engine lives while a replica does or
loads: until then requests wait here. In lock step all play the rounds that the leader calls, and with one all are lost.

All decisions are made in the thread that takes the steps.
"""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial
from operator import lt
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Literal, NamedTuple

from mac_runner.nano.architecture import check_state_dict, expected_shapes, read_model_config
from mac_runner.nano.checkpoint import Part, StateDict, file_stats, find_model
from mac_runner.nano.config import EngineConfig
from mac_runner.nano.cpu.threads import threads_each
from mac_runner.nano.engine import BaseEngine, EngineState, EngineStats
from mac_runner.nano.errors import RankFailedError, ReplicaLostError
from mac_runner.nano.parallel.group import LOCAL, host_store
from mac_runner.nano.parallel.replica import Progress, last_delta
from mac_runner.nano.parallel.workers import UNANSWERED, Call, Calls, Failed, Member, Workers
from mac_runner.nano.parallel.world import World
from mac_runner.nano.runner import Prepared, WeightSync
from mac_runner.nano.scheduler import Counters
from mac_runner.nano.sequence import Delta, Intake, PreparedRequest, TrainingSample
from mac_runner.nano.tokenizer import load_tokenizer

CONVERSATIONS_MAX = 100_000
"""How many conversations the leader remembers the replica of."""
_WAITING_MAX = 1 << 40
"""The leader decides how many requests may wait, so no replica refuses one."""
LOSSES_MAX = 3
"""A request that is under way at so many replicas that are lost ends with an error: it may be what they die of."""
QUICK_S = 60.0
QUICK_ENDS_MAX = 5
"""So many ends in a row of one replica, each within QUICK_S of its start, end the engine: another start is vain."""
_LOG = logging.getLogger(__name__)
_SUMMED = [each.name for each in fields(EngineStats) if each.name not in ("weight_version", "num_replicas")]
_COUNTERS = [each.name for each in fields(Counters)]
"""What only grows, so that a lost replica's part is kept."""


class Load(NamedTuple):
    """What a replica has to do: the tokens of its open requests, and how many samples they are."""

    num_tokens: int
    num_samples: int


NO_LOAD = Load(0, 0)


def deal(loads: Mapping[int, Load], home: int | None, num_places: int) -> int:
    """The replica for a request, by number.

    It goes `home`, to the replica of its conversation; elsewhere only if all places there are taken, and others are
    free. Without a home it goes to the replica with the fewest tokens.
    """
    free = {number: load for number, load in loads.items() if load.num_samples < num_places}
    if home is not None and home in loads and (home in free or not free):
        return home
    among = free or loads
    return min(among, key=lambda number: (among[number].num_tokens, among[number].num_samples, number))


@dataclass(slots=True, eq=False)
class _Dealt:
    """A request at a replica, or at none while all load.

    `given` has the tokens of its stream so far; `num_again` of them are computed again.
    """

    request: PreparedRequest
    replica: _Replica | None = None
    ended: set[int] = field(default_factory=set)
    given: dict[int, list[int]] = field(default_factory=dict)
    num_again: dict[int, int] = field(default_factory=dict)
    num_losses: int = 0

    @property
    def load(self) -> Load:
        request = self.request
        num_new = request.num_tokens_max - len(request.tokens)
        return Load(len(request.tokens) + request.num_samples * num_new, request.num_samples)


@dataclass(slots=True, eq=False)
class _Replica:
    """A replica that is there. `since_s` is when it came; before it, `num_quick_ends` in its place ended soon."""

    number: int
    member: Member
    since_s: float
    num_quick_ends: int = 0
    state: EngineState = EngineState.RUNNING
    stats: EngineStats | None = None
    load: Load = NO_LOAD
    has_answered: bool = False


@dataclass(slots=True, eq=False)
class _Coming:
    """A replica that is started again: what it says of itself, and when it is ready with weights of a version."""

    number: int
    num_quick_ends: int
    room: Future[Any]
    version: int
    ready: Future[Any]


@dataclass(frozen=True, slots=True, eq=False)
class _Shared(Prepared):
    """Weights that replicas keep under their ticket, and the memory that others may read them in."""

    parts: list[Part] = field(kw_only=True)
    fd: int = field(kw_only=True)
    kept_by: Sequence[Member] = field(kw_only=True)


class ReplicatedEngine(BaseEngine):
    """Replicas of one model behind the interface of one engine."""

    def __init__(
        self,
        config: EngineConfig,
        those: Sequence[Member],
        world: World | None = None,
        address: str = LOCAL,
        start: Callable[[int], Member] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`those` are the processes, not yet begun. `world` is set where a launcher has started them.

        In lock step they meet at `address`. Others may be started again by `start`, which is given their number.
        """
        self.config = config
        self.state = EngineState.RUNNING
        self._is_in_lock_step = config.data_parallel_mode == "lock_step"
        self._clock = clock
        self._replicas = {number: _Replica(number, member, clock()) for number, member in enumerate(those)}
        self._dealt = OrderedDict[int, _Dealt]()
        self._homes = OrderedDict[str, int]()
        self._arrived = list[Delta]()
        self._unfetched = list[TrainingSample]()
        self._lost = list[str]()
        self._past = dict.fromkeys(_COUNTERS, 0)
        self._num_rounds = 0
        self._start = None if self._is_in_lock_step else start
        self._coming = dict[Member, _Coming]()
        self._weights: Prepared | None = None
        self._workers = Workers(those, is_together=self._is_in_lock_step, beat=self._start is not None)
        # An engine that is dropped without `shutdown` keeps no processes.
        self._end = weakref.finalize(self, self._workers.close)
        try:
            self.directory = find_model(config.model_path)
            self._stamps = _stamps(self.directory)
            self.model_config = read_model_config(self.directory)
            self.tokenizer = load_tokenizer(self.directory)
            ready = [room for _, room in self._workers.call("begin", replica_config(config), world)]
            self._drain()
            if len(ready) < len(those):
                raise RankFailedError("; ".join(self._lost) or "a replica has not loaded the model in time")
            self.max_model_len, self.num_blocks = (min(each) for each in zip(*ready, strict=True))
            if self._is_in_lock_step:
                self._store, port = host_store(len(those), address)
                self._workers.call("meet", address, port, len(those))
            self._intake = Intake(config, self.tokenizer, self.model_config, self.max_model_len, self.num_blocks)
            self.weights = WeightSync(self, self.model_config, on_install=self._install)
        except BaseException:
            self._end()
            raise

    # Requests.

    def add_prepared(self, request: PreparedRequest) -> int:
        self._drain()
        self._require_alive()
        self._require_room(request.num_samples)
        number = self._intake.number()
        self._dealt[number] = dealt = _Dealt(request)
        self._deal(number, dealt)
        return number

    def step_deltas(self) -> list[Delta]:
        """What replicas have finished, and every token of requests that stream; waits for it while requests are open.

        In lock step it is what a round of `sync_every` steps has brought. Elsewhere `interrupt` ends the wait.
        """
        self._require_alive()
        self.weights.poll()
        self._drain()
        self._require_alive()  # What was drained may tell of the last loss, behind which nothing comes.
        is_working = self.state in (EngineState.RUNNING, EngineState.DRAINING)
        if not self._arrived and is_working and self._dealt:
            if self._is_in_lock_step:
                self._play()
            else:
                self._take(self._workers.events.get())
            self._drain()
        self._require_alive()
        arrived, self._arrived = self._arrived, []
        return arrived

    def _play(self) -> None:
        self._num_rounds += 1
        with self._workers.in_step():
            played = self._call_all("play", self._num_rounds, self.weights.version, self.config.sync_every)
        for event in played:
            self._take(event)

    def interrupt(self) -> None:
        self._workers.events.put(None)

    def has_pending(self) -> bool:
        return bool(self._dealt or self._arrived or self._unfetched)

    def abort_deltas(self, request_id: int | None = None) -> list[Delta]:
        while asked := {number: each for number, each in self._dealt.items() if request_id in (None, number)}:
            self._abort(asked, request_id)
        kept = [delta for delta in self._arrived if request_id not in (None, delta.request_id)]
        deltas = [delta for delta in self._arrived if request_id in (None, delta.request_id)]
        self._arrived = kept
        return deltas

    # Weights.

    def build(self, state_dict: StateDict) -> Prepared:
        """A model of other weights on all replicas; any thread may call it."""
        check_state_dict(state_dict, self.model_config)
        to = self._members()

        def share(ticket: int, parts: list[Part], fd: int) -> Prepared:
            if self._start is None:
                return Prepared(None, ticket)
            shared = _Shared(None, ticket, parts=parts, fd=os.dup(fd), kept_by=to)
            weakref.finalize(shared, os.close, shared.fd).atexit = False
            return shared

        return self._workers.build(state_dict, expected_shapes(self.model_config), share, to=to)

    def replace(self, prepared: Prepared) -> None:
        """Compute with this model once `_install` says which version it is."""
        self._weights = prepared

    def _install(self, version: int) -> None:
        assert self._weights is not None
        if isinstance(self._weights, _Shared):
            # Those that have joined since it was built.
            late = [member for member in self._members() if member not in self._weights.kept_by]
            self._workers.wait(self._share(self._weights, late))
        self._call_all("install", self._weights.ticket, version)

    def _share(self, weights: _Shared, to: Sequence[Member]) -> Calls:
        return self._workers.begin("begin_build", weights.ticket, weights.parts, (), to=to, fd=weights.fd)

    # The life of the engine.

    def flush_cache(self) -> None:
        self._call_all("engine.flush_cache")

    def begin_pause(self, mode: Literal["wait", "keep"]) -> None:
        self._require_alive()
        if self.state is not EngineState.ASLEEP:
            self._drain()
            self.state = EngineState.DRAINING
            for replica in self._replicas.values():
                replica.state = EngineState.DRAINING  # Until it says otherwise.
            self._call_all("begin_pause", mode)
            self._settle()

    def resume(self) -> None:
        super().resume()
        self._call_all("engine.resume")

    def _drop(self, *, weights: bool) -> None:
        self._call_all("sleep", weights)

    def _restore(self) -> None:
        self._call_all("engine.wake")

    def stats(self) -> EngineStats:
        """How busy all replicas are together, and what they have done; a lost one's work counts.

        In lock step `num_steps` is that of the one that took the most.
        """
        found = self.replica_stats()
        sums = {name: sum(getattr(each, name) for each in found) + self._past.get(name, 0) for name in _SUMMED}
        if self._is_in_lock_step:
            sums["num_steps"] = max(each.num_steps for each in found)
        if not found:
            sums["num_waiting"] = self._num_waiting()
        return EngineStats(**sums, weight_version=self.weights.version, num_replicas=len(found))

    def replica_stats(self) -> list[EngineStats]:
        found = self._call_all("engine.stats")
        for member, stats in found:
            if (replica := self._replica_of(member)) is not None:
                replica.stats = stats
        return [stats for _, stats in found]

    def shutdown(self) -> None:
        self.weights.close()
        self._dealt.clear()
        self._end()
        self.state = EngineState.STOPPED

    # Dealing.

    def _deal(self, number: int, dealt: _Dealt) -> None:
        """Send a request to a replica; to another one, if that one takes no message; to none while all load."""
        request, dealt.replica = dealt.request, None
        while self._replicas:
            home = self._homes.get(request.conversation) if request.conversation is not None else None
            loads = {each.number: each.load for each in self._replicas.values()}
            replica = self._replicas[deal(loads, home, self.config.max_batch_size)]
            asked = (number, tuple(request.tokens), request.params, request.num_samples, request.is_streamed)
            if self._workers.send(Call(UNANSWERED, "admit", asked), to=replica.member):
                self._note_home(request.conversation, home, replica)
                dealt.replica = replica
                replica.load = _plus(replica.load, dealt.load)
                return
            while replica.number in self._replicas:  # Until it is known how it ended.
                self._take(self._workers.events.get())
        self._require_alive()

    def _note_home(self, conversation: str | None, home: int | None, replica: _Replica) -> None:
        if conversation is None:
            return
        self._homes[conversation] = home if home in self._replicas else replica.number
        self._homes.move_to_end(conversation)
        if len(self._homes) > CONVERSATIONS_MAX:
            self._homes.popitem(last=False)

    def _deal_again(self, number: int, dealt: _Dealt) -> None:
        """Send the request of a lost replica to another one, which computes all of it again."""
        dealt.num_again = {index: len(tokens) for index, tokens in dealt.given.items()}
        dealt.num_losses += 1
        if dealt.num_losses < LOSSES_MAX:
            self._deal(number, dealt)
        else:
            error = ReplicaLostError(f"{LOSSES_MAX} replicas were lost while they computed this request")
            self._end_unplaced(number, dealt, error)

    def _end_unplaced(self, number: int, dealt: _Dealt, error: ReplicaLostError | None = None) -> None:
        """End a request that no replica has, with an error or as aborted."""
        del self._dealt[number]
        for index in set(range(dealt.request.num_samples)) - dealt.ended:
            self._arrived.append(last_delta(number, index, tuple(dealt.request.tokens), error))

    def _close(self, number: int, dealt: _Dealt, replica: _Replica) -> None:
        del self._dealt[number]
        replica.load = _plus(replica.load, Load(-dealt.load.num_tokens, -dealt.load.num_samples))

    def _abort(self, asked: Mapping[int, _Dealt], request_id: int | None) -> None:
        """End requests, with one call of each replica that has any. Afterwards each has ended, or was dealt again."""
        at = dict[Member, tuple[_Replica, list[int]]]()
        for number, dealt in asked.items():
            if (replica := dealt.replica) is None:
                self._end_unplaced(number, dealt)
            else:
                at.setdefault(replica.member, (replica, []))[1].append(number)
        for member, deltas in self._call_all("engine.abort_deltas", request_id, to=list(at)):
            replica, numbers = at[member]
            self._keep(replica, deltas)
            for number in numbers:
                # It had ended there, with an answer that was not for us.
                if (left := self._dealt.get(number)) is not None and left.replica is replica:
                    self._close(number, left, replica)

    # What replicas have sent.

    def _drain(self) -> None:
        with suppress(Empty):
            while True:
                self._take(self._workers.events.get_nowait())
        if self.state is EngineState.RUNNING:
            ready = [each for each, coming in self._coming.items() if coming.ready.done()]
            for member in ready:
                self._welcome(member)
            if ready and self._replicas:
                for number in [number for number, dealt in self._dealt.items() if dealt.replica is None]:
                    self._deal(number, self._dealt[number])

    def _take(self, event: tuple[Member, object] | None) -> None:
        if event is None:
            return
        member, message = event
        if (replica := self._replica_of(member)) is None:
            if isinstance(message, Failed) and self._coming.pop(member, None) is not None:
                self._lost.append(message.message)
                _LOG.warning("nano: a replica that was started again is lost: %s", message.message)
        elif isinstance(message, Progress):
            replica.state = message.state
            self._keep(replica, message.deltas)
            self._settle()
        elif isinstance(message, Failed) and not self._is_in_lock_step:
            self._lose(replica, message.message)

    def _replica_of(self, member: Member) -> _Replica | None:
        return next((each for each in self._replicas.values() if each.member is member), None)

    def _members(self) -> list[Member]:
        return [each.member for each in list(self._replicas.values())]

    def _keep(self, replica: _Replica, deltas: list[Delta]) -> None:
        """Keep what is new of the deltas of a replica."""
        for delta in deltas:
            dealt = self._dealt.get(delta.request_id)
            if dealt is None or dealt.replica is not replica or delta.sample_index in dealt.ended:
                continue
            if (new := self._unseen(dealt, delta)) is None:
                continue
            self._arrived.append(new)
            if new.sample is not None:
                replica.has_answered = True
                dealt.ended.add(new.sample_index)
                if len(dealt.ended) == dealt.request.num_samples:
                    self._close(new.request_id, dealt, replica)

    def _unseen(self, dealt: _Dealt, delta: Delta) -> Delta | None:
        """The delta, if the reader of its stream has not had it from a replica that was lost.

        Where the tokens differ from those that the reader has, the sample ends with an error.
        """
        if not dealt.request.is_streamed:
            return delta
        index, given = delta.sample_index, dealt.given.setdefault(delta.sample_index, [])
        if not (num_again := dealt.num_again.get(index, 0)):
            given += delta.token_ids
            return delta
        if delta.sample is not None and delta.sample.finish_reason == "abort":
            return replace(delta, text="")  # The reader has more of it.
        first = len(given) - num_again
        is_same = tuple(given[first : first + len(delta.token_ids)]) == delta.token_ids and delta.sample is None
        if is_same:
            dealt.num_again[index] = num_again - len(delta.token_ids)
            return None
        error = ReplicaLostError(
            "the replica of this request was lost, and another one computes other tokens than those that were streamed"
        )
        return last_delta(delta.request_id, index, tuple(dealt.request.tokens), error)

    def _lose(self, replica: _Replica, reason: str) -> None:
        """Go on without a replica: its requests are dealt again."""
        del self._replicas[replica.number]
        self._lost.append(reason)
        _LOG.warning("nano: a replica is lost, %d are left: %s", len(self._replicas), reason)
        if replica.stats is not None:
            for name in _COUNTERS:
                self._past[name] += getattr(replica.stats, name)
        num_quick_ends = replica.num_quick_ends + 1 if self._clock() - replica.since_s < QUICK_S else 0
        if num_quick_ends == QUICK_ENDS_MAX:
            again = (
                f"replica {replica.number} ended {QUICK_ENDS_MAX} times in a row within {QUICK_S:.0f} s of its start"
            )
            self._workers.fail(Failed(f"{again}, the last time: {reason}"))
        self._workers.check()
        # One that has died before it answered anything would die again.
        if self._start is not None and (self._replicas or self._coming) and replica.has_answered:
            try:
                if _stamps(self.directory) == self._stamps:
                    self._start_again(self._start(replica.number), replica.number, num_quick_ends)
                else:
                    _LOG.warning("nano: the replica is not started again: the files of %s have changed", self.directory)
            except OSError as error:
                _LOG.warning("nano: the replica cannot be started again: %s", error)
        for number in [number for number, dealt in self._dealt.items() if dealt.replica is replica]:
            self._deal_again(number, self._dealt[number])
        self._settle()

    def _start_again(self, member: Member, number: int, num_quick_ends: int) -> None:
        self._workers.add(member)
        ((_, room),) = self._workers.begin("begin", replica_config(self.config), None, to=[member])
        self._coming[member] = _Coming(number, num_quick_ends, room, version=0, ready=room)
        self._bring(member)

    def _bring(self, member: Member) -> None:
        """Send a replica that is coming the weights in use."""
        coming = self._coming[member]
        if isinstance(self._weights, _Shared) and coming.version != self.weights.version:
            coming.version = self.weights.version
            self._share(self._weights, [member])
            ((_, coming.ready),) = self._workers.begin("install", self._weights.ticket, coming.version, to=[member])
        coming.ready.add_done_callback(partial(_wake, self._workers.events))

    def _welcome(self, member: Member) -> None:
        """Deal to a replica from now on that is ready, if its weights are those in use by now."""
        coming = self._coming[member]
        if (error := coming.ready.exception()) is not None:
            _LOG.warning("nano: %s is not ready: %s", member, error)
            member.kill()  # An event says so.
        elif any(map(lt, coming.room.result(), (self.max_model_len, self.num_blocks))):
            _LOG.warning("nano: %s has less room than the others: %s", member, coming.room.result())
            member.kill()
        elif coming.version != self.weights.version:
            self._bring(member)
        else:
            del self._coming[member]
            self._replicas[coming.number] = _Replica(coming.number, member, self._clock(), coming.num_quick_ends)
            _LOG.warning("nano: %s has joined, there are %d", member, len(self._replicas))

    def _settle(self) -> None:
        busy = (EngineState.RUNNING, EngineState.DRAINING)
        if self.state is EngineState.DRAINING and all(each.state not in busy for each in self._replicas.values()):
            self.state = EngineState.PAUSED

    def _call_all(
        self,
        method: str,
        *arguments: object,
        to: Sequence[Member] | None = None,
    ) -> list[tuple[Member, Any]]:
        """Call replicas, by default all, and wait; what they sent before comes first."""
        self._require_alive()
        try:
            return self._workers.call(method, *arguments, to=self._members() if to is None else to)
        finally:
            self._drain()

    def _check(self) -> None:
        self._workers.check()
        if not self._replicas and not self._coming:
            raise RankFailedError(f"all replicas are lost: {'; '.join(self._lost)}: make another engine")

    def _num_waiting(self) -> int:
        places = self.config.max_batch_size
        if not self._replicas:
            return sum(dealt.load.num_samples for dealt in self._dealt.values())
        return sum(max(replica.load.num_samples - places, 0) for replica in self._replicas.values())

    def _num_running(self) -> int:
        return self.stats().num_running


def replica_config(config: EngineConfig) -> EngineConfig:
    num_processes = config.data_parallel_size * config.tensor_parallel_size
    num_threads = threads_each(config.num_threads, num_processes)
    return replace(config, data_parallel_size=1, num_threads=num_threads, max_waiting=_WAITING_MAX)


def _stamps(directory: Path) -> set[tuple[str, int, int]]:
    """The files of a model by name, size and time: another one would be other weights."""
    return {(name, stat.st_size, stat.st_mtime_ns) for name, stat in file_stats(directory).items()}


def _wake(events: SimpleQueue[tuple[Member, object] | None], _: Future[Any]) -> None:
    events.put(None)


def _plus(load: Load, other: Load) -> Load:
    return Load(load.num_tokens + other.num_tokens, load.num_samples + other.num_samples)
