"""A run with `limits` stops in good order when it has used so much, says why, and goes on when they are raised."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

import mac_runner
from mac_runner.cli.process import Exit
from mac_runner.clock import Clock, SystemClock
from mac_runner.plan import parse_shard
from mac_runner.reports import status_json, status_text
from mac_runner.results import number, section
from mac_runner.runs import Player, RunRequest, set_up
from mac_runner.runs.report import report_of
from mac_runner.runs.testing import Limits, set_of_one
from mac_runner.scheduler import Progress
from mac_runner.status import Display
from mac_runner.store import read_standing, used_in
from mac_runner.store.testing import open_worker
from mac_runner.types import JsonObject, JsonValue
from mac_runner.viewer.testing import RunSource
from tests.cli.conftest import lab as lab
from tests.cli.lab import Lab, RunDir, echoes, scripted
from tests.kit import StridingClock, written
from tests.workers import play_shards

NOW = SystemClock().utc_now()
CONVERSATIONS = 8


LATENCY_S = 60.0


class ReplyClock(SystemClock):
    """A clock that replies move on, which take `LATENCY_S` each; whoever sleeps for less waits for them."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._moved = asyncio.Event()

    def monotonic_s(self) -> float:
        return self.now_s

    async def sleep(self, delay_s: float) -> None:
        due_s = self.now_s + delay_s
        if delay_s > LATENCY_S / 2:
            self.now_s = due_s
            moved, self._moved = self._moved, asyncio.Event()
            moved.set()
        while self.now_s < due_s:
            await self._moved.wait()
        await asyncio.sleep(0)


def asked(limits: JsonValue = None, *, latency_ms: float = 0, seeds: JsonValue = None) -> JsonObject:
    """Conversations of some turns each, two at a time; with `seeds` a grid of them."""
    prices: JsonObject = {"usd_per_mtok": {"prompt": 2.0, "completion": 8.0}}
    model = scripted("echo", capacity=2, latency_ms=latency_ms) | prices
    grid: JsonObject = {} if seeds is None else {"_grid": {"sweep": {"seed": seeds}}}
    return echoes(model, "small", conversations=CONVERSATIONS, rounds=3) | {"limits": limits} | grid


def play(
    content: JsonObject, out: Path, *, shard: str | None = None, clock: Clock | None = None
) -> mac_runner.runs.Results:
    """Play an experiment as far as it gets."""
    request = RunRequest(
        file=written(out.with_suffix(".yaml"), content), out=out, shard=None if shard is None else parse_shard(shard)
    )
    player = Player(display=Display(), clock=clock or SystemClock(), is_process_ours=False)
    return player.play(set_up(request))


def tokens(directory: Path) -> int:
    """What a run has used so far."""
    accounts = section(used_in(directory), "models")
    counts = [section(section(accounts, name), "tokens") for name in accounts]
    return sum(int(number(each[key]) or 0) for each in counts for key in ("prompt", "completion"))


def transcripts(directory: Path) -> Mapping[str, bytes]:
    return RunDir(path=directory).transcripts


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run without limits; not to be changed."""
    out = tmp_path_factory.mktemp("whole") / "small"
    assert play(asked(), out).stopped_by is None
    return out


def test_run_stops_at_its_limit_and_goes_on_to_the_same_transcripts_when_it_is_raised(
    tmp_path: Path, whole: Path
) -> None:
    out, all_tokens = tmp_path / "small", tokens(whole)
    limit = all_tokens // 3
    stopped = play(asked({"tokens": limit}), out)

    used = tokens(out)
    assert limit <= used < all_tokens
    assert stopped.stopped_by == f"limits.tokens: {used:,} used of {limit:,}"
    assert stopped.is_interrupted
    assert stopped.summary["stopped_by"] == stopped.stopped_by
    status = status_json(read_standing(out), NOW)
    assert (status["state"], status["stopped_by"]) == ("stopped", stopped.stopped_by)
    assert "raise the limit and run the same command" in status_text(status)
    assert f"; stopped by {stopped.stopped_by}." in report_of([out], NOW).state
    assert [each.text for each in RunSource(out).run("").facts if each.name == "stopped by"] == [stopped.stopped_by]
    assert mac_runner.open_run(out).verify()[0].report.ok

    with RunDir(path=out).unchanged():
        again = play(asked({"tokens": limit}), out)
    assert (again.stopped_by, again.summary) == (stopped.stopped_by, {})

    over = play(asked({"tokens": 2 * all_tokens}), out)
    assert (over.stopped_by, over.summary.get("stopped_by")) == (None, None)
    assert transcripts(out) == transcripts(whole)
    assert mac_runner.open_run(out).verify()[0].report.ok


def test_run_of_python_stops_at_its_limit_too_and_its_view_says_so(tmp_path: Path) -> None:
    view = mac_runner.run(asked({"tokens": 100}), out=tmp_path / "small", progress=False)

    assert str(view.stopped_by).startswith("limits.tokens: ")
    assert view.stopped_by == view.standing()["stopped_by"]
    over = mac_runner.run(asked(), out=tmp_path / "small", progress=False)
    assert over.stopped_by is None


def test_what_was_used_after_the_last_checkpoint_counts_after_a_kill(tmp_path: Path, whole: Path) -> None:
    out, limit = tmp_path / "small", tokens(whole) // 3
    play(asked({"tokens": limit}), out)
    used = tokens(out)
    (segment,) = (out / "journal").iterdir()
    frames = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(b"".join(frame for frame in frames if b'"kind":"checkpoint"' not in frame))

    assert play(asked({"tokens": used}), out).stopped_by == f"limits.tokens: {used:,} used of {used:,}"


def test_run_that_ends_at_its_limit_is_complete(tmp_path: Path, whole: Path) -> None:
    assert play(asked({"tokens": tokens(whole)}), tmp_path / "small").stopped_by is None
    # It is opened, because a setting has changed, and nothing is left to play.
    assert play(asked({"tokens": 1}), tmp_path / "small").stopped_by is None


def test_limit_of_dollars_counts_at_the_prices_of_the_models(tmp_path: Path, whole: Path) -> None:
    account = section(section(section(used_in(whole), "models"), "m"), "tokens")
    usd = (2 * float(str(account["prompt"])) + 8 * float(str(account["completion"]))) / 1_000_000

    assert str(play(asked({"usd": 0.5 * usd}), tmp_path / "half").stopped_by).startswith("limits.usd: ")
    assert play(asked({"usd": 1.01 * usd}), tmp_path / "more").stopped_by is None


def test_limit_of_hours_counts_the_time_at_play_of_all_sessions(tmp_path: Path, whole: Path) -> None:
    out = tmp_path / "small"
    first, second, third = (
        play(asked({"hours": hours}, latency_ms=1000 * LATENCY_S), out, clock=ReplyClock())
        for hours in (0.05, 0.05, 1000)
    )

    assert str(first.stopped_by).startswith("limits.hours: ")
    assert (second.stopped_by, third.stopped_by) == (first.stopped_by, None)
    assert transcripts(out) == transcripts(whole)


def test_hours_of_a_grid_count_its_sessions_and_those_of_its_workers_once_each(tmp_path: Path) -> None:
    out = tmp_path / "small"

    def played(hours: float, shard: str | None = None) -> tuple[str | None, float]:
        content = asked({"hours": hours}, latency_ms=1000 * LATENCY_S, seeds=[1, 2])
        stopped_by = play(content, out, shard=shard, clock=ReplyClock()).stopped_by
        return stopped_by, number(used_in(out)["played_s"]) or 0.0

    whole, of_whole_s = played(0.05)
    worker, with_worker_s = played(0.1, "auto/2")
    again = played(0.1, "auto/2")

    assert (str(whole)[:12], str(worker)[:12]) == ("limits.hours", "limits.hours")
    assert 0.05 * 3600 <= of_whole_s < 0.1 * 3600 <= with_worker_s < 0.15 * 3600
    assert again == (worker, with_worker_s)


def test_all_combinations_of_a_grid_have_one_limit_together(tmp_path: Path) -> None:
    out, plain = tmp_path / "small", tmp_path / "plain"
    seeds: JsonValue = [1, 2, 3]
    play(asked(seeds=seeds), plain)
    limit = tokens(plain) // 2
    stopped = play(asked({"tokens": limit}, seeds=seeds), out)

    assert limit <= tokens(out) < tokens(plain)
    assert stopped.stopped_by == f"limits.tokens: {tokens(out):,} used of {limit:,}"
    assert stopped.summary["stopped_by"] == stopped.stopped_by
    assert status_json(read_standing(out), NOW)["stopped_by"] == stopped.stopped_by
    alone = set_of_one(set_up(RunRequest(file=out.with_suffix(".yaml"), out=out)).setups[2])
    assert Player(display=Display()).play(alone).stopped_by == stopped.stopped_by

    assert play(asked({"tokens": 2 * tokens(plain)}, seeds=seeds), out).stopped_by is None
    for seed in (1, 2, 3):
        assert transcripts(out / f"seed-{seed}") == transcripts(plain / f"seed-{seed}")


def test_grid_is_stopped_by_its_limit_also_where_all_that_has_begun_has_ended(tmp_path: Path) -> None:
    out, seeds = tmp_path / "small", [0, 1]
    play(asked(seeds=[*seeds]), tmp_path / "plain")
    limit = tokens(tmp_path / "plain")
    over = play(asked({"tokens": limit}, seeds=[*seeds]), out)
    assert (over.stopped_by, over.summary.get("stopped_by")) == (None, None)

    (out / "experiments" / "seed-1.yaml").unlink()
    status = status_json(read_standing(out), NOW)

    assert (status["complete_combinations"], status["not_begun_combinations"]) == (1, 1)
    assert (status["state"], status["stopped_by"]) == ("stopped", f"limits.tokens: {limit:,} used of {limit:,}")


def test_worker_stops_at_what_all_workers_have_used(tmp_path: Path, whole: Path) -> None:
    out = play_shards(asked(), tmp_path / "small", 3, 1)
    before = tokens(out)
    limit = before + 1
    left = play(asked({"tokens": limit}), out, shard="auto/3")

    assert 0 < before < tokens(out) < tokens(whole)
    assert left.stopped_by == f"limits.tokens: {tokens(out):,} used of {limit:,}"
    assert play(asked({"tokens": limit}), out, shard="auto/3").stopped_by == left.stopped_by
    assert play(asked({"tokens": 10**9}), out, shard="auto/3").stopped_by is None
    assert transcripts(out) == transcripts(whole)


def test_worker_stops_when_others_have_used_the_rest_meanwhile(tmp_path: Path) -> None:
    out = play_shards(asked(), tmp_path / "small", 3, 1)
    file = written(tmp_path / "small.yaml", asked({"tokens": 10_000}))
    limits = Limits(set_up(RunRequest(file=file, out=out, shard=parse_shard("auto/3"))), StridingClock(1.0))
    before = tokens(out)
    with open_worker(out, clock=SystemClock()) as other:
        other.checkpoint({"models": {"m": {"tokens": {"prompt": 10_000, "cached": 0, "completion": 0}}}})
    said: list[str] = []

    begun_at = limits.reached
    asyncio.run(limits.watch(Progress(planned=0), asyncio.Event(), said.append))

    assert (begun_at, limits.reached) == (None, f"limits.tokens: {10_000 + before:,} used of 10,000")
    assert said == [f"{limits.reached}; stopping: waiting for the requests in flight"]


@pytest.mark.ci
def test_command_ends_resumable_at_a_limit_and_says_how_to_go_on(lab: Lab) -> None:
    lab.kill_held(7, lab.write(asked()))
    limit = tokens(lab.run_dir().path)
    file = lab.write(asked({"tokens": limit}))

    how = "raise the limit and run the same command again to go on"
    lab.run(file).ends(Exit.INTERRUPTED, f"limits.tokens: {limit:,} used of {limit:,}: nothing was played; {how}")
    file = lab.write(asked({"tokens": limit + 50}))
    lab.run(file, "--dry-run").done(f"limits         tokens {limit + 50:,}")
    lab.run(file).ends(Exit.INTERRUPTED, "limits.tokens: ", how, "of 8 conversations have ended")
    lab.write(asked({}))
    assert "\nlimits  " not in lab.run(file, "--dry-run").stdout
    lab.run(file).done()
    lab.verified(lab.run_dir().path)
