from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from mac_runner.errors import StoreError
from mac_runner.store.testing import Writer
from tests.patience import LIMIT_S

LOOKS = 6


class Slow:
    """A committer that is at one thing until somebody has looked several times whether it gets on.

    With `is_moving` it always has.
    """

    def __init__(self, slow_at: str, *, is_moving: bool = True) -> None:
        self.slow_at, self.is_moving = slow_at, is_moving
        self.looks = 0
        self.is_over = threading.Event()

    @property
    def pulse(self) -> int:
        self.looks += 1
        if self.looks == LOOKS:
            self.is_over.set()
        return self.looks if self.is_moving else 0

    def commit(self, items: Sequence[int]) -> None:
        self._do("commit")

    def idle(self) -> None:
        pass

    def finish(self) -> None:
        self._do("finish")

    def close(self) -> None:
        self._do("close")

    def _do(self, what: str) -> None:
        if what == self.slow_at:
            self.is_over.wait(LIMIT_S)


@pytest.mark.parametrize("slow_at", ["commit", "finish", "close"])
def test_work_that_takes_long_is_waited_for_while_it_gets_on(slow_at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mac_runner.store.writer.WRITER_STALL_S_MAX", 0.001)
    committer = Slow(slow_at)
    writer = Writer[int](committer)
    writer.submit(1)
    writer.close()

    assert committer.is_over.is_set()
    assert writer.failure is None


@pytest.mark.parametrize("slow_at", ["commit", "finish", "close"])
def test_a_disk_on_which_nothing_gets_done_is_given_up(slow_at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mac_runner.store.writer.WRITER_STALL_S_MAX", 0.001)
    committer = Slow(slow_at, is_moving=False)
    writer = Writer[int](committer)
    writer.submit(1)

    with pytest.raises(StoreError, match="did nothing"):
        writer.close()
    committer.is_over.set()
    writer._thread.join(LIMIT_S)
