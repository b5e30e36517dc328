"""A state dict in memory that processes share: written once by rank 0, and mapped by every rank that builds from it."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from mac_runner.nano.parallel.group import anonymous_memory
from mac_runner.nano.weights import StateDict

_ALIGNMENT_BYTES = 64


class _Place(NamedTuple):
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    first_byte: int


@dataclass(frozen=True, slots=True)
class Parcel:
    """What is where in the memory."""

    num_bytes: int
    places: tuple[_Place, ...]

    def unpack(self, fd: int) -> dict[str, torch.Tensor]:
        """The tensors, in the memory itself, which is given back with the last of them."""
        memory = mmap.mmap(fd, self.num_bytes)
        return {
            name: torch.frombuffer(memory, dtype=dtype, count=_count(shape), offset=first_byte).view(shape)
            for name, dtype, shape, first_byte in self.places
        }


def pack(state_dict: StateDict, names: Iterable[str]) -> tuple[Parcel, int]:
    """The tensors of these names as a parcel, and the descriptor of its memory, which is the caller's to close."""
    places, end = list[_Place](), 0
    for name in names:
        tensor = state_dict[name]
        places.append(_Place(name, tensor.dtype, tuple(tensor.shape), end))
        end += -(-tensor.numel() * tensor.element_size() // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    parcel, fd = Parcel(end, tuple(places)), anonymous_memory(end)
    for name, tensor in parcel.unpack(fd).items():
        tensor.copy_(state_dict[name].detach())
    return parcel, fd


def _count(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape).numel())
