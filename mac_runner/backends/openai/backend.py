"""A model behind servers that speak the OpenAI protocol, one or many that serve the same.

Each request is sent once. The scheduler decides whether it is sent again; this backend decides whether the endpoint it
failed at is set aside, while others take its work. Whether an endpoint works is decided by a completion alone, never by
a health page: that of a request, or of a canary of one token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from yarl import URL

from mac_runner.backends.openai.answer import Answer, NoModelError, SendingError, Standing, model_names, read_answer
from mac_runner.backends.openai.connection import HttpClient
from mac_runner.backends.openai.endpoints import (
    CANARY_S_MAX,
    ENDPOINT_STRIKES_MAX,
    Endpoint,
    EndpointLog,
    Endpoints,
)
from mac_runner.backends.openai.request_body import BodyWriter
from mac_runner.backends.openai.settings import OpenaiConfig
from mac_runner.backends.redaction import Redactor, redacting
from mac_runner.clock import Clock
from mac_runner.errors import (
    BackendError,
    ConfigError,
    EngineDeadError,
    FormRefusedError,
    RequestRefusedError,
    TransientBackendError,
    Verdict,
)
from mac_runner.problems import CONFIG_NAMES_MAX
from mac_runner.types import Reply, Request

_NAMES_CHARS_MAX: Final = 2000
"""The length of a list of a server's models in an error."""
_PATHS: Final = {"chat": "/chat/completions", "completions": "/completions"}


class OpenaiBackend:
    """One entry of `model_definitions` with the backend `openai`."""

    token_budget: int | None = None
    lookahead: int = 0

    def __init__(
        self,
        name: str,
        config: OpenaiConfig,
        *,
        key: str | None,
        has_tokens: bool,
        clock: Clock,
        say: Callable[[str], None],
    ) -> None:
        self._name = name
        self._config = config
        self._key = key
        self._redactor = Redactor(key)
        self._has_tokens = has_tokens
        self._clock = clock
        self._log = EndpointLog(name, clock, say)
        self._writer = BodyWriter(config=config, has_tokens=has_tokens)
        self._endpoints = Endpoints(config.base_urls)
        self._targets = {endpoint: _url(endpoint, _PATHS[config.endpoint]) for endpoint in self._endpoints.all}
        # Each guards that its endpoint gets one canary at a time.
        self._probing = {endpoint: asyncio.Lock() for endpoint in self._endpoints.all}
        self._client: HttpClient | None = None

    @property
    def capacity(self) -> int:
        """As configured: a server takes what it is sent, and does not say how much it serves at once."""
        return self._config.max_in_flight

    async def generate(self, request: Request) -> Reply:
        """Send the request to one endpoint. Raises a BackendError."""
        with redacting(self._redactor):
            body = self._writer.body(request)
            endpoint = await self._endpoint_for(request.conversation)
            try:
                answer = await self._send(endpoint, body, request.request_id)
                reply = read_answer(
                    answer,
                    has_tokens=self._has_tokens,
                    is_held=request.prompt.is_constrained,
                    now=self._clock.utc_now(),
                    redactor=self._redactor,
                )
            except SendingError as fault:
                await self._judge(endpoint, fault)
                raise self._verdict(endpoint, fault, request.conversation) from fault
            self._mark_answered(endpoint)
            return reply

    async def _endpoint_for(self, conversation: str) -> Endpoint:
        """An endpoint that is up. An endpoint whose rest is over gets its canary first."""
        resting = self._endpoints.due(self._clock.monotonic_s())
        if resting is not None:
            await self._probe(resting)
        endpoint = self._endpoints.choose(conversation)
        if endpoint is None:
            raise self._none_up()
        return endpoint

    async def _send(self, endpoint: Endpoint, body: bytes, request_id: str) -> Answer:
        endpoint.in_flight += 1
        sent_at_s = self._clock.monotonic_s()
        try:
            return await self._started.post(
                self._targets[endpoint], body, request_id=request_id, deadline_s=self._config.timeout_s
            )
        except asyncio.CancelledError:
            # Usually the request's deadline, which counts against the endpoint if it had the time in which a server
            # answers. It may also be the end of the run, so no line is written.
            now_s = self._clock.monotonic_s()
            if now_s - sent_at_s >= CANARY_S_MAX and endpoint.count_failure():
                endpoint.set_aside(now_s)
            raise
        finally:
            endpoint.in_flight -= 1

    async def _judge(self, endpoint: Endpoint, fault: SendingError) -> None:
        """What a fault changes for the endpoint it happened at."""
        match fault.standing:
            case Standing.SOUND:
                self._mark_answered(endpoint)
            case Standing.UNSENT:
                pass
            case Standing.SHAKY:
                if endpoint.count_failure():
                    self._set_aside(endpoint, str(fault), pause_s=fault.retry_after_s)
            # A late fault of an endpoint that rests already says nothing new.
            case Standing.FAILING:
                if endpoint.count_failure() and endpoint.is_up:
                    await self._probe(endpoint)
            case Standing.REFUSING:
                if endpoint.count_refusal() and endpoint.is_up:
                    await self._probe(endpoint)
            case Standing.GONE:
                self._set_aside(endpoint, str(fault))
            case Standing.DOUBTFUL:
                await self._probe(endpoint)
            case Standing.CUT_OFF:
                # All requests of a server that dies break at once: one canary is enough.
                if endpoint.is_up:
                    await self._probe(endpoint)

    def _verdict(self, endpoint: Endpoint, fault: SendingError, conversation: str) -> BackendError:
        """The error for the scheduler. A request that goes elsewhere need not wait out this endpoint's pause."""
        text = f"{endpoint.url}: {fault}"
        if fault.verdict is Verdict.FAIL_RUN:
            return EngineDeadError(text)
        if fault.refuses_form:
            return FormRefusedError(text)
        if self._endpoints.denials is not None:
            return self._none_up()
        if fault.verdict is Verdict.FAIL_CONVERSATION and endpoint.is_up:
            return RequestRefusedError(text)
        if fault.standing is Standing.UNSENT:
            self._log.unsent(endpoint, str(fault))
            return TransientBackendError(text, is_busy=True)
        now_s = self._clock.monotonic_s()
        endpoint.paused_until_s = now_s + (fault.retry_after_s or 0.0)
        goes_elsewhere = self._endpoints.leave(conversation, endpoint, now_s)
        if fault.is_busy and endpoint.is_up:
            self._log.busy(endpoint, str(fault))
        return TransientBackendError(
            text,
            retry_after_s=None if goes_elsewhere else fault.retry_after_s,
            is_unreachable=not self._endpoints.is_any_up,
            is_busy=fault.is_busy,
            is_engine_death=fault.standing is Standing.CUT_OFF and not endpoint.is_up,
        )

    def _none_up(self) -> BackendError:
        """The error when no endpoint is up."""
        denials = self._endpoints.denials
        if denials is not None:
            is_refused = any(endpoint.refusals for endpoint in self._endpoints.all)
            return EngineDeadError(f"{'; '.join(denials)}{self._hint(is_refused=is_refused)}")
        due_in_s = self._endpoints.due_in_s(self._clock.monotonic_s())
        why = "; ".join(f"{endpoint.url}: {endpoint.fault}" for endpoint in self._endpoints.all if endpoint.fault)
        text = f"none of {', '.join(self._config.base_urls)} answers" + (f"; last fault of {why}" if why else "")
        return TransientBackendError(text, retry_after_s=due_in_s, is_unreachable=True)

    def _hint(self, *, is_refused: bool) -> str:
        """What to check when a server denies or refuses every request."""
        if is_refused:
            return "; check what the agents' settings, reply_limit_parameter and schemas ask of this server"
        variable = self._config.api_key_env
        key = f"the key in ${variable}" if variable else "whether it asks for a key (api_key_env)"
        return f"; check {key}, the model's name and that the base_url has its path (usually /v1)"

    def _mark_answered(self, endpoint: Endpoint) -> None:
        if endpoint.mark_answered():
            self._log.up(endpoint)

    def _set_aside(self, endpoint: Endpoint, why: str, *, pause_s: float | None = None) -> None:
        endpoint.fault = why
        if endpoint.set_aside(self._clock.monotonic_s(), pause_s=pause_s):
            self._log.down(endpoint, why)

    async def _probe(self, endpoint: Endpoint) -> None:
        """Send a canary, and set the endpoint up or aside by it. Callers that come meanwhile share its result."""
        before = endpoint.probes
        async with self._probing[endpoint]:
            if endpoint.probes != before:
                return
            fault = await self._canary(endpoint)
            endpoint.probes += 1
            endpoint.fault = str(fault or "")
            if fault is None or self._is_alive(endpoint, fault):
                self._mark_answered(endpoint)
                return
            endpoint.denial = None if fault.verdict is Verdict.RETRY else f"{endpoint.url}: {fault}"
            endpoint.rest_longer(self._clock.monotonic_s(), pause_s=fault.retry_after_s)
            if self._endpoints.denials is None:  # Otherwise the run ends, and says so.
                self._log.down(endpoint, str(fault))

    async def _canary(self, endpoint: Endpoint) -> SendingError | None:
        """Ask the endpoint for one token; None when it comes."""
        try:
            answer = await self._started.post(
                self._targets[endpoint], self._writer.canary(), request_id="canary", deadline_s=CANARY_S_MAX
            )
            read_answer(answer, has_tokens=False, now=self._clock.utc_now(), redactor=self._redactor)
        except SendingError as fault:
            return fault
        return None

    @staticmethod
    def _is_alive(endpoint: Endpoint, fault: SendingError) -> bool:
        """Whether a server that did not answer the canary works all the same.

        One that refuses the canary may only object to a reply of one token; it refuses every request if it has refused
        several in a row as well.
        """
        if fault.standing is Standing.REFUSING:
            return endpoint.refusals < ENDPOINT_STRIKES_MAX
        if fault.standing is Standing.UNSENT:
            return endpoint.is_up
        return fault.standing is Standing.SOUND

    async def start(self) -> None:
        """Ask each server for its models. Raises ConfigError, or EngineDeadError when none answers."""
        with redacting(self._redactor):
            self._client = HttpClient(self._key, self._redactor)
            async with asyncio.TaskGroup() as group:
                looks = {endpoint: group.create_task(self._look(endpoint)) for endpoint in self._endpoints.all}
            silent: dict[Endpoint, str] = {}
            for endpoint, look in looks.items():
                fault = look.result()
                if fault is not None and fault.verdict is not Verdict.RETRY:
                    raise self._misconfigured(endpoint, fault)
                if fault is not None:
                    silent[endpoint] = str(fault)
                    endpoint.set_aside(self._clock.monotonic_s())
            if len(silent) == len(looks):
                faults = "; ".join(f"{endpoint.url} does not answer ({why})" for endpoint, why in silent.items())
                raise EngineDeadError(
                    f"{faults}; start the server, or correct base_urls, and run the same command again"
                )
            for endpoint, why in silent.items():
                self._log.silent(endpoint, why)

    async def _look(self, endpoint: Endpoint) -> SendingError | None:
        """What is wrong with an endpoint at the start; None when it serves the model.

        Some servers list no models, or not for every key: there a canary decides.
        """
        try:
            answer = await self._started.get(_url(endpoint, "/models"), deadline_s=CANARY_S_MAX)
            names = model_names(answer, self._clock.utc_now(), self._redactor)
        except SendingError as fault:
            return fault if fault.verdict is Verdict.RETRY else await self._canary(endpoint)
        if self._config.model in names:
            return None
        known = self._redactor.quoted(", ".join(sorted(names)[:CONFIG_NAMES_MAX]), _NAMES_CHARS_MAX) or "none"
        text = f"it has no model {self._config.model!r}; it has: {known}"
        return NoModelError(text, standing=Standing.DOUBTFUL, verdict=Verdict.FAIL_CONVERSATION)

    def _misconfigured(self, endpoint: Endpoint, fault: SendingError) -> ConfigError:
        urls, text = self._config.base_urls, str(fault)
        place: tuple[str | int, ...] = ("model",)
        if not (isinstance(fault, NoModelError) and len(urls) == 1):
            text += self._hint(is_refused=fault.standing is Standing.REFUSING)
            # The place of a single URL in the file's list is not known: it may come from a longer one.
            place = ("base_urls",) if len(urls) == 1 else ("base_urls", urls.index(endpoint.url))
        key = ("model_definitions", self._name, "openai_config", *place)
        return ConfigError(f"{'.'.join(map(str, key))}: {endpoint.url}: {text}", key=key)

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.close()

    @property
    def _started(self) -> HttpClient:
        assert self._client is not None, "the backend was never started"
        return self._client


def _url(endpoint: Endpoint, path: str) -> URL:
    return URL(endpoint.url.rstrip("/") + path)
