"""What a server of models says by the status of an HTTP answer. Pure; one table for every protocol.

What is done about it is for the backend that asked. A protocol whose servers say more in the body than by the status
goes by the body first, and by this table for the rest.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class Meaning(Enum):
    """What a status says of the request it answers, or of the server."""

    ANSWER = "answer"
    """The answer is in the body."""
    BUSY = "busy"
    """Not now: the server works, and the same request may be answered later."""
    BROKEN = "broken"
    """The server failed at it. Whether it fails at everything, the status does not tell."""
    GATEWAY = "gateway"
    """Something in front of the engine says that the engine does not serve."""
    DENIED = "denied"
    """The key, the account, the address or the model's name is wrong: perhaps for this request, perhaps for all."""
    REFUSED = "refused"
    """This request is wrong, and stays so."""
    FOREIGN = "foreign"
    """What no engine answers a completion with: something else listens here."""


_MEANINGS: Final = {
    200: Meaning.ANSWER,
    401: Meaning.DENIED,
    402: Meaning.DENIED,
    403: Meaning.DENIED,
    404: Meaning.DENIED,
    408: Meaning.BUSY,
    409: Meaning.BUSY,
    425: Meaning.BUSY,
    429: Meaning.BUSY,
    502: Meaning.GATEWAY,
    503: Meaning.GATEWAY,
    504: Meaning.GATEWAY,
    529: Meaning.BUSY,  # In no standard; some services say so that they are overloaded.
}


def meaning_of(status: int) -> Meaning:
    """What `status` says, whatever the number is."""
    if status in _MEANINGS:
        return _MEANINGS[status]
    if 400 <= status < 500:
        return Meaning.REFUSED
    return Meaning.BROKEN if 500 <= status < 600 else Meaning.FOREIGN


def is_busy(meaning: Meaning, *, retry_after_s: float | None) -> bool:
    """Whether an answer says "not now": by its status, or by the pause that it asks for, whatever its status."""
    return meaning is Meaning.BUSY or retry_after_s is not None
