"""A request for a backend to answer, without a conversation behind it."""

from __future__ import annotations

from typing import Final

from mac_runner.types import JsonObject, Message, Prompt, Request, Sampling, Turn

SETTINGS: Final[JsonObject] = {
    "temperature": 0.5,
    "max_tokens": 9,
    "top_p": 0.9,
    "top_k": 40,
    "min_p": 0.1,
    "presence_penalty": 0.2,
    "frequency_penalty": 0.3,
    "repetition_penalty": 1.1,
    "stop": ["END"],
    "seed": 3,
}
"""Others than the default in every field that says how tokens are drawn, under the names that most engines have."""
EVERY_SETTING: Final = Sampling(**{**SETTINGS, "stop": ("END",)})  # type: ignore[arg-type]
"""The same."""


def request(
    content: str = "hello",
    *,
    prompt: Prompt | None = None,
    sampling: Sampling | None = None,
    conversation: str = "task-000000",
    agent: str = "a",
    model: str = "m",
) -> Request:
    """One turn of `agent` in `conversation`, asking for an answer to `content` unless a whole prompt is given."""
    return Request(
        conversation=conversation,
        turn=Turn(round=0, agent=agent, model=model, place=0),
        prompt=prompt or Prompt(messages=(Message(role="user", content=content),)),
        sampling=sampling or Sampling(seed=1),
    )
