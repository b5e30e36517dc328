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
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from threading import Event, Lock, Thread
from typing import NoReturn

from mac_runner.nano.architecture import ModelConfig
from mac_runner.nano.attention import ForwardBatch
from mac_runner.nano.checkpoint import StateDict, find_model
from mac_runner.nano.config import EngineConfig
from mac_runner.nano.cpu.threads import ThreadPin
from mac_runner.nano.parallel.divergence import StepDigests
from mac_runner.nano.parallel.group import (
    GatherMemory,
    MemoryGroup,
    PeerLostError,
    Shard,
    TorchGroup,
    join_store,
    own_address,
)
from mac_runner.nano.parallel.members import receive_memory
from mac_runner.nano.parallel.ranks import Call, Done, Failed, Parcel
from mac_runner.nano.runner import ModelRunner, Prepared

LOOK_S = 1.0
"""How often to look whether another rank is there, in case its end goes unnoticed."""
_REPORT_S = 10.0
"""How long a rank that lost another waits, so that rank 0 can find out which."""
_SENDING = Lock()
"""The thread that builds models sends answers, too."""


class Servant:
    """A process whose methods rank 0 calls by name. It builds models beside its work, and keeps them under tickets."""

    def __init__(
        self, connection: Connection, build: Callable[[StateDict], Prepared], load: Callable[[], Prepared] | None = None
    ) -> None:
        """`build` makes a model of weights, `load` of those in the model's directory."""
        self._connection = connection
        self._build_model = build
        self._load_model = load
        self._builder = ThreadPoolExecutor(1, thread_name_prefix="nano-weights")
        self._models = dict[int, Future[Prepared]]()

    def joined(self) -> object:
        """What rank 0 is to know when this process is ready."""
        return None

    def run(self) -> None:
        """Carry out messages until rank 0 asks to stop."""
        while (message := self._connection.recv()) is not None:
            self.carry_out(message)

    def carry_out(self, message: Call) -> None:
        """Call a method, and answer what it returns."""
        if message.method == "begin_build":
            self.begin_build(message.number, *message.arguments)
        else:
            send(self._connection, Done(message.number, getattr(self, message.method)(*message.arguments)))

    def begin_build(self, number: int, ticket: int, parcel: Parcel, forgotten: tuple[int, ...]) -> None:
        """Build a model of the weights whose memory follows, beside the batches, and keep it as `ticket`."""
        for each in forgotten:
            self._models.pop(each, None)
        fd = receive_memory(self._connection, parcel.num_bytes)
        self._models[ticket] = self._builder.submit(self._build, number, parcel, fd)

    def take(self, ticket: int) -> Prepared:
        """The model kept as `ticket`, when it is built."""
        return self._models.pop(ticket).result()

    def _build(self, number: int, parcel: Parcel, fd: int | None) -> Prepared:
        try:
            if fd is None:
                assert self._load_model is not None
                prepared = self._load_model()
            else:
                weights = parcel.unpack(fd)
                os.close(fd)
                prepared = self._build_model(weights)
            send(self._connection, Done(number))
        except Exception as error:
            end_with(self._connection, error)
            raise
        return prepared


class Follower(Servant, ModelRunner):
    """One rank of a model. One of another host has its own `model_path` and `device`."""

    def __init__(
        self,
        rank: int,
        connection: Connection,
        config: EngineConfig,
        model_config: ModelConfig,
        num_threads: int,
        *,
        model_path: str | None = None,
        device: int | None = None,
    ) -> None:
        ThreadPin(num_threads)
        Servant.__init__(self, connection, self.build, lambda: self.load(find_model(model_path or config.model_path)))
        self._steps = StepDigests()
        self._installed = 0
        ModelRunner.__init__(self, config, model_config, Shard(rank, config.tensor_parallel_size, device))

    def carry_out(self, message: Call | ForwardBatch) -> None:
        """Compute a batch, or call a method."""
        if isinstance(message, ForwardBatch):
            self.forward(message)
            self._steps.add(self._installed, message)
        else:
            super().carry_out(message)

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

    def install(self, ticket: int) -> None:
        """Compute with the model kept as `ticket` from now on."""
        self.replace(self.take(ticket))
        self._installed = ticket

    def step_digests(self) -> tuple[int, dict[str, str]]:
        """This rank, and the digests of all its steps."""
        return self.shard.rank, self._steps.digests()


def send(connection: Connection, message: Done | Failed) -> None:
    """Send rank 0 an answer."""
    with _SENDING:
        connection.send(message)


def end_with(connection: Connection, error: Exception) -> None:
    """Report an error to rank 0, and end."""
    if isinstance(error, PeerLostError):
        Event().wait(_REPORT_S)
    with suppress(OSError):  # Rank 0 is gone.
        send(connection, Failed(f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error))))
    os._exit(1)


def serve(connection: Connection, make: Callable[..., Servant]) -> None:
    """Carry out what rank 0 sends, until it asks to stop or is gone. `make` takes the arguments of its first message.

    An error is reported to rank 0, and ends this process.
    """
    try:
        if (first := connection.recv()) is None:
            return
        servant = make(*first.arguments)
        send(connection, Done(first.number, servant.joined()))
        servant.run()
    except (EOFError, ConnectionError):
        pass  # Rank 0 is gone.
    except Exception as error:  # noqa: BLE001  Rank 0 raises it, whatever it is.
        end_with(connection, error)


def watch_connection(connection: Connection) -> None:
    """End with rank 0, where it has not started this process: its end of the connection shows that it is gone."""
    poll = select.poll()
    poll.register(connection, getattr(select, "POLLRDHUP", select.POLLHUP))
    poll.poll()
    leave()


def watch_parent(parent: int) -> None:
    """End with rank 0, which keeps this process's standard input open while it lives."""
    while not select.select([0], [], [], LOOK_S)[0] and os.getppid() == parent:
        pass
    leave()


def main(make: Callable[..., Servant]) -> None:
    """The whole life of a process; `make` takes its rank, its connection, and the arguments of the first message."""
    rank, *ties = (int(each) for each in sys.argv[1:])
    live(lambda connection: serve(connection, partial(make, rank, connection)), *ties)


def live(work: Callable[[Connection], None], fd: int, parent: int) -> None:
    """Serve the process that started this one, over the socket of a descriptor, and end."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    Thread(target=watch_parent, args=(parent,), daemon=True).start()
    work(Connection(fd))
    leave()


def leave() -> NoReturn:
    """End this process, at any thread's word. The system takes everything back, and sooner than the interpreter does.

    A thread of torch that drops a tensor while the interpreter ends would also abort the process.
    """
    os._exit(0)


if __name__ == "__main__":
    main(Follower)
