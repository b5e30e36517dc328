"""What vLLM says when something is wrong, reduced to the one line that tells what. Pure but for `refusals`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from mac_runner.backends.foreign import clipped
from mac_runner.config import allowed
from mac_runner.errors import ConfigError, boundary
from mac_runner.types import JsonValue

_RECORD: Final = re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL) \d{4}-\d\d-\d\d [\d:,]+ \d+ [\w.]+ (.*)")
_RAISED: Final = re.compile(r"[\w.]*(?:Error|Exception|Exit|Interrupt|Timeout)(?::|$)")
_FOLLOWING: Final = re.compile(r"root cause|stack trace|Broken ?pipe|EngineDeadError", re.IGNORECASE)
"""What processes say when something else brought them down; that was told before."""


def cause_in(log: str) -> str | None:
    """The last error in an engine's log that is no consequence of another one; None when there is none.

    Of a traceback that is the line with the exception; an error without one is taken when there is no traceback.
    """
    raised: list[str] = []
    messages: list[str] = []
    is_error = False
    for line in log.splitlines():
        if record := _RECORD.match(line):
            is_error = record[1] in {"ERROR", "CRITICAL"}
            messages += [record[2]] if is_error else []
        elif is_error and _RAISED.match(line):
            raised.append(line)
            messages.clear()
    found = (*reversed(raised), *reversed(messages))
    return next((clipped(error) for error in found if not _FOLLOWING.search(error)), None)


@contextmanager
def refusals(section: tuple[str, ...], settings: Mapping[str, JsonValue], release: str) -> Iterator[None]:
    """Turn whatever is raised while vLLM checks the `settings` of a section into a ConfigError.

    The error has the key of the setting at fault if vLLM names it. `release` is the version of vLLM.
    """
    try:
        with boundary(ConfigError, f"vLLM {release} refuses it"):
            yield
    except ConfigError as error:
        if error.__cause__ is None or error.key:
            raise
        setting, gist = gist_of(error.__cause__)
        key = section + _place_of("model" if setting is None and str(settings["model"]) in gist else setting, settings)
        if setting is not None and key[-1] != setting:
            gist = f"{setting}: {gist}"
        raise ConfigError(f"{'.'.join(key)}: vLLM {release} refuses it: {gist}", key=key) from error.__cause__


def _place_of(setting: str | None, settings: Mapping[str, JsonValue]) -> tuple[str, ...]:
    """The keys below the section of a setting that vLLM names; none if it is not to be found there.

    vLLM names a setting as the part of its configuration does in which it ends up. The section may give that part as a
    mapping, or call the setting something else.
    """
    if setting is None:
        return ()
    if setting in settings:
        return (setting,)
    parts = (part for part, given in settings.items() if isinstance(given, dict) and setting in given)
    return next(((part, setting) for part in parts), ())


def gist_of(fault: BaseException) -> tuple[str | None, str]:
    """The setting that an error is about, if it names one, and the first line of what it says.

    An error of pydantic has a list of errors instead, each with a place and a message; the first of them is taken.
    """
    listed: Callable[[], list[dict[str, object]]] | None = getattr(fault, "errors", None)
    text, setting = str(fault), None
    if listed is not None and (first := next(iter(listed()), None)) is not None:
        place = first.get("loc")
        setting = next((part for part in place if isinstance(part, str)), None) if isinstance(place, tuple) else None
        context = first.get("ctx")
        wanted = allowed(str(first.get("type")), context if isinstance(context, dict) else {})
        said = str(first.get("msg")).removeprefix("Value error, ").removeprefix("Assertion failed, ")
        text = said if wanted is None else f"allowed: {wanted}"
    line = next((line for line in text.splitlines() if line.strip()), type(fault).__name__)
    return setting, clipped(line).rstrip(":")
