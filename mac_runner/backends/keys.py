"""Keys of servers: taken from the environment, sent to the server alone, and written nowhere.

A server may repeat its key in whatever it says. It is blotted out where something leaves the backend, an error
(`unspoken`) or a line for the user (`discreet`), and nowhere before: a verdict goes by the server's own words, and what
a model wrote is the model's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import TracebackType
from typing import Final

from mac_runner.backends.foreign import CUT
from mac_runner.errors import ConfigError, MacRunnerError

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


def blotted(text: str, key: str | None) -> str:
    """A text that quotes a server, without the key that the server was sent, be it whole or `clipped` on its way.

    What some servers are sent in place of a key, `x` or `none`, is no secret, and stands in many a word.
    """
    if key is None or len(key) < _KEY_CHARS_MIN:
        return text
    return _in_a_text(key).sub("***", text)


@lru_cache(maxsize=16)
def _in_a_text(key: str) -> re.Pattern[str]:
    clipped = (key[:length] + CUT for length in range(len(key) - 1, _KEY_CHARS_MIN - 1, -1))
    return re.compile("|".join(map(re.escape, (key, *clipped))))


class unspoken:  # noqa: N801 - it reads as the adjective that it is
    """An error of ours that leaves the block does so without the key. What was done about it inside went by the
    server's own words. A class, because a generator would cost each request three times as much.
    """

    __slots__ = ("_key",)

    def __init__(self, key: str | None) -> None:
        self._key = key

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, MacRunnerError):
            error.args = (blotted(error.words, self._key),)
            raise error from None  # What it came from quotes the server, too.


def discreet(say: Callable[[str], None], key: str | None) -> Callable[[str], None]:
    """`say`, told everything but the key."""
    return lambda line: say(blotted(line, key))
