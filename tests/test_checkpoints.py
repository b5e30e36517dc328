"""Weights in files: which are read, which are refused, and that their digest is that of the same tensors in memory."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from mac_runner.checkpoints import digest_of, stored_tensors
from mac_runner.errors import WeightUpdateError


class Array(NamedTuple):
    """What a digest needs of a tensor."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def tobytes(self) -> bytes:
        return self.data


WEIGHTS = {
    "b": Array("float32", (2, 1), bytes(range(8))),
    "a": Array("int8", (3,), b"xyz"),
    "none": Array("float16", (0, 4), b""),
}
NAMES = {"float32": "F32", "int8": "I8", "float16": "F16"}


def written(file: Path, weights: Mapping[str, Array]) -> Path:
    """A safetensors file with the tensors in the order given."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, array in weights.items():
        place = [len(data), len(data) + len(array.data)]
        header[name] = {"dtype": NAMES[array.dtype], "shape": array.shape, "data_offsets": place}
        data += array.data
    head = json.dumps(header).encode()
    file.write_bytes(len(head).to_bytes(8, "little") + head + data)
    return file


def test_digest_is_of_the_tensors_wherever_they_lie(tmp_path: Path) -> None:
    """In memory, in a file in another order, behind a link, and cut over the files of a directory."""
    expected = digest_of(WEIGHTS)
    file = written(tmp_path / "all.safetensors", dict(reversed(WEIGHTS.items())))
    parts, linked = tmp_path / "parts", tmp_path / "linked"
    parts.mkdir()
    linked.mkdir()
    for name, array in WEIGHTS.items():
        written(parts / f"{name}.safetensors", {name: array})
    (linked / "model.safetensors").symlink_to(file)

    assert [digest_of(path) for path in (file, parts, linked)] == [expected] * 3
    assert {name: tensor.shape for name, tensor in stored_tensors(parts).items()} == {
        name: array.shape for name, array in WEIGHTS.items()
    }
    others = [
        {**WEIGHTS, "a": Array("int8", (3,), b"xyZ")},
        {**WEIGHTS, "b": Array("float32", (1, 2), bytes(range(8)))},
        {"A" if name == "a" else name: array for name, array in WEIGHTS.items()},
    ]
    assert expected not in {digest_of(other) for other in others}


def test_file_that_is_not_whole_is_refused_by_its_name(tmp_path: Path) -> None:
    """Whatever its header says, the error is ours, and has the file and the reason."""
    whole = written(tmp_path / "whole.safetensors", WEIGHTS).read_bytes()

    def headed(text: str) -> bytes:
        return len(text.encode()).to_bytes(8, "little") + text.encode() + b"1234"

    damaged = {
        "empty": b"",
        "cut": whole[:-1],
        "long": (1 << 60).to_bytes(8, "little") + b"{}",
        "text": b"no tensors at all",
        "list": headed("[]"),
        "deep": headed("[" * 100_000),
        "endless": headed('{"a": {"dtype": "I8", "shape": [4], "data_offsets": [0, 1e999]}}'),
        "outside": headed('{"a": {"dtype": "I8", "shape": [9], "data_offsets": [0, 9]}}'),
        "before": headed('{"a": {"dtype": "I8", "shape": [4], "data_offsets": [-4, 0]}}'),
        "shapeless": headed('{"a": {"dtype": "I8", "data_offsets": [0, 4]}}'),
    }
    for name, data in damaged.items():
        file = tmp_path / f"{name}.safetensors"
        file.write_bytes(data)
        with pytest.raises(WeightUpdateError, match=f"{name}.safetensors is not"):
            digest_of(file)
    for path, text in (
        (tmp_path / "model.bin", "model.bin is not a .safetensors file; .* can run code"),
        (tmp_path / "gone.safetensors", "gone.safetensors cannot be read: No such file"),
        (tmp_path.parent / tmp_path.name / "..", "has no .safetensors file"),
    ):
        with pytest.raises(WeightUpdateError, match=text):
            digest_of(path)
