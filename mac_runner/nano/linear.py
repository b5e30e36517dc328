"""A matrix and a bias, kept in the form that this machine multiplies fastest.

On a CPU that is oneDNN's own layout, packed once when the weights are loaded: with few rows it is two to three times
as fast as torch's, and each row of the result has the same bits whatever the other rows are (torch's float32 product
has not). The operations that follow most often, an activation or the sum or product with another tensor, are done in
the same pass. Elsewhere it is torch's own product.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch.nn import functional

MIN_ROWS = 2
"""With a single row oneDNN may choose another way to sum up; no step has fewer rows."""


def can_pack(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether oneDNN computes in this type on this machine."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()))


class Linear:
    """`x @ weight.T + bias`."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.is_packed = can_pack(weight.dtype, weight.device)
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight) if self.is_packed else weight
        self.bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """`x @ weight.T + bias`."""
        if self.is_packed:
            return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return functional.linear(x, self.weight, self.bias)

    def swish(self, x: torch.Tensor) -> torch.Tensor:
        """`silu(self(x))`."""
        if self.is_packed:
            return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "swish", [], "")
        return functional.silu(functional.linear(x, self.weight, self.bias))

    def with_other(self, x: torch.Tensor, other: torch.Tensor, operation: Literal["add", "mul"]) -> torch.Tensor:
        """`self(x) + other` or `self(x) * other`."""
        if self.is_packed:
            return torch.ops.mkldnn._linear_pointwise.binary(x, other, self.weight, self.bias, operation)
        result = functional.linear(x, self.weight, self.bias)
        return result.add_(other) if operation == "add" else result.mul_(other)
