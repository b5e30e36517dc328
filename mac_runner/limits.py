"""Every bound of the package, in one place. Units come last in the names."""

from __future__ import annotations

# config: what a YAML file may cost before it is refused.
YAML_SIZE_BYTES_MAX = 1 << 20
YAML_NODES_MAX = 10_000
YAML_DEPTH_MAX = 32

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
TOOL_CALLS_PER_TURN_MAX = 3

# town_of_salem: how often random slots are dealt anew until two sides oppose each other.
DEALS_MAX = 1_000

# scheduler: conversations kept open beyond what the slots need, as a multiple of all slots.
OPEN_CONVERSATIONS_PER_SLOT_MAX = 4
RETRY_AFTER_S_MAX = 60.0
SHUTDOWN_GRACE_S = 20.0
BACKEND_CLOSE_S_MAX = 10.0
# scheduler: an engine that starts within this is not spoken of.
START_QUIET_S = 1.0
STORY_EVENTS_MAX = 2_000
READY_HEAP_DEAD_MAX = 64

# store: how much may wait for the disk before departures pause, and how often the manifest is rewritten.
WRITE_BACKLOG_ITEMS_MAX = 20_000
COMMIT_LINGER_S = 0.01
CHECKPOINT_INTERVAL_S = 5.0
MANIFEST_WRITES_PER_PLAN_MAX = 50
FRAME_BYTES_MAX = 16 << 20
# store: how long closing waits for a disk on which nothing gets done any more.
WRITER_STALL_S_MAX = 20.0

# ollama: how long the server may take to answer a question and to load a model, how long a pull may bring nothing and
# how often it is told of, what one answer may weigh, and how much of an error is quoted.
OLLAMA_ANSWER_S_MAX = 10.0
OLLAMA_LOAD_S_MAX = 600.0
OLLAMA_PULL_STALL_S_MAX = 300.0
OLLAMA_PULL_SAY_INTERVAL_S = 5.0
OLLAMA_BODY_BYTES_MAX = 16 << 20
OLLAMA_ERROR_CHARS_MAX = 300

# cli: how long `doctor` waits for one token.
DOCTOR_PROBE_S_MAX = 120.0

# status: what the live view may cost.
STATUS_INTERVAL_S = 0.5
STATUS_PLAIN_INTERVAL_S = 10.0
STATUS_ROWS_MAX = 8
STATUS_MODELS_MAX = 6
STATUS_RATE_WINDOW_S = 30.0
STATUS_RATE_SAMPLES_MAX = 60

# reports: how many reasons of failure are listed one by one, and how many task ids each names.
REPORT_REASONS_MAX = 20
REPORT_TASK_IDS_MAX = 5
REPORT_RANKING_N_MIN = 20

# config: what an error about the user's file may print.
CONFIG_PROBLEMS_MAX = 50
CONFIG_FOUND_CHARS_MAX = 80
CONFIG_NAMES_MAX = 40
CONFIG_LINE_CHARS_MAX = 4_000
