"""Replies token by token, kept in few bytes.

The prompts of one conversation repeat each other. A trace may keep its prompt as what follows the ids that it shares
with an earlier trace, so a long conversation needs little more memory than what is new in each turn.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

ID_BYTES: Final = 4
"""The bytes of an id and of a log-probability."""


class TokenTrace:
    """A reply token by token, for training: the ids the model was shown, those it drew, and how likely each was.

    `logprobs` are natural logarithms, one for each of `completion_ids`. Ids are kept as int32 and log-probabilities as
    float32. Raises ValueError for a number that does not fit, and for what is not a number.
    """

    __slots__ = ("completion", "earlier", "likelihoods", "rest", "shared")

    completion: bytes
    """The ids of the reply, as little-endian int32."""
    earlier: TokenTrace | None
    """The trace whose prompt begins with the same ids; None where the prompt is kept whole."""
    likelihoods: bytes
    """The log-probabilities, as little-endian float32."""
    rest: bytes
    """The ids of the prompt after the shared ones, as little-endian int32."""
    shared: int
    """How many ids are the same."""

    def __init__(self, *, prompt_ids: Iterable[int], completion_ids: Iterable[int], logprobs: Iterable[float]) -> None:
        self.rest, self.completion = _packed("i", prompt_ids), _packed("i", completion_ids)
        self.likelihoods = _packed("f", logprobs)
        self.earlier, self.shared = None, 0

    @classmethod
    def packed(
        cls, rest: bytes, completion: bytes, likelihoods: bytes, *, earlier: TokenTrace | None = None, shared: int = 0
    ) -> TokenTrace:
        """A trace from its bytes. Raises ValueError where they do not fit together."""
        if any(len(data) % ID_BYTES for data in (rest, completion, likelihoods)):
            raise ValueError(f"the bytes of a trace are not whole numbers of {ID_BYTES} bytes")
        if not 0 <= shared <= (0 if earlier is None else earlier.prompt_size):
            raise ValueError(f"a trace should share {shared} ids with a prompt that does not have so many")
        trace = cls.__new__(cls)
        trace.rest, trace.completion, trace.likelihoods = rest, completion, likelihoods
        trace.earlier, trace.shared = earlier, shared
        return trace

    @property
    def prompt_size(self) -> int:
        """How many tokens the prompt has."""
        return self.shared + len(self.rest) // ID_BYTES

    @property
    def completion_size(self) -> int:
        """How many tokens the reply has."""
        return len(self.completion) // ID_BYTES

    @property
    def prompt(self) -> bytes:
        """The ids of the prompt, as little-endian int32."""
        parts: list[bytes] = []
        trace: TokenTrace | None = self
        end = self.prompt_size
        while trace is not None and end:
            if end > trace.shared:
                parts.append(trace.rest[: ID_BYTES * (end - trace.shared)])
                end = trace.shared
            trace = trace.earlier
        return b"".join(reversed(parts))

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """The ids of the prompt."""
        return _unpacked("i", self.prompt)

    @property
    def completion_ids(self) -> tuple[int, ...]:
        """The ids of the reply."""
        return _unpacked("i", self.completion)

    @property
    def logprobs(self) -> tuple[float, ...]:
        """The natural logarithm of how likely each id of the reply was."""
        return _unpacked("f", self.likelihoods)

    def _content(self) -> tuple[bytes, bytes, bytes]:
        return self.prompt, self.completion, self.likelihoods

    def __eq__(self, other: object) -> bool:
        return self._content() == other._content() if isinstance(other, TokenTrace) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._content())

    def __repr__(self) -> str:
        ids = f"prompt_ids={self.prompt_ids}, completion_ids={self.completion_ids}"
        return f"TokenTrace({ids}, logprobs={self.logprobs})"


def shared_ids(one: bytes, other: bytes) -> int:
    """How many ids two packed prompts have in common at their beginning."""
    low, high = 0, min(len(one), len(other)) // ID_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        if one[ID_BYTES * low : ID_BYTES * middle] == other[ID_BYTES * low : ID_BYTES * middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _packed(code: str, values: Iterable[float]) -> bytes:
    numbers = tuple(values)
    try:
        return struct.pack(f"<{len(numbers)}{code}", *numbers)
    except (struct.error, OverflowError) as fault:
        raise ValueError(
            f"a trace holds a value that is not {'an int32' if code == 'i' else 'a float32'}: {fault}"
        ) from None


def _unpacked(code: str, data: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(data) // ID_BYTES}{code}", data)
