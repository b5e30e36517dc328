"""Keys that clients bring as `Authorization: Bearer KEY`, compared in constant time."""

from __future__ import annotations

import hmac
from hashlib import sha256
from typing import Final

from starlette.datastructures import Headers

from mac_runner.nano.server.refusals import Refusal, RefusedError

_SCHEME: Final = "bearer"
_ENCODING: Final = "latin-1"
"""Of header values, each byte of which is a character."""


class Key:
    """A key, of which only the digest is kept: neither `repr` nor a traceback can show it."""

    __slots__ = ("_digest",)

    def __init__(self, text: str) -> None:
        self._digest = sha256(text.encode()).digest()

    def require(self, headers: Headers) -> None:
        """Raises RefusedError for headers that do not carry the key."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        # Digests have one length, so the time says nothing about the length of the key.
        is_right = hmac.compare_digest(sha256(token.strip().encode(_ENCODING)).digest(), self._digest)
        if scheme.lower() != _SCHEME or not is_right:
            message = "the key is missing or wrong: send it as Authorization: Bearer KEY"
            raise RefusedError(
                Refusal(status=401, message=message, kind="authentication_error", code="invalid_api_key")
            )
