"""What `mac-run check` tries and finds.

An environment is tried in two processes (`worker.py`), whose sets and dictionaries of texts are in different orders.
The first tries every promise; what both play must be equal.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from mac_runner.errors import ConfigError
from mac_runner.printable import printable

_LOADING_S_MIN: Final = 60.0
_PROGRAM: Final = "import sys; from mac_runner.testing.worker import main; main(sys.argv[1])"
_HASH_SEEDS: Final = ("1", "2")
_PROCESSES: Final = "two processes play the same conversations"
_PROCESSES_REMEDY: Final = (
    "sort sets of texts before iterating over them; leave out hash(), id(), the clock and chance that all share"
)
_RETURNS: Final = "every step returns"
_RETURNS_REMEDY: Final = (
    "bound the loop, and yield a question in it: a step that does not return holds up the whole run"
)
_TRACE_LINE: Final = re.compile(r'  File "(.+)", line (\d+) in ')
_OURS: Final = re.compile(r"[\\/]mac_runner[\\/](?:testing|environments[\\/]generators|environments[\\/]replay)")


class CheckRequest(NamedTuple):
    """What is to be tried, and how much of it."""

    target: str
    """The name of an environment as experiment files have it, or an experiment file."""
    settings: tuple[str, ...] = ()
    """Settings as KEY=VALUE."""
    agents: int | None = None
    conversations: int = 8
    turns: int = 5_000
    """A conversation with more turns does not end."""
    seconds: float = 10.0
    """A step that takes longer does not end."""
    policy: str | None = None
    """The scripted player whose replies are used; None: `random` where there is one."""

    @property
    def loading_s(self) -> float:
        """How long loading may take: it is no step, and imports libraries."""
        return max(self.seconds, _LOADING_S_MIN)


class Finding(NamedTuple):
    """What came of trying one promise."""

    name: str
    text: str
    is_kept: bool
    what: str = ""
    """What happened instead."""
    place: str = ""
    """The conversation and turn."""
    where: str = ""
    """File and line of the environment's code, where an exception came from there."""
    remedy: str = ""


class Checked(NamedTuple):
    """What came of a check."""

    about: dict[str, Any]
    """What was tried, as the worker says it."""
    findings: list[Finding]

    @property
    def broken(self) -> int:
        """How many promises are not kept."""
        return sum(not each.is_kept for each in self.findings)

    def as_json(self) -> dict[str, Any]:
        return {**self.about, "broken": self.broken, "promises": [each._asdict() for each in self.findings]}

    def lines(self) -> Iterator[str]:
        """The same for people."""
        about = self.about
        player = about.get("policy")
        policy = "replies drawn from the form of each prompt" if player is None else f"player {player}"
        yield (
            f"{about['environment']}: {about.get('conversations', 0)} conversations of {len(about.get('agents', []))} "
            f"agents, {policy}, and hostile replies"
        )
        yield ""
        seen: set[tuple[str, str]] = set()
        for each in self.findings:
            yield f"{'ok  ' if each.is_kept else 'FAIL'}  {each.text}"
            if each.is_kept:
                continue
            if (reason := (each.what, each.where)) in seen:
                yield "      for the same reason"
                continue
            seen.add(reason)
            where = ", ".join(part for part in (each.place, each.where) if part)
            story = {"found": each.what, "where": where, "mend": each.remedy}
            yield from (f"      {name:<7}{printable(text)}" for name, text in story.items() if text)
        yield ""
        if (share := about.get("prefix_share")) is not None:
            yield f"prefix share {share:.0%}: as much of a prompt begins like the one that its seat had before"
        count = len(self.findings)
        yield f"{self.broken} of {count} promises broken" if self.broken else f"all {count} promises kept"


Play: TypeAlias = Callable[[str, str], "subprocess.CompletedProcess[bytes]"]
"""A process with a hash seed that runs the worker with an argument, to its end."""


@dataclass
class _Output:
    """What one process wrote."""

    about: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    digests: dict[str, list[str]] = field(default_factory=dict)
    begun: str = ""
    has_ended: bool = False


def in_process(argument: str, hash_seed: str) -> subprocess.CompletedProcess[bytes]:
    """Run the worker in a process of its own."""
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    return subprocess.run(
        [sys.executable, "-P", "-c", _PROGRAM, argument],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )


def check(request: CheckRequest, play: Play = in_process) -> Checked:
    """Which promises are kept and which are not. Raises ConfigError for an environment that cannot be loaded."""
    first = _played(request, play, _HASH_SEEDS[0], is_playing_only=False)
    findings = list(first.findings)
    if first.has_ended:
        second = _played(request, play, _HASH_SEEDS[1], is_playing_only=True)
        findings += [each for each in second.findings if not each.is_kept] or [_compared(first, second)]
    return Checked({"environment": request.target, **first.about}, findings)


def _played(request: CheckRequest, play: Play, hash_seed: str, *, is_playing_only: bool) -> _Output:
    """What a process of its own finds. Raises ConfigError for an environment that cannot be loaded."""
    ended = play(json.dumps({**request._asdict(), "is_playing_only": is_playing_only}), hash_seed)
    output = _read(ended.stdout.decode("utf-8", "replace"))
    if not output.has_ended:
        said = ended.stderr.decode("utf-8", "replace")
        output.findings.append(_ended_early(request, output, ended.returncode, said))
    return output


def _read(text: str) -> _Output:
    output = _Output()
    for line in map(json.loads, text.splitlines()):
        match line:
            case {"error": str(words)}:
                raise ConfigError(words)
            case {"begun": str(name)}:
                output.begun = name
            case {"finding": finding}:
                output.findings.append(Finding(**finding))
            case {"digests": digests}:
                output.digests = digests
            case {"ended": True}:
                output.has_ended = True
            case _:
                output.about.update(line)
    return output


def _ended_early(request: CheckRequest, output: _Output, code: int, said: str) -> Finding:
    """The finding about a process that did not get to its end."""
    where = ""
    if "Timeout (" in said:
        limit_s = request.loading_s if output.begun == "loading" else request.seconds
        what = f"a step took longer than {limit_s:g} s"
        trace = said[said.rindex("Timeout (") :]
        folder = str(Path(output.about["code"]).parent) if output.about.get("code") else ""
        lines = [(file, line) for file, line in _TRACE_LINE.findall(trace) if not _OURS.search(file)]
        own = [(file, line) for file, line in lines if folder and file.startswith(folder)] or lines
        where = ":".join(own[0]) if own else ""
    else:
        ending = f"signal {-code}" if code < 0 else f"exit code {code}"
        last = said.strip().splitlines()[-1:] or ["it said nothing"]
        what = f"the process ended with {ending}: {last[0]}"
    if output.begun == "loading":
        raise ConfigError(f"{request.target}: while it was loaded, {what}{f', at {where}' if where else ''}")
    place = f"while this was tried: {output.begun}"
    return Finding("returns", _RETURNS, False, what, place, where, _RETURNS_REMEDY)


def _compared(first: _Output, second: _Output) -> Finding:
    for name, marks in first.digests.items():
        others = second.digests.get(name, [])
        for number, mark in enumerate([*marks, ""]):
            other = others[number] if number < len(others) else ""
            if mark != other:
                at = (mark or other).partition(" ")[0]
                what = f"a process in which texts have other hashes has {other!r} in place of {mark!r}"
                place = f"conversation {name}, turn {at}" if "/" in at else f"conversation {name}, {mark}"
                return Finding("processes", _PROCESSES, False, what, place, "", _PROCESSES_REMEDY)
    return Finding("processes", _PROCESSES, is_kept=True)
