"""The Python interface: what `import mac_runner` offers, made of the same functions as the command line."""

from __future__ import annotations

from mac_runner.api.calls import arun, run
from mac_runner.api.experiment import Experiment, load
from mac_runner.api.playing import ConversationEnded, Event, Notice, Progress
from mac_runner.api.streams import Stream, fork, stream, value

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
