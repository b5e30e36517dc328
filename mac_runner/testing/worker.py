"""One process of `mac-run check`: tries an environment, and writes what it finds as lines of JSON.

`mac-run check` runs it in processes of its own, so that code that never returns, or ends the process, is found too, and
so that two processes with other hash seeds can be compared. When a step takes too long, `faulthandler` writes where
every thread is and ends the process.
"""

from __future__ import annotations

import faulthandler
import json
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from itertools import count
from typing import Final

from mac_runner.errors import ConversationError, MacRunnerError, boundary
from mac_runner.testing.examination import digests, examine
from mac_runner.testing.promises import Subject, prefix_share
from mac_runner.testing.request import CheckRequest
from mac_runner.testing.subjects import subject_of
from mac_runner.types import JsonObject

STEPS_PER_TIMER: Final = 100
"""The timer is set again after so many steps, as that takes time itself."""


def main(argument: str) -> None:
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
        _try(request, is_playing_only, write)


def _try(request: CheckRequest, is_playing_only: bool, write: Callable[[JsonObject], None]) -> None:
    on_step = _timer(request.seconds)
    try:
        write({"begun": "loading"})
        subject = subject_of(request)
    except MacRunnerError as fault:
        write({"error": str(fault)})
        return
    subject.on_step = on_step
    write(_described(subject))
    if not is_playing_only:
        for finding in examine(subject, lambda promise: write({"begun": promise.name})):
            write({"finding": {**finding._asdict()}})
        write({"prefix_share": _share(subject)})
    write({"begun": "processes"})
    write({"digests": {name: [*marks] for name, marks in digests(subject)}})
    faulthandler.cancel_dump_traceback_later()
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


def _timer(seconds: float) -> Callable[[], None]:
    """Ends the process unless it is called again within so many seconds; for a loop that never returns."""
    steps = count()

    def on_step() -> None:
        if next(steps) % STEPS_PER_TIMER == 0:
            faulthandler.dump_traceback_later(seconds, exit=True)

    on_step()
    return on_step
