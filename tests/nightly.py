"""The large figures: what the tests show in small, over a night.

    python -m tests.nightly --minutes 30

Each figure is played by the very functions that the tests use, with other seeds or more of them. The minutes are
shared out; a figure that does not get through in its share says how far it got. The report at the end has a line for
each: what was promised, how much of it was seen, and whether it held. Whatever did not hold is told with the command
that shows it again, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from multiprocessing import get_context

from tests.sim.seeds import played

SHOWN_MAX = 5
KILLED_RUNS = "tests/faults/test_kills.py::test_run_killed_again_and_again_ends_like_one_that_was_not"
KILLED_GRIDS = "tests/faults/test_kills.py::test_grid_killed_again_and_again_ends_like_one_that_was_not"
KILLED_WORKERS = "tests/faults/test_kills.py::test_workers_killed_and_stopped_at_random_leave_what_one_run_leaves"
PAUSED_WORKERS = "tests/faults/test_kills.py::test_worker_stopped_for_longer_than_its_lease_goes_on_and_doubles_nothing"
ANSWERS = "tests/backends/test_contract.py::test_whatever_is_answered_with_200_fails_conversations_at_most"
REFUSALS = "tests/backends/test_refusals.py::test_words_mean_the_same_in_every_body_whatever_their_numbers"
SURROUNDINGS = "tests/cli/test_servers.py::test_settings_that_an_environment_has_for_other_clients_change_nothing"
ODD_GAMES = "tests/scheduler/test_run.py::test_whatever_a_game_raises_or_gives_fails_its_conversations_alone"
CLOCKS = "tests/runs/test_workers.py::test_workers_whose_clocks_leap_by_decades_end_as_any_others"
LANES = "tests/planning/test_loop.py::test_a_lane_answers_when_one_does_that_takes_every_step"

WHAT = {
    "storm": "storms: invariants after each event, each conversation once, settled in 10 min",
    "storm-twice": "storms played twice: the same digest",
    "world": "worlds: the pure scheduler, stopped at any moment",
    "cancellation": "cancellations: each turn of the loop, in courses of their own",
    "crash": "power cuts before each operation of random runs, about 700 disks each",
    KILLED_RUNS: "kills at random changes of the disk and replies: nothing lost, nothing doubled",
    KILLED_GRIDS: "kills of a grid that is played as a whole and by workers: what an undisturbed one leaves",
    KILLED_WORKERS: "workers of one directory, killed and stopped: what one run leaves",
    PAUSED_WORKERS: "workers stopped for longer than their leases: what one run leaves",
    "history": "random histories of runs, workers, grids, kills, steals, retries, merges and power cuts",
    ANSWERS: "odd answers with status 200 over each protocol: conversations fail at most",
    REFUSALS: "refusals in the words of each server, with other numbers: the same meaning in every body",
    SURROUNDINGS: "settings of proxies, hosts and certificates for other clients: they change nothing",
    ODD_GAMES: "games that raise or give what they may not: their conversations fail alone",
    CLOCKS: "workers whose clocks leap by decades: as any others",
    LANES: "worlds of a modelled lane: equal to one that takes every step",
    "tests/fleet/test_stress.py": "seconds of 1,000 requests a minute, an engine killed, one stopped: all answered",
    "tests/fleet/test_storms.py": "storms of a simulated fleet: promises after each event, every turn answered",
    "tests/cli/test_fleet_run.py": "kills of real lanes in one run: transcripts equal to those of a run on one lane",
    "tests/test_examples.py": "shipped games, killed and resumed: equal to an undisturbed run",
    "tests/cli/test_fork.py": "control forks at random turns of each environment: what the parent said",
    "tests/environments/town_of_salem/test_planted_leaks.py": "leaks planted in prompts of games: each is found",
    "tests/config/test_words.py": "keys of an experiment file with wrong values of every kind: refused in our words",
    "tests/attacks/test_reading_costs.py": "what a model writes, behind every beginning: read in a few passes",
    "tests/environments/adapters/test_kills.py": "games of other libraries, killed and resumed: as if undisturbed",
    "tests/figures/test_coverage.py": "simulated studies of games and discussions: 95 % intervals cover 93 to 97 %",
    "hostile": "runs against a hostile server: an orderly end, no key told, whole once it is well",
    "mutated-run": "run directories with a damaged file: no verb fails, nothing is silently other",
    "altered-transcript": "altered transcripts: found, marked or refused by every verb, and published by none",
    "mutated-file": "altered experiment files: taken or refused by name, nothing written",
    "address": "addresses with a secret in any place of a command or a file: no part of it comes out",
    "canary": "games and discussions of marked words: no prompt of a seat holds what it may not know",
}
"""What holds, by the kind of play or the test that shows it."""


@dataclass(frozen=True, slots=True)
class Figure:
    """`promised` plays of a kind from seeds `first` on, for which it gets `share` of the time."""

    id: str
    what: str
    promised: int
    share: float
    first: int = 0
    chunk: int = 50


@dataclass(frozen=True, slots=True)
class Scaled:
    """`promised` cases of a test that does `by_day` of them, or as many times that as it is told.

    Where it does a share of a list by day, `by_day` is 1: the list is `promised` such shares.
    """

    id: str
    what: str
    by_day: int
    promised: int
    share: float


FIGURES: tuple[Figure | Scaled, ...] = (
    Figure("C1 C2", "storm", 50_000, 0.07, first=500),
    Figure("C3", "storm-twice", 2_500, 0.05, first=100_000),
    Figure("C1", "world", 50_000, 0.07, first=400),
    Figure("C4", "cancellation", 5_000, 0.05, first=1_000),
    Figure("A2", "crash", 150, 0.08, first=1, chunk=1),
    Scaled("A1", KILLED_RUNS, 16, 2_000, 0.06),
    Scaled("A5", KILLED_WORKERS, 8, 240, 0.02),
    Scaled("A8", KILLED_GRIDS, 12, 240, 0.01),
    Scaled("A9", PAUSED_WORKERS, 2, 60, 0.01),
    Figure("A3", "history", 5_000, 0.03, first=1_000, chunk=25),
    Scaled("P1", LANES, 150, 10_000, 0.01),
    Scaled("F1", "tests/fleet/test_stress.py", 12, 600, 0.02),
    Scaled("F2", "tests/fleet/test_storms.py", 250, 20_000, 0.03),
    Scaled("F3", "tests/cli/test_fleet_run.py", 2, 20, 0.02),
    Scaled("A6", "tests/test_examples.py", 150, 600, 0.04),
    Scaled("A7", "tests/cli/test_fork.py", 24, 312, 0.01),
    Scaled("K1", "tests/environments/town_of_salem/test_planted_leaks.py", 1, 5, 0.02),
    Scaled("B3", "tests/config/test_words.py", 1, 19, 0.01),
    Scaled("B5", "tests/attacks/test_reading_costs.py", 1, 4, 0.01),
    Scaled("A4", "tests/environments/adapters/test_kills.py", 12, 650, 0.04),
    Scaled("S1", "tests/figures/test_coverage.py", 250, 5_000, 0.03),
    Scaled("R1", ANSWERS, 24, 2_400, 0.02),
    Scaled("R2", REFUSALS, 1, 50, 0.01),
    Scaled("R3", SURROUNDINGS, 6, 60, 0.02),
    Scaled("R4", ODD_GAMES, 40, 4_000, 0.02),
    Scaled("R5", CLOCKS, 2, 60, 0.01),
    Figure("B1", "hostile", 2_000, 0.08, first=10_000, chunk=5),
    Figure("B2", "mutated-run", 10_000, 0.07, first=10_000, chunk=20),
    Figure("B6", "altered-transcript", 2_000, 0.01, first=10_000, chunk=20),
    Figure("B3", "mutated-file", 20_000, 0.04, first=100_000, chunk=50),
    Figure("B7", "address", 5_000, 0.01, first=100_000, chunk=20),
    Figure("B4", "canary", 5_000, 0.02, first=100_000, chunk=20),
)


@dataclass(slots=True)
class Seen:
    """How much of a figure was played, and what did not hold."""

    played: int = 0
    violations: list[str] = field(default_factory=list)
    took_s: float = 0.0


def play_chunk(kind: str, first: int, size: int) -> list[str]:
    """Play `size` seeds from `first` on; what did not hold. Runs in a process of its own."""
    return played(kind, range(first, first + size))[1]


def chunks(figure: Figure) -> Iterator[tuple[int, int]]:
    """The seeds of a figure in pieces: the first, and how many."""
    for done in range(0, figure.promised, figure.chunk):
        yield figure.first + done, min(figure.chunk, figure.promised - done)


def see(figure: Figure, pool: Executor, processes: int, limit_s: float) -> Seen:
    """Play as much of a figure as fits into `limit_s`."""
    seen, began_s = Seen(), time.monotonic()
    flying: dict[Future[list[str]], int] = {}
    left = chunks(figure)
    while True:
        is_time_left = time.monotonic() - began_s < limit_s
        while is_time_left and len(flying) < 2 * processes and (chunk := next(left, None)) is not None:
            flying[pool.submit(play_chunk, figure.what, *chunk)] = chunk[1]
        if not flying:
            break
        for future in wait(flying, return_when=FIRST_COMPLETED).done:
            seen.played += flying.pop(future)
            seen.violations += future.result()
    seen.took_s = time.monotonic() - began_s
    return seen


def see_scaled(figure: Scaled, run: Callable[[str, int], str | None], limit_s: float) -> Seen:
    """Run a test as it is, and then once more as many times larger as that tells will fit into what is left.

    `run` is given the test and the scale, and returns what did not hold.
    """
    seen, scale = Seen(), 1
    while limit_s > 0:
        began_s = time.monotonic()
        violation = run(figure.what, scale)
        took_s = time.monotonic() - began_s
        seen.took_s += took_s
        seen.played = scale * figure.by_day  # The larger one plays the cases of the smaller one too.
        if violation is not None:
            seen.violations.append(violation)
        larger = min(-(-figure.promised // figure.by_day), int((limit_s - took_s) / took_s))
        if violation is not None or scale > 1 or larger < 2:
            break
        scale = larger
    return seen


def run_test(test: str, scale: int) -> str | None:
    """Run one test in a process of its own; what it said if it failed."""
    environ = {**os.environ, "MAC_RUNNER_TEST_SCALE": str(scale)}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "", test]
    ended = subprocess.run(command, env=environ, capture_output=True, text=True)
    told_by = "\n".join(ended.stdout.splitlines()[-20:])
    again = f"MAC_RUNNER_TEST_SCALE={scale} {shlex.join(['python', *command[1:]])}"
    return f"{told_by}\nagain: {again}" if ended.returncode else None


def row(figure: Figure | Scaled, seen: Seen) -> str:
    """A figure's line of the report."""
    verdict = f"{len(seen.violations)} BROKEN" if seen.violations else "ok" if seen.played else "not begun"
    if not seen.violations and 0 < seen.played < figure.promised:
        verdict = "ok so far"
    return (
        f"{figure.id:<8}{figure.promised:>9,}{seen.played:>9,}{seen.took_s:>8.0f} s  {verdict:<11}{WHAT[figure.what]}"
    )


def report(results: Sequence[tuple[Figure | Scaled, Seen]]) -> str:
    """All lines, and below them the first things that did not hold."""
    head = f"{'id':<8}{'promised':>9}{'played':>9}{'took':>10}  {'seen':<11}figure"
    broken = [violation for _, seen in results for violation in seen.violations[:SHOWN_MAX]]
    return "\n".join([head, *(row(*result) for result in results), *broken])


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.nightly", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="how long to play, all figures together")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    chosen = parser.parse_args(arguments)
    results: list[tuple[Figure | Scaled, Seen]] = []
    with ProcessPoolExecutor(chosen.processes, mp_context=get_context("spawn")) as pool:
        for figure in FIGURES:
            limit_s = 60.0 * chosen.minutes * figure.share
            if isinstance(figure, Figure):
                results.append((figure, see(figure, pool, chosen.processes, limit_s)))
            else:
                results.append((figure, see_scaled(figure, run_test, limit_s)))
            sys.stderr.write(row(*results[-1]) + "\n")
    sys.stdout.write(report(results) + "\n")
    return 1 if any(seen.violations for _, seen in results) else 0


if __name__ == "__main__":
    raise SystemExit(main())
