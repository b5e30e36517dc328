"""The parts of engines of several processes: shards, gathers, weights in shared memory, digests, rounds."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from threading import Barrier, Event, Thread
from typing import Any

import pytest
import torch

from mac_runner.nano import (
    Delta,
    DivergenceError,
    EngineConfig,
    ForwardBatch,
    NanoError,
    Piece,
    RankFailedError,
    SamplingParams,
    make_batch,
    read_model_config,
)
from mac_runner.nano.parallel import group
from mac_runner.nano.testing import (
    ALONE,
    LOCAL,
    WHOLE,
    Call,
    GatherMemory,
    Group,
    Linear,
    MemoryGroup,
    PeerLostError,
    Rank,
    Shard,
    StepDigests,
    TorchGroup,
    anonymous_memory,
    has_ordered_memory,
    host_store,
    join_digests,
    join_store,
    pack,
    play,
    require_equal,
    unpack,
)
from tests.nano.crowds import needs_packing, ranks_as_threads
from tests.nano.tiny_models import ModelMaker
from tests.patience import LIMIT_S


def test_parts_put_together_are_the_whole_and_the_part_of_one_is_the_tensor_itself() -> None:
    weight, activation = torch.randn(24, 5), torch.randn(3, 24)
    for size in (1, 2, 4):
        shards = [Shard(rank, size) for rank in range(size)]
        assert torch.equal(torch.cat([shard.rows(weight) for shard in shards]), weight)
        assert torch.equal(torch.cat([shard.columns(activation) for shard in shards], dim=-1), activation)

    assert WHOLE.columns(activation) is activation


def test_local_shape_counts_the_heads_of_a_part_alone(model: ModelMaker) -> None:
    config = read_model_config(model("llama"))
    local = Shard(1, 2).local(config)

    assert (local.num_heads, local.num_kv_heads) == (2, 1)
    assert (local.hidden_size, local.head_dim, local.vocab_size) == (64, 16, 272)
    assert WHOLE.local(config) == config


SHAPES = ((272, 64), (96, 64), (24, 72), (200, 72), (896, 896), (1408, 512))
PRODUCTS: dict[str, Callable[[Linear, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "plain": lambda linear, x, _: linear(x),
    "swish": lambda linear, x, _: linear.swish(x),
    "add": lambda linear, x, other: linear.with_other(x, other, "add"),
    "mul": lambda linear, x, other: linear.with_other(x, other, "mul"),
}


@needs_packing
@pytest.mark.parametrize(
    ("shape", "dtype", "num_threads"),
    [((200, 72), torch.float32, 2), ((896, 896), torch.bfloat16, 2)]
    + [(shape, dtype, 1) for shape in SHAPES for dtype in (torch.float32, torch.bfloat16)],
)
def test_packed_product_of_a_row_and_of_a_part_has_the_bits_of_the_whole_whatever_the_other_rows(
    shape: tuple[int, int], dtype: torch.dtype, num_threads: int
) -> None:
    before, generator = torch.get_num_threads(), torch.Generator().manual_seed(0)
    torch.set_num_threads(num_threads)
    weight, x, other = (
        torch.randn(size, generator=generator).to(dtype) for size in (shape, (600, shape[1]), (600, shape[0]))
    )
    bias = torch.randn(shape[0], generator=generator).to(dtype)
    shards = [Shard(rank, size) for size in (2, 4) for rank in range(size)]
    linear = Linear(weight, bias)
    parts = [(each, Linear(each.rows(weight).clone(), each.rows(bias).clone())) for each in shards]
    try:
        for name, product in PRODUCTS.items():
            whole = product(linear, x, other)
            for count in (2, 3, 5, 8, 13, 31, 32, 33, 64, 100, 257, 512):
                rows = slice(count * 7 % 80, count * 7 % 80 + count)
                assert torch.equal(product(linear, x[rows], other[rows]), whole[rows]), (name, count)
                for shard, part in parts if count in (2, 3, 33, 100) else ():
                    found = product(part, x[rows], shard.columns(other[rows]))
                    assert torch.equal(found, shard.columns(whole[rows])), (name, count, shard)
    finally:
        torch.set_num_threads(before)


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
    assert ALONE.gather(whole) is whole


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
    with memory_groups(2, is_over=is_over) as (first, _), pytest.raises(RankFailedError, match="rank 1 has kept"):
        first.gather(torch.ones(2, 2))

    assert sum(naps_s) == pytest.approx(group.PATIENCE_S)


def test_memory_has_no_name_and_is_gone_when_it_is_closed() -> None:
    fd = anonymous_memory(1 << 20)

    assert os.fstat(fd).st_nlink == 0
    assert os.fstat(fd).st_size == 1 << 20
    os.close(fd)


def test_tensors_of_all_types_and_layouts_come_out_as_they_were() -> None:
    weights = {
        "odd": torch.randn(3, 5),
        "half": torch.randn(7).to(torch.bfloat16),
        "turned": torch.randn(4, 6).t(),
        "cut": torch.arange(40, dtype=torch.float16).view(8, 5)[2:5],
        "trained": torch.ones(2, requires_grad=True),
        "unwanted": torch.zeros(1),
    }
    parts, fd = pack(weights, [name for name in weights if name != "unwanted"])
    found = unpack(pickle.loads(pickle.dumps(parts)), fd)
    os.close(fd)

    assert list(found) == ["odd", "half", "turned", "cut", "trained"]
    assert all(found[name].dtype == weights[name].dtype for name in found)
    assert all(torch.equal(found[name], weights[name]) for name in found)


def test_parcel_is_a_copy_and_lives_as_long_as_its_tensors() -> None:
    weights = {"a": torch.ones(1000)}
    parts, fd = pack(weights, weights)
    found = unpack(parts, fd)["a"]
    os.close(fd)
    weights["a"].zero_()

    assert found.sum() == 1000


FLIPPED_AT = 11


def batches(seed: int) -> list[ForwardBatch]:
    """Twenty steps of a few sequences."""
    chance = Random(seed)

    def piece(start: int) -> Piece:
        tokens, pages = ([chance.randrange(50) for _ in range(count)] for count in (40, 3))
        return Piece(tokens, start, 40 - start, pages)

    return [make_batch(map(piece, chance.sample(range(40), 5)), 16) for _ in range(20)]


def after(steps: Iterable[ForwardBatch], version: int = 0) -> dict[str, str]:
    digests = StepDigests()
    for step in steps:
        digests.add(version, step)
    return digests.digests()


def test_equal_steps_have_equal_digests_however_they_were_made() -> None:
    """Batches that came over a socket share none of their parts with those that were sent."""
    assert after(batches(seed=1)) == after(batches(seed=1))
    assert after(batches(seed=1)) != after(batches(seed=2))


def test_any_difference_of_a_past_step_is_named() -> None:
    steps = batches(seed=1)
    first = steps[3].spans[2]
    pages = (first.block_ids[0] + 1, *first.block_ids[1:])
    flipped = (*steps[3].spans[:2], first._replace(block_ids=pages), *steps[3].spans[3:])
    longer = (*steps[3].spans[:2], first._replace(start=first.start + 1), *steps[3].spans[3:])
    changes: dict[str, dict[str, object]] = {
        "page_table": {"spans": flipped},
        "lengths": {"spans": longer},
        "token_ids": {"token_ids": (*steps[3].token_ids[:-1], 99)},
        "positions": {"positions": (*steps[3].positions[:-1], 99)},
        "slots": {"slots": (99_999, *steps[3].slots[1:])},
        "logit_rows": {"logit_rows": steps[3].logit_rows[1:]},
    }
    for named, change in changes.items():
        others = [*steps[:3], replace(steps[3], **change), *steps[4:]]  # type: ignore[arg-type]
        with pytest.raises(DivergenceError, match=f"rank 2 and rank 0 disagree in {named}: "):
            require_equal({"rank 0": after(steps), "rank 1": after(steps), "rank 2": after(others)}, "here")

    require_equal({"rank 0": {"a": "1"}, "rank 1": {"a": "1"}}, "here")
    with pytest.raises(DivergenceError, match=r"^here rank 1 and rank 0 disagree in b: 2 and nothing$"):
        require_equal({"rank 0": {"a": "1"}, "rank 1": {"a": "1", "b": "2"}}, "here")
    with pytest.raises(DivergenceError, match="in round: 19 and 20"):
        require_equal({"rank 0": after(steps), "rank 1": after(steps[:-1])}, "here")
    with pytest.raises(DivergenceError, match=r"round 20 .* weights: 7 and 0"):
        require_equal({"rank 0": after(steps), "rank 1": after(steps, version=7)}, "in round 20")


def test_each_thing_that_decides_bits_is_compared_at_the_join(model: ModelMaker, tmp_path: Path) -> None:
    config = EngineConfig(model_path="here")
    ours = join_digests(config, model("qwen2"), 1)
    copied = Path(shutil.copytree(model("qwen2"), tmp_path / "copy"))
    elsewhere = join_digests(replace(config, model_path="there", num_threads=1), copied, 1)

    def named(theirs: dict[str, str]) -> str:
        with pytest.raises(DivergenceError) as caught:
            require_equal({"rank 0": ours, "rank 1": theirs}, "here")
        return str(caught.value).partition("disagree in ")[2].rpartition(": ")[0]

    require_equal({"rank 0": ours, "rank 1": elsewhere}, "here")
    assert named(join_digests(config, model("qwen2"), 2)) == "threads"
    assert named(join_digests(replace(config, seed=3), copied, 1)) == "EngineConfig.seed"
    for file in ("tokenizer.json", "model.safetensors"):
        content = bytearray((copied / file).read_bytes())
        content[-1] ^= 1
        (copied / file).write_bytes(content)
        assert named(join_digests(config, copied, 1)).endswith(f"file {file}")
        shutil.copy(model("qwen2") / file, copied / file)


class Flipped(Rank):
    """A rank that once takes the second sequence's block for the first one; a block not yet written may hold NaN."""

    num_batches = 0

    def carry_out(self, message: Call | ForwardBatch) -> None:
        if isinstance(message, ForwardBatch):
            self.num_batches += 1
            if self.num_batches == FLIPPED_AT:
                first, second = message.spans
                message = replace(message, spans=(first._replace(block_ids=second.block_ids), second))
        super().carry_out(message)


def test_flipped_entry_of_a_page_table_is_found_at_the_next_comparison_and_ends_all(model: ModelMaker) -> None:
    with ranks_as_threads(model("qwen2"), Flipped, divergence_check_every=8) as engine:
        named = r"after 16 steps rank 1 and rank 0 disagree in page_table: \w{24} and \w{24}"
        with pytest.raises(DivergenceError, match=named):
            engine.generate([[1, 2, 3], [4, 5, 6]], SamplingParams(max_tokens=40, ignore_eos=True))
        with pytest.raises(RankFailedError, match=named):
            engine.add_request([1], SamplingParams())


SIZE = 3


class Meeting:
    """A meeting of threads, as one of them sees it."""

    def __init__(self, number: int, brought: dict[int, tuple[int, ...]], all_here: Barrier) -> None:
        self.shard, self._brought, self._all_here = Shard(number, SIZE), brought, all_here

    def largest(self, *values: int) -> list[int]:
        self._brought[self.shard.rank] = values
        self._all_here.wait(LIMIT_S)
        return [max(column) for column in zip(*self._brought.values(), strict=True)]


class Steps:
    """An engine that only counts."""

    def __init__(self, *, has_work: bool = True, version: int = 0) -> None:
        self.num_steps = 0
        self._has_work, self._version = has_work, version

    def get_weight_version(self) -> int:
        return self._version

    def has_work(self) -> bool:
        return self._has_work

    def step_along(self) -> list[Delta]:
        self.num_steps += 1
        return []


def play_all(engines: list[Steps], *numbers: int) -> list[type[NanoError] | None]:
    """What each replica meets in its round of two steps; the number is one for all, or each has its own."""
    brought, all_here = dict[int, tuple[int, ...]](), Barrier(SIZE)

    def take_part(rank: int) -> type[NanoError] | None:
        seat: Any = Meeting(rank, brought, all_here)
        engine: Any = engines[rank]
        try:
            play(engine, seat, numbers[rank % len(numbers)], version=0, num_steps=2)
        except NanoError as error:
            return type(error)
        return None

    with ThreadPoolExecutor(SIZE) as threads:
        return list(threads.map(take_part, range(SIZE)))


def test_all_replicas_take_the_steps_of_a_round_as_soon_as_one_has_work() -> None:
    for busy, num_steps in (((0,), 2), ((2,), 2), ((0, 1, 2), 2), ((), 0)):
        engines = [Steps(has_work=rank in busy) for rank in range(SIZE)]

        assert play_all(engines, 1) == [None] * SIZE
        assert [engine.num_steps for engine in engines] == [num_steps] * SIZE


def test_replica_that_is_not_where_the_others_are_ends_the_round_for_all_before_a_step() -> None:
    stale, late = [Steps(), Steps(), Steps(version=3)], [Steps() for _ in range(SIZE)]

    assert play_all(stale, 1) == [PeerLostError, PeerLostError, DivergenceError]
    assert play_all(late, 4, 4, 5)[:2] == [PeerLostError, PeerLostError]
    assert [engine.num_steps for engine in (*stale, *late[:2])] == [0] * 5
