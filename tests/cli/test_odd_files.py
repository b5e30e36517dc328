"""FIFOs, sockets, devices, directories and links where files belong: told at once, and nothing is touched."""

from __future__ import annotations

import os
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

from mac_runner.cli.process import Exit
from tests.cli.lab import AtOnce, Lab, discussion, experiment
from tests.cli.test_starting import NOWHERE, openai
from tests.faults.tier import one_in
from tests.patience import LIMIT_S

HANGS_S: Final = int(LIMIT_S)


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


def tree(directory: Path) -> dict[str, bytes | str]:
    """Every name below a directory, and the bytes of what is a file."""
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() and not path.is_symlink() else "other"
        for path in sorted(directory.rglob("*"))
    }


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
    files = {
        "odd": "odd",
        "questions": lab.write(discussion(openai(NOWHERE, "m"), discussion={"questions": ["odd"]}), "questions.yaml"),
        "template": lab.write(
            discussion(openai(NOWHERE, "m"), discussion={"topics": ["Who?"], "prompt": {"template_file": "odd"}}),
            "template.yaml",
        ),
    }
    for what, file in files.items():
        with no_hanging():
            ended = at_once(file, "--dry-run")

        assert ended.returncode == Exit.BAD_INPUT, what
        assert f"be read: {told}" in ended.stderr, what
    with no_hanging():
        assert at_once("format", "bbq", "odd", "--out", "new.jsonl").returncode == Exit.BAD_INPUT


def test_experiment_through_a_pipe_is_refused_with_a_reason(lab: Lab, at_once: AtOnce) -> None:
    """`mac-run <(...)` names a pipe: the run could not be gone on with, for it could not be read again."""
    lab.write(experiment())
    reader, writer = os.pipe()
    try:
        with no_hanging():
            ended = at_once(f"/dev/fd/{reader}")
    finally:
        os.close(reader)
        os.close(writer)

    assert ended.returncode == Exit.BAD_INPUT
    assert "FIFO (named pipe)" in ended.stderr


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
    single = lab.write(experiment())
    grid = lab.write(experiment(_grid={"sweep": {"seed": [1, 2]}}), "grid.yaml")
    make_odd(lab.path / "odd", kind)
    before = tree(lab.path)
    wrong: list[str] = []
    for file in (single, grid):
        for out in ("odd", "odd/below", "odd/below/further"):
            for flag in ("--dry-run", "--quiet"):
                with no_hanging():
                    ended = at_once(file, "--out", out, flag)
                is_told = f"cannot use {out} as a directory: odd" in ended.stderr and "--out" in ended.stderr
                if ended.returncode != Exit.BAD_INPUT or not is_told:
                    wrong.append(f"{file} --out {out} {flag}: {ended.returncode}, {ended.stderr}")

    assert not wrong, "\n".join(wrong)
    assert tree(lab.path) == before


def test_name_that_no_filesystem_takes_is_bad_input(lab: Lab, at_once: AtOnce) -> None:
    for flag in ("--dry-run", "--quiet"):
        ended = at_once(lab.write(experiment()), "--out", "n" * 300, flag)

        assert ended.returncode == Exit.BAD_INPUT
        assert "name too long" in ended.stderr


@pytest.mark.ci
def test_link_in_the_place_of_the_lock_is_refused_and_what_it_leads_to_is_left_alone(
    finished: Lab, at_once: AtOnce
) -> None:
    thesis, lock = finished.path / "thesis.tex", finished.run_dir().path / ".lock"
    thesis.write_text("It was a dark night.")
    lock.unlink(missing_ok=True)
    lock.symlink_to(thesis)

    ended = at_once("small.yaml", "--set", "conversation_config.conversations=3")

    assert ended.returncode == Exit.BAD_INPUT
    assert ".lock: it is" in ended.stderr
    assert thesis.read_text() == "It was a dark night."
