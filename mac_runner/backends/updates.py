"""What the updates of weights have in common, whichever engine takes them.

An engine in another process reads weights from files: safetensors only, because other formats can run code.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from mac_runner.checkpoints import ONLY_SAFETENSORS, stored_tensors
from mac_runner.errors import UpdateInProgressError, WeightMismatchError, WeightUpdateError, boundary
from mac_runner.types import PolicySpan
from mac_runner.weights import Broadcast, Weights

_NUMBERS = ("F64", "F32", "F16", "BF16")
KEPT_FILE = "model.safetensors"
HEAD = "lm_head.weight"
"""A trainer may name it where it is tied to the embeddings, and the checkpoint leaves it out."""

Result = TypeVar("Result")


class OneAtATime:
    """Lets one update of a model run, and refuses another one meanwhile. Its caller's end does not end it."""

    def __init__(self) -> None:
        self._running: asyncio.Task[Any] | None = None

    @property
    def is_running(self) -> bool:
        return self._running is not None and not self._running.done()

    async def run(self, update: Coroutine[Any, Any, Result]) -> Result:
        """Run `update` to its end; its result. Raises UpdateInProgressError while another one runs."""
        if self.is_running:
            update.close()
            raise UpdateInProgressError("another update of the weights is under way; wait for it and try again")
        self._running = running = asyncio.create_task(update)
        running.add_done_callback(_heard)
        return await asyncio.shield(running)


def _heard(ended: asyncio.Task[Any]) -> None:
    """An error whose caller has gone is not reported a second time."""
    if not ended.cancelled():
        ended.exception()


def policy_of(versions: Sequence[str | int]) -> PolicySpan | None:
    """The first and last of the versions that made a reply; None where one of them is not a number.

    vLLM calls the weights that it loaded `default`.
    """
    numbers = [0 if version == "default" else version for version in versions]
    if not numbers or not all(str(number).isdecimal() for number in numbers):
        return None
    return PolicySpan(int(numbers[0]), int(numbers[-1]))


class Placed(NamedTuple):
    """Where weights lie, and the directory that was made for them."""

    path: Path
    written: Path | None = None

    def remove(self) -> None:
        if self.written is not None:
            shutil.rmtree(self.written, ignore_errors=True)


def place(weights: Weights, directory: Path | None, *, as_directory: bool = False) -> Placed:
    """Weights as a file or directory; tensors are written below `directory`. Raises a WeightUpdateError.

    With `as_directory` a single file gets a directory too.
    """
    if isinstance(weights, Broadcast):
        raise WeightUpdateError("this engine takes no weights that a trainer sends; give tensors, or a path")
    if not isinstance(weights, Path):
        return _made(directory, lambda file: write_tensors(weights, file))
    path = weights.expanduser().absolute()
    if path.is_dir():
        return Placed(path)
    if path.suffix != ".safetensors" or not path.is_file():
        raise WeightUpdateError(f"weights: {path} is neither a directory nor a .safetensors file; {ONLY_SAFETENSORS}")
    return _made(directory, lambda file: file.symlink_to(path)) if as_directory else Placed(path)


def make_place(directory: Path | None) -> Placed:
    """A new directory below `directory`, for a server to write `KEPT_FILE` to. Raises a WeightUpdateError."""
    return _made(directory, lambda _file: None)


def _made(directory: Path | None, fill: Callable[[Path], None]) -> Placed:
    with boundary(WeightUpdateError, f"no weights can be written to {directory or 'the temporary files'}"):
        made = Path(tempfile.mkdtemp(prefix="mac_runner-weights-", dir=directory))
        try:
            fill(made / KEPT_FILE)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
    return Placed(made, made)


def write_tensors(weights: Mapping[str, Any], file: Path) -> None:
    """Write tensors of torch to a safetensors file. Raises a WeightMismatchError for what is none."""
    from safetensors.torch import save_file

    for name, tensor in weights.items():
        if not hasattr(tensor, "detach"):
            kind = type(tensor).__name__
            raise WeightMismatchError(f"weights: tensor {name} is of type {kind}, expected a torch.Tensor")
    # A file holds no tensor twice; tied ones share their memory.
    save_file({name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in weights.items()}, file)


def check_against(directory: Path, model: Path) -> None:
    """Raise a WeightUpdateError where the weights in a directory are not those of a model: names, shapes, dtypes."""
    expected, found = stored_tensors(model), stored_tensors(directory)
    for name, tensor in expected.items():
        if name not in found:
            raise WeightMismatchError(f"weights: tensor {name} of shape {list(tensor.shape)} is missing")
        if found[name].shape != tensor.shape:
            shape = list(found[name].shape)
            raise WeightMismatchError(f"weights: tensor {name} has shape {shape}, expected {list(tensor.shape)}")
        if found[name].dtype not in _NUMBERS:
            raise WeightMismatchError(f"weights: tensor {name} is of {found[name].dtype}, expected {tensor.dtype}")
    for name in found.keys() - expected.keys() - {HEAD}:
        raise WeightMismatchError(f"weights: tensor {name} has no place in this model")


def find_weights(model: str) -> Path:
    """The directory of a model that an engine has loaded: its path, or where the hub's files are kept."""
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    from huggingface_hub import snapshot_download

    with boundary(WeightUpdateError, f"the files of {model}, to compare the weights with"):
        return Path(snapshot_download(model, allow_patterns=["*.safetensors"], local_files_only=True))
