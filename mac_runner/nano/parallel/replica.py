"""The process of one replica: an engine of its own, which does what the leader sends.

    python -m mac_runner.nano.parallel.replica SOCKET_FD PARENT_PID

The main thread takes the steps. Another one reads messages, and prepares requests and weights beside the steps. What a
step has finished, and every token of a request that streams, goes to the leader at once.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from threading import Lock, Thread

from mac_runner.nano.base_engine import EngineState
from mac_runner.nano.engine import InferenceEngine
from mac_runner.nano.errors import NanoError, RankFailedError, RequestError
from mac_runner.nano.intake import PreparedRequest
from mac_runner.nano.mailbox import Mailbox
from mac_runner.nano.parallel.follower import live
from mac_runner.nano.parallel.members import receive_memory
from mac_runner.nano.parallel.messages import Admit, Answer, Progress, Ready, failed_delta
from mac_runner.nano.parallel.ranks import Failed, Parcel
from mac_runner.nano.parallel.rendezvous import Rendezvous
from mac_runner.nano.runner import Prepared
from mac_runner.nano.sequence import Delta


class ReplicaServer:
    """Serves one engine to the leader at the other end of `connection`."""

    def __init__(self, connection: Connection, engine: InferenceEngine) -> None:
        self._connection = connection
        self._engine = engine
        self._mailbox = Mailbox()
        self._models = dict[int, Prepared]()
        self._builder = ThreadPoolExecutor(1, thread_name_prefix="nano-weights")
        self._sending = Lock()
        self._is_closing = False
        self._sent_state = engine.state

    def run(self) -> None:
        """Take steps until the leader asks to stop or is gone."""
        self._send(Ready(self._engine.max_model_len, self._engine.num_blocks))
        Thread(target=self._receive, name="nano-leader", daemon=True).start()
        while not self._is_closing:
            self._mailbox.perform(waits=not self._is_stepping(), is_closing=lambda: self._is_closing)
            deltas = self._engine.step_deltas() if self._is_stepping() else []
            if deltas or self._engine.state is not self._sent_state:
                self._sent_state = self._engine.state
                self._send(Progress(deltas, self._sent_state))
        self._builder.shutdown()

    def _is_stepping(self) -> bool:
        is_running = self._engine.state in (EngineState.RUNNING, EngineState.DRAINING)
        return not self._is_closing and is_running and self._engine.has_pending()

    def _send(self, message: object) -> None:
        with self._sending:
            try:
                self._connection.send(message)
            except OSError:
                self._is_closing = True  # The leader is gone.

    # What the leader calls; all but `begin_build` between two steps.

    def stats(self) -> object:
        """How busy the engine is."""
        return self._engine.stats()

    def abort(self, request_id: int | None) -> list[Delta]:
        """End a request, or all."""
        return self._engine.abort_deltas(request_id)

    def install(self, ticket: int, version: int) -> None:
        """Compute with the weights of a ticket from now on."""
        self._engine.install_weights(self._models.pop(ticket), version)

    def flush_cache(self) -> None:
        """Forget every prefix."""
        self._engine.flush_cache()

    def begin_pause(self, mode: str) -> EngineState:
        """Pause; the state now."""
        self._engine.begin_pause("wait" if mode == "wait" else "keep")
        return self._engine.state

    def resume(self) -> None:
        """Continue."""
        self._engine.resume()

    def sleep(self, drop_weights: bool) -> None:
        """Give memory back."""
        self._engine.sleep(drop_weights=drop_weights)

    def wake(self) -> None:
        """Be ready again."""
        self._engine.wake()

    # What follows runs in the thread that reads messages.

    def _receive(self) -> None:
        while True:
            try:
                message = self._connection.recv()
            except (EOFError, OSError):
                message = None
            if message is None:
                self._mailbox.put(self._close)
                return
            if isinstance(message, Admit):
                self._mailbox.put(self._admission(message))
            elif message.method == "begin_build":
                ticket, parcel, forgotten = message.arguments
                for each in forgotten:
                    self._models.pop(each, None)
                fd = receive_memory(self._connection, parcel.num_bytes)
                assert fd is not None
                self._builder.submit(self._answer, message.number, partial(self._build, ticket, parcel, fd))
            else:
                call = partial(getattr(self, message.method), *message.arguments)
                self._mailbox.put(partial(self._answer, message.number, call))

    def _admission(self, admit: Admit) -> Callable[[], None]:
        try:
            request = self._engine.prepare_request(
                admit.tokens, admit.params, admit.num_samples, stream=admit.is_streamed
            )
        except RequestError as error:
            return partial(self._refuse, admit, error)
        return partial(self._add, request, admit)

    def _add(self, request: PreparedRequest, admit: Admit) -> None:
        self._engine.add_prepared(request, admit.request_id)

    def _refuse(self, admit: Admit, error: RequestError) -> None:
        deltas = [failed_delta(admit.request_id, index, admit.tokens, error) for index in range(admit.num_samples)]
        self._send(Progress(deltas, self._engine.state))

    def _build(self, ticket: int, parcel: Parcel, fd: int) -> None:
        weights = parcel.unpack(fd)
        os.close(fd)
        self._models[ticket] = self._engine.prepare_weights(weights)

    def _answer(self, number: int, call: Callable[[], object]) -> None:
        try:
            answer = Answer(number, call())
        except RankFailedError as error:
            self._mailbox.put(partial(_throw, error))  # Also where this is not the main thread: the replica is over.
            return
        except NanoError as error:
            answer = Answer(number, error=error)
        self._send(answer)

    def _close(self) -> None:
        self._is_closing = True


def _throw(error: Exception) -> None:
    raise error


def serve_leader(connection: Connection, rendezvous: Rendezvous | None = None, model_path: str | None = None) -> None:
    """Load what the leader asks for, and serve it until the leader ends.

    With a `rendezvous` the other ranks of the replica connect there. Another host has a `model_path` of its own.
    """
    try:
        begin = connection.recv()
    except (EOFError, ConnectionError):
        return
    if begin is None:  # The leader ends before it has begun.
        return
    try:
        config = replace(begin.config, model_path=model_path) if model_path is not None else begin.config
        if begin.world is not None:
            rendezvous = Rendezvous(begin.world, is_child=True)
        engine = InferenceEngine(config, rendezvous.joined_ranks() if rendezvous is not None else None)
    except NanoError as error:
        with suppress(OSError):  # The leader is gone.
            connection.send(Answer(0, error=error))
        return
    try:
        ReplicaServer(connection, engine).run()
    except Exception as error:  # noqa: BLE001  The leader reports it, whatever it is.
        with suppress(OSError):
            connection.send(Failed(f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error))))
    finally:
        engine.shutdown()


def main() -> None:
    """The whole life of a replica that its leader has started."""
    live(serve_leader, *map(int, sys.argv[1:]))


if __name__ == "__main__":
    main()
