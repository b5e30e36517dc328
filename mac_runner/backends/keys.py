"""Keys of servers: taken from the environment, sent to the server alone, and written nowhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mac_runner.errors import ConfigError

_KEY_CHARS_MIN: Final = 8


def key_in(environ: Mapping[str, str], variable: str) -> str | None:
    """The key in `variable`, or None. Raises ConfigError, without quoting it, for a key that no header can carry."""
    key = environ.get(variable, "").strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(f"the environment variable {variable} holds characters that no key has")
    return key or None


def bearer(key: str | None) -> dict[str, str]:
    """The header that carries a key."""
    return {} if key is None else {"Authorization": f"Bearer {key}"}


def blotted(body: bytes, key: str | None) -> bytes:
    """What a server says, without the key that it was sent. What some servers are sent in place of a key, `x` or
    `none`, is no secret, and stands in many a word.
    """
    return body if key is None or len(key) < _KEY_CHARS_MIN else body.replace(key.encode("ascii"), b"***")
