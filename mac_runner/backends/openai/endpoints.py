"""The endpoints of a model: where the next request goes, and what the user reads about them.

A conversation stays with its endpoint, where its prefix is cached; a new one goes to the endpoint with the least in
flight. A request that was not answered goes to another endpoint next, if there is one: otherwise an endpoint that fails
at once would always have the least in flight. An endpoint that keeps failing is set aside, and its conversations go on
at the others. After a rest, which doubles each time, it is due: one small request (the canary) then decides whether it
is up again.

`Endpoints` is pure: the caller passes the time. `EndpointLog` writes the lines about endpoints that come and go.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from mac_runner.clock import Clock

CANARY_S_MAX: Final = 10.0
ENDPOINT_STRIKES_MAX: Final = 3
ENDPOINT_REST_S: Final = 1.0
ENDPOINT_REST_S_MAX: Final = 30.0
ENDPOINT_PAUSE_S_MAX: Final = 30.0
ENDPOINT_CONVERSATIONS_MAX: Final = 65_536
"""How many conversations are remembered to have their home at an endpoint."""
ENDPOINT_SAY_INTERVAL_S: Final = 60.0
"""The least time between two lines that say the same of one endpoint."""


@dataclass(slots=True, eq=False)
class Endpoint:
    """One server. Times are those of the monotonic clock."""

    url: str
    in_flight: int = 0
    conversations: int = 0
    """How many conversations have their home here."""
    strikes: int = 0
    """Failures in a row."""
    refusals: int = 0
    """Refusals in a row."""
    paused_until_s: float = 0.0
    """The end of the pause it asked for: until then it gets no request that can go elsewhere."""
    rest_s: float = 0.0
    """How long its latest rest is; 0 once it has answered."""
    rest_until_s: float | None = None
    """When it is due for a canary; None while it is up."""
    denial: str | None = None
    """Why it refuses every request; None while it is not known to."""
    fault: str = ""
    """Why it was last set aside."""
    probes: int = 0
    """How many canaries have decided whether it is up."""

    @property
    def is_up(self) -> bool:
        """Whether requests are sent to it."""
        return self.rest_until_s is None

    def mark_answered(self) -> bool:
        """Forget its faults, now that it answered. Returns whether it had been set aside."""
        was_aside = not self.is_up
        self.strikes = self.refusals = 0
        self.paused_until_s = 0.0
        self.rest_s = 0.0
        self.rest_until_s = None
        self.denial = None
        return was_aside

    def count_failure(self) -> bool:
        """Count one more failure. Returns whether there are enough in a row to act on."""
        self.strikes, self.refusals = self.strikes + 1, 0
        return self.strikes >= ENDPOINT_STRIKES_MAX

    def count_refusal(self) -> bool:
        """Count one more refusal. Returns whether there are enough in a row to act on."""
        self.strikes, self.refusals = 0, self.refusals + 1
        return self.refusals >= ENDPOINT_STRIKES_MAX

    def set_aside(self, now_s: float, *, pause_s: float | None = None) -> bool:
        """Send it nothing until it has rested, or for `pause_s` if it asked for a longer pause.

        Requests that were in flight when it went down fail one by one afterwards; they do not prolong its rest.
        Returns whether it was up until now.
        """
        was_up = self.is_up
        if was_up:
            self.rest_s = ENDPOINT_REST_S
            self.rest_until_s = now_s + self._rest_for(pause_s)
        return was_up

    def rest_longer(self, now_s: float, *, pause_s: float | None = None) -> None:
        """After a failed canary: rest twice as long as last time, or for `pause_s` if that is longer."""
        self.rest_s = min(max(ENDPOINT_REST_S, 2 * self.rest_s), ENDPOINT_REST_S_MAX)
        self.rest_until_s = now_s + self._rest_for(pause_s)

    def _rest_for(self, pause_s: float | None) -> float:
        # Requests wait out a longer pause by themselves. If the endpoint rested as long, the first of them would come
        # before it is due, find no endpoint up, and take the engine for lost.
        return max(self.rest_s, min(pause_s or 0.0, ENDPOINT_PAUSE_S_MAX))


class Endpoints:
    """The servers of one model."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.all = tuple(Endpoint(url) for url in urls)
        self._homes: OrderedDict[str, Endpoint] = OrderedDict()

    def choose(self, conversation: str) -> Endpoint | None:
        """Where a request of `conversation` goes; None when no endpoint is up."""
        home = self._homes.get(conversation)
        if home is not None and home.is_up:
            self._homes.move_to_end(conversation)
            return home
        up = [endpoint for endpoint in self.all if endpoint.is_up]
        if not up:
            return None
        endpoint = min(up, key=_load)
        self._settle(conversation, endpoint)
        return endpoint

    def due(self, now_s: float) -> Endpoint | None:
        """An endpoint that has rested long enough. It is given to one caller; for all others it rests on."""
        for endpoint in self.all:
            if endpoint.rest_until_s is not None and endpoint.rest_until_s <= now_s:
                endpoint.rest_until_s = now_s + max(endpoint.rest_s, CANARY_S_MAX)
                return endpoint
        return None

    def due_in_s(self, now_s: float) -> float:
        """How long until the next endpoint is due."""
        rests = [endpoint.rest_until_s - now_s for endpoint in self.all if endpoint.rest_until_s is not None]
        return max(0.0, min(rests, default=0.0))

    @property
    def is_any_up(self) -> bool:
        """Whether there is an endpoint to send to."""
        return any(endpoint.is_up for endpoint in self.all)

    @property
    def denials(self) -> tuple[str, ...] | None:
        """Why each endpoint refuses every request; None while one of them may still answer."""
        denials = tuple(endpoint.denial for endpoint in self.all if endpoint.denial is not None)
        return denials if len(denials) == len(self.all) else None

    def leave(self, conversation: str, endpoint: Endpoint, now_s: float) -> bool:
        """Move `conversation`, whose request failed at `endpoint`, to another one that has asked for no pause.

        Returns whether there is such an endpoint: then the next request goes elsewhere.
        """
        others = [
            other for other in self.all if other.is_up and other is not endpoint and other.paused_until_s <= now_s
        ]
        if others and self._homes.get(conversation) is endpoint:
            self._settle(conversation, min(others, key=_load))
        return bool(others)

    def _settle(self, conversation: str, endpoint: Endpoint) -> None:
        former = self._homes.pop(conversation, None)
        if former is not None:
            former.conversations -= 1
        self._homes[conversation] = endpoint
        endpoint.conversations += 1
        if len(self._homes) > ENDPOINT_CONVERSATIONS_MAX:
            _, left = self._homes.popitem(last=False)
            left.conversations -= 1


def _load(endpoint: Endpoint) -> tuple[int, int]:
    return (endpoint.in_flight, endpoint.conversations)


class EndpointLog:
    """Reports to the user when a server is set aside, when it serves again, and that it turns requests away.

    Each of the first and the last comes at most once every ENDPOINT_SAY_INTERVAL_S for one server.
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
        self._note_down(endpoint, f"does not answer ({why}); it is tried again while the others serve")

    def down(self, endpoint: Endpoint, why: str) -> None:
        """It is set aside, or stays so after a canary."""
        if endpoint not in self._down and self._is_time(self._down_at_s, endpoint):
            self._note_down(endpoint, f"is set aside ({why}); it is tried again now and then")

    def up(self, endpoint: Endpoint) -> None:
        """It serves again; said only if its being set aside was."""
        if endpoint in self._down:
            self._down.remove(endpoint)
            self._write(endpoint, " serves again")

    def busy(self, endpoint: Endpoint, why: str) -> None:
        """It turned a request away, which will be sent again."""
        self._note_busy(endpoint, f" turns requests away ({why}); they are sent again")

    def unsent(self, endpoint: Endpoint, why: str) -> None:
        """A request could not be sent to it, and will be sent again."""
        self._note_busy(endpoint, f": {why}; its requests are sent again")

    def _note_down(self, endpoint: Endpoint, text: str) -> None:
        self._down.add(endpoint)
        self._down_at_s[endpoint] = self._clock.monotonic_s()
        self._write(endpoint, f" {text}")

    def _note_busy(self, endpoint: Endpoint, text: str) -> None:
        if self._is_time(self._busy_at_s, endpoint):
            self._busy_at_s[endpoint] = self._clock.monotonic_s()
            self._write(endpoint, text)

    def _is_time(self, said_at_s: dict[Endpoint, float], endpoint: Endpoint) -> bool:
        return self._clock.monotonic_s() - said_at_s.get(endpoint, -math.inf) >= ENDPOINT_SAY_INTERVAL_S

    def _write(self, endpoint: Endpoint, text: str) -> None:
        self._say(f"model {self._name}: {endpoint.url}{text}")
