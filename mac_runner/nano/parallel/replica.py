"""A replica: a process with an engine of its own, which does what the leader sends.

One thread takes the steps. Another one reads messages, and prepares requests beside the steps. In lock step a replica
takes steps only when it is told to `play` a round, in which all meet in one reduction. Between two rounds each waits
for a message, never in a reduction: the end of the leader is seen, and a rest may last as long as it likes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from threading import Thread
from typing import Literal

import torch

from mac_runner.nano.config import EngineConfig, SamplingParams
from mac_runner.nano.engine import EngineState, InferenceEngine, Mailbox
from mac_runner.nano.errors import DivergenceError, RequestError
from mac_runner.nano.parallel.group import PeerLostError, Shard, TorchPeers, join_store, own_address
from mac_runner.nano.parallel.worker import Worker
from mac_runner.nano.parallel.workers import LOOK_S
from mac_runner.nano.parallel.world import NONE_JOINED, Rendezvous, World
from mac_runner.nano.sequence import Delta, TrainingSample


@dataclass(frozen=True, slots=True)
class Progress:
    """What a step has brought, and what the engine does now."""

    deltas: list[Delta]
    state: EngineState


class Meeting(TorchPeers):
    """Where all replicas meet once a round: a reduction over torch.distributed with gloo."""

    def largest(self, *values: int) -> list[int]:
        """The largest that any replica brings, for each of its values. Raises PeerLostError."""
        from torch.distributed import AllreduceOptions, ReduceOp

        assert self._group is not None
        found, options = torch.tensor(values), AllreduceOptions()
        options.reduceOp = ReduceOp.MAX
        try:
            self._group.allreduce([found], options).wait()
        except RuntimeError as error:
            raise PeerLostError(f"a meeting over torch.distributed has failed: {error}") from error
        return [int(value) for value in found]


def play(engine: InferenceEngine, meeting: Meeting, number: int, version: int, num_steps: int) -> list[Delta]:
    """Take so many steps with the others, with weights of this version, in the round of this number.

    Raises RankFailedError, and then every replica does.
    """
    present = engine.get_weight_version()
    is_off = present != version
    any_work, any_off, latest = meeting.largest(engine.has_work(), is_off, number)
    if is_off:
        raise DivergenceError(
            f"in round {number} replica {meeting.shard.rank} and the leader disagree in weight_version: "
            f"{present} and {version}"
        )
    if any_off or latest != number:
        raise PeerLostError(f"another replica could not carry out round {number}")
    return [delta for _ in range(num_steps if any_work else 0) for delta in engine.step_along()]


class Replica(Worker):
    """One engine, and its leader at the other end of `connection`."""

    def __init__(
        self,
        number: int,
        connection: Connection,
        config: EngineConfig,
        world: World | None = None,
        *,
        rendezvous: Rendezvous | None = None,
        model_path: str | None = None,
    ) -> None:
        """The other ranks of a replica are started here.

        Where a launcher has started them, they connect at a `rendezvous`, or at that of the `world` in which this
        process acts for rank 0. Another host has a `model_path` of its own.
        """
        if rendezvous is None and world is not None:
            rendezvous = Rendezvous(world, is_child=True)
        joined = rendezvous.joined_ranks() if rendezvous is not None else NONE_JOINED
        self.engine = InferenceEngine(replace(config, model_path=model_path or config.model_path), joined)
        super().__init__(connection, self.engine.weights.prepare)
        self._number = number
        self._is_in_lock_step = config.data_parallel_mode == "lock_step"
        self._meeting: Meeting | None = None
        self._mailbox = Mailbox()
        self._is_closing = False
        self._sent_state = self.engine.state
        self._reader = Thread(target=self._receive, name="nano-messages", daemon=True)

    def joined(self) -> tuple[int, int]:
        """How long a request may be, and how many blocks there are."""
        return self.engine.max_model_len, self.engine.num_blocks

    def run(self) -> None:
        """Take steps until the leader asks to stop or is gone; at rest, beat, and look whether the ranks are there."""
        self._reader.start()
        while not self._is_closing:
            self._mailbox.perform(timeout_s=0.0 if self._is_stepping() else LOOK_S, is_closing=lambda: self._is_closing)
            deltas = list[Delta]()
            if self._is_stepping():
                deltas = self.engine.step_deltas()
            else:
                self.engine.stats()  # Raises if one was lost.
                self.send(None)
            if deltas or self.engine.state is not self._sent_state:
                self.send(self._progress(deltas))

    def close(self) -> None:
        """End the other ranks, too; the thread that reads ends when the leader asks to stop, or closes its end."""
        super().close()
        self.engine.shutdown()
        if self._reader.is_alive():
            self._reader.join()

    # What the leader calls between two steps, beside methods of the engine.

    def install(self, ticket: int, version: int) -> None:
        self.engine.weights.install(self.take(ticket), version)

    def sleep(self, drop_weights: bool) -> None:
        self.engine.sleep(drop_weights=drop_weights)

    def begin_pause(self, mode: Literal["wait", "keep"]) -> None:
        self.engine.begin_pause(mode)
        self.send(self._progress([]))

    def meet(self, address: str, port: int, size: int) -> None:
        place, store = Shard(self._number, size), join_store(address, port, size)
        self._meeting = Meeting(place, torch.device("cpu"), store, own_address(address))

    def play(self, number: int, version: int, num_steps: int) -> Progress:
        """Play a round with the others."""
        assert self._meeting is not None
        return self._progress(play(self.engine, self._meeting, number, version, num_steps))

    def _is_stepping(self) -> bool:
        is_running = self.engine.state in (EngineState.RUNNING, EngineState.DRAINING)
        return is_running and not (self._is_closing or self._is_in_lock_step) and self.engine.has_pending()

    def _progress(self, deltas: list[Delta]) -> Progress:
        self._sent_state = self.engine.state
        return Progress(deltas, self._sent_state)

    # What follows runs in the thread that reads messages.

    def _receive(self) -> None:
        with suppress(EOFError, OSError):  # The leader is gone.
            while (message := self._connection.recv()) is not None:
                if message.method == "admit":
                    self._mailbox.put(self._admission(*message.arguments))
                elif message.method == "begin_build":
                    self.carry_out(message)
                else:
                    self._mailbox.put(partial(self.carry_out, message))
        self._mailbox.put(self._stop)

    def _admission(
        self, request_id: int, tokens: tuple[int, ...], params: SamplingParams, num_samples: int, is_streamed: bool
    ) -> Callable[[], object]:
        """Queue a request that the leader has checked, under the leader's number."""
        try:
            request = self.engine.prepare_request(tokens, params, num_samples, stream=is_streamed)
        except RequestError as error:
            deltas = [last_delta(request_id, index, tokens, error) for index in range(num_samples)]
            return lambda: self.send(self._progress(deltas))
        return partial(self.engine.add_prepared, request, request_id)

    def _stop(self) -> None:
        self._is_closing = True


def last_delta(request_id: int, index: int, tokens: tuple[int, ...], error: RequestError | None) -> Delta:
    """The delta of a sample that ends without a token: with an error, or because it was aborted."""
    sample = TrainingSample(
        prompt_tokens=tokens,
        completion_tokens=(),
        logprobs=(),
        weight_version=0,
        finish_reason="abort" if error is None else "error",
        request_id=request_id,
        sample_index=index,
        error=error,
    )
    return Delta(request_id=request_id, sample_index=index, sample=sample)
