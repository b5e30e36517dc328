"""Tensors as compiled code takes them."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

Floats: TypeAlias = Any
"""A flat array of float32, or of bfloat16 as int16."""
Ints: TypeAlias = Any
"""An array of int64."""


def flat(tensor: torch.Tensor) -> Floats:
    """The same memory, in one dimension; bfloat16 as int16."""
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy().reshape(-1)
