"""What the engine hands back. Immutable, and free of tensors: it can be kept, sent and pickled.

~~~~
From a request to the sequences that answer it: what can be wrong with it is found here, before it is queued.

~~~~
The engine: one model, served to many requests at once.

It owns what has to be given back, the weights and the memory of the KV cache, and the requests under way.
Single-threaded: all calls come from one thread. `AsyncEngine` is the front for many callers.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from types import TracebackType
from typing import Literal, Self

from mac_runner.nano.architecture import read_model_config
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


Prompt = str | Ordered[int]
SAMPLES_MAX = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRequest:
    """A request that can be served: tokens, how many there may be in the end, and the grammar to follow."""

    tokens: Ordered[int]
    params: SamplingParams
    num_samples: int
    num_tokens_max: int
    grammar: Grammar | None
    is_streamed: bool


class Intake:
    """Checks requests, and numbers the sequences it makes of them."""

    def __init__(
        self,
        config: EngineConfig,
        tokenizer: Tokenizer | None,
        *,
        vocab_size: int,
        eos_token_ids: frozenset[int],
        max_model_len: int,
        num_blocks: int,
    ) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._max_model_len = max_model_len
        self._num_blocks = num_blocks
        self._compiler = GrammarCompiler(tokenizer, eos_token_ids)
        self._num_requests = 0
        self._num_sequences = 0

    def prepare(self, prompt: Prompt, params: SamplingParams, num_samples: int, is_streamed: bool) -> PreparedRequest:
        """Everything about a request that takes time or can be wrong. Any thread may call it. Raises RequestError."""
        tokens = self._tokens(prompt)
        if not 1 <= num_samples <= SAMPLES_MAX:
            raise InvalidRequestError(f"{num_samples} samples of a prompt; from 1 to {SAMPLES_MAX} can be had")
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
            random=Random(self._seed(request.params, request_id, index)),  # noqa: S311  No secret hangs on it.
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
        """What a sample's numbers follow from; text, for then they are the same in every version of Python."""
        if params.seed is not None:
            return f"{params.seed}/{index}"
        return f"{self._config.seed}/{request_id}/{index}"

    def _stopping(self, request: PreparedRequest) -> StopChecker:
        """Text is made token by token only for those who look at it."""
        wanted = self._tokenizer if request.params.stop or request.is_streamed else None
        stream = TextStream(wanted) if wanted is not None else None
        return StopChecker(params=request.params, eos_token_ids=self._eos_token_ids, stream=stream)


PauseMode = Literal["abort", "wait", "keep"]


class EngineState(StrEnum):
    """What an engine does with its requests."""

    RUNNING = "running"
    DRAINING = "draining"  # Those that run are finished, nobody is admitted.
    PAUSED = "paused"
    ASLEEP = "asleep"  # Paused, and without memory for KV.
    STOPPED = "stopped"


class InferenceEngine:
    """Give it requests, and take steps while there are any."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self._threads = ThreadPin(config.num_threads, config.tensor_parallel_size)
        self.directory = find_model(config.model_path)
        self.model_config = read_model_config(self.directory)
        self.tokenizer = load_tokenizer(self.directory)
        self._runner = make_runner(config, self.model_config, read_state_dict(self.directory), self._threads.count)
        self.max_model_len = self._runner.max_model_len
        self._intake = Intake(
            config,
            self.tokenizer,
            vocab_size=self.model_config.vocab_size,
            eos_token_ids=self.model_config.eos_token_ids,
            max_model_len=self.max_model_len,
            num_blocks=self._runner.num_blocks,
        )
        self._batch = ContinuousBatch(
            make_cache(config, self._runner.num_blocks),
            config.scheduling(),
            self._runner.forward,
            self.tokenizer,
        )
        self._sync = WeightSync(self._runner, self.model_config, on_install=self._batch.cache.set_version)
        self._unfetched = list[TrainingSample]()
        self.state = EngineState.RUNNING
        self._warm_up()
        self._threads.hold()  # An engine that could not be made stands in nobody's way.

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
            # Nobody would ever ask for them.
            for request_id in place:
                self.abort_deltas(request_id)
            raise
        finally:
            # Requests that were added one by one are told of by the next step.
            self._unfetched += others
        found.sort(key=lambda sample: (place[sample.request_id], sample.sample_index))
        for sample in found:
            if sample.error is not None:
                raise sample.error
        return found

    def add_request(self, prompt: Prompt, params: SamplingParams, num_samples: int = 1, *, stream: bool = False) -> int:
        """Queue a prompt, given as text or tokens; its number.

        With `stream` every token is told by `step_deltas`, with its text.
        """
        self._require_alive()
        return self.add_prepared(self.prepare_request(prompt, params, num_samples, stream=stream))

    def prepare_request(
        self, prompt: Prompt, params: SamplingParams, num_samples: int = 1, *, stream: bool = False
    ) -> PreparedRequest:
        """Check a request, make tokens of a text and compile what constrains it; any thread may do so beside a step."""
        return self._intake.prepare(prompt, params, num_samples, stream)

    def add_prepared(self, request: PreparedRequest) -> int:
        """Queue a request; its number. Raises QueueFullError."""
        self._require_alive()
        self._require_room(request.num_samples)
        sequences = self._intake.sequences(request)
        self._batch.add(sequences)
        return sequences[0].request_id

    def step(self) -> list[TrainingSample]:
        """Compute some tokens of some requests; the samples that were finished by it."""
        unfetched, self._unfetched = self._unfetched, []
        return unfetched + _samples(self.step_deltas())

    def step_deltas(self) -> list[Delta]:
        """Like `step`, with all there is to tell of requests that stream."""
        self._require_alive()
        self._threads.check()
        self._sync.poll()
        if self.state not in (EngineState.RUNNING, EngineState.DRAINING):
            return []
        deltas = self._batch.step(self._sync.version, admits=self.state is EngineState.RUNNING)
        self._settle()
        return deltas

    def has_pending(self) -> bool:
        """Whether any request is unfinished, or a finished one not told of."""
        return bool(self._batch.waiting or self._batch.running or self._unfetched)

    def abort(self, request_id: int) -> list[TrainingSample]:
        """End a request now; its samples as far as they had come, none if it was finished already."""
        return _samples(self.abort_deltas(request_id))

    def abort_deltas(self, request_id: int | None = None) -> list[Delta]:
        """End a request, or all of them, with all there is to tell of those that stream."""
        deltas = self._batch.abort(request_id, self._sync.version)
        self._settle()
        return deltas

    def update_weights(self, state_dict: StateDict, blocking: bool = False, version: int | None = None) -> None:
        """Compute with these weights: from now on, or from a coming step on, when they are ready (`blocking=False`).

        One update at a time is made ready: a second waits for the first.

        They are the whole model's, by the names of its checkpoint. Until `get_weight_version` tells that they are in,
        they must not be changed. Requests under way go on, and say in `version_spans` which weights made what; what
        the cache has of other weights is never found again. `version` is the last one plus 1, unless it is given.
        """
        self._require_alive()
        if blocking:
            self._sync.update(state_dict, version)
        else:
            self._sync.begin(state_dict, version)

    def prepare_weights(self, state_dict: StateDict) -> Prepared:
        """Check weights and make them ready to be put in; another thread may do so beside a step."""
        return self._sync.prepare(state_dict)

    def install_weights(self, prepared: Prepared, version: int | None = None) -> None:
        """Compute with prepared weights from now on."""
        self._require_alive()
        self._sync.install(prepared, version)

    def get_weight_version(self) -> int:
        """The version of the weights in use; 0 are those of the model's directory."""
        self._sync.poll()
        return self._sync.version

    def flush_cache(self) -> None:
        """Forget every prefix. Not needed after an update: what other weights computed is never found."""
        self._batch.cache.flush()

    def pause(self, mode: PauseMode = "keep") -> list[TrainingSample]:
        """Stop between two steps: after ending all requests, after finishing those that run, or as it is.

        The samples of requests that this has ended.
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
        """Pause in the course of the coming steps: `state` tells when."""
        self._require_alive()
        if self.state is not EngineState.ASLEEP:
            self.state = EngineState.PAUSED if mode == "keep" else EngineState.DRAINING
            self._settle()

    def resume(self) -> None:
        """Go on after a pause."""
        self._require_alive()
        if self.state is EngineState.ASLEEP:
            raise ConfigError("the engine is asleep: wake it up")
        self.state = EngineState.RUNNING

    def sleep(self, *, drop_weights: bool = False) -> None:
        """Give memory back: that of the KV cache, and of the weights if so told. Nothing may be running."""
        self._require_alive()
        if self._batch.running:
            raise ConfigError(f"{len(self._batch.running)} requests are running: pause with 'wait' or 'abort' first")
        self.state = EngineState.ASLEEP
        self._batch.cache.flush()
        self._runner.drop_store()
        if drop_weights:
            self._runner.drop_weights()

    def wake(self) -> None:
        """Be ready again. Weights that were dropped are read again, or must have been updated if they ever were."""
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
        """How busy it is."""
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
        """Give everything back; requests under way are dropped. May be called twice."""
        self._sync.close()
        self._batch.abort(None, self._sync.version)
        self._runner.close()
        self._threads.release()
        self.state = EngineState.STOPPED

    def _warm_up(self) -> None:
        """Compute a token for nobody: what is loaded when it is first needed is there when the first request comes."""
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
