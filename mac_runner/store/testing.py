"""What the tests of this room hold on to below its face, so that a move inside the room changes no test."""

from __future__ import annotations

from mac_runner.store.disk import Free, OpenFile, StagedFile
from mac_runner.store.fork import Branch, ForkRecord, read_fork, write_fork
from mac_runner.store.grid import GridAtRest, join_grid
from mac_runner.store.identity import changes, encode_config, layout_of, read_yaml
from mac_runner.store.journal import (
    DeathFrame,
    Entry,
    checkpoint_frame,
    death_frame,
    done_frame,
    replies,
    reply_frame,
    retry_frame,
    session_frame,
    stretches,
)
from mac_runner.store.layout import LEASES, Layout, Lease, traces_beside
from mac_runner.store.leases import begin_leases, encode_leases, end_leases, locked, make_claimable, rivals
from mac_runner.store.lock import (
    LEASE_INTERVAL_S,
    LEASE_PERIODS,
    Holder,
    LeaseWatch,
    Owner,
    RunLock,
    is_alive,
    last_sign_of_life,
    read_owner,
    show_life,
    sign,
    sign_off,
    signs_of_life,
    this_process,
)
from mac_runner.store.machine import Machine, filesystem_at, is_network
from mac_runner.store.manifest import Manifest, decode_manifest, in_task_order
from mac_runner.store.mirror import Mirror, copy_run, file_system
from mac_runner.store.records import (
    Line,
    decode_frame,
    encode_frame,
    encode_json,
    entry,
    event_line,
    lines,
    lines_with,
    objects,
    recorded_from_json,
    recorded_json,
    records_of,
    task_from_json,
    task_json,
)
from mac_runner.store.rows import DoneRow, RecordedRow, parse_row
from mac_runner.store.run_state import JournalTail, RunState, read_state
from mac_runner.store.session import MANIFEST_INTERVAL_S, Item, Session, TranscriptItem, open_worker
from mac_runner.store.space import SAMPLE_CONVERSATIONS, size_text
from mac_runner.store.standing import STATES, LaneEvent, LaneRecord, lanes_of, read_lanes
from mac_runner.store.traces import (
    TRACES,
    TraceLog,
    Traces,
    decode_traces,
    digest_of_traces,
    encode_traces,
)
from mac_runner.store.transcripts import decode_transcript, encode_transcript
from mac_runner.store.writer import THREAD_NAME, Committer, Writer
