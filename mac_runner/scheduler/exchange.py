"""One request, from its departure to the event it ends in.

A reply waits for its turn of the event loop, and from there on nothing is awaited: it is journaled and applied in one
go.
"""

from __future__ import annotations

import asyncio

from mac_runner.errors import (
    BackendError,
    ConversationError,
    EngineDeadError,
    RequestTimeoutError,
    TransientBackendError,
    Verdict,
)
from mac_runner.scheduler import poison
from mac_runner.scheduler.accounting import Accounting
from mac_runner.scheduler.engines import generate
from mac_runner.scheduler.events import Answered, Broken, Depart, Faulted
from mac_runner.scheduler.health import EngineHealth
from mac_runner.scheduler.live import LiveConversation, Sendings
from mac_runner.scheduler.pace import Pace
from mac_runner.scheduler.retry import jitter
from mac_runner.scheduler.wiring import Wiring
from mac_runner.types import JsonObject, RecordedReply, Reply, Request, Timing, Turn


class Exchange:
    """Sends requests and makes of what comes back an Answered, a Faulted or a Broken."""

    def __init__(self, wiring: Wiring, accounting: Accounting, pace: Pace) -> None:
        self._wiring = wiring
        self._clock = wiring.clock
        self._accounting = accounting
        self._pace = pace
        self._health: dict[str, EngineHealth] = {}

    async def carry_out(self, live: LiveConversation, depart: Depart) -> Answered | Faulted | Broken:
        """Send the request and take in the answer. Raises what ends the whole run.

        The disk is waited for before anything else: however slow it is, that is no fault of the engine, and costs a
        request nothing of its deadline. Neither does waiting for a slot, however often it was sent before.
        """
        turn, departed_at_s = depart.turn, self._clock.monotonic_s()
        await live.source.recorder.flow()
        if not live.wants(turn):  # The conversation failed meanwhile.
            return Faulted(depart.conversation, turn, None)
        if poison.is_poison(live.source.recorder.deaths(live.task).get(turn.key, 0)):
            live.fail(turn, poison.reason(turn))
            return Faulted(depart.conversation, turn, None)
        try:
            request = live.request(turn)
        except ConversationError as fault:
            live.fail(turn, str(fault))
            return Faulted(depart.conversation, turn, None)
        sent_at_s = self._clock.monotonic_s()
        answers_before = self._health_of(live.source.engines[turn.model]).answers
        sendings = live.sendings.setdefault(turn.key, Sendings(departed_at_s, answers_before))
        sendings.charged_from_s += sent_at_s - departed_at_s
        if depart.sending > 1:
            sendings.charged_from_s += depart.waited_s
        sendings.sent_at_s = sent_at_s
        return await self._send(live, depart, request, sent_at_s)

    async def _send(
        self, live: LiveConversation, depart: Depart, request: Request, sent_at_s: float
    ) -> Answered | Faulted | Broken:
        turn, engine = depart.turn, live.source.engines[depart.turn.model]
        deadline_at_s = live.sendings[turn.key].charged_from_s + live.source.retry.request_deadline_s
        fields: JsonObject = {
            "prompt_chars": request.prompt.size_chars,
            "seed": request.sampling.seed,
            "sending": depart.sending,
        }
        self._accounting.departed(engine, sent_at_s)
        live.source.recorder.event("EVENT_INFER_START", about(live, turn) | fields)
        try:
            backend = self._wiring.backends[engine]
            reply = await generate(backend, request, deadline_s=deadline_at_s - sent_at_s)
        except BackendError as fault:
            self._accounting.landed(engine, self._clock.monotonic_s(), None)
            if fault.verdict is Verdict.FAIL_RUN:
                fault.model = engine
                raise
            return self._unanswered(live, depart, request, fault)
        live.sendings[turn.key].is_answered = True
        try:
            await self._pace.turn()
        except asyncio.CancelledError:
            self._answered(live, depart, request, reply, sent_at_s)  # The run ends, and what has come is kept.
            raise
        return self._answered(live, depart, request, reply, sent_at_s)

    def _unanswered(self, live: LiveConversation, depart: Depart, request: Request, fault: BackendError) -> Faulted:
        turn, sendings = depart.turn, live.sendings[depart.turn.key]
        sendings.faults.append(f"{type(fault).__name__}: {fault}")
        is_death = isinstance(fault, TransientBackendError) and fault.is_engine_death
        deaths = 0
        if is_death:
            engine = live.source.engines[turn.model]
            self._health_of(engine).died(sendings.sent_at_s, self._clock.monotonic_s())
            deaths = self.blame(live, turn)
        is_hopeless = poison.is_poison(deaths) or not live.wants(turn)
        delay_s = None if is_hopeless else self._delay_s(live, depart, request, fault)
        fields: JsonObject = {"sending": depart.sending, "error": sendings.faults[-1], "delay_s": delay_s}
        live.source.recorder.event("EVENT_GIVE_UP" if delay_s is None else "EVENT_RETRY", about(live, turn) | fields)
        if delay_s is None:
            # How often a request was sent depends on luck, and the reason may not: the event log tells it.
            no_answer = f"turn {turn.key} got no answer: {sendings.faults[-1]}"
            live.fail(turn, poison.reason(turn) if poison.is_poison(deaths) else no_answer)
        is_busy = isinstance(fault, TransientBackendError) and fault.is_busy
        return Faulted(depart.conversation, turn, delay_s, poison.is_suspect(deaths), is_busy)

    def blame(self, live: LiveConversation, turn: Turn) -> int:
        """An engine died while it worked on `turn`: how often that has happened. In a run that was told to stop, the
        engine may have been told as well.
        """
        if self._wiring.stop.is_set():
            return 0
        recorder = live.source.recorder
        recorder.death(live.task, turn.key)
        deaths = recorder.deaths(live.task)[turn.key]
        recorder.event("EVENT_ENGINE_DEATH", about(live, turn) | {"deaths": deaths})
        return deaths

    def _delay_s(self, live: LiveConversation, depart: Depart, request: Request, fault: BackendError) -> float | None:
        """When to send it again, None for never. Raises EngineDeadError when the engine is lost.

        The conversation does not pay for the engine: while that is under suspicion and has answered nobody since the
        request was first sent, it is waited for, and the wait is no part of the request's deadline. Without a retry
        left in the engine's budget a request waits as long as requests may.
        """
        if not isinstance(fault, TransientBackendError) or isinstance(fault, RequestTimeoutError):
            return None  # Asking again cannot help: it is refused for good, or its time is over.
        engine, sendings = live.source.engines[depart.turn.model], live.sendings[depart.turn.key]
        retry, health, now_s = live.source.retry, self._health_of(engine), self._clock.monotonic_s()
        health.faulted(depart.conversation, now_s, is_unreachable=fault.is_unreachable, is_busy=fault.is_busy)
        if health.is_lost(now_s):
            raise EngineDeadError(
                f"model {engine} has answered nobody for a while, at last: {type(fault).__name__}: {fault.words}"
            ) from fault
        if fault.is_engine_death:  # Whose doing that was is for `poison` to find out, and no count of attempts.
            sendings.forgiven, sendings.answers_before = depart.sending - 1, health.answers
            sendings.turned_away, sendings.charged_from_s = 0, now_s
        sendings.turned_away += not fault.is_attempt
        is_answering, sendings.answers_seen = health.answers > sendings.answers_seen, health.answers
        delay_s = retry.decide(
            fault,
            sending=depart.sending - sendings.forgiven,
            turned_away=sendings.turned_away,
            is_answering=is_answering,
            elapsed_s=now_s - sendings.charged_from_s,
            jitter=jitter(request.request_id, depart.sending),
        )
        if delay_s is None and health.is_suspect and health.answers == sendings.answers_before:
            sendings.charged_from_s = now_s + retry.backoff_s_max
            return retry.backoff_s_max
        # An engine that says it is busy is not in trouble, and knows best how soon it may be asked again.
        if delay_s is None or fault.is_busy or health.spend_retry():
            return delay_s
        return max(delay_s, retry.backoff_s_max)

    def _health_of(self, engine: str) -> EngineHealth:
        if engine not in self._health:
            self._health[engine] = EngineHealth.of(self._wiring.backends[engine].capacity)
        return self._health[engine]

    def _answered(
        self, live: LiveConversation, depart: Depart, request: Request, reply: Reply, sent_at_s: float
    ) -> Answered | Faulted | Broken:
        turn, now_s = depart.turn, self._clock.monotonic_s()
        engine = live.source.engines[turn.model]
        self._accounting.landed(engine, now_s, reply.tokens)
        self._health_of(engine).answered()
        self._wiring.progress.turns += 1
        live.answered += 1
        fields: JsonObject = {
            "tokens_out": reply.tokens.completion,
            "latency_ms": round(1000 * (now_s - sent_at_s), 3),
            "finish_reason": str(reply.finish_reason),
            "is_dropped": not live.wants(turn),
        }
        live.source.recorder.event("EVENT_INFER_DONE", about(live, turn) | fields)
        faults = tuple(live.sendings.pop(turn.key).faults)
        timing = Timing(queue_s=round(depart.waited_s, 6), generate_s=round(now_s - sent_at_s, 6), faults=faults)
        recorded = RecordedReply(turn_key=turn.key, prompt_sha256=request.prompt.sha256, reply=reply.timed(timing))
        return self._apply(live, turn, recorded)

    def _apply(self, live: LiveConversation, turn: Turn, recorded: RecordedReply) -> Answered | Faulted | Broken:
        """Journal the reply and let the conversation have it, unless it has failed before this turn.

        A reply that came too late for a failed conversation is told in the event log (`is_dropped`) and nowhere
        else: whether it comes depends on what else ran, and the transcript may not.
        """
        number = live.number
        if live.wants(turn):
            live.source.recorder.reply(live.task, recorded)
            live.receive(turn, recorded)
        if not live.wants(turn):
            return Faulted(number, turn, None)
        try:
            now = live.turns()
        except ConversationError as fault:
            live.break_down(str(fault))
            return Broken(number, turn)
        return Answered(number, turn, now.turns, now.rounds_completed, now.needs)


def about(live: LiveConversation, turn: Turn) -> JsonObject:
    """What every event of the log says of the turn it concerns."""
    return {"task": live.task.task_id, "agent": turn.agent, "turn": turn.key, "model": turn.model, "gpu": None}
