"""A program `nvidia-smi` for tests, and what it prints of some machines."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

H100 = "NVIDIA H100 80GB HBM3"


def listing(count: int, *, mig: tuple[int, ...] = (), free: int = 81_079, name: str = H100) -> str:
    """The answer to the query for GPUs; `mig` are the indices of those that have MIG on."""
    return "".join(
        f"{index}, GPU-{index:08x}-aaaa-bbbb-cccc-dddddddddddd, {name}, 81559, {free}, "
        f"{'Enabled' if index in mig else 'Disabled'}\n"
        for index in range(count)
    )


def slices(count: int, *, mig: tuple[int, ...], profiles: tuple[str, ...] = ("3g.40gb", "3g.40gb")) -> str:
    """The answer to `-L`."""
    lines = []
    for index in range(count):
        lines.append(f"GPU {index}: {H100} (UUID: GPU-{index:08x}-aaaa-bbbb-cccc-dddddddddddd)")
        lines += [
            f"  MIG {profile:<14} Device {device:>2}: (UUID: MIG-{index}{device}-5b91-5ad5)"
            for device, profile in enumerate(profiles if index in mig else ())
        ]
    return "\n".join(lines) + "\n"


def put_smi(
    folder: Path, monkeypatch: pytest.MonkeyPatch, gpus: str = "", parts: str = "", *, script: str | None = None
) -> None:
    """Put the program in front of the PATH. A `script` of its own replaces the two answers."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gpus").write_text(gpus, encoding="utf-8")
    (folder / "parts").write_text(parts, encoding="utf-8")
    tool = folder / "nvidia-smi"
    answers = f'if [ "$1" = -L ]; then cat "{folder}/parts"; else cat "{folder}/gpus"; fi'
    tool.write_text(f"#!/bin/sh\n{script or answers}\n", encoding="utf-8")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
