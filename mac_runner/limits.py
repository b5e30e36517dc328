"""Every bound of the package, in one place. Units come last in the names."""

from __future__ import annotations

# config: a grid of more combinations is a slip; what names one of them in a path, and the longest name of all.
NAME_CHARS_MAX = 80

# text that comes from a model.
REPLY_CHARS_MAX = 65_536
SPEECH_CHARS_MAX = 2_000
WILL_CHARS_MAX = 600
NOTES_CHARS_MAX = 1_500
OBSERVATION_CHARS_MAX = 8_000
# A token holds more bytes than this in every language's usual text; and the part of a bounded context the public
# record may take before its oldest days are told in short.
CONTEXT_BYTES_PER_TOKEN = 3
CONTEXT_PUBLIC_SHARE_MAX = 0.6
# What is kept of a prompt that an engine found too long, before it is asked again.
CONTEXT_SHRINK = 0.9
TOOL_CALLS_PER_TURN_MAX = 3

# town_of_salem: how often random slots are dealt anew until two sides oppose each other.
DEALS_MAX = 1_000

# store: how much may wait for the disk before departures pause, and how often the manifest is rewritten.
CHECKPOINT_INTERVAL_S = 5.0
