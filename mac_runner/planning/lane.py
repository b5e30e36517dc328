"""One lane of a modelled engine: continuous batching, without I/O and without a clock.

    step = step_ms + token_ms * sequences + prompt_token_ms * prompt tokens read + context_token_ms * context read

In a step each running sequence gets a token. Prompts are read in pieces of what the budget of the step leaves, in order
of arrival; the step that reads the end of a prompt gives the first token of its reply. A request is admitted between
two steps, while there are seats and KV cache. Where the cache is full, the sequence admitted last gives up its place
and is read again.

While nothing is read, all steps up to the next change are one jump: their time is a sum that needs no loop.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Final

from mac_runner.latency import StepModel
from mac_runner.types import Prompt

BLOCK_TOKENS: Final = 16
"""The tokens of a block, as vLLM and nano have it."""


def prompt_tokens_of(prompt: Prompt, chars_per_token: float) -> int:
    """How many tokens a prompt has, estimated by its characters."""
    return max(1, round(prompt.size_chars / chars_per_token))


def chain_of(
    prompt: Prompt, chars_per_token: float, *, mark: str | None = None, common: frozenset[int] = frozenset()
) -> list[int]:
    """The whole blocks of a prompt. Those of prompts with another `mark` differ from the first one on that is not
    `common`."""
    size = max(1, math.ceil(BLOCK_TOKENS * chars_per_token))
    text = "\x1e".join([f"{message.role}\x1f{message.content}" for message in prompt.messages])
    last, blocks = 0, list[int]()
    for at in range(0, len(text) - size + 1, size):
        last = hash((last, text[at : at + size]))
        if mark is not None and last not in common:
            last = hash((last, mark))
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

    def hit(self, blocks: list[int], tokens: int) -> int:
        """How many of the `tokens` of a prompt are here. The last one is read in any case: that gives the reply."""
        if not self._is_shared:
            return 0
        in_use, idle, count = self._in_use, self._idle, 0
        for block in blocks[: (tokens - 1) // BLOCK_TOKENS]:
            if block not in in_use and block not in idle:
                break
            count += 1
        return count * BLOCK_TOKENS

    def take(self, blocks: list[int], own: int, *, spare: int = 0) -> bool:
        """Keep the blocks of a request, and room for `own` tokens of its own.

        False where that leaves fewer than `spare` tokens of room.
        """
        in_use, idle = self._in_use, self._idle
        new = sum([block not in in_use for block in blocks])
        if new * BLOCK_TOKENS + own + spare > self.free:
            return False
        for block in blocks:
            in_use[block] = in_use.get(block, 0) + 1
            idle.pop(block, None)
        self.grow(own)
        return True

    def grow(self, tokens: int) -> None:
        """Keep so many more tokens of running requests; the blocks of ended ones make room."""
        self._own += tokens
        idle, room = self._idle, max(0, self.free) // BLOCK_TOKENS
        while len(idle) > room:
            idle.popitem(last=False)

    def leave(self, blocks: list[int], own: int) -> None:
        """Give back the room of a request. Its blocks stay while there is room, those at its end shortest."""
        self._own -= own
        in_use, idle = self._in_use, self._idle
        for block in reversed(blocks):
            in_use[block] -= 1
            if not in_use[block]:
                del in_use[block]
                if self._is_shared:
                    idle[block] = None


_EPSILON_S: Final = 1e-9
"""Times closer than this are one moment."""


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """One request in a lane."""

    blocks: list[int]
    """The whole blocks of its prompt."""
    prompt_tokens: int
    reply_tokens: int
    cached_tokens: int | None = None
    """What it found in the cache when it was first admitted."""
    number: int = 0
    """Its place in the order of admission."""
    made: int = 0
    """Tokens of its reply that it had when it was admitted."""
    unread: int = 0
    """Tokens that are still to be read: of its prompt and, after a preemption, of its reply."""
    own: int = 0
    """Tokens of the cache that were its own when it was admitted, with room for the next one."""
    ends_at: int = 0
    """The lane's count of steps at its last token."""


@dataclass(slots=True, eq=False)
class _Jump:
    """Steps under way: `count` of them, the first of `first_s`, and each `more_s` longer than the one before.

    `read` are the sequences whose prompts are read to their end; then it is one step.
    """

    count: int
    first_s: float
    more_s: float = 0.0
    read: list[Sequence] = field(default_factory=list)
    is_kv_short: bool = False

    @property
    def seconds(self) -> float:
        return self.count * (self.first_s + self.more_s * (self.count - 1) / 2)

    def steps_begun(self, passed_s: float) -> int:
        """How many steps have begun after so many seconds, at least 1."""
        if passed_s >= self.seconds - _EPSILON_S:
            return self.count
        half = self.more_s / 2
        first_s = self.first_s - half
        steps = (math.sqrt(first_s**2 + 4 * half * passed_s) - first_s) / self.more_s if half else passed_s / first_s
        return min(self.count, max(1, math.ceil(steps - 1e-7)))


class Lane:
    """One server. The caller passes the time, and calls `end_steps` when it is `due_s`.

    A request must fit the cache: its prompt, its reply and a block.
    """

    def __init__(self, model: StepModel, *, seats: int, step_tokens: int, cache: KvCache) -> None:
        self._model = model
        self._seats = seats
        self._step_tokens = step_tokens
        self._cache = cache
        self._waiting: deque[Sequence] = deque()
        self._reading: list[Sequence] = []
        self._writing: list[tuple[int, int, Sequence]] = []
        """A heap: the one that ends first is at its top."""
        self._context = 0
        """The tokens that those who write read in the next step."""
        self._steps = 0
        self._admitted = 0
        self._at_s = 0.0
        self._jump: _Jump | None = None
        self.busy_s = 0.0
        self.kv_wait_s = 0.0
        """While a seat was free and a request waited for KV cache."""
        self.preemptions = 0

    @property
    def due_s(self) -> float | None:
        """When the steps under way end; None while it is idle."""
        return None if self._jump is None else self._at_s + self._jump.seconds

    def add(self, sequence: Sequence, now_s: float) -> None:
        """Take one more request. It is admitted at the end of the present step, if there is a seat."""
        jump, is_first = self._jump, not self._waiting
        self._waiting.append(sequence)
        if jump is None:
            self._at_s = now_s
            self._begin()
        elif jump.count > 1 and is_first and self._running < self._seats:
            jump.count = jump.steps_begun(now_s - self._at_s)

    def end_steps(self) -> list[Sequence]:
        """End the steps under way and begin the next; returns the requests that have their last token."""
        jump, self._jump = self._jump, None
        assert jump is not None, "nothing is under way"
        seconds, written = jump.seconds, len(self._writing) * jump.count
        self._at_s += seconds
        self.busy_s += seconds
        self.kv_wait_s += seconds if jump.is_kv_short else 0.0
        self._steps += jump.count
        self._context += written
        self._cache.grow(written)
        for sequence in jump.read:
            sequence.ends_at = self._steps + sequence.reply_tokens - sequence.made - 1
            self._context += sequence.prompt_tokens + sequence.made + 1
            heapq.heappush(self._writing, (sequence.ends_at, sequence.number, sequence))
        ended = []
        while self._writing and self._writing[0][0] <= self._steps:
            sequence = heapq.heappop(self._writing)[2]
            self._leave(sequence)
            ended.append(sequence)
        self._begin()
        return ended

    @property
    def _running(self) -> int:
        return len(self._reading) + len(self._writing)

    def _begin(self) -> None:
        """Begin the next step, or all steps up to the next change."""
        self._make_room()
        writers = len(self._writing)
        left = budget = max(0, self._step_tokens - writers)
        for sequence in self._reading:
            left -= _read(sequence, left)
        is_kv_short = False
        while self._waiting and left and self._running < self._seats:
            if is_kv_short := not self._admit(self._waiting[0]):
                break
            sequence = self._waiting.popleft()
            self._reading.append(sequence)
            left -= _read(sequence, left)
        if not self._running:
            return
        done = [sequence for sequence in self._reading if not sequence.unread] if left < budget else []
        context = self._context + sum(sequence.prompt_tokens + sequence.made for sequence in done)
        model = self._model
        ms = model.step_ms + model.token_ms * (writers + len(done)) + model.prompt_token_ms * (budget - left)
        first_s = (ms + model.context_token_ms * context) / 1000
        if left < budget:
            self._reading = [sequence for sequence in self._reading if sequence.unread]
            self._jump = _Jump(1, first_s, read=done, is_kv_short=is_kv_short)
        else:
            count = max(1, min(self._writing[0][0] - self._steps, self._cache.free // writers))
            self._jump = _Jump(count, first_s, model.context_token_ms * writers / 1000, is_kv_short=is_kv_short)

    def _admit(self, sequence: Sequence) -> bool:
        tokens = sequence.prompt_tokens + sequence.made
        hit = self._cache.hit(sequence.blocks, tokens)
        own = tokens - len(sequence.blocks) * BLOCK_TOKENS + 1
        if not self._cache.take(sequence.blocks, own, spare=len(self._writing)):
            return False
        if sequence.cached_tokens is None:
            sequence.cached_tokens = hit
        self._admitted += 1
        sequence.own, sequence.unread, sequence.number = own, tokens - hit, self._admitted
        return True

    def _leave(self, sequence: Sequence) -> None:
        """Take one that writes out of the batch."""
        made = sequence.reply_tokens - (sequence.ends_at - self._steps)
        self._context -= sequence.prompt_tokens + made
        self._cache.leave(sequence.blocks, sequence.own + made - sequence.made - 1)
        sequence.made = made

    def _make_room(self) -> None:
        """Preempt those admitted last until each one that writes has room for a token."""
        while self._cache.free < len(self._writing) and self._running > 1:
            written = max((sequence for _, _, sequence in self._writing), key=_number)
            last = max([*self._reading, written], key=_number)
            if last is written:
                self._writing = [entry for entry in self._writing if entry[2] is not last]
                heapq.heapify(self._writing)
                self._leave(last)
            else:
                self._reading.remove(last)
                self._cache.leave(last.blocks, last.own)
            self._waiting.appendleft(last)
            self.preemptions += 1


def _read(sequence: Sequence, left: int) -> int:
    """Read of a prompt what a step has room for; returns how much that is."""
    piece = min(sequence.unread, left)
    sequence.unread -= piece
    return piece


def _number(sequence: Sequence) -> int:
    return sequence.number
