"""A run that workers share: who gets which shard, whatever dies, and it reads like any run that is under way."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final, cast

import pytest
from msgspec import structs, to_builtins

import mac_runner
from mac_runner.cli.look import Show
from mac_runner.clock import SystemClock
from mac_runner.errors import MacRunnerError, RunLockedError
from mac_runner.plan import Shard, parse_shard
from mac_runner.reports import status_json, status_text
from mac_runner.runs import Player, RunRequest, set_up
from mac_runner.runs.testing import (
    LOOK_INTERVAL_S,
    Supply,
    recorded_plan,
    repair_all,
    report_of,
    summary_of,
    verify_all,
)
from mac_runner.status import Display
from mac_runner.store import (
    Disk,
    has_run,
    merge_runs,
    read_run,
    read_standing,
)
from mac_runner.store.testing import Layout, Machine, locked, read_owner
from mac_runner.types import JsonObject
from mac_runner.viewer.testing import PublishRequest, RunSource, publish
from tests.cli.conftest import lab as lab
from tests.cli.lab import Lab, experiment, scripted
from tests.faults.tier import SCALE
from tests.kit import written
from tests.patience import wait_for
from tests.viewer.served import served
from tests.viewer.test_live import Page
from tests.workers import play_shards

if TYPE_CHECKING:
    from mac_runner.runs import Setup
    from mac_runner.runs.testing import OpenRun

NOW = datetime(2026, 1, 1, tzinfo=UTC)
OF = 3
CONVERSATIONS = 7


def asked() -> JsonObject:
    """The experiment."""
    return experiment(conversations=CONVERSATIONS, models={"m": scripted()})


def finish(directory: Path) -> None:
    """Play what is left as a worker does, and end the run."""
    mac_runner.run(asked(), out=directory, shard=f"auto/{OF}", progress=False)


def lease(directory: Path, shard: Shard) -> Path:
    """Where the holder of a shard leaves its note."""
    return Layout(directory=directory, experiment_name="small").lease_directory(shard)


def kill_in_shard(directory: Path, number: int) -> None:
    """Leave a shard that was played as one whose worker was killed in its second conversation."""
    shard = f'"shard":[{number},{OF}]'.encode()
    (path,) = (path for path in (directory / "journal").iterdir() if shard in path.read_bytes())
    frames = path.read_bytes().splitlines(keepends=True)
    first = next(place for place, frame in enumerate(frames) if b'"kind":"done"' in frame)
    kept = [frame for frame in frames[:first] if b'"kind":"done"' not in frame]
    path.write_bytes(b"".join([*kept, frames[first]]))
    ended = json.loads(frames[first][frames[first].index(b"{") :])["id"]
    for index in range(number - 1, CONVERSATIONS, OF):
        if (task_id := f"small-{index:06d}") != ended:
            (directory / "transcripts" / f"{task_id}.json").unlink()


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose shards have all been played, and that no worker has ended; not to be changed."""
    return play_shards(asked(), tmp_path_factory.mktemp("shards") / "small", OF, *range(1, OF + 1))


@pytest.fixture
def own(tmp_path: Path, played: Path) -> Path:
    """The same in a place of its own."""
    return Path(shutil.copytree(played, tmp_path / "small"))


def bar(_text: str, _steps: int) -> AbstractContextManager[Callable[[], object]]:
    return nullcontext(lambda: None)


def printed(call: Callable[[], object]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        call()
    return out.getvalue()


def tables(directory: Path) -> object:
    view = mac_runner.open_run(directory)
    return view.schema, view.conversations().to_pylist(), view.conversation(3).view()


def files(directory: Path) -> Mapping[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def exported(directory: Path, to: Path) -> object:
    mac_runner.export(directory, to, format="jsonl")
    return files(to)


def published(directory: Path, to: Path) -> object:
    publish(PublishRequest(directory=directory, out=to, sample=1))
    # The head of a run is in it packed: `pages` has it.
    return {name: data for name, data in files(to).items() if not name.endswith("/run.js")}


def pages(directory: Path, conversations: int = CONVERSATIONS) -> object:
    source = RunSource(directory)
    head = source.run("")
    asked = [
        structs.replace(head, facts=tuple(fact for fact in head.facts if fact.name not in PROCESS_FACTS)),
        source.index("", 0, None),
        source.flow("", ""),
        source.engines(""),
        *(source.conversation("", str(number), "") for number in range(conversations)),
        source.turn("", "1", source.conversation("", "1", "").turns[5].key, ""),
    ]
    return [to_builtins(page) for page in asked]


PROCESSES: Final[Mapping[str, None]] = dict.fromkeys(("session", "sessions", "limit", "eta_s", "wall_s", "shards"))
"""What tells of the processes that played or repaired a run."""
PROCESS_FACTS: Final = frozenset({"wall time", "sessions", "turns per second", "to go"})

READERS: Final[Mapping[str, Callable[[Path, Path], object]]] = {
    "rows": lambda run, _: [*read_run(run).rows_in_task_order()],
    "plan": lambda run, _: read_run(run).planned(),
    "counts": lambda run, _: read_run(run).counts,
    "summary": lambda run, _: {**summary_of(read_run(run)), **PROCESSES},
    "status": lambda run, _: {**status_json(read_standing(run), NOW), **PROCESSES},
    "list": lambda run, _: printed(Show(directory=run).work),
    "show": lambda run, _: printed(Show(directory=run, game="3", turns=True).work),
    "tables": lambda run, _: tables(run),
    "export": exported,
    "report": lambda run, _: report_of([run], NOW).state,
    "pages": lambda run, _: pages(run),
    "publication": published,
}


@pytest.mark.ci
def test_every_reader_takes_what_workers_have_left_as_the_run_that_a_repair_makes_of_it(
    own: Path, played: Path, tmp_path: Path
) -> None:
    for case, ended in (("played", [*range(CONVERSATIONS)]), ("killed", [0, 1, 2, 3, 5, 6])):
        if case == "killed":
            shutil.rmtree(own)
            shutil.copytree(played, own)
            kill_in_shard(own, 2)
        before = {name: read(own, tmp_path / f"{name} before {case}") for name, read in READERS.items()}
        assert [row["index"] for row in read_run(own).rows_in_task_order()] == ended
        assert [*repair_all(own, SystemClock())]
        for name, read in READERS.items():
            assert before[name] == read(own, tmp_path / f"{name} after {case}"), (case, name)


@pytest.mark.ci
def test_grid_that_workers_have_left_reads_like_the_grid_that_its_end_makes(tmp_path: Path) -> None:
    varied: JsonObject = {**asked(), "_grid": {"sweep": {"game.lobby": ["classic-7", "classic-8"]}}}
    grid = play_shards(varied, tmp_path / "small", 2, 1, 2)
    readers = {"export": exported, "state": state_of_grid, "engines": engines_of_grid}
    before = {name: read(grid, tmp_path / f"{name} before") for name, read in readers.items()}

    mac_runner.run(varied, out=grid, shard="auto/2", progress=False)

    for name, read in readers.items():
        assert before[name] == read(grid, tmp_path / f"{name} after"), name


def state_of_grid(grid: Path, _to: Path) -> object:
    """The status of a grid, without the session in which it was ended."""
    return {**status_json(read_standing(grid), NOW), **PROCESSES}


def engines_of_grid(grid: Path, _to: Path) -> object:
    report = report_of([grid], NOW)
    return report.sections, report.state


@pytest.mark.ci
def test_worker_plays_again_what_is_lost_and_ends_the_run(own: Path) -> None:
    for path in (*own.glob("transcripts/*4.json"), *own.glob("transcripts/*6.json")):
        path.unlink()
    (own / "transcripts/small-000005.json").write_bytes(b"{}")

    finish(own)

    (verified,) = verify_all(own, bar)
    assert (verified.report.findings, verified.report.acknowledged) == ((), CONVERSATIONS)
    assert read_run(own).counts.done == CONVERSATIONS
    assert not (own / "leases.json").exists()


@pytest.mark.ci
def test_whole_run_is_for_one_process_and_its_shards_for_workers_and_each_is_named_to_the_other(own: Path) -> None:
    kill_in_shard(own, 2)
    file = written(own.parent / "small.yaml", asked())
    refused: list[Callable[[], object]] = [
        lambda: mac_runner.run(asked(), out=own, progress=False),
        lambda: [*repair_all(own, SystemClock())],
        lambda: merge_runs(own.parent / "whole", [own], summarise=summary_of, plan=recorded_plan, clock=SystemClock()),
    ]
    let_go = hold(lease(own, Shard(2, OF)))
    for call in refused:
        with pytest.raises(RunLockedError, match=rf" is being run.*: pid {os.getppid()} "):
            call()
    standing = read_standing(own)
    assert (standing.holder.is_alive, RunSource(own).run("").is_live) == (True, True)
    (verified,) = verify_all(own, bar)
    assert any(str(os.getppid()) in note for note in verified.report.notes)
    let_go()

    let_go, said = hold(own), list[str]()

    clock = LookingClock(lambda: let_go() if said else None)
    player = Player(display=Said(), clock=clock, warn=said.append, is_process_ours=False)
    player.play(set_up(RunRequest(file=file, shard=parse_shard(f"auto/{OF}"), out=own)))

    assert f"2-of-3 (pid {os.getppid()} " in said[0]
    assert read_run(own).counts.done == CONVERSATIONS
    assert RunSource(own).run("").state == "complete"


@pytest.mark.ci
def test_list_of_a_page_grows_in_place_as_shards_are_claimed_and_the_run_ends(tmp_path: Path) -> None:
    shared = tmp_path / "small"
    source = RunSource(shared, is_awaited=True)
    with pytest.raises(MacRunnerError, match="not begun"):
        source.run("")

    seen: list[int] = []
    for number in (2, 3):
        play_shards(asked(), shared, OF, number)
        seen.append(source.pulse("").rows or 0)
    finish(shared)
    seen.append(source.pulse("").rows or 0)

    assert seen == [2, 4, 7]
    assert source.pulse("").version == 0, "nothing was read again"
    assert sorted(text.task_id for text in source.texts("")) == [f"small-{index:06d}" for index in range(7)]


@pytest.mark.ci
def test_open_page_follows_workers_that_claim_shards_die_and_end_the_run(lab: Lab) -> None:
    # Too slow to end a conversation before the page has seen one begin.
    slow = experiment(conversations=6, models={"m": scripted(latency_ms=1_000)})
    file, directory, page = lab.write(slow), lab.path / "shared", Page()
    command = (file, "--shard", "auto/3", "--out", "shared")
    first = lab.start(*command)
    wait_for(lambda: has_run(directory), "a run")
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
    """The shards of a run: who holds which, which are complete, and which have the note of a dead worker."""

    of: int
    held: dict[str, int] = field(default_factory=dict)
    complete: set[str] = field(default_factory=set)
    left_behind: set[str] = field(default_factory=set)
    looks_at_contents: int = 0

    def claims(self, worker: int) -> Supply:
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
        return Supply(
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


class Said(Display):
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
    """Hold a shard or a run, as if the parent of this process did; gives what lets it go."""
    place.mkdir(parents=True, exist_ok=True)
    holding = locked(Disk(), place)
    holding.__enter__()
    note, machine = place / ".owner.json", Machine()
    parent = {"pid": os.getppid(), "process_start": machine.process_start(os.getppid())}
    note.write_text(json.dumps({**json.loads(note.read_text()), **parent}))

    def let_go() -> None:
        note.unlink(missing_ok=True)
        holding.__exit__(None, None, None)

    return let_go


@pytest.mark.ci
@pytest.mark.parametrize("seed", range(2))
def test_worker_that_waits_for_a_held_shard_says_so_once_and_does_not_count_it_as_play(
    tmp_path: Path, seed: int
) -> None:
    """In its words, in `status`, and with nothing shown; whichever shard it is, and however long it is held."""
    dice, out = Random(seed), tmp_path / "run"
    number, looks_left = dice.randint(1, 2), [*range(dice.randint(1, 90))]
    let_go, shown, said, display = hold(lease(out, Shard(number, 2))), list[str](), list[str](), Said()
    own = lease(out, Shard(3 - number, 2))

    def look() -> None:
        # Looks pass at once, and may outrun the play of the worker's own shard.
        has_played = own.exists() and read_owner(Disk(), own) is None
        if said and has_played and looks_left and not looks_left.pop():
            now = SystemClock().utc_now()
            shown.append(status_text(status_json(read_standing(out), now)))
            let_go()

    clock = LookingClock(look)
    player = Player(display=display, clock=clock, warn=said.append, is_process_ours=False)
    file = written(tmp_path / "small.yaml", asked())
    player.play(set_up(RunRequest(file=file, shard=parse_shard("auto/2"), out=out)))

    assert [line for line in display.lines if "wait" in line] == []
    assert len(said) == 1
    assert f"{number}-of-2 (pid {os.getppid()} " in said[0]
    assert "waits for a shard" in shown[0]
    (verified,) = verify_all(out, bar)
    assert verified.report.ok, verified.report.findings
    accounting = read_run(out).accounting
    assert cast("float", accounting["played_s"]) <= cast("float", accounting["wall_s"]) < clock.looks


@pytest.mark.ci
def test_worker_that_waits_for_the_end_of_the_run_says_who_writes_it_and_gives_no_advice(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, said, let_go = written(own.parent / "small.yaml", asked()), list[str](), hold(own)
    monkeypatch.setattr("mac_runner.runs.play.pause", lambda _delay_s: let_go())

    player = Player(display=Said(), warn=said.append, is_process_ours=False)
    player.play(set_up(RunRequest(file=file, shard=parse_shard(f"auto/{OF}"), out=own)))

    (line,) = said
    assert line.startswith(f"waiting for the end of the run: {own} is being run by another process: pid {os.getppid()}")
    assert "--out" not in line
    assert read_run(own).counts.done == CONVERSATIONS


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
