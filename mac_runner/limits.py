"""Every bound of the package, in one place. Units come last in the names."""

from __future__ import annotations

# config: a grid of more combinations is a slip; what names one of them in a path, and the longest name of all.
NAME_CHARS_MAX = 80

# text that comes from a model.
REPLY_CHARS_MAX = 65_536
SPEECH_CHARS_MAX = 2_000

# store: how much may wait for the disk before departures pause, and how often the manifest is rewritten.
CHECKPOINT_INTERVAL_S = 5.0
