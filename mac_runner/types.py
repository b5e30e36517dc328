"""The shared domain types: Task, Agent, Turn, Prompt, Reply, Receipt, TurnRecord.

Everything here is frozen data. A Task is planned before the run; a Turn is one generation asked of one agent;
a Prompt is what an engine is sent for it, a Reply what comes back, a Receipt what the conversation made of it.
The four together are a TurnRecord, and the list of a conversation's TurnRecords is enough to rebuild it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Final, Literal, NamedTuple, TypeAlias

from msgspec import Struct, structs

from mac_runner.tokens import TokenTrace as TokenTrace

REPLY_CHARS_MAX: Final = 65_536
"""The longest text of a reply that is looked at."""
THINKING_CHARS_MAX: Final = 262_144
"""The longest thought that is recorded."""

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
JsonObject: TypeAlias = dict[str, JsonValue]

Decoding: TypeAlias = Literal["schema", "json_object", "none"]
"""What an engine holds a reply to: the prompt's schema or choices, any JSON object, or nothing."""
ReplyForm: TypeAlias = Literal["markup", "json"]
"""The form of reply that a prompt asks for."""


def stable_hash(*parts: str | int) -> int:
    """A 63-bit hash of `parts` that is the same in every process, on every machine, for ever.

    Every seed of a run is derived with it, so its definition is part of the meaning of a seed: BLAKE2b (8 bytes,
    big endian, top bit cleared) of the parts' text joined by U+001F.
    """
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How an engine draws tokens. `None` leaves a setting to the engine."""

    temperature: float = 1.0
    max_tokens: int = 512
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    thinking: bool | None = None


EFFORT_KEYS: Final = ("reasoning_effort", "verbosity", "thinking")
"""The fields of Sampling that say how much a model thinks and writes. Only some backends can honour them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """One participant of one conversation.

    `agent_id` is unique in the conversation and is what others see (a player's name); `definition` is the
    `agent_id` of the entry of `agent_definitions` it was made from; `seat` is where it sits;
    `slot` is the place in the environment's line-up it fills (in a game: which entry of the role list).
    """

    agent_id: str
    definition: str
    model: str
    seat: int
    slot: int
    sampling: Sampling


class Draw(NamedTuple):
    """A number that enters the seeds of the turns of a fork: of those whose `Turn.canonical` is at least `since`.

    `spared` are the keys of such turns whose replies the fork has from its parent.
    """

    since: tuple[int, int, int, int]
    number: int
    spared: tuple[str, ...] = ()

    def holds(self, turn: Turn) -> bool:
        """Whether it enters the seed of a turn."""
        return turn.canonical >= self.since and turn.key not in self.spared


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """Where a conversation leaves another one, whose replies it has up to there.

    `of` is the task of the other conversation and `turn` the key of the turn at which they part. `arm` names what
    happens there, and `draw` counts the conversations that differ in their seeds alone. `draws` are those of this fork
    and of the forks that it comes from; a draw 0 adds none. `forced` are the turns whose replies no engine gave.
    """

    of: str
    turn: str
    arm: str
    draw: int
    draws: tuple[Draw, ...] = ()
    forced: tuple[str, ...] = ()
    is_off_policy: bool = False
    """Whether a reply was kept for another prompt than it was given to, or was written by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One conversation to run: who takes part, from which seed. `index` is its place in the plan.

    `material` is its subject (a question, say) if the experiment reads that from a file; so the task is self-contained.
    Where each deal is played several times, `group` is the number of the deal and `sample` counts its conversations,
    from 0: they are alike but for the seeds of their requests.
    """

    index: int
    task_id: str
    seed: int
    agents: tuple[Agent, ...]
    material: Mapping[str, JsonValue] | None = None
    fork: Fork | None = None
    group: int | None = None
    sample: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineup:
    """What an environment needs filled in each conversation, for the plan to rotate agents over."""

    slots: tuple[str, ...]
    """The places; in a game the role list."""
    names: tuple[str, ...]
    """Public names, at least as many."""
    seats: Mapping[str, int] | None = None
    """How many of the places each agent definition fills; None: equal shares."""
    cast: Callable[[int, int], tuple[str, ...]] | None = None
    """In place of `seats`: from a task's index and seed to the agent definition that fills each of the places."""
    key: tuple[str, ...] = ()
    """The key of the experiment file that says so."""


class Turn(Struct, frozen=True, kw_only=True, dict=True):
    """One generation asked of one agent.

    `round` orders the conversation; inside it the turn waits until no agent of `after` has an open turn. `place` is the
    turn's place in its round, after those it waits for: the order of ties, of transcripts and of replays.
    `step` counts tool continuations, `attempt` corrections of the same act. (round, agent, step, attempt) is unique
    in a conversation.
    """

    round: int
    agent: str
    model: str
    place: int
    step: int = 0
    attempt: int = 0
    after: frozenset[str] = frozenset()

    @cached_property
    def key(self) -> str:
        """The turn's name inside its conversation, stable over runs: `round/agent/step/attempt`."""
        return f"{self.round}/{self.agent}/{self.step}/{self.attempt}"

    @property
    def is_followup(self) -> bool:
        """Whether this turn goes on with a turn already begun (a continuation or a correction)."""
        return self.step > 0 or self.attempt > 0

    @property
    def canonical(self) -> tuple[int, int, int, int]:
        """The place of this turn in a transcript, whatever order the replies came in."""
        return (self.round, self.place, self.step, self.attempt)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One chat message of a prompt."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What an engine is sent for one turn.

    `view` is the structured form of the very same information, for scripted players; it never leaves the
    process. `choices` or `schema` name the legal replies for engines that can constrain decoding; if both are given,
    an engine is held to the schema, which allows more than the bare act.
    """

    messages: tuple[Message, ...]
    view: object = None
    choices: tuple[str, ...] | None = None
    schema: Mapping[str, JsonValue] | None = None

    @property
    def is_constrained(self) -> bool:
        """Whether an engine that can constrain decoding holds the reply to a form."""
        return self.schema is not None or self.choices is not None

    @property
    def size_chars(self) -> int:
        """Characters of all messages together."""
        return sum(len(message.content) for message in self.messages)

    @property
    def sha256(self) -> str:
        """Digest of the messages: a replay must render the very same prompt."""
        digest = hashlib.sha256()
        for message in self.messages:
            digest.update(f"{message.role}\x1f{message.content}\x1e".encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One turn, ready to be sent. Sending it again sends the very same prompt with the very same seed.

    `conversation` is the task's id: requests of one conversation share most of their prompts, so an engine with several
    servers serves them best from one of them. `is_suspect`: engines died on it, and the backend is to serve it alone on
    one of its servers; only a backend that `isolates` gets such a request.
    """

    conversation: str
    turn: Turn
    prompt: Prompt
    sampling: Sampling
    is_suspect: bool = False

    @property
    def request_id(self) -> str:
        """The request's name, unique in a run and the same however often it is sent."""
        return f"{self.conversation}/{self.turn.key}"


class FinishReason(StrEnum):
    """Why the engine stopped. With OVERFLOW it never began: the prompt does not fit the model's context.

    UNKNOWN is for an engine that does not say. A reason that only some engines have stays in their own word:
    `FinishReason("repetition")` is none of the members.
    """

    STOP = "stop"
    LENGTH = "length"
    OVERFLOW = "overflow"
    UNKNOWN = "unknown"

    @classmethod
    def _missing_(cls, value: object) -> FinishReason | None:
        if not isinstance(value, str) or not value:
            return None
        own = str.__new__(cls, value)
        own._name_ = own._value_ = value
        return own


class TokenCount(Struct, frozen=True, kw_only=True):
    """Tokens of a reply or a sum of them. `cached` is the part of `prompt` served from the prefix cache."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0

    @property
    def is_counted(self) -> bool:
        """Whether the engine counts tokens: every prompt has at least one."""
        return self.prompt > 0

    def __add__(self, other: TokenCount) -> TokenCount:
        return TokenCount(
            prompt=self.prompt + other.prompt,
            cached=self.cached + other.cached,
            completion=self.completion + other.completion,
        )


class Destination(Struct, frozen=True, kw_only=True):
    """The server of an engine that a request goes to, as its backend names it."""

    server: str
    """Its URL, as the experiment file has it."""
    lane: str | None = None
    """The lane of a fleet, such as `townsfolk@0`."""
    gpu: str | None = None
    """The GPUs of the lane, separated by commas, or the UUID of its slice."""


class Timing(Struct, frozen=True, kw_only=True):
    """Everything about a reply that depends on time, and on which server was free.

    `faults` has a text for each failed attempt before it. A backend that has several servers sets `server`, `lane` and
    `gpu` as in Destination, and may set in `queue_s` how long it let the request wait; the scheduler sets the rest.
    """

    queue_s: float = 0.0
    generate_s: float = 0.0
    faults: tuple[str, ...] = ()
    server: str | None = None
    lane: str | None = None
    gpu: str | None = None


class PolicySpan(NamedTuple):
    """The first and the last version of the weights that made a reply. 0 is what the engine loaded."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What an engine answered. `trace` is there when the model definition asks to record tokens.

    `thinking` is what a reasoning model thought before its reply, if that is known; the text does not repeat it.
    `policy` is there when the engine reports the versions of its weights.
    """

    text: str
    thinking: str | None = None
    finish_reason: FinishReason = FinishReason.STOP
    tokens: TokenCount = field(default=TokenCount())
    trace: TokenTrace | None = None
    policy: PolicySpan | None = None
    timing: Timing = field(default=Timing(), compare=False)

    def timed(self, timing: Timing) -> Reply:
        """The same reply with its timing. Not `replace`, which takes twice as long: each reply passes here."""
        return Reply(
            text=self.text,
            thinking=self.thinking,
            finish_reason=self.finish_reason,
            tokens=self.tokens,
            trace=self.trace,
            policy=self.policy,
            timing=timing,
        )


WhenExhausted: TypeAlias = Literal["pass", "fail"]
"""What follows a reply without use after all corrections: the environment's default act, or a failure."""


class ReceiptKind(StrEnum):
    """What a conversation made of a reply."""

    ACT = "act"
    OBSERVATION = "observation"
    CORRECTION = "correction"
    DEFAULT = "default"
    FAILURE = "failure"


class Receipt(Struct, frozen=True, kw_only=True):
    """What a conversation made of a reply: `detail` is the act, the observation or the reason of a correction.

    `cause` is the category of an unusable reply, for counting; None for a usable one.
    """

    kind: ReceiptKind
    detail: str
    cause: str | None = None


class TurnRecord(Struct, frozen=True, kw_only=True):
    """A turn, the digest of the prompt it was sent, the reply and its receipt."""

    turn: Turn
    prompt_sha256: str
    reply: Reply
    receipt: Receipt


class RecordedReply(Struct, frozen=True, kw_only=True):
    """A reply as the journal keeps it: enough, with its task, to go on from here after a kill.

    `model` is the model that gave it; None where that is the agent's and nothing names it. A fork may give a seat
    another one.
    """

    turn_key: str
    prompt_sha256: str
    reply: Reply
    model: str | None = None

    def traceless(self) -> RecordedReply:
        """The same reply without its tokens, which no conversation reads."""
        return self if self.reply.trace is None else structs.replace(self, reply=replace(self.reply, trace=None))

    def traced(self, traces: Mapping[str, TokenTrace]) -> RecordedReply:
        """The same reply with its tokens, where `traces` has them for its turn."""
        trace = traces.get(self.turn_key)
        return self if trace is None else structs.replace(self, reply=replace(self.reply, trace=trace))


class PolicyVersion(NamedTuple):
    """The weights that a model has from one moment of a run on, as its journal names them."""

    version: int
    """0 is what the engine loaded."""
    sha256: str | None = None
    """The digest of their content; None for version 0."""
    path: str | None = None
    """Where they lie, if that is known."""
