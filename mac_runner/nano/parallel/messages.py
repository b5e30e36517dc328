"""What the leader of replicas and a replica send each other."""

from __future__ import annotations

from dataclasses import dataclass

from mac_runner.nano.base_engine import EngineState
from mac_runner.nano.config import EngineConfig
from mac_runner.nano.errors import NanoError, RequestError
from mac_runner.nano.parallel.world import World
from mac_runner.nano.sampling_params import SamplingParams
from mac_runner.nano.sequence import Delta, TrainingSample


@dataclass(frozen=True, slots=True)
class Begin:
    """The first message: what to load. `world` is set where a launcher has started the other ranks."""

    config: EngineConfig
    world: World | None = None


@dataclass(frozen=True, slots=True)
class Ready:
    """The answer to `Begin`: how long a request may be, and how many blocks there are."""

    max_model_len: int
    num_blocks: int


@dataclass(frozen=True, slots=True)
class Admit:
    """A request that the leader has checked, under the leader's number."""

    request_id: int
    tokens: tuple[int, ...]
    params: SamplingParams
    num_samples: int
    is_streamed: bool


@dataclass(frozen=True, slots=True)
class Progress:
    """What a step has brought, and what the engine does now."""

    deltas: list[Delta]
    state: EngineState


@dataclass(frozen=True, slots=True)
class Answer:
    """The value of the call of this number, or the error that it raised."""

    number: int
    value: object = None
    error: NanoError | None = None


def failed_delta(request_id: int, index: int, tokens: tuple[int, ...], error: RequestError) -> Delta:
    """The last delta of a sample that an error ends."""
    sample = TrainingSample(
        prompt_tokens=tokens,
        completion_tokens=(),
        logprobs=(),
        weight_version=0,
        finish_reason="error",
        request_id=request_id,
        sample_index=index,
        error=error,
    )
    return Delta(request_id=request_id, sample_index=index, sample=sample)
