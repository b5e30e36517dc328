"""The process of a rank other than 0: it carries out one message after the other.

    python -m mac_runner.nano.parallel.follower RANK SOCKET_FD PARENT_PID

It decides nothing. An error here is sent to rank 0 with its traceback, and ends this process. Signals that ask to end
are left to rank 0, which may have requests to finish.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from threading import Event, Lock, Thread

from mac_runner.nano.architecture import ModelConfig
from mac_runner.nano.attention import ForwardBatch
from mac_runner.nano.checkpoint import find_model
from mac_runner.nano.config import EngineConfig
from mac_runner.nano.cpu.threads import ThreadPin
from mac_runner.nano.errors import RankFailedError
from mac_runner.nano.parallel.group import GatherMemory, MemoryGroup, Shard, TorchGroup, join_store, own_address
from mac_runner.nano.parallel.members import receive_memory
from mac_runner.nano.parallel.ranks import Done, Failed, Parcel
from mac_runner.nano.runner import ModelRunner, Prepared

_LOOK_S = 1.0
"""How often to look whether rank 0 is there, in case its end goes unnoticed: a child of its own may hold the pipe."""
_REPORT_S = 10.0
"""How long a rank that lost another waits, so that rank 0 can find out which."""
_SENDING = Lock()
"""The thread that builds models sends answers, too."""


class Follower(ModelRunner):
    """One rank. Rank 0 calls its methods by name."""

    def __init__(
        self, shard: Shard, connection: Connection, config: EngineConfig, model_config: ModelConfig, num_threads: int
    ) -> None:
        ThreadPin(num_threads)
        super().__init__(config, model_config, shard)
        self._connection = connection
        self._builder = ThreadPoolExecutor(1, thread_name_prefix="nano-weights")
        self._models = dict[int, Future[Prepared]]()

    def run(self) -> None:
        """Carry out messages until rank 0 asks to stop."""
        while (message := self._connection.recv()) is not None:
            if isinstance(message, ForwardBatch):
                self.forward(message)
            elif message.method == "begin_build":
                self.begin_build(message.number, *message.arguments)
            else:
                send(self._connection, Done(message.number, getattr(self, message.method)(*message.arguments)))

    def join(self, by: GatherMemory | tuple[str, int]) -> None:
        """Gather with the others: through the memory that follows, or torch.distributed with this store."""
        if isinstance(by, tuple):
            store = join_store(*by, self.shard.size)
            self.group = TorchGroup(self.shard, self.device, store, own_address(by[0]))
            return
        fd = receive_memory(self._connection, by.num_bytes)
        assert fd is not None
        # A rank that waits in vain for rank 0 ends with this process, so the event is never set.
        self.group = MemoryGroup(self.shard, by, fd, self.dtype, Event())
        os.close(fd)

    def begin_build(self, number: int, ticket: int, parcel: Parcel, forgotten: tuple[int, ...]) -> None:
        """Build a model of the weights whose memory follows, beside the batches, and keep it as `ticket`."""
        for each in forgotten:
            self._models.pop(each, None)
        fd = receive_memory(self._connection, parcel.num_bytes)
        self._models[ticket] = self._builder.submit(self._build, number, parcel, fd)

    def install(self, ticket: int) -> None:
        """Compute with the model kept as `ticket` from now on."""
        self.replace(self._models.pop(ticket).result())

    def _build(self, number: int, parcel: Parcel, fd: int | None) -> Prepared:
        try:
            if fd is None:
                prepared = self.load(find_model(self._config.model_path))
            else:
                weights = parcel.unpack(fd)
                os.close(fd)
                prepared = self.build(weights)
            send(self._connection, Done(number))
        except Exception as error:
            end_with(self._connection, error)
            raise
        return prepared


def send(connection: Connection, message: Done | Failed) -> None:
    """Send rank 0 an answer."""
    with _SENDING:
        connection.send(message)


def end_with(connection: Connection, error: Exception) -> None:
    """Report an error to rank 0, and end."""
    if isinstance(error, RankFailedError):
        Event().wait(_REPORT_S)
    send(connection, Failed(f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error))))
    os._exit(1)


def follow(connection: Connection, rank: int, model_path: str | None = None, device: int | None = None) -> None:
    """Carry out what rank 0 sends, until it asks to stop or is gone.

    A rank of another host has its own `model_path` and `device`.
    """
    with suppress(EOFError):
        first = connection.recv()
        config, model_config, num_threads = first.arguments
        if model_path is not None:
            config = replace(config, model_path=model_path)
        shard = Shard(rank, config.tensor_parallel_size, device)
        follower = Follower(shard, connection, config, model_config, num_threads)
        send(connection, Done(first.number))
        follower.run()


def watch_connection(connection: Connection) -> None:
    """End with rank 0, where it has not started this process: its end of the connection shows that it is gone."""
    poll = select.poll()
    poll.register(connection, getattr(select, "POLLRDHUP", select.POLLHUP))
    poll.poll()
    os._exit(0)


def watch_parent(parent: int) -> None:
    """End with rank 0, which keeps this process's standard input open while it lives."""
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
        follow(connection, rank)
    except Exception as error:  # noqa: BLE001  Rank 0 raises it, whatever it is.
        end_with(connection, error)
    # The system takes everything back.
    os._exit(0)


if __name__ == "__main__":
    main()
