"""A request that was not answered: what is to be done about it, and what it says of the endpoint.

The two are apart because they go to different places: the scheduler decides by the verdict whether to ask again, and
the choice of the next endpoint depends on the standing.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from mac_runner.errors import Verdict


class Standing(Enum):
    """What a fault says of the endpoint it happened at."""

    SOUND = "sound"
    """It works: this request, or this moment, was at fault."""
    SHAKY = "shaky"
    """It may be gone: several of these in a row set it aside."""
    FAILING = "failing"
    """It is there, and failed at this: after several in a row a small request of our own tells whether it fails at
    everything."""
    REFUSING = "refusing"
    """It works, and will not have this: after several in a row a small request of our own tells whether it will have
    anything."""
    GONE = "gone"
    """Nobody is there: it is set aside at once."""
    DOUBTFUL = "doubtful"
    """Only a small request of our own can tell whether it answers anybody."""
    UNSENT = "unsent"
    """Nothing came to it: this process had no file descriptor left for a connection."""
    CUT_OFF = "cut off"
    """It broke off while it worked: a small request of our own tells whether it died of it."""


class SendingError(Exception):
    """One request to one endpoint failed; the last two as in TransientBackendError. Never leaves the package: the
    backend turns it into a BackendError.
    """

    def __init__(
        self,
        text: str,
        *,
        standing: Standing,
        verdict: Verdict = Verdict.RETRY,
        retry_after_s: float | None = None,
        is_busy: bool = False,
    ) -> None:
        super().__init__(text)
        self.standing = standing
        self.verdict = verdict
        self.retry_after_s = retry_after_s
        self.is_busy = is_busy


class NoModelError(SendingError):
    """The server lists its models, and the one that is asked for is not among them."""


MALFORMED: Final = "malformed reply: "


def malformed(what: str) -> SendingError:
    """The error for an answer that is no reply.

    The next one may be right, so the request is sent again; a proxy that sends pages of its own in place of the
    engine's answers is found out because it does so every time.
    """
    return SendingError(MALFORMED + what, standing=Standing.SHAKY)
