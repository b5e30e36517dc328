"""A host of pages whose data a test makes up: the committed front end over answers of its own, and a stream to push to.

For what a run on disk cannot give in the time of a test, such as a hundred thousand conversations. Everything else is
tested over `mac-run view`.
"""

from __future__ import annotations

import gzip
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import Final
from urllib.parse import urlsplit

import msgspec

import mac_runner.viewer
from mac_runner.view_model import (
    ColumnView,
    EngineSeries,
    EnginesPage,
    EngineView,
    Fact,
    IndexColumns,
    NumberColumn,
    RunPage,
    WordColumn,
    WordsColumn,
)
from mac_runner.viewer.testing import HEADERS

STATIC: Final = Path(mac_runner.viewer.__file__).parent / "static"
_KINDS: Final = {".js": "text/javascript", ".css": "text/css", ".html": "text/html"}
_PAUSE_S: Final = 0.02

FACTIONS: Final = ("town", "mafia", "coven", "neutral")
ENDINGS: Final = ("decided", "draw", "out of days", "stalemate")
COLUMNS: Final = (
    ColumnView("number", "number"),
    ColumnView("id", "word", is_listed=False),
    ColumnView("status", "word"),
    ColumnView("winner", "words"),
    ColumnView("ending", "word"),
    ColumnView("days", "number"),
    ColumnView("lied", "truth"),
    ColumnView("turns", "number"),
    ColumnView("corrections", "number"),
    ColumnView("defaults", "number"),
    ColumnView("tokens", "number"),
    ColumnView("open_s", "number"),
    ColumnView("failure", "word"),
)


@dataclass
class MadeUpRun:
    """Answers by path, such as `/api/run`, and the connections that follow the run."""

    answers: dict[str, bytes] = field(default_factory=dict)
    streams: list[SimpleQueue[bytes]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    followed: Event = field(default_factory=Event)
    ended: Event = field(default_factory=Event)
    url: str = ""

    def answer(self, path: str, value: object) -> None:
        """What a path answers from now on; compressed, as the server sends it."""
        self.answers[path] = gzip.compress(msgspec.json.encode(value), 6, mtime=0)

    def push(self, event: str, value: object) -> None:
        """Send an event to all open pages."""
        for stream in self.streams:
            stream.put(b"event: %s\ndata: %s\n\n" % (event.encode(), msgspec.json.encode(value)))


@contextmanager
def made_up_run(
    run: RunPage, index: IndexColumns | None = None, engines: EnginesPage | None = None
) -> Iterator[MadeUpRun]:
    """The run at an address until the end of the block."""
    made = MadeUpRun()
    made.answer("/api/run", run)
    made.answer("/api/index", index or index_of(0))
    made.answer("/api/engines", engines or EnginesPage(1.0, 0.0, (), ()))
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(made))
    server.daemon_threads = False
    thread = Thread(target=lambda: server.serve_forever(poll_interval=_PAUSE_S), name="made-up run")
    thread.start()
    made.url = f"http://127.0.0.1:{server.server_address[1]}/"
    try:
        yield made
    finally:
        made.ended.set()
        server.shutdown()
        thread.join()
        server.server_close()


def _handler(made: MadeUpRun) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            made.asked.append(self.path)
            if path == "/api/stream":
                self._follow()
            elif path in made.answers:
                self._send(made.answers[path], "application/json", is_packed=True)
            elif (file := STATIC / (path.removeprefix("/static/") if path != "/" else "index.html")).is_file():
                self._send(file.read_bytes(), _KINDS[file.suffix])
            else:
                self._send(b'{"error": "there is no such page"}', "application/json", status=404)

        def _send(self, body: bytes, kind: str, *, status: int = 200, is_packed: bool = False) -> None:
            self.send_response(status)
            for name, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            if is_packed:
                self.send_header("Content-Encoding", "gzip")
            self.end_headers()
            self.wfile.write(body)

        def _follow(self) -> None:
            self.send_response(200)
            for name, value in {**HEADERS, "Content-Type": "text/event-stream"}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(b": here\n\n")
            stream: SimpleQueue[bytes] = SimpleQueue()
            made.streams.append(stream)
            made.followed.set()
            while not made.ended.is_set():
                try:
                    self.wfile.write(stream.get(timeout=_PAUSE_S))
                except Empty:
                    continue
                except OSError:
                    return

        def log_message(self, *_args: object) -> None:
            pass

    return Handler


def run_of(rows: int, *, planned: int | None = None, is_live: bool = False, failed: int = 0) -> RunPage:
    """The head of a run with this many conversations."""
    return RunPage(
        name="tos_100games",
        directory="runs/tos_100games",
        environment="town_of_salem",
        description="Who wins classic-10 when everybody plays alike?",
        state="running" if is_live else "complete",
        planned=rows if planned is None else planned,
        done=rows,
        failed=failed,
        is_live=is_live,
        columns=COLUMNS,
        engines=(
            EngineView(
                "townsfolk", "vllm", "10.0.0.7", 64, 321 * rows, 12, 7_300 * rows, 900 * rows, 5_100 * rows, 1.38
            ),
            EngineView("mafiosi", "openai", "", 8, 88 * rows, 0, 2_100 * rows, 300 * rows, 0, 0.412),
        ),
        facts=(Fact("wins of town", "0.531 [0.527, 0.536]"), Fact("wall time", "3 h 12 min")),
    )


def index_of(rows: int, *, since: int = 0, seed: int = 7) -> IndexColumns:
    """Rows of games, each row the same however many there are."""
    chance = [random.Random(seed * 1_000_003 + row) for row in range(since, since + rows)]
    failed = [one.random() < 0.01 for one in chance]
    numbers = {
        "number": [float(since + row) for row in range(rows)],
        "days": [float(3 + int(one.random() * 9)) for one in chance],
        "lied": [float(one.random() < 0.7) for one in chance],
        "turns": [float(120 + int(one.random() * 300)) for one in chance],
        "corrections": [float(int(one.random() ** 4 * 12)) for one in chance],
        "defaults": [float(one.random() < 0.03) for one in chance],
        "tokens": [float(int(400_000 + one.random() * 900_000)) for one in chance],
        "open_s": [round(one.random() * 900, 1) for one in chance],
    }
    missing = {"days", "lied"}
    return IndexColumns(
        since=since,
        rows=rows,
        words={
            "id": WordColumn(tuple(f"tos_100games-{since + row:06d}" for row in range(rows)), tuple(range(rows))),
            "status": WordColumn(("finished", "failed"), tuple(int(one) for one in failed)),
            "ending": WordColumn(
                ENDINGS, tuple(-1 if lost else int(one.random() * 4) for one, lost in zip(chance, failed, strict=True))
            ),
            "failure": WordColumn(
                ("the engine refused the prompt: too long",), tuple(0 if lost else -1 for lost in failed)
            ),
        },
        lists={
            "winner": WordsColumn(
                FACTIONS,
                tuple(
                    () if lost else tuple(sorted({int(one.random() * 4), int(one.random() * 2)}))
                    for one, lost in zip(chance, failed, strict=True)
                ),
            )
        },
        numbers={
            name: NumberColumn(
                tuple(None if lost and name in missing else value for value, lost in zip(values, failed, strict=True))
            )
            for name, values in numbers.items()
        },
    )


def engines_of(bins: int = 240, *, sessions: tuple[float, ...] = (0.0, 700.0)) -> EnginesPage:
    """Two engines over time."""
    chance = random.Random(3)
    bounds = tuple(0.1 * 10 ** (n / 20) for n in range(120))

    def series(model: str, slots: int, level: float) -> EngineSeries:
        busy = tuple(
            min(slots, max(0.0, slots * level + chance.gauss(0, slots / 20))) if 4 < n < bins - 3 else 0.0
            for n in range(bins)
        )
        done = tuple(int(one * 4) for one in busy)
        counts = tuple(int(4000 * 2.718 ** (-(((n - 82) / 9) ** 2))) for n in range(121))
        return EngineSeries(
            model=model,
            slots=slots,
            busy=busy,
            done=done,
            tokens=tuple(each * 61 for each in done),
            retries=tuple(int(chance.random() < 0.04) * 3 for _ in busy),
            latency_bounds_ms=bounds,
            latency_counts=counts,
            latency_p50_ms=1260.0,
            latency_p95_ms=2480.0,
            queue_p50_s=0.02,
            queue_p95_s=0.9,
            cached_share=0.71,
        )

    return EnginesPage(5.0, bins * 5.0, sessions, (series("townsfolk", 64, 0.9), series("mafiosi", 8, 0.5)))
