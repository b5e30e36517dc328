"""A request for a backend to answer, without a conversation behind it."""

from __future__ import annotations

from mac_runner.types import Message, Prompt, Request, Sampling, Turn


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
