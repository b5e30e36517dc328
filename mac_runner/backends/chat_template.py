"""From the messages of a prompt to what a given model takes: as messages, as text, or as tokens.

`ChatShape` says what a template takes, `probe_shape` finds it out by trying, and messages that do not fit are
rewritten. No word of a prompt is ever left out. `Renderer` does this for engines that take tokens.

A thought in `<think>` that precedes a reply is recorded apart from it (`apart`); of one that was cut off the text keeps
`OPEN_THOUGHT`, because without the tag it would look like an empty answer. Some templates end a prompt inside a
thought, and the reply then has only the end of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final, NamedTuple, Protocol, TypeAlias

from mac_runner.backends.redaction import own_reason
from mac_runner.errors import ConfigError, RequestRefusedError, TransientBackendError, boundary
from mac_runner.types import FinishReason, JsonValue, Message, PolicySpan, Reply, TokenCount, TokenTrace

OPEN_THOUGHT: Final = "<think>"
CLOSED_THOUGHT: Final = "</think>"
THINKING_VARIABLE: Final = "enable_thinking"
_BETWEEN: Final = "\n\n"
# One word each: some tokenizers write a blank as another character.
_SYSTEM: Final = Message(role="system", content="system-probe")
USER_PROBE: Final = Message(role="user", content="user-probe")
"""What a template is tried with: any that can hold a conversation takes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatShape:
    """What a model's chat template takes, and whether it ends a prompt inside a thought."""

    has_system: bool = True
    must_alternate: bool = False
    opens_thought: bool = False

    def fit(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        fitted = tuple(messages) if self.has_system else merge_system(messages)
        return merge_neighbours(fitted) if self.must_alternate else fitted


def probe_shape(render: Callable[[Sequence[Message]], str]) -> ChatShape:
    """What the template `render` takes. It does not take a system message if it silently leaves one out.

    `render` may raise anything. Raises RequestRefusedError when the template cannot write even a user's message.
    """
    with boundary(RequestRefusedError, "it cannot write a user's message"):
        text = render((USER_PROBE,))
    if USER_PROBE.content not in text:
        raise RequestRefusedError("it leaves out what a user says")

    def takes(*messages: Message) -> bool:
        try:
            with boundary(RequestRefusedError, "the chat template"):
                text = render(messages)
        except RequestRefusedError:
            return False
        return all(message.content in text for message in messages)

    return ChatShape(
        has_system=takes(_SYSTEM, USER_PROBE),
        must_alternate=not takes(USER_PROBE, USER_PROBE),
        opens_thought=ends_in_thought(text),
    )


def merge_system(messages: Sequence[Message]) -> tuple[Message, ...]:
    """`messages` without a system message: its words go in front of the user's first."""
    system = _BETWEEN.join(message.content for message in messages if message.role == "system")
    others = [message for message in messages if message.role != "system"]
    if not system:
        return tuple(others)
    first = next((place for place, message in enumerate(others) if message.role == "user"), None)
    if first is None:
        return (Message(role="user", content=system), *others)
    others[first] = replace(others[first], content=f"{system}{_BETWEEN}{others[first].content}")
    return tuple(others)


def merge_neighbours(messages: Sequence[Message]) -> tuple[Message, ...]:
    """`messages` with neighbours of one role merged into a single message."""
    return tuple(
        Message(role=role, content=_BETWEEN.join(message.content for message in stretch))
        for role, stretch in groupby(messages, key=lambda message: message.role)
    )


def plain_text(messages: Sequence[Message]) -> str:
    """The prompt of a model without a chat template: paragraphs under headings, ending where the reply begins."""
    paragraphs = (f"### {message.role.capitalize()}\n{message.content}" for message in messages)
    return f"{_BETWEEN.join(paragraphs)}{_BETWEEN}### Assistant\n"


def ends_in_thought(prompt: str, tag: str = OPEN_THOUGHT) -> bool:
    """Whether `prompt` ends inside a thought, which begins with `tag` and which the reply continues."""
    return prompt.rstrip().endswith(tag)


def apart(text: str, thought: str = "") -> tuple[str, str | None]:
    """The reply without the thought that precedes it, and the thought; None without one.

    `thought` is one that the engine took out of the text itself; otherwise the text may begin with it.
    """
    text, thought = _scalars_only(text), _scalars_only(thought)
    begun = text.lstrip()
    if channels := _channels(begun):
        finals = [said for name, said in channels if name == "final"]
        thoughts = (thought, *(said for name, said in channels if name != "final"))
        thought = _BETWEEN.join(said.strip() for said in thoughts if said.strip())
        return "".join(finals).lstrip() if finals else OPEN_THOUGHT, thought or None
    if not thought:
        if not begun.startswith(OPEN_THOUGHT):
            return text, None
        thought, end, text = begun.removeprefix(OPEN_THOUGHT).partition(CLOSED_THOUGHT)
        if end:
            return text.lstrip(), thought.strip() or None
    return text or OPEN_THOUGHT, thought.strip() or None


def _scalars_only(text: str) -> str:
    """`text` with each half of a surrogate pair replaced: JSON can spell one, UTF-8 cannot."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


_CHANNEL: Final = re.compile(r"(?:<\|start\|>)?(?:assistant)?<\|channel\|>")
_NO_CHANNEL: Final = re.compile(r"(?:<\|start\|>)?(?:assistant)?<\|message\|>")
_NEXT_CHANNEL: Final = "<|start|>assistant<|channel|>"
_CHANNEL_END: Final = re.compile(r"<\|(?:end|return|call|start)\|>")
_BARE_CHANNEL: Final = re.compile(r"(?:^|assistant)(analysis|commentary|final)")
_BARE_THOUGHT: Final = re.compile(r"analysis[A-Z]")
"""How a thought begins that was cut off: no word of a reply looks like that."""


def _channels(text: str) -> list[tuple[str, str]]:
    """The channels of a reply of gpt-oss, each with its name; none in a text that has none, or only speaks of them.

    The model writes `<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…`
    (https://github.com/openai/harmony, read 2026-11-26). A server that has no parser for it leaves that in the text, or
    drops the special tokens, and leaves `analysis…assistantfinal…`.
    """
    if _NO_CHANNEL.match(text):
        text = _NO_CHANNEL.sub("<|channel|>final<|message|>", text)
    elif not _CHANNEL.match(text) and _NEXT_CHANNEL in text:
        text = f"<|channel|>analysis<|message|>{text}"  # The prompt began the thought.
    if _CHANNEL.match(text):
        return [_channel(part) for part in text.split("<|channel|>")[1:]]
    if not text.startswith("analysis"):
        return []
    bare = _BARE_CHANNEL.split(text)
    return list(zip(bare[1::2], bare[2::2], strict=True)) if "final" in bare[1::2] or _BARE_THOUGHT.match(text) else []


def _channel(part: str) -> tuple[str, str]:
    """The name of a channel and what is said in it, also where `<|message|>` is left out between them."""
    head, mark, said = part.partition("<|message|>")
    name, *rest = re.split(r"\W", head.strip(), maxsplit=1)
    return name, _CHANNEL_END.split(said if mark or "<|constrain|>" in head else "".join(rest), 1)[0]


def notice_of_forms(model: str) -> str:
    """The user's notice that replies of `model`, whose template opens a thought, have none when held to a form."""
    return (
        f"model {model}: its chat template opens a thought, but a reply that is held to a schema or to choices is "
        "given without one"
    )


class Rendered(NamedTuple):
    """A prompt as text and as tokens."""

    text: str
    ids: list[int]


Conversation: TypeAlias = list[dict[str, str]]
"""Messages as chat templates take them, each with `role` and `content`."""

Write: TypeAlias = Callable[[Conversation], Rendered]
"""The model's chat template, which writes the special tokens itself: a conversation as what the model continues."""


class Encode(Protocol):
    """The model's tokenizer."""

    def __call__(self, text: str, *, add_special_tokens: bool) -> list[int]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Renderer:
    """Renders the prompts of one model. A model without a chat template has no `write`."""

    write: Write | None
    encode: Encode
    shape: ChatShape

    def render(self, messages: Sequence[Message]) -> Rendered:
        """Raises RequestRefusedError when the template does not take the messages even as rewritten for it."""
        if self.write is None:
            text = encodable(plain_text(messages))
            return Rendered(text, self.encode(text, add_special_tokens=True))
        with boundary(RequestRefusedError, "the model's chat template refuses the prompt"):
            return self.write(conversation_of(self.shape.fit(messages)))


def renderer_of(write: Write | None, encode: Encode, *, key: tuple[str, ...]) -> Renderer:
    """The renderer of a model; its template is probed here.

    Raises ConfigError for the setting `key`, where the template comes from, when it can write no prompt.
    """
    if write is None:
        return Renderer(write=None, encode=encode, shape=ChatShape())
    try:
        shape = probe_shape(lambda messages: write(conversation_of(messages)).text)
    except RequestRefusedError as fault:
        raise ConfigError.at(key, f"the chat template does not work: {fault}") from fault
    return Renderer(write=write, encode=encode, shape=shape)


def switches_of(thinking: bool | None) -> dict[str, bool]:
    """The variables of a chat template that switch thinking on or off, by the name most templates have for it."""
    return {} if thinking is None else {THINKING_VARIABLE: thinking}


def settings_by_thinking(
    settings: Mapping[str, JsonValue], asking: Mapping[bool, str]
) -> dict[bool | None, dict[str, JsonValue]]:
    """The settings of a chat template for each value of an agent's `thinking`; `asking` says which agents set which."""
    values: tuple[bool | None, ...] = (None, True, False) if asking else (None,)
    return {value: {**settings, **switches_of(value)} for value in values}


def renderers_for(
    renderer: Callable[[Mapping[str, JsonValue]], Renderer],
    settings: Mapping[str, JsonValue],
    asking: Mapping[bool, str],
    *,
    section: tuple[str, ...],
) -> dict[bool | None, Renderer]:
    """A renderer for each value of an agent's `thinking`, of a model whose section of the file has these `settings`.

    Raises ConfigError where agents set `thinking` and the chat template writes the same prompt either way.
    """
    found = {value: renderer(each) for value, each in settings_by_thinking(settings, asking).items()}
    if asking and found[True].render((USER_PROBE,)) == found[False].render((USER_PROBE,)):
        agents = ", ".join(sorted(map(repr, asking.values())))
        text = f"its chat template has no switch {THINKING_VARIABLE!r}, so `thinking` of agent {agents} would change "
        raise ConfigError.at((*section, "model"), f"{text}nothing; leave it out")
    return found


def conversation_of(messages: Sequence[Message]) -> Conversation:
    return [{"role": message.role, "content": encodable(message.content)} for message in messages]


def encodable(text: str) -> str:
    """`text` with a question mark for each half of a surrogate pair, which has no bytes in UTF-8."""
    return text.encode("utf-8", "replace").decode()


_REASONS: Final[Mapping[str | None, FinishReason]] = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}
_UNFINISHED: Final = ("abort", "error", None)


def token_reply(
    engine: str,
    text: str,
    reason: str | None,
    *,
    trace: TokenTrace,
    cached: int,
    is_thinking: bool,
    traces: bool,
    policy: PolicySpan | None = None,
) -> Reply:
    """The reply of an engine in this process, from the tokens it was given and has made.

    With `is_thinking` the reply continues a thought that the prompt opened. The thought is set apart, the trace is kept
    with `traces`.
    Raises TransientBackendError when `engine` ended the request without finishing it, or without a word.
    """
    if reason in _UNFINISHED or (not text and reason not in _REASONS):
        raise TransientBackendError(f"{engine} ended the request unfinished: {reason}", has_answered=True)
    said, thought = apart(f"{OPEN_THOUGHT}{text}" if is_thinking else text)
    return Reply(
        text=said,
        thinking=thought,
        finish_reason=_REASONS.get(reason) or own_reason(reason),
        tokens=TokenCount(prompt=trace.prompt_size, cached=cached, completion=trace.completion_size),
        trace=trace if traces else None,
        policy=policy,
    )
