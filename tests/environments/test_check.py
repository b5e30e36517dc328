"""`mac-run check` finds each way to break the contract, says where it is and what to do, and passes what keeps it."""

from __future__ import annotations

import faulthandler
import io
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from mac_runner.errors import ConfigError
from mac_runner.testing.check import CheckRequest, Finding, check
from mac_runner.testing.promises import PROMISES
from mac_runner.testing.worker import examine, main, subject_of
from tests import patience
from tests.environments import bad_games

FILE = Path(bad_games.__file__)
LINES = FILE.read_text().splitlines()

MUTANTS: dict[str, tuple[str, str]] = {
    "endless": ("ends", "has not ended after 30 turns"),
    "lists_its_outcome": ("ends", "returned list ['won']; return a dict"),
    "sets_in_its_outcome": ("ends", "outcome that is not JSON"),
    "yields_a_text": ("ends", "yielded str 'Well?'; yield an Ask"),
    "asks_a_stranger": ("ends", "asks 'Zorro'; there are Abel, Bob"),
    "offers_nothing": ("ends", "its choices are empty"),
    "tells_a_stranger": ("ends", "there is no agent 'Zorro'"),
    "needs_good_words": ("garbage", "TypeError"),
    "reads_the_clock": ("outside", "time.time reads the clock"),
    "draws_for_all": ("outside", "use table.random(purpose)"),
    "draws_unseeded": ("outside", "random.Random() draws from a source"),
    "reads_a_file": ("outside", "opens a file"),
    "signals_a_process": ("outside", "reaches out of the process"),
    "starts_a_process": ("outside", "subprocess.fork_exec reaches out of the process"),
    "counts_calls": ("deterministic", "it has another prompt"),
    "shares_a_variable": ("apart", "played in turns with another conversation, it has another outcome"),
    "InOrder": ("order", "answered in another order, it has another record, at calls"),
    "Forgetful": ("prompt", "asking for the prompt changed the state"),
    "Moody": ("prompt", "another when it is asked for twice"),
    "Speechless": ("ends", "prompt(): `content` gave a value of type 'NoneType'"),
    "Unsendable": ("prompts", "half of a surrogate pair"),
    "Gossiping": ("record", "has the audience ['Zorro']"),
    "Unwritable": ("record", "not JSON compliant"),
    "Misnamed": ("ends", "outcome has the kind 'poker'; it is 'Misnamed'"),
    "Strangers": ("turns", "the turn goes to the model 'other'; the agent has 'player'"),
    "Fragile": ("garbage", "ValueError: tuple.index(x): x not in tuple"),
    "Gullible": ("copied", "a copy of its own form counts as an answer"),
    "Stubborn": ("overflow", "RuntimeError: no shorter prompt"),
    "Restless": ("replay", "it has another"),
    "leaves": ("ends", "SystemExit: 7"),
}
SLEEPS = """
import time
from mac_runner.environments.generators import Ask

def hangs(table):
    yield Ask(table.agents[0], "Well?")
    while True:
        time.sleep(1)

def takes_its_time(table):
    for _ in range(30):
        yield Ask(table.agents[0], "Well?")
        time.sleep(9)
"""


class InThisProcess:
    """Plays as the processes of `mac-run check` do, with a watchdog whose time passes when somebody sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self._monkeypatch, self._trace = monkeypatch, folder / "trace"
        self._left_s = self.slept_s = 0.0
        monkeypatch.setattr(time, "sleep", self._sleep)

    def wind(self, limit_s: float) -> None:
        self._left_s = limit_s

    def stop(self) -> None:
        self._left_s = float("inf")

    def __call__(self, argument: str, hash_seed: str) -> subprocess.CompletedProcess[bytes]:
        self._monkeypatch.setenv("PYTHONHASHSEED", hash_seed)
        out = io.StringIO()
        with redirect_stdout(out):
            try:
                main(argument, self)
            except KeyboardInterrupt:
                return subprocess.CompletedProcess([], 1, out.getvalue().encode(), self._trace.read_bytes())
        return subprocess.CompletedProcess([], 0, out.getvalue().encode(), b"")

    def _sleep(self, delay_s: float) -> None:
        self.slept_s += delay_s
        self._left_s -= delay_s
        if self._left_s < 0:
            with self._trace.open("w") as file:
                file.write("Timeout (0:00:10)!\n")
                file.flush()
                faulthandler.dump_traceback(file)
            raise KeyboardInterrupt


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[InThisProcess]:
    with monkeypatch.context() as patched:
        yield InThisProcess(patched, tmp_path)


def tried(name: str, *settings: str) -> list[Finding]:
    subject = subject_of(CheckRequest(f"{FILE}:{name}", settings=settings, agents=2, conversations=2, turns=30))
    return list(examine(subject))


def test_an_environment_that_keeps_its_promises_passes() -> None:
    for name, *settings in (["good"], ["Calls"], ["changes_settings"], ["reads_its_file", f"file={FILE}"]):
        findings = tried(name, *settings)
        assert [finding.name for finding in findings] == [promise.name for promise in PROMISES]
        assert [finding for finding in findings if not finding.is_kept] == [], name


@pytest.mark.ci
def test_each_broken_promise_is_found_with_its_place_and_its_remedy(subtests: pytest.Subtests) -> None:
    for name, (promise, words) in MUTANTS.items():
        with subtests.test(name):
            broken = {finding.name: finding for finding in tried(name) if not finding.is_kept}

            assert promise in broken
            assert words in broken[promise].what
            assert broken[promise].place.startswith("conversation check-00000")
            assert broken[promise].remedy


def line_of(text: str) -> str:
    return f"{FILE}:{next(number for number, line in enumerate(LINES, start=1) if text in line)}"


def test_the_line_that_is_at_fault_is_named() -> None:
    clock, words = (
        next(finding for finding in tried(name) if not finding.is_kept)
        for name in ("reads_the_clock", "needs_good_words")
    )
    assert line_of("time.time() < 0") in clock.what
    assert words.where == line_of("int(number)")


def test_a_step_that_does_not_return_is_found_with_its_line(play: InThisProcess, tmp_path: Path) -> None:
    game = tmp_path / "sleeping.py"
    game.write_text(SLEEPS)

    (hanging,) = check(CheckRequest(f"{game}:hangs"), play).findings
    assert ("longer than 10 s" in hanging.what, play.slept_s) == (True, 11)
    assert hanging.where == f"{game}:{SLEEPS.splitlines().index('        time.sleep(1)') + 1}"

    slow = CheckRequest(f"{game}:takes_its_time", agents=2, conversations=1)
    assert b'"ended"' in play(json.dumps({**slow._asdict(), "is_playing_only": True}), "1").stdout


def test_loading_has_more_time_than_a_step(play: InThisProcess, tmp_path: Path) -> None:
    game = tmp_path / "slow.py"
    for sleeps_s, ends in ((59, "sys.exit"), (61, "longer than 60 s")):
        game.write_text(f"import sys, time\ntime.sleep({sleeps_s})\nsys.exit('sys.exit')")
        with pytest.raises(ConfigError, match=ends):
            check(CheckRequest(f"{game}:game"), play)


def test_a_game_that_another_process_plays_otherwise_is_found(play: InThisProcess) -> None:
    found = check(CheckRequest(f"{FILE}:asks_by_hash_seed", agents=2, conversations=2), play)

    assert found.broken == 1
    assert "FAIL  two processes" in "\n".join(found.lines())


@pytest.mark.ci
def test_what_ends_or_holds_up_the_process_or_depends_on_hashes_is_found(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    (tmp_path / "sleeping.py").write_text(SLEEPS)
    for target, words in {
        f"{tmp_path}/sleeping.py:hangs": "a step took longer than 1 s",
        f"{FILE}:dies": "the process ended with exit code 7",
        f"{FILE}:sets_of_names": "FAIL two processes play the same conversations",
    }.items():
        with subtests.test(target):
            seconds = "1" if "hangs" in target else "600"
            options = ("--agents", "4", "--conversations", "1", "--seconds", seconds)
            command = [sys.executable, "-m", "mac_runner", "check", target, *options]
            done = patience.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

            assert done.returncode == 1, done.stderr
            assert words in " ".join(done.stdout.split())
            assert "of 4 agents" in done.stdout


@pytest.mark.ci
def test_what_cannot_be_loaded_and_settings_that_do_not_fit_are_bad_input(
    play: InThisProcess, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    (tmp_path / "raising.py").write_text("raise RuntimeError('not today')\n")
    for target, words in {
        f"{FILE}:nothing_of_the_kind": "nothing_of_the_kind",
        f"{FILE}:is_no_generator": "allowed: a generator function",
        f"{FILE}:Incomplete": "lacks outcome, rounds_completed, prompt, receive, record, fingerprint",
        f"{tmp_path}/raising.py:game": "raising.py:1",
        f"{tmp_path}/missing.py:game": "missing.py",
        "no_such_package_here:game": "no_such_package_here",
        "werewolf.py": "a file takes the name of the object in it: ./werewolf.py:NAME",
    }.items():
        with subtests.test(target):
            with pytest.raises(ConfigError) as refusal:
                check(CheckRequest(target), play)

            assert words in str(refusal.value)
    with pytest.raises(ConfigError, match=r"settings\.rounds"):
        check(CheckRequest(f"{FILE}:good", ("rounds=many",)), play)


@pytest.mark.ci
def test_the_report_is_for_people_and_for_programs(play: InThisProcess) -> None:
    good = check(CheckRequest(f"{FILE}:good", ("rounds=3",), agents=3, conversations=2), play)
    assert good.broken == 0
    said = "\n".join(good.lines())
    assert "2 conversations of 3 agents" in said
    assert said.count("\nok  ") == len(PROMISES) + 1

    report = check(CheckRequest(f"{FILE}:needs_good_words", conversations=2), play).as_json()
    assert report["broken"] == sum(not each["is_kept"] for each in report["promises"]) == 1
    assert report["promises"][0].keys() == {"name", "text", "is_kept", "what", "place", "where", "remedy"}
