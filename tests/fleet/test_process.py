"""A lane's processes: how they end, what is kept of their output, what their pages say, and that none is left."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from mac_runner.backends.testing import WITHHELD
from mac_runner.fleet import child
from mac_runner.fleet.testing import (
    SAMPLES_MAX,
    CommonPrefix,
    Figures,
    LaneProcess,
    Rate,
    Tokens,
    figures_of,
    last_error,
    withheld,
)
from tests.fleet.real_fleet import awaited
from tests.patience import LIMIT_S, wait_for, wait_for_ends
from tests.sim.leaks import leak_in

FAMILY = """
import os, signal, subprocess, sys, time
sleeper = [sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"]
near = subprocess.Popen(sleeper)
far = subprocess.Popen(sleeper, start_new_session=True)
if sys.argv[1] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("family", os.getpid(), near.pid, far.pid, flush=True)
time.sleep(600)
"""


HOLDER = """
import asyncio, os, sys, time
from pathlib import Path
from mac_runner.fleet.engine_process import LaneProcess

async def hold():
    lane = await LaneProcess.start(sys.argv[2:], {}, Path(sys.argv[1]))
    if sys.argv[-1] == "forks" and (fork := os.fork()) == 0:
        time.sleep(600)
    print(fork if sys.argv[-1] == "forks" else "", flush=True)
    await lane.gone()

asyncio.run(hold())
"""


def family(manner: str = "mild") -> list[str]:
    """An engine with two helpers that ignore SIGTERM, one of them in a session of its own."""
    return [sys.executable, "-c", FAMILY, manner]


def members(log: Path) -> list[psutil.Process]:
    """The engine and its helpers, as its log names them."""
    wait_for(lambda: log.exists() and log.read_text().endswith("\n"), "the family")
    return [psutil.Process(int(word)) for word in log.read_text().split()[1:]]


async def alive(log: Path) -> list[psutil.Process]:
    return await asyncio.to_thread(members, log)


@pytest.mark.ci
@awaited
async def test_the_end_of_an_engine_is_known_and_takes_its_helpers_along(tmp_path: Path) -> None:
    lane = await LaneProcess.start(family(), {}, tmp_path / "log")
    family_members = await alive(tmp_path / "log")
    family_members[0].kill()
    how = await lane.ended()
    await lane.gone()

    assert how.endswith("by SIGKILL")
    assert lane.pid == family_members[0].pid
    wait_for_ends(family_members)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("manner", "grace_s", "signals"),
    [
        ("mild", LIMIT_S, [signal.SIGTERM]),
        ("stubborn", 0.2, [signal.SIGKILL]),
        # Some systems deliver SIGTERM to a process that is stopped.
        ("stopped", 0.2, [signal.SIGTERM, signal.SIGKILL]),
    ],
)
@awaited
async def test_stop_leaves_no_process_whatever_it_ignores(
    manner: str, grace_s: float, signals: list[signal.Signals], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A guardian that is at work ends them all by itself, however long it takes, and is the last to end.

    Who asks once more, with more patience, puts nothing off.
    """
    monkeypatch.setattr("mac_runner.fleet.engine_process.GUARDIAN_GRACE_S", LIMIT_S)
    lane = await LaneProcess.start(family(manner), {}, tmp_path / "log")
    family_members = await alive(tmp_path / "log")
    guardian = family_members[0].parent()
    assert guardian is not None
    if manner == "stopped":
        family_members[0].suspend()
    await asyncio.gather(lane.stop(grace_s), lane.stop(LIMIT_S))

    assert lane.status in [-one for one in signals]
    assert not guardian.is_running()
    wait_for_ends(family_members)


@pytest.mark.ci
@awaited
async def test_stop_ends_a_lane_whose_guardian_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mac_runner.fleet.engine_process.GUARDIAN_GRACE_S", 0.2)
    lane = await LaneProcess.start(family(), {}, tmp_path / "log")
    engine, near, far = await alive(tmp_path / "log")
    guardian = engine.parent()
    assert guardian is not None
    guardian.suspend()
    await lane.stop(0.1)
    processes = [engine, near, far, guardian]

    wait_for_ends(processes)


@pytest.mark.ci
@pytest.mark.parametrize("manner", ["mild", "forks"])
def test_nothing_is_left_after_a_kill_of_the_process_that_holds_the_lane(manner: str, tmp_path: Path) -> None:
    """Also where a process that it forked has copies of its pipes."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "log"), *family(manner)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        fork = holder.stdout.readline().strip()
        family_members = members(tmp_path / "log")
        holder.kill()
        try:
            wait_for_ends(family_members)
        finally:
            if fork:
                os.kill(int(fork), signal.SIGKILL)


@pytest.mark.ci
@awaited
async def test_a_lane_sees_no_interrupt_of_the_terminal(tmp_path: Path) -> None:
    lane = await LaneProcess.start(family(), {}, tmp_path / "log")
    engine = (await alive(tmp_path / "log"))[0]
    session, group = os.getsid(engine.pid), os.getpgid(engine.pid)
    await lane.stop(0.1)

    assert session != os.getsid(0)
    assert group != os.getpgid(0)


@pytest.mark.ci
@awaited
async def test_command_that_does_not_exist_is_an_end_that_names_it(tmp_path: Path) -> None:
    lane = await LaneProcess.start(["/no/such/program"], {}, tmp_path / "log")
    how = await lane.ended()
    await lane.gone()

    assert ": /no/such/program: " in how


@pytest.mark.ci
@awaited
async def test_last_error_is_of_this_start_alone(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("ValueError: of the start before\n")
    for program, error in (("pass", None), ("raise KeyError('weights')", "KeyError: 'weights'")):
        lane = await LaneProcess.start([sys.executable, "-c", program], {}, tmp_path / "log")
        await lane.gone()

        assert lane.last_error() == error


@pytest.mark.ci
@awaited
async def test_last_error_shows_no_secret_of_the_environment_and_what_is_withheld_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it stands in the line, in every form in which a program may print it."""
    secret = "Zq7Wv9Jp3Gf5Ty2Ub8Nd"
    for name in ("HF_TOKEN", "NAMED"):
        monkeypatch.setenv(name, secret)
    program = "import base64, os; k = os.environ[{!r}]; raise ValueError('.' * {} + {})"
    forms = ("k", "repr(k.upper())", "base64.b64encode(k.encode()).decode()", "k.encode().hex()", "dict(os.environ)")
    errors = []
    for number, form in enumerate(forms):
        argv = [sys.executable, "-c", program.format("LANE_KEY" if number % 2 else "HF_TOKEN", 40 * number, form)]
        lane = await LaneProcess.start(argv, {"LANE_KEY": secret}, tmp_path / "log", without={"NAMED"})
        await lane.gone()
        errors.append(lane.last_error() or "")
    absent = [sys.executable, "-c", "import os; raise SystemExit(str(sorted({'NAMED', 'HF_TOKEN'} & {*os.environ})))"]
    lane = await LaneProcess.start(absent, {}, tmp_path / "log", without={"NAMED"})
    await lane.gone()

    assert errors[:-1] == [WITHHELD] * (len(forms) - 1)
    assert [error for error in errors if leak_in(error, secret, 4)] == []
    assert lane.last_error() == "['HF_TOKEN']"


def test_lane_gets_no_key_of_another_server_and_that_of_the_hub() -> None:
    environ = ("OPENAI_API_KEY", "VLLM_API_KEY", "PANEL", "HF_TOKEN", "PATH", "S3_SECRET_ACCESS_KEY", "APIKEY")

    assert withheld(environ, {"PANEL", "HF_TOKEN"}) == {"OPENAI_API_KEY", "VLLM_API_KEY", "PANEL", "APIKEY"}


def test_log_is_of_a_bounded_size_and_ends_with_the_last_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = child.Log(str(path), 100)

    for number in range(50):
        log.write(f"line {number}\n".encode())

    kept = (tmp_path / "log.1").read_text() + path.read_text()
    assert path.stat().st_size <= 100
    assert kept.splitlines()[-9:] == [f"line {number}" for number in range(41, 50)]
    os.close(log._file)


VLLM_LOG = """
(APIServer pid=7) INFO 11-23 11:00:00 [api_server.py:1839] vLLM API server version 0.32.0
(EngineCore_DP0 pid=9) ERROR 11-23 11:00:09 [core.py:708] EngineCore failed to start.
(EngineCore_DP0 pid=9) ERROR 11-23 11:00:09 [core.py:708] Traceback (most recent call last):
(EngineCore_DP0 pid=9) ERROR 11-23 11:00:09 [core.py:708]     raise ValueError(
(EngineCore_DP0 pid=9) ERROR 11-23 11:00:09 [core.py:708] ValueError: Free memory on device (3.2/79.1 GiB) is less
(APIServer pid=7) Traceback (most recent call last):
(APIServer pid=7) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""


@pytest.mark.parametrize(
    ("log", "error"),
    [
        ("", None),
        ("loading\n\n", "loading"),
        (VLLM_LOG, "ValueError: Free memory on device (3.2/79.1 GiB) is less"),
        ("Error: cannot listen at 127.0.0.1:8000: Address already in use\n", None),
        ("torch.OutOfMemoryError: CUDA out of memory\nbye\n", "torch.OutOfMemoryError: CUDA out of memory"),
    ],
)
def test_last_error_is_the_cause_and_no_consequence(log: str, error: str | None) -> None:
    assert last_error(log) == (error if error or not log else log.strip())


VLLM = b"""# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 1024.0
vllm:generation_tokens_total{engine="0",model_name="m"} 1.5e+03
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1000.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 750.0
"""


NANO = b"""nano_prompt_tokens_total 200.0
nano_prompt_tokens_cached_total 50.0
nano_completion_tokens_total 12.0
"""


@pytest.mark.parametrize(
    ("page", "made", "hits"),
    [(VLLM, 1500.0, 0.75), (NANO, 12.0, 0.25), (b"nano_completion_tokens_total 0.0\n", 0.0, None)],
)
def test_counters_of_an_engine_are_read(page: bytes, made: float, hits: float | None) -> None:
    tokens = figures_of(page).tokens

    assert tokens is not None
    assert (tokens.made, tokens.prefix_hits) == (made, hits)


def test_requests_in_flight_are_those_that_run_and_those_that_wait() -> None:
    page = b"nano_requests_running 3.0\nnano_requests_waiting 4.0\n"

    assert figures_of(page) == Figures(in_flight=7)


@pytest.mark.parametrize(
    "page", [b"", b"<html>not found</html>", b"http_requests_total 7.0\n", b"nano_requests_running 1e999\n"]
)
def test_page_without_known_counters_has_none(page: bytes) -> None:
    assert figures_of(page) == Figures()


def test_rate_is_between_two_looks_and_starts_again_with_the_engine() -> None:
    rate = Rate()
    rates = []
    for made, at_s in ((100.0, 10.0), (160.0, 12.0), (5.0, 14.0), (25.0, 16.0)):
        rate.look(Tokens(made=made), at_s)
        rates.append(rate.per_s)

    assert rates == [None, 30.0, None, 10.0]


def test_common_prefix_is_what_all_first_system_messages_begin_with() -> None:
    prefix = CommonPrefix()
    for name in ("Ann", "Anton", "Bea"):
        prefix.see(f"The rules: be {name}.")
    assert prefix.text == "The rules: be "

    for _ in range(SAMPLES_MAX):
        prefix.see("The rules: be Cy.")
    prefix.see("Another game.")
    assert prefix.text == "The rules: be "
