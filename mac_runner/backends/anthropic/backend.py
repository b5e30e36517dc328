"""A Claude model behind Anthropic's Messages API, through its official client.

At the start the API is asked for the model. So a missing key or model is an error before the first request. Where a
gateway has no list of models, it is asked for one token instead.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Final

from mac_runner.backends.anthropic.client import anthropic
from mac_runner.backends.anthropic.connection import client_of
from mac_runner.backends.anthropic.errors import (
    DeniedError,
    UnknownModelError,
    UnusableReplyError,
    refusal,
    status_inside,
    verdicts,
)
from mac_runner.backends.anthropic.settings import AnthropicConfig
from mac_runner.backends.anthropic.translation import decoded, parameters_of, reply_of
from mac_runner.backends.http_errors import error_body_in
from mac_runner.backends.redaction import Redactor, redacting
from mac_runner.backends.refusals import AnsweredError, ChatTemplate
from mac_runner.clock import Clock
from mac_runner.errors import (
    ConfigError,
    EngineDeadError,
    FormRefusedError,
    RequestRefusedError,
    TransientBackendError,
)
from mac_runner.types import JsonObject, Message, Prompt, Reply, Request, Sampling, Turn

ANTHROPIC_LOOK_S_MAX: Final = 30.0
"""How long the API may take to say whether it has a model, or to make one token."""

_TURN: Final = Turn(round=0, agent="canary", model="canary", place=0)
_CANARY: Final = Prompt(messages=(Message(role="user", content="Hi"),))


class AnthropicBackend:
    """One entry of `model_definitions` with the backend `anthropic`."""

    token_budget: int | None = None
    lookahead: int = 0

    def __init__(self, name: str, config: AnthropicConfig, *, key: str, clock: Clock) -> None:
        self._section = ("model_definitions", name, "anthropic_config")
        self._config = config
        self._key = key
        self._redactor = Redactor(key)
        self._clock = clock
        self._template = ChatTemplate()
        self._client: anthropic.AsyncAnthropic | None = None
        self._proven: set[Sampling] = set()
        """Settings of agents that the API has answered a request with."""

    @property
    def capacity(self) -> int:
        """As configured: the API limits requests and tokens of a minute, not requests at once."""
        return self._config.max_in_flight

    async def generate(self, request: Request) -> Reply:
        """One reply. The seed is not sent: the API has none."""
        with redacting(self._redactor):
            if self._client is None:
                raise EngineDeadError("this backend was not started")
            try:
                reply = await self._template.ask(request, partial(self._reply, self._client))
            except AnsweredError as error:
                return error.reply
            except FormRefusedError as error:
                if request.prompt.schema is not None:
                    raise
                raise RequestRefusedError(str(error)) from error
            except DeniedError as error:
                if await self._denies_all(self._client):
                    raise
                raise RequestRefusedError(str(error)) from error
            except UnusableReplyError:
                raise
            except RequestRefusedError as error:
                if await self._refuses_all(self._client, request.sampling):
                    raise EngineDeadError(
                        f"{error}; it refuses a single word with these settings of an agent as well"
                    ) from error
                raise
            self._proven.add(_settings_of(request.sampling))
            return reply

    async def _reply(self, client: anthropic.AsyncAnthropic, request: Request) -> Reply:
        config = self._config
        # Built outside `verdicts`, which takes every error for the server's.
        parameters = parameters_of(request, config)
        try:
            async with asyncio.timeout(config.timeout_s):
                with verdicts(config.base_url, self._redactor):
                    answer = await client.messages.with_raw_response.create(**parameters)
                    content = answer.http_response.content
        except TimeoutError:
            raise TransientBackendError(f"no answer from {config.base_url} within {config.timeout_s:g} s") from None
        body = decoded(content, self._redactor)
        if body.get("type") == "error" or ("error" in body and "content" not in body):
            raise self._error_inside(body)
        return reply_of(body, self._redactor)

    def _error_inside(self, body: JsonObject) -> Exception:
        """The error in an answer with status 200, which concerns this request alone, whatever it says."""
        error = error_body_in(body, self._redactor)
        found = refusal(status_inside(error), error, self._config.base_url)
        if isinstance(found, TransientBackendError):
            found.has_answered, found.is_unreachable = True, False
        elif not isinstance(found, AnsweredError | FormRefusedError):
            return UnusableReplyError(str(found))
        return found

    async def _denies_all(self, client: anthropic.AsyncAnthropic) -> bool:
        """Whether a single word is denied too, so that it was not just a gateway's filter that objected to a prompt."""
        try:
            async with asyncio.timeout(ANTHROPIC_LOOK_S_MAX):
                await self._reply(client, _canary(Sampling(max_tokens=1)))
        except DeniedError:
            return True
        except (TimeoutError, RequestRefusedError, TransientBackendError):
            return False
        return False

    async def _refuses_all(self, client: anthropic.AsyncAnthropic, sampling: Sampling) -> bool:
        """Whether an agent's settings are at fault for a refusal, and no request with them will be answered."""
        if _settings_of(sampling) in self._proven:
            return False
        try:
            async with asyncio.timeout(ANTHROPIC_LOOK_S_MAX):
                await self._reply(client, _canary(sampling))
        except RequestRefusedError:
            return True
        except (TimeoutError, TransientBackendError):
            return False
        self._proven.add(_settings_of(sampling))
        return False

    async def start(self) -> None:
        """Find the model. Raises ConfigError, or EngineDeadError when the API does not answer."""
        with redacting(self._redactor):
            await self.close()
            url = self._config.base_url
            version = self._config.api_version
            self._client = client_of(url, version=version, key=self._key, redactor=self._redactor, clock=self._clock)
            try:
                async with asyncio.timeout(ANTHROPIC_LOOK_S_MAX):
                    await self._look(self._client)
            except TimeoutError:
                raise EngineDeadError(f"{url} did not answer within {ANTHROPIC_LOOK_S_MAX:g} s") from None
            except UnknownModelError as error:
                text = f"{error}; check the model's name, and that base_url has no /v1"
                raise self._misconfigured("model", text) from error
            except DeniedError as error:
                text = f"{error}; check the key in ${self._config.api_key_env}, and what its account may do"
                raise self._misconfigured("api_key_env", text) from error
            except RequestRefusedError:
                pass  # It is there, and objects to this question alone.
            except TransientBackendError as error:
                if not error.is_busy:
                    raise EngineDeadError(f"{error}; check base_url, and run the same command again") from error

    async def _look(self, client: anthropic.AsyncAnthropic) -> None:
        """Raises a BackendError unless the API has the model."""
        try:
            with verdicts(self._config.base_url, self._redactor):
                await client.models.with_raw_response.retrieve(self._config.model)
        except UnknownModelError:
            await self._reply(client, _canary(Sampling(max_tokens=1)))

    def _misconfigured(self, setting: str, text: str) -> ConfigError:
        key = (*self._section, setting)
        return ConfigError(f"{'.'.join(key)}: {text}", key=key)

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()


def _canary(sampling: Sampling) -> Request:
    return Request(conversation="canary", turn=_TURN, prompt=_CANARY, sampling=sampling)


def _settings_of(sampling: Sampling) -> Sampling:
    """What requests of one agent have in common."""
    return replace(sampling, seed=None)
