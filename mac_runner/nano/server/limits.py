"""Every bound of the server. Units come last in the names."""

from __future__ import annotations

BODY_BYTES_MAX = 8 << 20
BODY_S_MAX = 60.0
"""How long a body may take to arrive."""
BODIES_BYTES_MAX = 256 << 20
"""What the bodies of all requests may take together, without the first BODY_BYTES_FREE of each."""
BODY_BYTES_FREE = 64 << 10
BODY_BYTES_AT_ONCE_MAX = 64 << 10
"""A longer body is parsed on a thread, one at a time."""
JSON_PARTS_MAX = 100_000
"""Arrays and objects in one body. Each takes some hundred bytes to parse, so 8 MiB of them would take 1.4 GB."""
PROMPTS_MAX = 256
SAMPLES_MAX = 128
MESSAGES_MAX = 10_000
TOP_LOGPROBS_MAX = 20
WEIGHT_VERSION_MAX = (1 << 63) - 1
COMPLETION_TOKENS = 16
"""How long a text completion is unless the request says otherwise, as OpenAI has it."""
QUOTED_CHARS_MAX = 300
"""How much of a client's own words is quoted back at it."""

# How long the engine may take to answer a question between two of its steps, and how long it may have work and take no
# step, before it counts as stuck.
ENGINE_ANSWER_S_MAX = 30.0
STALL_S_MAX = 30.0
LOOK_AGAIN_S = 1.0
"""After how long what looks stuck is looked at again."""
RETRY_AFTER_S = 1
"""What a client is told to wait when the queue is full."""
SHUTDOWN_GRACE_S = 10
SHUTDOWN_ANSWER_S = 5
"""How long those may take to be told so whose requests outlast the grace."""
CONNECTIONS_SPARE = 1_000
"""Connections beyond those whose requests the engine works on or keeps waiting."""
DESCRIPTORS_KEPT = 128
"""File descriptors that connections leave to the model's files, pipes and libraries."""
DESCRIPTORS_LAST = 32
"""Of those, the ones that are not even taken to tell somebody that there are too many connections."""
IDLE_S_MAX = 30.0
"""How long a connection may be without a request; one begins when all its headers are there."""
BACKLOG = 2048
"""Connections that wait to be accepted."""
