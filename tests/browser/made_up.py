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
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event
from typing import Any, Final
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
from tests.browser.screens import listening

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
    *(ColumnView(name, "number") for name in ("turns", "corrections", "defaults", "tokens", "open_s")),
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
    with listening(_handler(made)) as made.url:
        try:
            yield made
        finally:
            made.ended.set()


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
            EngineView("townsfolk", "vllm", "10.0.0.7", 64, 321 * rows, 12, 7300 * rows, 900 * rows, 5100 * rows, 1.38),
            EngineView("mafiosi", "openai", "", 8, 88 * rows, 0, 2_100 * rows, 300 * rows, 0, 0.412),
        ),
        facts=(Fact("wins of town", "0.531 [0.527, 0.536]"), Fact("wall time", "3 h 12 min")),
    )


def rows_of(rows: int, *, since: int = 0) -> list[dict[str, Any]]:
    """What the columns hold of each row, which is the same however many there are."""
    return [_game(since + row) for row in range(rows)]


def _game(number: int) -> dict[str, Any]:
    chance = random.Random(7_000_021 + number)
    has_failed = chance.random() < 0.01
    played = {
        "winner": sorted({chance.choice(FACTIONS), chance.choice(FACTIONS[:2])}),
        "ending": chance.choice(ENDINGS),
        "days": 3 + chance.randrange(9),
        "lied": float(chance.random() < 0.7),
    }
    return {
        "number": number,
        "id": f"tos_100games-{number:06d}",
        "status": "failed" if has_failed else "finished",
        **(dict.fromkeys(played) | {"winner": []} if has_failed else played),
        "turns": 120 + chance.randrange(300),
        "corrections": int(chance.random() ** 4 * 12),
        "defaults": float(chance.random() < 0.03),
        "tokens": 400_000 + chance.randrange(900_000),
        "open_s": round(chance.random() * 900, 1),
        "failure": "the engine refused the prompt: too long" if has_failed else None,
    }


def index_of(rows: int, *, since: int = 0) -> IndexColumns:
    """The columns of these rows."""
    found = rows_of(rows, since=since)
    winners = tuple(tuple(FACTIONS.index(name) for name in game["winner"]) for game in found)
    columns = {column.name: (column.kind, [game[column.name] for game in found]) for column in COLUMNS}
    return IndexColumns(
        since=since,
        rows=rows,
        words={name: _coded(values) for name, (kind, values) in columns.items() if kind == "word"},
        lists={"winner": WordsColumn(FACTIONS, winners)},
        numbers={
            n: NumberColumn(tuple(values)) for n, (kind, values) in columns.items() if kind in ("number", "truth")
        },
    )


def _coded(values: list[str | None]) -> WordColumn:
    words = tuple(dict.fromkeys(value for value in values if value is not None))
    places: dict[str | None, int] = {None: -1, **{word: place for place, word in enumerate(words)}}
    return WordColumn(words, tuple(places[value] for value in values))


def engines_of(bins: int = 240, *, sessions: tuple[float, ...] = (0.0, 700.0)) -> EnginesPage:
    """Two engines over time."""
    chance = random.Random(3)
    bounds = tuple(0.1 * 10 ** (n / 20) for n in range(120))

    def series(model: str, slots: int, level: float) -> EngineSeries:
        levels = (min(slots, max(0.0, slots * level + chance.gauss(0, slots / 20))) for _ in range(bins))
        busy = tuple(one if 4 < n < bins - 3 else 0.0 for n, one in enumerate(levels))
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
            tokens_per_s=sum(done) * 61 / (bins * 5.0),
        )

    return EnginesPage(5.0, bins * 5.0, sessions, (series("townsfolk", 64, 0.9), series("mafiosi", 8, 0.5)))
