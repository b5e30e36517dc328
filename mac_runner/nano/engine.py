"""What every engine offers (`BaseEngine`), and the engine of one model, which serves many requests at once.

An engine owns the weights, the memory of the KV cache and the requests under way. Single-threaded: all calls come from
one thread. `AsyncEngine` serves many callers; replicas of a model are in `parallel/replicas.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from collections.abc import Sequence as Ordered
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Literal, Self

from mac_runner.nano.architecture import ModelConfig, read_model_config
from mac_runner.nano.attention import Piece, make_batch
from mac_runner.nano.cache import make_cache
from mac_runner.nano.checkpoint import StateDict, find_model
from mac_runner.nano.config import EngineConfig, SamplingParams
from mac_runner.nano.constraints import GrammarCompiler
from mac_runner.nano.cpu.threads import ThreadPin
from mac_runner.nano.errors import ConfigError, EngineStoppedError, InvalidRequestError, ModelError, QueueFullError
from mac_runner.nano.parallel.ranks import make_runner
from mac_runner.nano.parallel.world import NONE_JOINED, Joined
from mac_runner.nano.runner import WeightSync
from mac_runner.nano.sampler import Row, choose
from mac_runner.nano.scheduler import ContinuousBatch
from mac_runner.nano.sequence import Delta, Intake, PreparedRequest, Prompt, TrainingSample
from mac_runner.nano.tokenizer import Tokenizer, load_tokenizer

PauseMode = Literal["abort", "wait", "keep"]


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
    num_replicas: int = 1


class Mailbox:
    """Commands for the thread that takes an engine's steps, which runs them between two. Any thread adds them."""

    def __init__(self) -> None:
        self._commands = SimpleQueue[Callable[[], object]]()

    def put(self, command: Callable[[], object]) -> None:
        self._commands.put(command)

    def perform(self, *, timeout_s: float | None, is_closing: Callable[[], bool]) -> None:
        """Run all commands until one closes the engine; wait so long for the first, and with None without end."""
        while True:
            try:
                command = self._commands.get(timeout=timeout_s)
            except Empty:
                return
            command()
            if is_closing():
                return
            timeout_s = 0.0


class BaseEngine(ABC):
    """Requests in, samples out. All calls come from one thread, except where a method says otherwise."""

    config: EngineConfig
    directory: Path
    model_config: ModelConfig
    tokenizer: Tokenizer | None
    max_model_len: int
    num_blocks: int
    """The blocks that one request may fill."""
    state: EngineState
    weights: WeightSync
    """Its `prepare` and `require_newer` may be called by any thread, beside a step."""
    _intake: Intake
    _unfetched: list[TrainingSample]

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
        self,
        prompt: Prompt,
        params: SamplingParams,
        num_samples: int = 1,
        *,
        stream: bool = False,
        conversation: str | None = None,
    ) -> PreparedRequest:
        """Check a request, encode its text and compile its grammar; another thread may call it beside a step.

        Requests of one `conversation` begin alike, so replicas compute them in one place.
        """
        return self._intake.prepare(prompt, params, num_samples, stream, conversation)

    @property
    def context_tokens(self) -> int:
        """The longest that a request may grow: the model's window, or all blocks where they hold less."""
        return min(self.max_model_len, self.num_blocks * self.config.block_size)

    @property
    def compiler(self) -> GrammarCompiler:
        """What compiles the grammars of requests; any thread may call it."""
        return self._intake.compiler

    def interrupt(self) -> None:  # noqa: B027  Most engines never wait.
        """End a wait in `step_deltas`, where there is one; any thread may call it."""

    def step(self) -> list[TrainingSample]:
        """Compute some tokens of some requests; the samples that this finished."""
        unfetched, self._unfetched = self._unfetched, []
        return unfetched + _samples(self.step_deltas())

    def abort(self, request_id: int) -> list[TrainingSample]:
        """End a request now; its samples so far, none if it was finished already."""
        return _samples(self.abort_deltas(request_id))

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

    def update_weights(self, state_dict: StateDict, blocking: bool = False, version: int | None = None) -> None:
        """Compute with these weights: from now on, or (`blocking=False`) from a later step on, when they are ready.

        They are the whole model's, by the names of its checkpoint. They must not change until `get_weight_version`
        shows that they are installed. A second update waits for the first. Requests under way continue; their
        `version_spans` say which weights made which tokens. The cache never finds what other weights computed.
        `version` is by default the last one plus 1. Raises ModelError, and StaleVersionError for one that is not newer.
        """
        self._require_alive()
        if blocking:
            self.weights.update(state_dict, version)
        else:
            self.weights.begin(state_dict, version)

    def get_weight_version(self) -> int:
        """The version of the weights in use; 0 is the model's directory."""
        self.weights.poll()
        return self.weights.version

    @abstractmethod
    def add_prepared(self, request: PreparedRequest) -> int:
        """Queue a request; its number. Raises QueueFullError."""

    @abstractmethod
    def step_deltas(self) -> list[Delta]:
        """Like `step`, with every token of the requests that stream."""

    @abstractmethod
    def has_pending(self) -> bool:
        """Whether any request is unfinished, or finished and not yet returned."""

    @abstractmethod
    def abort_deltas(self, request_id: int | None = None) -> list[Delta]:
        """End a request, or all of them; their last deltas."""

    @abstractmethod
    def flush_cache(self) -> None:
        """Forget every prefix. An update does not need it."""

    def begin_pause(self, mode: Literal["wait", "keep"]) -> None:
        """Pause during the next steps; `state` shows when it has paused."""
        self._require_alive()
        if self.state is not EngineState.ASLEEP:
            self.state = EngineState.PAUSED if mode == "keep" else EngineState.DRAINING
            self._settle()

    def resume(self) -> None:
        self._require_alive()
        if self.state is EngineState.ASLEEP:
            raise ConfigError("the engine is asleep: wake it up")
        self.state = EngineState.RUNNING

    def sleep(self, *, drop_weights: bool = False) -> None:
        """Give back the memory of the KV cache, and with `drop_weights` of the weights. Nothing may be running."""
        self._require_alive()
        was_running = self.state is EngineState.RUNNING
        if was_running:
            self.begin_pause("keep")  # From here on no request is admitted.
        if running := self._num_running():
            if was_running:
                self.resume()
            raise ConfigError(f"{running} requests are running: pause with 'wait' or 'abort' first")
        self._drop(weights=drop_weights)
        self.state = EngineState.ASLEEP

    def wake(self) -> None:
        """Be ready again. Dropped weights are read again; if they were ever updated, they must be updated first."""
        self._require_alive()
        if self.state is not EngineState.ASLEEP:
            raise ConfigError(f"the engine is {self.state}, not asleep")
        self.weights.poll(wait=True)
        self._restore()
        self.state = EngineState.RUNNING

    @abstractmethod
    def stats(self) -> EngineStats:
        """How busy the engine is, and what it has done."""

    @abstractmethod
    def shutdown(self) -> None:
        """Drop the requests under way and give everything back; may be called twice."""

    @abstractmethod
    def _check(self) -> None:
        """Raise RankFailedError where the engine has lost a process that it cannot do without."""

    @abstractmethod
    def _drop(self, *, weights: bool) -> None:
        """Give back the memory of the KV cache, and of the weights."""

    @abstractmethod
    def _restore(self) -> None:
        """Take it again."""

    @abstractmethod
    def _num_waiting(self) -> int:
        """The samples that wait for a place in a step."""

    @abstractmethod
    def _num_running(self) -> int:
        """The requests that take part in steps."""

    def _settle(self) -> None:
        """End a drain once nothing is running."""
        if self.state is EngineState.DRAINING and not self._num_running():
            self.state = EngineState.PAUSED

    def _require_alive(self) -> None:
        """Raise EngineStoppedError where the engine serves no more requests."""
        if self.state is EngineState.STOPPED:
            raise EngineStoppedError("the engine was shut down: make another one")
        self._check()

    def _require_room(self, num_samples: int) -> None:
        waiting, most = self._num_waiting(), self.config.max_waiting
        if waiting + num_samples > most:
            raise QueueFullError(
                f"{waiting} requests wait, {most} may, {num_samples} more are asked for: try again later"
            )


def _samples(deltas: list[Delta]) -> list[TrainingSample]:
    return [delta.sample for delta in deltas if delta.sample is not None]


class InferenceEngine(BaseEngine):
    """One model and its requests: add requests, and take steps while there are any."""

    def __init__(self, config: EngineConfig, joined: Joined = NONE_JOINED) -> None:
        """Load the model; the other ranks of it are started here, or have `joined`."""
        if config.data_parallel_size > 1:
            raise ConfigError(
                f"EngineConfig.data_parallel_size = {config.data_parallel_size}: an InferenceEngine is one replica"
            )
        self.config = config
        self._threads = ThreadPin(config.num_threads, config.tensor_parallel_size)
        self.directory = find_model(config.model_path)
        self.model_config = read_model_config(self.directory)
        self.tokenizer = load_tokenizer(self.directory)
        self._runner = make_runner(config, self.model_config, self.directory, self._threads.count, joined)
        self.max_model_len = self._runner.max_model_len
        num_blocks = self.num_blocks = self._runner.num_blocks
        self._intake = Intake(config, self.tokenizer, self.model_config, self.max_model_len, num_blocks)
        cache = make_cache(config, num_blocks)
        self._batch = ContinuousBatch(cache, config.scheduling(), self._runner.forward, self.tokenizer)
        self.weights = WeightSync(self._runner, self.model_config, on_install=cache.set_version)
        self._unfetched = list[TrainingSample]()
        self.state = EngineState.RUNNING
        # Compute one token, so that everything is loaded when the first request comes.
        batch = make_batch([Piece([0], 0, 1, [0])], config.block_size)
        choose(self._runner.forward(batch), [Row(params=SamplingParams(temperature=0.0))])
        self._threads.hold()  # Last: an engine that could not be made blocks no other.

    def add_prepared(self, request: PreparedRequest, request_id: int | None = None) -> int:
        """Queue a request; its number, which a leader may give. Raises QueueFullError."""
        self._require_alive()
        self._require_room(request.num_samples)
        sequences = self._intake.sequences(request, request_id)
        self._batch.add(sequences)
        return sequences[0].request_id

    def step_deltas(self) -> list[Delta]:
        self._require_alive()
        self._threads.check()
        self.weights.poll()
        if self.state not in (EngineState.RUNNING, EngineState.DRAINING):
            return []
        deltas = self._batch.step(self.weights.version, admits=self.state is EngineState.RUNNING)
        self._settle()
        return deltas

    def step_along(self) -> list[Delta]:
        """Take a step with replicas that all take it; one without work computes a token of nothing."""
        deltas = self.step_deltas()
        if not (deltas or self._batch.running):
            self._batch.idle()
        return deltas

    def has_work(self) -> bool:
        """Whether a step would compute anything."""
        if self.state is EngineState.RUNNING:
            return self.has_pending()
        return self.state is EngineState.DRAINING and bool(self._batch.running)

    def has_pending(self) -> bool:
        return bool(self._batch.waiting or self._batch.running or self._unfetched)

    def abort_deltas(self, request_id: int | None = None) -> list[Delta]:
        deltas = self._batch.abort(request_id, self.weights.version)
        self._settle()
        return deltas

    def flush_cache(self) -> None:
        self._batch.cache.flush()

    def _drop(self, *, weights: bool) -> None:
        self._batch.cache.flush()
        self._runner.drop_store()
        if weights:
            self._runner.drop_weights()

    def _restore(self) -> None:
        if not self._runner.has_weights:
            if self.weights.version:
                raise ModelError(
                    f"weights of version {self.weights.version} were dropped: update_weights before waking up"
                )
            self._runner.replace(self._runner.load(self.directory))
        self._runner.open_store(self._runner.num_blocks)

    def stats(self) -> EngineStats:
        self._check()
        counts = self._batch.cache.counts()
        return EngineStats(
            num_waiting=len(self._batch.waiting),
            num_running=len(self._batch.running),
            num_blocks=self._batch.cache.num_blocks,
            num_free_blocks=counts.free,
            num_cached_blocks=counts.cached,
            weight_version=self.weights.version,
            **asdict(self._batch.counters),
        )

    def shutdown(self) -> None:
        self.weights.close()
        self._batch.abort(None, self.weights.version)
        self._runner.close()
        self._threads.release()
        self.state = EngineState.STOPPED

    def _check(self) -> None:
        self._runner.check()

    def _num_waiting(self) -> int:
        return len(self._batch.waiting)

    def _num_running(self) -> int:
        return len(self._batch.running)
