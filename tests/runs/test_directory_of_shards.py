"""A directory of shards: who gets which, whatever dies, and it reads like the run that its merge will be."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import pickle
import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final, TypeVar, cast

import pytest
from msgspec import to_builtins

import mac_runner
from mac_runner.cli.show import View, list_conversations, show
from mac_runner.clock import SystemClock
from mac_runner.errors import MacRunnerError, RunDirectoryError, RunLockedError
from mac_runner.plan import Shard, parse_shard
from mac_runner.reports import grid_status_json, status_json, status_text, with_shards
from mac_runner.runs import Player, RunRequest, set_up
from mac_runner.runs.testing import (
    LOOK_INTERVAL_S,
    Claims,
    recorded_plan,
    repair_all,
    report_of,
    summary_of,
    verify_all,
)
from mac_runner.status.testing import SilentDisplay
from mac_runner.store import (
    Disk,
    ShardsRecord,
    begun_combinations,
    has_run,
    merge_runs,
    read_grid_standing,
    read_run,
    read_shards_standing,
    read_standing,
)
from mac_runner.store.testing import (
    SHARD_DIRECTORIES,
    SHARDS,
    WORKERS,
    Machine,
    encode_shards,
    locked,
    read_owner,
    shard_directory,
)
from mac_runner.types import JsonObject
from mac_runner.view_model import IndexColumns
from mac_runner.viewer.testing import Cursor, Live, PublishRequest, RunSource, publish
from tests.cli.conftest import lab as lab
from tests.cli.lab import Lab, experiment, scripted
from tests.faults.tier import SCALE
from tests.kit import known, undigested, written
from tests.patience import wait_for
from tests.viewer.served import served
from tests.viewer.test_live import Page

if TYPE_CHECKING:
    from mac_runner.runs import Setup
    from mac_runner.runs.testing import OpenRun

T = TypeVar("T")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
OF = 3
CONVERSATIONS = 7
RECORD = ShardsRecord(of=OF, experiment_name="small", identity="ab12", conversations=CONVERSATIONS)


def asked() -> JsonObject:
    """The experiment."""
    return experiment(conversations=CONVERSATIONS, models={"m": scripted()})


def begin(directory: Path) -> Path:
    """A directory of shards in which nothing was claimed yet."""
    directory.mkdir(parents=True)
    (directory / SHARDS).write_bytes(encode_shards(RECORD))
    return directory


def play(directory: Path, number: int, *, limit: int | None = None) -> Path:
    """Play one shard, or as much of it as is among the first so many conversations."""
    shard = Shard(number, OF)
    place = shard_directory(directory, shard)
    mac_runner.run(asked(), out=place, shard=str(shard), limit=limit, progress=False)
    return place


def put(source: Path, directory: Path) -> Path:
    """Put a copy of a directory in the place of what is there."""
    shutil.rmtree(directory, ignore_errors=True)
    return Path(shutil.copytree(source, directory))


def unmerge(directory: Path) -> None:
    """Take the merged run out of a directory of shards again."""
    for path in directory.iterdir():
        if path.name not in (SHARDS, SHARD_DIRECTORIES, WORKERS):
            remove(path)


def remove(path: Path) -> None:
    """Remove a file or a directory."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


@pytest.fixture(scope="session")
def merged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of shards that a worker has played and merged; not to be changed."""
    directory = tmp_path_factory.mktemp("shards") / "small"
    mac_runner.run(asked(), out=directory, shard=f"auto/{OF}", progress=False)
    return directory


@pytest.fixture
def own(tmp_path: Path, merged: Path) -> Path:
    """The same in a place of its own, before the merge."""
    unmerge(put(merged, tmp_path / "small"))
    return tmp_path / "small"


def bar(_text: str, _steps: int) -> AbstractContextManager[Callable[[], object]]:
    return nullcontext(lambda: None)


def printed(call: Callable[[], object]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        call()
    return out.getvalue()


def tables(directory: Path) -> object:
    view = mac_runner.open_run(directory)
    return view.schema, view.conversations().to_pylist(), view.summary, view.conversation(4).view()


def files(directory: Path) -> object:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def exported(directory: Path, to: Path) -> object:
    mac_runner.export(directory, to, format="jsonl")
    return files(to)


def published(directory: Path, to: Path) -> object:
    publish(PublishRequest(directory=directory, out=to, sample=1))
    return files(to)


def pages(directory: Path, conversations: int = CONVERSATIONS) -> object:
    source = RunSource(directory)
    asked = [
        source.run(""),
        source.index("", 0, None),
        source.flow("", ""),
        source.engines(""),
        *(source.conversation("", str(number), "") for number in range(conversations)),
        source.turn("", "1", source.conversation("", "1", "").turns[5].key, ""),
    ]
    return [to_builtins(page) for page in asked]


READERS: Final[Mapping[str, Callable[[Path, Path], object]]] = {
    "rows": lambda run, _: [*read_run(run).rows_in_task_order()],
    "plan": lambda run, _: read_run(run).planned(),
    "summary": lambda run, _: summary_of(read_run(run)),
    # The latest session is that of a shard, which a merge numbers anew.
    "status": lambda run, _: {**status_json(read_standing(run), NOW), "session": None, "limit": None, "eta_s": None},
    "list": lambda run, _: printed(lambda: list_conversations(run, where=[], limit=None)),
    "show": lambda run, _: printed(lambda: show(run, "4", View(has_turns=True))),
    "tables": lambda run, _: tables(run),
    "export": exported,
    "report": lambda run, _: report_of([run], NOW),
    "pages": lambda run, _: pages(run),
    "publication": published,
}


@pytest.mark.ci
def test_every_reader_of_shards_finds_what_it_finds_in_their_merge(own: Path, merged: Path, tmp_path: Path) -> None:
    before = {name: read(own, tmp_path / f"{name} before") for name, read in READERS.items()}
    put(merged, own)

    for name, read in READERS.items():
        assert before[name] == read(own, tmp_path / f"{name} after"), name


@pytest.mark.ci
def test_grid_of_shards_reads_like_the_grid_that_its_merge_makes(tmp_path: Path) -> None:
    grid = tmp_path / "small"
    varied = {**asked(), "_grid": {"sweep": {"game.lobby": ["classic-7", "classic-8"]}}}
    mac_runner.run(varied, out=grid, shard="auto/2", limit=2, progress=False)
    readers = {"export": exported, "state": state_of_grid, "engines": engines_of_grid}
    after = {name: read(grid, tmp_path / f"{name} after") for name, read in readers.items()}
    slugs = [entry.slug for entry in begun_combinations(grid)]
    for slug in slugs:
        unmerge(grid / slug)
    for name in {path.name for path in grid.iterdir()} - {"grid.yaml", "workers", *slugs}:
        remove(grid / name)

    for name, read in readers.items():
        assert read(grid, tmp_path / f"{name} before") == after[name], name


def state_of_grid(grid: Path, _to: Path) -> object:
    """The status of a grid, without the session in which it was merged."""
    status = grid_status_json(read_grid_standing(grid), NOW)
    return {key: value for key, value in status.items() if key not in ("wall_s", "sessions")}


def engines_of_grid(grid: Path, _to: Path) -> object:
    report = report_of([grid], NOW)
    return report.sections, report.state


@pytest.mark.ci
def test_half_done_directory_reads_like_a_run_that_was_stopped(tmp_path: Path) -> None:
    shared = begin(tmp_path / "small")
    assert not has_run(shared)
    with pytest.raises(RunDirectoryError, match="none has begun"):
        read_run(shared)

    play(shared, 1)
    play(shared, 3, limit=3)

    assert has_run(shared)
    found = read_run(shared)
    ended = [row["index"] for row in found.rows_in_task_order()]
    assert ended == [0, 2, 3, 6]
    assert sorted(found.planned().values()) == [*range(CONVERSATIONS)]
    status = status_json(read_standing(shared), NOW)
    assert (status["state"], status["conversations"]) == (
        "stopped",
        {"planned": 7, "finished": 4, "failed": 0, "half_done": 0, "not_begun": 3},
    )
    assert RunSource(shared).run("").planned == CONVERSATIONS
    with pytest.raises(RunDirectoryError, match="4 of 7 conversations"):
        found.transcript("small-000001")


def test_shards_are_not_read_once_they_are_merged(own: Path, merged: Path) -> None:
    put(merged, own)
    shutil.rmtree(own / "shards")

    assert len(mac_runner.open_run(own)) == CONVERSATIONS


def test_directory_is_at_work_while_one_of_its_shards_is(own: Path) -> None:
    shard = own / "shards/2-of-3"
    assert read_standing(own).owner is None
    with locked(Disk(), shard):
        standing = read_standing(own)
        assert (standing.is_owner_alive, RunSource(own).run("").is_live) == (True, True)
        assert standing.owner is not None
        assert standing.owner.pid == os.getpid()
    assert RunSource(own).run("").state == "complete"


@pytest.mark.ci
def test_damage_is_named_with_its_shard(own: Path) -> None:
    transcript = own / "shards/2-of-3/transcripts/small-000004.json"
    transcript.write_bytes(b"{}")

    with pytest.raises(RunDirectoryError, match=r"/small-000004\.json .*/2-of-3`"):
        mac_runner.open_run(own).turns()
    found = {each.directory.name: each.report.ok for each in verify_all(own, bar)}
    assert found == {"1-of-3": True, "2-of-3": False, "3-of-3": True}
    assert [each.directory.name for each in repair_all(own, SystemClock())] == ["2-of-3"]
    assert mac_runner.open_run(own).turns().num_rows

    (own / "shards/3-of-3/task_manifest.json").write_text("[")
    with pytest.raises(RunDirectoryError, match=r"3-of-3/task_manifest\.json"):
        read_run(own)


def test_shard_that_is_gone_counts_as_not_begun(own: Path) -> None:
    shutil.rmtree(own / "shards/2-of-3")

    status = status_json(read_standing(own), NOW)

    assert (status["state"], status["conversations"]) == (
        "stopped",
        {"planned": 7, "finished": 5, "failed": 0, "half_done": 0, "not_begun": 2},
    )


def test_shards_of_two_experiments_are_refused_by_their_names(own: Path) -> None:
    config = own / "shards/3-of-3/experiment.yaml"
    config.write_text(undigested(config).replace("seed: 11", "seed: 12", 1))

    with pytest.raises(RunDirectoryError, match=r"1-of-3 and .*3-of-3 are"):
        read_run(own)


def test_another_process_of_an_export_finds_the_shard_of_a_conversation(own: Path) -> None:
    layout = read_run(own).layout
    known = pickle.loads(pickle.dumps(layout))

    assert known == layout
    assert known.transcript("small-000004") == own / "shards/2-of-3/transcripts/small-000004.json"


def test_directory_of_shards_is_merged_by_its_name(own: Path, tmp_path: Path) -> None:
    merged = merge_runs(tmp_path / "whole", [own], summarise=summary_of, plan=recorded_plan, clock=SystemClock())

    assert (merged.contents.counts.finished, merged.missing) == (CONVERSATIONS, ())


@pytest.mark.ci
def test_list_of_a_page_grows_as_shards_are_claimed_and_begins_anew_after_the_merge(
    merged: Path, tmp_path: Path
) -> None:
    shared = begin(tmp_path / "small")
    source = RunSource(shared, is_awaited=True)
    with pytest.raises(MacRunnerError, match="not begun"):
        source.run("")

    seen: list[int] = []
    for number, limit in ((2, 2), (3, None), (2, None), (1, None)):
        # Shard 2 gets a second session after shard 3 has begun, as after the death of its worker.
        play(shared, number, limit=limit)
        seen.append(source.pulse("").rows or 0)
    version = source.pulse("").version
    ids = [text.task_id for text in source.texts("")]
    put(merged, shared)

    assert seen == [1, 3, 4, 7]
    assert version == 0, "nothing was read again"
    assert source.pulse("").version == 1
    assert [text.task_id for text in source.texts("")] == ids
    assert all(text.path.parent == shared / "transcripts" and text.path.is_file() for text in source.texts(""))


def test_page_is_sent_once_the_list_that_a_merge_made_anew_after_the_poll(own: Path, merged: Path) -> None:
    asked: list[int] = []

    class Overtaken(RunSource):
        def index(self, slug: str, since: int, version: int | None, most: int | None = None) -> IndexColumns:
            if not asked:
                put(merged, own)
            asked.append(since)
            assert len(asked) == 1, "the page has the list"
            return super().index(slug, since, version, most)

    async def at_once(call: Callable[[], T]) -> T:
        return call()

    async def first_events() -> bytes:
        live = Live(Overtaken(own), at_once, at_once, SystemClock())
        async with live.events("", Cursor(0, 0)) as events:
            return await anext(events)

    assert b"id: 1.7\nevent: rows\n" in asyncio.run(first_events())


def test_viewer_serves_shards_over_http(own: Path) -> None:
    with served(own) as viewer:
        page = viewer.get("/api/run").json
        assert (page["state"], page["done"], page["planned"]) == ("complete", CONVERSATIONS, CONVERSATIONS)
        assert viewer.get("/api/c/5").json["task_id"] == "small-000005"


@pytest.mark.ci
def test_open_page_follows_workers_that_claim_shards_die_and_merge(lab: Lab) -> None:
    # Too slow to end a conversation before the page has seen one begin.
    slow = experiment(conversations=6, models={"m": scripted(latency_ms=1_000)})
    file, directory, page = lab.write(slow), lab.path / "shared", Page()
    command = (file, "--shard", "auto/3", "--out", "shared")
    first = lab.start(*command)
    wait_for(lambda: has_run(directory), "a shard")
    with served(directory) as viewer, viewer.events("/api/stream?since=0&version=0") as events:
        while not page.touched:
            page.take(next(events))
        first.kill()
        first.communicate()
        lab.start(*command, "--set", "model_definitions.m.scripted_config.latency_ms=0")
        page.until(events, "complete 6")

    assert sorted(page.ids) == [f"small-{index:06d}" for index in range(6)]
    assert sorted(str(row["task_id"]) for row in read_run(directory).rows()) == sorted(page.ids)
    assert page.troubles == []


SEEDS = 300


@dataclass
class Shared:
    """A directory of shards: who holds which, which are complete, and which have the note of a dead worker."""

    of: int
    held: dict[str, int] = field(default_factory=dict)
    complete: set[str] = field(default_factory=set)
    left_behind: set[str] = field(default_factory=set)
    looks_at_contents: int = 0

    def claims(self, worker: int) -> Claims:
        """What a worker knows that has just come."""

        def open_claimed(part: Setup) -> OpenRun:
            name = str(part)
            if name in self.held:
                raise RunLockedError(f"{name} is held by {self.held[name]}")
            self.held[name] = worker
            self.left_behind.discard(name)
            return cast("OpenRun", name)

        def is_complete(part: Setup) -> bool:
            self.looks_at_contents += 1
            return str(part) in self.complete

        names = [f"{number}-of-{self.of}" for number in range(1, self.of + 1)]
        return Claims(
            [cast("Setup", name) for name in names],
            open_claimed,
            is_free=lambda part: str(part) not in self.held and str(part) not in self.left_behind,
            is_complete=is_complete,
        )

    def finish(self, name: str) -> None:
        """A shard was played to its end, and its directory closed."""
        del self.held[name]
        self.complete.add(name)

    def bury(self, worker: int) -> None:
        """A worker was killed: its locks are gone, its notes stay."""
        mine = {name for name, holder in self.held.items() if holder == worker}
        self.left_behind |= mine
        for name in mine:
            del self.held[name]


def test_every_shard_is_played_by_one_worker_at_a_time_whoever_dies() -> None:
    for seed in range(SEEDS):
        chance, shared = Random(seed), Shared(of=7)
        workers = {number: shared.claims(number) for number in range(4)}
        deaths = 0
        while not all(claims.is_over for claims in workers.values()) or shared.held:
            number = chance.choice([*workers])
            mine = [name for name, holder in shared.held.items() if holder == number]
            if deaths < 12 and chance.random() < 0.1:
                shared.bury(number)
                deaths += 1
                workers[number] = shared.claims(number)
            elif mine and chance.random() < 0.5:
                shared.finish(chance.choice(mine))
            elif (opened := workers[number].open_next()) is not None:
                assert str(opened) not in shared.complete or not shared.left_behind
        assert len(shared.complete) == 7, f"seed {seed}"


def test_first_free_shard_is_claimed_and_a_held_one_is_passed_over() -> None:
    shared = Shared(of=3)
    first, second = shared.claims(1), shared.claims(2)

    got = [str(claims.open_next()) for claims in (first, second, first)]

    assert got == ["1-of-3", "2-of-3", "3-of-3"]
    assert second.open_next() is None


def test_worker_is_not_done_while_another_one_holds_a_shard_that_may_become_free() -> None:
    shared = Shared(of=2)
    first, second = shared.claims(1), shared.claims(2)
    first.open_next()
    second.open_next()

    assert second.open_next() is None
    assert not second.is_over
    shared.bury(1)
    assert second.open_next() == cast("OpenRun", "1-of-2")
    assert second.is_over


def test_shard_in_use_is_not_read_while_it_is_waited_for() -> None:
    shared = Shared(of=50)
    first, second = shared.claims(1), shared.claims(2)
    while first.open_next() is not None:
        pass
    shared.looks_at_contents = 0

    for _ in range(10):
        assert second.open_next() is None

    assert shared.looks_at_contents == 0


class Said(SilentDisplay):
    """A display that shows nothing, and keeps what is said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


class LookingClock(SystemClock):
    """With each look for a free shard a second passes, and takes none."""

    def __init__(self, on_look: Callable[[], object]) -> None:
        self.looks, self._on_look = 0, on_look

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.looks

    async def sleep(self, delay_s: float) -> None:
        if delay_s != LOOK_INTERVAL_S:
            await super().sleep(delay_s)
            return
        self.looks += 1
        self._on_look()
        await asyncio.sleep(0)


def hold(place: Path) -> Callable[[], object]:
    """Hold a shard, as if the parent of this process did; gives what lets it go."""
    place.mkdir(parents=True)
    holding = locked(Disk(), place)
    holding.__enter__()
    note, machine = place / ".owner.json", Machine()
    parent = {"pid": os.getppid(), "process_start": machine.process_start(os.getppid())}
    note.write_text(json.dumps({**json.loads(note.read_text()), **parent}))
    return lambda: holding.__exit__(None, None, None)


@pytest.mark.ci
@pytest.mark.parametrize("seed", range(2))
def test_worker_that_waits_for_a_held_shard_says_so_once_and_does_not_count_it_as_play(
    tmp_path: Path, seed: int
) -> None:
    """In its words, in `status`, and with nothing shown; whichever shard it is, and however long it is held."""
    dice, out = Random(seed), tmp_path / "run"
    number, looks_left = dice.randint(1, 2), [*range(dice.randint(1, 90))]
    let_go, shown, said, display = hold(shard_directory(out, Shard(number, 2))), list[str](), list[str](), Said()
    own = shard_directory(out, Shard(3 - number, 2))

    def look() -> None:
        # Looks pass at once, and may outrun the play of the worker's own shard.
        has_played = (own / "task_manifest.json").exists() and read_owner(Disk(), own) is None
        if said and has_played and looks_left and not looks_left.pop():
            standing, now = known(read_shards_standing(out)), SystemClock().utc_now()
            shown.append(status_text(with_shards(status_json(read_standing(out), now), None, standing, now)))
            let_go()

    clock = LookingClock(look)
    player = Player(display=display, clock=clock, warn=said.append, is_process_ours=False)
    file = written(tmp_path / "small.yaml", asked())
    player.play(set_up(RunRequest(file=file, shard=parse_shard("auto/2"), out=out)))

    assert [line for line in display.lines if "wait" in line] == []
    assert len(said) == 1
    assert f"{number}-of-2 (pid {os.getppid()} " in said[0]
    assert "it waits" in shown[0]
    (verified,) = verify_all(out, bar)
    assert verified.report.ok, verified.report.findings
    accounting = read_run(out).accounting
    assert cast("float", accounting["played_s"]) <= cast("float", accounting["wall_s"]) < clock.looks


class LeapingClock(SystemClock):
    """Its wall time leaps by decades, now and then; what it is for does not."""

    def __init__(self, seed: int) -> None:
        self._dice, self._leap = Random(seed), timedelta()

    def utc_now(self) -> datetime:
        if self._dice.random() < 0.05:
            self._leap = timedelta(days=365 * self._dice.randint(-60, 60))
        return super().utc_now() + self._leap


@pytest.mark.ci
def test_workers_whose_clocks_leap_by_decades_end_as_any_others(tmp_path: Path) -> None:
    for seed in range(2 * SCALE):
        out = tmp_path / str(seed)
        file = written(tmp_path / "small.yaml", asked())
        player = Player(display=Said(), clock=LeapingClock(seed), is_process_ours=False)
        player.play(set_up(RunRequest(file=file, shard=parse_shard("auto/2"), limit=2, out=out)))

        (verified,) = verify_all(out, bar)
        assert verified.report.ok, verified.report.findings
        for leap in (-60, 60):
            now = NOW + timedelta(days=365 * leap)
            assert status_text(status_json(read_standing(out), now))
        assert pages(out, 2)
