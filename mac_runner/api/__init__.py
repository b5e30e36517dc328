"""The Python interface: what `import mac_runner` offers, made of the same functions as the command line."""

from __future__ import annotations

from mac_runner.api.calls import arun, run
from mac_runner.api.events import ConversationEnded, Event, Notice, Progress
from mac_runner.api.experiment import Experiment, load
from mac_runner.api.forks import fork, value
from mac_runner.api.streams import Stream, stream

__all__ = [
    "ConversationEnded",
    "Event",
    "Experiment",
    "Notice",
    "Progress",
    "Stream",
    "arun",
    "fork",
    "load",
    "run",
    "stream",
    "value",
]
