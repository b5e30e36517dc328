"""From a config and a world to an engine: which processes there are, and what each of them does.

A leader of replicas starts a process for the first of them even where a launcher has started the others, so that it
computes nothing itself.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import NoReturn

from mac_runner.nano.checkpoint import find_model
from mac_runner.nano.config import EngineConfig
from mac_runner.nano.cpu.threads import threads_each
from mac_runner.nano.engine import BaseEngine, InferenceEngine
from mac_runner.nano.parallel import worker
from mac_runner.nano.parallel.divergence import join_digests
from mac_runner.nano.parallel.ranks import Rank
from mac_runner.nano.parallel.replica import Replica
from mac_runner.nano.parallel.replicas import ReplicatedEngine
from mac_runner.nano.parallel.workers import Member, start
from mac_runner.nano.parallel.world import ALONE, Rendezvous, World, replica_label

LEADER = "leader"
"""Where rank 0 accepts the first ranks of the other replicas."""


def make_engine(config: EngineConfig, world: World = ALONE) -> BaseEngine:
    """The engine of a config. In a world of several ranks this process is rank 0. Raises NanoError."""
    if not world.is_alone:
        return _of_a_world(config, world)
    if config.data_parallel_size == 1:
        return InferenceEngine(config)
    start_one = partial(_start, config)
    return ReplicatedEngine(config, [start_one(number) for number in range(config.data_parallel_size)], start=start_one)


def _of_a_world(config: EngineConfig, world: World) -> BaseEngine:
    rendezvous, config = _meet(config, world)
    if config.data_parallel_size == 1:
        return InferenceEngine(config, rendezvous.joined_ranks())
    first = _start(config, 0, is_placed=True)
    try:
        others = rendezvous.accept(LEADER, [world.head(number) for number in range(1, config.data_parallel_size)])
    except BaseException:
        first.kill()
        first.collect()
        first.connection.close()
        raise
    return ReplicatedEngine(config, [first, *others], world, rendezvous.address)


def follow(config: EngineConfig, world: World) -> NoReturn:
    """Do what rank 0 asks for, then end this process, which is another rank. Raises NanoError until it has joined."""
    rendezvous, config = _meet(config, world)
    if world.tp_rank == 0:
        make = partial(Replica, world.dp_rank, rendezvous=rendezvous, model_path=config.model_path)
        worker.follow(rendezvous.connect(LEADER, 0), make)
    label, head = replica_label(world.dp_rank), world.head(world.dp_rank)
    rank = partial(Rank, world.tp_rank, model_path=config.model_path, device=world.local_rank)
    worker.follow(rendezvous.connect(label, head), rank)


def _meet(config: EngineConfig, world: World) -> tuple[Rendezvous, EngineConfig]:
    """Meet all ranks, and agree on what decides the results; the config with its number of threads."""
    rendezvous = Rendezvous(world)
    num_threads = threads_each(config.num_threads, rendezvous.num_here)
    rendezvous.agree(lambda: join_digests(config, find_model(config.model_path), num_threads))
    return rendezvous, replace(config, num_threads=num_threads)


def _start(config: EngineConfig, number: int, *, is_placed: bool = False) -> Member:
    """A process for a replica, with its part of the GPUs. One that `is_placed` has its GPUs from a launcher."""
    num_threads = threads_each(config.num_threads, config.data_parallel_size * config.tensor_parallel_size)
    if is_placed or config.device == "cpu" or not (gpus := _gpus()):
        return start("replica", number, num_threads)
    first = number * config.tensor_parallel_size
    own = ",".join(gpus[first : first + config.tensor_parallel_size])
    return start("replica", number, num_threads, {"CUDA_VISIBLE_DEVICES": own})


def _gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA names them."""
    import torch

    if not torch.cuda.is_available():
        return []
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(index) for index in range(torch.cuda.device_count())]
