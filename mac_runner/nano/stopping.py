"""When a completion ends, and what of its text may be shown. Pure but for the text it has seen.

A stop text may be spread over tokens. While the end of the text could still become one, it is kept back, so that what
was shown never has to be taken away.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from mac_runner.nano.outputs import FinishReason
from mac_runner.nano.sampling_params import SamplingParams
from mac_runner.nano.tokenizer import TextStream


class Verdict(NamedTuple):
    """What a token means: the text it lets us show, and whether it is the last."""

    text: str = ""
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


class _Found(NamedTuple):
    """A stop text in what is kept back; the first in this order counts."""

    end: int
    start: int
    stop: str


@dataclass(slots=True, kw_only=True)
class StopChecker:
    """Looks at each token of one completion. Without `stream` there is no text, and only token ids can stop it."""

    params: SamplingParams
    eos_token_ids: frozenset[int]
    stream: TextStream | None = None
    shown: str = ""
    kept_back: str = ""

    def push(self, token_id: int, *, is_full: bool) -> Verdict:
        """The verdict on the next token; `is_full` says that there may be no further one."""
        if self.is_final(token_id):
            return Verdict(self._finish(), "stop", token_id if token_id in self.params.stop_token_ids else None)
        if self.stream is not None:
            self.kept_back += self.stream.push(token_id)
            if (found := self._first_stop()) is not None:
                return Verdict(self._show(found.start), "stop", found.stop)
        if is_full:
            return Verdict(self._finish(), "length")
        return Verdict(self._show(len(self.kept_back) - self._num_doubtful()))

    def is_final(self, token_id: int) -> bool:
        """Whether this token by itself ends a completion."""
        if token_id in self.params.stop_token_ids:
            return True
        return token_id in self.eos_token_ids and not self.params.ignore_eos

    def end(self) -> str:
        """The text still kept back when a completion ends for a reason of its own."""
        return self._finish()

    def _first_stop(self) -> _Found | None:
        """The stop text that is complete first, and of several that are the longest.

        So where a completion ends does not depend on how its text was cut into tokens.
        """
        starts = ((self.kept_back.find(stop), stop) for stop in self.params.stop)
        return min((_Found(start + len(stop), start, stop) for start, stop in starts if start >= 0), default=None)

    def _num_doubtful(self) -> int:
        """How much of the end could be the beginning of a stop text."""
        text = self.kept_back
        longest = max((len(stop) for stop in self.params.stop), default=0)
        for size in range(min(longest - 1, len(text)), 0, -1):
            if any(stop.startswith(text[-size:]) for stop in self.params.stop):
                return size
        return 0

    def _show(self, num_chars: int) -> str:
        text, self.kept_back = self.kept_back[:num_chars], self.kept_back[num_chars:]
        self.shown += text
        return text

    def _finish(self) -> str:
        if self.stream is not None:
            self.kept_back += self.stream.finish()
        # Half a character at the end may have completed a stop text after all.
        found = self._first_stop()
        return self._show(len(self.kept_back) if found is None else found.start)
