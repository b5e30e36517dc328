"""A model behind servers that speak the OpenAI protocol, one or many that serve the same.

`data_plane` sends the requests. Here is what concerns servers that the experiment file lists: they are asked for their
models at the start, and the file is blamed for one that does not have ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from mac_runner.backends.openai.answer import NoModelError, SendingError, Standing, model_names
from mac_runner.backends.openai.data_plane import DataPlane
from mac_runner.backends.openai.endpoints import Endpoint, Endpoints
from mac_runner.backends.openai.settings import OpenaiConfig
from mac_runner.backends.openai.vllm_weights import VllmWeights
from mac_runner.backends.openai.weights import ServerWeights
from mac_runner.backends.redaction import redacting
from mac_runner.clock import Clock
from mac_runner.errors import ConfigError, EngineDeadError, Verdict, WeightUpdateError
from mac_runner.problems import CONFIG_NAMES_MAX
from mac_runner.types import Destination, Reply, Request
from mac_runner.weights import WeightUpdate

_NAMES_CHARS_MAX: Final = 2000
"""The length of a list of a server's models in an error."""


class OpenaiBackend:
    """One entry of `model_definitions` with the backend `openai`."""

    token_budget: int | None = None

    def __init__(
        self,
        name: str,
        config: OpenaiConfig,
        *,
        key: str | None,
        admin_key: str | None = None,
        has_tokens: bool,
        clock: Clock,
        say: Callable[[str], None],
    ) -> None:
        self._name = name
        self._config = config
        self._clock = clock
        endpoints = Endpoints(config.base_urls, in_flight_max=config.max_in_flight)
        self._lookahead = endpoints.lookahead
        self.plane = DataPlane(name, config, endpoints, key=key, has_tokens=has_tokens, clock=clock, say=say)
        directory = None if config.weights_dir is None else Path(config.weights_dir).expanduser()
        if admin_key is not None:
            self.plane.weights = ServerWeights(
                lambda _url: admin_key, directory, keeps_broadcasts=directory is not None
            )
        elif config.server == "vllm":
            self.plane.weights = VllmWeights(lambda _url: key, directory)

    @property
    def capacity(self) -> int:
        """As configured: a server takes what it is sent, and does not say how much it serves at once."""
        return self._config.max_in_flight

    @property
    def lookahead(self) -> int:
        """For several servers: the requests that wait for a slot, at best that of their conversation's home."""
        return self._lookahead

    @property
    def isolates(self) -> bool:
        """Whether a suspect is served alone by one server while others serve the rest."""
        return self.plane.isolates

    @property
    def update_obstacle(self) -> str | None:
        """What the servers need for updates of their weights; after `start`, also what they have said."""
        if self.plane.weights is not None:
            return self.plane.weights.obstacle
        return (
            "only mac-serve and vLLM's server take new weights: for mac-serve set openai_config.admin_key_env, the "
            "variable with the key of its --admin-key-env; for vLLM set openai_config.server: vllm"
        )

    async def update_weights(self, update: WeightUpdate) -> str | None:
        """Have all servers take weights. One that fails, while others took them, gets no requests until it has."""
        return await self.plane.update_weights(update)

    def destination(self, request: Request) -> Destination | None:
        """The server that `request` would go to now."""
        return self.plane.destination(request)

    async def generate(self, request: Request) -> Reply:
        """Send the request to one server. Raises a BackendError."""
        return await self.plane.generate(request)

    async def start(self) -> None:
        """Ask each server for its models. Raises ConfigError, or EngineDeadError when none answers."""
        with redacting(self.plane.redactor):
            await self.plane.open()
            async with asyncio.TaskGroup() as group:
                looks = {endpoint: group.create_task(self._look(endpoint)) for endpoint in self.plane.endpoints.all}
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
                self.plane.log.silent(endpoint, why)
            for endpoint in looks.keys() - silent.keys():
                await self._check_admin(endpoint)

    async def _check_admin(self, endpoint: Endpoint) -> None:
        """Raise ConfigError where the key for updates is not the server's, or its weights cannot be known."""
        try:
            if self.plane.weights is not None:
                await self.plane.weights.check(endpoint.url)
        except (SendingError, WeightUpdateError) as fault:
            place = "base_urls" if isinstance(self.plane.weights, VllmWeights) else "admin_key_env"
            key = ("model_definitions", self._name, "openai_config", place)
            raise ConfigError(f"{'.'.join(key)}: {fault}", key=key) from fault

    async def _look(self, endpoint: Endpoint) -> SendingError | None:
        """What is wrong with an endpoint at the start; None when it serves the model.

        Some servers list no models, or not for every key: there a canary decides.
        """
        try:
            answer = await self.plane.page(endpoint, "/models")
            names = model_names(answer, self._clock.utc_now(), self.plane.redactor)
        except SendingError as fault:
            return fault if fault.verdict is Verdict.RETRY else await self.plane.canary(endpoint)
        if self._config.model in names:
            return None
        known = self.plane.redactor.quoted(", ".join(sorted(names)[:CONFIG_NAMES_MAX]), _NAMES_CHARS_MAX) or "none"
        text = f"it has no model {self._config.model!r}; it has: {known}"
        return NoModelError(text, standing=Standing.DOUBTFUL, verdict=Verdict.FAIL_CONVERSATION)

    def _misconfigured(self, endpoint: Endpoint, fault: SendingError) -> ConfigError:
        urls, text = self._config.base_urls, str(fault)
        place: tuple[str | int, ...] = ("model",)
        if not (isinstance(fault, NoModelError) and len(urls) == 1):
            text += self.plane.hint(is_refused=fault.standing is Standing.REFUSING)
            # The place of a single URL in the file's list is not known: it may come from a longer one.
            place = ("base_urls",) if len(urls) == 1 else ("base_urls", urls.index(endpoint.url))
        key = ("model_definitions", self._name, "openai_config", *place)
        return ConfigError(f"{'.'.join(map(str, key))}: {endpoint.url}: {text}", key=key)

    async def close(self) -> None:
        """Close the connections."""
        await self.plane.close()
