"""A model behind servers that the experiment file lists, one or many that serve the same.

`data_plane` sends the requests. Here is what concerns the file: each server is asked for the model at the start, and
the file is blamed for one that does not have it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from yarl import URL

from mac_runner.backends.http.answer import Dialect, NoModelError, SendingError, Standing
from mac_runner.backends.http.data_plane import DataPlane
from mac_runner.backends.http.endpoints import Endpoint, Endpoints
from mac_runner.backends.http.weights import ServerWeights, VllmWeights
from mac_runner.backends.redaction import redacting
from mac_runner.clock import Clock
from mac_runner.errors import ConfigError, EngineDeadError, Verdict, WeightUpdateError

_AWAY: Final = frozenset({Standing.GONE, Standing.LATE, Standing.CUT_OFF, Standing.UNSENT})
"""The faults of a server that gave no answer at all."""


_THIS_MACHINE: Final = frozenset({"localhost", "::1"})


def _server_at(url: str) -> str:
    """The URL of a server, the same for each of its names that can be told without asking."""
    found = URL(url.rstrip("/"))
    return str(found.with_host("127.0.0.1") if found.host in _THIS_MACHINE else found)


def _trouble(fault: SendingError) -> str:
    """What is wrong with a server at the start."""
    return f"{'does not answer' if fault.standing in _AWAY else 'cannot serve'} ({fault})"


class HttpBackend(DataPlane):
    """One entry of `model_definitions` whose servers speak a dialect."""

    def __init__(
        self,
        name: str,
        dialect: Dialect,
        *,
        key: str | None,
        weights: ServerWeights | None = None,
        clock: Clock,
        say: Callable[[str], None],
    ) -> None:
        """Raises ConfigError for a server listed twice."""
        endpoints = Endpoints(dialect.servers, in_flight_max=dialect.config.max_in_flight)
        super().__init__(name, dialect, endpoints, key=key, weights=weights, clock=clock, say=say)
        self._lookahead = endpoints.lookahead
        listed: dict[str, str] = {}
        for index, url in enumerate(dialect.servers):
            server = _server_at(url)
            if (first := listed.get(server)) is not None:
                how = "twice" if first == url else f"twice, first as {first!r}"
                raise self.error(f"{url!r} is listed {how}", dialect.urls, index)
            listed[server] = url

    @property
    def capacity(self) -> int:
        """As configured: a server takes what it is sent, and does not say how much it serves at once."""
        return self.dialect.config.max_in_flight

    @property
    def lookahead(self) -> int:
        return self._lookahead

    @property
    def update_obstacle(self) -> str | None:
        """What the servers need for updates of their weights; after `start`, also what they have said."""
        if self.weights is not None:
            return self.weights.obstacle
        return (
            "only mac-serve and vLLM's server take new weights, behind the backend openai: for mac-serve set "
            "openai_config.admin_key_env, the variable with the key of its --admin-key-env; for vLLM set "
            "openai_config.server: vllm"
        )

    async def start(self) -> None:
        """Ask each server for the model. Raises ConfigError, or EngineDeadError when none answers."""
        with redacting(self.redactor):
            await self.open()
            looks = await asyncio.gather(*map(self.look, self.endpoints.all), return_exceptions=True)
            unfit: dict[Endpoint, SendingError] = {}
            for endpoint, fault in zip(self.endpoints.all, looks, strict=True):
                endpoint.first_look = None
                if isinstance(fault, SendingError) and fault.verdict is Verdict.RETRY:
                    unfit[endpoint] = fault
                    endpoint.first_look = partial(self.look, endpoint)
                    endpoint.set_aside(self._clock.monotonic_s())
                elif isinstance(fault, SendingError):
                    raise self._misconfigured(endpoint, fault)
                elif fault is not None:
                    raise fault
            if len(unfit) == len(looks):
                faults = "; ".join(f"{endpoint.url} {_trouble(fault)}" for endpoint, fault in unfit.items())
                is_any_away = any(fault.standing in _AWAY for fault in unfit.values())
                advice = self.dialect.starting if is_any_away else "mend that"
                verb = "correct" if self._is_listed else "set"
                raise EngineDeadError(
                    f"{faults}; {advice}, or {verb} {self.dialect.urls}, and run the same command again"
                )
            for endpoint, fault in unfit.items():
                self.log.unfit(endpoint, _trouble(fault))
            for endpoint in self.endpoints.all:
                if endpoint not in unfit:
                    await self._check_weights(endpoint)

    async def _check_weights(self, endpoint: Endpoint) -> None:
        """Raise ConfigError where the key for updates is not the server's, or its weights cannot be known."""
        try:
            if self.weights is not None:
                await self.weights.check(endpoint.url)
        except (SendingError, WeightUpdateError) as fault:
            place = "base_urls" if isinstance(self.weights, VllmWeights) else "admin_key_env"
            raise self.error(str(fault), place) from fault

    async def look(self, endpoint: Endpoint) -> None:
        """Raise SendingError for what is wrong with a server at the start.

        Some servers list no models, or not for every key: there a canary decides. One that is busy is there.
        """
        try:
            lack = self.dialect.lack(await self.json(endpoint, self.dialect.look_path), self.redactor)
        except SendingError as fault:
            found = fault if fault.verdict is Verdict.RETRY else await self.canary(endpoint)
            if found is not None and not found.is_busy:
                raise found from None
            return
        if lack is not None:
            raise NoModelError(lack, standing=Standing.DOUBTFUL, verdict=Verdict.FAIL_CONVERSATION)

    def _misconfigured(self, endpoint: Endpoint, fault: SendingError) -> ConfigError:
        urls, text = self.dialect.servers, str(fault)
        place: tuple[str | int, ...] = ("model",)
        if not (isinstance(fault, NoModelError) and len(urls) == 1):
            text += self.hint(is_refused=fault.standing is Standing.REFUSING)
            # The place of a single URL in the file's list is not known: it may come from a longer one.
            place = (self.dialect.urls,) if len(urls) == 1 else (self.dialect.urls, urls.index(endpoint.url))
            place = place if self._is_listed else ()
        return self.error(f"{endpoint.url}: {text}", *place)

    @property
    def _is_listed(self) -> bool:
        """Whether the file says where the servers are; else the setting has its default."""
        return self.dialect.urls in self.dialect.config.model_fields_set

    def error(self, text: str, *setting: str | int) -> ConfigError:
        return ConfigError.at(("model_definitions", self.name, self.dialect.section, *setting), text)
