"""Where a model's files are: a directory on this machine, or a repository of the Hugging Face hub, fetched once.

~~~~
Text to tokens and back: a thin layer over the `tokenizers` library, and the model's chat template in a sandbox.

~~~~
Weights by name: read from safetensors files, and checked against what a model of this shape must have.

A state dict that a trainer hands over goes through the same check, so weights of another model are refused before
anything of the old ones is touched.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from mac_runner.nano.errors import (
    ModelError,
    ModelNotFoundError,
)

_PATTERNS = ["*.json", "*.safetensors", "*.jinja"]


def find_model(model_path: str) -> Path:
    """The directory of a model; a name like `Qwen/Qwen2.5-0.5B` is downloaded if it is not a directory here."""
    directory = Path(model_path).expanduser()
    if directory.is_dir():
        return directory
    if model_path.count("/") != 1 or model_path.startswith((".", "/", "~")):
        raise ModelNotFoundError(f"{model_path} is no directory, and no name of a model on the hub either (owner/name)")
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    except ImportError as error:
        raise ModelNotFoundError(
            f"{model_path} is no directory; to download it: pip install huggingface_hub"
        ) from error
    try:
        return Path(snapshot_download(model_path, allow_patterns=_PATTERNS))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ModelNotFoundError(f"{model_path} is no directory here, and the hub did not give it: {error}") from error


def read_json(path: Path) -> dict[str, object]:
    """The object in a JSON file; empty if there is no such file."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} holds no JSON object")
    return content


INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
StateDict = Mapping[str, torch.Tensor]


def read_state_dict(directory: Path) -> dict[str, torch.Tensor]:
    """All tensors of the safetensors files in a directory."""
    return dict(_read(directory))


def _read(directory: Path) -> Iterator[tuple[str, torch.Tensor]]:
    for file in _files(directory):
        try:
            with safe_open(str(file), framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118  The handle is no mapping.
                    yield name, tensors.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{file} cannot be read: {error}") from error


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
