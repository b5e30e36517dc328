"""A request in vLLM's terms, and its output as a Reply.

Prompts are written by the model's own template, which may be a text or code of its tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Final

from mac_runner.backends.chat_template import (
    CLOSED_THOUGHT,
    OPEN_THOUGHT,
    USER_PROBE,
    Conversation,
    Rendered,
    Renderer,
    Write,
    check_switch,
    conversation_of,
    renderer_of,
    switches_of,
    token_reply,
)
from mac_runner.backends.forms import JSON_OBJECT
from mac_runner.backends.server_text import token_count
from mac_runner.backends.updates import policy_of
from mac_runner.backends.vllm.library import Output, ReasoningParser, Tokenizer
from mac_runner.errors import RequestRefusedError, TransientBackendError, boundary
from mac_runner.types import EFFORT_KEYS, JsonValue, Prompt, Reply, Sampling, TokenTrace

_PROBE: Final = conversation_of((USER_PROBE,))
_IN_CODE: Final = "in code"


def renderer_for(tokenizer: Tokenizer, settings: Mapping[str, JsonValue], *, section: tuple[str, ...]) -> Renderer:
    """The renderer of vLLM's model; an experiment's `settings` may bring the template that the model lacks.

    Raises ConfigError, for a key of the experiment's `section`, when the template cannot work.
    """
    key = (*section, "chat_template_kwargs" if settings else "model")
    write = _writer(tokenizer, settings) if _has_template(tokenizer, settings) else None
    return renderer_of(write, tokenizer.encode, key=key)


def renderers_for(
    tokenizer: Tokenizer,
    settings: Mapping[str, JsonValue],
    *,
    section: tuple[str, ...],
    thinking: Mapping[bool, str],
) -> dict[bool | None, Renderer]:
    """A renderer for each value of an agent's `thinking`. Raises ConfigError for a template that cannot follow it."""
    values: tuple[bool | None, ...] = (None, True, False) if thinking else (None,)
    found = {value: renderer_for(tokenizer, {**settings, **switches_of(value)}, section=section) for value in values}
    check_switch(found, thinking, key=(*section, "model"))
    return found


def is_free_to_think(prompt: Prompt, ids: list[int], parser: ReasoningParser | None) -> bool:
    """Whether the reply may continue a thought that the prompt, as `ids`, leaves open.

    It may when it is held to no form, or when the engine's `parser` finds that the form begins after the thought.
    """
    return not prompt.is_constrained or (parser is not None and not parser.is_reasoning_end(ids))


def tags_of(parser: ReasoningParser | None) -> tuple[str, str]:
    """What a model's thought begins and ends with: as its parser says, or the tags of most models."""
    start, end = getattr(parser, "reasoning_start_str", None), getattr(parser, "reasoning_end_str", None)
    return (start, end) if start and end else (OPEN_THOUGHT, CLOSED_THOUGHT)


def _has_template(tokenizer: Tokenizer, settings: Mapping[str, JsonValue]) -> bool:
    """Whether there is a template. One that is code has no text, so it is tried."""
    if getattr(tokenizer, "chat_template", _IN_CODE) is not None or "chat_template" in settings:
        return True
    try:
        with boundary(RequestRefusedError, "the chat template"):
            _written(tokenizer, _PROBE, {})
    except RequestRefusedError:
        return False
    return True


def _writer(tokenizer: Tokenizer, settings: Mapping[str, JsonValue]) -> Write:
    def by_text(conversation: Conversation) -> Rendered:
        text = _written(tokenizer, conversation, settings)
        return Rendered(text, tokenizer.encode(text, add_special_tokens=False))

    def by_tokens(conversation: Conversation) -> Rendered:
        ids = _tokenized(tokenizer, conversation, settings)
        return Rendered(tokenizer.decode(ids), ids)

    try:
        with boundary(RequestRefusedError, "the chat template"):
            # Mistral's tokenizers read the name of a special token in a text as plain letters.
            is_text_enough = by_text(_PROBE).ids == by_tokens(_PROBE).ids
    except RequestRefusedError:
        is_text_enough = True  # A broken template is reported when its shape is probed.
    return by_text if is_text_enough else by_tokens


def _written(tokenizer: Tokenizer, conversation: Conversation, settings: Mapping[str, JsonValue]) -> str:
    text = tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True, **settings)
    if not isinstance(text, str):
        raise TypeError(f"it writes a {type(text).__name__} instead of a text")
    return text


def _tokenized(tokenizer: Tokenizer, conversation: Conversation, settings: Mapping[str, JsonValue]) -> list[int]:
    ids = tokenizer.apply_chat_template(
        conversation, tokenize=True, return_dict=False, add_generation_prompt=True, **settings
    )
    if isinstance(ids, str):
        raise TypeError("it writes a text instead of tokens")
    return list(ids)


def sampling_settings(
    sampling: Sampling, prompt: Prompt, *, defaults: Mapping[str, JsonValue], traces: bool
) -> dict[str, object]:
    """The settings for vLLM's sampling parameters, with `json`, `json_object` or `choice` for the legal replies.

    `defaults` are the model's own, which `vllm serve` uses too, for settings that `sampling` leaves open. A schema says
    more than a list of choices, so a prompt with both is held to the schema.
    """
    given = {
        field: value for field, value in asdict(sampling).items() if value is not None and field not in EFFORT_KEYS
    }
    given["stop"] = list(sampling.stop)
    settings: dict[str, object] = {**defaults, **given}
    if traces:
        settings["logprobs"] = 0  # Of the drawn token alone.
    if prompt.schema is JSON_OBJECT:
        settings["json_object"] = True
    elif prompt.schema is not None:
        settings["json"] = dict(prompt.schema)
    elif prompt.choices is not None:
        settings["choice"] = list(prompt.choices)
    return settings


def reply_of(
    output: Output,
    rendered: Rendered,
    *,
    is_thinking: bool,
    traces: bool,
    tags: tuple[str, str] = (OPEN_THOUGHT, CLOSED_THOUGHT),
) -> Reply:
    """The reply, which continues a thought that the prompt opened if it `is_thinking`.

    `tags` are those of the model's thoughts.
    Raises TransientBackendError when the engine ended the request without finishing it, or its trace is not whole.
    """
    completion = output.outputs[0]
    ids = tuple(completion.token_ids)
    # vLLM may report the likelihood of other tokens than the drawn ones, too.
    pairs = zip(ids, completion.logprobs or (), strict=True) if traces else ()
    try:
        trace = TokenTrace(
            prompt_ids=tuple(rendered.ids),
            completion_ids=ids,
            logprobs=tuple(found[token].logprob for token, found in pairs),
        )
    except (ValueError, LookupError) as fault:
        raise TransientBackendError(
            f"vLLM's log-probabilities do not fit its tokens: {fault}", has_answered=True
        ) from fault
    text, (start, end) = completion.text, tags
    if tags != (OPEN_THOUGHT, CLOSED_THOUGHT) and (is_thinking or text.lstrip().startswith(start)):
        thought, closed, said = text.lstrip().removeprefix(start).partition(end)
        text = f"{'' if is_thinking else OPEN_THOUGHT}{thought}{CLOSED_THOUGHT if closed else ''}{said}"
    return token_reply(
        "vLLM",
        text,
        completion.finish_reason,
        trace=trace,
        cached=token_count(output.num_cached_tokens),
        is_thinking=is_thinking,
        traces=traces,
        # Releases before 0.32 report none.
        policy=policy_of([span.version for span in getattr(completion, "weight_versions", None) or ()]),
    )
