"""`mac-run show`: a played game as text, in public, for one seat, and with the truth."""

from __future__ import annotations

import re

from mac_runner.cli.process import Exit
from tests.cli.lab import AtOnce, Lab


def test_show_prints_a_game_and_who_was_what(finished: Lab, at_once: AtOnce) -> None:
    shown = at_once("show", "runs/small", "0")

    assert shown.returncode == 0
    assert shown.stdout.startswith("small-000000 (finished)\n")
    assert "\nDay 1, greeting\n" in shown.stdout
    players = shown.stdout.split("\nWho was what\n")[1].splitlines()
    assert players
    assert all(re.search(r" (won |lost)  (lived|died \([a-z ]+\))$", line) for line in players)
    assert at_once("show", "runs/small", "small-000000").stdout == shown.stdout


def test_show_truth_only_adds_lines(finished: Lab, at_once: AtOnce) -> None:
    plain = at_once("show", "runs/small", "0").stdout.splitlines()
    told = at_once("show", "runs/small", "0", "--truth").stdout.splitlines()
    rest = iter(told)

    assert all(line in rest for line in plain)
    assert len(told) > len(plain)
    verdicts = [line for line in told if line.startswith("    ~ ")]
    assert verdicts
    assert all(re.search(r": (lie|(honest|unclear)(, but wrong: \w+ is the [\w ]+)?)$", line) for line in verdicts)
    nights = [line for line in told if re.fullmatch(r"Night \d+, in truth", line)]
    assert len(nights) == len(set(nights)) == sum(bool(re.fullmatch(r"Night \d+", line)) for line in told)


def test_show_seat_shows_no_secret_of_others(finished: Lab, at_once: AtOnce) -> None:
    everything = at_once("show", "runs/small", "0").stdout
    name = everything.split("Players, in seat order: ")[1].split(",")[0]
    seen = at_once("show", "runs/small", "0", "--seat", name).stdout

    assert f"as {name} saw it" in seen
    assert "[only you" in seen
    assert "Who was what" not in seen
    assert all(line.endswith("[only you]") for line in seen.splitlines() if "[only " in line)


def test_show_of_a_game_there_is_not_says_how_many_there_are(finished: Lab, at_once: AtOnce) -> None:
    shown = at_once("show", "runs/small", "99")

    assert shown.returncode == 2
    assert "no ended conversation is called '99'" in shown.stderr
    assert "2 of 2 conversations have ended" in shown.stderr


def test_flags_that_would_have_no_effect_are_refused(finished: Lab, at_once: AtOnce) -> None:
    for flags in (("--seat", "Abel"), ("--truth",)):
        process = at_once("show", "runs/small", "0", "--turns", *flags)

        assert process.returncode == Exit.BAD_INPUT
        assert f"{flags[0]} has no effect" in process.stderr
