"""A request that waits inside its backend for a server: that is no time of the engine, and no deadline counts it."""

from __future__ import annotations

import asyncio

from mac_runner.backends.testing import uncharged
from mac_runner.errors import TransientBackendError
from mac_runner.scheduler import RetryPolicy
from mac_runner.types import Reply, Request
from tests.scheduler.conftest import Stage
from tests.sim.engine import SimulatedEngine
from tests.sim.toy import tasks

DEADLINE_S = 60.0
WORK = tasks(4, agents=1, models=1)


class Queueing(SimulatedEngine):
    """Has each request wait for a place, and faults the first sending of each."""

    def __init__(self, *, waits_s: float, works_s: float, faults: bool = False) -> None:
        super().__init__(capacity=2)
        self.waits_s, self.works_s, self.faults = waits_s, works_s, faults

    async def answer(self, request: Request) -> Reply:
        with uncharged():
            await asyncio.sleep(self.waits_s / 2)
            with uncharged():  # It may call others that wait.
                await asyncio.sleep(self.waits_s / 2)
        await asyncio.sleep(self.works_s)
        if self.faults and self.sent.count((request.prompt.sha256, request.sampling.seed)) == 1:
            raise TransientBackendError("connection reset")
        return Reply(text="word")


def played(engine: Queueing) -> Stage:
    retry = RetryPolicy(request_deadline_s=DEADLINE_S, engine_patience_s=1e6)
    stage = Stage(work=WORK, backends={"model-0": engine}, retry=retry)
    stage.play()
    return stage


def test_time_that_a_request_waits_for_a_server_is_charged_to_no_deadline() -> None:
    for faults in (False, True):
        stage = played(Queueing(waits_s=10 * DEADLINE_S, works_s=DEADLINE_S / 10, faults=faults))

        assert not stage.recorder.named("EVENT_GIVE_UP"), faults
        assert len(stage.recorder.transcripts) == len(WORK)


def test_time_that_a_request_waits_for_a_server_is_not_the_time_that_the_engine_took() -> None:
    stage = played(Queueing(waits_s=100.0, works_s=5.0))

    for done in stage.recorder.named("EVENT_INFER_DONE"):
        assert float(str(done["latency_ms"])) == 5000.0
        assert float(str(done["queue_s"])) >= 100.0


def test_deadline_goes_on_after_the_wait() -> None:
    stage = played(Queueing(waits_s=100.0, works_s=DEADLINE_S + 1.0))

    assert len(stage.recorder.named("EVENT_GIVE_UP")) == len(WORK)
