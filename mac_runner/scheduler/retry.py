"""Whether a request that was not answered is sent again, and when. Pure; nothing else in the package retries.

Pauses double from `backoff_s` to `backoff_s_max` and are drawn from the upper half of that, so that requests that
failed together do not come back together. The draw is derived from the request's name: a run is as repeatable with
faults as without. An engine that says how long it wants to be left alone is obeyed, up to RETRY_AFTER_S_MAX; one that
is busy is asked as soon as it allows, and while it answers others, as soon as the first time, or not much later for
what it has turned away over and over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mac_runner.config import RetryConfig
from mac_runner.errors import TransientBackendError
from mac_runner.limits import RETRY_AFTER_S_MAX, TURNED_AWAY_MAX
from mac_runner.types import stable_hash

_HASHES = 1 << 63
_DOUBLINGS_OF_BUSY_MAX: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The bounds of one request: how many sendings, which pauses, and a deadline over all of it together."""

    max_attempts: int = 5
    backoff_s: float = 1.0
    backoff_s_max: float = 30.0
    request_deadline_s: float = 600.0

    @classmethod
    def of(cls, config: RetryConfig) -> RetryPolicy:
        """The policy an experiment asks for."""
        return cls(
            max_attempts=config.max_attempts,
            backoff_s=config.backoff_s,
            backoff_s_max=config.backoff_s_max,
            request_deadline_s=config.request_deadline_s,
        )

    def decide(
        self,
        error: TransientBackendError,
        *,
        sending: int,
        turned_away: int = 0,
        is_answering: bool = False,
        elapsed_s: float,
        jitter: float,
    ) -> float | None:
        """The pause in seconds before sending again, or None: give up.

        `sending` counts the sendings so far, `turned_away` are those of them that were no attempts; `is_answering` says
        that the engine has answered others since the last one but this. `elapsed_s` is the time since the first one,
        `jitter` is in [0, 1). Gives up when all attempts are used, unless this was none, or when the next one could not
        begin before the deadline.
        """
        if error.is_attempt and sending - turned_away >= self.max_attempts:
            return None
        doublings = sending - 1
        if error.is_busy and (is_answering or error.retry_after_s is not None):
            doublings = min(max(0, turned_away - TURNED_AWAY_MAX), _DOUBLINGS_OF_BUSY_MAX)
        # The exponent is bounded so that a large `max_attempts` cannot overflow a float.
        ceiling_s = min(self.backoff_s_max, self.backoff_s * 2.0 ** min(doublings, 60))
        delay_s = ceiling_s * (0.5 + 0.5 * jitter)
        if error.retry_after_s is not None and error.retry_after_s > delay_s:
            delay_s = min(error.retry_after_s * (1.0 + 0.1 * jitter), RETRY_AFTER_S_MAX)
        return delay_s if elapsed_s + delay_s < self.request_deadline_s else None


def jitter(request_id: str, sending: int) -> float:
    """The draw in [0, 1) for the pause after the `sending`-th sending of the request of this name."""
    return stable_hash("retry", request_id, sending) / _HASHES
