"""The endpoints of a model: where the next request goes (pure), and what the user reads about them.

A conversation has a home, where its prefix is cached; a new one gets the endpoint with the least in flight. If the home
has its slots full and another endpoint has a free one, the request goes there, and the home stays. If all slots are
full, it waits in line for a slot, if possible one at home. A request that was not answered goes to another endpoint
next: otherwise one that fails at once would always have the least in flight. An endpoint that keeps failing is set
aside, and its conversations get new homes. After a rest, which doubles each time, one small request (the canary)
decides whether it is up again. One that the program that runs it reports down stays so until it is reported up.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain
from typing import Final

from mac_runner.backends.chat_template import ChatShape
from mac_runner.clock import Clock

CANARY_S_MAX: Final = 10.0
ENDPOINT_STRIKES_MAX: Final = 3
ENDPOINT_REST_S: Final = 1.0
ENDPOINT_REST_S_MAX: Final = 30.0
ENDPOINT_PAUSE_S_MAX: Final = 30.0
ENDPOINT_CONVERSATIONS_MAX: Final = 65_536
"""How many conversations are remembered to have their home at an endpoint, and how many failed requests with where."""
ENDPOINT_LINE: Final = 4
"""How many requests wait in line for each of several endpoints. With 4, two in a hundred slots that become free find
none with its home there."""
ENDPOINT_SAY_INTERVAL_S: Final = 60.0
"""The least time between two lines that say the same of one endpoint."""

_ANY_SHAPE: Final = ChatShape()


def _unheard() -> None:
    pass


@dataclass(slots=True, eq=False)
class Endpoint:
    """One server. Times are those of the monotonic clock."""

    url: str
    slots: int | None = None
    """How many requests it serves at once; None: its share of what is in flight at most."""
    width: int = 1
    """The same as a number, which changes with how many others there are."""
    lane: str | None = None
    """What a fleet calls it."""
    gpu: str | None = None
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
    is_held: bool = False
    """It was reported down, or removed: nothing but a report brings it back."""
    reserved_for: str | None = None
    """The one request that it works on alone, or is kept free for."""
    shape: ChatShape = _ANY_SHAPE
    """What the chat template of its model takes, as far as it has said."""
    proven: set[object] = field(default_factory=set)
    """The settings of agents with which it has answered a request or a canary."""
    first_look: Callable[[], Awaitable[None]] | None = None
    """What is to be found out before it serves, where that failed at the start."""
    denial: str | None = None
    """Why it refuses every request; None while it is not known to."""
    fault: str = ""
    """Why it was last set aside."""
    probes: int = 0
    """How many canaries have decided whether it is up."""
    changed: Callable[[], None] = _unheard
    """Called when it goes up or down."""
    silence: Silence = field(default_factory=lambda: Silence())
    sendings: set[asyncio.Timeout] = field(default_factory=set)
    """What cuts off each request in flight."""
    is_told_down: bool = False
    """The user has read that it was set aside."""
    told_at_s: dict[str, float] = field(default_factory=dict)
    """When the user read the last line about it, by the kind of line."""

    @property
    def is_up(self) -> bool:
        return self.rest_until_s is None and not self.is_held

    @property
    def is_open(self) -> bool:
        """Whether it takes any request, not just the one that it is reserved for."""
        return self.rest_until_s is None and not self.is_held and self.reserved_for is None

    @property
    def has_free_slot(self) -> bool:
        return self.in_flight < self.width

    @property
    def label(self) -> str:
        return self.lane or self.url

    def begin(self, now_s: float) -> None:
        """A request takes one of its slots."""
        if not self.in_flight:
            self.silence.since_s = self.silence.checked_s = now_s
        self.in_flight += 1

    def mark_answered(self) -> bool:
        """Forget its faults, now that it answered. Returns whether it had been set aside."""
        was_aside = self.rest_until_s is not None
        self.strikes = self.refusals = 0
        self.paused_until_s = 0.0
        self.rest_s = 0.0
        self.rest_until_s = None
        self.denial = None
        if was_aside:
            self.changed()
        return was_aside and self.is_up

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
            self.rest_longer(now_s, pause_s=pause_s)
        return was_up

    def rest_longer(self, now_s: float, *, pause_s: float | None = None) -> None:
        """After a failed canary: rest twice as long as last time, or for `pause_s` if that is longer."""
        was_up = self.is_up
        self.rest_s = min(max(ENDPOINT_REST_S, 2 * self.rest_s), ENDPOINT_REST_S_MAX)
        # Requests wait out a longer pause by themselves. If the endpoint rested as long, the first of them would come
        # before it is due, find no endpoint up, and take the engine for lost.
        self.rest_until_s = now_s + max(self.rest_s, min(pause_s or 0.0, ENDPOINT_PAUSE_S_MAX))
        if was_up:
            self.changed()

    def hold(self, why: str) -> None:
        self.is_held = True
        self.fault = why
        self.changed()

    def report_up(self) -> None:
        """It was restarted or works again: its past no longer counts."""
        self.is_held = False
        self.fault = ""
        self.silence = Silence(has_answered=True)
        if not self.mark_answered():
            self.changed()


SILENCES_MAX: Final = 3
"""A server without token counters may be silent for so many times its longest silence so far."""


@dataclass(slots=True)
class Silence:
    """How long a server with requests in flight has given no answer, and how long it did so before."""

    since_s: float = 0.0
    checked_s: float = 0.0
    """When it was last found to be at work, if that was later."""
    longest_s: float = 0.0
    """The longest silence that ended."""
    has_answered: bool = False
    has_counters: bool = False
    """Its page /metrics counts tokens, so that a silence can be judged."""

    def end(self, now_s: float) -> None:
        self.longest_s = max(self.longest_s, now_s - self.since_s)
        self.since_s = self.checked_s = now_s
        self.has_answered = True

    def due_s(self, stall_s: float) -> float:
        """When it has been silent for too long.

        A server that has not answered yet may be compiling or loading, and one that serves its requests one by one may
        be silent for as long as one takes: without counters, that cannot be distinguished from a hang at once.
        """
        if not self.has_answered:
            return math.inf
        patience_s = stall_s if self.has_counters else max(stall_s, SILENCES_MAX * self.longest_s)
        return self.checked_s + patience_s


class Onward(Enum):
    """Where a request goes after it failed at an endpoint."""

    FRESH = "fresh"
    """To an endpoint that has not failed it."""
    ELSEWHERE = "elsewhere"
    """To another one that has failed it already."""
    BACK = "back"
    """To the same one: no other one is up, or all ask for a pause."""


class Endpoints:
    """The servers of one model.

    `in_flight_max` requests at most are in flight, which are the slots of endpoints without a number of their own; each
    has one at least.
    `on_change` is called whenever another set of them is open.
    """

    def __init__(self, urls: Iterable[str] = (), *, in_flight_max: int | None = None) -> None:
        self.on_change: Callable[[], None] = _unheard
        self._in_flight_max = sys.maxsize if in_flight_max is None else in_flight_max
        self._homes: OrderedDict[str, Endpoint] = OrderedDict()
        self._failed: OrderedDict[str, set[Endpoint]] = OrderedDict()
        self._by_url: dict[str, Endpoint] = {}
        for url in urls:
            self._by_url[url] = Endpoint(url, changed=self._renew)
        self._open: tuple[Endpoint, ...] = ()
        self.all: tuple[Endpoint, ...] = ()
        self._renew()

    def _renew(self) -> None:
        self.all = tuple(self._by_url.values())
        self._open = tuple(endpoint for endpoint in self.all if endpoint.is_open)
        share, left = divmod(self._in_flight_max, max(1, len(self._open)))
        for endpoint in self.all:
            endpoint.width = endpoint.slots or max(1, share)
        for endpoint in self._open[:left]:
            endpoint.width = endpoint.slots or share + 1
        self.on_change()

    def add(self, endpoint: Endpoint) -> None:
        """One more. Its URL is not among the others."""
        assert endpoint.url not in self._by_url, endpoint.url
        self._by_url[endpoint.url] = endpoint
        endpoint.changed = self._renew
        self._renew()

    def remove(self, url: str) -> Endpoint:
        endpoint = self._by_url.pop(url)
        endpoint.changed = _unheard
        endpoint.hold("it was removed")
        self._renew()
        return endpoint

    def at(self, url: str) -> Endpoint:
        return self._by_url[url]

    def __contains__(self, url: object) -> bool:
        return url in self._by_url

    @property
    def slots(self) -> int:
        return sum(endpoint.width for endpoint in self._open)

    @property
    def lookahead(self) -> int:
        """How many requests are to wait in line, so that a free slot usually finds one that has its home there."""
        return min(ENDPOINT_LINE * len(self._open), self.slots) if len(self._open) > 1 else 0

    @property
    def is_any_up(self) -> bool:
        return any(endpoint.is_up for endpoint in self.all)

    @property
    def can_isolate(self) -> bool:
        """Whether one can be reserved while another one serves the rest."""
        return sum(endpoint.is_up for endpoint in self.all) > 1

    @property
    def denials(self) -> tuple[str, ...] | None:
        """Why each endpoint refuses every request; None while one of them may still answer."""
        denials = tuple(endpoint.denial for endpoint in self.all if endpoint.denial is not None)
        return denials if denials and len(denials) == len(self.all) else None

    def peek(self, conversation: str, request_id: str = "", now_s: float = math.inf) -> Endpoint | None:
        """Where `choose` would send a request now."""
        home = self._homes.get(conversation)
        failed = self._failed.get(request_id, ())
        if home is None or not home.is_open:
            return self._least([one for one in self._open if one not in failed]) or self._least(self._open)
        if home.has_free_slot and home not in failed:
            return home
        others = [one for one in self._open if one not in failed and one.paused_until_s <= now_s]
        if home in failed:
            return self._least(others) or home
        return self._least([one for one in others if one.has_free_slot]) or home

    def choose(self, conversation: str, request_id: str = "", now_s: float = math.inf) -> Endpoint | None:
        """Where a request of `conversation` goes; None when no endpoint is open."""
        endpoint = self.peek(conversation, request_id, now_s)
        home = self._homes.get(conversation)
        if home is not None and home.is_up:
            self._homes.move_to_end(conversation)
        elif endpoint is not None:
            self._settle(conversation, endpoint)
        return endpoint

    @staticmethod
    def _least(endpoints: Iterable[Endpoint]) -> Endpoint | None:
        """The one with the least in flight, then with the fewest homes, for its width."""
        return min(endpoints, key=lambda one: (one.in_flight / one.width, one.conversations / one.width), default=None)

    def reserve(self, request_id: str) -> Endpoint | None:
        """Keep the endpoint with the least in flight for one request alone, until `release`.

        None while no endpoint is open, or only one that must serve all others' requests.
        """
        is_only_one_left = len(self._open) == 1 and self.can_isolate
        endpoint = None if is_only_one_left else self._least(self._open)
        if endpoint is not None:
            endpoint.reserved_for = request_id
            self._renew()
        return endpoint

    def release(self, endpoint: Endpoint) -> None:
        endpoint.reserved_for = None
        self._renew()

    def due(self, now_s: float) -> Endpoint | None:
        """An endpoint that has rested long enough. It is given to one caller; for all others it rests on."""
        if len(self._open) == len(self.all):
            return None
        for endpoint in self.all:
            if endpoint.rest_until_s is not None and endpoint.rest_until_s <= now_s and not endpoint.is_held:
                endpoint.rest_until_s = now_s + max(endpoint.rest_s, CANARY_S_MAX)
                return endpoint
        return None

    def due_in_s(self, now_s: float) -> float | None:
        """How long until the next endpoint is due; None if none will be."""
        rests = [one.rest_until_s - now_s for one in self.all if one.rest_until_s is not None and not one.is_held]
        return max(0.0, min(rests)) if rests else None

    def leave(self, conversation: str, endpoint: Endpoint, now_s: float, request_id: str = "") -> Onward:
        """Move `conversation`, whose request failed at `endpoint`, to another one that has asked for no pause.

        Returns where the request goes next.
        """
        failed = self._failed.setdefault(request_id, set())
        failed.add(endpoint)
        if len(self._failed) > ENDPOINT_CONVERSATIONS_MAX:
            self._failed.popitem(last=False)
        others = [other for other in self._open if other is not endpoint and other.paused_until_s <= now_s]
        fresh = [other for other in others if other not in failed]
        following = self._least(fresh or others)
        if following is not None and self._homes.get(conversation) is endpoint:
            self._settle(conversation, following)
        return Onward.FRESH if fresh else Onward.ELSEWHERE if others else Onward.BACK

    def mark_done(self, request_id: str) -> None:
        """Forget where a request failed, now that it was answered."""
        if self._failed:
            self._failed.pop(request_id, None)

    def home_of(self, conversation: str) -> Endpoint | None:
        return self._homes.get(conversation)

    def suits(self, endpoint: Endpoint, conversation: str, request_id: str, now_s: float) -> bool:
        """Whether a free slot of `endpoint` suits a request that waits for one."""
        failed = self._failed.get(request_id, ())
        if endpoint in failed and any(one not in failed for one in self._open):
            return False
        home = self._homes.get(conversation)
        return home is None or home is endpoint or not home.is_open or endpoint.paused_until_s <= now_s

    def settle(self, conversation: str, url: str) -> None:
        endpoint = self._by_url.get(url)
        if endpoint is not None and endpoint.is_up and self._homes.get(conversation) is not endpoint:
            self._settle(conversation, endpoint)

    def _settle(self, conversation: str, endpoint: Endpoint) -> None:
        former = self._homes.pop(conversation, None)
        if former is not None:
            former.conversations -= 1
        self._homes[conversation] = endpoint
        endpoint.conversations += 1
        if len(self._homes) > ENDPOINT_CONVERSATIONS_MAX:
            _, left = self._homes.popitem(last=False)
            left.conversations -= 1


@dataclass(slots=True, eq=False)
class Waiting:
    """A request in line. It is woken with its endpoint, or with None to look again."""

    conversation: str
    request_id: str
    home: Endpoint | None
    woken: asyncio.Future[Endpoint | None]


class Line:
    """Requests that wait because every endpoint has its slots full.

    A slot that becomes free goes to the oldest request that has its home there, else to the oldest one. So slots stay
    full and conversations at home, without a line at any server. `give_back` is called with the endpoint of a slot
    whose request was cancelled as it got it.
    """

    def __init__(self, endpoints: Endpoints, give_back: Callable[[Endpoint], None]) -> None:
        self._endpoints = endpoints
        self._give_back = give_back
        self._waiting: dict[Waiting, None] = {}
        self._at_home: dict[Endpoint | None, dict[Waiting, None]] = {}

    async def join(self, conversation: str, request_id: str) -> Endpoint | None:
        """Wait for a slot. It is taken when this returns; None: look again."""
        home = self._endpoints.home_of(conversation)
        one = Waiting(conversation, request_id, home, asyncio.get_running_loop().create_future())
        self._waiting[one] = None
        self._at_home.setdefault(home, {})[one] = None
        try:
            return await one.woken
        except asyncio.CancelledError:
            if one.woken.done() and not one.woken.cancelled() and (endpoint := one.woken.result()) is not None:
                self._give_back(endpoint)
            raise
        finally:
            self._remove(one)

    def fill(self, endpoint: Endpoint, now_s: float) -> None:
        """Hand out the free slots of `endpoint`."""
        while self._waiting and endpoint.is_open and endpoint.has_free_slot:
            one = self._best(endpoint, now_s)
            if one is None:
                return
            self._remove(one)
            endpoint.begin(now_s)
            one.woken.set_result(endpoint)

    def change(self, now_s: float) -> None:
        """Another set of endpoints is open: their free slots are handed out, and if none is up, all look again."""
        if not self._waiting:
            return
        for endpoint in self._endpoints.all:
            self.fill(endpoint, now_s)
        if not self._endpoints.is_any_up:
            waiting, self._waiting, self._at_home = self._waiting, {}, {}
            for one in waiting:
                if not one.woken.done():
                    one.woken.set_result(None)

    def _remove(self, one: Waiting) -> None:
        if self._waiting.pop(one, one) is None:
            neighbours = self._at_home[one.home]
            del neighbours[one]
            if not neighbours:
                del self._at_home[one.home]

    def _best(self, endpoint: Endpoint, now_s: float) -> Waiting | None:
        for one in chain(self._at_home.get(endpoint, ()), self._waiting):
            if not one.woken.done() and self._endpoints.suits(endpoint, one.conversation, one.request_id, now_s):
                return one
        return None


class EndpointLog:
    """Reports to the user when a server is set aside, when it serves again, and that it turns requests away.

    Each of the first and the last comes at most once every ENDPOINT_SAY_INTERVAL_S for one server.
    """

    def __init__(self, name: str, clock: Clock, say: Callable[[str], None]) -> None:
        self._name = name
        self._clock = clock
        self._say = say

    def unfit(self, endpoint: Endpoint, trouble: str) -> None:
        self._note_down(endpoint, f"{trouble}; it is tried again while the others serve")

    def down(self, endpoint: Endpoint, why: str) -> None:
        next_step = "it is tried again now and then" if endpoint.lane is None else "other lanes take its requests"
        self._note_down(endpoint, f"is set aside ({why}); {next_step}")

    def up(self, endpoint: Endpoint) -> None:
        if endpoint.is_told_down:
            endpoint.is_told_down = False
            self.say(endpoint, " serves again")

    def busy(self, endpoint: Endpoint, why: str) -> None:
        self._note_busy(endpoint, f" turns requests away ({why}); they are sent again")

    def unsent(self, endpoint: Endpoint, why: str) -> None:
        self._note_busy(endpoint, f": {why}; its requests are sent again")

    def reshaped(self, endpoint: Endpoint) -> None:
        shape = endpoint.shape
        ways = ["" if shape.has_system else "no system message: its words go before the user's first"]
        ways += ["neighbours of one role only as one message" if shape.must_alternate else ""]
        self.say(endpoint, f" takes {'; '.join(filter(None, ways))}")

    def _note_down(self, endpoint: Endpoint, text: str) -> None:
        if not endpoint.is_told_down and self._is_due("down", endpoint):
            endpoint.is_told_down = True
            self.say(endpoint, f" {text}")

    def _note_busy(self, endpoint: Endpoint, text: str) -> None:
        if self._is_due("busy", endpoint):
            self.say(endpoint, text)

    def _is_due(self, kind: str, endpoint: Endpoint) -> bool:
        """Whether a line of this kind is due, which then is said."""
        now_s = self._clock.monotonic_s()
        is_due = now_s - endpoint.told_at_s.get(kind, -math.inf) >= ENDPOINT_SAY_INTERVAL_S
        if is_due:
            endpoint.told_at_s[kind] = now_s
        return is_due

    def say(self, endpoint: Endpoint, text: str) -> None:
        self._say(f"model {self._name}: {endpoint.label}{text}")
