"""A state dict in shared memory: what comes out is what was put in, and nothing else is sent."""

from __future__ import annotations

import os
import pickle

import torch

from mac_runner.nano.testing import pack


def test_tensors_of_all_types_and_layouts_come_out_as_they_were() -> None:
    weights = {
        "odd": torch.randn(3, 5),
        "half": torch.randn(7).to(torch.bfloat16),
        "turned": torch.randn(4, 6).t(),
        "cut": torch.arange(40, dtype=torch.float16).view(8, 5)[2:5],
        "trained": torch.ones(2, requires_grad=True),
        "unwanted": torch.zeros(1),
    }
    parcel, fd = pack(weights, [name for name in weights if name != "unwanted"])
    found = pickle.loads(pickle.dumps(parcel)).unpack(fd)
    os.close(fd)

    assert list(found) == ["odd", "half", "turned", "cut", "trained"]
    assert all(found[name].dtype == weights[name].dtype for name in found)
    assert all(torch.equal(found[name], weights[name]) for name in found)


def test_parcel_is_a_copy_and_lives_as_long_as_its_tensors() -> None:
    weights = {"a": torch.ones(1000)}
    parcel, fd = pack(weights, weights)
    found = parcel.unpack(fd)["a"]
    os.close(fd)
    weights["a"].zero_()

    assert found.sum() == 1000
