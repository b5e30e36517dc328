"""The processes of an engine: D replicas of T ranks each, which of them this one is, and how ranks find each other.

Rank `r` is rank `r % T` of replica `r // T`. The ranks come from the environment of torchrun or srun. Without either,
the world is this process alone, and it starts the others itself.

Ranks that a launcher has started meet at a store of torch.distributed at the master's address. There each leaves the
name of its host and its digests. Rank 0 compares the digests, and all learn its verdict. Then ranks connect in pairs:
the first rank of a replica with the others of it, and rank 0 with the first rank of each replica. Both sides of a
connection prove that they know the key that rank 0 left in the store. Processes of one host use a socket of that
machine, by which they can share memory.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path

from mac_runner.nano.errors import ConfigError, DivergenceError, NanoError, RankFailedError
from mac_runner.nano.parallel.divergence import require_equal
from mac_runner.nano.parallel.group import LOCAL, own_address
from mac_runner.nano.parallel.workers import Member, limit_sending, probe_silence

PORT = 29500
"""torchrun's own default."""
PORT_MAX = 65535
ARRIVAL_S_MAX = 300.0
"""How long a rank may take to come, after the first one."""
DIGESTS_S_MAX = 1800.0
"""How long it may take to read the model's files."""
FAREWELL_S = 10.0
"""How long rank 0 keeps the store for ranks that have not read its verdict."""
HANDSHAKE_S = 10
_KEY_BYTES = 32
_LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK"),
    "srun": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NODEID"),
}
"""The variables for a rank, the number of ranks, a rank's number on its host, and the number of the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One process among `size`. `host` is the number of its host; `local_rank` counts the processes of one host.

    The ranks meet at `master_address` and `master_port`, an address of the host of rank 0.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    dp_rank: int = 0
    tp_rank: int = 0
    host: int = 0
    tensor_parallel_size: int = 1
    master_address: str = LOCAL
    master_port: int = PORT
    is_master_served: bool = False
    """Whether the launcher itself serves the store at the master's port, as torchrun does."""
    attempt: str = "0"
    """The launcher's number of this start, which a restart counts up."""

    @property
    def is_alone(self) -> bool:
        """Whether no launcher started other ranks."""
        return self.size == 1

    @property
    def data_parallel_size(self) -> int:
        return self.size // self.tensor_parallel_size

    def head(self, dp_rank: int) -> int:
        """The first rank of a replica."""
        return dp_rank * self.tensor_parallel_size


ALONE = World()


def world_of(environ: Mapping[str, str], *, data_parallel_size: int = 1, tensor_parallel_size: int = 1) -> World:
    """This process's place, from the variables of torchrun or srun; `ALONE` where neither has set its own.

    Raises ConfigError where they do not fit `data_parallel_size` times `tensor_parallel_size` ranks.
    """
    launcher = next((name for name, names in _LAUNCHERS.items() if names[0] in environ and names[1] in environ), None)
    if launcher is None:
        return ALONE
    rank, size, local_rank, host = (_number(environ, name, launcher) for name in _LAUNCHERS[launcher])
    wanted = data_parallel_size * tensor_parallel_size
    if size != wanted:
        raise ConfigError(
            f"{launcher} started {size} ranks, and data_parallel_size = {data_parallel_size} times "
            f"tensor_parallel_size = {tensor_parallel_size} are {wanted}: start {wanted} ranks or change a size"
        )
    if rank >= size:
        raise ConfigError(f"{_LAUNCHERS[launcher][0]} is {rank}, and {size} ranks are numbered 0 to {size - 1}")
    if size == 1:
        return ALONE
    if "MASTER_ADDR" not in environ:
        raise ConfigError(
            "MASTER_ADDR is not set: set it to an address of the host of rank 0 that all hosts reach, "
            f"and MASTER_PORT to a free port there (default {PORT})"
        )
    return World(
        rank=rank,
        size=size,
        local_rank=local_rank,
        dp_rank=rank // tensor_parallel_size,
        tp_rank=rank % tensor_parallel_size,
        host=host,
        tensor_parallel_size=tensor_parallel_size,
        master_address=environ["MASTER_ADDR"],
        master_port=_port(environ),
        is_master_served=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        attempt=environ.get("TORCHELASTIC_RESTART_COUNT", "0"),
    )


def _number(environ: Mapping[str, str], name: str, launcher: str) -> int:
    value = environ.get(name, "")
    if not (value.isascii() and value.isdecimal()):
        raise ConfigError(f"{name} is {value!r}, and {launcher} sets it to a whole number")
    return int(value)


def _port(environ: Mapping[str, str]) -> int:
    value = environ.get("MASTER_PORT", str(PORT))
    if not (value.isascii() and value.isdecimal() and 1 <= int(value) <= PORT_MAX):
        raise ConfigError(f"MASTER_PORT is {value!r}: it is a port from 1 to {PORT_MAX}")
    return int(value)


@dataclass(frozen=True, slots=True)
class Joined:
    """The other ranks of a model where a launcher has started them all; they reach rank 0 at `address`.

    `device` is the number of rank 0's GPU. Without `members` rank 0 starts the others.
    """

    members: Sequence[Member] = ()
    address: str = LOCAL
    device: int | None = None


NONE_JOINED = Joined()


class Rendezvous:
    """Where the ranks of a world meet, seen from one of them. Raises RankFailedError where another does not come."""

    def __init__(self, world: World, *, is_child: bool = False) -> None:
        """`is_child` is for a process that a rank has started to act for it: the rank itself has come before."""
        self.world = world
        self.address = _reached_at(world)
        self._store = _open_store(world, is_server=world.rank == 0 and not (world.is_master_served or is_child))
        if not is_child:
            if world.rank == 0:
                self._set("key", secrets.token_hex(_KEY_BYTES))
            self._set(f"host/{world.rank}", _host(world))
        self.hosts = [self._get(f"host/{rank}", f"rank {rank}") for rank in range(world.size)]
        self._key = bytes.fromhex(self._get("key", "rank 0"))

    @property
    def num_here(self) -> int:
        """The ranks on this host."""
        return self.hosts.count(self.hosts[self.world.rank])

    def name(self, rank: int) -> str:
        return f"rank {rank} on {self.hosts[rank].split('/')[0]}"

    def agree(self, digests: Callable[[], Mapping[str, str]]) -> None:
        """Compare with all ranks what decides the results. Raises DivergenceError, on every rank the same."""
        rank, size = self.world.rank, self.world.size
        try:
            self._set(f"digests/{rank}", json.dumps(dict(digests())))
        except NanoError as error:
            self._set(f"digests/{rank}", json.dumps(f"{self.name(rank)}: {error}"))
            if rank:
                raise
        if rank:
            verdict = self._get("verdict", "rank 0", DIGESTS_S_MAX)
            self._set(f"read/{rank}", "")
            if verdict:
                raise DivergenceError(verdict)
            return
        verdict = ""
        try:
            self._compare()
        except NanoError as error:
            verdict = str(error)
            raise
        finally:
            self._set("verdict", verdict)
            if verdict:
                with suppress(RankFailedError):
                    for other in range(1, size):
                        self._get(f"read/{other}", "", FAREWELL_S)

    def _compare(self) -> None:
        found = dict[str, Mapping[str, str]]()
        for rank in range(self.world.size):
            digests = json.loads(self._get(f"digests/{rank}", self.name(rank), DIGESTS_S_MAX))
            if isinstance(digests, str):
                raise DivergenceError(digests)
            found[self.name(rank)] = digests
        require_equal(found, "at the join")

    def joined_ranks(self) -> Joined:
        """The other ranks of this rank's replica, when they have connected to this one."""
        first = self.world.head(self.world.dp_rank)
        others = range(first + 1, first + self.world.tensor_parallel_size)
        members = self.accept(replica_label(self.world.dp_rank), others) if others else []
        return Joined(members, self.address, self.world.local_rank)

    def accept(self, label: str, ranks: Sequence[int]) -> list[Member]:
        """The members that connect under a label, in the order of `ranks`."""
        here = [rank for rank in ranks if self._is_here(rank)]
        away = [rank for rank in ranks if rank not in here]
        with _listening(socket.AF_INET, (self.address, 0)) as tcp, _listening_here() as local:
            places = {"tcp": tcp.getsockname()[:2], "local": local.getsockname().decode() if local is not None else ""}
            self._set(f"place/{label}", json.dumps(places))
            members = dict[int, Member]()
            for listener, expected in ((local, here), (tcp, away)):
                while listener is not None and not members.keys() >= set(expected):
                    rank, connection = self._welcome(listener)
                    if rank in expected and rank not in members:
                        members[rank] = Member(self.name(rank), connection)
        return [members[rank] for rank in ranks]

    def connect(self, label: str, head: int) -> Connection:
        """A connection to the rank `head`, which accepts under this label."""
        places = json.loads(self._get(f"place/{label}", self.name(head)))
        try:
            if self._is_here(head):
                end = socket.socket(socket.AF_UNIX)
                end.connect(places["local"].encode())
            else:
                end = socket.create_connection(tuple(places["tcp"]), ARRIVAL_S_MAX)
                end.settimeout(None)
                probe_silence(end)
            limit_sending(end)
            connection = Connection(end.detach())
            answer_challenge(connection, self._key)
            deliver_challenge(connection, self._key)
            connection.send(self.world.rank)
        except (OSError, EOFError, AuthenticationError) as error:
            raise RankFailedError(f"{self.name(head)} cannot be reached at {places}: {error}") from error
        return connection

    def _welcome(self, listener: socket.socket) -> tuple[int, Connection]:
        """The next process that connects and knows the key."""
        while True:
            try:
                end, _ = listener.accept()
            except TimeoutError as error:
                raise RankFailedError(f"not all ranks have connected within {ARRIVAL_S_MAX:.0f} s") from error
            end.settimeout(None)
            limit_sending(end)
            if end.family == socket.AF_INET:
                probe_silence(end)
            connection = Connection(end.detach())
            try:
                with _in_a_hurry(connection):
                    deliver_challenge(connection, self._key)
                    answer_challenge(connection, self._key)
                    rank = connection.recv()
            except (OSError, EOFError, AuthenticationError):
                connection.close()  # A stranger.
            else:
                return rank, connection

    def _is_here(self, rank: int) -> bool:
        return self.hosts[rank] == self.hosts[self.world.rank]

    def _set(self, key: str, value: str) -> None:
        try:
            self._store.set(key, value)
        except RuntimeError as error:
            raise RankFailedError(f"the store of rank 0 is gone: {error}") from error

    def _get(self, key: str, waits_for: str, patience_s: float | None = None) -> str:
        patience_s = patience_s or ARRIVAL_S_MAX
        self._store.set_timeout(timedelta(seconds=patience_s))
        try:
            return str(self._store.get(key).decode())
        except RuntimeError as error:
            raise RankFailedError(f"{waits_for} did not come within {patience_s:.0f} s: {error}") from error


def replica_label(dp_rank: int) -> str:
    """Where the first rank of a replica accepts the others."""
    return f"replica/{dp_rank}"


def _open_store(world: World, *, is_server: bool):  # type: ignore[no-untyped-def]  # noqa: ANN202  torch is not there where types are checked.
    from torch.distributed import PrefixStore, TCPStore

    try:
        store = TCPStore(
            world.master_address,
            world.master_port,
            is_master=is_server,
            wait_for_workers=False,
            timeout=timedelta(seconds=ARRIVAL_S_MAX),
        )
    except (RuntimeError, OSError) as error:
        raise ConfigError(
            f"rank {world.rank} cannot {'open' if is_server else 'reach'} the store at "
            f"{world.master_address}:{world.master_port} ({error}): set MASTER_ADDR to an address of the host of rank "
            "0 that all hosts reach, and MASTER_PORT to a free port that its firewall lets through"
        ) from error
    # The launcher's store outlives a restart of its ranks.
    return PrefixStore(f"nano/{world.attempt}", store)


def _reached_at(world: World) -> str:
    try:
        return own_address(world.master_address)
    except OSError as error:
        raise ConfigError(f"MASTER_ADDR is {world.master_address!r}, which cannot be reached: {error}") from error


def _host(world: World) -> str:
    """What ranks have in common that can share memory; a host of its own where the system cannot do it."""
    network = Path("/proc/self/ns/net")
    if sys.platform != "linux" or not network.exists():
        return f"{socket.gethostname()}/{world.rank}"
    return f"{socket.gethostname()}/{world.host}/{network.readlink()}"


@contextmanager
def _listening(family: socket.AddressFamily, place: tuple[str, int] | str) -> Iterator[socket.socket]:
    with socket.socket(family) as listener:
        listener.settimeout(ARRIVAL_S_MAX)
        listener.bind(place)
        listener.listen()
        yield listener


@contextmanager
def _listening_here() -> Iterator[socket.socket | None]:
    """A socket without a file, for processes of this machine; Linux alone has them."""
    if sys.platform != "linux":
        yield None
        return
    with _listening(socket.AF_UNIX, f"\0nano-{secrets.token_hex(_KEY_BYTES)}") as listener:
        yield listener


@contextmanager
def _in_a_hurry(connection: Connection) -> Iterator[None]:
    """For the block, fail a read that takes longer than HANDSHAKE_S seconds."""
    with socket.socket(fileno=os.dup(connection.fileno())) as lent:
        lent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", HANDSHAKE_S, 0))
        yield
        lent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))
