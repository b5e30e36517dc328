"""New weights from a trainer in another process, over torch.distributed: gloo between CPUs, NCCL between GPUs.

    sender = WeightSender("10.0.0.5:29600", receivers=2)   # in the trainer
    sender.send(model.state_dict(), version=7)             # returns when both engines have taken them

Each engine calls `receive`, before or after the trainer sends. The two sides talk over one connection for each engine:

| trainer | engine |
|---|---|
| | I am here, and so many engines of my run receive |
| the names, shapes and dtypes, the version, your rank | they fit my model, or: they do not |
| go | |
| the tensors, to all engines at once, in a group of torch.distributed that is made for this transfer | |
| | I have built a model of them |
| install it | taken |

An engine installs only at the last step. So before it, a process that is lost, refuses or is too slow costs nothing but
this transfer. A lost process closes its connection, which the other side sees at once, whatever the group waits for.
The address is not protected: it belongs on a network that only trainer and engines can reach.
"""

from __future__ import annotations

import json
import os
import socket
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from threading import Event, Lock, Thread
from typing import Any, Literal, NamedTuple, Self, TypeVar

import torch

from mac_runner.nano import errors
from mac_runner.nano.checkpoint import Part, StateDict, pieces
from mac_runner.nano.errors import BroadcastError, ConfigError, NanoError, UpdateInProgressError, WrongDtypeError
from mac_runner.nano.parallel.group import PATIENCE_S, Shard, host_store, join_store, own_address, process_group

PROTOCOL = 1
PIECE_BYTES = 64 << 20
"""The tensors are sent in pieces of about this size."""
_MESSAGE_BYTES_MAX = 64 << 20
_TICK_S = 0.005
_RETRY_S = 0.05
_CONNECT_S_MAX = 5.0
CARRY_S_MAX = 60.0
"""How long one piece may take; a thread that waits for a lost process ends after it."""
_BACKLOG = 1024
_PORT_MAX = 65535

Result = TypeVar("Result")
Message = dict[str, Any]


class Place(NamedTuple):
    """The address of a trainer."""

    host: str
    port: int


def parse_address(address: str) -> Place:
    """`host:port`, or `[host]:port`. Raises ConfigError."""
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdecimal()) or int(port) > _PORT_MAX:
        raise ConfigError(f"{address!r} is not the address of a trainer: write host:port, such as 127.0.0.1:29600")
    return Place(host.removeprefix("[").removesuffix("]"), int(port))


class WeightSender:
    """The trainer's side: listens at `address` (port 0 takes a free one), and sends to `receivers` engines at once.

    `timeout_s` is how long it waits for an engine that neither answers nor ends.
    """

    def __init__(
        self,
        address: str,
        receivers: int = 1,
        *,
        backend: Literal["gloo", "nccl"] = "gloo",
        timeout_s: float = PATIENCE_S,
    ) -> None:
        if receivers < 1:
            raise ConfigError(f"receivers = {receivers}: a trainer sends to one engine or more")
        self._device = _device(backend)
        place = parse_address(address)
        family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
        self._listener = socket.create_server((place.host, place.port), family=family, backlog=_BACKLOG)
        self._listener.setblocking(False)
        self._receivers, self._backend, self._timeout_s = receivers, backend, timeout_s
        self._waiting = list[_Link]()
        self._sending = Lock()
        bound = self._listener.getsockname()
        self.address = f"[{bound[0]}]:{bound[1]}" if ":" in bound[0] else f"{bound[0]}:{bound[1]}"

    def send(self, state_dict: StateDict, version: int | None = None) -> None:
        """Send all weights of a model, and return when every engine has taken them.

        Without a `version` each engine counts its own up by one. Raises what an engine refused them with (a ModelError
        or a StaleVersionError), or BroadcastError when an engine was lost or too slow. Then no engine installs them.
        """
        if not self._sending.acquire(blocking=False):
            raise UpdateInProgressError("this sender is sending already: wait for it and try again")
        try:
            with self._engines() as links:
                self._transfer(links, state_dict, version)
        finally:
            self._sending.release()

    def close(self) -> None:
        """Stop listening. Engines that wait for weights get a BroadcastError."""
        self._listener.close()
        for link in self._waiting:
            link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _engines(self) -> Iterator[list[_Link]]:
        """The engines of a transfer, which all hear of its end."""
        self._gather()
        links, self._waiting = self._waiting[: self._receivers], self._waiting[self._receivers :]
        for link in links:
            link.inbox.clear()
        try:
            yield links
        except BaseException as error:
            reason = str(error) if isinstance(error, NanoError) else "the trainer gave it up"
            for link in links:
                with suppress(BroadcastError):
                    link.send({"abandoned": reason})
            raise
        finally:
            for link in links:
                link.close()

    def _gather(self) -> None:
        """Wait until as many engines as are sent to are here. Those that have gone again do not count."""
        silence_s = 0.0
        while True:
            others = self._refuse_others()
            is_enough = not others and len([link for link in self._waiting if link.inbox]) >= self._receivers
            tick_s = 0.0 if is_enough else _RETRY_S
            readable = wait([self._listener, *(link.connection for link in self._waiting)], tick_s)
            if is_enough and not readable:
                return
            silence_s = 0.0 if readable else silence_s + tick_s
            if self._listener in readable:
                with suppress(OSError):  # It has left in the meantime.
                    self._waiting.append(_Link(self._listener.accept()[0], "an engine"))
            self._waiting = [link for link in self._waiting if link.connection not in readable or link.is_there()]
            if silence_s > self._timeout_s:
                raise BroadcastError(
                    f"{len(self._waiting)} of {self._receivers} engines came to {self.address} within "
                    f"{self._timeout_s:g} s: let each receive from this address, or lower receivers"
                )

    def _refuse_others(self) -> bool:
        """Whether engines of another number than `receivers` come. Raises BroadcastError once they are all here."""
        others = Counter(link.engines for link in self._waiting if link.engines not in (None, self._receivers))
        number = next((number for number, here in others.items() if here >= number), None)
        if number is None:
            return bool(others)
        why = f"receivers is {self._receivers}, but the number of engines that are up is {number}"
        gone, self._waiting = self._waiting, []
        for link in gone:
            with suppress(BroadcastError):
                link.send({"abandoned": why})
            link.close()
        raise BroadcastError(f"{why}: no new weights were installed; wait for the other engines, or correct receivers")

    def _transfer(self, links: Sequence[_Link], state_dict: StateDict, version: int | None) -> None:
        layout = {name: _described(name, tensor) for name, tensor in state_dict.items()}
        address = links[0].local_address
        store, port = host_store(len(links) + 1, address)
        for rank, link in enumerate(links, 1):
            link.name = f"engine {rank}"
            where = {"rank": rank, "size": len(links) + 1, "port": port, "backend": self._backend}
            where["piece_bytes"] = PIECE_BYTES
            link.send({"version": version, "tensors": layout, **where})
        self._await(links)
        for link in links:
            link.send({"go": True})

        def send_all(group: TransferGroup) -> None:
            group.join(0, len(links) + 1, store, address)
            for piece, parts in _pieces(layout, PIECE_BYTES, self._device):
                for part in parts:
                    part.of(piece).copy_(state_dict[part.name].detach())
                group.broadcast(piece)
                del piece  # Before there is memory for the next.

        alongside(send_all, TransferGroup(self._device, self._timeout_s), links)
        self._await(links)
        try:
            for link in links:
                link.send({"install": True})
            self._await(links)
        except BroadcastError as error:
            raise BroadcastError(f"{error.args[0]}, but by engines that heard of it: all had the weights") from error

    def _await(self, links: Sequence[_Link]) -> None:
        """Wait for one answer of each engine. Raises what one of them refuses with."""

        def is_decided() -> bool:
            has_refused = any("refused" in message for link in links for message in link.inbox)
            return has_refused or all(link.inbox for link in links)

        _wait(links, is_decided, self._timeout_s)
        for link in links:
            answer = link.inbox.popleft() if link.inbox else {}
            if "refused" in answer:
                raise _refusal(answer, link.name)


def receive(
    address: str,
    check: Callable[[StateDict, int | None], None],
    prepare: Callable[[StateDict], Result],
    *,
    timeout_s: float = PATIENCE_S,
    cancelled: Event | None = None,
    engines: int | None = None,
) -> tuple[Result, int | None]:
    """Receive the next weights that the trainer at `address` sends; what `prepare` makes of them, and their version.

    `check` gets them first without their numbers, on the device 'meta', and their version, and raises for what does not
    fit. `engines` is how many receive from this trainer, where that is known: a trainer with another number of
    receivers then waits for no other. What `check` or `prepare` raises is raised here and at the trainer. Raises
    BroadcastError where the trainer, or another engine, is lost, refuses, or is silent for `timeout_s`, and where
    `cancelled` is set by another thread.
    """
    cancelled = cancelled or Event()
    place = parse_address(address)
    link = _connected(place, timeout_s, cancelled)
    try:
        link.send({"protocol": PROTOCOL} | ({} if engines is None else {"engines": engines}))
        begin = _next(link, timeout_s, cancelled)
        version: int | None = begin["version"]
        layout: dict[str, Described] = {name: (dtype, list(shape)) for name, (dtype, shape) in begin["tensors"].items()}
        with _told(link):
            metas = {
                name: torch.empty(shape, dtype=_dtype(name, dtype), device="meta")
                for name, (dtype, shape) in layout.items()
            }
            check(metas, version)
            device = _device(begin["backend"])
        link.send({"fits": True})
        _next(link, timeout_s, cancelled)

        def receive_all(group: TransferGroup) -> dict[str, torch.Tensor]:
            store = join_store(place.host, begin["port"], begin["size"], min(timeout_s, CARRY_S_MAX))
            group.join(begin["rank"], begin["size"], store, own_address(place.host))
            tensors = dict[str, torch.Tensor]()
            for piece, parts in _pieces(layout, begin["piece_bytes"], device):
                group.broadcast(piece)
                tensors |= {part.name: part.of(piece) for part in parts}
            return tensors

        tensors = alongside(receive_all, TransferGroup(device, timeout_s), [link], cancelled)
        with _told(link):
            prepared = prepare(tensors)
        link.send({"prepared": True})
        _next(link, timeout_s, cancelled)
        with suppress(BroadcastError):  # All engines are ready: a trainer that is lost now changes nothing.
            link.send({"taken": True})
        return prepared, version
    finally:
        link.close()


class _Link:
    """One end of a connection, and the messages that have come. They are JSON."""

    def __init__(self, peer: socket.socket, name: str) -> None:
        peer.setblocking(True)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.name = name
        self.inbox = deque[Message]()
        self.is_over = False
        self.engines: int | None = None
        """How many engines receive with this one, where it says so."""
        self.local_address = str(peer.getsockname()[0])
        """The address of this host that the other side reaches."""
        self.connection = Connection(peer.detach())

    def send(self, message: Message) -> None:
        try:
            self.connection.send_bytes(json.dumps(message).encode())
        except OSError as error:
            raise BroadcastError(f"{self.name} was lost: {error}; no new weights were installed") from error

    def read(self) -> None:
        """Put the next message into the inbox. Raises BroadcastError as `require` does, and for a given up transfer."""
        try:
            message = json.loads(self.connection.recv_bytes(_MESSAGE_BYTES_MAX))
        except (OSError, EOFError, ValueError):
            self.is_over = True
            self.require()
            return
        if "abandoned" in message:
            raise BroadcastError(f"the transfer was given up: {message['abandoned']}; no new weights were installed")
        self.inbox.append(message)

    def require(self) -> None:
        """Raise BroadcastError for a peer that was lost, and whose last message has been taken."""
        if self.is_over and not self.inbox:
            raise BroadcastError(f"{self.name} was lost in the middle; no new weights were installed")

    def is_there(self) -> bool:
        """Read what has come of an engine that waits: whether it is one, and has not gone."""
        try:
            self.read()
        except BroadcastError:
            self.close()
            return False
        match list(self.inbox):
            case [{"protocol": protocol, **more}] if protocol == PROTOCOL and not self.is_over:
                engines = more.get("engines")
                self.engines = engines if isinstance(engines, int) else None
                return True
        self.close()
        return False

    def close(self) -> None:
        """Close the connection, which the other side sees at once."""
        self.connection.close()


class TransferGroup:
    """The processes of one transfer, in a group of torch.distributed; `num_pieces` have been carried."""

    def __init__(self, device: torch.device, timeout_s: float) -> None:
        self.device, self.timeout_s = device, timeout_s
        self.num_pieces = 0
        self._group: torch.distributed.ProcessGroup | None = None

    def join(self, rank: int, size: int, store: object, address: str) -> None:
        is_cuda = self.device.type == "cuda"
        shard = Shard(rank, size, torch.cuda.current_device() if is_cuda else None)
        # Otherwise torch ends the whole process when NCCL loses another one.
        with _environment("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0" if is_cuda else None):
            self._group = process_group(shard, self.device, store, address, min(self.timeout_s, CARRY_S_MAX))

    def broadcast(self, piece: torch.Tensor) -> None:
        """Carry a piece from rank 0 to all others."""
        assert self._group is not None
        self._group.broadcast([piece]).wait()
        if self.device.type == "cuda":
            torch.cuda.current_stream().synchronize()
        self.num_pieces += 1

    def abort(self) -> None:
        """Release a thread that NCCL lets wait for a lost process; gloo sees by itself that it is lost."""
        if self._group is not None and self.device.type == "cuda":
            self._group.abort()


@contextmanager
def _environment(name: str, value: str | None) -> Iterator[None]:
    """Set a variable for a while, unless the user has set it."""
    if value is None or name in os.environ:
        yield
        return
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


def _wait(
    links: Sequence[_Link],
    is_done: Callable[[], bool],
    timeout_s: float,
    cancelled: Event | None = None,
    progress: Callable[[], int] = lambda: 0,
) -> None:
    """Read messages until `is_done`. Raises BroadcastError for a lost peer, and after so many seconds of silence."""
    silence_s, seen = 0.0, 0
    while not is_done():
        if cancelled is not None and cancelled.is_set():
            raise BroadcastError("the update was cancelled; no new weights were installed")
        if silence_s > timeout_s:
            silent = ", ".join(link.name for link in links if not link.inbox)
            raise BroadcastError(f"{silent} did nothing for {timeout_s:g} s; no new weights were installed")
        for link in links:
            link.require()
        by_connection = {link.connection: link for link in links if not link.is_over}
        readable = wait(list(by_connection), _TICK_S)
        silence_s, seen = 0.0 if readable or progress() > seen else silence_s + _TICK_S, progress()
        for connection in readable:
            assert isinstance(connection, Connection)
            by_connection[connection].read()


def _next(link: _Link, timeout_s: float, cancelled: Event) -> Message:
    _wait([link], lambda: bool(link.inbox), timeout_s, cancelled)
    return link.inbox.popleft()


def alongside(
    work: Callable[[TransferGroup], Result],
    group: TransferGroup,
    links: Sequence[_Link],
    cancelled: Event | None = None,
) -> Result:
    """Run `work`, which may hang when another process is lost, in a thread that is left behind then."""
    future = Future[Result]()

    def run() -> None:
        try:
            future.set_result(work(group))
        except Exception as error:  # noqa: BLE001  Whatever torch raises.
            future.set_exception(error)

    thread = Thread(target=run, name="nano-transfer", daemon=True)
    thread.start()
    try:
        _wait(links, future.done, group.timeout_s, cancelled, lambda: group.num_pieces)
        thread.join()
        return future.result()
    except RuntimeError as error:
        raise BroadcastError(f"no new weights were installed: torch.distributed failed: {error}") from error
    except BroadcastError:
        group.abort()
        raise


@contextmanager
def _told(link: _Link) -> Iterator[None]:
    """Let the trainer know what this engine raises."""
    try:
        yield
    except NanoError as error:
        with suppress(BroadcastError):
            link.send({"refused": type(error).__name__, "message": str(error)})
        raise


def _refusal(answer: Message, name: str) -> NanoError:
    kind = getattr(errors, str(answer["refused"]), BroadcastError)
    is_ours = isinstance(kind, type) and issubclass(kind, NanoError)
    return (kind if is_ours else BroadcastError)(f"{name} refused: {answer['message']}; no engine installed them")


def _connected(place: Place, timeout_s: float, cancelled: Event) -> _Link:
    """A connection to the trainer, which may come later than this engine."""
    waited_s = 0.0
    while True:
        try:
            peer = socket.create_connection(place, min(timeout_s, _CONNECT_S_MAX))
            return _Link(peer, f"the trainer at {place.host}:{place.port}")
        except OSError as error:
            if waited_s >= timeout_s or cancelled.wait(_RETRY_S):
                raise BroadcastError(
                    f"no trainer at {place.host}:{place.port} ({error}): make a WeightSender there"
                ) from error
            waited_s += _RETRY_S


# The tensors.

Described = tuple[str, list[int]]
"""The dtype and the shape of a tensor, as JSON has them."""


def _described(name: str, tensor: object) -> Described:
    if not isinstance(tensor, torch.Tensor) or tensor.is_meta:
        raise WrongDtypeError(f"tensor {name} is {type(tensor).__name__}, expected a torch.Tensor with numbers")
    return str(tensor.dtype).removeprefix("torch."), list(tensor.shape)


def _dtype(name: str, dtype: str) -> torch.dtype:
    found = getattr(torch, dtype, None)
    if not isinstance(found, torch.dtype):
        raise WrongDtypeError(f"tensor {name} is of the dtype {dtype!r}, which this version of torch does not have")
    return found


def _pieces(
    layout: Mapping[str, Described], piece_bytes: int, device: torch.device
) -> Iterator[tuple[torch.Tensor, list[Part]]]:
    """Memory for all tensors in their order, in pieces of about so many bytes."""
    tensors = ((name, _dtype(name, dtype), shape) for name, (dtype, shape) in layout.items())
    for parts in pieces(tensors, piece_bytes):
        yield torch.empty(parts[-1].end, dtype=torch.uint8, device=device), parts


def _device(backend: str) -> torch.device:
    if backend == "nccl" and not torch.cuda.is_available():
        raise ConfigError("backend = 'nccl': torch finds no GPU here; give the WeightSender 'gloo'")
    return torch.device("cuda" if backend == "nccl" else "cpu")
