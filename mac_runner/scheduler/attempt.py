"""One request, from its departure to the event it ends in.

The shell around `engine_policy.next_step`: it sends, records, and decides nothing. A reply waits for its turn in the
event loop; from there on nothing is awaited, and it is journaled and applied in one go.

The transcript of an ended conversation, made again from its recorded replies without any engine.

It takes the path of a resume, so it has the same bytes as the published one if all its replies are there. This module
does not check that: the caller compares the digests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from mac_runner.backends.base import WAITING, Backend, Waiting
from mac_runner.clock import Clock
from mac_runner.environments.base import Environment
from mac_runner.errors import (
    BackendError,
    ConfigError,
    ConversationError,
    EngineCrashedError,
    EngineDeadError,
    FormRefusedError,
    RequestTimeoutError,
    RunDirectoryError,
    StoreError,
    TransientBackendError,
    Verdict,
    boundary,
    said_by,
)
from mac_runner.scheduler.conversation import LiveConversation
from mac_runner.scheduler.engine_policy import (
    EngineState,
    Fail,
    GiveUpEngine,
    RequestState,
    is_poison,
    next_step,
    poison_reason,
)
from mac_runner.scheduler.metrics import Accounting, Progress
from mac_runner.scheduler.policies import Policies
from mac_runner.scheduler.state import Answered, Broken, Depart, Faulted, RunLog, Source, Work
from mac_runner.spec import RetryConfig
from mac_runner.store import build_transcript
from mac_runner.store.records import entry
from mac_runner.store.transcripts import as_measured
from mac_runner.types import (
    REPLY_CHARS_MAX,
    THINKING_CHARS_MAX,
    Destination,
    FinishReason,
    JsonObject,
    PolicyVersion,
    RecordedReply,
    Reply,
    Request,
    Task,
    Timing,
    Turn,
)

LOOP_PASS_S_MAX: Final = 0.05
"""How long replies that arrive together may hold the event loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """What all parts of one run share."""

    work: Work
    backends: Mapping[str, Backend]
    """The engines by name."""
    log: RunLog
    """The log of the run as a whole."""
    concurrency: int | None
    clock: Clock
    stop: asyncio.Event
    progress: Progress
    policies: Policies | None = None
    """The weights of its engines, where they change."""

    @property
    def admits_by_tokens(self) -> bool:
        """Whether an engine of the run admits by tokens; known once all have started."""
        return any(backend.token_budget is not None for backend in self.backends.values())


class LoopFairness:
    """Spreads a burst of replies over several passes of the event loop.

    Engines answer in bursts: one step of a batch can end a hundred replies. asyncio runs everything that is ready
    before it looks at timers, signals and the status view.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pass_over_at_s: float | None = None

    async def turn(self) -> None:
        """Return at once, or in a later pass of the loop when this one has taken LOOP_PASS_S_MAX."""
        while not self._has_time():
            await self._clock.sleep(0)

    def _has_time(self) -> bool:
        now_s = self._clock.monotonic_s()
        if self._pass_over_at_s is None:
            self._pass_over_at_s = now_s + LOOP_PASS_S_MAX
            asyncio.get_running_loop().call_soon(self._begin_pass)
        return now_s < self._pass_over_at_s

    def _begin_pass(self) -> None:
        self._pass_over_at_s = None


class AttemptRunner:
    """Sends requests, and turns what comes back into an Answered, a Faulted or a Broken."""

    def __init__(self, run: RunContext, accounting: Accounting, fairness: LoopFairness) -> None:
        self._run = run
        self._clock = run.clock
        self._accounting = accounting
        self._fairness = fairness
        self._engines: dict[str, EngineState] = {}

    async def carry_out(self, live: LiveConversation, depart: Depart) -> Answered | Faulted | Broken:
        """Send the request of a departure and take in the answer. Raises what ends the whole run.

        Neither waiting for the disk nor waiting for a slot is charged to the request's deadline.
        """
        turn, departed_at_s = depart.turn, self._clock.monotonic_s()
        await live.source.recorder.flow()
        self._accounting.waited_for_disk(self._clock.monotonic_s() - departed_at_s)
        if not live.wants(turn):  # The conversation failed meanwhile.
            return Faulted(depart.conversation, turn, None)
        if is_poison(live.source.recorder.deaths(live.task).get(turn.key, 0)):
            live.fail(turn, poison_reason(turn))
            return Faulted(depart.conversation, turn, None)
        try:
            request = live.request(turn, is_suspect=depart.is_isolated)
        except ConversationError as fault:
            live.fail(turn, str(fault))
            return Faulted(depart.conversation, turn, None)
        self._charge(live, depart, request, departed_at_s)
        return await self._send(live, depart, request)

    def _charge(self, live: LiveConversation, depart: Depart, request: Request, departed_at_s: float) -> None:
        """Begin a sending: put off the request's deadline by what it waited for the disk and for its slot."""
        key, sent_at_s = depart.turn.key, self._clock.monotonic_s()
        state = live.requests.get(key)
        if state is None:
            answers = self._engine_of(live, depart.turn).answers
            state = live.requests[key] = RequestState(request.request_id, departed_at_s, answers_before=answers)
        state.charged_from_s += sent_at_s - departed_at_s
        if depart.sending > 1:
            state.charged_from_s += depart.waited_s
        state.sending, state.sent_at_s = depart.sending, sent_at_s

    async def _send(self, live: LiveConversation, depart: Depart, request: Request) -> Answered | Faulted | Broken:
        turn, engine, state = depart.turn, live.source.engines[depart.turn.model], live.requests[depart.turn.key]
        deadline_at_s = state.charged_from_s + live.source.retry.request_deadline_s
        fields: JsonObject = {
            "prompt_chars": request.prompt.size_chars,
            "seed": request.sampling.seed,
            "sending": depart.sending,
        }
        self._accounting.departed(engine, state.sent_at_s)
        backend = self._run.backends[engine]
        server = backend.destination(request)
        live.source.recorder.event("EVENT_INFER_START", _subject(live, turn, server) | fields)
        waiting = Waiting()
        try:
            deadline_s = deadline_at_s - state.sent_at_s
            reply = await generate(backend, request, deadline_s=deadline_s, clock=self._clock, waiting=waiting)
        except BackendError as fault:
            state.charged_from_s += waiting.uncharged_s
            self._accounting.landed(engine, self._clock.monotonic_s(), None)
            if fault.verdict is Verdict.FAIL_RUN:
                fault.model = engine
                raise
            return self._faulted(live, depart, fault, fault.destination or server)
        state.is_answered = True
        waited_s = depart.waited_s + max(waiting.uncharged_s, reply.timing.queue_s)
        try:
            await self._fairness.turn()
        except asyncio.CancelledError:
            self._answered(live, depart, request, reply, waited_s)  # The run ends; a reply that arrived is kept.
            raise
        return self._answered(live, depart, request, reply, waited_s)

    def _faulted(
        self, live: LiveConversation, depart: Depart, fault: BackendError, server: Destination | None
    ) -> Faulted:
        turn, state, recorder = depart.turn, live.requests[depart.turn.key], live.source.recorder
        is_death = isinstance(fault, TransientBackendError) and fault.is_engine_death
        engine = live.source.engines[turn.model]
        step = next_step(
            turn,
            state,
            fault,
            self._engine_of(live, turn),
            name=engine,
            conversation=depart.conversation,
            retry=live.source.retry,
            now_s=self._clock.monotonic_s(),
            deaths=self.record_death(live, turn, server) if is_death else 0,
            is_wanted=live.wants(turn),
            server=None if server is None else server.server,
        )
        if isinstance(step, GiveUpEngine):
            raise EngineDeadError(
                f"{step.reason}; what was recorded is safe: when the engine is back, run the same command again "
                "(retry_config.engine_patience_s says how long a run waits for it)"
            ) from fault
        delay_s = None if isinstance(step, Fail) else step.delay_s
        fields: JsonObject = {"sending": depart.sending, "error": state.faults[-1], "delay_s": delay_s}
        recorder.event("EVENT_GIVE_UP" if delay_s is None else "EVENT_RETRY", _subject(live, turn, server) | fields)
        is_busy = isinstance(fault, TransientBackendError) and fault.is_busy
        if isinstance(step, Fail):
            live.fail(turn, step.reason)
            return Faulted(depart.conversation, turn, None, is_turned_away=is_busy)
        return Faulted(depart.conversation, turn, step.delay_s, step.is_suspect, is_busy)

    def record_death(self, live: LiveConversation, turn: Turn, server: Destination | None = None) -> int:
        """Record that an engine died while it worked on `turn`, on `server`; how often that has happened.

        In a run that is being stopped, the engine may have been stopped as well: no death is recorded.
        """
        if self._run.stop.is_set():
            return 0
        recorder = live.source.recorder
        recorder.death(live.task, turn.key)
        deaths = recorder.deaths(live.task)[turn.key]
        recorder.event("EVENT_ENGINE_DEATH", _subject(live, turn, server) | {"deaths": deaths})
        return deaths

    def silent_since_s(self, engine: str) -> float | None:
        """When the faults of an engine under suspicion began; None for one that works."""
        state = self._engines.get(engine)
        return None if state is None else state.suspect_since_s

    def resized(self, engine: str) -> None:
        """Take in that an engine serves another number of requests now."""
        state, backend = self._engines.get(engine), self._run.backends[engine]
        if state is not None:
            state.resized(backend.capacity, backend.lookahead, self._clock.monotonic_s())

    def _engine_of(self, live: LiveConversation, turn: Turn) -> EngineState:
        name = live.source.engines[turn.model]
        if name not in self._engines:
            backend = self._run.backends[name]
            self._engines[name] = EngineState.of(backend.capacity, backend.lookahead)
        return self._engines[name]

    def _answered(
        self, live: LiveConversation, depart: Depart, request: Request, reply: Reply, waited_s: float
    ) -> Answered | Faulted | Broken:
        turn, now_s, state = depart.turn, self._clock.monotonic_s(), live.requests.pop(depart.turn.key)
        took_s = now_s - state.sent_at_s - (waited_s - depart.waited_s)
        self._accounting.landed(live.source.engines[turn.model], now_s, reply.tokens)
        self._engine_of(live, turn).answered()
        self._run.progress.answered()
        live.answered += 1
        timing = msgspec.structs.replace(
            reply.timing, queue_s=round(waited_s, 6), generate_s=round(took_s, 6), faults=tuple(state.faults)
        )
        recorded = RecordedReply(
            turn_key=turn.key, prompt_sha256=request.prompt.sha256, reply=reply.timed(timing), model=turn.model
        )
        # Before its event, so that no event names a reply that a kill has lost.
        is_wanted = self._journal(live, turn, recorded)
        fields: JsonObject = {
            "tokens_out": reply.tokens.completion,
            "tokens_in": reply.tokens.prompt,
            "tokens_cached": reply.tokens.cached,
            "queue_s": timing.queue_s,
            "latency_ms": round(1000 * took_s, 3),
            "finish_reason": str(reply.finish_reason),
            "is_dropped": not is_wanted,
        }
        live.source.recorder.event("EVENT_INFER_DONE", _subject(live, turn, timing) | fields)
        return self._apply(live, turn, recorded.traceless())

    def _journal(self, live: LiveConversation, turn: Turn, recorded: RecordedReply) -> bool:
        """Journal a reply, unless its conversation failed before this turn; whether it was journaled."""
        if is_wanted := live.wants(turn):
            if self._run.policies is not None:
                self._run.policies.before_reply(live.source, turn.model, recorded.reply)
            live.source.recorder.reply(live.task, recorded)
        return is_wanted

    def _apply(self, live: LiveConversation, turn: Turn, recorded: RecordedReply) -> Answered | Faulted | Broken:
        """Apply a reply that is journaled, unless the conversation failed before this turn.

        A reply that is too late for a failed conversation appears in the event log alone (`is_dropped`): whether it
        arrives depends on what else ran, and the transcript may not.
        """
        if live.wants(turn):
            self._run.progress.applied(live.receive(turn, recorded).receipt.kind, live.definition(turn))
        if not live.wants(turn):
            return Faulted(live.number, turn, None)
        try:
            now = live.turns()
        except ConversationError as fault:
            live.break_down(str(fault))
            return Broken(live.number, turn)
        return Answered(live.number, turn, now.turns, now.rounds_completed, now.needs)


async def generate(
    backend: Backend, request: Request, *, deadline_s: float, clock: Clock, waiting: Waiting | None = None
) -> Reply:
    """One reply within `deadline_s` seconds, cut to REPLY_CHARS_MAX characters. Raises a BackendError.

    Its thought is cut to THINKING_CHARS_MAX. `waiting` gets the time that the backend leaves `uncharged`. The reply is
    held to the backend's form, and takes as long as its latency says: the time that the engine itself takes counts.
    """
    with boundary(EngineCrashedError, "it broke down", model=request.turn.model):
        try:
            async with asyncio.timeout(deadline_s) as deadline:
                if waiting is not None:
                    waiting.deadline = deadline
                    WAITING.set(waiting)
                reply = await _asked(backend, request, clock)
        except TimeoutError:
            raise RequestTimeoutError("no reply before the request's deadline") from None
        finally:
            if waiting is not None:
                waiting.deadline = None  # It holds this task, whose context holds `waiting`.
    if reply.thinking is not None and len(reply.thinking) > THINKING_CHARS_MAX:
        reply = replace(reply, thinking=reply.thinking[:THINKING_CHARS_MAX])
    if len(reply.text) > REPLY_CHARS_MAX:
        return replace(reply, text=reply.text[:REPLY_CHARS_MAX], finish_reason=FinishReason.LENGTH)
    return reply


async def _asked(backend: Backend, request: Request, clock: Clock) -> Reply:
    """The backend's reply; ConnectionError and TimeoutError become TransientBackendError. No error is held back."""
    form, latency, sent_at_s = backend.form, backend.latency, clock.monotonic_s()
    sent = request if form is None else form.held(request)
    try:
        reply: object = await backend.generate(sent)
    except (ConnectionError, TimeoutError) as fault:
        raise TransientBackendError(said_by(fault), is_unreachable=isinstance(fault, ConnectionError)) from fault
    except FormRefusedError as fault:
        if form is None:
            raise
        raise form.refused(fault) from fault
    if not isinstance(reply, Reply):
        raise EngineDeadError(f"the `generate` of {type(backend).__name__} returned {type(reply).__name__}, no Reply")
    if form is not None:
        form.kept(sent)
    if latency is not None:
        due_at_s = sent_at_s + latency.generation_ms(reply) / 1000
        await clock.sleep(max(0.0, due_at_s - clock.monotonic_s()))
    return reply


def _subject(live: LiveConversation, turn: Turn, at: Destination | Timing | None) -> JsonObject:
    """The fields by which every event names its turn, its engine where several models share one, and the server."""
    engine = live.source.engines[turn.model]
    return {
        "task": live.task.task_id,
        "agent": turn.agent,
        "turn": turn.key,
        "model": turn.model,
        **({} if engine == turn.model else {"engine": engine}),
        **where(at),
    }


def where(at: Destination | Timing | None) -> JsonObject:
    """The fields by which an event names a server; each is None where it is not known."""
    return {
        "server": None if at is None else at.server,
        "lane": None if at is None else at.lane,
        "gpu": None if at is None else at.gpu,
    }


class Unrecorded:
    """A recorder that keeps nothing: for what was recorded before, and for measurements without a store."""

    failure: StoreError | None = None
    written = 0

    def on_failure(self, callback: Callable[[StoreError], None]) -> None:
        """Keep nothing."""

    def event(self, name: str, fields: JsonObject) -> None:
        """Keep nothing."""

    def checkpoint(self, accounting: JsonObject) -> None:
        """Keep nothing."""

    def reply(self, task: Task, recorded: RecordedReply) -> None:
        """Keep nothing."""

    def policy(self, model: str, policy: PolicyVersion) -> None:
        """Keep nothing."""

    def death(self, task: Task, turn_key: str) -> None:
        """Keep nothing."""

    def deaths(self, task: Task) -> Mapping[str, int]:
        """None is known."""
        return {}

    def publish(self, task: Task, transcript: JsonObject) -> None:
        """Keep nothing."""

    async def flow(self) -> None:
        """Keep nothing."""


class Restoration:
    """Makes transcripts of one experiment again; `models` names its models."""

    def __init__(
        self, environment: Environment, *, environment_name: str, experiment_name: str, models: Sequence[str]
    ) -> None:
        self._source = Source(
            environment=environment,
            environment_name=environment_name,
            experiment_name=experiment_name,
            engines={name: name for name in models},
            recorder=Unrecorded(),
            retry=RetryConfig(),
        )

    def __call__(self, task: Task, replies: Sequence[RecordedReply], row: JsonObject) -> JsonObject | None:
        """The transcript of an ended conversation, from its replies and its index row; None if they do not make one."""
        try:
            live = self.opened(task, replies)
            _end(live, row)
            ending = live.settle()
            return build_transcript(
                experiment_name=self._source.experiment_name,
                environment=self._source.environment_name,
                task=task,
                outcome=ending.outcome,
                record=ending.record,
                fingerprint=ending.fingerprint,
                turns=live.records,
                failure=live.failure,
                timing=entry(row, "timing", dict),
                measure=as_measured(row),
            )
        except (ConfigError, ConversationError, RunDirectoryError, ValueError):
            return None

    def opened(self, task: Task, replies: Sequence[RecordedReply]) -> LiveConversation:
        """A conversation as a resume finds it. Raises RunDirectoryError where this version renders other prompts."""
        live = LiveConversation(0, self._source, task, 0.0)
        live.open(replies)
        return live


def _end(live: LiveConversation, row: JsonObject) -> None:
    """Apply a failure without an answer, which only the index row records."""
    failure = row.get("failure")
    if failure is None or live.failure is not None:
        return
    live.failure = str(failure)
    # Its transcript has the turns before the one that it failed on, which are the first ones in canonical order.
    ordered = sorted(record.turn.canonical for record in live.records)
    turns = entry(entry(row, "counts", dict), "turns", int)
    if turns < len(ordered):
        live.failed_at = ordered[turns]
