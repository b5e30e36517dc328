"""The gather: everybody gets everybody's, in order, however fast each is; and nobody waits for ever."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from threading import Event, Thread

import pytest
import torch

from mac_runner.nano import RankFailedError
from mac_runner.nano.parallel import group
from mac_runner.nano.testing import (
    ALONE,
    LOCAL,
    GatherMemory,
    Group,
    MemoryGroup,
    Shard,
    TorchGroup,
    anonymous_memory,
    has_ordered_memory,
    host_store,
    join_store,
)

CPU = torch.device("cpu")
Groups = Callable[[int, torch.dtype], AbstractContextManager[list[Group]]]
PIECE_BYTES = 6_400
NUM_GATHERS = 200

needs_memory = pytest.mark.skipif(not has_ordered_memory(), reason="this machine does not promise the order of writes")


@contextmanager
def memory_groups(size: int, dtype: torch.dtype = torch.float32, is_over: Event | None = None) -> Iterator[list[Group]]:
    """All ranks of a group, for threads to play."""
    layout = GatherMemory(size, PIECE_BYTES)
    fd = anonymous_memory(layout.num_bytes)
    try:
        yield [MemoryGroup(Shard(rank, size), layout, fd, dtype, is_over or Event()) for rank in range(size)]
    finally:
        os.close(fd)


@contextmanager
def torch_groups(size: int, dtype: torch.dtype = torch.float32) -> Iterator[list[Group]]:
    """The same over gloo; the type is known from what is gathered."""
    store, port = host_store(size)

    def join(rank: int) -> Group:
        return TorchGroup(Shard(rank, size), CPU, join_store(LOCAL, port, size), LOCAL)

    with ThreadPoolExecutor(size) as threads:
        others = [threads.submit(join, rank) for rank in range(1, size)]
        first = TorchGroup(Shard(0, size), CPU, store, LOCAL)
        yield [first, *(each.result() for each in others)]


def part(turn: int, rank: int, dtype: torch.dtype) -> torch.Tensor:
    """What a rank brings to a turn: of another shape each time."""
    shape = (1 + turn * 7 % 40, 1 + turn * 3 % 40)
    return torch.full(shape, turn % 100 + rank / 4).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("groups", [pytest.param(memory_groups, marks=needs_memory), torch_groups])
def test_every_rank_gets_all_parts_in_the_order_of_the_ranks(groups: Groups, size: int, dtype: torch.dtype) -> None:
    """Ranks that do more between two gathers than others, now this one and now that, change nothing."""

    def play(rank: int, member: Group) -> bool:
        is_right = True
        for turn in range(NUM_GATHERS):
            if turn % (rank + 2) == 0:
                torch.randn(50, 50).mm(torch.randn(50, 50))
            found = member.gather(part(turn, rank, dtype))
            expected = torch.cat([part(turn, each, dtype) for each in range(size)], dim=-1)
            is_right = is_right and torch.equal(found, expected)
        return is_right

    with groups(size, dtype) as members, ThreadPoolExecutor(size) as threads:
        assert all(threads.map(play, range(size), members))


@needs_memory
def test_part_that_is_no_block_of_memory_is_gathered_too() -> None:
    whole = torch.randn(5, 12)
    with memory_groups(2) as members, ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda member: member.gather(member.shard.columns(whole)), members))

    assert all(torch.equal(each, whole) for each in found)


@needs_memory
def test_rank_that_is_lost_is_not_waited_for() -> None:
    is_over = Event()
    with memory_groups(2, is_over=is_over) as (first, _):
        thread = Thread(target=is_over.set)
        thread.start()
        with pytest.raises(RankFailedError, match="rank 1 is lost"):
            first.gather(torch.ones(2, 2))
        thread.join()


@needs_memory
def test_rank_that_does_not_come_is_waited_for_so_long_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each wait for the end passes at once."""
    is_over, naps_s = Event(), list[float]()
    monkeypatch.setattr(is_over, "wait", naps_s.append)
    with (
        memory_groups(2, is_over=is_over) as (first, _),
        pytest.raises(RankFailedError, match="rank 1 has kept"),
    ):
        first.gather(torch.ones(2, 2))

    assert sum(naps_s) == pytest.approx(group.PATIENCE_S)


def test_rank_alone_gets_its_own_part_itself() -> None:
    mine = torch.ones(2, 2)

    assert ALONE.gather(mine) is mine


def test_memory_has_no_name_and_is_gone_when_it_is_closed() -> None:
    fd = anonymous_memory(1 << 20)

    assert os.fstat(fd).st_nlink == 0
    assert os.fstat(fd).st_size == 1 << 20
    os.close(fd)
