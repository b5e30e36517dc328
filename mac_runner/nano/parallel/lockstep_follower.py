"""The process of a replica other than the leader's, where replicas step together.

python -m mac_runner.nano.parallel.lockstep_follower REPLICA SOCKET_FD PARENT_PID
"""

from __future__ import annotations

from multiprocessing.connection import Connection

from mac_runner.nano.base_engine import EngineStats
from mac_runner.nano.config import EngineConfig
from mac_runner.nano.engine import InferenceEngine
from mac_runner.nano.parallel.divergence import join_digests
from mac_runner.nano.parallel.follower import Servant, main
from mac_runner.nano.parallel.group import Shard, join_store
from mac_runner.nano.parallel.rounds import Joined, Meeting, Replica, Report, Round


class LockstepFollower(Servant):
    """One replica. The leader calls its methods by name."""

    def __init__(self, number: int, connection: Connection, config: EngineConfig) -> None:
        self._number = number
        self._engine = InferenceEngine(config)
        super().__init__(connection, self._engine.prepare_weights)

    def joined(self) -> Joined:
        """What the leader compares with its own replica."""
        return joined(self._number, self._engine)

    def meet(self, port: int, size: int) -> None:
        """Meet the other replicas, which find each other at this port."""
        meeting = Meeting(Shard(self._number, size), join_store(port, size))
        self._replica = Replica(self._number, self._engine, meeting)

    def play(self, message: Round) -> Report:
        """Carry out a round with the others."""
        return self._replica.play(message)

    def install(self, ticket: int, version: int) -> tuple[int, EngineStats]:
        """Compute with the model kept as `ticket` from now on."""
        self._engine.install_weights(self.take(ticket), version)
        return self._stats()

    def flush_cache(self) -> tuple[int, EngineStats]:
        """Forget every prefix."""
        self._engine.flush_cache()
        return self._stats()

    def sleep(self, drop_weights: bool) -> tuple[int, EngineStats]:
        """Give back the memory of the KV cache, and with `drop_weights` of the weights."""
        self._engine.sleep(drop_weights=drop_weights)
        return self._stats()

    def wake(self) -> tuple[int, EngineStats]:
        """Be ready again."""
        self._engine.wake()
        return self._stats()

    def _stats(self) -> tuple[int, EngineStats]:
        return self._number, self._engine.stats()


def joined(number: int, engine: InferenceEngine) -> Joined:
    """What a replica is known by when all compare what they compute with."""
    digests = join_digests(engine.config, engine.directory, engine.num_threads)
    return Joined(replica=number, digests=digests, stats=engine.stats())


if __name__ == "__main__":
    main(LockstepFollower)
