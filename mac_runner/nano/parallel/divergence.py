"""Whether ranks that must do the same have the same: digests of it, and the first one that differs.

When ranks join, they compare what decides every bit. While they work, they compare their `StepDigests` from time to
time: these go over all steps so far, so a step that differed once is found at the next comparison.
"""

from __future__ import annotations

import marshal
from collections.abc import Mapping
from dataclasses import fields
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch

from mac_runner.nano.attention import ForwardBatch
from mac_runner.nano.checkpoint import file_digest, model_files
from mac_runner.nano.config import EngineConfig
from mac_runner.nano.errors import DivergenceError

Digests = Mapping[str, str]
"""Digests, or short values themselves, by the names of what they are of; the first that differs is reported."""
MISSING = "nothing"
_DIGEST_BYTES = 12
_OWN_TO_A_RANK = frozenset({"model_path", "num_threads"})
"""Settings that may differ: where a host keeps the model, and a number that `threads` compares as it turned out."""
_BATCH_FIELDS = ("token_ids", "positions", "slots", "page_table", "lengths", "logit_rows")


def require_equal(found: Mapping[str, Digests], when: str) -> None:
    """Raise DivergenceError for the first field in which a rank disagrees with the first one; ranks by name."""
    (first, expected), *others = found.items()
    for name in dict.fromkeys(name for digests in found.values() for name in digests):
        for rank, digests in others:
            ours, theirs = expected.get(name, MISSING), digests.get(name, MISSING)
            if ours != theirs:
                raise DivergenceError(f"{when} {rank} and {first} disagree in {name}: {theirs} and {ours}")


class StepDigests:
    """Digests of all steps that one rank has computed."""

    def __init__(self) -> None:
        self.num_steps = 0
        self._version = 0
        self._fields = {name: blake2b(digest_size=_DIGEST_BYTES) for name in _BATCH_FIELDS}

    def add(self, version: int, batch: ForwardBatch) -> None:
        """Take in a step: a number of the weights that it computes with, and what it computes."""
        self.num_steps += 1
        self._version = version
        # Tables are long and in every step. This hash of numbers is the same in every process, and quick.
        pages = tuple(hash(span.block_ids) for span in batch.spans)
        lengths = tuple((span.start, span.num_tokens) for span in batch.spans)
        values: tuple[Any, ...] = (batch.token_ids, batch.positions, batch.slots, pages, lengths, batch.logit_rows)
        for digest, value in zip(self._fields.values(), values, strict=True):
            # Version 2 writes every object in full. Later ones also write which are the same, which may differ.
            digest.update(marshal.dumps(value, 2))

    def digests(self) -> dict[str, str]:
        """What to compare with other ranks after the same step."""
        batch = {name: digest.hexdigest() for name, digest in self._fields.items()}
        return {"round": str(self.num_steps), "weights": str(self._version), **batch}


def join_digests(config: EngineConfig, directory: Path, num_threads: int) -> dict[str, str]:
    """What decides the bits of a rank: to be compared before its first step."""
    settings = {field.name: str(getattr(config, field.name)) for field in fields(config)}
    package = sorted(Path(__file__).parents[1].rglob("*.py"))
    digest = blake2b("".join(map(file_digest, package)).encode(), digest_size=_DIGEST_BYTES)
    return {
        **{f"EngineConfig.{name}": value for name, value in settings.items() if name not in _OWN_TO_A_RANK},
        "the code of mac_runner.nano": digest.hexdigest(),
        "the version of torch": torch.__version__,
        "threads": str(num_threads),
        "the instructions of the CPU": torch.backends.cpu.get_cpu_capability(),
        **{f"the model's file {path.name}": file_digest(path) for path in model_files(directory)},
    }
