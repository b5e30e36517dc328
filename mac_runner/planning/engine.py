"""Engines that are computed: backends whose replies take as long as a step model says, in simulated time."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from random import Random
from typing import Final, TypeAlias

from mac_runner.backends.base import Backend, uncharged
from mac_runner.backends.http.endpoints import Endpoint, Endpoints, Line
from mac_runner.environments.base import Policy
from mac_runner.errors import RequestRefusedError, boundary
from mac_runner.latency import CHARS_PER_TOKEN, StepModel
from mac_runner.plan import Plan
from mac_runner.planning.lane import BLOCK_TOKENS, KvCache, Lane, Sequence, chain_of, prompt_tokens_of
from mac_runner.planning.loop import SimulatedClock
from mac_runner.scheduler import Source
from mac_runner.types import FinishReason, Prompt, Reply, Request, Timing, TokenCount, stable_hash

KV_TOKENS_UNKNOWN: Final = 1 << 20
"""The KV cache of a lane whose size is not known, in tokens."""
STEP_TOKENS: Final = 8192
"""How many tokens a step computes at most, where nothing says it."""

ReplySource: TypeAlias = Callable[[Request], Reply]
"""Gives the reply to a request, by the request alone. Its `tokens.completion` are all that the engine generates, a
thought included."""


def scripted_replies(
    player: Policy, *, chars_per_token: float, tokens_of: Callable[[Random], int] | None = None
) -> ReplySource:
    """The texts of a scripted player, in as many tokens as `tokens_of` draws, or else as their characters make.

    What the player raises refuses the request.
    """

    def reply(request: Request) -> Reply:
        with boundary(RequestRefusedError, "the scripted player failed"):
            text = player(request.prompt.view, Random(request.sampling.seed))  # noqa: S311 - play, not secrecy
        if tokens_of is None:
            tokens = max(1, round(len(text) / chars_per_token))
        else:
            draw = Random(stable_hash("reply tokens", request.request_id))  # noqa: S311
            tokens = min(tokens_of(draw), request.sampling.max_tokens)
        return Reply(text=text, tokens=TokenCount(completion=tokens))

    return reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The conversations of one experiment, and what is replied in them."""

    source: Source
    tasks: Plan
    replies: ReplySource
    beginnings: tuple[Prompt, ...] = ()
    """Where tasks are copies of few conversations, the first prompts of these.

    Copies would find each other's prompts in the prefix cache, as different conversations do not. So what goes beyond
    all beginnings is taken to differ from copy to copy.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineModel:
    """One engine of a run: its lanes are equal servers."""

    steps: StepModel
    lanes: int = 1
    slots: int
    """How many requests each lane serves at once (`max_num_seqs`)."""
    step_tokens: int = STEP_TOKENS
    """How many tokens a step computes at most (`max_num_batched_tokens`)."""
    kv_tokens: int = KV_TOKENS_UNKNOWN
    """The KV cache of a lane."""
    context_tokens: int | None = None
    """The longest prompt and reply together; None: what the cache holds."""
    is_prefix_cached: bool = True
    """Whether prompts that begin alike share their cache."""
    admits_by_tokens: bool = False
    """Whether the scheduler admits by the tokens of the cache, as for the backends `vllm` and `nano`."""
    lookahead: int | None = None
    """How many requests beyond the slots it is given; None: as many as servers of the backend `openai`."""
    chars_per_token: float = CHARS_PER_TOKEN

    @property
    def longest(self) -> int:
        """The longest context that it serves, in tokens."""
        fitting = self.kv_tokens - BLOCK_TOKENS
        return fitting if self.context_tokens is None else min(self.context_tokens, fitting)

    def cache(self) -> KvCache:
        """The empty cache of one of its lanes."""
        return KvCache(self.kv_tokens, is_shared=self.is_prefix_cached)

    def lane(self, cache: KvCache) -> Lane:
        """One of its lanes."""
        return Lane(self.steps, seats=self.slots, step_tokens=max(self.step_tokens, self.slots), cache=cache)


class ComputedEngine(Backend):
    """Computes what a request asks of a lane. How long the lane takes is up to `serve`."""

    def __init__(self, model: EngineModel, loads: Mapping[str, Load]) -> None:
        """`loads` are found by the name of their experiment, which conversations are named after."""
        self.model = model
        self._loads = loads
        self._clock = SimulatedClock()
        self._common = cache(self._blocks_of)
        """By experiment. Of many, an engine may serve one."""
        self.requests = 0
        self.tokens = TokenCount()

    async def generate(self, request: Request) -> Reply:
        experiment = request.conversation.rpartition("-")[0]
        load, model = self._loads[experiment], self.model
        reply = load.replies(request)
        prompt_tokens = prompt_tokens_of(request.prompt, model.chars_per_token)
        room = model.longest - prompt_tokens
        if room <= 0:
            return Reply(text="", finish_reason=FinishReason.OVERFLOW)
        mark, common = request.conversation if load.beginnings else None, self._common(experiment)
        sequence = Sequence(
            blocks=chain_of(request.prompt, model.chars_per_token, mark=mark, common=common),
            prompt_tokens=prompt_tokens,
            reply_tokens=max(1, min(reply.tokens.completion, room)),
        )
        timing = await self.serve(request, sequence)
        tokens = TokenCount(prompt=prompt_tokens, cached=sequence.cached_tokens or 0, completion=sequence.reply_tokens)
        self.requests += 1
        self.tokens += tokens
        return Reply(
            text=reply.text,
            thinking=reply.thinking,
            finish_reason=reply.finish_reason,
            tokens=tokens,
            timing=timing,
        )

    @abstractmethod
    async def serve(self, request: Request, sequence: Sequence) -> Timing:
        """Let a lane work on the sequence to its end."""

    def _blocks_of(self, experiment: str) -> frozenset[int]:
        """The blocks of the beginnings of an experiment."""
        chains = (chain_of(prompt, self.model.chars_per_token) for prompt in self._loads[experiment].beginnings)
        return frozenset(chain.from_iterable(chains))


class AloneEngine(ComputedEngine):
    """Serves each request as if there were no other: a cache for each conversation, and a lane for each request."""

    capacity = 1_000_000

    def __init__(self, model: EngineModel, loads: Mapping[str, Load]) -> None:
        super().__init__(model, loads)
        self._caches: dict[str, KvCache] = {}

    async def serve(self, request: Request, sequence: Sequence) -> Timing:
        lane = self.model.lane(self._caches.setdefault(request.conversation, self.model.cache()))
        lane.add(sequence, 0.0)
        while lane.due_s is not None:
            lane.end_steps()
        await self._clock.sleep(lane.busy_s)
        return Timing()


@dataclass(slots=True)
class Client:
    """The process that plays the run: it works on one request at a time, `ms` on each."""

    ms: float = 0.0
    busy_s: float = 0.0
    _free_at_s: float = field(default=0.0)

    def delay_s(self, now_s: float) -> float:
        """How long a request waits that needs it now, its own work included."""
        self.busy_s += self.ms / 1000
        self._free_at_s = max(now_s, self._free_at_s) + self.ms / 1000
        return self._free_at_s - now_s


@dataclass(slots=True, eq=False)
class _Server:
    """A lane with its timer, and the requests that it will answer."""

    lane: Lane
    timer: asyncio.TimerHandle | None = None
    timed_at_s: float | None = None
    asked: dict[Sequence, asyncio.Future[None]] = field(default_factory=dict)


class ModelledEngine(ComputedEngine):
    """An engine in use. Requests go to its lanes by the rule that real ones go to servers by.

    `client` is shared by all engines of a run.
    """

    def __init__(self, model: EngineModel, loads: Mapping[str, Load], client: Client) -> None:
        super().__init__(model, loads)
        self._client = client
        self._servers = {f"lane {number}": _Server(model.lane(model.cache())) for number in range(model.lanes)}
        self._endpoints = Endpoints()
        for name in self._servers:
            self._endpoints.add(Endpoint(name, slots=model.slots))
        self._line = Line(self._endpoints, self._leave)

    @property
    def capacity(self) -> int:
        return self.model.lanes * self.model.slots

    @property
    def token_budget(self) -> int | None:
        return self.model.lanes * self.model.kv_tokens if self.model.admits_by_tokens else None

    @property
    def lookahead(self) -> int:
        return self._endpoints.lookahead if self.model.lookahead is None else self.model.lookahead

    @property
    def lanes(self) -> list[Lane]:
        return [server.lane for server in self._servers.values()]

    async def close(self) -> None:
        for server in self._servers.values():
            if server.timer is not None:
                server.timer.cancel()

    async def serve(self, request: Request, sequence: Sequence) -> Timing:
        if delay_s := self._client.delay_s(self._clock.monotonic_s()):
            await self._clock.sleep(delay_s)
        endpoint, waited_s = await self._endpoint_for(request)
        try:
            await self._answered(self._servers[endpoint.url], sequence)
        finally:
            self._leave(endpoint)
        return Timing(queue_s=waited_s, server=endpoint.url)

    async def _endpoint_for(self, request: Request) -> tuple[Endpoint, float]:
        """The lane for a request, with a slot taken, and how long the request waited for it."""
        endpoints, now_s = self._endpoints, self._clock.monotonic_s()
        endpoint = endpoints.choose(request.conversation, now_s=now_s)
        assert endpoint is not None, "all lanes are up"
        if endpoint.has_free_slot or len(endpoints.all) == 1:
            endpoint.begin(now_s)
            return endpoint, 0.0
        with uncharged():
            found = await self._line.join(request.conversation, request.request_id)
        assert found is not None, "all lanes are up"
        return found, self._clock.monotonic_s() - now_s

    def _leave(self, endpoint: Endpoint) -> None:
        endpoint.in_flight -= 1
        self._line.fill(endpoint, self._clock.monotonic_s())

    async def _answered(self, server: _Server, sequence: Sequence) -> None:
        answered = asyncio.get_running_loop().create_future()
        server.asked[sequence] = answered
        server.lane.add(sequence, self._clock.monotonic_s())
        self._time(server)
        await answered

    def _time(self, server: _Server) -> None:
        """Set the timer of a lane to the end of its steps."""
        due_s = server.lane.due_s
        if due_s == server.timed_at_s:
            return
        if server.timer is not None:
            server.timer.cancel()
        server.timed_at_s, server.timer = due_s, None
        if due_s is not None:
            server.timer = asyncio.get_running_loop().call_at(due_s, self._end_steps, server)

    def _end_steps(self, server: _Server) -> None:
        server.timer = server.timed_at_s = None
        for sequence in server.lane.end_steps():
            answered = server.asked.pop(sequence)
            if not answered.done():
                answered.set_result(None)
        self._time(server)
