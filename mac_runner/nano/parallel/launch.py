"""From a config and a world to an engine: which processes there are, and what each of them does.

Without a launcher this process starts the others on this machine. With one, each rank has been started. Rank 0 leads,
and the others `follow`. A leader of independent replicas starts a process for the first of them, so that it computes
nothing itself. A leader of replicas in lock step is the first of them.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from threading import Thread
from typing import NoReturn

from mac_runner.nano.base_engine import BaseEngine
from mac_runner.nano.checkpoint import find_model
from mac_runner.nano.config import EngineConfig
from mac_runner.nano.cpu.threads import threads_each
from mac_runner.nano.engine import InferenceEngine
from mac_runner.nano.parallel.divergence import join_digests
from mac_runner.nano.parallel.lockstep import LockstepEngine
from mac_runner.nano.parallel.members import Member, start
from mac_runner.nano.parallel.messages import Begin
from mac_runner.nano.parallel.rendezvous import Rendezvous, replica_label
from mac_runner.nano.parallel.replicas import ReplicatedEngine
from mac_runner.nano.parallel.world import ALONE, World

REPLICA = "mac_runner.nano.parallel.replica"
LOCKSTEP = "mac_runner.nano.parallel.lockstep_follower"
LEADER = "leader"
"""Where rank 0 accepts the first ranks of the other replicas."""
_WAITING_MAX = 1 << 40
"""The leader decides how many requests may wait, so no replica refuses one."""


def make_engine(config: EngineConfig, world: World = ALONE) -> BaseEngine:
    """The engine of a config. In a world of several ranks this process is rank 0. Raises NanoError."""
    if not world.is_alone:
        return _of_a_world(config, world)
    if config.data_parallel_size == 1:
        return InferenceEngine(config)
    one, numbers = replica_config(config), range(config.data_parallel_size)
    if config.data_parallel_mode == "lock_step":
        return LockstepEngine(config, one, [_start(config, number, LOCKSTEP, str(number)) for number in numbers[1:]])
    return ReplicatedEngine(config, [(_start(config, number, REPLICA), Begin(one)) for number in numbers])


def _of_a_world(config: EngineConfig, world: World) -> BaseEngine:
    rendezvous, config = _meet(config, world)
    if config.data_parallel_size == 1:
        return InferenceEngine(config, rendezvous.joined_ranks())
    heads = [world.head(number) for number in range(1, config.data_parallel_size)]
    if config.data_parallel_mode == "lock_step":
        joined = rendezvous.joined_ranks()
        return LockstepEngine(config, replica_config(config), rendezvous.accept(LEADER, heads), joined)
    begin = Begin(replica_config(config))
    first = _start(config, 0, REPLICA, is_placed=True)
    try:
        others = rendezvous.accept(LEADER, heads)
    except BaseException:
        first.kill()
        first.collect()
        first.connection.close()
        raise
    return ReplicatedEngine(config, [(first, replace(begin, world=world)), *((other, begin) for other in others)])


def follow(config: EngineConfig, world: World) -> NoReturn:
    """Do what rank 0 asks for, then end this process, which is another rank. Raises NanoError until it has joined."""
    # Each of them is also a program, which must not have been imported before it runs.
    from mac_runner.nano.parallel.follower import Follower, leave, serve, watch_connection
    from mac_runner.nano.parallel.lockstep_follower import LockstepFollower
    from mac_runner.nano.parallel.replica import serve_leader

    rendezvous, config = _meet(config, world)
    if world.tp_rank == 0:
        connection = rendezvous.connect(LEADER, 0)
        Thread(target=watch_connection, args=(connection,), name="nano-leader-watch", daemon=True).start()
        if config.data_parallel_mode == "lock_step":
            path, joined = config.model_path, rendezvous.joined_ranks()
            serve(connection, partial(LockstepFollower, world.dp_rank, connection, model_path=path, joined=joined))
        else:
            serve_leader(connection, rendezvous, config.model_path)
    else:
        connection = rendezvous.connect(replica_label(world.dp_rank), world.head(world.dp_rank))
        Thread(target=watch_connection, args=(connection,), name="nano-leader-watch", daemon=True).start()
        make = partial(Follower, world.tp_rank, connection, model_path=config.model_path, device=world.local_rank)
        serve(connection, make)
    leave()


def _meet(config: EngineConfig, world: World) -> tuple[Rendezvous, EngineConfig]:
    """Meet all ranks, and agree on what decides the results; the config with its number of threads."""
    rendezvous = Rendezvous(world)
    num_threads = threads_each(config.num_threads, rendezvous.num_here)
    rendezvous.agree(lambda: join_digests(config, find_model(config.model_path), num_threads))
    return rendezvous, replace(config, num_threads=num_threads)


def replica_config(config: EngineConfig) -> EngineConfig:
    """The config of one replica."""
    num_processes = config.data_parallel_size * config.tensor_parallel_size
    return replace(
        config,
        data_parallel_size=1,
        num_threads=threads_each(config.num_threads, num_processes),
        max_waiting=_WAITING_MAX,
    )


def _start(config: EngineConfig, number: int, module: str, *arguments: str, is_placed: bool = False) -> Member:
    """A process for a replica, with its threads set before it loads torch, and its part of the GPUs.

    One that `is_placed` has its GPUs from a launcher.
    """
    num_threads = threads_each(config.num_threads, config.data_parallel_size * config.tensor_parallel_size)
    environ = {"OMP_NUM_THREADS": str(num_threads)}
    if not is_placed and config.device != "cpu" and (gpus := _gpus()):
        first = number * config.tensor_parallel_size
        environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[first : first + config.tensor_parallel_size])
    return start(f"replica {number}", module, arguments, environ)


def _gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA names them."""
    import torch

    if not torch.cuda.is_available():
        return []
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(index) for index in range(torch.cuda.device_count())]
