"""Keys of servers: taken from the environment, sent to the server alone, and written nowhere (`redaction`)."""

from __future__ import annotations

from collections.abc import Mapping

from mac_runner.errors import ConfigError
from mac_runner.limits import KEY_CHARS_MAX


def key_in(environ: Mapping[str, str], variable: str) -> str | None:
    """The key in `variable`, or None. Raises ConfigError, without quoting it, for a key that no header carries."""
    key = environ.get(variable, "").strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(f"the environment variable {variable} holds characters that no key has")
    if len(key) > KEY_CHARS_MAX:
        raise ConfigError(
            f"the environment variable {variable} holds {len(key):,} characters, and a header carries a key of at most "
            f"{KEY_CHARS_MAX:,}; set it to the key alone"
        )
    return key or None


def bearer(key: str | None) -> dict[str, str]:
    """The header that carries a key."""
    return {} if key is None else {"Authorization": f"Bearer {key}"}
