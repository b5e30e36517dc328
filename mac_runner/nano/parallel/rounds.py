"""The rounds of replicas that step together, as each replica plays them.

A round has four parts. The leader sends every replica the same message: new requests, requests to end, the version of
the weights, the number of steps. All replicas meet in one reduction, which says whether any of them has work, or could
not carry out the message. Where any has work, all take the steps; one without work computes a token of nothing. Each
then sends the leader what came out.

So no replica steps alone. Between two rounds each waits for a message, never in a reduction: the end of the leader is
seen, and a rest may last as long as it likes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from mac_runner.nano.base_engine import EngineStats
from mac_runner.nano.engine import InferenceEngine
from mac_runner.nano.errors import DivergenceError, NanoError
from mac_runner.nano.intake import PreparedRequest
from mac_runner.nano.parallel.group import PeerLostError, Shard, TorchPeers
from mac_runner.nano.sequence import Delta


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """A new request, its number, and the replica that serves it."""

    request_id: int
    replica: int
    request: PreparedRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What every replica is to do in a round. None among `aborts` is every request."""

    number: int
    version: int
    admissions: tuple[Admission, ...] = ()
    aborts: tuple[int | None, ...] = ()
    num_steps: int = 0
    admits: bool = True

    def packed(self) -> Round:
        """The same without compiled grammars, which do not leave their process."""
        bare = (replace(each, request=replace(each.request, grammar=None)) for each in self.admissions)
        return replace(self, admissions=tuple(bare))


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What came out of a round on one replica. `is_idle` means that no replica had work."""

    replica: int
    number: int
    version: int
    is_idle: bool
    deltas: tuple[Delta, ...]
    stats: EngineStats

    def digests(self) -> dict[str, str]:
        """What all replicas must agree about."""
        return {"round": str(self.number), "weight_version": str(self.version), "idleness": str(self.is_idle)}


class Meeting(TorchPeers):
    """Where all replicas meet once a round: a reduction over torch.distributed with gloo."""

    def __init__(self, place: Shard, store: object, address: str) -> None:
        super().__init__(place, torch.device("cpu"), store, address)

    def largest(self, *values: int) -> list[int]:
        """The largest that any replica brings, for each of its values. Raises RankFailedError."""
        from torch.distributed import AllreduceOptions, ReduceOp

        assert self._group is not None
        found, options = torch.tensor(values), AllreduceOptions()
        options.reduceOp = ReduceOp.MAX
        try:
            self._group.allreduce([found], options).wait()
        except RuntimeError as error:
            raise PeerLostError(f"a meeting over torch.distributed has failed: {error}") from error
        return [int(value) for value in found]


class Replica:
    """One replica in its rounds."""

    def __init__(self, number: int, engine: InferenceEngine, meeting: Meeting) -> None:
        self._number = number
        self._engine = engine
        self._meeting = meeting

    def play(self, message: Round) -> Report:
        """Carry out a round with the others. Raises NanoError, and then every replica does."""
        deltas, fault = list[Delta](), None
        try:
            deltas += self._take_in(message)
        except NanoError as error:
            fault = error
        has_work = self._engine.has_work(admits=message.admits)
        any_work, any_fault, latest = self._meeting.largest(has_work, fault is not None, message.number)
        if fault is not None:
            raise fault
        if any_fault or latest != message.number:
            raise PeerLostError(f"another replica could not carry out round {message.number}")
        for _ in range(message.num_steps if any_work else 0):
            deltas += self._engine.step_along(admits=message.admits)
        return Report(
            replica=self._number,
            number=message.number,
            version=self._engine.get_weight_version(),
            is_idle=not any_work,
            deltas=tuple(deltas),
            stats=self._engine.stats(),
        )

    def _take_in(self, message: Round) -> list[Delta]:
        version = self._engine.get_weight_version()
        if version != message.version:
            raise DivergenceError(
                f"in round {message.number} replica {self._number} and the leader disagree in weight_version: "
                f"{version} and {message.version}"
            )
        for each in message.admissions:
            if each.replica == self._number:
                self._engine.add_prepared(self._prepared(each.request), each.request_id)
        return [delta for request_id in message.aborts for delta in self._engine.abort_deltas(request_id)]

    def _prepared(self, request: PreparedRequest) -> PreparedRequest:
        """A request with its grammar, which is compiled here if it was not in this process."""
        if request.grammar is not None or not request.params.is_constrained:
            return request
        return self._engine.prepare_request(
            request.tokens, request.params, request.num_samples, stream=request.is_streamed
        )
