"""The engine: one model, which serves many requests at once.

It owns the weights, the memory of the KV cache and the requests under way. Single-threaded: all calls come from one
thread. `AsyncEngine` serves many callers. `Intake` finds what is wrong with a request before it is queued.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from types import TracebackType
from typing import Literal, Self

from mac_runner.nano.architecture import ModelConfig, read_model_config
from mac_runner.nano.attention import Piece, make_batch
from mac_runner.nano.batching import ContinuousBatch
from mac_runner.nano.cache import blocks_for, make_cache
from mac_runner.nano.checkpoint import StateDict, find_model, read_state_dict
from mac_runner.nano.config import EngineConfig
from mac_runner.nano.constraints import Grammar, GrammarCompiler
from mac_runner.nano.cpu.threads import ThreadPin
from mac_runner.nano.errors import (
    ConfigError,
    EngineStoppedError,
    InvalidRequestError,
    ModelError,
    PromptTooLongError,
    QueueFullError,
)
from mac_runner.nano.parallel.runner import make_runner
from mac_runner.nano.runner import Prepared, WeightSync
from mac_runner.nano.sampler import Row, choose
from mac_runner.nano.sampling_params import SamplingParams
from mac_runner.nano.sequence import Delta, Sequence, StopChecker, TrainingSample
from mac_runner.nano.tokenizer import TextStream, Tokenizer, load_tokenizer

Prompt = str | Ordered[int]
PauseMode = Literal["abort", "wait", "keep"]
SAMPLES_MAX = 1024


class EngineState(StrEnum):
    """What an engine does with its requests."""

    RUNNING = "running"
    DRAINING = "draining"  # Running requests are finished, none are admitted.
    PAUSED = "paused"
    ASLEEP = "asleep"  # Paused, and without memory for KV.
    STOPPED = "stopped"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRequest:
    """A request that can be served: its tokens, how many there may be at most, and its grammar."""

    tokens: Ordered[int]
    params: SamplingParams
    num_samples: int
    num_tokens_max: int
    grammar: Grammar | None
    is_streamed: bool


class Intake:
    """Checks requests, and makes numbered sequences of them."""

    def __init__(
        self,
        config: EngineConfig,
        tokenizer: Tokenizer | None,
        model_config: ModelConfig,
        max_model_len: int,
        num_blocks: int,
    ) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._vocab_size = model_config.vocab_size
        self._eos_token_ids = model_config.eos_token_ids
        self._max_model_len = max_model_len
        self._num_blocks = num_blocks
        self._compiler = GrammarCompiler(tokenizer, self._eos_token_ids)
        self._num_requests = 0
        self._num_sequences = 0

    def prepare(self, prompt: Prompt, params: SamplingParams, num_samples: int, is_streamed: bool) -> PreparedRequest:
        """Check a request and do what takes time. Any thread may call it. Raises RequestError."""
        tokens = self._tokens(prompt)
        if not 1 <= num_samples <= SAMPLES_MAX:
            raise InvalidRequestError(f"{num_samples} samples of a prompt; from 1 to {SAMPLES_MAX} are possible")
        num_tokens_max = self._limit(len(tokens), params)
        if params.stop and self._tokenizer is None:
            raise InvalidRequestError(
                "stop texts need a tokenizer, and this model has no tokenizer.json: use stop_token_ids"
            )
        return PreparedRequest(
            tokens=tokens,
            params=params,
            num_samples=num_samples,
            num_tokens_max=num_tokens_max,
            grammar=self._compiler.compile(params),
            is_streamed=is_streamed,
        )

    def sequences(self, request: PreparedRequest) -> list[Sequence]:
        """The sequences of a new request, all of one `request_id`."""
        request_id, self._num_requests = self._num_requests, self._num_requests + 1
        first, self._num_sequences = self._num_sequences, self._num_sequences + request.num_samples
        return [self._sequence(request, first + index, request_id, index) for index in range(request.num_samples)]

    def _sequence(self, request: PreparedRequest, seq_id: int, request_id: int, index: int) -> Sequence:
        return Sequence(
            seq_id=seq_id,
            request_id=request_id,
            sample_index=index,
            tokens=list(request.tokens),
            num_prompt_tokens=len(request.tokens),
            num_tokens_max=request.num_tokens_max,
            params=request.params,
            random=Random(self._seed(request.params, request_id, index)),  # noqa: S311  Not for secrets.
            stopping=self._stopping(request),
            constraint=request.grammar.constraint() if request.grammar is not None else None,
            is_streamed=request.is_streamed,
        )

    def _tokens(self, prompt: Prompt) -> Ordered[int]:
        tokens = self._encoded(prompt) if isinstance(prompt, str) else prompt
        if not isinstance(tokens, Ordered):
            raise InvalidRequestError(f"the prompt is of type {type(prompt).__name__}: give a text or a list of tokens")
        if not tokens:
            raise InvalidRequestError("the prompt is empty: give it at least one token")
        for token_id in tokens:
            if type(token_id) is not int or not 0 <= token_id < self._vocab_size:
                raise InvalidRequestError(
                    f"token {token_id!r} in the prompt; the model knows 0 to {self._vocab_size - 1}"
                )
        return tokens

    def _encoded(self, text: str) -> Ordered[int]:
        if self._tokenizer is None:
            raise InvalidRequestError("a text prompt needs a tokenizer, and this model has no tokenizer.json")
        return self._tokenizer.encode(text)

    def _limit(self, num_tokens: int, params: SamplingParams) -> int:
        if num_tokens >= self._max_model_len:
            raise PromptTooLongError(
                f"the prompt has {num_tokens} tokens; the model's window of {self._max_model_len} must hold one more"
            )
        most = min(num_tokens + params.max_tokens, self._max_model_len)
        if blocks_for(most, self._config.block_size) > self._num_blocks:
            room = self._num_blocks * self._config.block_size
            raise PromptTooLongError(
                f"{most} tokens do not fit a KV cache of {room}: lower max_tokens or give it more memory"
            )
        return most

    def _seed(self, params: SamplingParams, request_id: int, index: int) -> str:
        """The seed of a sample's numbers; a text seeds the same numbers in every version of Python."""
        if params.seed is not None:
            return f"{params.seed}/{index}"
        return f"{self._config.seed}/{request_id}/{index}"

    def _stopping(self, request: PreparedRequest) -> StopChecker:
        """The check of each token; it decodes text only for requests that need it."""
        wanted = self._tokenizer if request.params.stop or request.is_streamed else None
        stream = TextStream(wanted) if wanted is not None else None
        return StopChecker(params=request.params, eos_token_ids=self._eos_token_ids, stream=stream)


class InferenceEngine:
    """One model and its requests: add requests, and take steps while there are any."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self._threads = ThreadPin(config.num_threads, config.tensor_parallel_size)
        self.directory = find_model(config.model_path)
        self.model_config = read_model_config(self.directory)
        self.tokenizer = load_tokenizer(self.directory)
        self._runner = make_runner(config, self.model_config, read_state_dict(self.directory), self._threads.count)
        self.max_model_len = self._runner.max_model_len
        num_blocks = self._runner.num_blocks
        self._intake = Intake(config, self.tokenizer, self.model_config, self.max_model_len, num_blocks)
        cache = make_cache(config, num_blocks)
        self._batch = ContinuousBatch(cache, config.scheduling(), self._runner.forward, self.tokenizer)
        self._sync = WeightSync(self._runner, self.model_config, on_install=cache.set_version)
        self._unfetched = list[TrainingSample]()
        self.state = EngineState.RUNNING
        self._warm_up()
        self._threads.hold()  # Last: an engine that could not be made blocks no other.

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def generate(
        self, prompts: Ordered[Prompt], sampling_params: SamplingParams, num_samples_per_prompt: int = 1
    ) -> list[TrainingSample]:
        """Complete prompts, each so many times; the samples are in the order of the prompts.

        Raises the first error of any of them.
        """
        self._require_alive()
        if self.state is not EngineState.RUNNING:
            way = "wake it up" if self.state is EngineState.ASLEEP else "resume it"
            raise ConfigError(f"the engine is {self.state}: {way} before generating")
        if isinstance(prompts, str):
            raise InvalidRequestError("prompts is one text: give a list of prompts")
        prepared = [self.prepare_request(prompt, sampling_params, num_samples_per_prompt) for prompt in prompts]
        self._require_room(len(prepared) * num_samples_per_prompt)
        place = {self.add_prepared(request): index for index, request in enumerate(prepared)}
        found, others = list[TrainingSample](), list[TrainingSample]()
        try:
            while len(found) < len(place) * num_samples_per_prompt:
                for sample in self.step():
                    (found if sample.request_id in place else others).append(sample)
        except BaseException:
            # No later call could return them.
            for request_id in place:
                self.abort_deltas(request_id)
            raise
        finally:
            # The next step returns the samples of other requests.
            self._unfetched += others
        found.sort(key=lambda sample: (place[sample.request_id], sample.sample_index))
        for sample in found:
            if sample.error is not None:
                raise sample.error
        return found

    def add_request(self, prompt: Prompt, params: SamplingParams, num_samples: int = 1, *, stream: bool = False) -> int:
        """Queue a prompt, as text or tokens; its number.

        With `stream`, `step_deltas` returns every token with its text.
        """
        self._require_alive()
        return self.add_prepared(self.prepare_request(prompt, params, num_samples, stream=stream))

    def prepare_request(
        self, prompt: Prompt, params: SamplingParams, num_samples: int = 1, *, stream: bool = False
    ) -> PreparedRequest:
        """Check a request, encode its text and compile its grammar; another thread may call it beside a step."""
        return self._intake.prepare(prompt, params, num_samples, stream)

    def add_prepared(self, request: PreparedRequest) -> int:
        """Queue a request; its number. Raises QueueFullError."""
        self._require_alive()
        self._require_room(request.num_samples)
        sequences = self._intake.sequences(request)
        self._batch.add(sequences)
        return sequences[0].request_id

    def step(self) -> list[TrainingSample]:
        """Compute some tokens of some requests; the samples that this finished."""
        unfetched, self._unfetched = self._unfetched, []
        return unfetched + _samples(self.step_deltas())

    def step_deltas(self) -> list[Delta]:
        """Like `step`, with every token of the requests that stream."""
        self._require_alive()
        self._threads.check()
        self._sync.poll()
        if self.state not in (EngineState.RUNNING, EngineState.DRAINING):
            return []
        deltas = self._batch.step(self._sync.version, admits=self.state is EngineState.RUNNING)
        self._settle()
        return deltas

    def has_pending(self) -> bool:
        """Whether any request is unfinished, or finished and not yet returned."""
        return bool(self._batch.waiting or self._batch.running or self._unfetched)

    def abort(self, request_id: int) -> list[TrainingSample]:
        """End a request now; its samples so far, none if it was finished already."""
        return _samples(self.abort_deltas(request_id))

    def abort_deltas(self, request_id: int | None = None) -> list[Delta]:
        """End a request, or all of them; their last deltas."""
        deltas = self._batch.abort(request_id, self._sync.version)
        self._settle()
        return deltas

    def update_weights(self, state_dict: StateDict, blocking: bool = False, version: int | None = None) -> None:
        """Compute with these weights: from now on, or (`blocking=False`) from a later step on, when they are ready.

        They are the whole model's, by the names of its checkpoint. They must not change until `get_weight_version`
        shows that they are installed. A second update waits for the first. Requests under way continue; their
        `version_spans` say which weights made which tokens. The cache never finds what other weights computed.
        `version` is by default the last one plus 1. Raises ModelError, and ConfigError for a version that is not newer.
        """
        self._require_alive()
        if blocking:
            self._sync.update(state_dict, version)
        else:
            self._sync.begin(state_dict, version)

    def prepare_weights(self, state_dict: StateDict) -> Prepared:
        """Check weights and build a model of them; another thread may call it beside a step."""
        return self._sync.prepare(state_dict)

    def install_weights(self, prepared: Prepared, version: int | None = None) -> None:
        """Compute with prepared weights from now on."""
        self._require_alive()
        self._sync.install(prepared, version)

    def get_weight_version(self) -> int:
        """The version of the weights in use; 0 is the model's directory."""
        self._sync.poll()
        return self._sync.version

    def flush_cache(self) -> None:
        """Forget every prefix. An update does not need it."""
        self._batch.cache.flush()

    def pause(self, mode: PauseMode = "keep") -> list[TrainingSample]:
        """Stop between two steps, and return the samples of requests that this ended.

        `abort` ends all requests first, `wait` finishes those that run, `keep` leaves all as they are.
        """
        self._require_alive()
        found = list[TrainingSample]()
        if mode == "abort":
            found += _samples(self.abort_deltas())
        self.begin_pause("keep" if mode == "abort" else mode)
        while self.state is EngineState.DRAINING:
            found += self.step()
        return found

    def begin_pause(self, mode: Literal["wait", "keep"]) -> None:
        """Pause during the next steps; `state` shows when it has paused."""
        self._require_alive()
        if self.state is not EngineState.ASLEEP:
            self.state = EngineState.PAUSED if mode == "keep" else EngineState.DRAINING
            self._settle()

    def resume(self) -> None:
        """Continue after a pause."""
        self._require_alive()
        if self.state is EngineState.ASLEEP:
            raise ConfigError("the engine is asleep: wake it up")
        self.state = EngineState.RUNNING

    def sleep(self, *, drop_weights: bool = False) -> None:
        """Give back the memory of the KV cache, and with `drop_weights` of the weights. Nothing may be running."""
        self._require_alive()
        if self._batch.running:
            raise ConfigError(f"{len(self._batch.running)} requests are running: pause with 'wait' or 'abort' first")
        self.state = EngineState.ASLEEP
        self._batch.cache.flush()
        self._runner.drop_store()
        if drop_weights:
            self._runner.drop_weights()

    def wake(self) -> None:
        """Be ready again. Dropped weights are read again; if they were ever updated, they must be updated first."""
        self._require_alive()
        if self.state is not EngineState.ASLEEP:
            raise ConfigError(f"the engine is {self.state}, not asleep")
        self._sync.poll(wait=True)
        if not self._runner.has_weights:
            if self._sync.version:
                raise ModelError(
                    f"weights of version {self._sync.version} were dropped: update_weights before waking up"
                )
            self._runner.replace(self._runner.build(read_state_dict(self.directory)))
        self._runner.restore_store()
        self.state = EngineState.RUNNING

    def stats(self) -> EngineStats:
        """How busy the engine is, and what it has done."""
        self._runner.check()
        counts, counters = self._batch.cache.counts(), self._batch.counters
        return EngineStats(
            num_waiting=len(self._batch.waiting),
            num_running=len(self._batch.running),
            num_blocks=self._batch.cache.num_blocks,
            num_free_blocks=counts.free,
            num_cached_blocks=counts.cached,
            num_steps=counters.steps,
            num_prompt_tokens=counters.prompt_tokens,
            num_cached_prompt_tokens=counters.cached_prompt_tokens,
            num_completion_tokens=counters.completion_tokens,
            num_preemptions=counters.preemptions,
            weight_version=self._sync.version,
        )

    def shutdown(self) -> None:
        """Drop the requests under way and give everything back; may be called twice."""
        self._sync.close()
        self._batch.abort(None, self._sync.version)
        self._runner.close()
        self._threads.release()
        self.state = EngineState.STOPPED

    def _warm_up(self) -> None:
        """Compute one token, so that everything is loaded when the first request comes."""
        batch = make_batch([Piece([0], 0, 1, [0])], self.config.block_size)
        choose(self._runner.forward(batch), [Row(params=SamplingParams(temperature=0.0))])

    def _require_room(self, num_samples: int) -> None:
        waiting, most = len(self._batch.waiting), self.config.max_waiting
        if waiting + num_samples > most:
            raise QueueFullError(
                f"{waiting} requests wait, {most} may, {num_samples} more are asked for: try again later"
            )

    def _settle(self) -> None:
        if self.state is EngineState.DRAINING and not self._batch.running:
            self.state = EngineState.PAUSED

    def _require_alive(self) -> None:
        if self.state is EngineState.STOPPED:
            raise EngineStoppedError("the engine was shut down: make another one")
        self._runner.check()


def _samples(deltas: list[Delta]) -> list[TrainingSample]:
    return [delta.sample for delta in deltas if delta.sample is not None]
