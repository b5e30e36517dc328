"""Trainers in processes of their own: each line of stdin, `MODEL FAULT VERSION...`, starts one that sends weights.

It sends to as many engines as the argument says, or to one. It writes its address, and then, for each further line,
sends a version and writes what became of it. A fault ends it as `kill -9` would.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from mac_runner.nano import NanoError, WeightSender, weight_transfer
from tests.nano.tiny_models import random_state_dict


class Fatal(dict[str, torch.Tensor]):
    """Weights that end the process when so many of them have been read; with none, when they are listed."""

    def __init__(self, weights: dict[str, torch.Tensor], num_read: int) -> None:
        super().__init__(weights)
        self.num_left = num_read

    def items(self) -> Any:
        """What the sender asks for once its engines are there: one that comes to a dead trainer waits for another."""
        if self.num_left == 0:
            die()
        return super().items()

    def __getitem__(self, name: str) -> torch.Tensor:
        if self.num_left == 0:
            die()
        self.num_left -= 1
        return super().__getitem__(name)


def die() -> None:
    """End this process at once."""
    os.kill(os.getpid(), signal.SIGKILL)


def say(text: str) -> None:
    """Write a line for the test."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def train(directory: Path, fault: str, versions: list[int]) -> None:
    """Send each version, with the version as the seed, when the test says go."""
    weight_transfer.PIECE_BYTES = 1 << 16  # So that a small model has several pieces.
    receivers = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    with WeightSender("127.0.0.1:0", receivers) as sender:
        say(sender.address)
        for version in versions:
            sys.stdin.readline()
            weights = random_state_dict(directory, seed=version)
            num_read = {"before": 0, "middle": len(weights) // 2}.get(fault)
            try:
                sender.send(weights if num_read is None else Fatal(weights, num_read), version)
            except NanoError as error:
                say(type(error).__name__)
            else:
                say("taken")
            if fault == "after":
                die()


def main() -> None:
    """Start one trainer after the other, each as a child: to import torch takes longer than all else."""
    while order := sys.stdin.readline().split():
        child = os.fork()
        if child == 0:
            train(Path(order[0]), order[1], [int(each) for each in order[2:]])
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
