"""What is asked of the engine, whichever protocol it came by."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mac_runner.nano.errors import InvalidRequestError, PromptTooLongError
from mac_runner.nano.sampling_params import SamplingParams
from mac_runner.nano.tokenizer import Tokenizer

ANY_OBJECT = json.dumps({"type": "object"})
"""The schema of what is asked for as JSON and no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """Messages for the model's chat template, and what else the template is given."""

    messages: tuple[Mapping[str, str], ...]
    variables: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Prompts to be completed alike.

    `params.max_tokens` holds unless `is_open_ended`: then a completion may fill what is left of the context.
    `context_tokens` is a context shorter than the model's that the client asks for. `thinks` says that the model is to
    think first, and its thought to be told apart from the answer.
    """

    prompts: tuple[str | tuple[int, ...] | Chat, ...]
    params: SamplingParams
    num_samples: int = 1
    is_open_ended: bool = False
    context_tokens: int | None = None
    thinks: bool = False


def tokens_of(
    prompt: str | tuple[int, ...] | Chat, tokenizer: Tokenizer | None, context_tokens: int
) -> tuple[int, ...]:
    """The tokens of a prompt.

    Raises InvalidRequestError, and PromptTooLongError for a text that cannot fit, before it is tokenised.
    """
    if isinstance(prompt, tuple):
        return prompt
    if tokenizer is None:
        raise InvalidRequestError("text needs a tokenizer, and this model has no tokenizer.json: send token ids")
    is_chat = isinstance(prompt, Chat)
    text = tokenizer.chat_text(list(prompt.messages), prompt.variables) if isinstance(prompt, Chat) else prompt
    chars_max = tokenizer.chars_max(context_tokens)
    if chars_max is not None and len(text) > chars_max:
        raise PromptTooLongError(
            f"the prompt has {len(text)} characters, more than the context of {context_tokens} tokens can hold"
        )
    return tuple(tokenizer.encode(text, add_special_tokens=not is_chat))


def schema_text(schema: object) -> str:
    """A JSON schema as the engine takes it."""
    return schema if isinstance(schema, str) else json.dumps(schema)


def overlaid(defaults: SamplingParams, given: Mapping[str, object]) -> SamplingParams:
    """`defaults` with the settings that were given; None is none. Raises InvalidRequestError."""
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return replace(defaults, **changes)
