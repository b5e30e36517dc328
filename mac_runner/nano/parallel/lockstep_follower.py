"""The process of a replica other than the leader's, where replicas step together.

python -m mac_runner.nano.parallel.lockstep_follower REPLICA SOCKET_FD PARENT_PID
"""

from __future__ import annotations

from dataclasses import replace
from multiprocessing.connection import Connection

from mac_runner.nano.base_engine import EngineStats
from mac_runner.nano.config import EngineConfig
from mac_runner.nano.engine import InferenceEngine
from mac_runner.nano.parallel.follower import LOOK_S, Servant, main
from mac_runner.nano.parallel.group import Shard, join_store, own_address
from mac_runner.nano.parallel.rounds import Meeting, Replica, Report, Round
from mac_runner.nano.parallel.runner import Joined


class LockstepFollower(Servant):
    """One replica. One of another host has its own `model_path`; its other ranks are started here, or have `joined`."""

    def __init__(
        self,
        number: int,
        connection: Connection,
        config: EngineConfig,
        *,
        model_path: str | None = None,
        joined: Joined | None = None,
    ) -> None:
        self._number = number
        self._engine = InferenceEngine(replace(config, model_path=model_path or config.model_path), joined)
        super().__init__(connection, self._engine.prepare_weights)

    def run(self) -> None:
        """Carry out messages; at rest, look whether the other ranks of this replica are there."""
        while True:
            while not self._connection.poll(LOOK_S):
                self._engine.stats()  # Raises if one was lost.
            if (message := self._connection.recv()) is None:
                return
            self.carry_out(message)

    def joined(self) -> tuple[int, EngineStats]:
        """This replica, and how busy it is."""
        return self._stats()

    def meet(self, address: str, port: int, size: int) -> None:
        """Meet the other replicas, which find each other there."""
        meeting = Meeting(Shard(self._number, size), join_store(address, port, size), own_address(address))
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


if __name__ == "__main__":
    main(LockstepFollower)
