"""What modelled engines answer: a text, and how many tokens it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Protocol

from mac_runner.environments.base import Policy
from mac_runner.errors import RequestRefusedError, boundary
from mac_runner.types import Reply, Request, TokenCount, stable_hash


class ReplySource(Protocol):
    """Gives the reply to a request; it may depend on the request alone."""

    def __call__(self, request: Request) -> Reply:
        """The reply. Its `tokens.completion` are those that the engine generates, a thought included."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedReplies:
    """The texts of scripted players. `policy_of` finds that of a conversation and a model.

    With `tokens_of`, replies take so many tokens as it draws; otherwise as many as their characters make.
    """

    policy_of: Callable[[str, str], Policy]
    chars_per_token: float
    tokens_of: Callable[[Random], int] | None = None

    def __call__(self, request: Request) -> Reply:
        """The player's reply. What the player raises refuses the request."""
        seed = request.sampling.seed
        with boundary(RequestRefusedError, "the scripted player failed"):
            policy = self.policy_of(request.conversation, request.turn.model)
            text = policy(request.prompt.view, Random(seed))  # noqa: S311 - play, not secrecy
        if self.tokens_of is None:
            tokens = max(1, round(len(text) / self.chars_per_token))
        else:
            draw = Random(stable_hash("reply tokens", request.request_id))  # noqa: S311
            tokens = min(self.tokens_of(draw), request.sampling.max_tokens)
        return Reply(text=text, tokens=TokenCount(completion=tokens))
