"""The data plane: sends each request to one of the servers of a model, and judges by the answers which of them work.

Each request is sent once. The scheduler decides whether it is sent again; the data plane decides whether the server it
failed at is set aside, while others take its work. Whether a server works is decided by a completion alone, never by a
health page: that of a request, or of a canary of one token. Only a hang is judged by pages too (`stall`).

The backends of model servers inherit it. They decide which servers there are, and in which dialect they speak.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from functools import partial
from operator import attrgetter
from typing import Final

from yarl import URL

from mac_runner.backends.base import Backend, uncharged
from mac_runner.backends.chat_template import ChatShape
from mac_runner.backends.http.answer import CANARY, Answer, Dialect, SendingError, Standing, page_of, read_answer
from mac_runner.backends.http.client import HttpClient, beside_v1
from mac_runner.backends.http.endpoints import (
    CANARY_S_MAX,
    ENDPOINT_STRIKES_MAX,
    Endpoint,
    EndpointLog,
    Endpoints,
    Line,
    Onward,
)
from mac_runner.backends.http.errors import Refusal, shape_after, worth_trying
from mac_runner.backends.http.stall import StallWatch
from mac_runner.backends.http.weights import ServerWeights
from mac_runner.backends.redaction import Redactor, redacting
from mac_runner.backends.updates import OneAtATime
from mac_runner.clock import Clock
from mac_runner.errors import (
    BackendError,
    ConfigError,
    EngineDeadError,
    FormRefusedError,
    RequestRefusedError,
    TransientBackendError,
    Verdict,
    WeightUpdateError,
)
from mac_runner.types import Destination, JsonObject, Reply, Request, Sampling, Timing
from mac_runner.weights import WeightUpdate

BRING_PAUSE_S: Final = 5.0
"""Between two tries to have a server take the weights that the others have."""

_SETTINGS: Final = attrgetter(*(field.name for field in fields(Sampling) if field.name != "seed"))
"""What all requests of an agent have in common."""


class DataPlane(Backend):
    """The servers of one entry of `model_definitions`.

    `dialect` says how to talk to them, and how long that may take; which there are is in `endpoints`. `secrets` are
    what the servers may know beside their key, and `weights` is how they take new ones, if they do.
    """

    def __init__(
        self,
        name: str,
        dialect: Dialect,
        endpoints: Endpoints | None = None,
        *,
        key: str | None,
        secrets: Iterable[str] = (),
        weights: ServerWeights | None = None,
        clock: Clock,
        say: Callable[[str], None],
    ) -> None:
        self.name = name
        self.endpoints = endpoints or Endpoints()
        self._line = Line(self.endpoints, self._leave)
        self.log = EndpointLog(name, clock, say)
        self.redactor = Redactor(key, *secrets)
        self.dialect = dialect
        self._key = key
        self._has_traced = False
        """Whether a reply came with its tokens, so that one that comes without them is no wrong setting."""
        self._clock = clock
        self._targets: dict[str, URL] = {}
        # Each guards that its endpoint gets one canary at a time.
        self._probing: dict[Endpoint, asyncio.Lock] = {}
        self._probes: set[asyncio.Task[None]] = set()
        self._change = asyncio.Event()
        """Set, and replaced, when those that wait for an endpoint are to look again."""
        self._client: HttpClient | None = None
        self.weights = weights
        self._updates = OneAtATime()
        self._bringing: dict[str, asyncio.Task[None]] = {}
        self.endpoints.on_change = self._changed
        self._stalls = StallWatch(
            endpoints=self.endpoints,
            stall_s=dialect.config.stall_s,
            clock=clock,
            page=lambda endpoint: self.page(endpoint, dialect.look_path),
            metrics=lambda endpoint, within_s: self._beside(endpoint, "/metrics", within_s),
            answers=self._answers,
            hangs=self._hangs,
            say=self.log.say,
        )

    @property
    def capacity(self) -> int:
        """The slots of the servers that take requests."""
        return self.endpoints.slots

    @property
    def lookahead(self) -> int:
        """The requests that wait for a slot, at best that of their conversation's home."""
        return self.endpoints.lookahead

    @property
    def isolates(self) -> bool:
        """Whether a suspect is served alone by one server while others serve the rest."""
        return self.endpoints.can_isolate

    def stuck(self, endpoint: Endpoint, why: str) -> None:
        """It hangs, and was set aside."""

    def resized(self) -> None:
        """Another set of servers is open."""

    async def open(self) -> None:
        """Make the connections' pool, in the running loop."""
        self._client = HttpClient(self.dialect.headers(self._key), self.redactor)

    async def close(self) -> None:
        """Close the connections; safe to call twice, and before `open`."""
        await self._stalls.close()
        tasks = {*self._probes, *self._bringing.values()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.weights is not None:
            self.weights.close()
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def add(self, url: str, *, slots: int | None = None, lane: str | None = None, gpu: str | None = None) -> None:
        """Send requests there too; a server that was reported down is up at once, without a canary or a rest.

        Where weights were updated, it is up once it has those. It has answered whoever adds it.
        """
        is_new = url not in self.endpoints
        if is_new:
            self.endpoints.add(Endpoint(url, slots=slots, lane=lane, gpu=gpu))
        if url in self._bringing or not (is_new or self.endpoints.at(url).is_held):
            return
        if self._version:
            self._bring(self.endpoints.at(url))
        else:
            self.report_up(url)

    @property
    def _version(self) -> int:
        """That of the weights that all servers are to have; 0 without an update."""
        return 0 if self.weights is None else self.weights.version

    async def update_weights(self, update: WeightUpdate) -> str | None:
        """Have all servers take weights; the digest of a trainer's, where a server kept them.

        Raises a WeightUpdateError, after which each has those that it had.

        A server that fails while others took them gets no requests until it has them.
        """
        return await self._updates.run(self._update(update))

    async def _update(self, update: WeightUpdate) -> str | None:
        if self.weights is None:
            raise WeightUpdateError("the servers of this model take no new weights")
        with redacting(self.redactor):
            asked = [endpoint.url for endpoint in self.endpoints.all if endpoint.is_up]
            missed = await self.weights.update(update, asked)
            for endpoint in self.endpoints.all:
                # One that came up meanwhile has other weights; one that rests is asked when it is tried again.
                if endpoint.is_up and (endpoint.url in missed or endpoint.url not in asked):
                    if (why := missed.get(endpoint.url)) is not None:
                        self.log.down(endpoint, f"it did not take the weights of version {update.version}: {why}")
                    self._bring(endpoint)
            return self.weights.digest

    def _bring(self, endpoint: Endpoint) -> None:
        """Keep requests from a server until it has the weights of the latest update."""
        endpoint.hold(f"it does not have the weights of version {self._version}")
        task = asyncio.create_task(self._brought(endpoint))
        self._bringing[endpoint.url] = task
        task.add_done_callback(partial(self._has_brought, endpoint.url))

    def _has_brought(self, url: str, task: asyncio.Task[None]) -> None:
        if self._bringing.get(url) is task:
            del self._bringing[url]

    async def _brought(self, endpoint: Endpoint) -> None:
        while (fault := await self._lack(endpoint)) is not None:
            self.log.down(endpoint, str(fault))
            await self._clock.sleep(BRING_PAUSE_S)
        self.log.up(endpoint)
        endpoint.report_up()

    async def _lack(self, endpoint: Endpoint) -> SendingError | None:
        """Have a server take the weights of the latest update; why it did not, None once it has them."""
        try:
            if self.weights is not None and self._version:
                await self.weights.bring(endpoint.url)
        except SendingError as fault:
            return fault
        except WeightUpdateError as fault:
            return SendingError(str(fault), standing=Standing.FAILING)
        return None

    def remove(self, url: str) -> None:
        """Send nothing there any more. Requests in flight there go on, or fail by themselves."""
        self._give_up(url)
        endpoint = self.endpoints.remove(url)
        self._targets.pop(url, None)
        self._probing.pop(endpoint, None)

    def report_up(self, url: str) -> None:
        """It works: requests are sent there from now on."""
        self.endpoints.at(url).report_up()

    def report_down(self, url: str, why: str) -> None:
        """Send nothing there until it is reported up. Requests in flight there go on."""
        self._give_up(url)
        self.endpoints.at(url).hold(why)

    def is_brought(self, url: str) -> bool:
        """Whether a server that is not up is about to get the weights that it lacks."""
        return url in self._bringing

    def _give_up(self, url: str) -> None:
        if (task := self._bringing.pop(url, None)) is not None:
            task.cancel()

    def destination(self, request: Request) -> Destination | None:
        """Where `request` would go now; None while no server is open."""
        endpoint = self.endpoints.peek(request.conversation, request.request_id, self._clock.monotonic_s())
        return None if endpoint is None else _destination(endpoint)

    async def generate(self, request: Request) -> Reply:
        """Send the request to one server. Raises a BackendError."""
        return await self.send(request)

    async def send(self, request: Request, lane: str | None = None) -> Reply:
        """Send the request to one server, or to that of `lane`. Raises a BackendError."""
        with redacting(self.redactor):
            if lane is not None:
                return await self._ask(self._taken(self._at_lane(lane)), request)
            if request.is_suspect:
                return await self._alone(request)
            since_s = self._clock.monotonic_s()
            endpoint = await self._endpoint_for(request)
            return await self._ask(endpoint, request, waited_s=self._clock.monotonic_s() - since_s)

    def _taken(self, endpoint: Endpoint) -> Endpoint:
        endpoint.begin(self._clock.monotonic_s())
        return endpoint

    def _at_lane(self, lane: str) -> Endpoint:
        for endpoint in self.endpoints.all:
            if endpoint.lane == lane and endpoint.is_up:
                return endpoint
        raise TransientBackendError(f"{lane} is not up any more", is_unreachable=not self.endpoints.is_any_up)

    async def _endpoint_for(self, request: Request) -> Endpoint:
        """An endpoint that takes any request, with a slot for it. Where all slots are full, it waits in line."""
        await self._try_resting()
        while True:
            now_s = self._clock.monotonic_s()
            endpoint = self.endpoints.choose(request.conversation, request.request_id, now_s)
            if endpoint is not None and endpoint.has_free_slot:
                return self._taken(endpoint)
            if not self.endpoints.is_any_up:
                raise self._none_up()
            with uncharged():
                endpoint = await self._line.join(request.conversation, request.request_id)
            if endpoint is not None:
                return endpoint

    async def _try_resting(self) -> None:
        """Send an endpoint whose rest is over its canary. Only if no other one is up does a request wait for that."""
        resting = self.endpoints.due(self._clock.monotonic_s())
        if resting is not None:
            probe = asyncio.create_task(self._probe(resting))
            self._probes.add(probe)
            probe.add_done_callback(self._probes.discard)
            if not self.endpoints.is_any_up:
                await probe

    async def _alone(self, request: Request) -> Reply:
        """Send a suspect to an endpoint that has nothing else in flight, and gets nothing else."""
        await self._try_resting()
        while True:
            endpoint = self.endpoints.reserve(request.request_id)
            if endpoint is None:
                with uncharged():
                    await self._until_change()
                continue
            try:
                with uncharged():
                    while endpoint.in_flight and endpoint.is_up:
                        await self._until_change()
                if endpoint.is_up:
                    return await self._ask(self._taken(endpoint), request)
            finally:
                self.endpoints.release(endpoint)

    async def _until_change(self) -> None:
        """Wait until another set of endpoints is open, or one has nothing in flight. Raises when none is up."""
        if not self.endpoints.is_any_up:
            raise self._none_up()
        await self._change.wait()

    def _changed(self) -> None:
        self._wake()
        self.resized()

    def _wake(self) -> None:
        self._line.change(self._clock.monotonic_s())
        change, self._change = self._change, asyncio.Event()
        change.set()

    async def _ask(self, endpoint: Endpoint, request: Request, *, waited_s: float = 0.0) -> Reply:
        """Send it, and give back its slot. A server that failed keeps the slot until it is judged."""
        version = self._version
        try:
            if self.weights is None:
                reply = await self._reply(endpoint, request)
            else:
                get = partial(self._beside, endpoint)
                sent = await self.weights.sent(endpoint.url, get)
                reply = await self._reply(endpoint, request)
                if reply.policy is None:
                    reply = replace(reply, policy=await self.weights.span(endpoint.url, sent, get))
            if reply.policy is not None and reply.policy.end < version:
                text = f"its weights are of version {reply.policy.end}, not {version}: it was restarted"
                raise SendingError(text, standing=Standing.DOUBTFUL)
            self._has_traced = self._has_traced or reply.trace is not None
            endpoint.proven.add(_SETTINGS(request.sampling))
            self._mark_answered(endpoint)
        except SendingError as fault:
            await self._judge(endpoint, fault, request)
            # No variable holds the error: it holds this frame, and both would wait for a collection with all they read.
            raise _at(endpoint, self._verdict(endpoint, fault, request)) from fault
        finally:
            self._leave(endpoint)
        self.endpoints.mark_done(request.request_id)
        timing = Timing(queue_s=waited_s, server=endpoint.url, lane=endpoint.lane, gpu=endpoint.gpu)
        return reply.timed(timing)

    async def _reply(self, endpoint: Endpoint, request: Request) -> Reply:
        """The server's reply. A request whose roles its chat template refuses is sent again, rewritten for it.

        Once that has helped, other requests to this server are written so from the start.
        """
        shape = first = endpoint.shape
        while True:
            answer = await self._send(endpoint, request, shape)
            try:
                reply = self._read(answer, request)
            except SendingError as fault:
                has_template, messages = self.dialect.has_template, request.prompt.messages
                following = shape_after(fault.refusal, shape, messages) if has_template else None
                if following is None:
                    raise
                shape = following
                continue
            if shape not in (first, endpoint.shape):  # Another request may have found the same meanwhile.
                endpoint.shape = shape
                self.log.reshaped(endpoint)
            return reply

    def _read(self, answer: Answer, request: Request) -> Reply:
        return read_answer(answer, request, self.dialect, now=self._clock.utc_now, redactor=self.redactor)

    async def _send(self, endpoint: Endpoint, request: Request, shape: ChatShape) -> Answer:
        sent_at_s = self._clock.monotonic_s()
        self._stalls.arm()
        try:
            answer = await self._started.post(
                self._target(endpoint),
                self.dialect.body(request, shape),
                request_id=request.request_id,
                deadline_s=self.dialect.config.timeout_s,
                under_way=endpoint.sendings,
            )
        except SendingError as fault:
            if fault.standing is Standing.HUNG:
                raise SendingError(endpoint.fault, standing=Standing.HUNG) from None
            raise
        except asyncio.CancelledError:
            # Usually the request's deadline, which counts against the endpoint if it had the time in which a server
            # answers. It may also be the end of the run, so no line is written.
            now_s = self._clock.monotonic_s()
            if now_s - sent_at_s >= CANARY_S_MAX and endpoint.count_failure():
                endpoint.set_aside(now_s)
            raise
        endpoint.silence.end(self._clock.monotonic_s())
        return answer

    def _leave(self, endpoint: Endpoint) -> None:
        """A request has left it: give the slot to the next one."""
        endpoint.in_flight -= 1
        self._line.fill(endpoint, self._clock.monotonic_s())
        if not endpoint.in_flight:
            self._wake()

    async def _judge(self, endpoint: Endpoint, fault: SendingError, request: Request) -> None:
        """What a fault changes for the endpoint it happened at."""
        match fault.standing:
            case Standing.SOUND | Standing.ANSWERED | Standing.RESTARTED:
                self._mark_answered(endpoint)
            case Standing.UNSENT | Standing.HUNG:
                pass
            case Standing.SHAKY:
                if endpoint.count_failure():
                    self._set_aside(endpoint, str(fault), pause_s=fault.retry_after_s)
            # A late fault of an endpoint that rests already says nothing new.
            case Standing.FAILING:
                if endpoint.count_failure() and endpoint.is_up:
                    await self._probe(endpoint)
            case Standing.REFUSING:
                # What all requests of an agent ask for may be what it refuses.
                is_new = _SETTINGS(request.sampling) not in endpoint.proven
                if (endpoint.count_refusal() or is_new) and endpoint.is_up:
                    await self._probe(endpoint, replace(request.sampling, seed=None))
            case Standing.GONE:
                self._set_aside(endpoint, str(fault))
            case Standing.DOUBTFUL | Standing.LATE:
                await self._probe(endpoint)
            case Standing.CUT_OFF:
                # All requests of a server that dies break at once: one canary is enough.
                if endpoint.is_up:
                    await self._probe(endpoint)

    def _verdict(self, endpoint: Endpoint, fault: SendingError, request: Request) -> BackendError:
        """The error for the scheduler. A request that goes elsewhere need not wait out this endpoint's pause."""
        text = f"{endpoint.label}: {fault}"
        if fault.verdict is Verdict.FAIL_RUN and not self._has_traced:
            return EngineDeadError(text)
        if fault.refusal is Refusal.FORM:
            return FormRefusedError(text)
        if self.endpoints.denials is not None:
            return self._none_up()
        if fault.verdict is Verdict.FAIL_CONVERSATION and endpoint.is_up:
            is_unknown = fault.standing is Standing.REFUSING and fault.refusal is None
            return RequestRefusedError(text + (worth_trying(self.dialect.remedy) if is_unknown else ""))
        if fault.standing is Standing.UNSENT:
            self.log.unsent(endpoint, str(fault))
            return TransientBackendError(text, is_busy=True)
        now_s = self._clock.monotonic_s()
        endpoint.paused_until_s = now_s + (fault.retry_after_s or 0.0)
        onward = self.endpoints.leave(request.conversation, endpoint, now_s, request.request_id)
        if fault.is_busy and endpoint.is_up:
            self.log.busy(endpoint, str(fault))
        has_ended = fault.standing in (Standing.CUT_OFF, Standing.HUNG) and not endpoint.is_up
        return TransientBackendError(
            text,
            retry_after_s=fault.retry_after_s if onward is Onward.BACK else None,
            is_unreachable=not self.endpoints.is_any_up,
            is_busy=fault.is_busy,
            is_engine_death=has_ended or fault.standing is Standing.RESTARTED,
            goes_elsewhere=onward is Onward.FRESH,
            has_answered=fault.standing is Standing.ANSWERED,
        )

    def _none_up(self) -> BackendError:
        """The error when no endpoint is up."""
        denials = self.endpoints.denials
        if denials is not None:
            is_refused = any(endpoint.refusals for endpoint in self.endpoints.all)
            return EngineDeadError(f"{'; '.join(denials)}{self.hint(is_refused=is_refused)}")
        due_in_s = self.endpoints.due_in_s(self._clock.monotonic_s())
        names = ", ".join(endpoint.label for endpoint in self.endpoints.all)
        why = "; ".join(f"{endpoint.label}: {endpoint.fault}" for endpoint in self.endpoints.all if endpoint.fault)
        text = f"none of {names} answers" if names else "it has no server now"
        text += f"; last fault of {why}" if why else ""
        return TransientBackendError(text, retry_after_s=due_in_s, is_unreachable=True)

    def hint(self, *, is_refused: bool) -> str:
        """What to check when a server denies or refuses every request."""
        dialect = self.dialect
        if is_refused:
            return worth_trying(dialect.remedy)
        variable = dialect.key_variable
        key = f"the key in ${variable}" if variable else "whether it asks for a key (api_key_env)"
        return f"; check {key}, the model's name and {dialect.address}"

    def _mark_answered(self, endpoint: Endpoint) -> None:
        if endpoint.mark_answered():
            self.log.up(endpoint)

    def _set_aside(self, endpoint: Endpoint, why: str, *, pause_s: float | None = None) -> None:
        endpoint.fault = why
        if endpoint.set_aside(self._clock.monotonic_s(), pause_s=pause_s):
            self.log.down(endpoint, why)

    def _hangs(self, endpoint: Endpoint, why: str) -> None:
        """Set a server that hangs aside, and cut off what it was sent. One that loads weights is silent, too."""
        probing = self._probing.get(endpoint)
        if self._updates.is_running or (probing is not None and probing.locked()):
            return
        self._set_aside(endpoint, why)
        now_s = asyncio.get_running_loop().time()
        for sending in endpoint.sendings:
            if not sending.expired():
                sending.reschedule(now_s)
        endpoint.sendings.clear()
        self.stuck(endpoint, why)

    async def _probe(self, endpoint: Endpoint, settings: Sampling | None = None) -> None:
        """Send a canary, and set the endpoint up or aside by it. Callers that come meanwhile share its result.

        One with `settings` shows whether every request with them is refused.
        """
        before = endpoint.probes
        async with self._probing.setdefault(endpoint, asyncio.Lock()):
            is_known = settings is None or _SETTINGS(settings) in endpoint.proven
            if endpoint.probes != before and (is_known or not endpoint.is_up):
                return
            fault = await self._first_look(endpoint)
            fault = fault or await self.canary(endpoint, settings) or await self._lack(endpoint)
            endpoint.probes += 1
            endpoint.fault = str(fault or "")
            is_of_settings = settings is not None and fault is not None and fault.standing is Standing.REFUSING
            if fault is None or (await self._is_alive(endpoint, fault, settings) and not is_of_settings):
                if settings is not None and fault is None:
                    endpoint.proven.add(_SETTINGS(settings))
                self._mark_answered(endpoint)
                return
            endpoint.denial = None if fault.verdict is Verdict.RETRY else f"{endpoint.url}: {fault}"
            if is_of_settings:
                endpoint.count_refusal()  # Another request may have been answered meanwhile.
                endpoint.denial = f"{endpoint.denial}; it refuses a single word with these settings of an agent as well"
            endpoint.rest_longer(self._clock.monotonic_s(), pause_s=fault.retry_after_s)
            if self.endpoints.denials is None:  # Otherwise the run ends, and says so.
                self.log.down(endpoint, str(fault))

    async def _first_look(self, endpoint: Endpoint) -> SendingError | None:
        """What is wrong with an endpoint that could not be looked at when the backend started; None if nothing is."""
        if endpoint.first_look is None:
            return None
        try:
            await endpoint.first_look()
        except SendingError as fault:
            return SendingError(
                str(fault), standing=Standing.DOUBTFUL, verdict=fault.verdict, retry_after_s=fault.retry_after_s
            )
        except EngineDeadError as fault:
            return SendingError(str(fault), standing=Standing.DOUBTFUL)
        except ConfigError as fault:
            if str(fault) != endpoint.fault:
                self.log.say(endpoint, f" cannot serve ({fault})")
            return SendingError(str(fault), standing=Standing.DOUBTFUL, verdict=Verdict.FAIL_CONVERSATION)
        endpoint.first_look = None
        return None

    async def canary(self, endpoint: Endpoint, settings: Sampling | None = None) -> SendingError | None:
        """Ask the endpoint for one token, or for a reply with these settings; None when it comes."""
        request = CANARY if settings is None else replace(CANARY, sampling=settings)
        try:
            self._read(await self._post_canary(endpoint, request), request)
        except SendingError as fault:
            return fault
        return None

    async def _post_canary(self, endpoint: Endpoint, request: Request = CANARY) -> Answer:
        return await self._started.post(
            self._target(endpoint),
            self.dialect.body(request, endpoint.shape),
            request_id=request.conversation,
            deadline_s=CANARY_S_MAX,
        )

    async def _is_alive(self, endpoint: Endpoint, fault: SendingError, settings: Sampling | None) -> bool:
        """Whether a server that did not answer the canary works all the same.

        One that refuses the canary may only object to a reply of one token; it refuses every request if it has refused
        several in a row as well. One that was asked for a reply with settings had just refused them, and may write on.
        """
        if fault.standing is Standing.LATE:
            return settings is not None or (self.dialect.queues and await self._answers(endpoint))
        if fault.standing is Standing.REFUSING:
            return endpoint.refusals < ENDPOINT_STRIKES_MAX
        if fault.standing is Standing.UNSENT:
            return endpoint.is_up
        return fault.standing in (Standing.SOUND, Standing.ANSWERED)

    async def page(self, endpoint: Endpoint, path: str) -> Answer:
        """A page of it. Raises SendingError."""
        return await self._started.get(URL(endpoint.url.rstrip("/") + path), deadline_s=CANARY_S_MAX)

    async def json(self, endpoint: Endpoint, path: str) -> JsonObject:
        """The JSON of a page of it. Raises SendingError."""
        return page_of(await self.page(endpoint, path), self.dialect, self._clock.utc_now(), self.redactor)

    async def _beside(self, endpoint: Endpoint, path: str, within_s: float) -> Answer:
        """A page of it that is beside its `/v1`."""
        return await self._started.get(URL(beside_v1(endpoint.url, path)), deadline_s=within_s)

    async def _answers(self, endpoint: Endpoint) -> bool:
        """Whether it answers the canary, whatever its status, or the page in its place."""
        try:
            if self.dialect.queues:
                return (await self.page(endpoint, self.dialect.look_path)).status == 200
            await self._post_canary(endpoint)
        except SendingError:
            return False
        return True

    def _target(self, endpoint: Endpoint) -> URL:
        target = self._targets.get(endpoint.url)
        if target is None:
            target = URL(endpoint.url.rstrip("/") + self.dialect.path)
            self._targets[endpoint.url] = target
        return target

    @property
    def _started(self) -> HttpClient:
        if self._client is None:
            raise EngineDeadError("this backend was not started, or it is closed")
        return self._client


def _at(endpoint: Endpoint, error: BackendError) -> BackendError:
    error.destination = _destination(endpoint)
    return error


def _destination(endpoint: Endpoint) -> Destination:
    return Destination(server=endpoint.url, lane=endpoint.lane, gpu=endpoint.gpu)
