"""A contract suite for backends: what the scheduler relies on, tested over any backend with pytest.

The author describes the backend and its engine in a harness, and subclasses the suite in a test module::

    from mac_runner.testing.backends import BackendContract, BackendHarness, CannotError, Trouble

    class EchoHarness(BackendHarness):
        def build(self) -> Backend:
            return EchoBackend(url=self.server.url)

        @asynccontextmanager
        async def engine(self) -> AsyncIterator[None]:
            async with EchoServer() as self.server:
                yield

        async def trouble(self, kind: Trouble) -> None:
            if kind is Trouble.GARBAGE:
                raise CannotError("the server is part of the test")
            self.server.mode = kind

        async def heal(self) -> None:
            self.server.mode = None

        def request_too_long(self) -> Request:
            return self.request("word " * 100_000)

        def request_cut_off(self) -> Request:
            return self.request(max_tokens=1)

        def request_slow(self) -> Request:
            return self.request("slow")

    class TestEcho(BackendContract):
        @pytest.fixture
        def harness(self) -> BackendHarness:
            return EchoHarness()

Each test asks the harness for one thing. Only `build` is required: what a harness leaves out, or answers with
CannotError, its tests are skipped for. This module imports pytest, which the package itself does not need.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeAlias

import pytest

from mac_runner.backends import Backend
from mac_runner.backends.factory import build_backend
from mac_runner.clock import SystemClock
from mac_runner.config import load_experiment
from mac_runner.errors import BackendError, ConfigError, EngineDeadError, TransientBackendError
from mac_runner.types import FinishReason, Message, Prompt, Reply, Request, Sampling, Turn

CROWD_MAX: Final = 8
"""How many requests a test sends at once, at most."""


class Trouble(StrEnum):
    """What can be wrong with an engine, from now on and for every request."""

    BUSY = "busy"
    """It works, and turns requests away."""
    DEAD = "dead"
    """It does not run any more."""
    HUNG = "hung"
    """It takes requests and answers none."""
    GARBAGE = "garbage"
    """Its answers cannot be read."""


class CannotError(Exception):
    """A harness cannot do what a test needs; the text is the reason that pytest shows for skipping it."""


def backend_of(path: Path, model: str) -> Backend:
    """The backend of a model of an experiment file, not started. Raises ConfigError as a run of the file does."""
    experiment = load_experiment(path).experiment
    return build_backend(
        model,
        experiment.model_definitions[model],
        agents=experiment.agent_definitions,
        policy_of=lambda name: lambda _view, _chance: name,
        clock=SystemClock(),
        say=print,
    )


class BackendHarness(ABC):
    """How the suite builds a backend and brings its engine into trouble. Each test makes a harness of its own."""

    patience_s: float = 60.0
    """How long a test may take before it fails."""
    wait_s: float = 0.2
    """How long an answer is waited for that should not come."""
    repeats: bool = True
    """Whether the same seed gives the same reply, alone and among other requests."""
    secret: str | None = None
    """The key of the server; no error may contain it."""

    @abstractmethod
    def build(self) -> Backend:
        """A backend, not started. Called inside `engine`, several times if a test restarts it."""

    async def trouble(self, kind: Trouble) -> None:
        """Bring the engine into trouble."""
        raise CannotError(f"the harness brings about no trouble ({kind})")

    async def heal(self) -> None:
        """End the trouble."""
        raise CannotError("the trouble of the engine does not end")

    def request_too_long(self) -> Request:
        """A request whose prompt does not fit the model's context."""
        raise CannotError("no prompt is too long")

    def request_cut_off(self) -> Request:
        """A request whose reply reaches `max_tokens`."""
        raise CannotError("no reply is cut off")

    def request_slow(self) -> Request:
        """A request that takes long enough to be cancelled."""
        raise CannotError("no request is slow")

    def unfinished(self) -> int:
        """How many requests the engine is working on."""
        raise CannotError("the requests inside the engine cannot be counted")

    @asynccontextmanager
    async def engine(self) -> AsyncIterator[None]:
        """The engine, from before `build` until after the backend is closed. By default there is nothing to start."""
        yield

    @asynccontextmanager
    async def started(self, *, is_fresh: bool) -> AsyncIterator[Backend]:
        """A started backend. It is `is_fresh` for a test that spoils it; others may share one that starts slowly."""
        async with self.engine():
            backend = self.build()
            try:
                await backend.start()
                yield backend
            finally:
                await backend.close()
                await backend.close()

    def run(self, program: Coroutine[None, None, None]) -> None:
        """Run a test. A harness with a shared backend runs it on the event loop of that backend."""
        asyncio.run(program)

    def request(self, content: str = "hello", *, seed: int = 1, max_tokens: int = 24) -> Request:
        """A request of one user message."""
        return Request(
            conversation="contract-000000",
            turn=Turn(round=0, agent="a", model="m", place=seed),
            prompt=Prompt(messages=(Message(role="user", content=content),)),
            sampling=Sampling(seed=seed, max_tokens=max_tokens),
        )


Scene: TypeAlias = Callable[[Backend], Awaitable[None]]


class BackendContract:
    """What every backend does. Subclass it as `Test…`, with a fixture for the harness."""

    @pytest.fixture
    def harness(self) -> BackendHarness:
        """A new harness for each test."""
        raise NotImplementedError("a subclass of BackendContract has a fixture `harness`")

    def test_it_answers(self, harness: BackendHarness) -> None:
        """A reply has a text, a reason and counts; capacity, budget and lookahead are known after the start."""

        async def scene(backend: Backend) -> None:
            reply = await backend.generate(harness.request())

            _check(reply.finish_reason in {FinishReason.STOP, FinishReason.LENGTH}, f"{reply.finish_reason}")
            _check(bool(reply.text), "the reply has no text")
            _check(min(reply.tokens.prompt, reply.tokens.cached, reply.tokens.completion) >= 0, f"{reply.tokens}")
            _check(backend.capacity >= 1, f"capacity is {backend.capacity}")
            _check(backend.lookahead >= 0, f"lookahead is {backend.lookahead}")
            _check(backend.token_budget is None or backend.token_budget > 0, f"budget is {backend.token_budget}")

        _play(harness, scene)

    def test_it_serves_its_capacity_and_lookahead_at_once(self, harness: BackendHarness) -> None:
        """All requests that the scheduler may send at once are answered, and the capacity stays the same."""

        async def scene(backend: Backend) -> None:
            capacity = backend.capacity
            crowd = min(capacity + backend.lookahead, CROWD_MAX)
            replies = await _all(backend, [harness.request(f"say {n}", seed=n) for n in range(crowd)])

            _check(all(reply.text for reply in replies), "a reply of the crowd has no text")
            _check(backend.capacity == capacity, f"the capacity was {capacity} and is {backend.capacity}")

        _play(harness, scene)

    def test_same_seed_gives_the_same_reply(self, harness: BackendHarness) -> None:
        """Alone and among other requests."""

        async def scene(backend: Backend) -> None:
            requests = [harness.request(f"say {n % 3}", seed=n) for n in range(min(backend.capacity, CROWD_MAX))]
            alone = [(await backend.generate(request)).text for request in requests]
            together = [reply.text for reply in await _all(backend, requests)]

            _check(alone == together, f"alone {alone}, together {together}")

        if not harness.repeats:
            pytest.skip("the same seed may give another reply")
        _play(harness, scene)

    def test_prompt_that_does_not_fit_is_an_overflow(self, harness: BackendHarness) -> None:
        """It is a reply without a text, not a shortened prompt and not an error."""

        async def scene(backend: Backend) -> None:
            reply = await backend.generate(harness.request_too_long())

            _check((reply.text, reply.finish_reason) == ("", FinishReason.OVERFLOW), f"{reply}")
            await _check_serving(harness, backend)

        _play(harness, scene)

    def test_reply_that_was_cut_off_says_so(self, harness: BackendHarness) -> None:
        """Its reason is LENGTH."""

        async def scene(backend: Backend) -> None:
            reply = await backend.generate(harness.request_cut_off())

            _check(reply.finish_reason is FinishReason.LENGTH, f"{reply}")

        _play(harness, scene)

    def test_cancelled_request_ends_and_others_are_answered(self, harness: BackendHarness) -> None:
        """The backend lets go of it at once."""

        async def scene(backend: Backend) -> None:
            task = asyncio.create_task(_generate(backend, harness.request_slow()))
            done, _ = await asyncio.wait({task}, timeout=harness.wait_s)
            _check(not done, "the slow request was answered at once")
            task.cancel()
            await asyncio.wait({task})

            _check(task.cancelled(), "the request was not cancelled")
            await _check_serving(harness, backend)

        _play(harness, scene)

    def test_cancelled_request_leaves_the_engine(self, harness: BackendHarness) -> None:
        """The engine does not go on with it."""

        async def scene(backend: Backend) -> None:
            _check(harness.unfinished() == 0, "the engine works on something before the test")
            task = asyncio.create_task(_generate(backend, harness.request_slow()))
            while not harness.unfinished():
                await SystemClock().sleep(0.02)
            task.cancel()
            await asyncio.wait({task})
            while harness.unfinished():  # `patience_s` bounds it.
                await SystemClock().sleep(0.02)

        _play(harness, scene)

    def test_busy_engine_costs_no_attempt(self, harness: BackendHarness) -> None:
        """A request that is turned away may be sent again, and is answered later."""

        async def scene(backend: Backend) -> None:
            await harness.trouble(Trouble.BUSY)
            fault = await _fault(harness, backend)
            is_busy = isinstance(fault, TransientBackendError) and fault.is_busy and not fault.is_attempt
            _check(is_busy, f"{fault!r} is not a busy reply that costs no attempt")
            await harness.heal()
            await _check_serving(harness, backend)

        _play(harness, scene, is_fresh=True)

    def test_dead_engine_is_reported(self, harness: BackendHarness) -> None:
        """As unreachable or as dead, and the backend closes all the same."""

        async def scene(backend: Backend) -> None:
            await harness.trouble(Trouble.DEAD)
            fault = await _fault(harness, backend)
            is_unreachable = isinstance(fault, TransientBackendError) and fault.is_unreachable
            _check(is_unreachable or isinstance(fault, EngineDeadError), f"{fault!r}")

        _play(harness, scene, is_fresh=True)

    def test_dead_engine_fails_the_start(self, harness: BackendHarness) -> None:
        """With an error for the user, and the backend closes all the same."""

        async def program() -> None:
            async with asyncio.timeout(harness.patience_s), harness.engine():
                await harness.trouble(Trouble.DEAD)
                backend = harness.build()
                try:
                    with pytest.raises((ConfigError, EngineDeadError)) as caught:
                        await backend.start()
                    _check_secret(harness, caught.value)
                finally:
                    await backend.close()
                    await backend.close()

        _run(harness, program())

    def test_request_to_a_hung_engine_can_be_cancelled(self, harness: BackendHarness) -> None:
        """The deadline of the caller ends it, or the backend itself does."""

        async def scene(backend: Backend) -> None:
            await harness.trouble(Trouble.HUNG)
            with pytest.raises((TimeoutError, TransientBackendError)):
                async with asyncio.timeout(harness.wait_s):
                    await backend.generate(harness.request())
            await harness.heal()
            await _check_serving(harness, backend)

        _play(harness, scene, is_fresh=True)

    def test_garbage_is_an_error_with_a_verdict(self, harness: BackendHarness) -> None:
        """An answer that cannot be read is a BackendError, and the next good one is a reply."""

        async def scene(backend: Backend) -> None:
            await harness.trouble(Trouble.GARBAGE)
            fault = await _fault(harness, backend)
            _check(not isinstance(fault, EngineDeadError), f"one bad answer ends the run: {fault!r}")
            await harness.heal()
            await _check_serving(harness, backend)

        _play(harness, scene, is_fresh=True)

    def test_it_closes_unstarted_and_starts_again(self, harness: BackendHarness) -> None:
        """Closing is safe at any time, and a closed backend can be built and started again."""

        async def program() -> None:
            async with asyncio.timeout(harness.patience_s), harness.engine():
                await harness.build().close()
                for _ in range(2):
                    backend = harness.build()
                    try:
                        await backend.start()
                        await _check_serving(harness, backend)
                    finally:
                        await backend.close()
                        await backend.close()

        _run(harness, program())


def _play(harness: BackendHarness, scene: Scene, *, is_fresh: bool = False) -> None:
    async def program() -> None:
        async with asyncio.timeout(harness.patience_s), harness.started(is_fresh=is_fresh) as backend:
            await scene(backend)

    _run(harness, program())


def _run(harness: BackendHarness, program: Coroutine[None, None, None]) -> None:
    try:
        harness.run(program)
    except CannotError as reason:
        pytest.skip(str(reason))


async def _generate(backend: Backend, request: Request) -> Reply:
    return await backend.generate(request)


async def _all(backend: Backend, requests: list[Request]) -> list[Reply]:
    """The replies to `requests`, sent at once."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_generate(backend, request)) for request in requests]
    return [task.result() for task in tasks]


async def _fault(harness: BackendHarness, backend: Backend) -> BackendError:
    """The error that a request ends in. Fails the test unless it is a BackendError without the key."""
    with pytest.raises((BackendError, ConnectionError, TimeoutError)) as caught:
        await backend.generate(harness.request())
    _check_secret(harness, caught.value)
    if isinstance(caught.value, BackendError):
        return caught.value
    return TransientBackendError(str(caught.value))  # As the scheduler counts it.


async def _check_serving(harness: BackendHarness, backend: Backend) -> None:
    reply = await backend.generate(harness.request("again"))
    _check(bool(reply.text), "the engine serves no more")


def _check_secret(harness: BackendHarness, error: BaseException) -> None:
    _check(harness.secret is None or harness.secret not in str(error), "an error contains the key of the server")


def _check(is_kept: bool, fault: str) -> None:
    if not is_kept:
        pytest.fail(fault)
