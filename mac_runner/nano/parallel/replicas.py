"""An engine of several replicas, each a process with a whole engine: the leader's side.

The leader computes nothing. It checks requests, deals each to a replica and passes on what comes back. Requests of one
conversation go to one replica, which has their prefix in its cache. Others go where the fewest tokens are under way.
When a replica is lost, its requests are dealt again with their numbers and seeds, so they come to the same tokens. The
engine lives while one replica does.

A thread reads what the replicas send. All decisions are made in the thread that takes the steps.
"""

from __future__ import annotations

import logging
import os
import pickle
import weakref
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, fields
from itertools import count
from multiprocessing.connection import Connection, wait
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Literal, NamedTuple

from mac_runner.nano.architecture import check_state_dict, expected_shapes, read_model_config
from mac_runner.nano.base_engine import BaseEngine, EngineState, EngineStats
from mac_runner.nano.checkpoint import StateDict, find_model
from mac_runner.nano.config import EngineConfig
from mac_runner.nano.errors import (
    ConfigError,
    EngineStoppedError,
    NanoError,
    RankFailedError,
    ReplicaLostError,
)
from mac_runner.nano.intake import Intake, PreparedRequest
from mac_runner.nano.parallel import members
from mac_runner.nano.parallel.members import Member
from mac_runner.nano.parallel.messages import Admit, Answer, Begin, Progress, Ready, failed_delta
from mac_runner.nano.parallel.ranks import CALL_S_MAX, Call, Failed, pack
from mac_runner.nano.parallel.runner import drained
from mac_runner.nano.runner import Prepared, WeightSync
from mac_runner.nano.sequence import Delta, TrainingSample
from mac_runner.nano.tokenizer import load_tokenizer

CONVERSATIONS_MAX = 100_000
"""How many conversations the leader remembers the replica of."""
_LOG = logging.getLogger(__name__)
_SUMMED = [each.name for each in fields(EngineStats) if each.name not in ("weight_version", "num_replicas")]
_COUNTERS = [name for name in _SUMMED if name not in ("num_waiting", "num_running") and not name.endswith("_blocks")]
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
    """A request at a replica. `given` has the tokens of its stream so far; `num_again` of them are computed again."""

    request: PreparedRequest
    replica: _Replica
    ended: set[int] = field(default_factory=set)
    given: dict[int, list[int]] = field(default_factory=dict)
    num_again: dict[int, int] = field(default_factory=dict)

    @property
    def load(self) -> Load:
        """All tokens that it may come to."""
        request = self.request
        num_new = request.num_tokens_max - len(request.tokens)
        return Load(len(request.tokens) + request.num_samples * num_new, request.num_samples)


@dataclass(slots=True, eq=False)
class _Replica:
    """A replica that is there."""

    number: int
    member: Member
    state: EngineState = EngineState.RUNNING
    stats: EngineStats | None = None
    load: Load = NO_LOAD
    calls: dict[int, Future[object]] = field(default_factory=dict)
    is_gone: bool = False


class ReplicatedEngine(BaseEngine):
    """Replicas of one model behind the interface of one engine. `members` are their processes, not yet begun."""

    def __init__(self, config: EngineConfig, begins: Sequence[tuple[Member, Begin]]) -> None:
        self.config = config
        self.state = EngineState.RUNNING
        self._replicas = {number: _Replica(number, member) for number, (member, _) in enumerate(begins)}
        self._dealt = OrderedDict[int, _Dealt]()
        self._homes = OrderedDict[str, int]()
        self._arrived = list[Delta]()
        self._unfetched = list[TrainingSample]()
        self._lost = list[str]()
        self._past = dict.fromkeys(_COUNTERS, 0)
        self._events = SimpleQueue[tuple[_Replica, object] | None]()
        self._lock = Lock()  # For sending, and for the calls that wait for an answer.
        self._numbers = count(1)
        self._forgotten = deque[int]()
        watched = list(self._replicas.values())
        watcher = Thread(target=_watch, args=(watched, self._events, self._lock), name="nano-replicas", daemon=True)
        watcher.start()
        self._end = weakref.finalize(self, _end, watched, self._lock, watcher)
        try:
            self.directory = find_model(config.model_path)
            self.model_config = read_model_config(self.directory)
            self.tokenizer = load_tokenizer(self.directory)
            ready = self._begin([begin for _, begin in begins])
            self.max_model_len = min(each.max_model_len for each in ready)
            self.num_blocks = min(each.num_blocks for each in ready)
            self._intake = Intake(config, self.tokenizer, self.model_config, self.max_model_len, self.num_blocks)
            self._sync = WeightSync(self, self.model_config, on_install=self._install)
        except BaseException:
            self._end()
            raise

    def _begin(self, begins: Sequence[Begin]) -> list[Ready]:
        """Have all replicas load the model; what they say of it. Raises the first error that one meets."""
        for replica, begin in zip(self._replicas.values(), begins, strict=True):
            self._send(replica, begin)
        ready = list[Ready]()
        while len(ready) < len(begins):
            try:
                event = self._events.get(timeout=CALL_S_MAX)
            except Empty:
                raise RankFailedError(f"a replica has not loaded the model within {CALL_S_MAX:.0f} s") from None
            assert event is not None, "there is nothing to interrupt yet"
            replica, message = event
            if isinstance(message, Ready):
                ready.append(message)
            elif isinstance(message, Answer) and message.error is not None:
                raise message.error
            elif isinstance(message, Failed):
                raise RankFailedError(f"{replica.member} {message.message}")
        return ready

    # Requests.

    def add_prepared(self, request: PreparedRequest) -> int:
        """Deal a request to a replica; its number. Raises QueueFullError."""
        self._require_alive()
        self._require_room(request.num_samples)
        number = self._intake.number()
        self._deal(number, request)
        return number

    def step_deltas(self) -> list[Delta]:
        """What replicas have finished, and every token of requests that stream; waits for it while requests are open.

        `interrupt` ends the wait.
        """
        self._require_alive()
        self._sync.poll()
        self._drain()
        is_working = self.state in (EngineState.RUNNING, EngineState.DRAINING)
        if not self._arrived and is_working and self._dealt and self._replicas:
            self._take(self._events.get())
            self._drain()
        self._require_alive()
        arrived, self._arrived = self._arrived, []
        return arrived

    def interrupt(self) -> None:
        """End a wait in `step_deltas`; any thread may call it."""
        self._events.put(None)

    def has_pending(self) -> bool:
        """Whether any request is unfinished, or finished and not yet returned."""
        return bool(self._dealt or self._arrived or self._unfetched)

    def abort_deltas(self, request_id: int | None = None) -> list[Delta]:
        """End a request, or all of them; their last deltas."""
        while open_ids := [number for number in self._dealt if request_id in (None, number)]:
            for number in open_ids:
                if (dealt := self._dealt.get(number)) is not None:
                    self._abort(number, dealt)
        kept = [delta for delta in self._arrived if request_id not in (None, delta.request_id)]
        deltas = [delta for delta in self._arrived if request_id in (None, delta.request_id)]
        self._arrived = kept
        return deltas

    # Weights.

    def build(self, state_dict: StateDict) -> Prepared:
        """A model of other weights on all replicas; any thread may call it."""
        check_state_dict(state_dict, self.model_config)
        ticket, forgotten = next(self._numbers), tuple(drained(self._forgotten))
        prepared = Prepared(None, ticket)
        # A finalizer may run anywhere, so it only takes note; the next build carries it.
        weakref.finalize(prepared, self._forgotten.append, ticket).atexit = False
        parcel, fd = pack(state_dict, expected_shapes(self.model_config))
        try:
            self._wait(self._call("begin_build", ticket, parcel, forgotten, memory=fd))
        finally:
            os.close(fd)
        return prepared

    def replace(self, prepared: Prepared) -> None:
        """Compute with this model once `_install` says which version it is."""
        self._next_ticket = prepared.ticket

    def _install(self, version: int) -> None:
        self._call_all("install", self._next_ticket, version)

    # The life of the engine.

    def flush_cache(self) -> None:
        """Forget every prefix. An update does not need it."""
        self._call_all("flush_cache")

    def begin_pause(self, mode: Literal["wait", "keep"]) -> None:
        """Pause during the next steps; `state` shows when it has paused."""
        self._require_alive()
        if self.state is not EngineState.ASLEEP:
            self.state = EngineState.DRAINING
            for replica, state in self._call_all("begin_pause", mode):
                assert isinstance(state, EngineState)
                replica.state = state
            self._settle()

    def resume(self) -> None:
        """Continue after a pause."""
        self._require_alive()
        if self.state is EngineState.ASLEEP:
            raise ConfigError("the engine is asleep: wake it up")
        self._call_all("resume")
        self._set_state(EngineState.RUNNING)

    def sleep(self, *, drop_weights: bool = False) -> None:
        """Give back the memory of the KV cache, and with `drop_weights` of the weights. Nothing may be running."""
        self._require_alive()
        was_running = self.state is EngineState.RUNNING
        if was_running:
            self.begin_pause("keep")  # From here on none of them admits a request.
        try:
            self._require_idle()
        except ConfigError:
            if was_running:
                self.resume()
            raise
        self._call_all("sleep", drop_weights)
        self._set_state(EngineState.ASLEEP)

    def wake(self) -> None:
        """Be ready again. Dropped weights are read again; if they were ever updated, they must be updated first."""
        self._require_alive()
        if self.state is not EngineState.ASLEEP:
            raise ConfigError(f"the engine is {self.state}, not asleep")
        self._sync.poll(wait=True)
        self._call_all("wake")
        self._set_state(EngineState.RUNNING)

    def stats(self) -> EngineStats:
        """How busy all replicas are together, and what they have done; a lost one's work counts."""
        found = self.replica_stats()
        sums = {name: sum(getattr(each, name) for each in found) + self._past.get(name, 0) for name in _SUMMED}
        return EngineStats(**sums, weight_version=self._sync.version, num_replicas=len(found))

    def replica_stats(self) -> list[EngineStats]:
        """How busy each replica is that is there."""
        self._require_alive()
        found = list[EngineStats]()
        for replica, stats in self._call_all("stats"):
            assert isinstance(stats, EngineStats)
            replica.stats = stats
            found.append(stats)
        return found

    def shutdown(self) -> None:
        """Drop the requests under way and end all replicas; may be called twice."""
        self._sync.close()
        self._dealt.clear()
        self._end()
        self.state = EngineState.STOPPED

    # Dealing.

    def _deal(self, number: int, request: PreparedRequest) -> None:
        """Send a request to a replica; to another one, if that one takes no message."""
        while self._replicas:
            home = self._homes.get(request.conversation) if request.conversation is not None else None
            loads = {each.number: each.load for each in self._replicas.values()}
            replica = self._replicas[deal(loads, home, self.config.max_batch_size)]
            admit = Admit(number, tuple(request.tokens), request.params, request.num_samples, request.is_streamed)
            if self._send(replica, admit):
                self._note_home(request.conversation, home, replica)
                self._dealt[number] = dealt = _Dealt(request, replica)
                replica.load = _plus(replica.load, dealt.load)
                return
            replica.member.kill()
            while replica.number in self._replicas:  # Until the watcher says how it ended.
                self._take(self._events.get())
        self._require_alive()

    def _note_home(self, conversation: str | None, home: int | None, replica: _Replica) -> None:
        if conversation is None:
            return
        self._homes[conversation] = home if home in self._replicas else replica.number
        self._homes.move_to_end(conversation)
        if len(self._homes) > CONVERSATIONS_MAX:
            self._homes.popitem(last=False)

    def _deal_again(self, number: int, old: _Dealt) -> None:
        """Send the request of a lost replica to another one, which computes all of it again."""
        self._deal(number, old.request)
        if (dealt := self._dealt.get(number)) is not None and dealt is not old:
            dealt.ended, dealt.given = old.ended, old.given
            dealt.num_again = {index: len(tokens) for index, tokens in old.given.items()}

    def _close(self, number: int, dealt: _Dealt) -> None:
        del self._dealt[number]
        dealt.replica.load = _plus(dealt.replica.load, Load(-dealt.load.num_tokens, -dealt.load.num_samples))

    def _abort(self, number: int, dealt: _Dealt) -> None:
        """End a request at its replica. Afterwards it has ended, or was dealt again."""
        for _, deltas in self._call_all("abort", number, to=[dealt.replica]):
            assert isinstance(deltas, list)
            self._keep(dealt.replica, deltas)
            if self._dealt.get(number) is dealt:  # It had ended there, with an answer that was not for us.
                self._close(number, dealt)

    # What replicas have sent.

    def _drain(self) -> None:
        with suppress(Empty):
            while True:
                self._take(self._events.get_nowait())

    def _take(self, event: tuple[_Replica, object] | None) -> None:
        if event is None:
            return
        replica, message = event
        if isinstance(message, Progress):
            replica.state = message.state
            self._keep(replica, message.deltas)
            self._settle()
        elif isinstance(message, Failed):
            self._lose(replica, message.message)

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
                dealt.ended.add(new.sample_index)
                if len(dealt.ended) == dealt.request.num_samples:
                    self._close(new.request_id, dealt)

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
        first = len(given) - num_again
        is_same = tuple(given[first : first + len(delta.token_ids)]) == delta.token_ids and delta.sample is None
        if is_same:
            dealt.num_again[index] = num_again - len(delta.token_ids)
            return None
        error = ReplicaLostError(
            "the replica of this request was lost, and another one computes other tokens than those that were streamed"
        )
        return failed_delta(delta.request_id, index, tuple(dealt.request.tokens), error)

    def _lose(self, replica: _Replica, reason: str) -> None:
        """Go on without a replica: its requests are dealt again."""
        if self._replicas.pop(replica.number, None) is None:
            return
        self._lost.append(f"{replica.member}: {reason}")
        _LOG.warning("nano: a replica is lost, %d are left: %s: %s", len(self._replicas), replica.member, reason)
        replica.member.kill()
        if replica.stats is not None:
            for name in _COUNTERS:
                self._past[name] += getattr(replica.stats, name)
        orphans = [(number, dealt) for number, dealt in self._dealt.items() if dealt.replica is replica]
        for number, dealt in orphans:
            self._deal_again(number, dealt)
        self._settle()

    def _settle(self) -> None:
        busy = (EngineState.RUNNING, EngineState.DRAINING)
        if self.state is EngineState.DRAINING and all(each.state not in busy for each in self._replicas.values()):
            self.state = EngineState.PAUSED

    def _set_state(self, state: EngineState) -> None:
        self.state = state
        for replica in self._replicas.values():
            replica.state = state

    # Calls.

    def _send(self, replica: _Replica, message: object) -> bool:
        """Send a message; whether it went."""
        with self._lock:
            try:
                replica.member.send(message)
            except OSError:
                return False
        return True

    def _call(
        self, method: str, *arguments: object, to: Sequence[_Replica] | None = None, memory: int | None = None
    ) -> list[tuple[_Replica, Future[object]]]:
        """Call a method of replicas, by default of all; their answers. Any thread may call."""
        message = Call(next(self._numbers), method, arguments)
        content = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        answers = list[tuple[_Replica, Future[object]]]()
        with self._lock:
            for replica in list(self._replicas.values()) if to is None else to:
                answer = Future[object]()
                answers.append((replica, answer))
                if replica.is_gone:
                    answer.set_exception(RankFailedError(str(replica.member)))
                    continue
                replica.calls[message.number] = answer
                try:
                    replica.member.send_pickled(content, memory)
                except OSError:
                    replica.member.kill()  # The watcher notices.
        return answers

    def _wait(self, calls: list[tuple[_Replica, Future[object]]]) -> list[tuple[_Replica, object]]:
        """The values of the replicas that are there. Raises the first error that a call has raised."""
        values, errors = list[tuple[_Replica, object]](), list[NanoError]()
        for replica, answer in calls:
            try:
                values.append((replica, answer.result(CALL_S_MAX)))
            except RankFailedError:
                continue  # It was lost, and an event says so.
            except TimeoutError:
                replica.member.kill()
            except NanoError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return values

    def _call_all(
        self, method: str, *arguments: object, to: Sequence[_Replica] | None = None
    ) -> list[tuple[_Replica, object]]:
        """Call replicas and wait; what they sent before comes first."""
        self._require_alive()
        calls = self._call(method, *arguments, to=to)
        try:
            values = self._wait(calls)
        finally:
            self._drain()
        return values

    def _require_alive(self) -> None:
        if self.state is EngineState.STOPPED:
            raise EngineStoppedError("the engine was shut down: make another one")
        if not self._replicas:
            raise RankFailedError(f"all replicas are lost: {'; '.join(self._lost)}: make another engine")

    def _num_waiting(self) -> int:
        places = self.config.max_batch_size
        return sum(max(replica.load.num_samples - places, 0) for replica in self._replicas.values())

    def _num_running(self) -> int:
        return self.stats().num_running


def _watch(replicas: Sequence[_Replica], events: SimpleQueue[tuple[_Replica, object] | None], lock: Lock) -> None:
    """Pass on what replicas send, until all have ended."""
    watched = {replica.member.connection: replica for replica in replicas}
    while watched:
        for connection in wait(list(watched)):
            assert isinstance(connection, Connection)
            replica = watched[connection]
            try:
                message = connection.recv()
            except Exception as error:  # noqa: BLE001  It has ended, or sends what cannot be read.
                is_over = isinstance(error, EOFError | OSError)
                if not is_over:
                    replica.member.kill()
                manner = replica.member.collect()
                events.put((replica, Failed(manner if is_over else f"sent what cannot be read: {error!r}")))
                del watched[connection]
                _give_up_calls(replica, lock)
            else:
                _pass_on(replica, message, events, lock)


def _pass_on(
    replica: _Replica, message: object, events: SimpleQueue[tuple[_Replica, object] | None], lock: Lock
) -> None:
    if not isinstance(message, Answer):
        events.put((replica, message))
        return
    with lock:
        answer = replica.calls.pop(message.number, None)
    if answer is None:  # It could not begin.
        events.put((replica, message))
    elif message.error is not None:
        answer.set_exception(message.error)
    else:
        answer.set_result(message.value)


def _give_up_calls(replica: _Replica, lock: Lock) -> None:
    with lock:
        replica.is_gone = True
        calls, replica.calls = replica.calls, {}
    for answer in calls.values():
        answer.set_exception(RankFailedError(str(replica.member)))


def _end(replicas: Sequence[_Replica], lock: Lock, watcher: Thread) -> None:
    """End all replicas, and wait until they have ended."""
    with lock:
        for replica in replicas:
            with suppress(OSError):  # Then it has ended already.
                replica.member.send(None)
    watcher.join(members.END_S_MAX)
    for replica in replicas:
        replica.member.kill()
    watcher.join()
    with lock:
        for replica in replicas:
            replica.member.connection.close()


def _plus(load: Load, other: Load) -> Load:
    return Load(load.num_tokens + other.num_tokens, load.num_samples + other.num_samples)
