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

# backends: how much is quoted of what an engine says, what no count of its tokens comes near, and what an answer over
# HTTP may take in bytes and in time.
ENGINE_ERROR_CHARS_MAX = 300
ENGINE_TOKENS_MAX = 1 << 40
HTTP_BODY_BYTES_MAX = 8 << 20
# Each member costs a copy of all that follows it.
HTTP_GZIP_MEMBERS_MAX = 256
HTTP_CONNECT_S_MAX = 10.0
# Servers take 8 KiB for a line of a header, including "Authorization: Bearer ".
KEY_CHARS_MAX = 8_000
# Less than the five seconds after which vLLM's server closes a connection that nothing was sent on.
HTTP_KEEP_ALIVE_S = 4.0
# How soon a request breaks that crosses the hanging up of a connection: within one way there and back.
HTTP_HANG_UP_S_MAX = 1.0
# backends: when an endpoint is set aside, for how long, how many conversations are remembered to live at one, and
# how often it is told that one comes and goes.
CANARY_S_MAX = 10.0
ENDPOINT_STRIKES_MAX = 3
ENDPOINT_REST_S = 1.0
ENDPOINT_REST_S_MAX = 30.0
ENDPOINT_PAUSE_S_MAX = 30.0
ENDPOINT_CONVERSATIONS_MAX = 65_536
ENDPOINT_SAY_INTERVAL_S = 60.0
# ollama: how long the server may take to answer a question and to load a model, how often it is looked at while it
# takes its time over a reply, how long a pull may bring nothing and how often it is told of, and what one answer may
# weigh.
OLLAMA_ANSWER_S_MAX = 10.0
OLLAMA_LOOK_INTERVAL_S = 20.0
OLLAMA_LOAD_S_MAX = 600.0
OLLAMA_PULL_STALL_S_MAX = 300.0
OLLAMA_PULL_SAY_INTERVAL_S = 5.0
OLLAMA_BODY_BYTES_MAX = 16 << 20

# store: how much may wait for the disk before departures pause, and how often the manifest is rewritten.
WRITE_BACKLOG_ITEMS_MAX = 20_000
COMMIT_LINGER_S = 0.01
CHECKPOINT_INTERVAL_S = 5.0
MANIFEST_WRITES_PER_PLAN_MAX = 20
FRAME_BYTES_MAX = 16 << 20
# store: what a YAML file of a run directory may cost, of which one written by a run comes nowhere near.
STORE_YAML_BYTES_MAX = 64 << 20
STORE_YAML_NODES_MAX = 2_000_000
STORE_YAML_DEPTH_MAX = 100
# store: how often a process at work shows that it lives; and, where locks cannot be relied on, how many of these
# periods an owner on another machine must have shown nothing to be believed dead, and how often one looks.
LEASE_INTERVAL_S = 10.0
LEASE_PERIODS = 3
LEASE_LOOK_INTERVAL_S = 1.0
# store: how long closing waits for a disk on which nothing gets done any more.
WRITER_STALL_S_MAX = 20.0

# store: what the smallest transcript takes, what journal, events and index take of each of its bytes, and how many
# transcripts tell how large they are: the estimate of the room that a run needs.
SPACE_TRANSCRIPT_BYTES_MIN = 1_000
SPACE_JOURNAL_SHARE = 0.85
SPACE_SAMPLE_CONVERSATIONS = 100
