"""Run directories to be damaged, each as a run left it, and what they must come to in the end."""

from __future__ import annotations

import atexit
import csv
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Final, TypeAlias

import pytest
import yaml

from mac_runner.backends.testing import ScriptedBackend
from mac_runner.cli.process import Exit
from mac_runner.errors import EngineDeadError, RequestRefusedError
from mac_runner.store.testing import encode_json
from mac_runner.types import JsonObject, Reply, Request
from tests.attacks.invocation import mac_run
from tests.cli.lab import RunDir, discussion, scripted

FILE: Final = "talk.yaml"
RUN: Final = "runs/talk"
SHARDS: Final = ("runs/talk.shard-1-of-2", "runs/talk.shard-2-of-2")
MERGED: Final = "whole"
CONVERSATIONS: Final = 4
_OF_TIME: Final = (
    *("wall_s", "played_s", "turns_per_s", "conversations_per_s"),
    *("sessions", "parts", "merged_runs", "models", "retried"),
)
"""What a summary says of time and of how often a run was begun."""
_OF_A_ROW: Final = ("timing", "sha256", "size_bytes", "failed_attempts")
"""What a row of an index says of time and of attempts before the one that holds."""
Facts: TypeAlias = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A working directory with a run in it. `runs` are its run directories, `ends` the command that ends it, and
    `again` are those that run its experiment again.
    """

    path: Path
    runs: tuple[str, ...]
    ends: tuple[str, ...]
    reads: tuple[tuple[str, ...], ...]
    again: tuple[tuple[str, ...], ...] = ((FILE,),)

    @property
    def names(self) -> list[str]:
        """The files of its runs, below its directory."""
        return [
            str(path.relative_to(self.path))
            for run in self.runs
            for path in (self.path / run).rglob("*")
            if path.is_file()
        ]


READS: Final = (
    ("verify", RUN),
    ("status", RUN),
    ("status", RUN, "--json"),
    ("show", RUN, "0"),
    ("show", RUN, "1", "--turns"),
    ("show", RUN, "2", "--seat", "a"),
    (FILE, "--dry-run"),
)


@contextmanager
def faulty(fault: Callable[[Request, int], Exception | None]) -> Iterator[None]:
    """Inside the block the scripted engine raises what `fault` makes of a request and the number of those before it."""
    generate, made = ScriptedBackend.generate, [0]

    async def generating(self: ScriptedBackend, request: Request) -> Reply:
        error = fault(request, made[0])
        made[0] += 1
        if error is not None:
            raise error
        return await generate(self, request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ScriptedBackend, "generate", generating)
        yield


def _scene(name: str) -> Path:
    path = Path(mkdtemp(prefix=f"scene-{name}-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    grid: JsonObject = {"_grid": {"sweep": {"seed": [5, 6]}}} if name == "grid" else {}
    topics: JsonObject = {"topics": ["Bridge or ferry?", "Is it fair?"], "max_rounds": 2}
    talk = discussion(scripted("discussant", capacity=2), conversations=CONVERSATIONS, seed=5)
    (path / FILE).write_text(yaml.safe_dump(talk | {"discussion": topics, **grid}, sort_keys=False))
    return path


@cache
def finished() -> Scene:
    """A run that has ended."""
    path = _scene("finished")
    assert mac_run(FILE, directory=path).code == Exit.OK
    return Scene(path=path, runs=(RUN,), ends=(FILE,), reads=READS)


@cache
def half_done() -> Scene:
    """A run that was killed: a transcript is there, conversations are open, and the last frame is torn."""
    path = _scene("half")
    with faulty(lambda _request, number: EngineDeadError("it is gone") if number > 9 else None):
        assert mac_run(FILE, directory=path).code == Exit.INTERRUPTED
    (path / RUN / "summary.json").unlink(missing_ok=True)
    with (path / RUN / "journal" / "000001.jsonl").open("ab") as journal:
        journal.write(b'1a2b3c4d {"kind":"repl')
    return Scene(path=path, runs=(RUN,), ends=(FILE,), reads=READS)


@cache
def failed() -> Scene:
    """A run one of whose conversations failed."""
    path = _scene("failed")

    def refusal(request: Request, _number: int) -> Exception | None:
        is_one = request.conversation.endswith("000001") and request.turn.round == 1
        return RequestRefusedError("not today") if is_one else None

    with faulty(refusal):
        assert mac_run(FILE, directory=path).code == Exit.FAILURES
    return Scene(path=path, runs=(RUN,), ends=("retry", RUN), reads=READS)


@cache
def grid() -> Scene:
    """A grid of two combinations that has ended."""
    path = _scene("grid")
    assert mac_run(FILE, directory=path).code == Exit.OK
    reads = (("verify", RUN), ("status", RUN), ("status", RUN, "--json"), (FILE, "--dry-run"))
    return Scene(path=path, runs=(RUN,), ends=(FILE,), reads=reads)


@cache
def shards() -> Scene:
    """The two shards of a run, which have ended and are to be merged."""
    path = _scene("shards")
    for number in (1, 2):
        assert mac_run(FILE, "--shard", f"{number}/2", directory=path).code == Exit.OK
    again = tuple((FILE, "--shard", f"{number}/2") for number in (1, 2))
    reads = tuple((verb, shard) for shard in SHARDS for verb in ("verify", "status"))
    return Scene(path=path, runs=SHARDS, ends=("merge", MERGED, *SHARDS), reads=reads, again=again)


SCENES: Final[dict[str, Callable[[], Scene]]] = {
    "finished": finished,
    "half done": half_done,
    "failed": failed,
    "grid": grid,
    "shards": shards,
}


@cache
def outcome(name: str) -> Facts:
    """What a scene comes to where nothing is damaged."""
    return facts(grid().path / RUN) if name == "grid" else facts(finished().path / RUN)


def facts(run: Path) -> Facts:
    """What a run directory claims, or a grid's with all its combinations, without what depends on time."""
    try:
        return _facts(run)
    except (ValueError, OSError, KeyError, AttributeError, AssertionError) as fault:
        return {"what cannot be read": f"{type(fault).__name__}: {fault}"}


def _facts(run: Path) -> Facts:
    if (run / "grid.yaml").exists():
        slugs = sorted(path.stem for path in run.glob("experiments/*.yaml"))
        table = list(csv.reader((run / "grid.csv").read_text().splitlines()))
        return {
            "grid.csv": table,
            **{f"{slug}/{key}": fact for slug in slugs for key, fact in _facts(run / slug).items()},
        }
    found = RunDir(path=run)
    rows = {
        str(row["task_id"]): {key: value for key, value in row.items() if key not in _OF_A_ROW} for row in found.index
    }
    said = frozenset((event["task"], event["turn"]) for event in found.events("EVENT_INFER_DONE"))
    return {
        "transcripts": found.transcripts,
        "index": rows,
        "rows": len(found.index),
        "summary": _untimed(found.summary) if found.layout.summary.exists() else None,
        "events": said,
    }


def _untimed(summary: JsonObject) -> bytes:
    return encode_json({key: value for key, value in summary.items() if key not in _OF_TIME})
