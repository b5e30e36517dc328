"""A model's directory: found here or downloaded from the Hugging Face hub, its JSON files, its tensors."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from mac_runner.nano.errors import ModelError, ModelNotFoundError, WeightUpdateError

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
StateDict = Mapping[str, torch.Tensor]
"""Weights by the names of a checkpoint."""
_ALIGNMENT_BYTES = 64
_PATTERNS = ["*.json", "*.safetensors", "*.jinja"]


def find_model(model_path: str) -> Path:
    """The directory of a model; a name like `Qwen/Qwen2.5-0.5B` is downloaded if it is not a directory."""
    directory = Path(model_path).expanduser()
    if directory.is_dir():
        return directory
    if model_path.count("/") != 1 or model_path.startswith((".", "/", "~")):
        raise ModelNotFoundError(f"{model_path} is not a directory, nor the name of a model on the hub (owner/name)")
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    except ImportError as error:
        raise ModelNotFoundError(
            f"{model_path} is not a directory; to download it: pip install huggingface_hub"
        ) from error
    try:
        return Path(snapshot_download(model_path, allow_patterns=_PATTERNS))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ModelNotFoundError(f"{model_path} is not a directory, and the hub did not deliver it: {error}") from error


def read_json(path: Path) -> dict[str, object]:
    """The object in a JSON file; empty if the file does not exist."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} holds no JSON object")
    return content


@dataclass(frozen=True, slots=True)
class Settings:
    """The object of a JSON file. Its methods return values of one type, and raise ModelError for others."""

    content: Mapping[str, object]
    path: Path

    def get(self, name: str, default: object) -> object:
        """A value of any type; null counts as absent."""
        value = self.content.get(name)
        return default if value is None else value

    def integer(self, name: str, default: int | None = None) -> int:
        """A whole number above 0."""
        value = self.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ModelError(f"{self.path}: {name} is {value!r}, and should be a whole number above 0")
        return value

    def number(self, name: str, default: float) -> float:
        value = self.get(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ModelError(f"{self.path}: {name} is {value!r}, and should be a number")
        return float(value)

    def positive(self, name: str, default: float) -> float:
        """A finite number above 0."""
        value = self.number(name, default)
        if not 0.0 < value < math.inf:
            raise ModelError(f"{self.path}: {name} is {value!r}, and should be a finite number above 0")
        return value

    def flag(self, name: str, default: bool) -> bool:
        return bool(self.get(name, default))

    def texts(self, name: str) -> tuple[str, ...]:
        """The texts of a list; none where it is not a list."""
        value = self.get(name, ())
        return tuple(str(each) for each in value) if isinstance(value, list | tuple) else ()

    def token_ids(self, name: str) -> frozenset[int]:
        """The token ids of a list, or the only one."""
        value = self.get(name, [])
        return frozenset(each for each in (value if isinstance(value, list) else [value]) if isinstance(each, int))

    def section(self, *names: str) -> Settings:
        """The first object there is under one of these names; otherwise an empty one."""
        found = (value for name in names if isinstance(value := self.content.get(name), dict))
        return Settings(next(found, {}), self.path)


def read_settings(path: Path) -> Settings:
    """The settings in a JSON file; empty if the file does not exist."""
    return Settings(read_json(path), path)


class Part(NamedTuple):
    """A tensor in memory that holds several: its bytes from `first` to `end`."""

    name: str
    dtype: torch.dtype
    shape: Ordered[int]
    first: int
    end: int

    def of(self, memory: torch.Tensor) -> torch.Tensor:
        return memory[self.first : self.end].view(self.dtype).view(self.shape)


def pieces(
    tensors: Iterable[tuple[str, torch.dtype, Ordered[int]]], piece_bytes: float = math.inf
) -> Iterator[list[Part]]:
    """Where tensors lie in memory, in their order, in pieces of about so many bytes."""
    parts, end = list[Part](), 0
    for name, dtype, shape in tensors:
        num_bytes = math.prod(shape) * int(dtype.itemsize)
        if parts and end + num_bytes > piece_bytes:
            yield parts
            parts, end = list[Part](), 0
        parts.append(Part(name, dtype, shape, end, end + num_bytes))
        end += -(-num_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    if parts:
        yield parts


def write_weights(state_dict: StateDict, path: Path) -> None:
    """Write a new safetensors file. Raises WeightUpdateError where that is not possible."""
    try:
        save_file({name: tensor.cpu().contiguous() for name, tensor in state_dict.items()}, path)
    except (OSError, SafetensorError) as error:
        raise WeightUpdateError(f"{path} cannot be written: {error}") from error


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """All tensors of a safetensors file, or of those in a directory. Raises ModelError for any other kind of file."""
    if path.is_dir():
        return read_state_dict(path)
    if path.suffix != ".safetensors":
        raise ModelError(f"{path} is neither a directory nor a .safetensors file: other formats can run code")
    return dict(_tensors(path))


def read_state_dict(directory: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in _files(directory) for name, tensor in _tensors(file)}


def _tensors(file: Path) -> Iterator[tuple[str, torch.Tensor]]:
    try:
        with safe_open(str(file), framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  The handle is not a mapping.
                yield name, tensors.get_tensor(name)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{file} cannot be read: {error}") from error


def model_files(directory: Path) -> list[Path]:
    """The files that decide what a model computes: its weights, shape, tokenizer and templates."""
    others = (path for pattern in _PATTERNS for path in directory.glob(pattern) if path.suffix != ".safetensors")
    return [*sorted(others), *_files(directory)]


def file_stats(directory: Path) -> dict[str, os.stat_result]:
    """The size, times and the like of each file in a directory, by name and in order."""
    return {path.name: path.stat() for path in sorted(directory.iterdir()) if path.is_file()}


def file_digest(path: Path) -> str:
    """The sha256 of a file. Raises ModelError."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error}") from error


def _files(directory: Path) -> list[Path]:
    if (directory / INDEX_FILE).is_file():
        index = read_json(directory / INDEX_FILE).get("weight_map")
        names = sorted({str(name) for name in index.values()}) if isinstance(index, dict) else []
    else:
        names = [SINGLE_FILE]
    missing = [name for name in names if not (directory / name).is_file()]
    if not names or missing:
        raise ModelNotFoundError(f"{directory} holds no model: {', '.join(missing) or INDEX_FILE} is missing or empty")
    return [directory / name for name in names]
