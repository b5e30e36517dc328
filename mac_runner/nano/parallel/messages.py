"""What rank 0 tells the others, and what they answer. Plain, and in order: every rank does the same in the same order.

A `ForwardBatch` is told as it is and not answered, for the gathers answer it. Everything else is an `Order` with a
number, answered by `Done` with that number when it has been done; `Stop` is answered by the end of the process.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from mac_runner.nano.architecture import ModelConfig
from mac_runner.nano.config import EngineConfig
from mac_runner.nano.parallel.group import GatherMemory
from mac_runner.nano.parallel.parcel import Parcel


@dataclass(frozen=True, slots=True)
class Begin:
    """Become a rank of this engine: the first order, before there are weights."""

    config: EngineConfig
    model_config: ModelConfig
    num_threads: int


@dataclass(frozen=True, slots=True)
class Build:
    """Make a model of the weights whose memory follows, and keep it as `ticket`; forget the models of other tickets.

    It is done beside the batches that follow.
    """

    ticket: int
    parcel: Parcel
    forgotten: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Install:
    """Compute with the model kept as `ticket` from now on."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Join:
    """Gather with the others: through the memory that follows, or over torch.distributed, whose store has this port."""

    by: GatherMemory | int


@dataclass(frozen=True, slots=True)
class OpenStore:
    """Take KV memory of so many blocks, empty."""

    num_blocks: int


class Plain(StrEnum):
    """Orders that say everything by their name."""

    COUNT_BLOCKS = "count_blocks"  # Answered by how many blocks this rank has memory for.
    DROP_STORE = "drop_store"
    DROP_WEIGHTS = "drop_weights"


Action = Begin | Build | Install | Join | OpenStore | Plain


@dataclass(frozen=True, slots=True)
class Order:
    """Something to do."""

    number: int
    action: Action


@dataclass(frozen=True, slots=True)
class Stop:
    """End, in good order."""


@dataclass(frozen=True, slots=True)
class Done:
    """The order of this number has been carried out; `value` is what it asked for."""

    number: int
    value: int = 0


@dataclass(frozen=True, slots=True)
class Failed:
    """This rank can do no more: what happened, and where."""

    message: str
    trace: str
