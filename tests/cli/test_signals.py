"""Signals stop a run in good order, at any moment and in any number: the exit code is ours from the imports on."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.cli.process import Exit
from mac_runner.types import JsonObject
from tests.cli.lab import Lab, ending, experiment, scripted
from tests.faults.tier import SCALE, one_in
from tests.patience import Patience, ended, wait_for


@pytest.mark.smoke
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_lets_what_is_in_flight_end_and_sends_nothing_more(
    lab: Lab, number: signal.Signals, snapshot: SnapshotAssertion
) -> None:
    run, stopped = lab.run_dir(), lab.stop_held(5, lab.write(experiment()), by=number)

    stopped.ends(Exit.INTERRUPTED, "stopping", printed="0 of 2 conversations finished")
    assert stopped.stderr.splitlines()[-1] == snapshot
    (stop,) = run.events("EVENT_RUN_STOP")
    assert (stop["is_complete"], stop["cancelled_requests"]) == (False, 0)
    assert len(run.events("EVENT_INFER_START")) == len(run.events("EVENT_INFER_DONE"))
    assert run.summary["conversations"] == {"planned": 2, "finished": 0, "failed": 0}
    assert not (run.path / ".owner.json").exists()
    lab.verified(run.path)


@pytest.mark.ci
def test_second_signal_leaves_at_once(lab: Lab) -> None:
    file, run = lab.write(experiment(models={"m": scripted(latency_ms=500_000)})), lab.run_dir()
    endless = "import mac_runner.cli as c, mac_runner.scheduler.runner as r; r.SHUTDOWN_GRACE_S = 3600; c.main()"
    process = lab.start(file, "--no-live", program=(sys.executable, "-c", endless))
    wait_for(lambda: bool(run.events("EVENT_INFER_START")), "a request in flight")
    assert process.stderr is not None

    process.send_signal(signal.SIGTERM)
    while "stopping" not in (line := process.stderr.readline()):
        assert line
    process.send_signal(signal.SIGTERM)

    ending(process).ends(Exit.INTERRUPTED)
    # It did not wait for the end of its own grace: nothing was concluded.
    assert run.events("EVENT_RUN_STOP") == []


@pytest.mark.ci
def test_hangup_does_not_concern_a_run(lab: Lab) -> None:
    process = lab.start_held(1, lab.write(experiment(conversations=1)))

    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)

    ending(process).ends(Exit.INTERRUPTED)
    assert lab.run_dir().events("EVENT_RUN_STOP")


@pytest.mark.ci
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_before_anything_began_leaves_at_once(lab: Lab, number: signal.Signals) -> None:
    lab.write(experiment())
    # The process waits where it reads its file, and says so.
    waiting = (
        "import pathlib, time, mac_runner.config.loading as loading\n"
        "from mac_runner.cli import main\n"
        "def wait(*_):\n"
        "    pathlib.Path('reading').touch()\n"
        "    time.sleep(600)\n"
        "loading.read_regular = wait\n"
        "main()\n"
    )
    process = lab.start("small.yaml", program=(sys.executable, "-c", waiting))
    wait_for((lab.path / "reading").exists, "the reading of the file")

    process.send_signal(number)

    found = ending(process).ends(Exit.INTERRUPTED)
    assert (found.stdout, found.stderr.splitlines()[-1][:20]) == ("", "mac-run: interrupted")
    assert sorted(path.name for path in lab.path.iterdir()) == ["reading", "small.yaml"]


@pytest.mark.ci
@pytest.mark.parametrize(
    ("lost", "verb", "told"),
    [
        # What is raised in the callback of a weak reference is ignored.
        ("lock = Lock(); reference = weakref.ref(lock, raise_signal); del lock", "", "mac-run: interrupted"),
        ("lock = Lock(); reference = weakref.ref(lock, raise_signal); del lock", "--dry-run", "mac-run: interrupted"),
        ("with suppress(BaseException): raise_signal()", "", "stopping"),
    ],
    ids=["by the interpreter", "by the interpreter, without a loop", "by code of others"],
)
def test_signal_whose_interrupt_is_lost_still_stops_the_run(lab: Lab, lost: str, verb: str, told: str) -> None:
    file = lab.write(experiment(models={"m": scripted(latency_ms=50)}))
    losing = (
        "import signal, weakref, mac_runner.config.loading as loading\n"
        "from contextlib import suppress\n"
        "from mac_runner.cli import main\n"
        "read = loading.read_regular\n"
        "class Lock: pass\n"
        "def raise_signal(*_):\n"
        "    signal.raise_signal(signal.SIGTERM)\n"
        "def interrupted(*args, **kwargs):\n"
        f"    {lost}\n"
        "    return read(*args, **kwargs)\n"
        "loading.read_regular = interrupted\n"
        "main()\n"
    )

    process = lab.start(file, *verb.split(), program=(sys.executable, "-c", losing))

    ending(process).ends(Exit.INTERRUPTED, told)
    assert lab.run_dir().events("EVENT_INFER_START") == []


MOMENTS = 4 if SCALE == 1 else 10 * SCALE

AT_ONCE = 6
"""Processes side by side: one waits while another one works."""

KINDS = (signal.SIGINT, signal.SIGTERM)


# Says when the entry point has begun: what comes before that is Python's own start. An interrupt may come between two
# steps of Python's own import, which then leaves the file of a module to the garbage collector.
BEGUN = """
import sys
import warnings
warnings.simplefilter("ignore", ResourceWarning)
class Told:
    def find_spec(self, name, path=None, target=None):
        if name == "mac_runner.cli.commands":
            sys.meta_path.remove(self)
            print("begun", flush=True)
sys.meta_path.insert(0, Told())
from mac_runner.cli import main
main()
"""


# The same for the end: the last of its exit functions but for ours, which comes after it.
ENDING = """
import atexit, sys, time
from mac_runner.cli import main, process
take_over = process.take_over_signals
def told():
    take_over()
    atexit.register(lambda: print("ending", flush=True))
process.take_over_signals = told
main()
"""


def in_flight() -> JsonObject:
    """Games whose requests are in flight for a while yet when the run is asked to stop."""
    return experiment(conversations=9, models={"m": scripted(latency_ms=50)})


def moments(latest_s: float) -> list[float]:
    return [latest_s * number / MOMENTS for number in range(MOMENTS)]


def failures(cases: Iterable[tuple[object, ...]], play: Callable[..., str]) -> list[str]:
    """What `play` says of the cases in which something is wrong."""
    with ThreadPoolExecutor(AT_ONCE) as threads:
        return [told for told in threads.map(lambda case: play(*case), cases) if told]


def wrong(process: subprocess.Popen[str], case: str, due: Exit = Exit.INTERRUPTED) -> str:
    """What is wrong with the end of a process."""
    code, _, err = ended(process)
    return "" if code == due and "Traceback" not in err else f"{case}: {code} {err}"


@pytest.fixture
def labs(tmp_path: Path) -> Iterator[Callable[[], Lab]]:
    """Working directories, one for each process."""
    made: list[Lab] = []
    numbers = count()

    def make() -> Lab:
        new = Lab(path=tmp_path / f"lab-{next(numbers)}")
        new.path.mkdir()
        made.append(new)
        return new

    yield make
    for one in made:
        one.close()


@pytest.mark.ci
def test_second_signal_at_any_moment_after_the_first_ends_with_the_code_of_a_stop(labs: Callable[[], Lab]) -> None:
    """The run winds down for some tenths of a second after the first one, and the interpreter for some more."""

    def play(first: signal.Signals, second: signal.Signals, after_s: float) -> str:
        lab = labs()
        process = lab.start_held(1, lab.write(in_flight()), "--quiet")
        process.send_signal(first)
        time.sleep(after_s)
        process.send_signal(second)
        return wrong(process, f"{first.name}, {second.name} {after_s:.3f} s later")

    pairs = [(KINDS[number % 2], KINDS[number // 2 % 2]) for number in range(2 * MOMENTS)]
    cases = [(*pair, after_s) for pair, after_s in zip(pairs, sorted(2 * moments(0.6)), strict=True)]

    assert failures(cases, play) == []


@pytest.mark.ci
def test_volleys_of_signals_end_with_the_code_of_a_stop(labs: Callable[[], Lab]) -> None:
    def play(number: signal.Signals, pause_s: float) -> str:
        lab = labs()
        process = lab.start_held(1, lab.write(in_flight()), "--quiet")
        for _ in range(50):
            process.send_signal(number)
            time.sleep(pause_s)
        return wrong(process, f"{number.name} {pause_s}")

    cases = one_in(4, [(number, pause_s) for pause_s in (0.0, 0.001, 0.004) for number in KINDS])

    assert failures(cases, play) == []


@pytest.mark.ci
def test_signal_at_any_moment_of_the_start_ends_with_the_code_of_a_stop(labs: Callable[[], Lab]) -> None:
    """From the first import of the entry point on, through all the others, to the first requests."""

    def play(number: signal.Signals, after_s: float) -> str:
        lab = labs()
        # More than it could play in the time of this test.
        file = lab.write(experiment(conversations=400, models={"m": scripted(latency_ms=400)}))
        process = lab.start(file, "--quiet", program=(sys.executable, "-c", BEGUN))
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        time.sleep(after_s)
        process.send_signal(number)
        return wrong(process, f"{number.name} {after_s}")

    cases = [(KINDS[number % 2], after_s) for number, after_s in enumerate(moments(1.0))]

    assert failures(cases, play) == []


@pytest.mark.ci
def test_signals_while_the_interpreter_ends_change_no_exit_code(lab: Lab) -> None:
    file = lab.write(experiment(conversations=1))
    lab.play(file)

    def play(number: signal.Signals, pause_s: float) -> str:
        process = lab.start(file, program=(sys.executable, "-c", ENDING))
        assert process.stdout is not None
        while process.stdout.readline() not in {"ending\n", ""}:
            pass
        patience = Patience("the end of the interpreter")
        while process.poll() is None:
            patience.check()
            process.send_signal(number)
            time.sleep(pause_s)
        return wrong(process, f"{number.name} {pause_s}", Exit.OK)

    cases = [(KINDS[number % 2], 0.0005 * number) for number in range(MOMENTS // 2)]

    assert failures(cases, play) == []
