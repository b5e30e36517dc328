"""One process of `mac-run check`: tries an environment, and writes what it finds as lines of JSON.

`mac-run check` runs it in processes of its own, so that code that never returns, or ends the process, is found too, and
so that two processes with other hash seeds can be compared. When a step takes too long, a watchdog writes where every
thread is and ends the process.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import redirect_stdout

from mac_runner.clock import SystemWatchdog, Watchdog
from mac_runner.errors import ConversationError, MacRunnerError, boundary
from mac_runner.testing.examination import digests, examine
from mac_runner.testing.promises import Subject, prefix_share
from mac_runner.testing.request import CheckRequest
from mac_runner.testing.subjects import subject_of
from mac_runner.types import JsonObject


def main(argument: str, watchdog: Watchdog | None = None) -> None:
    """Try the environment of a request, which is JSON: the fields of CheckRequest, and whether only to play."""
    wanted = json.loads(argument)
    is_playing_only = bool(wanted.pop("is_playing_only"))
    request = CheckRequest(**{**wanted, "settings": tuple(wanted["settings"])})
    stream = sys.stdout

    def write(line: JsonObject) -> None:
        stream.write(json.dumps(line) + "\n")
        stream.flush()

    # What the environment prints is not part of the report.
    with redirect_stdout(sys.stderr):
        _try(request, is_playing_only, write, watchdog or SystemWatchdog())


def _try(request: CheckRequest, is_playing_only: bool, write: Callable[[JsonObject], None], watchdog: Watchdog) -> None:
    watchdog.wind(request.loading_s)
    try:
        write({"begun": "loading"})
        subject = subject_of(request)
    except MacRunnerError as fault:
        write({"error": str(fault)})
        return
    subject.on_step = lambda: watchdog.wind(request.seconds)
    write(_described(subject))
    if not is_playing_only:
        for finding in examine(subject, lambda promise: write({"begun": promise.name})):
            write({"finding": {**finding._asdict()}})
        write({"prefix_share": _share(subject)})
    write({"begun": "processes"})
    write({"digests": {name: [*marks] for name, marks in digests(subject)}})
    watchdog.stop()
    write({"ended": True})


def _described(subject: Subject) -> JsonObject:
    return {
        "kind": subject.kind,
        "agents": [agent.agent_id for agent in subject.tasks[0].agents],
        "conversations": len(subject.tasks),
        "policy": subject.policy,
        "code": None if subject.code is None else str(subject.code),
    }


def _share(subject: Subject) -> float | None:
    try:
        with boundary(ConversationError, ""):
            return prefix_share(subject)
    except MacRunnerError:  # It is among the findings.
        return None
