"""Bad input and what is no file where one belongs: code 2, its place and what is allowed, and nothing is touched."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from types import FrameType
from typing import Final

import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.cli.process import Exit
from tests.cli.lab import AtOnce, Lab, discussion, experiment, refusals, served
from tests.faults.tier import one_in
from tests.kit import undigested
from tests.patience import LIMIT_S

HANGS_S: Final = int(LIMIT_S)
NOWHERE = "http://127.0.0.1:9"
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
        in_file = at_once("small.yaml --dry-run")
        (lab.path / "small.yaml").write_text(SMALL)
        for flags in (("--seed", number), ("--set", f"seed={number}"), ("--limit", number), ("--concurrency", number)):
            ended = at_once("small.yaml --dry-run", *flags)
            # Behind a flag nothing is empty, where in a file it is null.
            reason = "empty" if not number.strip() else in_file.stderr.rpartition(": ")[2]
            if (ended.returncode, in_file.returncode) != (2, 2) or reason not in ended.stderr:
                wrong.append(f"{flags}: {ended.stderr}; the file: {in_file.stderr}")

    assert not wrong, "\n".join(wrong)
    at_once("small.yaml --dry-run --seed", "9" * 18).done()


FLAGS = (
    *("--profile night", "--set seed=many", "--set game.lobby=classic-77", "--set game.loby=classic-7", "--set seed"),
    *("--limit 0", "--concurrency none", "--seed -1", "more.yaml", "--pull", "--pull --dry-run"),
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
    at_once("small.yaml --sed 1").refused("--sed", "--seed")  # In words that change with the releases of click.
    assert [path.name for path in lab.path.iterdir()] == ["small.yaml"]


@pytest.mark.parametrize("flags", ["", "--set=_grid={sweep: {seed: [1, 2]}}", "--shard=auto/3"])
def test_directory_used_for_something_else_is_refused_and_left_alone(lab: Lab, at_once: AtOnce, flags: str) -> None:
    (lab.path / "thesis").mkdir()
    (lab.path / "thesis" / "chapter1.tex").write_text("It was a dark night.")
    lab.write(experiment())
    with lab.unchanged():
        at_once("small.yaml --out thesis", *([flags] if flags else [])).refused("thesis holds 'chapter1.tex'", "--out")


@pytest.mark.ci
def test_process_ends_with_code_2_and_a_word_on_stderr(lab: Lab) -> None:
    assert lab.run("nosuch.yaml").refused().stderr.startswith("mac-run: nosuch.")


@pytest.mark.ci
def test_experiment_of_a_run_that_was_edited_is_refused_by_every_verb_in_our_words(lab: Lab, at_once: AtOnce) -> None:
    """Its `experiment.yaml` with every kind of value where others belong: no crash, and no words but ours."""
    file = lab.write(experiment(conversations=1))
    at_once(file, "--out", "run", "--quiet")
    config = lab.path / "run" / "experiment.yaml"
    text, wrong = undigested(config), list[str]()
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
    told = at_once("verify run").stderr
    assert f"{config.relative_to(lab.path)}: sead: " in told


@pytest.mark.parametrize("verb", ["verify runs/small", "merge whole runs/small --quiet"])
def test_run_whose_file_holds_no_experiment_is_bad_input(finished: Lab, at_once: AtOnce, verb: str) -> None:
    for content in ("seed: [", "seed: many", "[]", "", "{}\n", "experiment_metadata: {experiment_name: small}\n"):
        (finished.path / "runs/small/experiment.yaml").write_text(content)
        with finished.unchanged():
            process = at_once(verb).refused("small/experiment.yaml", "put back")
        assert "pydantic" not in process.stderr


def test_unknown_verb_is_distinguished_from_a_file(at_once: AtOnce) -> None:
    verbs = "the verbs are calibrate, check, doctor, export, fleet, fork, import, init, merge"
    at_once("compare runs/one runs/other").refused(f"'compare'; {verbs}")


def test_misplaced_key_at_the_top_is_reported_with_its_section(at_once: AtOnce) -> None:
    at_once(experiment(), "--set", "max_retries=5").refused("at retry_config.max_retries")


def make_odd(path: Path, kind: str) -> None:
    """Have something of a kind at `path`, in the place of what is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    match kind:
        case "FIFO":
            os.mkfifo(path)
        case "socket":
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(os.path.relpath(path))
        case "directory":
            path.mkdir()
        case "file":
            path.write_text("It was a dark night.")
        case "link":
            path.symlink_to("nowhere")
        case "loop":
            path.symlink_to(path.name)
        case "device":
            path.symlink_to("/dev/zero")


@contextmanager
def no_hanging() -> Iterator[None]:
    """Break off what waits for ever."""

    def break_off(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, break_off)
    signal.alarm(HANGS_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("FIFO", "it is a FIFO"),
        ("socket", "it is a socket"),
        ("directory", "it is a directory"),
        ("device", "it is a device"),
        ("link", "it is a link to a file that is not there"),
        ("loop", "Too many levels of symbolic links"),
    ],
)
def test_experiment_question_and_template_that_are_no_files_are_bad_input(
    lab: Lab, at_once: AtOnce, kind: str, told: str
) -> None:
    make_odd(lab.path / "odd", kind)
    for name, section in (
        ("questions.yaml", {"questions": ["odd"]}),
        ("template.yaml", {"topics": ["Who?"], "prompt": {"template_file": "odd"}}),
    ):
        lab.write(discussion(served(NOWHERE, "m"), discussion=section), name)  # type: ignore[arg-type]
    for file in ("odd", "questions.yaml", "template.yaml"):
        with no_hanging():
            at_once(f"{file} --dry-run").refused(f"be read: {told}")
    with no_hanging():
        at_once("format bbq odd --out new.jsonl").refused()


def test_experiment_through_a_pipe_is_refused_with_a_reason(at_once: AtOnce) -> None:
    """`mac-run <(...)` names a pipe: the run could not be gone on with, for it could not be read again."""
    reader, writer = os.pipe()
    try:
        with no_hanging():
            at_once(f"/dev/fd/{reader}").refused("FIFO (named pipe)")
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.ci
@pytest.mark.parametrize("kind", ["FIFO", "directory", "link"])
def test_nothing_in_the_place_of_a_run_file_is_waited_for(finished: Lab, at_once: AtOnce, kind: str) -> None:
    """Every name of a run directory, as every verb finds it."""
    done, run = finished.run_dir().path, finished.path / "run"
    names = sorted(str(path.relative_to(done)) for path in done.rglob("*"))
    names += [".owner.json", ".lease", ".merging.json", "shard.json", "grid.yaml", "damaged", "journal/000002.jsonl"]
    names += ["attempts", "attempts/small-000000.1.json", "transcripts/small-000009.json"]
    verbs = {
        "run": ("small.yaml", "--out", "run", "--quiet", "--set", "retry_config.max_attempts=4"),
        "dry run": ("small.yaml", "--out", "run", "--dry-run"),
        "status": ("status", "run"),
        "verify": ("verify", "run"),
        "show": ("show", "run", "1"),
        "retry": ("retry", "run", "--quiet"),
        "merge": ("merge", "merged", "run", "--quiet"),
    }
    wrong: list[str] = []
    for name, verb in one_in(3, product(names, verbs)):
        command = verbs[verb]
        shutil.rmtree(run, ignore_errors=True)
        shutil.rmtree(finished.path / "merged", ignore_errors=True)
        shutil.copytree(done, run)
        make_odd(run / name, kind)
        try:
            with no_hanging():
                ended = at_once(*command)
        except TimeoutError:
            wrong.append(f"{verb} with a {kind} as {name} hangs")
            continue
        if ended.returncode not in {Exit.OK, Exit.FAILURES, Exit.BAD_INPUT} or "Traceback" in ended.stderr:
            wrong.append(f"{verb} with a {kind} as {name}: {ended.returncode}, {ended.stderr}")

    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("kind", ["FIFO", "socket", "file", "link", "loop"])
def test_place_that_can_be_no_directory_is_bad_input_in_a_dry_run_as_well(lab: Lab, at_once: AtOnce, kind: str) -> None:
    lab.write(experiment())
    lab.write(experiment(_grid={"sweep": {"seed": [1, 2]}}), "grid.yaml")
    make_odd(lab.path / "odd", kind)
    places = ("odd", "odd/below", "odd/below/further")
    with lab.unchanged():
        for file, out, flag in product(("small.yaml", "grid.yaml"), places, ("--dry-run", "--quiet")):
            with no_hanging():
                at_once(f"{file} --out {out} {flag}").refused(f"cannot use {out} as a directory: odd", "--out")


@pytest.mark.parametrize("flag", ["--dry-run", "--quiet"])
def test_name_that_no_filesystem_takes_is_bad_input(at_once: AtOnce, flag: str) -> None:
    at_once(experiment(), "--out", "n" * 300, flag).refused("name too long")


@pytest.mark.ci
def test_link_in_the_place_of_the_lock_is_refused_and_what_it_leads_to_is_left_alone(
    finished: Lab, at_once: AtOnce
) -> None:
    thesis, lock = finished.path / "thesis.tex", finished.run_dir().path / ".lock"
    thesis.write_text("It was a dark night.")
    lock.unlink(missing_ok=True)
    lock.symlink_to(thesis)

    at_once("small.yaml --set conversation_config.conversations=3").refused(".lock: it is")

    assert thesis.read_text() == "It was a dark night."
