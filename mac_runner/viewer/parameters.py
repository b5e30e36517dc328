"""The parameters of a request, checked: what is unknown, given twice or not a number is refused."""

from __future__ import annotations

from typing import Final

from mac_runner.errors import ConfigError
from mac_runner.http_library import web

_DIGITS_MAX: Final = 15


class Parameters:
    """The parameters of a request. Raises ConfigError for what is not one of them."""

    def __init__(self, request: web.Request) -> None:
        self._query = request.query
        self._match = request.match_info

    def check(self, *known: str) -> Parameters:
        """These parameters. Raises ConfigError for an unknown one, and for one that is given twice."""
        for name in self._query:
            if name not in known:
                raise ConfigError(f"there is no parameter {name!r:.60}; there are: {', '.join(known) or 'none'}")
            if len(self._query.getall(name)) > 1:
                raise ConfigError(f"the parameter {name!r} is given twice")
        return self

    @property
    def slug(self) -> str:
        """The combination that is asked for; empty for none."""
        return self.text("run")

    def text(self, name: str) -> str:
        """A parameter, or an empty text."""
        return self._query.get(name, "")

    def needed(self, name: str) -> str:
        """A parameter. Raises ConfigError where it is missing."""
        if not (text := self.text(name)):
            raise ConfigError(f"the parameter {name!r} is missing")
        return text

    def count(self, name: str) -> int:
        """A whole number from 0, which is also what a missing one means."""
        text = self.text(name) or "0"
        if not (text.isascii() and text.isdecimal()) or len(text) > _DIGITS_MAX:
            raise ConfigError(f"the parameter {name!r} is a whole number, not {text!r:.60}")
        return int(text)

    @property
    def version(self) -> int | None:
        """The version of the list that the page has; None where it does not say."""
        return self.count("version") if self.text("version") else None

    def path(self, name: str) -> str:
        """A part of the path, decoded."""
        return self._match[name]
