"""Retry, health and load policy of one engine: what follows a fault.

`next_step` decides, from the first row that applies:

    the fault                                                          | what follows
    -------------------------------------------------------------------|-------------------------------------------
    1  the engine died on this turn ENGINE_DEATHS_PER_TURN_MAX times   | Fail: the turn is poison
    2  the conversation has failed before this turn                    | Fail: the turn is not wanted any more
    3  the request is refused for good, or its deadline is over        | Fail: it got no answer
    4  the next sending goes to another server, this one failed the    | Retry at once; the engine is not suspected,
       request for the first time, attempts and time are left          | and its budget is not charged
    5  the engine under suspicion was silent for engine_patience_s     | GiveUpEngine: the run stops, resumable
    6  attempts or time used up; the engine is under suspicion and     | Retry after backoff_s_max; the wait is not
       answered no request since this one was first sent               | charged to the deadline
    7  attempts or time used up otherwise                              | Fail: it got no answer
    8  the engine is busy (429, 503 with Retry-After), or its answer   | Retry when it allows, or after a backoff
       is no reply                                                     |
    9  anything else, with a retry left in the engine's budget         | Retry after a backoff, or Retry-After
    10 anything else, with the budget spent                            | Retry, after backoff_s_max at the earliest

Row 4 is for the requests that one of several servers leaves behind: the other servers have room for them, and all
requests of a dead server at once would spend the budget that is for all servers. It holds once for each request and
server, so a request is sent without a pause at most as often as there are servers.

An answer that is no reply proves as much of the engine as any other: it ends a suspicion, so rows 5 and 6 do not apply.

A death does not count against the turn's attempts, because any turn in flight may be the cause. After the second death
the turn is a suspect: it departs after all others, alone on its engine or on one server of it. Deaths are counted per
turn, because the same prompt and seed are sent each time, and in the journal, because an engine in this process takes
the run with it. Only a third death, over that turn alone, fails its conversation. The end of the runner itself counts
against no turn.

`ConcurrencyLimit` decides how many requests an engine gets that turns some away. All of this is pure: the caller passes
the time and performs the step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from mac_runner.errors import RETRY_AFTER_S_MAX, BackendError, RequestTimeoutError, TransientBackendError
from mac_runner.spec import RetryConfig
from mac_runner.types import Turn, stable_hash

RETRIES_MIN: Final = 10
"""Retries that an engine of few slots may be asked for while it answers no request."""
RETRIES_PER_SLOT: Final = 2
"""Retries per slot that a larger engine may be asked for while it answers no request."""
ANSWERS_PER_RETRY: Final = 5
"""How many answers give one retry back to the budget."""
ENGINE_SUSPECT_CONVERSATIONS_MIN: Final = 3
"""Faults in so many conversations, with no answer in between, put a reachable engine under suspicion."""
ENGINE_BUSY_S_MAX: Final = 600.0
"""How long an engine may report that it is busy before its silence begins to count."""
ENGINE_DEATHS_PER_TURN_MAX: Final = 3
"""How often an engine may die while it works on one turn, over all sessions; the last time on that turn alone."""
REFUSALS_TO_SHRINK: Final = 2
"""Refusals without an answer in between that make an engine's limit smaller."""
ANSWERS_TO_GROW: Final = 4
"""Answers that make an engine's limit larger."""
REST_S: Final = 0.5
"""The first pause of an engine that turned away the only request it had."""
TURNED_AWAY_MAX: Final = 6
"""A turn that is turned away more often may itself be the cause."""
_BUSY_DOUBLINGS_MAX: Final = 2
_HASHES: Final = 1 << 63


@dataclass(slots=True)
class RequestState:
    """The sendings of one turn so far."""

    request_id: str
    """The request's name; the jitter of its pauses is derived from it."""
    charged_from_s: float
    """The moment its deadline counts from: the first sending, put off by later waits for a slot or for the disk."""
    answers_before: int = 0
    """Answers of its engine before the first sending."""
    answers_seen: int = 0
    """Answers of its engine up to the last fault."""
    sending: int = 0
    """How often it was sent."""
    forgiven: int = 0
    """Sendings that do not count: those up to the last death of the engine."""
    turned_away: int = 0
    """Sendings since then that the engine rejected before processing."""
    sent_at_s: float = 0.0
    """The moment of the last sending."""
    is_answered: bool = False
    """Whether a reply has arrived and waits to be applied."""
    left: set[str | None] = field(default_factory=set)
    """The servers that it was sent elsewhere from; None for those that the backend does not name."""
    faults: list[str] = field(default_factory=list)
    """The faults so far, each as `Type: message`."""


@dataclass(slots=True)
class EngineState:
    """What the answers and faults of one engine say about it.

    Retries come out of a budget that answers refill (retry budgets: Google SRE book, "Handling Overload"). So an engine
    in trouble is asked no faster than it answers.
    """

    retries_max: int
    """The size of the retry budget."""
    spent: int = 0
    """The used part of the budget, counted in answers."""
    answers: int = 0
    """All answers so far."""
    silent_since_s: float | None = None
    """When the faults since the last answer began."""
    unlucky: set[int | str] = field(default_factory=set)
    """Conversations with a fault since the last answer; no more than matter are kept."""
    is_unreachable: bool = False
    """Whether a connection failed since the last answer."""
    busy_at_s: float = -math.inf
    """When the engine last reported that it is busy."""
    deaths: int = 0
    """Deaths since the last answer."""
    died_at_s: float | None = None
    """When the last death was noticed."""
    is_away: bool = False
    """Whether it serves no request now, and says so."""

    @classmethod
    def of(cls, capacity: int, lookahead: int = 0) -> EngineState:
        """An engine of this size; its budget covers a short outage that each request feels that it has."""
        return cls(retries_max=_retries_max(capacity + lookahead), is_away=capacity == 0)

    def resized(self, capacity: int, lookahead: int, now_s: float) -> None:
        """Take in another size. While it serves no request, its silence does not count."""
        self.retries_max = max(self.retries_max, _retries_max(capacity + lookahead))
        if self.is_away and capacity and self.silent_since_s is not None:
            self.silent_since_s = now_s
        self.is_away = capacity == 0

    def answered(self) -> None:
        """Count an answer, which clears the engine of suspicion."""
        self.answers += 1
        self.spent = max(0, self.spent - 1)
        self.silent_since_s = None
        self.unlucky.clear()
        self.is_unreachable = False
        self.deaths = 0

    def faulted(
        self, conversation: int | str, now_s: float, *, is_unreachable: bool = False, is_busy: bool = False
    ) -> None:
        """Count a fault of a request of `conversation`."""
        if self.silent_since_s is None:
            self.silent_since_s = now_s
        if len(self.unlucky) < ENGINE_SUSPECT_CONVERSATIONS_MIN:
            self.unlucky.add(conversation)
        self.is_unreachable = self.is_unreachable or is_unreachable
        if is_busy:
            self.busy_at_s = now_s

    def died(self, sent_at_s: float, now_s: float) -> None:
        """Count a death, reported by a request sent at `sent_at_s`; other requests report the same death.

        A death proves that the engine was alive, so its silence restarts: ENGINE_DEATHS_PER_TURN_MAX times, because an
        engine that dies each time and answers no request is not worth waiting for.
        """
        if self.died_at_s is not None and sent_at_s <= self.died_at_s:
            return
        self.deaths += 1
        self.died_at_s = now_s
        if self.deaths <= ENGINE_DEATHS_PER_TURN_MAX:
            self.silent_since_s = now_s

    def spend_retry(self) -> bool:
        """Take a retry out of the budget; False when the budget is empty."""
        if self.spent + ANSWERS_PER_RETRY > self.retries_max * ANSWERS_PER_RETRY:
            return False
        self.spent += ANSWERS_PER_RETRY
        return True

    @property
    def is_suspect(self) -> bool:
        """Whether the faults since the last answer are likely the engine's own."""
        return self.is_unreachable or len(self.unlucky) >= ENGINE_SUSPECT_CONVERSATIONS_MIN

    @property
    def suspect_since_s(self) -> float | None:
        """When the faults of an engine under suspicion began; None for one that is not."""
        return self.silent_since_s if self.is_suspect else None

    def is_lost(self, now_s: float, patience_s: float) -> bool:
        """Whether the engine is under suspicion and its time is over. A busy reply restarts the silence."""
        silent_since_s = now_s if self.silent_since_s is None else self.silent_since_s
        lost_at_s = max(silent_since_s, min(self.busy_at_s, silent_since_s + ENGINE_BUSY_S_MAX)) + patience_s
        return self.is_suspect and now_s >= lost_at_s


def _retries_max(requests: int) -> int:
    return max(RETRIES_MIN, RETRIES_PER_SLOT * requests)


class Retry(NamedTuple):
    """Send the request again in `delay_s` seconds; a suspect is sent alone."""

    delay_s: float
    is_suspect: bool = False


class Fail(NamedTuple):
    """Fail the conversation at this turn, for `reason`."""

    reason: str


class GiveUpEngine(NamedTuple):
    """Ask the engine no more, for `reason`: it is lost. A run stops; the caller says what to do."""

    reason: str


NextStep: TypeAlias = Retry | Fail | GiveUpEngine


def next_step(
    turn: Turn,
    request: RequestState,
    fault: BackendError,
    engine: EngineState,
    *,
    name: str,
    conversation: int | str,
    retry: RetryConfig,
    now_s: float,
    deaths: int = 0,
    is_wanted: bool = True,
    server: str | None = None,
) -> NextStep:
    """What follows `fault`, by the table at the top; updates `request` and `engine` and nothing else.

    `name` is the engine's, `server` the one of its servers that it happened at. `deaths` are those recorded for this
    turn, this one included; 0 will do if the fault is not a death and the caller remembers suspects.
    """
    request.faults.append(f"{type(fault).__name__}: {fault}")
    # The count of sendings depends on timing, and the reason of a failure may not: the event log has it.
    no_answer = Fail(f"turn {turn.key} got no answer: {request.faults[-1]}")
    if isinstance(fault, TransientBackendError) and fault.is_engine_death and not fault.goes_elsewhere:
        engine.died(request.sent_at_s, now_s)
    if is_poison(deaths):
        return Fail(poison_reason(turn))
    if not is_wanted or not isinstance(fault, TransientBackendError) or isinstance(fault, RequestTimeoutError):
        return no_answer
    is_at_once = fault.goes_elsewhere and server not in request.left
    delay_s = _pause_s(request, fault, engine, retry, now_s, is_at_once=is_at_once)
    if is_at_once and delay_s is not None:
        request.left.add(server)
        return Retry(delay_s, is_suspect(deaths))
    if fault.has_answered:
        engine.answered()
    else:
        engine.faulted(conversation, now_s, is_unreachable=fault.is_unreachable, is_busy=fault.is_busy)
    if engine.is_lost(now_s, retry.engine_patience_s):
        last = f"{type(fault).__name__}: {fault.words}"
        return GiveUpEngine(f"model {name} has answered no request for a while; the last fault: {last}")
    if delay_s is None and engine.is_suspect and engine.answers == request.answers_before:
        request.charged_from_s = now_s + retry.backoff_s_max
        return Retry(retry.backoff_s_max, is_suspect(deaths))
    if delay_s is None:
        return no_answer
    # An engine that is busy or answers is not in trouble; a busy one says itself when to send again.
    if not (fault.is_busy or fault.has_answered) and not engine.spend_retry():
        delay_s = max(delay_s, retry.backoff_s_max)
    return Retry(delay_s, is_suspect(deaths))


def _pause_s(
    request: RequestState,
    fault: TransientBackendError,
    engine: EngineState,
    retry: RetryConfig,
    now_s: float,
    *,
    is_at_once: bool,
) -> float | None:
    if fault.is_engine_death:
        request.forgiven, request.answers_before = request.sending - 1, engine.answers
        request.turned_away, request.charged_from_s = 0, now_s
    request.turned_away += not fault.is_attempt
    is_answering, request.answers_seen = engine.answers > request.answers_seen, engine.answers
    return pause_s(
        retry,
        fault,
        sending=request.sending - request.forgiven,
        turned_away=request.turned_away,
        is_answering=is_answering,
        is_at_once=is_at_once,
        elapsed_s=now_s - request.charged_from_s,
        jitter=jitter(request.request_id, request.sending),
    )


def pause_s(
    retry: RetryConfig,
    fault: TransientBackendError,
    *,
    sending: int,
    turned_away: int = 0,
    is_answering: bool = False,
    is_at_once: bool = False,
    elapsed_s: float,
    jitter: float,
) -> float | None:
    """Seconds until the request is sent again, or None when its attempts or its time are used up.

    `sending` counts the sendings so far. `turned_away` are those of them that count as no attempt.
    `is_answering`: the engine answered another request since the previous fault of this one. `is_at_once`: without
    a pause, if at all. `elapsed_s` is what is charged to the deadline so far. `jitter` is in [0, 1).

    Pauses double and are drawn from the upper half of the range, so that requests that failed together do not
    return together. A `Retry-After` is respected up to RETRY_AFTER_S_MAX. A busy engine that names a time, or that
    answers others, is asked again as soon as after a first fault; a little later for a turn it refused often.
    """
    if fault.is_attempt and sending - turned_away >= retry.max_attempts:
        return None
    if is_at_once:
        return 0.0 if elapsed_s < retry.request_deadline_s else None
    doublings = sending - 1
    if fault.is_busy and (is_answering or fault.retry_after_s is not None):
        doublings = min(max(0, turned_away - TURNED_AWAY_MAX), _BUSY_DOUBLINGS_MAX)
    # The bound on the exponent keeps many sendings that count as no attempt from overflowing a float.
    ceiling_s = min(retry.backoff_s_max, retry.backoff_s * 2.0 ** min(doublings, 60))
    delay_s = ceiling_s * (0.5 + 0.5 * jitter)
    if fault.retry_after_s is not None and fault.retry_after_s > delay_s:
        delay_s = min(fault.retry_after_s * (1.0 + 0.1 * jitter), RETRY_AFTER_S_MAX)
    return delay_s if elapsed_s + delay_s < retry.request_deadline_s else None


def jitter(request_id: str, sending: int) -> float:
    """A draw in [0, 1) for the pause after a sending; derived from the names, so that runs repeat."""
    return stable_hash("retry", request_id, sending) / _HASHES


def is_suspect(deaths: int) -> bool:
    """Whether a turn with so many deaths is to be tried alone."""
    return deaths == ENGINE_DEATHS_PER_TURN_MAX - 1


def is_poison(deaths: int) -> bool:
    """Whether a turn with so many deaths is not sent any more."""
    return deaths >= ENGINE_DEATHS_PER_TURN_MAX


def suspects(deaths: Mapping[str, int]) -> frozenset[str]:
    """The keys of the turns to be tried alone."""
    return frozenset(key for key, count in deaths.items() if is_suspect(count))


def poison_reason(turn: Turn) -> str:
    """Why a conversation with a poisonous turn fails."""
    return (
        f"turn {turn.key} is poison: the engine of model {turn.model} died {ENGINE_DEATHS_PER_TURN_MAX} times while it "
        "worked on it, the last time on nothing else"
    )


@dataclass(slots=True)
class ConcurrencyLimit:
    """How many requests an engine gets that turns some away.

    A refusal (429, or 503 with `Retry-After`) shows that what the engine has in hand is what it takes. That becomes the
    limit, and an answer lets the next request depart. Every few answers the limit grows: by one, two, four and so on,
    until requests are refused again. So TCP opens its window (RFC 5681); TCP halves it at a loss, because it does not
    know what the network holds.

    One refusal does not prove an overload: one of several servers may be full, or the load may last a moment. So it
    takes REFUSALS_TO_SHRINK refusals that no answers make up for to shrink the limit, and ANSWERS_TO_GROW answers to
    grow it, whatever its size. Otherwise a service that refuses three requests in ten at random would end with a limit
    of one.
    """

    size: int | None = None
    """The limit in requests; None for an engine that takes all it gets."""
    refusals: int = 0
    """Refusals that no answer has made up for."""
    answers: int = 0
    """Answers since the size last changed."""
    step: int = 1
    """What the size grows by next."""
    rests: int = 0
    """Rests since the last answer."""

    def within(self, limit: int) -> int:
        """How many requests may be in flight, of `limit` at most."""
        return limit if self.size is None else min(self.size, limit)

    def turned_away(self, in_flight: int) -> None:
        """Count a refusal while `in_flight` other requests were accepted."""
        self.refusals = min(self.refusals + 1, REFUSALS_TO_SHRINK) if in_flight else REFUSALS_TO_SHRINK
        if self.refusals == REFUSALS_TO_SHRINK:
            self.size, self.answers, self.step = max(1, in_flight), 0, 1

    def rest_s(self, delay_s: float | None) -> float:
        """How many seconds an engine rests that refused its only request, which returns in `delay_s` (None: never).

        Short at first, and twice as long after each rest without an answer. A `Retry-After` for one request is often
        more than others would have to wait.
        """
        rest_s = min(REST_S * 2.0 ** min(self.rests, 60), RETRY_AFTER_S_MAX)
        self.rests += 1
        return rest_s if delay_s is None else min(rest_s, delay_s)

    def answered(self, in_flight: int, limit: int) -> None:
        """Count an answer while `in_flight` requests, this one included, were there. An unused limit does not grow."""
        self.rests, self.refusals = 0, max(0, self.refusals - 1)
        if self.size is None or in_flight < self.size:
            return
        self.answers += 1
        if self.answers < min(self.size, ANSWERS_TO_GROW):
            return
        self.size, self.answers, self.step = self.size + self.step, 0, 2 * self.step
        if self.size >= limit:
            self.size = None
