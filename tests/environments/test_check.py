"""`mac-run check` finds each way to break the contract, says where it is and what to do, and passes what keeps it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mac_runner.testing.examination import Finding, examine
from mac_runner.testing.promises import PROMISES
from mac_runner.testing.request import CheckRequest
from mac_runner.testing.subjects import subject_of
from tests.environments import bad_games

FILE = Path(bad_games.__file__)
LINES = FILE.read_text().splitlines()

MUTANTS: dict[str, tuple[str, str]] = {
    "endless": ("ends", "has not ended after 300 turns"),
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
    "starts_a_process": ("outside", "reaches out of the process"),
    "counts_calls": ("deterministic", "it has another prompt"),
    "shares_a_variable": ("apart", "played in turns with another conversation, it has another outcome"),
    "InOrder": ("order", "answered in another order, it has another record, at calls"),
    "Forgetful": ("prompt", "asking for the prompt changed the state"),
    "Moody": ("prompt", "another when it is asked for twice"),
    "Speechless": ("prompts", "not a text"),
    "Unsendable": ("prompts", "half of a surrogate pair"),
    "Gossiping": ("record", "has the audience ['Zorro']"),
    "Unwritable": ("record", "not JSON compliant"),
    "Misnamed": ("ends", "outcome has the kind 'poker'; it is 'Misnamed'"),
    "Strangers": ("turns", "the turn goes to the model 'other'; the agent has 'player'"),
    "Fragile": ("garbage", "ValueError: tuple.index(x): x not in tuple"),
    "Stubborn": ("overflow", "RuntimeError: no shorter prompt"),
    "Restless": ("replay", "it has another"),
}


def tried(name: str) -> list[Finding]:
    subject = subject_of(CheckRequest(f"{FILE}:{name}", agents=2, conversations=2, turns=300))
    return list(examine(subject))


def check(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mac_runner", "check", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", ["good", "Calls", "changes_settings"])
def test_an_environment_that_keeps_its_promises_passes(name: str) -> None:
    findings = tried(name)

    assert [finding.name for finding in findings] == [promise.name for promise in PROMISES]
    assert [finding for finding in findings if not finding.is_kept] == []


def test_each_broken_promise_is_found_with_its_place_and_its_remedy(subtests: pytest.Subtests) -> None:
    for name, (promise, words) in MUTANTS.items():
        with subtests.test(name):
            broken = {finding.name: finding for finding in tried(name) if not finding.is_kept}

            assert promise in broken
            assert words in broken[promise].what
            assert broken[promise].place.startswith("conversation check-00000")
            assert broken[promise].remedy


def test_the_line_that_is_at_fault_is_named() -> None:
    def line_of(text: str) -> str:
        return f"{FILE}:{next(number for number, line in enumerate(LINES, start=1) if text in line)}"

    (clock,) = (finding for finding in tried("reads_the_clock") if not finding.is_kept)
    (words,) = (finding for finding in tried("needs_good_words") if not finding.is_kept)

    assert line_of("time.time() < 0") in clock.what
    assert words.where == line_of("int(number)")


def test_what_ends_or_holds_up_the_process_or_depends_on_hashes_is_found(subtests: pytest.Subtests) -> None:
    hanging = next(number for number, line in enumerate(LINES, start=1) if "random() < 2" in line)
    for name, words in {
        "hangs": ("a step took longer than 1 s", f"{FILE}:{hanging}"),
        "leaves": ("found SystemExit: 7",),
        "sets_of_names": ("FAIL two processes play the same conversations", "sort sets"),
    }.items():
        with subtests.test(name):
            done = check(f"{FILE}:{name}", "--agents", "4", "--conversations", "2", "--seconds", "1")

            assert done.returncode == 1, done.stderr
            for each in words:
                assert each in " ".join(done.stdout.split()), done.stdout


def test_what_cannot_be_loaded_is_bad_input(tmp_path: Path, subtests: pytest.Subtests) -> None:
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
            done = check(target)

            assert done.returncode == 2, done.stdout
            assert words in done.stderr
            assert done.stdout == ""


def test_the_report_is_for_people_and_for_programs() -> None:
    said = check(f"{FILE}:good", "--settings", "rounds=3", "--agents", "3", "--conversations", "2")
    listed = check(f"{FILE}:needs_good_words", "--json", "--conversations", "2")
    report = json.loads(listed.stdout)

    assert (said.returncode, listed.returncode) == (0, 1)
    assert "2 conversations of 3 agents" in said.stdout
    assert said.stdout.count("\nok  ") == len(PROMISES) + 1
    assert report["broken"] == sum(not each["is_kept"] for each in report["promises"]) == 1
    assert report["promises"][0].keys() == {"name", "text", "is_kept", "what", "place", "where", "remedy"}


def test_settings_that_do_not_fit_are_named() -> None:
    done = check(f"{FILE}:good", "--settings", "rounds=many")

    assert done.returncode == 2
    assert "settings.rounds" in done.stderr
