"""Which conversations may begin while a trainer changes the weights: a pure rule.

A trainer makes a version of every `batch` conversations that finish, in the order in which they finish. So the n-th of
them is used at version `first + (n - 1) // batch`. A conversation that begins at version v may be at most `max_lag`
versions old when it is used; so while it is open, at most `(v - first + max_lag + 1) * batch` conversations may have
begun. The window keeps to this for the oldest open conversation, and so for all: one that takes long holds back others,
and is not overtaken by so many of them that it is too old when it ends.

This never waits for ever. Where nothing is open, the trainer has all that finished, and that is a whole batch or more.
A conversation that failed does not count, because a trainer cannot use it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable


class PolicyWindow:
    """Admits conversations whose rollouts will be at most `max_lag` versions old; without `max_lag` all of them.

    `first` is the version with which the trainer began, and `finished` conversations had finished before.
    """

    def __init__(self, max_lag: int | None, batch: int, *, first: int = 0, version: int | None = None) -> None:
        self.version = first if version is None else version
        self._max_lag = max_lag
        self._batch = batch
        self._first = first
        self._finished = 0
        self._open: dict[Hashable, int] = {}
        self._versions: Counter[int] = Counter()

    @property
    def oldest(self) -> int:
        """The lowest version that an open conversation began with, or the present one."""
        return min([self.version, *self._versions])

    @property
    def lag(self) -> int:
        """How many versions the oldest open conversation is behind."""
        return self.version - self.oldest

    @property
    def is_open(self) -> bool:
        """Whether one more conversation may begin."""
        if self._max_lag is None:
            return True
        begun = self._finished + len(self._open)
        return begun < (self.oldest - self._first + self._max_lag + 1) * self._batch

    def holds(self, conversation: Hashable) -> bool:
        """Whether a conversation has begun and has not ended."""
        return conversation in self._open

    def add_finished(self, conversations: int) -> None:
        """Count conversations that finished before."""
        self._finished += conversations

    def begin(self, conversation: Hashable, version: int | None = None) -> None:
        """A conversation begins, or began in an earlier session with `version`."""
        began_with = self.version if version is None else version
        self._open[conversation] = began_with
        self._versions[began_with] += 1

    def end(self, conversation: Hashable, *, is_finished: bool) -> None:
        """A conversation ended; one that failed counts no more."""
        began_with = self._open.pop(conversation)
        self._versions[began_with] -= 1
        if not self._versions[began_with]:
            del self._versions[began_with]
        self._finished += is_finished

    def update(self, version: int) -> None:
        """The trainer made a version."""
        self.version = version
