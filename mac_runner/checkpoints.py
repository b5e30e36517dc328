"""The content of a model's weights, whether they are in memory or in safetensors files: one digest for both.

It is the SHA-256 of each tensor's name, dtype, shape and bytes, in the order of the names. Where the tensors lie in
their files, and in how many, does not change it. Files of other formats are refused: to read one can run its code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from mac_runner.errors import WeightUpdateError, boundary
from mac_runner.files import chunks_between, read_regular
from mac_runner.weights import Broadcast, Weights

ONLY_SAFETENSORS: Final = "other formats can run code"
"""Why other files are refused."""
_LENGTH_BYTES: Final = 8
_HEADER_BYTES_MAX: Final = 100_000_000
"""As the reference implementation has it."""
_DTYPES: Final[Mapping[str, str]] = {
    **{f"float{bits}": f"F{bits}" for bits in (16, 32, 64)},
    **{f"int{bits}": f"I{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"U{bits}" for bits in (8, 16, 32, 64)},
    "bfloat16": "BF16",
    "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}
"""The names of dtypes in safetensors files."""


class StoredTensor(NamedTuple):
    """One tensor of a file: what it is, and where its bytes are."""

    dtype: str
    """As safetensors names it, such as `BF16`."""
    shape: tuple[int, ...]
    file: Path
    start: int
    end: int


def digest_of(weights: Weights) -> str:
    """The digest of weights that can be read here. Raises WeightUpdateError for those that cannot."""
    if isinstance(weights, Broadcast):
        raise WeightUpdateError("weights that a trainer broadcasts are not there to be read; give a path or tensors")
    return _digest_of_files(weights) if isinstance(weights, Path) else _digest_in_memory(weights)


def _digest_in_memory(weights: Mapping[str, Any]) -> str:
    if not weights:
        raise WeightUpdateError("the weights are empty; give all tensors of the model by their names")
    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name]
        dtype = str(getattr(tensor, "dtype", None)).removeprefix("torch.")
        if not hasattr(tensor, "shape") or dtype not in _DTYPES:
            raise WeightUpdateError(f"weight {name!r} is {type(tensor).__name__} of dtype {dtype}; give a dense tensor")
        digest.update(_heading(name, _DTYPES[dtype], tuple(tensor.shape)))
        with boundary(WeightUpdateError, f"weight {name!r} has no bytes to be read"):
            digest.update(_bytes_of(tensor))
    return digest.hexdigest()


def _bytes_of(tensor: Any) -> memoryview:
    """The bytes of a tensor of torch or an array of NumPy; neither library is imported here."""
    if hasattr(tensor, "detach"):
        flat = tensor.detach().cpu().contiguous().flatten()
        # NumPy has no bfloat16, so the tensor is viewed as bytes.
        tensor = flat.view(flat.new_empty(0).byte().dtype).numpy()
    return memoryview(tensor.tobytes())


def _digest_of_files(path: Path) -> str:
    found = stored_tensors(path)
    digest = hashlib.sha256()
    try:
        for name in sorted(found):
            tensor = found[name]
            digest.update(_heading(name, tensor.dtype, tensor.shape))
            for chunk in chunks_between(tensor.file, tensor.start, tensor.end):
                digest.update(chunk)
    except OSError as fault:
        raise _unreadable(path, fault) from fault
    return digest.hexdigest()


def stored_tensors(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a safetensors file, or of all in a directory, by name. Raises WeightUpdateError."""
    try:
        return {name: tensor for file in _files(path) for name, tensor in _tensors(file)}
    except OSError as fault:
        raise _unreadable(path, fault) from fault


def _unreadable(path: Path, fault: OSError) -> WeightUpdateError:
    return WeightUpdateError(f"{path} cannot be read: {fault.strerror or fault}")


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        if found := sorted(path.glob("*.safetensors")):
            return found
        raise WeightUpdateError(f"{path} has no .safetensors file; {ONLY_SAFETENSORS}")
    if path.suffix != ".safetensors":
        raise WeightUpdateError(f"{path} is not a .safetensors file; {ONLY_SAFETENSORS}")
    return [path]


def _tensors(file: Path) -> Iterator[tuple[str, StoredTensor]]:
    """The tensors that the header of a file lists. Raises WeightUpdateError for a header that is damaged."""
    try:
        length = int.from_bytes(read_regular(file, _LENGTH_BYTES), "little")
        if length > _HEADER_BYTES_MAX:
            raise ValueError(f"its header has {length} bytes")
        begin = _LENGTH_BYTES + length
        header = json.loads(read_regular(file, begin)[_LENGTH_BYTES:])
        size_bytes = file.stat().st_size
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            start, end = (begin + int(offset) for offset in entry["data_offsets"])
            if not begin <= start <= end <= size_bytes:
                raise ValueError(f"tensor {name!r} lies outside it")
            yield str(name), StoredTensor(str(entry["dtype"]), tuple(map(int, entry["shape"])), file, start, end)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as fault:
        raise WeightUpdateError(f"{file} is not a whole safetensors file: {fault}") from fault


def _heading(name: str, dtype: str, shape: tuple[int, ...]) -> bytes:
    return json.dumps([name, dtype, list(shape)], ensure_ascii=True).encode() + b"\n"
