"""What the engine hands back. Immutable, and free of tensors: it can be kept, sent and pickled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from mac_runner.nano.errors import RequestError

FinishReason = Literal["stop", "length", "abort", "error"]


class VersionSpan(NamedTuple):
    """From the completion's token `start` on, the weights were of this version."""

    version: int
    start: int


class TokenLogprob(NamedTuple):
    """A token that could have been chosen, and how likely it was."""

    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSample:
    """One finished completion.

    `logprobs` are those of the model's own distribution, before penalties, temperature and constraints, in float32.
    The token that ended the completion belongs to it; `text` leaves it out, and also the stop text and what stood
    behind it. `weight_version` is that of the first token: where weights changed meanwhile, `version_spans` has all
    of them. `ref_logprobs` is room for another model's: the engine leaves it empty.
    """

    prompt_tokens: tuple[int, ...]
    completion_tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    weight_version: int
    finish_reason: FinishReason
    ref_logprobs: tuple[float, ...] | None = None
    request_id: int = 0
    sample_index: int = 0
    text: str | None = None
    stop_reason: int | str | None = None
    """The token or text that ended it, where it was not the end of the model's turn."""
    top_logprobs: tuple[tuple[TokenLogprob, ...], ...] | None = None
    version_spans: tuple[VersionSpan, ...] = ()
    num_cached_tokens: int = 0
    """How many of the prompt's tokens were found in the prefix cache."""
    error: RequestError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What one step added to one sample; the last one carries the sample. `text` only where streaming was asked for."""

    request_id: int
    sample_index: int
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    top_logprobs: tuple[tuple[TokenLogprob, ...], ...] = ()
    text: str = ""
    sample: TrainingSample | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheAllocation:
    """The blocks a sequence was given, and how many of its tokens are in them already."""

    block_ids: tuple[int, ...]
    cached_length: int


class CacheHit(NamedTuple):
    """What the prefix cache has of some tokens, and how many blocks of that nobody holds at the moment."""

    num_tokens: int
    num_idle_blocks: int


class Work(NamedTuple):
    """So many tokens of this sequence are computed in this step."""

    seq_id: int
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOutput:
    """What one step does."""

    work: tuple[Work, ...] = ()
    admitted_seqs: tuple[int, ...] = ()
    preempted_seqs: tuple[int, ...] = ()
    prefill_seqs: tuple[int, ...] = ()
    decode_seqs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """How busy the engine is, and what it has done since it began."""

    num_waiting: int
    num_running: int
    num_blocks: int
    num_free_blocks: int
    num_cached_blocks: int
    num_steps: int
    num_prompt_tokens: int
    num_cached_prompt_tokens: int
    num_completion_tokens: int
    num_preemptions: int
    weight_version: int
