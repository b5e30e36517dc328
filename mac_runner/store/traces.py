"""Token traces: beside the transcript in a columnar file, and in the journal as what is new in each prompt.

`traces/ID.parquet` has a row for each reply with tokens: `turn`, `prompt_ids`, `completion_ids` (int32) and `logprobs`
(float32), in the order of the transcript's turns. One row group and one page hold a whole conversation, so the prompts
that repeat each other take next to nothing. The transcript names the digest of the content. The bytes of the file may
change with the version of pyarrow, which is imported only where such a file is written or read.

In the journal a prompt refers to an earlier reply of its conversation: `like` is that reply's number, `shared` says how
many ids are the same, and `prompt_ids` are those that follow. Ids are base64 of little-endian int32, log-probabilities
of float32.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Final

from mac_runner.errors import ConfigError, RunDirectoryError
from mac_runner.extras import install_command
from mac_runner.store.disk import Disk
from mac_runner.store.layout import Layout, repair_advice, traces_beside
from mac_runner.store.records import entry, objects
from mac_runner.tokens import ID_BYTES, TokenTrace, shared_ids
from mac_runner.types import JsonObject, RecordedReply

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow

TRACES: Final = "traces"
"""The key of a transcript and of its index row: the digest of its traces, and of how many turns they are."""
PAGE_BYTES_MAX: Final = 1 << 30
"""A page is never cut in practice."""
COMPRESSION_LEVEL: Final = 5
"""Of Zstandard: its window must hold the prompts of several agents."""
_COLUMNS: Final = ("turn", "prompt_ids", "completion_ids", "logprobs")

Traces = Mapping[str, TokenTrace]
"""Token traces by the key of their turn, in the order of the transcript."""


# The transcript.


def with_traces(transcript: JsonObject, traces: Traces) -> JsonObject:
    """A transcript that names the digest of its traces; unchanged where there are none."""
    if not traces:
        return transcript
    named: JsonObject = {"sha256": digest_of_traces(traces), "turns": len(traces)}
    return {**transcript, TRACES: named}


def digest_of_traces(traces: Traces) -> str:
    """The digest of the content: of each turn its key and its numbers, each after its length, all little-endian."""
    digest = hashlib.sha256()
    for key, trace in traces.items():
        for data in (_utf8(key), trace.prompt, trace.completion, trace.likelihoods):
            digest.update(len(data).to_bytes(8, "little"))
            digest.update(data)
    return digest.hexdigest()


def _utf8(key: str) -> bytes:
    """The key of a turn as a columnar file can hold it: half a surrogate pair is written out."""
    return key.encode("utf-8", "backslashreplace")


def read_traces(layout: Layout, transcript: JsonObject, *, disk: Disk | None = None) -> Traces:
    """The traces of a conversation by the key of its turn; empty where there are none.

    Raises RunDirectoryError naming the file where that is not what the transcript names, and ConfigError where pyarrow
    is not installed.
    """
    if TRACES not in transcript:
        return {}
    task_id = entry(entry(transcript, "task", dict), "task_id", str)
    path = traces_beside(layout.transcript(task_id))
    try:
        found = read_trace_file(disk or Disk(), path, transcript)
    except ValueError as fault:
        raise RunDirectoryError(f"{path} {fault}; {repair_advice(layout.directory)}") from fault
    keys = {_utf8(entry(turn, "turn", str)).decode(): entry(turn, "turn", str) for turn in objects(transcript, "turns")}
    return {keys.get(key, key): trace for key, trace in found.items()}


# The file.


def encode_traces(traces: Traces) -> bytes:
    import pyarrow
    from pyarrow import parquet

    columns = [
        pyarrow.array([_utf8(key).decode() for key in traces], pyarrow.string()),
        _lists(pyarrow.int32(), [trace.prompt for trace in traces.values()]),
        _lists(pyarrow.int32(), [trace.completion for trace in traces.values()]),
        _lists(pyarrow.float32(), [trace.likelihoods for trace in traces.values()]),
    ]
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(
        pyarrow.table(columns, names=[*_COLUMNS]),
        sink,
        row_group_size=len(traces),
        max_rows_per_page=len(traces),
        data_page_size=PAGE_BYTES_MAX,
        compression="zstd",
        compression_level=COMPRESSION_LEVEL,
        use_dictionary=False,
        write_statistics=False,
        store_schema=False,
    )
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _lists(kind: pyarrow.DataType, cells: Sequence[bytes]) -> pyarrow.ListArray:
    import pyarrow

    ends = accumulate((len(cell) // ID_BYTES for cell in cells), initial=0)
    data = b"".join(cells)
    values = pyarrow.Array.from_buffers(kind, len(data) // ID_BYTES, [None, pyarrow.py_buffer(data)])
    return pyarrow.ListArray.from_arrays(pyarrow.array(ends, pyarrow.int32()), values)


def decode_traces(data: bytes) -> dict[str, TokenTrace]:
    """The traces of a file, by turn as the file names it. Raises ValueError when it is none."""
    if find_spec("pyarrow") is None:
        raise ConfigError(f"token traces cannot be read: pyarrow is not installed; {install_command('data')}")
    import pyarrow
    from pyarrow import parquet

    try:
        table = parquet.read_table(pyarrow.BufferReader(data))
        if tuple(table.column_names) != _COLUMNS:
            raise ValueError(f"its columns are {table.column_names}")
        turns, *numbers = (column.combine_chunks() for column in table.columns)
        kinds = (pyarrow.int32(), pyarrow.int32(), pyarrow.float32())
        cells = [_cells(column, kind) for column, kind in zip(numbers, kinds, strict=True)]
        return {
            str(turn): TokenTrace.packed(*row)
            for turn, row in zip(turns.to_pylist(), zip(*cells, strict=True), strict=True)
        }
    except (pyarrow.ArrowException, OSError) as fault:
        raise ValueError(f"it cannot be read as Parquet: {fault!s:.200}") from fault


def _cells(column: Any, kind: pyarrow.DataType) -> list[bytes]:
    if column.null_count or column.type.value_type != kind or column.values.null_count:
        raise ValueError(f"a column is {column.type}, or has gaps")
    offsets: list[int] = column.offsets.to_pylist()
    values = column.values
    data = memoryview(values.buffers()[1] or b"")[values.offset * ID_BYTES :]
    return [bytes(data[ID_BYTES * start : ID_BYTES * end]) for start, end in pairwise(offsets)]


def read_trace_file(disk: Disk, path: Path, named: JsonObject) -> dict[str, TokenTrace]:
    """The traces in a file, which are those that a transcript or its row names.

    Raises ValueError saying what is wrong.
    """
    expected = entry(named, TRACES, dict)
    if not disk.exists(path):
        raise ValueError("is not there")
    if not disk.is_file(path):
        raise ValueError("is not a regular file")
    try:
        found = decode_traces(disk.read(path))
    except ValueError as fault:
        raise ValueError(f"is damaged: {fault}") from fault
    if (digest_of_traces(found), len(found)) != (expected.get("sha256"), expected.get("turns")):
        raise ValueError("does not hold the traces that the transcript names")
    return found


def traces_flaw(disk: Disk, path: Path, named: JsonObject) -> str | None:
    """What is wrong with a file of traces; None where nothing is, or where none is named."""
    if TRACES not in named:
        return None
    try:
        read_trace_file(disk, path, named)
    except ValueError as fault:
        return str(fault)
    return None


# The journal.


class TraceLog:
    """The traces of one conversation so far, each kept as what it adds to an earlier one."""

    def __init__(self, replies: Iterable[RecordedReply] = ()) -> None:
        """`replies` are those that the journal has already."""
        self._traces: dict[int, TokenTrace] = {}
        self._turns: dict[str, int] = {}
        self._latest: dict[str, int] = {}
        self._prompts: dict[str, bytes] = {}
        for n, recorded in enumerate(replies):
            if recorded.reply.trace is not None:
                self._note(n, recorded.turn_key, recorded.reply.trace)

    def _note(self, n: int, turn_key: str, trace: TokenTrace) -> str:
        self._traces[n] = trace
        self._turns[turn_key] = n
        # The name of an agent may hold a slash.
        agent = turn_key.partition("/")[2].rsplit("/", 2)[0]
        self._latest[agent] = n
        return agent

    def add(self, n: int, recorded: RecordedReply) -> JsonObject | None:
        """The trace of the `n`-th reply as its frame has it; None for a reply without one."""
        trace = recorded.reply.trace
        if trace is None:
            return None
        prompt = trace.prompt
        like, shared = None, 0
        for agent, number in self._latest.items():
            if agent not in self._prompts:
                self._prompts[agent] = self._traces[number].prompt
            if (common := shared_ids(self._prompts[agent], prompt)) > shared:
                like, shared = number, common
        kept = TokenTrace.packed(
            prompt[ID_BYTES * shared :],
            trace.completion,
            trace.likelihoods,
            earlier=None if like is None else self._traces[like],
            shared=shared,
        )
        self._prompts[self._note(n, recorded.turn_key, kept)] = prompt
        reference: JsonObject = {} if like is None else {"like": like, "shared": shared}
        return {
            **reference,
            "prompt_ids": b64encode(kept.rest).decode("ascii"),
            "completion_ids": b64encode(kept.completion).decode("ascii"),
            "logprobs": b64encode(kept.likelihoods).decode("ascii"),
        }

    def of(self, transcript: JsonObject) -> dict[str, TokenTrace]:
        keys = (entry(turn, "turn", str) for turn in objects(transcript, "turns"))
        return {key: self._traces[self._turns[key]] for key in keys if key in self._turns}
