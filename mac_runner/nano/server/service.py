"""One engine and what its server knows of the model: takes jobs, gives back what becomes of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import count
from typing import NamedTuple

from mac_runner.nano.async_engine import AsyncEngine, RequestStream
from mac_runner.nano.errors import InvalidRequestError, PromptTooLongError
from mac_runner.nano.outputs import Delta, TrainingSample
from mac_runner.nano.sampling_params import SamplingParams
from mac_runner.nano.server.card import ModelCard
from mac_runner.nano.server.job import Job, tokens_of
from mac_runner.nano.server.refusals import given_up, unknown_model


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Two clocks, of seconds since 1970 and of seconds that only ever grow, and what waits for so many seconds."""

    unix_s: Callable[[], float]
    monotonic_s: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]]


class Piece(NamedTuple):
    """What came next: of which completion of the job, counted over all its prompts."""

    place: int
    delta: Delta


class Generation:
    """A job under way. Whoever holds it ends it with `cancel`, whether it was finished or not."""

    def __init__(self, prompts: list[tuple[int, ...]], streams: list[RequestStream], num_samples: int) -> None:
        self.prompts = prompts
        self.num_completions = len(prompts) * num_samples
        self._streams = streams
        self._current = streams[0]
        self._num_samples = num_samples

    async def pieces(self) -> AsyncIterator[Piece]:
        """Everything that comes, prompt by prompt. Raises the error of the first completion that has one."""
        for first, stream in zip(count(step=self._num_samples), self._streams, strict=False):
            self._current = stream
            async for delta in stream:
                if delta.sample is not None and delta.sample.finish_reason == "abort":
                    raise given_up("the engine was paused")
                yield Piece(first + delta.sample_index, delta)

    @property
    def has_more(self) -> bool:
        """Whether the next piece is here already: then it is cheaper to send them together."""
        return self._current.has_more

    async def samples(self) -> list[TrainingSample]:
        """All completions, when they are finished."""
        found = dict[int, TrainingSample]()
        async for place, delta in self.pieces():
            if delta.sample is not None:
                found[place] = delta.sample
        return [found[place] for place in sorted(found)]

    def cancel(self) -> None:
        """End what has not ended."""
        for stream in self._streams:
            stream.cancel()


class Service:
    """What all handlers share. `thread` tokenises, which would hold up the event loop."""

    def __init__(
        self,
        engine: AsyncEngine,
        card: ModelCard,
        defaults: SamplingParams,
        *,
        cache_tokens: int,
        times: Times,
        thread: ThreadPoolExecutor,
    ) -> None:
        self.engine = engine
        self.card = card
        self.defaults = defaults
        self.times = times
        self.context_tokens = min(card.context_tokens, cache_tokens)
        self.thread = thread
        self._num_jobs = 0

    def require_model(self, name: str) -> None:
        """Raises RefusedError for a model that is not served here."""
        if name not in (self.card.name, f"{self.card.name}:latest"):
            raise unknown_model(name)

    def spell(self, token_id: int) -> str:
        """The text of one token, special ones included."""
        return self.text((token_id,))

    def text(self, token_ids: Sequence[int]) -> str:
        """The text of some tokens, special ones included."""
        tokenizer = self.engine.engine.tokenizer
        return "" if tokenizer is None else tokenizer.decode(token_ids, skip_special_tokens=False)

    def number(self) -> int:
        """A number for the next answer's id."""
        self._num_jobs += 1
        return self._num_jobs

    async def begin(self, job: Job, *, stream: bool) -> Generation:
        """Queue a job. What is wrong with it is raised here, and then nothing of it is queued.

        It takes no longer than a step. Whoever asked is watched only after it, lest a client that leaves just as it
        ends leaves a generation behind that nobody cancels.
        """
        loop, tokenizer = asyncio.get_running_loop(), self.engine.engine.tokenizer
        if len(job.prompts) * job.num_samples > self.engine.config.max_waiting:
            raise InvalidRequestError(f"{len(job.prompts) * job.num_samples} completions are more than may ever wait")
        context = self._context(job)
        prompts = [await loop.run_in_executor(self.thread, tokens_of, each, tokenizer, context) for each in job.prompts]
        streams = list[RequestStream]()
        try:
            for prompt in prompts:
                params = self._params(job, len(prompt))
                streams.append(await self.engine.submit(prompt, params, job.num_samples, stream=stream))
        except BaseException:
            for begun in streams:
                begun.cancel()
            raise
        return Generation(prompts, streams, job.num_samples)

    def _params(self, job: Job, num_tokens: int) -> SamplingParams:
        """A completion may grow to the end of the context, and not beyond."""
        context = self._context(job)
        room = context - num_tokens
        if room < 1:
            raise PromptTooLongError(f"the prompt has {num_tokens} tokens, longer than the context of {context} allows")
        wanted = room if job.is_open_ended else min(job.params.max_tokens, room)
        return replace(job.params, max_tokens=wanted)

    def _context(self, job: Job) -> int:
        return min(self.context_tokens, job.context_tokens or self.context_tokens)
