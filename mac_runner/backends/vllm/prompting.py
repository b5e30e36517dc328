"""The prompts of vLLM's models: written by the model's own template, which may be a text or code of its tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mac_runner.backends.chat import USER_PROBE
from mac_runner.backends.rendering import Conversation, Rendered, Renderer, Write, conversation_of, renderer_of
from mac_runner.backends.vllm.protocols import ReasoningParser, Tokenizer
from mac_runner.errors import RequestRefusedError, boundary
from mac_runner.types import JsonValue, Prompt

_PROBE: Final = conversation_of((USER_PROBE,))
_IN_CODE: Final = "in code"


def renderer_for(tokenizer: Tokenizer, settings: Mapping[str, JsonValue], *, section: tuple[str, ...]) -> Renderer:
    """The renderer of vLLM's model; an experiment's `settings` may bring the template that the model lacks.

    Raises ConfigError, for a key of the experiment's `section`, when the template cannot work.
    """
    key = (*section, "chat_template_kwargs" if settings else "model")
    write = _writer(tokenizer, settings) if _has_template(tokenizer, settings) else None
    return renderer_of(write, tokenizer.encode, key=key)


def is_free_to_think(prompt: Prompt, ids: list[int], parser: ReasoningParser | None) -> bool:
    """Whether the reply may go on with a thought that the prompt, as `ids`, leaves open.

    It may when it is held to no form, or when `parser` tells the engine that the form begins behind the thought.
    """
    return not prompt.is_constrained or (parser is not None and not parser.is_reasoning_end(ids))


def _has_template(tokenizer: Tokenizer, settings: Mapping[str, JsonValue]) -> bool:
    """Whether there is a template. Where it is code there is none to be seen, and it shows when it is tried."""
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
            # Mistral's tokenizers take the name of a special token that stands in a text for plain letters.
            is_text_enough = by_text(_PROBE).ids == by_tokens(_PROBE).ids
    except RequestRefusedError:
        is_text_enough = True  # What is wrong with the template is met again, and told, when its shape is looked for.
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
