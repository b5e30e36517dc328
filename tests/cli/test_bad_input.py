"""Bad input ends with code 2, names its place and what is allowed, and touches nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeAlias

import pytest

from mac_runner.cli.process import Exit
from tests.cli.lab import AtOnce, Lab, experiment

SMALL = """\
experiment_metadata: {experiment_name: small}
conversation_config:
  environment: town_of_salem
  conversations: 3
game:
  lobby: classic-7
model_definitions:
  m:
    backend: scripted
    scripted_config: {policy: heuristic}
agent_definitions:
  - {agent_id: player, role: player, model: m}
"""

Refused: TypeAlias = Callable[..., str]


@pytest.fixture
def refused(at_once: AtOnce) -> Refused:
    """Runs `mac-run`, which must end with code 2 and print nothing; what it complains of."""

    def run(*args: str) -> str:
        process = at_once(*args)
        assert (process.returncode, process.stdout) == (2, "")
        return process.stderr

    return run


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("conversations: 3", "conversations: many", ("small.yaml:4", "conversations", "many", "whole number")),
        ("conversations: 3", "conversations: 0", ("small.yaml:4", "conversations", "0", "1")),
        ("lobby: classic-7", "lobby: classic-77", ("small.yaml:6", "game.lobby", "classic-77", "classic-7")),
        ("lobby:", "loby:", ("small.yaml:6", "loby", "lobby")),
        ("policy: heuristic", "policy: clever", ("small.yaml:10", "policy", "clever", "heuristic", "random")),
        ("model: m", "model: mm", ("small.yaml:12", "agent_definitions", "model", "'mm'")),
        ("model: m", "model: n", ("small.yaml:12", "n is ambiguous")),
        (
            "environment: town_of_salem\n  conversations: 3\ngame:\n  lobby: classic-7",
            "environment: chess\n  conversations: 3",
            ("small.yaml:3", "conversation_config.environment", "'chess'", "discussion, echo, ", "./file.py:name"),
        ),
        ("backend: scripted", "backend: vlm", ("small.yaml:9", "backend", "vlm", "vllm")),
        ("game:", "game:\ngame:", ("small.yaml:6", "game")),
        ("role: player", "role: [player", ("small.yaml:",)),
    ],
)
def test_experiment_file_names_line_key_found_and_allowed(
    lab: Lab, refused: Refused, old: str, new: str, told: tuple[str, ...]
) -> None:
    assert old in SMALL
    (lab.path / "small.yaml").write_text(SMALL.replace(old, new, 1))

    message = refused("small.yaml")

    assert all(part in message for part in told), message
    assert [path.name for path in lab.path.iterdir()] == ["small.yaml"]


NUMBERS = ("9" * 19, "9" * 29, "007", "1_000", "0x10", "1.5", "yes", "nan", "many", "", "[1]", "true", "\u0663", " ")


def test_flags_and_the_file_refuse_the_same_numbers_in_the_same_words(lab: Lab, at_once: AtOnce) -> None:
    wrong: list[str] = []
    for number in NUMBERS:
        (lab.path / "small.yaml").write_text(f"{SMALL}seed: {number}\n")
        in_file = at_once("small.yaml", "--dry-run")
        (lab.path / "small.yaml").write_text(SMALL)
        for flags in (("--seed", number), ("--set", f"seed={number}"), ("--limit", number), ("--concurrency", number)):
            ended = at_once("small.yaml", "--dry-run", *flags)
            # Behind a flag nothing is empty, where in a file it is null.
            reason = "empty" if not number.strip() else in_file.stderr.rpartition(": ")[2]
            if (ended.returncode, in_file.returncode) != (2, 2) or reason not in ended.stderr:
                wrong.append(f"{flags}: {ended.stderr}; the file: {in_file.stderr}")

    assert not wrong, "\n".join(wrong)
    assert at_once("small.yaml", "--dry-run", "--seed", "9" * 18).returncode == 0


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--profile", "night"), ("--profile", "'night'", "embedded")),
        (("--set", "seed=many"), ("--set seed", "many", "whole number")),
        (("--set", "game.lobby=classic-77"), ("--set game.lobby", "classic-77", "classic-10")),
        (("--set", "game.loby=classic-7"), ("--set game.loby", "lobby")),
        (("--set", "seed"), ("--set seed", "KEY=VALUE")),
        (("--limit", "0"), ("--limit", "0")),
        (("--concurrency", "none"), ("--concurrency", "none")),
        (("--seed", "-1"), ("--seed", "-1")),
        (("--sed", "1"), ("--sed", "--seed")),
        (("more.yaml",), ("more.yaml",)),
        (("--pull",), ("--pull", "small.yaml", "'embedded'", "scripted", "only ollama pulls", "--profile")),
        (("--pull", "--dry-run"), ("--pull", "only ollama pulls")),
    ],
)
def test_flags_name_themselves_found_and_allowed(
    lab: Lab, refused: Refused, flags: tuple[str, ...], told: tuple[str, ...]
) -> None:
    (lab.path / "small.yaml").write_text(SMALL)

    message = refused("small.yaml", *flags)

    assert all(part in message for part in told), message
    assert [path.name for path in lab.path.iterdir()] == ["small.yaml"]


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("nosuch.yaml",), ("nosuch.yaml", "No such file")),
        (("nosuch.yaml", "--dry-run"), ("nosuch.yaml", "No such file")),
        ((".",), ("it is a directory",)),
        (("verfy", "runs/small"), ("'verfy'", "'verify'")),
        (("verify",), ("RUN",)),
        (("verify", "nosuch"), ("nosuch", "not a run directory")),
        (("verify", "small.yaml"), ("small.yaml", "not a run directory")),
        ((), ("Usage",)),
    ],
)
def test_what_is_not_there_is_named(lab: Lab, refused: Refused, args: tuple[str, ...], told: tuple[str, ...]) -> None:
    (lab.path / "small.yaml").write_text(SMALL)

    message = refused(*args)

    assert all(part in message for part in told), message
    assert [path.name for path in lab.path.iterdir()] == ["small.yaml"]


@pytest.mark.ci
def test_directory_used_for_something_else_is_refused_and_left_alone(lab: Lab) -> None:
    file = lab.write(experiment())
    (lab.path / "thesis").mkdir()
    (lab.path / "thesis" / "chapter1.tex").write_text("It was a dark night.")

    process = lab.run(file, "--out", "thesis")

    assert process.returncode == 2
    assert "thesis holds 'chapter1.tex'" in process.stderr
    assert "--out" in process.stderr
    assert [path.name for path in (lab.path / "thesis").iterdir()] == ["chapter1.tex"]


@pytest.mark.ci
def test_process_ends_with_code_2_and_a_word_on_stderr(lab: Lab) -> None:
    process = lab.run("nosuch.yaml")

    assert process.returncode == 2
    assert process.stdout == ""
    assert process.stderr == "mac-run: nosuch.yaml: cannot be read: No such file or directory\n"


@pytest.mark.ci
def test_experiment_of_a_run_that_was_edited_is_refused_by_every_verb_in_our_words(lab: Lab, at_once: AtOnce) -> None:
    """Its `experiment.yaml` with every kind of value where others belong: no crash, and no words but ours."""
    file = lab.write(experiment(conversations=1))
    at_once(file, "--out", "run", "--quiet")
    config = lab.path / "run" / "experiment.yaml"
    text, wrong = config.read_text(), list[str]()
    verbs = (("verify", "run"), (file, "--out", "run", "--quiet"), ("retry", "run"), ("show", "run", "0"))
    for line in (
        "seed: 11",
        "  conversations: 1",
        "  backend: scripted",
        "  experiment_name: small",
        "- agent_id: with_m",
    ):
        key = line.partition(":")[0]
        assert f"{line}\n" in text
        for value in ("null", "[]", "{a: 1}", "many", "-1", "2020-01-01", ".nan", "!!set {a}", "{1: 2}", "&a [*a]"):
            config.write_text(text.replace(line, f"{key}: {value}", 1))
            for verb in verbs:
                ended = at_once(*verb)
                is_ours = not re.search(
                    r"pydantic|Input should|validation error|type=|Traceback|datetime", ended.stderr
                )
                if ended.returncode not in {0, 1, 2} or not is_ours:
                    wrong.append(f"{verb} with {key}: {value}: {ended.returncode}, {ended.stderr[-300:]}")

    assert not wrong, "\n".join(wrong)
    config.write_text(text.replace("seed: 11", "sead: many"))
    told = at_once("verify", "run").stderr
    assert f"{config.relative_to(lab.path)}: sead: unknown key; allowed: " in told


def test_unknown_verb_is_distinguished_from_a_file(at_once: AtOnce) -> None:
    process = at_once("compare", "runs/one", "runs/other")

    assert process.returncode == Exit.BAD_INPUT
    verbs = "the verbs are calibrate, check, doctor, export, fleet, fork, format, import, init, merge"
    assert f"there is no verb and no file 'compare'; {verbs}" in process.stderr


def test_misplaced_key_at_the_top_is_reported_with_its_section(at_once: AtOnce, lab: Lab) -> None:
    process = at_once(lab.write(experiment()), "--set", "conversations=5")

    assert process.returncode == Exit.BAD_INPUT
    assert "it belongs at conversation_config.conversations" in process.stderr
