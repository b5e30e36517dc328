"""Bad input ends with code 2, names its place and what is allowed, and touches nothing."""

from __future__ import annotations

import re

import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.cli.process import Exit
from tests.cli.lab import AtOnce, Lab, experiment, refusals

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

WRONG = [
    ("conversations: 3", "conversations: many"),
    ("conversations: 3", "conversations: 0"),
    ("lobby: classic-7", "lobby: classic-77"),
    ("lobby:", "loby:"),
    ("policy: heuristic", "policy: clever"),
    ("model: m", "model: mm"),
    ("model: m", "model: n"),
    (
        "environment: town_of_salem\n  conversations: 3\ngame:\n  lobby: classic-7",
        "environment: chess\n  conversations: 3",
    ),
    ("backend: scripted", "backend: vlm"),
    ("game:", "game:\ngame:"),
    ("role: player", "role: [player"),
]


def test_experiment_file_names_line_key_found_and_allowed(
    lab: Lab, at_once: AtOnce, snapshot: SnapshotAssertion
) -> None:
    told = ""
    for old, new in WRONG:
        assert old in SMALL
        (lab.path / "small.yaml").write_text(SMALL.replace(old, new, 1))
        told += f"{new}\n{refusals(at_once, ['small.yaml'])}\n"

    assert told == snapshot
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


FLAGS = (
    *("--profile night", "--set seed=many", "--set game.lobby=classic-77", "--set game.loby=classic-7", "--set seed"),
    *("--limit 0", "--concurrency none", "--seed -1", "--sed 1", "more.yaml", "--pull", "--pull --dry-run"),
)
ABSENT = (
    "nosuch.yaml",
    "nosuch.yaml --dry-run",
    ".",
    "verfy runs/small",
    "verify",
    "verify nosuch",
    "verify small.yaml",
)


def test_flags_and_what_is_not_there_are_named_with_found_and_allowed(
    lab: Lab, at_once: AtOnce, snapshot: SnapshotAssertion
) -> None:
    (lab.path / "small.yaml").write_text(SMALL)

    assert refusals(at_once, [*(f"small.yaml {flags}" for flags in FLAGS), *ABSENT]) == snapshot
    assert refusals(at_once, [""]).startswith("\nUsage")
    assert [path.name for path in lab.path.iterdir()] == ["small.yaml"]


def test_directory_used_for_something_else_is_refused_and_left_alone(lab: Lab, at_once: AtOnce) -> None:
    file = lab.write(experiment())
    (lab.path / "thesis").mkdir()
    (lab.path / "thesis" / "chapter1.tex").write_text("It was a dark night.")

    process = at_once(file, "--out", "thesis")

    assert process.returncode == 2
    assert "thesis holds 'chapter1.tex'" in process.stderr
    assert "--out" in process.stderr
    assert [path.name for path in (lab.path / "thesis").iterdir()] == ["chapter1.tex"]


@pytest.mark.ci
def test_process_ends_with_code_2_and_a_word_on_stderr(lab: Lab) -> None:
    process = lab.run("nosuch.yaml")

    assert process.returncode == 2
    assert process.stdout == ""
    assert process.stderr.startswith("mac-run: nosuch.")


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
    assert f"{config.relative_to(lab.path)}: sead: " in told


def test_unknown_verb_is_distinguished_from_a_file(at_once: AtOnce) -> None:
    process = at_once("compare", "runs/one", "runs/other")

    assert process.returncode == Exit.BAD_INPUT
    verbs = "the verbs are calibrate, check, doctor, export, fleet, fork, format, import, init, merge"
    assert f"'compare'; {verbs}" in process.stderr


def test_misplaced_key_at_the_top_is_reported_with_its_section(at_once: AtOnce, lab: Lab) -> None:
    process = at_once(lab.write(experiment()), "--set", "conversations=5")

    assert process.returncode == Exit.BAD_INPUT
    assert "at conversation_config.conversations" in process.stderr
