"""The engine for many callers: one thread takes the steps, any number of tasks submit, stream and cancel.

Everything that touches the engine happens in its thread, between two steps, in the order of the calls. If a step fails,
the engine is given up: all waiting calls and all later calls raise the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from threading import Event, Thread
from typing import TypeVar

from mac_runner.nano.architecture import check_layout
from mac_runner.nano.checkpoint import StateDict
from mac_runner.nano.config import EngineConfig, SamplingParams
from mac_runner.nano.constraints import tried
from mac_runner.nano.engine import BaseEngine, EngineState, EngineStats, Mailbox, PauseMode
from mac_runner.nano.errors import BroadcastError, EngineStoppedError, QueueFullError, UpdateInProgressError
from mac_runner.nano.parallel.group import PATIENCE_S
from mac_runner.nano.parallel.launch import make_engine
from mac_runner.nano.parallel.world import ALONE, World
from mac_runner.nano.runner import Prepared
from mac_runner.nano.sequence import Delta, Prompt, TrainingSample
from mac_runner.nano.weight_transfer import receive

Result = TypeVar("Result")
TRIALS_MAX = 2
"""Grammars that are tried at once, each with a core and memory of its own."""


class RequestStream:
    """The deltas of one request, as they come: iterate over it; it ends with the last sample.

    An error of the request is raised in place of the next delta.
    """

    def __init__(self, num_samples: int, cancel: Callable[[RequestStream], None]) -> None:
        self.request_id = -1
        self._cancel = cancel
        self._num_open = num_samples
        self._num_coming = num_samples  # Used in the engine's thread.
        self._arrived = asyncio.Queue[Delta | EngineStoppedError]()

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self

    async def __anext__(self) -> Delta:
        if self._num_open == 0:
            raise StopAsyncIteration
        arrived = await self._arrived.get()
        if isinstance(arrived, EngineStoppedError):
            self._num_open = 0
            raise arrived
        if arrived.sample is not None:
            self._num_open -= 1
            if arrived.sample.error is not None:
                self.cancel()
                raise arrived.sample.error
        return arrived

    @property
    def has_more(self) -> bool:
        """Whether the next delta is here already."""
        return not self._arrived.empty()

    def cancel(self) -> None:
        """End the request if it has not ended; it yields nothing more."""
        if self._num_open:
            self._num_open = 0
            self._cancel(self)

    def is_last(self, delta: Delta) -> bool:
        """Count a finished sample; whether it was the last. Called in the engine's thread."""
        self._num_coming -= delta.sample is not None
        return self._num_coming == 0

    def push(self, arrived: Delta | EngineStoppedError) -> None:
        """Add a delta or the end; called in the event loop."""
        self._arrived.put_nowait(arrived)


class AsyncEngine:
    """An `InferenceEngine` in a thread of its own, for the tasks of one event loop."""

    def __init__(self, config: EngineConfig, world: World = ALONE) -> None:
        """`world` says which ranks a launcher has started; this process is rank 0."""
        self.config = config
        self._world = world
        self._mailbox = Mailbox()
        self._streams = dict[int, RequestStream]()  # Used in the engine's thread, like the next.
        self._draining = list[asyncio.Future[None]]()  # To answer when it has paused.
        self._engine: BaseEngine | None = None
        self._thread: Thread | None = None
        self._stopped: EngineStoppedError | None = EngineStoppedError("the engine was not started")
        self._failure: EngineStoppedError | None = None
        self._is_closing = False
        self._is_updating = False
        self._receive_over = Event()

    async def start(self) -> None:
        """Load the model."""
        self._loop = asyncio.get_running_loop()
        self._builder = ThreadPoolExecutor(1, thread_name_prefix="nano-weights")
        self._preparer = ThreadPoolExecutor(1, thread_name_prefix="nano-requests")
        self._compiling = ThreadPoolExecutor(TRIALS_MAX, thread_name_prefix="nano-grammars")
        self._trials = asyncio.Semaphore(TRIALS_MAX)
        self._num_trials = 0
        self._stopped = None
        self._thread = Thread(target=self._live, name="nano-engine", daemon=True)
        self._thread.start()
        try:
            await self._ask(self._load)
        except BaseException:
            await self.shutdown()
            raise

    async def shutdown(self) -> None:
        """End all requests and give everything back; may be called twice."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._receive_over.set()
        closed: asyncio.Future[None] = self._loop.create_future()
        self._tell(lambda: self._close(closed))
        self._stopped = EngineStoppedError("the engine was shut down")
        try:
            await closed
        finally:
            thread.join()
            self._builder.shutdown()
            self._preparer.shutdown()
            self._compiling.shutdown()

    @property
    def engine(self) -> BaseEngine:
        """The engine itself, for what never changes: its tokenizer, its model's configuration, its directory."""
        if self._engine is None:
            raise EngineStoppedError("the engine was not started")
        return self._engine

    async def submit(
        self,
        prompt: Prompt,
        params: SamplingParams,
        num_samples: int = 1,
        *,
        stream: bool = True,
        conversation: str | None = None,
    ) -> RequestStream:
        """Queue a request. Raises RequestError for a wrong one. Without `stream` only finished samples come."""
        await self.compile(params)
        handle = RequestStream(num_samples, self._cancel)
        prepare = partial(
            self.engine.prepare_request, prompt, params, num_samples, stream=stream, conversation=conversation
        )
        # Encoding a text or compiling a schema must hold up neither the steps nor the event loop.
        takes_long = isinstance(prompt, str) or params.is_constrained
        prepared = await self._loop.run_in_executor(self._preparer, prepare) if takes_long else None

        def add() -> RequestStream:
            handle.request_id = self.engine.add_prepared(prepare() if prepared is None else prepared)
            self._streams[handle.request_id] = handle
            return handle

        try:
            return await self._ask(add)
        except asyncio.CancelledError:
            handle.cancel()
            raise

    async def compile(self, params: SamplingParams) -> None:
        """Compile what these settings constrain a reply to, as `submit` does; it ends when it is cancelled.

        A grammar that may take long is tried in a process of its own, and then compiled on a thread of its own. Only
        others that may take long wait for it. Raises ConstraintError, and QueueFullError if too many wait.
        """
        if self._stopped is not None:
            raise self._stopped
        if not params.is_constrained:
            return
        compiler = self.engine.compiler
        trial = await self._loop.run_in_executor(self._preparer, compiler.trial, params)
        if trial is None:
            return
        most = max(self.engine.config.max_waiting // 2, 1)
        if self._num_trials >= most:
            raise QueueFullError(f"{most} constraints wait to be compiled: no more may")
        self._num_trials += 1
        try:
            async with self._trials:
                # Another request may have had the same compiled meanwhile.
                trial = await self._loop.run_in_executor(self._preparer, compiler.trial, params)
                if trial is not None:
                    num_bytes = await tried(trial)
                    await self._loop.run_in_executor(self._compiling, compiler.compile, params, num_bytes)
        finally:
            self._num_trials -= 1

    async def generate(
        self, prompt: Prompt, params: SamplingParams, num_samples: int = 1, *, conversation: str | None = None
    ) -> list[TrainingSample]:
        """Complete a prompt, `num_samples` times; cancelled with its task."""
        handle = await self.submit(prompt, params, num_samples, stream=False, conversation=conversation)
        try:
            samples = [delta.sample async for delta in handle if delta.sample is not None]
        finally:
            handle.cancel()
        return sorted(samples, key=lambda sample: sample.sample_index)

    async def stream(self, prompt: Prompt, params: SamplingParams, num_samples: int = 1) -> AsyncIterator[Delta]:
        """Complete a prompt delta by delta; cancelled when the iteration is closed."""
        handle = await self.submit(prompt, params, num_samples)
        try:
            async for delta in handle:
                yield delta
        finally:
            handle.cancel()

    async def update_weights(self, state_dict: StateDict, version: int | None = None, *, blocking: bool = False) -> int:
        """Compute with these weights from the next step on; their version. See `InferenceEngine`.

        With `blocking` no step is taken until then. Raises UpdateInProgressError while another update is under way.
        """
        self.engine.weights.require_newer(version)
        async with self._updating(is_blocking=blocking):
            prepared = await self._loop.run_in_executor(self._builder, self.engine.weights.prepare, state_dict)
            await self._ask(lambda: self.engine.weights.install(prepared, version))
            return await self.get_weight_version()

    async def receive_weights(
        self,
        address: str,
        version: int | None = None,
        *,
        blocking: bool = False,
        timeout_s: float = PATIENCE_S,
        keep: Callable[[StateDict], None] | None = None,
        engines: int | None = None,
    ) -> int:
        """Compute with the weights that the trainer at `address` sends, from a later step on; their version.

        `version` is the one that is expected. `keep` gets the tensors before any engine installs them, and
        refuses them with a NanoError. With `engines`, as many as receive from this trainer, a trainer that counts on
        more is an error at once. Raises what `receive` raises; then the engine goes on with its weights.
        """
        async with self._updating(is_blocking=blocking):

            def prepare(state_dict: StateDict) -> Prepared:
                prepared = self.engine.weights.prepare(state_dict)
                if keep is not None:
                    keep(state_dict)
                return prepared

            check = partial(self._check_coming, version)
            self._receive_over = over = Event()
            work = partial(receive, address, check, prepare, timeout_s=timeout_s, cancelled=over, engines=engines)
            try:
                prepared, sent = await self._loop.run_in_executor(self._builder, work)
            finally:
                over.set()
            await self._ask(lambda: self.engine.weights.install(prepared, version if sent is None else sent))
            return await self.get_weight_version()

    def _check_coming(self, expected: int | None, state_dict: StateDict, version: int | None) -> None:
        self.engine.weights.require_newer(expected if version is None else version)
        if None not in (expected, version) and version != expected:
            raise BroadcastError(f"the trainer sends version {version}, and version {expected} is expected")
        check_layout(state_dict, self.engine.model_config)

    @asynccontextmanager
    async def _updating(self, *, is_blocking: bool) -> AsyncIterator[None]:
        """One update at a time; a blocking one takes no step meanwhile."""
        if self._is_updating:
            raise UpdateInProgressError("another update of the weights is under way: wait for it and try again")
        pauses = is_blocking and self.engine.state is EngineState.RUNNING
        self._is_updating = True
        try:
            if pauses:
                await self.pause()
            yield
        finally:
            self._is_updating = False
            if pauses:
                await self.resume()

    async def get_weight_version(self) -> int:
        return await self._ask(lambda: self.engine.get_weight_version())

    async def flush_cache(self) -> None:
        await self._ask(lambda: self.engine.flush_cache())

    async def pause(self, mode: PauseMode = "keep") -> None:
        """Stop between two steps. See `InferenceEngine`."""
        paused: asyncio.Future[None] = self._loop.create_future()

        def begin() -> None:
            if mode == "abort":
                self._deliver(self.engine.abort_deltas())
            self.engine.begin_pause("wait" if mode == "wait" else "keep")
            self._draining.append(paused)

        await self._ask(begin)
        await paused

    async def resume(self) -> None:
        await self._ask(lambda: self.engine.resume())

    async def sleep(self, *, drop_weights: bool = False) -> None:
        """Give memory back. Nothing may be running."""
        await self._ask(lambda: self.engine.sleep(drop_weights=drop_weights))

    async def wake(self) -> None:
        await self._ask(lambda: self.engine.wake())

    async def stats(self) -> EngineStats:
        return await self._ask(lambda: self.engine.stats())

    def _cancel(self, handle: RequestStream) -> None:
        def abort() -> None:
            if self._streams.pop(handle.request_id, None) is not None:
                self.engine.abort(handle.request_id)

        if self._stopped is None:
            self._tell(abort)

    async def _ask(self, action: Callable[[], Result]) -> Result:
        """Run an action in the engine's thread; its result."""
        if self._stopped is not None:
            raise self._stopped
        answer: asyncio.Future[Result] = self._loop.create_future()
        self._tell(lambda: self._perform(action, answer))
        return await answer

    def _tell(self, command: Callable[[], None]) -> None:
        self._mailbox.put(command)
        if self._engine is not None:
            self._engine.interrupt()

    # What follows runs in the engine's thread.

    def _live(self) -> None:
        while not self._is_closing:
            timeout_s = 0.0 if self._is_stepping() else None
            try:
                self._mailbox.perform(timeout_s=timeout_s, is_closing=lambda: self._is_closing)
                if self._is_stepping():
                    self._deliver(self.engine.step_deltas())
            except Exception as error:  # noqa: BLE001  A bug or the machine's: every caller gets it.
                self._give_up(error)
            if self._draining and self.engine.state is not EngineState.DRAINING:
                self._answer_paused()

    def _is_stepping(self) -> bool:
        if self._is_closing or self._failure is not None or self._engine is None or not self._engine.has_pending():
            return False
        return self._engine.state in (EngineState.RUNNING, EngineState.DRAINING)

    def _perform(self, action: Callable[[], Result], answer: asyncio.Future[Result]) -> None:
        if self._failure is not None:
            self._post(_refuse, answer, self._failure)
            return
        try:
            result = action()
        except Exception as error:  # noqa: BLE001  The caller gets it.
            self._post(_refuse, answer, error)
        else:
            self._post(_answer, answer, result)

    def _load(self) -> None:
        self._engine = make_engine(self.config, self._world)

    def _close(self, closed: asyncio.Future[None]) -> None:
        self._is_closing = True
        self._dismiss(EngineStoppedError("the engine was shut down"))
        if self._engine is not None:
            self._engine.shutdown()
        self._post(_answer, closed, None)

    def _give_up(self, error: Exception) -> None:
        self._failure = EngineStoppedError(f"the engine failed in a step: {error!r}")
        self._failure.__cause__ = error
        self._dismiss(self._failure)

    def _dismiss(self, reason: EngineStoppedError) -> None:
        for handle in self._streams.values():
            self._post(handle.push, reason)
        self._streams.clear()
        self._answer_paused()

    def _answer_paused(self) -> None:
        for paused in self._draining:
            self._post(_answer, paused, None)
        self._draining.clear()

    def _deliver(self, deltas: list[Delta]) -> None:
        deliveries = [
            (handle, delta) for delta in deltas if (handle := self._streams.get(delta.request_id)) is not None
        ]
        for handle, delta in deliveries:
            if handle.is_last(delta):
                del self._streams[handle.request_id]
        if deliveries:
            self._post(_push_all, deliveries)

    def _post(self, function: Callable[..., None], *arguments: object) -> None:
        """Call a function in the event loop."""
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            # The loop was closed before the engine was shut down, so no caller is left.
            self._is_closing = True


def _answer(answer: asyncio.Future[Result], result: Result) -> None:
    if not answer.done():
        answer.set_result(result)


def _refuse(answer: asyncio.Future[Result], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)


def _push_all(deliveries: list[tuple[RequestStream, Delta]]) -> None:
    for handle, delta in deliveries:
        handle.push(delta)
