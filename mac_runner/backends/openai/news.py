"""What a user is told of servers that come and go while a run lasts."""

from __future__ import annotations

import math
from collections.abc import Callable

from mac_runner.backends.openai.endpoints import Endpoint
from mac_runner.clock import Clock
from mac_runner.limits import ENDPOINT_SAY_INTERVAL_S


class News:
    """Tells when a server is set aside, when it is back, and that it turns requests away.

    The first and the last it says of one server at most once every ENDPOINT_SAY_INTERVAL_S.
    """

    def __init__(self, name: str, clock: Clock, say: Callable[[str], None]) -> None:
        self._name = name
        self._clock = clock
        self._say = say
        self._down_at_s: dict[Endpoint, float] = {}
        self._busy_at_s: dict[Endpoint, float] = {}
        self._down: set[Endpoint] = set()

    def silent(self, endpoint: Endpoint, why: str) -> None:
        """It is set aside from the start."""
        self._tell_down(endpoint, f"does not answer ({why}); it is tried again while the others serve")

    def down(self, endpoint: Endpoint, why: str) -> None:
        """It is set aside, or was looked at once more and stays there."""
        if endpoint in self._down:
            return
        if self._is_time(self._down_at_s, endpoint):
            self._tell_down(endpoint, f"is set aside ({why}); it is tried again now and then")

    def up(self, endpoint: Endpoint) -> None:
        """It was set aside, and serves again: told where the other was told."""
        if endpoint in self._down:
            self._down.remove(endpoint)
            self._say(f"model {self._name}: {endpoint.url} serves again")

    def busy(self, endpoint: Endpoint, why: str) -> None:
        """It turned a request away, which will be sent again."""
        if self._is_time(self._busy_at_s, endpoint):
            self._busy_at_s[endpoint] = self._clock.monotonic_s()
            self._say(f"model {self._name}: {endpoint.url} turns requests away ({why}); they are sent again")

    def unsent(self, endpoint: Endpoint, why: str) -> None:
        """A request could not be sent to it, and will be sent again."""
        if self._is_time(self._busy_at_s, endpoint):
            self._busy_at_s[endpoint] = self._clock.monotonic_s()
            self._say(f"model {self._name}: {endpoint.url}: {why}; its requests are sent again")

    def _tell_down(self, endpoint: Endpoint, text: str) -> None:
        self._down.add(endpoint)
        self._down_at_s[endpoint] = self._clock.monotonic_s()
        self._say(f"model {self._name}: {endpoint.url} {text}")

    def _is_time(self, told_at_s: dict[Endpoint, float], endpoint: Endpoint) -> bool:
        """Whether something that was told of an endpoint at `told_at_s` may be told once more."""
        return self._clock.monotonic_s() - told_at_s.get(endpoint, -math.inf) >= ENDPOINT_SAY_INTERVAL_S
