"""The KV cache of a modelled lane: prompts in blocks, shared where they begin alike, and the oldest forgotten first.

A prompt is a chain of blocks, each named by a hash of itself and all before it, as vLLM and nano have it. Blocks of
running requests stay; blocks of ended ones stay until the room is needed. The tokens of a reply have room of their own
and are forgotten with their request.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from mac_runner.types import Prompt

BLOCK_TOKENS: Final = 16
"""The tokens of a block, as vLLM and nano have it."""


def prompt_tokens_of(prompt: Prompt, chars_per_token: float) -> int:
    """How many tokens a prompt has, estimated by its characters."""
    return max(1, round(prompt.size_chars / chars_per_token))


def chain_of(prompt: Prompt, chars_per_token: float) -> list[int]:
    """The whole blocks of a prompt."""
    size = max(1, math.ceil(BLOCK_TOKENS * chars_per_token))
    text = "\x1e".join([f"{message.role}\x1f{message.content}" for message in prompt.messages])
    last, blocks = 0, list[int]()
    for at in range(0, len(text) - size + 1, size):
        last = hash((last, text[at : at + size]))
        blocks.append(last)
    return blocks[: prompt_tokens_of(prompt, chars_per_token) // BLOCK_TOKENS]


class KvCache:
    """What one lane keeps of prompts and replies. `tokens` is its size.

    With `is_shared` a request finds the blocks that an earlier prompt has left; without, it reads its prompt whole.
    """

    def __init__(self, tokens: int, *, is_shared: bool = True) -> None:
        self._tokens = tokens
        self._is_shared = is_shared
        self._in_use: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._own = 0

    @property
    def free(self) -> int:
        """The tokens that running requests leave room for."""
        return self._tokens - len(self._in_use) * BLOCK_TOKENS - self._own

    def hit(self, blocks: Sequence[int], tokens: int) -> int:
        """How many of the `tokens` of a prompt are here. The last one is read in any case: that gives the reply."""
        if not self._is_shared:
            return 0
        in_use, idle, count = self._in_use, self._idle, 0
        for block in blocks[: (tokens - 1) // BLOCK_TOKENS]:
            if block not in in_use and block not in idle:
                break
            count += 1
        return count * BLOCK_TOKENS

    def take(self, blocks: Sequence[int], own: int, *, spare: int = 0) -> bool:
        """Keep the blocks of a request, and room for `own` tokens of its own.

        False where that leaves fewer than `spare` tokens of room.
        """
        in_use, idle = self._in_use, self._idle
        new = sum([block not in in_use for block in blocks])
        if new * BLOCK_TOKENS + own + spare > self.free:
            return False
        for block in blocks:
            count = in_use.get(block)
            if count is None:
                in_use[block] = 1
                idle.pop(block, None)
            else:
                in_use[block] = count + 1
        self.grow(own)
        return True

    def grow(self, tokens: int) -> None:
        """Keep so many more tokens of running requests; the blocks of ended ones make room."""
        self._own += tokens
        idle, room = self._idle, max(0, self.free) // BLOCK_TOKENS
        while len(idle) > room:
            idle.popitem(last=False)

    def leave(self, blocks: Sequence[int], own: int) -> None:
        """Give back the room of a request. Its blocks stay while there is room, those at its end shortest."""
        self._own -= own
        in_use, idle = self._in_use, self._idle
        for block in reversed(blocks):
            count = in_use[block]
            if count > 1:
                in_use[block] = count - 1
            else:
                del in_use[block]
                if self._is_shared:
                    idle[block] = None
