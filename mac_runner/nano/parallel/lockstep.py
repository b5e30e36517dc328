"""Replicas of a model that step together: `data_parallel_mode="lock_step"`, the leader's side.

This process is the leader, and has replica 0. It checks and numbers requests, deals each to a replica, packs the rounds
of `rounds.py` and collects what comes out. A replica has its own queue, cache and sampler. When one fails, all end.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any
from zlib import crc32

from mac_runner.nano.architecture import ModelConfig
from mac_runner.nano.base_engine import BaseEngine, EngineState, EngineStats
from mac_runner.nano.checkpoint import StateDict
from mac_runner.nano.config import EngineConfig
from mac_runner.nano.engine import InferenceEngine
from mac_runner.nano.errors import EngineStoppedError, NanoError
from mac_runner.nano.intake import Intake, PreparedRequest
from mac_runner.nano.parallel.divergence import require_equal
from mac_runner.nano.parallel.group import Shard, host_store
from mac_runner.nano.parallel.members import Member
from mac_runner.nano.parallel.ranks import Ranks
from mac_runner.nano.parallel.replicas import NO_LOAD, Load, deal
from mac_runner.nano.parallel.rounds import Admission, Meeting, Replica, Report, Round
from mac_runner.nano.parallel.runner import Builds, Joined
from mac_runner.nano.parallel.world import LOCAL
from mac_runner.nano.runner import Prepared, WeightSync
from mac_runner.nano.sequence import Delta, TrainingSample


@dataclass(slots=True, kw_only=True)
class _Open:
    """A request under way: where, how many of its samples are unfinished, and the tokens it may need."""

    replica: int
    num_samples: int
    num_tokens: int


class LockstepEngine(BaseEngine):
    """`data_parallel_size` replicas that take every step together."""

    def __init__(
        self, config: EngineConfig, one: EngineConfig, members: Sequence[Member], joined: Joined | None = None
    ) -> None:
        """`one` is the config of a replica; `members` are the processes of all but the first, not yet begun.

        The other ranks of the first replica are started here, or have `joined`.
        """
        self.config = config
        self.state = EngineState.STOPPED
        self._ranks = Ranks(members)
        # An engine that is dropped without `shutdown` keeps no processes.
        self._end = weakref.finalize(self, self._ranks.close)
        try:
            begun = self._ranks.begin("begin", one)
            self._engine = InferenceEngine(one, joined)  # While the others load theirs.
            self._stats: dict[int, EngineStats] = {0: self._engine.stats(), **dict(self._ranks.wait(begun))}
            self._replica = Replica(0, self._engine, self._meet(LOCAL if joined is None else joined.address))
        except BaseException:
            self._end()
            raise
        self.directory, self.model_config = self._engine.directory, self._engine.model_config
        self.tokenizer, self.max_model_len = self._engine.tokenizer, self._engine.max_model_len
        self.num_blocks = min(stats.num_blocks for stats in self._stats.values())
        self._intake = Intake(config, self.tokenizer, self.model_config, self.max_model_len, self.num_blocks)
        self._models = _Models(self._ranks, self._engine, self.model_config)
        self._sync = WeightSync(self._models, self.model_config, on_install=self._install)
        self._coming = list[Admission]()
        self._open = dict[int, _Open]()
        self._loads = dict.fromkeys(range(config.data_parallel_size), NO_LOAD)
        self._unfetched = list[TrainingSample]()
        self._num_rounds = 0
        self.state = EngineState.RUNNING

    def add_prepared(self, request: PreparedRequest) -> int:
        """Queue a request; its number. Raises QueueFullError."""
        self._require_alive()
        self._require_room(request.num_samples)
        request_id = self._intake.number()
        num_tokens = request.num_samples * (request.num_tokens_max - len(request.tokens)) + len(request.tokens)
        chosen = deal(self._loads, self._home(request), self.config.max_batch_size)
        self._open[request_id] = _Open(replica=chosen, num_samples=request.num_samples, num_tokens=num_tokens)
        self._add_load(chosen, num_tokens, request.num_samples)
        self._coming.append(Admission(request_id=request_id, replica=chosen, request=request))
        return request_id

    def step_deltas(self) -> list[Delta]:
        """Play a round: `sync_every` steps on every replica. All the deltas of it."""
        self._require_alive()
        self._sync.poll()
        if self.state not in (EngineState.RUNNING, EngineState.DRAINING) or not self._open:
            return []
        deltas = self._play(num_steps=self.config.sync_every)
        self._settle()
        return deltas

    def has_pending(self) -> bool:
        """Whether any request is unfinished, or finished and not yet returned."""
        return bool(self._open or self._unfetched)

    def abort_deltas(self, request_id: int | None = None) -> list[Delta]:
        """End a request, or all of them, in a round without steps; their last deltas."""
        if not self._open or (request_id is not None and request_id not in self._open):
            return []
        deltas = self._play(aborts=(request_id,))
        self._settle()
        return deltas

    def flush_cache(self) -> None:
        """Forget every prefix."""
        self._on_all(self._engine.flush_cache, "flush_cache")

    def sleep(self, *, drop_weights: bool = False) -> None:
        """Give back the memory of the KV cache, and with `drop_weights` of the weights. Nothing may be running."""
        self._require_alive()
        self._require_idle()
        self._on_all(lambda: self._engine.sleep(drop_weights=drop_weights), "sleep", drop_weights)
        self.state = EngineState.ASLEEP

    def wake(self) -> None:
        """Be ready again. Dropped weights are read again; if they were ever updated, they must be updated first."""
        self._require_alive()
        self._sync.poll(wait=True)
        self._on_all(self._engine.wake, "wake")
        self.state = EngineState.RUNNING

    def stats(self) -> EngineStats:
        """The sums over all replicas, as of the last round; `num_steps` is that of the one that took the most."""
        self._ranks.check()
        all_stats = tuple(self._stats.values())
        sums: dict[str, Any] = {
            each.name: sum(getattr(stats, each.name) for stats in all_stats) for each in fields(EngineStats)
        }
        sums["num_waiting"] = self._num_waiting()
        sums["num_steps"] = max(stats.num_steps for stats in all_stats)
        return EngineStats(**{**sums, "weight_version": self._sync.version})

    def replica_stats(self) -> list[EngineStats]:
        """How busy each replica was at the end of the last round."""
        return [self._stats[number] for number in sorted(self._stats)]

    def shutdown(self) -> None:
        """Drop the requests under way and give everything back; may be called twice.

        First a round ends every request, in which all replicas meet once more. Then each is asked to end.
        """
        if self.state is EngineState.STOPPED:
            return
        try:
            with suppress(NanoError):  # Then they have ended already.
                self._play(aborts=(None,))
        finally:
            self.state = EngineState.STOPPED
            self._sync.close()
            self._end()
            self._engine.shutdown()

    def _meet(self, address: str) -> Meeting:
        size = self.config.data_parallel_size
        store, port = host_store(size, address)
        # Each waits for all others, so they meet while this one does.
        number = self._ranks.begin("meet", address, port, size)
        meeting = Meeting(Shard(0, size), store, address)
        own_engine = self._engine

        def end() -> None:
            meeting.abort()
            own_engine.fail("another replica is lost")

        self._ranks.on_loss, self._ranks.on_close = end, meeting.close
        self._ranks.wait(number)
        return meeting

    def _home(self, request: PreparedRequest) -> int | None:
        """The replica of a conversation, the same for all its requests."""
        if request.conversation is None:
            return None
        return crc32(request.conversation.encode()) % self.config.data_parallel_size

    def _add_load(self, replica: int, num_tokens: int, num_samples: int) -> None:
        load = self._loads[replica]
        self._loads[replica] = Load(load.num_tokens + num_tokens, load.num_samples + num_samples)

    def _play(self, *, num_steps: int = 0, aborts: tuple[int | None, ...] = ()) -> list[Delta]:
        """Play a round on all replicas; its deltas, replica by replica."""
        self._ranks.check()
        with self._ranks.in_step():
            message = self._pack(num_steps, aborts)
            number = self._ranks.begin("play", message.packed())
            reports = [self._replica.play(message), *self._ranks.wait(number)]
            reports.sort(key=lambda report: report.replica)
            require_equal(
                {f"replica {report.replica}": report.digests() for report in reports}, f"in round {message.number}"
            )
        return [delta for report in reports for delta in self._collect(report)]

    def _pack(self, num_steps: int, aborts: tuple[int | None, ...]) -> Round:
        coming, self._coming = tuple(self._coming), []
        self._num_rounds += 1
        return Round(
            number=self._num_rounds,
            version=self._sync.version,
            admissions=coming,
            aborts=aborts,
            num_steps=num_steps,
            admits=self.state is EngineState.RUNNING,
        )

    def _collect(self, report: Report) -> tuple[Delta, ...]:
        """Take note of what a replica has done."""
        self._stats[report.replica] = report.stats
        for delta in report.deltas:
            if delta.sample is not None:
                request = self._open[delta.request_id]
                request.num_samples -= 1
                self._add_load(report.replica, 0, -1)
                if not request.num_samples:
                    del self._open[delta.request_id]
                    self._add_load(report.replica, -request.num_tokens, 0)
        return report.deltas

    def _on_all(self, do_here: Callable[[], None], method: str, *arguments: object) -> None:
        """Do something here, where it may be refused, and then on all other replicas."""
        do_here()
        with self._ranks.in_step():
            answers = self._ranks.call(method, *arguments)
        self._stats = {0: self._engine.stats(), **dict(answers)}

    def _install(self, version: int) -> None:
        """Compute with the models that were prepared last, on all replicas, from the next round on."""
        prepared = self._models.next
        assert prepared is not None
        self._on_all(lambda: self._engine.install_weights(prepared.own, version), "install", prepared.ticket, version)

    def _num_running(self) -> int:
        """The samples in steps, on all replicas."""
        return sum(stats.num_running for stats in self._stats.values())

    def _num_waiting(self) -> int:
        coming = sum(each.request.num_samples for each in self._coming)
        return coming + sum(stats.num_waiting for stats in self._stats.values())

    def _require_alive(self) -> None:
        if self.state is EngineState.STOPPED:
            raise EngineStoppedError("the engine was shut down: make another one")
        self._ranks.check()
        self._engine.stats()  # Raises if one of this replica's own ranks was lost.


@dataclass(frozen=True, slots=True, eq=False)
class _OnAll(Prepared):
    """A model that is ready on all replicas; the others keep theirs under `ticket`."""

    own: Prepared = field(kw_only=True)


class _Models:
    """Builds models on all replicas at once, and keeps the one to install next."""

    def __init__(self, ranks: Ranks, engine: InferenceEngine, model_config: ModelConfig) -> None:
        self.next: _OnAll | None = None
        self._engine = engine
        self._builds = Builds(ranks, model_config)

    def build(self, state_dict: StateDict) -> Prepared:
        """A model of these weights on every replica; may run beside rounds."""

        def build_here(ticket: int) -> _OnAll:
            own = self._engine.prepare_weights(state_dict)
            return _OnAll(own.model, ticket, own=own)

        return self._builds.build(state_dict, build_here)

    def replace(self, prepared: Prepared) -> None:
        """Take this model for the installation that follows."""
        assert isinstance(prepared, _OnAll)
        self.next = prepared
