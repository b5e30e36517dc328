"""The contract of a backend, and what one is built from."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from mac_runner.clock import Clock
from mac_runner.errors import (
    BackendError,
    ConfigError,
    EngineDeadError,
    FormRefusedError,
    RequestRefusedError,
    WeightUpdateError,
)
from mac_runner.latency import EngineLatency
from mac_runner.section import Settings
from mac_runner.spec import AgentDefinition
from mac_runner.types import Decoding, Destination, JsonObject, JsonValue, Prompt, Reply, Request, Sampling
from mac_runner.weights import WeightUpdate

if TYPE_CHECKING:
    from mac_runner.backends.fleet.settings import ModelLanes

_SLOTS_PER_LOOKAHEAD: Final = 8

S_co = TypeVar("S_co", bound=Settings, covariant=True)
JSON_OBJECT: Final[Mapping[str, JsonValue]] = MappingProxyType({"type": "object"})
"""The schema of any JSON object. An engine with a setting of its own for that compares by identity."""
SAMPLING_SETTINGS: Final = frozenset(field.name for field in fields(Sampling))


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsupported:
    """What an engine cannot do."""

    settings: frozenset[str] = frozenset()
    """Fields of Sampling that it would ignore: `SAMPLING_SETTINGS` without those that it obeys."""
    tokens: bool = False
    """Whether it lacks token ids and log-probabilities."""
    remedy: str = "leave it out"
    """What a user can do about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendRequest(Generic[S_co]):
    """All that a backend is built from."""

    name: str
    """The entry of `model_definitions`."""
    backend: str
    settings: S_co
    """The section of the backend."""
    record_tokens: bool
    """Whether replies are recorded token by token."""
    decoding: Decoding
    """What replies are held to; prompts already come with that alone."""
    agents: Sequence[AgentDefinition]
    """All agents of the experiment."""
    policy_of: Callable[[str], Callable[[object, Random], str]]
    """Finds a scripted player by its name. Raises ConfigError for an unknown name."""
    clock: Clock
    say: Callable[[str], None]
    """Takes a line for the user."""
    can_pull: bool
    """Whether the engine may fetch a model that it does not have."""
    lanes: ModelLanes | None = None
    """The engines of the model, where it is on a fleet and will be played; None where it is only checked."""

    def refuse(self, unsupported: Unsupported) -> None:
        """Raise ConfigError for a setting in use that the backend would ignore."""
        if self.record_tokens and unsupported.tokens:
            key = ("model_definitions", self.name, "record_tokens")
            raise ConfigError.at(key, f"the backend {self.backend!r} does not report tokens; {unsupported.remedy}")
        text = f"the backend {self.backend!r} of model {self.name!r} does not support it; {unsupported.remedy}"
        self.check_agents(lambda agent: ((setting, text) for setting in sorted(_used(agent) & unsupported.settings)))

    def check_agents(self, objections: Callable[[AgentDefinition], Iterable[tuple[str, str]]]) -> None:
        """Raise ConfigError for a setting of an agent of this model that is objected to, with the reason."""
        for index, agent in enumerate(self.agents):
            for setting, text in objections(agent) if agent.model == self.name else ():
                raise ConfigError.at(("agent_definitions", index, setting), text)

    @property
    def thinking(self) -> Mapping[bool, str]:
        """What agents of this model set `thinking` to, each with the first agent that does."""
        found: dict[bool, str] = {}
        for agent in self.agents:
            if agent.model == self.name and agent.thinking is not None:
                found.setdefault(agent.thinking, agent.agent_id)
        return found

    @property
    def used_settings(self) -> frozenset[str]:
        """The fields of Sampling that agents of this model set."""
        return frozenset().union(*(_used(agent) for agent in self.agents if agent.model == self.name))


def _used(agent: AgentDefinition) -> frozenset[str]:
    """The fields of Sampling that an agent sets; a default is nothing that was asked for."""
    settings = {field.name: field.default for field in fields(Sampling)}
    return frozenset(name for name, default in settings.items() if getattr(agent, name, default) not in (default, ()))


def held(prompt: Prompt, decoding: Decoding) -> Prompt:
    """`prompt` with what the reply is held to. `json_object` leaves a list of choices free."""
    if decoding == "schema" or not prompt.is_constrained:
        return prompt
    is_object = decoding == "json_object" and prompt.schema is not None
    return replace(prompt, schema=JSON_OBJECT if is_object else None, choices=None)


def structured_outputs(prompt: Prompt) -> JsonObject:
    """What vLLM, here or behind a server, is to hold the reply to; empty for no form.

    A schema says more than a list of choices, so a prompt with both is held to the schema.
    """
    if prompt.schema is JSON_OBJECT:
        return {"json_object": True}
    if prompt.schema is not None:
        return {"json": dict(prompt.schema)}
    return {} if prompt.choices is None else {"choice": list(prompt.choices)}


class Form:
    """What the replies of model `name` are held to, of what its engine `can` hold them to.

    An environment offers a schema or choices with a prompt. Who sends it leaves of that what `constrained_decoding`
    says, so that every backend honours the setting without knowing it. An engine that refuses such a form refuses it in
    every request, so the run stops and names the setting.
    """

    def __init__(self, name: str, decoding: Decoding, can: Collection[Decoding]) -> None:
        self._decoding = decoding
        others = "json_object or none" if decoding == "schema" and "json_object" in can else "none"
        self._advice = f"set model_definitions.{name}.constrained_decoding: {others} (`mac-run doctor FILE` tries them)"
        self._has_held = False

    def held(self, request: Request) -> Request:
        """`request` as it is sent."""
        prompt = held(request.prompt, self._decoding)
        return request if prompt is request.prompt else replace(request, prompt=prompt)

    def kept(self, sent: Request) -> None:
        """The engine has answered what was sent."""
        self._has_held |= sent.prompt.is_constrained

    def refused(self, error: FormRefusedError) -> BackendError:
        """What follows where it refuses the form. One that has held a reply to one before refuses this alone."""
        if self._has_held:
            return RequestRefusedError(f"{error}; it refuses the form of this reply; {self._advice}")
        return EngineDeadError(f"{error}; it refuses to hold replies to a form; {self._advice}")


class Backend(ABC):
    """One engine, for one entry of `model_definitions`. What a class does not say has a default.

    A backend answers or raises a BackendError. It never retries, the scheduler does; but it resends once on a new
    connection if the peer closed the kept one, and rewritten where the model's chat template refuses roles. It never
    drops a setting that it cannot honour: it refuses it when it is built, or at `start` if only the engine can say.
    `generate` may be cancelled at any await.

    `capacity`, `lookahead` and `isolates` may change after `start`, to 0 as well, where `on_resize` tells of it.
    """

    form: Form | None = None
    """What replies are held to, for who sends a request; set where the backend is built."""
    latency: EngineLatency | None = None
    """How long replies take at least, in real time. It shows on a fast engine how a run would go on a slow one."""

    @property
    @abstractmethod
    def capacity(self) -> int:
        """How many requests the engine serves at once; known after `start`."""

    @property
    def token_budget(self) -> int | None:
        """How many tokens of all requests the engine's KV cache holds, to admit by; None: admit by capacity alone."""
        return None

    @property
    def lookahead(self) -> int:
        """How many requests beyond `capacity` the engine is given; known after `start`.

        They wait inside the engine, so that its next step can begin one without a round trip.
        """
        return 0

    @property
    def isolates(self) -> bool:
        """Whether it can now serve a request alone on one of its servers, while others go on.

        If so, it gets requests that engines died on with `Request.is_suspect`.
        """
        return False

    @property
    def update_obstacle(self) -> str | None:
        """What prevents updates with its settings, and the remedy; None if nothing. Some know more once started."""
        return "its weights stay as they are; use the backend nano, fleet, or openai in front of mac-serve"

    async def start(self) -> None:  # noqa: B027 - some have nothing to start
        """Make the engine ready to generate. Raises ConfigError or EngineDeadError."""

    @abstractmethod
    async def generate(self, request: Request) -> Reply:
        """One reply. Raises TransientBackendError, RequestRefusedError or EngineDeadError.

        A prompt that does not fit the model's context is answered with FinishReason.OVERFLOW and no text: the
        environment decides what to leave out. A thought that precedes the reply goes to `Reply.thinking`; of one that
        was cut off, the text keeps the open `<think>`.

        ConnectionError and TimeoutError may be raised as they are and count as TransientBackendError. Any other error
        of plain Python counts as EngineDeadError and ends the run.
        """

    async def close(self) -> None:  # noqa: B027 - some have nothing to release
        """Release everything; safe to call twice and after a failed start."""

    def on_resize(self, tell: Callable[[], None]) -> bool:
        """Call `tell`, in the loop of the run, whenever its size has changed; whether it ever changes.

        Calls made before `start` has returned, or after `close`, have no effect.
        """
        return False

    def destination(self, request: Request) -> Destination | None:
        """The server that `request` would go to now; changes nothing. None where that is not known."""
        return None

    def settle(self, conversation: str, lane: str) -> None:  # noqa: B027 - most have no lanes
        """Make a lane that is up the home of a conversation, in place of the one that it would get."""

    async def update_weights(self, update: WeightUpdate) -> str | None:
        """Install weights. Once it returns, every later token is of their version, and replies have a `policy`.

        The digest of what a trainer sent, where the engine could take it; the caller knows that of other weights.

        Raises a WeightUpdateError, after which the engine goes on with the weights that it had, or EngineDeadError.
        Cancelled, it may have installed them. The weights may be changed once it has ended.
        """
        raise WeightUpdateError(f"it takes no new weights: {self.update_obstacle}")


class Waiting:
    """The deadline of one sending, and how long it waited inside its backend for a server."""

    deadline: asyncio.Timeout | None = None
    uncharged_s: float = 0.0


WAITING: Final[ContextVar[Waiting]] = ContextVar("mac_runner_waiting")
"""That of the request that a task generates for."""


@contextmanager
def uncharged() -> Iterator[None]:
    """Wait in the block for a server: the time is charged to no deadline, and counts as waiting for a slot.

    For a `generate` whose requests wait inside the backend. What is waited for must come, or the wait must end.
    """
    waiting = WAITING.get(None)
    deadline = None if waiting is None else waiting.deadline
    if waiting is None or deadline is None or deadline.expired() or (ends_at_s := deadline.when()) is None:
        yield
        return
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    deadline.reschedule(None)
    try:
        yield
    finally:
        waited_s = loop.time() - began_s
        waiting.uncharged_s += waited_s
        deadline.reschedule(ends_at_s + waited_s)


def lookahead_for(requests: int) -> int:
    """The `lookahead` of an engine that serves `requests` at once and queues further ones.

    An eighth is enough for the requests that end in one step, unless all have one length.
    """
    return -(-requests // _SLOTS_PER_LOOKAHEAD)
