"""Workers of one run directory: what a session sees under a lease, and whom notes keep apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mac_runner.errors import RunLockedError
from mac_runner.plan import Shard
from mac_runner.store import Disk, GridRecord, Invocation, LeasesRecord, System, grid_entries, open_grid, read_leases
from mac_runner.store.testing import (
    LEASES,
    DoneRow,
    Layout,
    Lease,
    RecordedRow,
    RunLock,
    begin_leases,
    checkpoint_frame,
    death_frame,
    done_frame,
    end_leases,
    make_claimable,
    read_state,
    replies,
    reply_frame,
    retry_frame,
    rivals,
    session_frame,
)
from tests.store import player
from tests.store.conftest import StillClock, files
from tests.store.test_journal import row
from tests.tiers import some

OWNER = ".owner.json"
LEASE_DIRECTORIES = "leases"
TASKS = 7
OF = 3
TASK_IDS = [task_id for task_id, _ in player.shared_plan(TASKS).ids()]
PLACE = Path("/nowhere")


def lease_on(shard: Shard, samples: int = 1, events: Path = PLACE / "events.jsonl") -> Lease:
    return Lease(shard=shard, samples=samples, events=events)


@dataclass(frozen=True, kw_only=True)
class Played:
    """A session: what was claimed for it, whether its first frame is there, and its records of tasks."""

    shard: Shard | None
    has_head: bool
    records: list[tuple[int, str, int]]

    def encoded(self, number: int, samples: int) -> bytes:
        """Its segment. Under a lease it has records of its shard alone."""
        head = session_frame(number, started_at="now", shard=self.shard)
        held = (one for one in self.records if self.shard is None or self.shard.holds(one[0] // samples))
        frames = [head if self.has_head else head.replace(b"now", b"new"), *(self._frame(*one) for one in held)]
        return b"".join([*frames, checkpoint_frame(number, elapsed_s=1.0, accounting={})])

    def _frame(self, index: int, kind: str, n: int) -> bytes:
        task_id = TASK_IDS[index]
        ending = {**row(task_id, "failed" if n else "finished"), "index": index, "size_bytes": n}
        match kind:
            case "done":
                return done_frame(ending)
            case "retry":
                return retry_frame(ending)
            case "death":
                return death_frame(task_id, f"{n}/Ann/0/0")
            case _:
                (task,) = player.shared_plan(TASKS).those([task_id].__contains__)
                return reply_frame(task_id, n, player.answers(task, n + 1)[n])


class Segments(Disk):
    """A disk with the segments of a journal."""

    def __init__(self, segments: Sequence[bytes]) -> None:
        super().__init__()
        self.segments = {f"{number:06d}.jsonl": data for number, data in enumerate(segments, start=1)}

    def names(self, directory: Path) -> list[str]:
        return [*self.segments]

    def chunks(self, path: Path, start: int = 0, size_bytes: int | None = None) -> Iterator[bytes]:
        yield self.segments[path.name][start:]


shards = st.one_of(
    st.none(),
    st.builds(Shard, st.integers(1, OF), st.just(OF)),
    st.builds(Shard, st.integers(1, OF - 1), st.just(OF - 1)),
)
task_records = st.tuples(
    st.integers(0, TASKS - 1), st.sampled_from(["reply", "done", "retry", "death"]), st.integers(0, 2)
)
played = st.builds(
    Played, shard=shards, has_head=st.integers(0, 4).map(bool), records=st.lists(task_records, max_size=12)
)


@given(st.lists(played, max_size=5), st.integers(1, 2))
def test_state_under_a_lease_is_that_of_the_run_as_far_as_its_shard_goes(sessions: list[Played], samples: int) -> None:
    """Whoever played: the whole run, this shard, others, another number of them; also where a first frame is lost."""
    disk = Segments([one.encoded(number, samples) for number, one in enumerate(sessions, start=1)])
    layout = Layout(directory=PLACE, experiment_name=player.NAME)
    whole, said = read_state(disk, layout), replies(disk, layout, lambda _task_id: True)
    rows = list(whole.rows(disk, layout))
    for shard in (Shard(number, OF) for number in range(1, OF + 1)):
        lease = lease_on(shard, samples)
        mine = Layout(directory=PLACE, experiment_name=player.NAME, lease=lease)
        state = read_state(disk, mine)
        assert state.endings == {key: value for key, value in whole.endings.items() if lease.holds(key)}
        assert state.attempts == {key: value for key, value in whole.attempts.items() if lease.holds(key)}
        assert state.deaths == {key: value for key, value in whole.deaths.items() if lease.holds(key)}
        assert [*state.rows(disk, mine)] == [each for each in rows if lease.holds(str(each["task_id"]))]
        assert replies(disk, mine, lease.holds) == {key: value for key, value in said.items() if lease.holds(key)}


def test_rows_of_other_shards_are_not_taken_apart(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    player.played(run_dir, player.shared_plan(TASKS))
    taken_apart: set[str] = set()
    plain: Callable[[DoneRow], RecordedRow] = vars(DoneRow)["parsed"].fget

    def parsed(found: DoneRow) -> RecordedRow:
        taken_apart.add(found.task_id)
        return plain(found)

    monkeypatch.setattr(DoneRow, "parsed", property(parsed))
    lease = lease_on(Shard(1, OF))
    state = read_state(Disk(), Layout(directory=run_dir, experiment_name=player.NAME, lease=lease))

    assert taken_apart == state.endings.keys() == {*filter(lease.holds, TASK_IDS)}


def test_conversations_beyond_those_asked_for_now_are_as_whole_as_they_were(run_dir: Path) -> None:
    """More were asked for before."""
    player.played(run_dir, player.shared_plan(TASKS))
    shard, before = Shard(1, OF), files(run_dir / "transcripts")

    with player.open_toy(
        run_dir, player.shared_plan(2).part(shard), lease=lease_on(shard, events=run_dir / "events.jsonl")
    ) as run:
        assert run.repairs.in_words() == []

    assert files(run_dir / "transcripts") == before


def leased(layout: Layout, tasks: int, seed: int = 1) -> LeasesRecord:
    """Shards of so many conversations that workers can claim."""
    record = LeasesRecord(of=OF, experiment_name=player.NAME, identity=f"of seed {seed}", conversations=tasks)
    begin_leases(
        Disk(),
        record,
        Invocation(layout=layout, resolved=player.resolved(seed), tasks=player.shared_plan(tasks)),
        at="now",
    )
    return record


def test_fewer_conversations_end_no_leases_of_more(run_dir: Path) -> None:
    """Neither of a run nor of a combination: the others are still planned, and there to be claimed."""
    asked = GridRecord(name="grid", profile="p", asked={}, entries=grid_entries([("seed-1", "ab12", {"seed": 1})]))
    open_grid(run_dir / "grid", asked=asked, clock=StillClock()).close()
    for grid, directory in ((None, run_dir / "run"), (run_dir / "grid", run_dir / "grid/seed-1")):
        layout = Layout(directory=directory, experiment_name=player.NAME, grid=grid)
        record = leased(layout, TASKS)

        with player.open_toy(directory, player.shared_plan(2), grid=grid) as run:
            player.play(run)

        assert (run.counts.planned, run.counts.done) == (TASKS, 2)
        assert read_leases(Disk(), layout) == record


def test_leases_of_an_experiment_that_was_never_played_hinder_no_other(run_dir: Path) -> None:
    layout = Layout(directory=run_dir, experiment_name=player.NAME)
    leased(layout, TASKS, seed=1)

    player.begun(player.open_toy(run_dir, player.shared_plan(TASKS), config=player.resolved(2))).close()

    assert leased(layout, TASKS, seed=2) == read_leases(Disk(), layout)


class AbandonedError(BaseException):
    """The rest of this play is not wanted."""


@dataclass(eq=False)
class Actor:
    """A process that takes one step at a time on a disk, and says what each came to."""

    act: Callable[[Actor, Disk], None]
    is_whole: bool = False
    """Whether it wants the whole run."""
    is_at_work: bool = False
    has_worked: bool = False
    is_over: bool = False
    log: list[object] = field(default_factory=list)
    _go: SimpleQueue[bool] = field(default_factory=SimpleQueue)
    _came: SimpleQueue[None] = field(default_factory=SimpleQueue)

    def begin(self) -> None:
        """Go up to the first step."""
        Thread(target=self._run, daemon=True).start()
        self._came.get()

    def step(self) -> None:
        """Take one step, and go up to the next."""
        self._go.put(True)
        self._came.get()

    def leave(self) -> None:
        """Take no more steps."""
        while not self.is_over:
            self._go.put(False)
            self._came.get()

    def pause(self) -> None:
        """Wait for the next step to be asked for."""
        self._came.put(None)
        if not self._go.get():
            raise AbandonedError

    def work(self) -> None:
        """Be at work for a step."""
        self.is_at_work = self.has_worked = True
        self.pause()
        self.log.append("worked")

    def _run(self) -> None:
        try:
            self.pause()
            self.log.append("came")
            self.act(self, Disk(Stepped(self)))
        except RunLockedError:
            self.log.append("kept out")
        except AbandonedError:
            pass
        finally:
            self.is_at_work, self.is_over = False, True
            self._came.put(None)


class Stepped(System):
    """The operating system, of which a change of a note or of `leases.json` is a step, and each look at others'."""

    def __init__(self, actor: Actor) -> None:
        self.actor = actor
        self.own: Path | None = None

    def fsync(self, descriptor: int) -> None:
        """Nothing is cut off here."""

    def fsync_directory(self, path: Path) -> None:
        """Nothing is cut off here."""


def _stepped(call: str) -> Callable[..., object]:
    def stepped(system: Stepped, *paths: Path) -> object:
        path = paths[-1]
        if path.name not in {OWNER, LEASES, LEASE_DIRECTORIES} or (call == "exists" and path == system.own):
            return getattr(System, call)(system, *paths)
        if call == "replace":
            system.own = path
        system.actor.pause()
        system.actor.log.append((call, path.name))
        found = getattr(System, call)(system, *paths)
        system.actor.log.append(repr(found))
        return found

    return stepped


for _call in ("exists", "names", "replace", "link", "unlink"):
    setattr(Stepped, _call, _stepped(_call))


def plain(directory: Path, *, ends: bool = False) -> Actor:
    """A process that has the whole run, and that may end the leases."""

    def act(actor: Actor, disk: Disk) -> None:
        layout = Layout(directory=directory, experiment_name=player.NAME)
        lock = RunLock(disk, directory, rivals=lambda: rivals(disk, layout))
        try:
            actor.work()
            if ends:
                end_leases(disk, layout)
            actor.is_at_work = False
            lock.sign_off()
        finally:
            lock.release()

    return Actor(act, is_whole=True)


def worker(directory: Path, number: int, *, begins: bool = True) -> Actor:
    """A worker that claims a shard; one that does not begin the leases has found them long ago."""
    lease = lease_on(Shard(number, 2))

    def act(actor: Actor, disk: Disk) -> None:
        if begins:
            disk.publish_once(directory / LEASES, b"{}")
        layout = Layout(directory=directory, experiment_name=player.NAME, lease=lease)
        make_claimable(disk, layout.place)
        lock = RunLock(disk, layout.place, rivals=lambda: rivals(disk, layout))
        try:
            actor.work()
            actor.is_at_work = False
            lock.sign_off()
        finally:
            lock.release()

    return Actor(act)


def begun(place: Path) -> Path:
    """A run that has leases already."""
    (place / LEASES).touch()
    return place


CASTS: dict[str, Callable[[Path], list[Actor]]] = {
    "one that is late, after the end": lambda place: [
        plain(place, ends=True),
        plain(place),
        worker(begun(place), 1, begins=False),
    ],
    "two workers": lambda place: [plain(place), *(worker(begun(place), number, begins=False) for number in (1, 2))],
}


def check_every_interleaving(cast: Callable[[Path], list[Actor]]) -> None:
    """No process with the whole run is at work beside another one, and each of them is in some interleaving."""
    seen, worked, left = set[str](), set[int](), [list[int]()]
    actors: list[Actor] = []
    while left:
        schedule = left.pop()
        with TemporaryDirectory() as directory, ExitStack() as cleanup:
            place = Path(directory)
            actors = cast(place)
            for actor in actors:
                actor.begin()
                cleanup.callback(actor.leave)
            for number in schedule:
                actors[number].step()
            while True:
                at_work = [number for number, actor in enumerate(actors) if actor.is_at_work]
                assert len(at_work) < 2 or not any(actors[number].is_whole for number in at_work), schedule
                worked |= {*at_work}
                notes = sorted(place.rglob("*.json"))
                state = repr(([actor.log for actor in actors], notes)).replace(directory, "")
                going = [number for number, actor in enumerate(actors) if not actor.is_over]
                if state in seen or not going:
                    break
                seen.add(state)
                left += [[*schedule, number] for number in going[1:]]
                schedule = [*schedule, going[0]]
                actors[going[0]].step()
    assert worked == {*range(len(actors))}


def test_a_process_with_the_whole_run_and_a_worker_are_never_at_work_together() -> None:
    """Every interleaving of their steps."""
    check_every_interleaving(lambda place: [plain(place), worker(place, 1)])


@pytest.mark.ci
@pytest.mark.parametrize("cast", some(2, CASTS))
def test_processes_with_the_whole_run_and_workers_are_never_at_work_together(cast: str) -> None:
    check_every_interleaving(CASTS[cast])
