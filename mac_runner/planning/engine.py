"""An engine that is computed: a backend whose replies take as long as a step model says, in simulated time.

Requests go to its lanes by the rule that real ones go to servers by: `Endpoints` and `Line` of the backend `openai`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final, Protocol

from mac_runner.backends.base import Backend, uncharged
from mac_runner.backends.http.endpoints import Endpoint, Endpoints, Line
from mac_runner.clock import Clock
from mac_runner.environments.base import Policy
from mac_runner.errors import RequestRefusedError, boundary
from mac_runner.latency import CHARS_PER_TOKEN, StepModel
from mac_runner.planning.lane import BLOCK_TOKENS, KvCache, Lane, Sequence, chain_of, prompt_tokens_of
from mac_runner.types import FinishReason, Prompt, Reply, Request, Timing, TokenCount, stable_hash


class ReplySource(Protocol):
    """Gives the reply to a request; it may depend on the request alone."""

    def __call__(self, request: Request) -> Reply:
        """The reply. Its `tokens.completion` are those that the engine generates, a thought included."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedReplies:
    """The texts of scripted players. `policy_of` finds that of a conversation and a model.

    With `tokens_of`, replies take so many tokens as it draws; otherwise as many as their characters make.
    """

    policy_of: Callable[[str, str], Policy]
    chars_per_token: float
    tokens_of: Callable[[Random], int] | None = None

    def __call__(self, request: Request) -> Reply:
        """The player's reply. What the player raises refuses the request."""
        seed = request.sampling.seed
        with boundary(RequestRefusedError, "the scripted player failed"):
            policy = self.policy_of(request.conversation, request.turn.model)
            text = policy(request.prompt.view, Random(seed))  # noqa: S311 - play, not secrecy
        if self.tokens_of is None:
            tokens = max(1, round(len(text) / self.chars_per_token))
        else:
            draw = Random(stable_hash("reply tokens", request.request_id))  # noqa: S311
            tokens = min(self.tokens_of(draw), request.sampling.max_tokens)
        return Reply(text=text, tokens=TokenCount(completion=tokens))


KV_TOKENS_UNKNOWN: Final = 1 << 20
"""The KV cache of a lane whose size is not known, in tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineModel:
    """One engine of a run: its lanes are equal servers."""

    steps: StepModel
    lanes: int = 1
    slots: int = 64
    """How many requests each lane serves at once (`max_num_seqs`)."""
    step_tokens: int = 8192
    """How many tokens a step computes at most (`max_num_batched_tokens`)."""
    kv_tokens: int | None = None
    """The KV cache of a lane; None: KV_TOKENS_UNKNOWN, of which requests may use any part."""
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
    def cache_tokens(self) -> int:
        """The KV cache of a lane, as it is modelled."""
        return self.kv_tokens or KV_TOKENS_UNKNOWN

    @property
    def longest(self) -> int:
        """The longest context that it serves."""
        fitting = self.cache_tokens - BLOCK_TOKENS
        return fitting if self.context_tokens is None else min(self.context_tokens, fitting)

    def cache(self) -> KvCache:
        """The empty cache of one of its lanes."""
        return KvCache(self.cache_tokens, is_shared=self.is_prefix_cached)

    def lane(self, cache: KvCache) -> Lane:
        """One of its lanes."""
        return Lane(self.steps, seats=self.slots, step_tokens=max(self.step_tokens, self.slots), cache=cache)


def sequence_of(prompt: Prompt, reply: Reply, model: EngineModel) -> Sequence | None:
    """What a lane is given of a request that will have this reply; None for a prompt that is too long."""
    prompt_tokens = prompt_tokens_of(prompt, model.chars_per_token)
    if prompt_tokens >= model.longest:
        return None
    return Sequence(
        blocks=chain_of(prompt, model.chars_per_token),
        prompt_tokens=prompt_tokens,
        reply_tokens=max(1, min(reply.tokens.completion, model.longest - prompt_tokens)),
    )


def served(reply: Reply, sequence: Sequence, timing: Timing = Timing()) -> Reply:  # noqa: B008 - it is frozen
    """The reply with the tokens that the lane counted."""
    return Reply(
        text=reply.text,
        thinking=reply.thinking,
        finish_reason=reply.finish_reason,
        tokens=TokenCount(
            prompt=sequence.prompt_tokens, cached=sequence.cached_tokens or 0, completion=sequence.reply_tokens
        ),
        timing=timing,
    )


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


class ModelledEngine(Backend):
    """The backend of an engine model. `client` is shared by all engines of a run."""

    def __init__(self, model: EngineModel, replies: ReplySource, clock: Clock, client: Client | None = None) -> None:
        self.model = model
        self._replies = replies
        self._clock = clock
        self._client = client
        self._servers = {f"lane {number}": _Server(model.lane(model.cache())) for number in range(model.lanes)}
        self._endpoints = Endpoints()
        for name in self._servers:
            self._endpoints.add(Endpoint(name, slots=model.slots))
        self._line = Line(self._endpoints, self._leave)
        self.requests = 0
        self.tokens = TokenCount()

    @property
    def capacity(self) -> int:
        """The slots of all lanes."""
        return self.model.lanes * self.model.slots

    @property
    def token_budget(self) -> int | None:
        """The cache of all lanes, where requests are admitted by it."""
        return self.model.lanes * self.model.cache_tokens if self.model.admits_by_tokens else None

    @property
    def lookahead(self) -> int:
        """As the model says."""
        return self._endpoints.lookahead if self.model.lookahead is None else self.model.lookahead

    @property
    def lanes(self) -> list[Lane]:
        """Its lanes."""
        return [server.lane for server in self._servers.values()]

    async def close(self) -> None:
        """Stop the timers."""
        for server in self._servers.values():
            if server.timer is not None:
                server.timer.cancel()

    async def generate(self, request: Request) -> Reply:
        """The reply, after the time that the lane takes for it."""
        if self._client is not None and (delay_s := self._client.delay_s(self._clock.monotonic_s())):
            await self._clock.sleep(delay_s)
        reply = self._replies(request)
        sequence = sequence_of(request.prompt, reply, self.model)
        if sequence is None:
            return Reply(text="", finish_reason=FinishReason.OVERFLOW)
        endpoint, waited_s = await self._endpoint_for(request)
        try:
            await self._served(self._servers[endpoint.url], sequence)
        finally:
            self._leave(endpoint)
        reply = served(reply, sequence, Timing(queue_s=waited_s, server=endpoint.url))
        self.requests += 1
        self.tokens += reply.tokens
        return reply

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

    async def _served(self, server: _Server, sequence: Sequence) -> None:
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


_CAPACITY: Final = 1_000_000


class AloneEngine(Backend):
    """A backend with a cache for each conversation, and a lane for each request."""

    capacity = _CAPACITY

    def __init__(self, model: EngineModel, replies: ReplySource, clock: Clock) -> None:
        self._model = model
        self._replies = replies
        self._clock = clock
        self._caches: dict[str, KvCache] = {}

    async def generate(self, request: Request) -> Reply:
        """The reply, after the time that a lane takes which does nothing else."""
        reply = self._replies(request)
        sequence = sequence_of(request.prompt, reply, self._model)
        if sequence is None:
            return Reply(text="", finish_reason=FinishReason.OVERFLOW)
        cache = self._caches.setdefault(request.conversation, self._model.cache())
        lane = self._model.lane(cache)
        lane.add(sequence, 0.0)
        while lane.due_s is not None:
            lane.end_steps()
        await self._clock.sleep(lane.use.busy_s)
        return served(reply, sequence)
