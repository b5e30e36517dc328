"""What a rank other than 0 does: obey, one message after the other, until it is told to stop or rank 0 is gone.

    python -m mac_runner.nano.parallel.follower RANK SOCKET_FD PARENT_PID

It decides nothing. What goes wrong here is told to rank 0 with its traceback, and is this process's end. Signals that
ask to end are left to rank 0, which may have requests to finish.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from threading import Event, Lock, Thread

from mac_runner.nano.attention import ForwardBatch
from mac_runner.nano.cpu.threads import ThreadPin
from mac_runner.nano.errors import RankFailedError
from mac_runner.nano.parallel.group import GatherMemory, MemoryGroup, Shard, TorchGroup, join_store
from mac_runner.nano.parallel.ranks import (
    Action,
    Begin,
    Build,
    Done,
    Failed,
    Install,
    Join,
    OpenStore,
    Parcel,
    Plain,
    Stop,
)
from mac_runner.nano.runner import ModelRunner, Prepared

_LOOK_S = 1.0
"""How often it is made sure that rank 0 is there, should its end not be told: a child of its own may hold the pipe."""
_REPORT_S = 10.0
"""How long a rank that lost another leaves it to rank 0 to find out which."""


_SENDING = Lock()
"""The thread that makes weights ready has something to say too."""


class Follower:
    """One rank, on this process's device."""

    def __init__(self, rank: int, connection: Connection, begin: Begin) -> None:
        ThreadPin(begin.num_threads)
        self._connection = connection
        self._builder = ThreadPoolExecutor(1, thread_name_prefix="nano-weights")
        self._models = dict[int, Future[Prepared]]()
        self._shard = Shard(rank, begin.config.tensor_parallel_size)
        self._runner = ModelRunner(begin.config, begin.model_config, self._shard)

    def obey(self) -> None:
        """Do what comes, until it is to stop."""
        while not isinstance(message := self._connection.recv(), Stop):
            if isinstance(message, ForwardBatch):
                self._runner.forward(message)
            elif isinstance(message.action, Build):
                self._begin_build(message.number, message.action)
            else:
                self._answer(Done(message.number, self._do(message.action)))

    def _do(self, action: Action) -> int:
        match action:
            case Install(ticket):
                self._runner.replace(self._models.pop(ticket).result())
            case Join(by):
                self._join(by)
            case OpenStore(num_blocks):
                self._runner.open_store(num_blocks)
            case Plain.COUNT_BLOCKS:
                return self._runner.count_blocks()
            case Plain.DROP_STORE:
                self._runner.drop_store()
            case Plain.DROP_WEIGHTS:
                self._runner.drop_weights()
            case _:
                raise TypeError(f"no order of a running rank: {action!r}")
        return 0

    def _join(self, by: GatherMemory | int) -> None:
        if isinstance(by, int):
            store = join_store(by, self._shard.size)
            self._runner.group = TorchGroup(self._shard, self._runner.device, store)
            return
        fd = recv_handle(self._connection)
        # Whoever waits for rank 0 in vain ends with this process, so there is nothing to tell it.
        self._runner.group = MemoryGroup(self._shard, by, fd, self._runner.dtype, Event())
        os.close(fd)

    def _begin_build(self, number: int, build: Build) -> None:
        for ticket in build.forgotten:
            self._models.pop(ticket, None)
        fd = recv_handle(self._connection)
        self._models[build.ticket] = self._builder.submit(self._build, number, build.parcel, fd)

    def _build(self, number: int, parcel: Parcel, fd: int) -> Prepared:
        try:
            weights = parcel.unpack(fd)
            os.close(fd)
            prepared = self._runner.build(weights)
            self._answer(Done(number))
        except Exception as error:
            end_with(self._connection, error)
            raise
        return prepared

    def _answer(self, message: Done) -> None:
        with _SENDING:
            self._connection.send(message)


def end_with(connection: Connection, error: Exception) -> None:
    """Tell rank 0 what happened, and end."""
    if isinstance(error, RankFailedError):
        Event().wait(_REPORT_S)
    trace = "".join(traceback.format_exception(error))
    with _SENDING:
        connection.send(Failed(f"{type(error).__name__}: {error}", trace))
    os._exit(1)


def watch_parent(parent: int) -> None:
    """End with rank 0, which keeps our standard input open for as long as it lives."""
    while not select.select([0], [], [], _LOOK_S)[0] and os.getppid() == parent:
        pass
    os._exit(0)


def main() -> None:
    """A rank's whole life."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    rank, fd, parent = (int(each) for each in sys.argv[1:])
    connection = Connection(fd)
    Thread(target=watch_parent, args=(parent,), daemon=True).start()
    try:
        order = connection.recv()
        follower = Follower(rank, connection, order.action)
        connection.send(Done(order.number))
        follower.obey()
    except EOFError:
        pass  # Rank 0 is gone.
    except Exception as error:  # noqa: BLE001  Whatever it is, rank 0 tells it to whoever asks.
        end_with(connection, error)
    # There is nothing to give back but what the system takes back itself.
    os._exit(0)


if __name__ == "__main__":
    main()
