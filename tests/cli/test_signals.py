"""SIGINT and SIGTERM stop a run in good order; a second one leaves at once; SIGHUP does not concern it."""

from __future__ import annotations

import signal
import sys

import pytest
from syrupy.assertion import SnapshotAssertion

from tests.cli.lab import Lab, experiment, scripted
from tests.patience import ended, wait_for


@pytest.mark.smoke
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_lets_what_is_in_flight_end_and_sends_nothing_more(
    lab: Lab, number: signal.Signals, snapshot: SnapshotAssertion
) -> None:
    run, process = lab.run_dir(), lab.start_held(5, lab.write(experiment()))

    process.send_signal(number)

    code, out, err = ended(process)
    assert code == 3
    assert "stopping" in err
    assert err.splitlines()[-1] == snapshot
    assert "0 finished" in out
    (stop,) = run.events("EVENT_RUN_STOP")
    assert (stop["is_complete"], stop["cancelled_requests"]) == (False, 0)
    assert len(run.events("EVENT_INFER_START")) == len(run.events("EVENT_INFER_DONE"))
    assert run.summary["conversations"] == {"planned": 2, "finished": 0, "failed": 0}
    assert not (run.path / ".owner.json").exists()
    lab.verified(run.path)


@pytest.mark.ci
def test_second_signal_leaves_at_once(lab: Lab) -> None:
    file, run = lab.write(experiment(models={"m": scripted(latency_ms=500_000)})), lab.run_dir()
    process = lab.start(file, "--no-live")
    wait_for(lambda: bool(run.events("EVENT_INFER_START")), "a request in flight")
    assert process.stderr is not None

    process.send_signal(signal.SIGTERM)
    while "stopping" not in (line := process.stderr.readline()):
        assert line
    process.send_signal(signal.SIGTERM)

    assert ended(process)[0] == 3
    # It did not wait for the end of its own grace: nothing was concluded.
    assert run.events("EVENT_RUN_STOP") == []


@pytest.mark.ci
def test_hangup_does_not_concern_a_run(lab: Lab) -> None:
    process = lab.start_held(1, lab.write(experiment(conversations=1)))

    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)

    assert ended(process)[0] == 3
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

    code, out, err = ended(process)
    assert (code, out) == (3, "")
    assert err.splitlines()[-1].startswith("mac-run: interrupted")
    assert sorted(path.name for path in lab.path.iterdir()) == ["reading", "small.yaml"]


@pytest.mark.ci
def test_signal_whose_interrupt_the_interpreter_ignored_still_stops_the_run(lab: Lab) -> None:
    lab.write(experiment(models={"m": scripted(latency_ms=50)}))
    # What is raised in the callback of a weak reference is printed and ignored.
    ignoring = (
        "import os, signal, weakref, mac_runner.config.loading as loading\n"
        "from mac_runner.cli import main\n"
        "read = loading.read_regular\n"
        "class Lock: pass\n"
        "def interrupted(*args, **kwargs):\n"
        "    lock = Lock()\n"
        "    reference = weakref.ref(lock, lambda _: os.kill(os.getpid(), signal.SIGTERM))\n"
        "    del lock\n"
        "    return read(*args, **kwargs)\n"
        "loading.read_regular = interrupted\n"
        "main()\n"
    )

    code, _, err = ended(lab.start("small.yaml", program=(sys.executable, "-c", ignoring)))

    assert code == 3
    assert "Exception ignored" in err
    assert "stopping" in err
    assert lab.run_dir().events("EVENT_INFER_START") == []
