"""What one forward pass computes, as plain numbers: the same for every rank, and easily sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Span(NamedTuple):
    """The rows of one sequence: tokens `start` to `start + num_tokens` of it, with its table of blocks."""

    first_row: int
    num_tokens: int
    start: int
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardBatch:
    """Tokens of several sequences one behind the other, each row knowing its place.

    `slots` says where in the KV cache a row's keys and values go, `logit_rows` which rows' logits are wanted.
    """

    token_ids: tuple[int, ...]
    positions: tuple[int, ...]
    slots: tuple[int, ...]
    spans: tuple[Span, ...]
    logit_rows: tuple[int, ...]


class Piece(NamedTuple):
    """The next `num_tokens` of a sequence to compute, and its table."""

    tokens: Sequence[int]
    start: int
    num_tokens: int
    block_ids: Sequence[int]


def make_batch(pieces: Iterable[Piece], block_size: int) -> ForwardBatch:
    """Lay pieces one behind the other. Logits are wanted of those that end with the sequence's last token."""
    token_ids, positions, slots = list[int](), list[int](), list[int]()
    spans, logit_rows = list[Span](), list[int]()
    for tokens, start, num_tokens, block_ids in pieces:
        end = start + num_tokens
        needed = tuple(block_ids[: -(-end // block_size)])
        spans.append(Span(len(token_ids), num_tokens, start, needed))
        token_ids.extend(tokens[start:end])
        positions.extend(range(start, end))
        slots.extend(needed[place // block_size] * block_size + place % block_size for place in range(start, end))
        if end == len(tokens):
            logit_rows.append(len(token_ids) - 1)
    return ForwardBatch(
        token_ids=tuple(token_ids),
        positions=tuple(positions),
        slots=tuple(slots),
        spans=tuple(spans),
        logit_rows=tuple(logit_rows),
    )
