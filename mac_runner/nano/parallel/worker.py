"""A process that does what its leader sends: another rank, or a replica.

An error of nano's in a call is its answer. Any other error is sent with its traceback, and ends this process.
"""

from __future__ import annotations

import os
import select
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from operator import attrgetter
from threading import Event, Lock, Thread
from typing import Any, NoReturn

from mac_runner.nano.checkpoint import Part, StateDict
from mac_runner.nano.errors import NanoError, RankFailedError
from mac_runner.nano.parallel.group import PeerLostError
from mac_runner.nano.parallel.workers import Answer, Call, Failed, receive_memory, unpack
from mac_runner.nano.runner import Prepared

_REPORT_S = 10.0
"""How long a process that lost another waits, so that the leader can find out which."""


class Worker:
    """Its methods are called by name. It builds models beside its work, and keeps them under tickets."""

    def __init__(
        self, connection: Connection, build: Callable[[StateDict], Prepared], load: Callable[[], Prepared] | None = None
    ) -> None:
        """`build` makes a model of weights, `load` of those in the model's directory."""
        self._connection = connection
        self._build_model = build
        self._load_model = load
        self._builder = ThreadPoolExecutor(1, thread_name_prefix="nano-weights")
        self._models = dict[int, Future[Prepared]]()
        self._sending = Lock()  # The thread that builds models sends answers, too.

    def joined(self) -> object:
        """What the leader is to know when this process is ready."""
        return None

    def run(self) -> None:
        while (message := self._connection.recv()) is not None:
            self.carry_out(message)

    def carry_out(self, message: Call) -> None:
        if message.method == "begin_build":
            self.begin_build(message.number, *message.arguments)
        else:
            method = attrgetter(message.method)(self)
            self.answer(message.number, partial(method, *message.arguments))

    def answer(self, number: int, call: Callable[[], object]) -> None:
        try:
            answer = Answer(number, call())
        except RankFailedError:  # This process is over, too.
            raise
        except NanoError as error:
            answer = Answer(number, error=error)
        self.send(answer)

    def begin_build(self, number: int, ticket: int, parts: list[Part], forgotten: tuple[int, ...]) -> None:
        """Build a model of the weights whose memory follows, beside the steps, and keep it as `ticket`."""
        for each in forgotten:
            self._models.pop(each, None)
        fd = receive_memory(self._connection, parts[-1].end)
        self._models[ticket] = model = self._builder.submit(self._build, parts, fd)
        self._builder.submit(self._answer_build, number, model)

    def take(self, ticket: int) -> Prepared:
        return self._models.pop(ticket).result()

    def send(self, message: object) -> None:
        """Send the leader a message. Raises OSError where it is gone."""
        with self._sending:
            self._connection.send(message)

    def close(self) -> None:
        """Give everything back, where this process is to end in order."""
        self._builder.shutdown(wait=False, cancel_futures=True)

    def _build(self, parts: list[Part], fd: int | None) -> Prepared:
        if fd is None:
            assert self._load_model is not None
            return self._load_model()
        weights = unpack(parts, fd)
        os.close(fd)
        return self._build_model(weights)

    def _answer_build(self, number: int, model: Future[Prepared]) -> None:
        def wait() -> None:
            model.result()

        try:
            self.answer(number, wait)
        except Exception as error:  # noqa: BLE001  The leader ends this process then.
            _report(self.send, error)


def serve(connection: Connection, make: Callable[..., Worker]) -> bool:
    """Carry out what the leader sends, until it asks to stop or is gone; whether all went well.

    `make` takes the connection, and the arguments of the leader's first message. An error is reported to the leader.
    """
    worker: Worker | None = None
    try:
        if (first := connection.recv()) is None:
            return True
        worker = make(connection, *first.arguments)
        worker.send(Answer(first.number, worker.joined()))
        worker.run()
    except (EOFError, ConnectionError):
        pass  # The leader is gone.
    except Exception as error:  # noqa: BLE001  The leader raises it, whatever it is.
        _report(connection.send if worker is None else worker.send, error, is_beginning=worker is None)
        return False
    finally:
        if worker is not None:
            worker.close()
    return True


def _report(send: Callable[[Any], None], error: Exception, *, is_beginning: bool = False) -> None:
    """Tell the leader of an error that ends this process."""
    if isinstance(error, PeerLostError):
        Event().wait(_REPORT_S)
    trace = "".join(traceback.format_exception(error))
    own = error if is_beginning and isinstance(error, NanoError) else None
    with suppress(OSError):  # The leader is gone.
        send(Failed(f"{type(error).__name__}: {error}", trace, own))


def follow(connection: Connection, make: Callable[..., Worker]) -> NoReturn:
    """The life of a process that its leader has not started: the end of the connection shows that it is gone."""

    def watch() -> None:
        poll = select.poll()
        poll.register(connection, getattr(select, "POLLRDHUP", select.POLLHUP))
        poll.poll()
        leave()

    Thread(target=watch, name="nano-leader-watch", daemon=True).start()
    leave(is_well=serve(connection, make))


def leave(*, is_well: bool = True) -> NoReturn:
    """End this process, at any thread's word. The system takes everything back, and sooner than the interpreter does.

    A thread of torch that drops a tensor while the interpreter ends would also abort the process.
    """
    os._exit(0 if is_well else 1)
