"""The parts of a model are the model: nothing is missing and nothing is there twice."""

from __future__ import annotations

import pytest
import torch

from mac_runner.nano import ConfigError, read_model_config
from mac_runner.nano.testing import WHOLE, Linear, Shard, can_pack, require_divisible
from tests.nano.tiny_models import ModelMaker

SIZES = (1, 2, 4)


@pytest.mark.parametrize("size", SIZES)
def test_parts_put_together_are_the_whole(size: int) -> None:
    weight, activation = torch.randn(24, 5), torch.randn(3, 24)
    shards = [Shard(rank, size) for rank in range(size)]

    assert torch.equal(torch.cat([shard.rows(weight) for shard in shards]), weight)
    assert torch.equal(torch.cat([shard.columns(activation) for shard in shards], dim=-1), activation)


def test_part_of_one_is_the_tensor_itself() -> None:
    activation = torch.randn(3, 24)

    assert WHOLE.columns(activation) is activation


def test_local_shape_counts_the_heads_of_a_part_alone(model: ModelMaker) -> None:
    config = read_model_config(model("llama"))
    local = Shard(1, 2).local(config)

    assert (local.num_heads, local.num_kv_heads) == (2, 1)
    assert (local.hidden_size, local.head_dim, local.vocab_size) == (64, 16, 272)
    assert WHOLE.local(config) == config


def test_all_that_does_not_divide_is_named_at_once(model: ModelMaker) -> None:
    config = read_model_config(model("llama"))
    require_divisible(config, 2)

    with pytest.raises(ConfigError, match=r"5: 4 attention heads, 2 KV .*, 64 .*, 96 .*, 272"):
        require_divisible(config, 5)


@pytest.mark.skipif(not can_pack(torch.float32, torch.device("cpu")), reason="without oneDNN no bits are promised")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(272, 64), (96, 64), (24, 72), (896, 896), (1408, 512)])
def test_packed_product_of_a_part_has_the_bits_of_the_whole(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(shape, generator=generator).to(dtype), torch.randn(shape[0], generator=generator)
    whole = Linear(weight, bias.to(dtype))
    for size in (2, 4):
        parts = [
            Linear(shard.rows(weight).clone(), shard.rows(bias.to(dtype)).clone())
            for shard in (Shard(rank, size) for rank in range(size))
        ]
        for num_rows in (2, 3, 33, 100):
            x = torch.randn(num_rows, shape[1], generator=generator).to(dtype)
            other = torch.randn(num_rows, shape[0], generator=generator).to(dtype)
            others = [Shard(rank, size).columns(other) for rank in range(size)]

            assert torch.equal(torch.cat([part(x) for part in parts], -1), whole(x))
            assert torch.equal(torch.cat([part.swish(x) for part in parts], -1), whole.swish(x))
            added = [part.with_other(x, each, "add") for part, each in zip(parts, others, strict=True)]
            assert torch.equal(torch.cat(added, -1), whole.with_other(x, other, "add"))
