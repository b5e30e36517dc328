"""`mac-run verify` finds what was changed behind the back of a run, and changes nothing itself."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.cli.process import Exit
from mac_runner.runs.testing import check_tables, summary_of
from mac_runner.store import has_run, is_grid, read_grid, verify_run
from tests.cli.lab import AtOnce, Lab, experiment, render_other_prompts, scripted
from tests.patience import ended, wait_for

CALLS = 6
"""From the name of the first transcript to its row in the index."""
HELD = f"""
import time
from pathlib import Path
from threading import get_ident
from mac_runner.cli import main
from mac_runner.store import writer
from mac_runner.store.disk import System
gate, link, calls, writing = Path("gate"), System.link, 0, None
def held(call):
    def wait(*args):
        global calls, writing
        if writing is None and call is link and args[2].parent.name == "transcripts":
            writing = get_ident()
        if get_ident() == writing and calls < {CALLS}:
            calls += 1
            gate.touch()
            while gate.exists():
                time.sleep(0.005)
        return call(*args)
    return wait
for name in ("link", "unlink", "fsync_directory", "write", "fsync"):
    setattr(System, name, held(getattr(System, name)))
writer.WRITER_STALL_S_MAX = 3600
main()
"""


def test_verify_of_a_finished_run_is_content_and_touches_nothing(
    finished: Lab, at_once: AtOnce, snapshot: SnapshotAssertion
) -> None:
    run = finished.run_dir()
    before = run.hashes()

    process = at_once("verify", "runs/small")

    assert process.stdout == snapshot
    assert run.hashes() == before


@pytest.mark.ci
def test_run_that_is_under_way_is_verified_without_a_finding(lab: Lab) -> None:
    """Held before each call that brings a transcript to its row, and as it goes on; of a grid its tables too."""
    small = experiment(models={"m": scripted(latency_ms=1)})
    single, many = lab.write(small), lab.write({**small, "_grid": {"sweep": {"seed": [1, 2]}}}, "many.yaml")
    gate = lab.path / "gate"
    for file, out in ((single, "single"), (many, "many")):
        process, looks = lab.start(file, "--out", out, program=(sys.executable, "-c", HELD)), 0
        while process.poll() is None:
            wait_for(lambda process=process: gate.exists() or process.poll() is not None, "a gate")  # type: ignore[misc]
            is_held = gate.exists()
            notes = notes_on(lab.path / out)
            looks += is_held and bool(notes)
            gate.unlink(missing_ok=True)
            notes_on(lab.path / out)
        assert ended(process)[0] == 0
        assert looks == CALLS


def notes_on(directory: Path) -> list[str]:
    """What is said of the runs in a directory, in which nothing is wrong."""
    notes: list[str] = []
    for run in filter(has_run, (directory, *directory.glob("seed-*"))):
        report = verify_run(run, rebuild=lambda transcript: transcript, summarise=summary_of)
        assert report.findings == ()
        notes += report.notes
    if (grid := read_grid(directory) if is_grid(directory) else None) is not None:
        assert check_tables(directory, grid).findings == ()
    return notes


@pytest.mark.ci
def test_verify_plays_a_discussion_again(lab: Lab) -> None:
    small = experiment()
    del small["game"]
    small["conversation_config"] = {"environment": "discussion", "conversations": 3}
    small["discussion"] = {"topics": ["bridges"]}
    small["agent_definitions"] = [{"agent_id": "ann", "role": "participant", "model": "m"}]
    small["model_definitions"] = {"m": {"backend": "scripted", "scripted_config": {"policy": "discussant"}}}
    lab.done(lab.write(small))

    lab.verified(lab.run_dir().path)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _repeat_first_line(path: Path) -> None:
    path.write_bytes(path.read_bytes().split(b"\n")[0] + b"\n" + path.read_bytes())


def _drop_first_line(path: Path) -> None:
    path.write_bytes(path.read_bytes().split(b"\n", 1)[1])


def _copy(path: Path) -> None:
    shutil.copy(path, path.with_name("small-000009.json"))


def _change_winner(path: Path) -> None:
    path.write_text(re.sub(r'"winners":\["\w+"', '"winners":["nobody"', path.read_text(), count=1))


def _other_rules(path: Path) -> None:
    path.write_text(re.sub(r"lobby: classic-7", "lobby: classic-8", path.read_text()))


@pytest.mark.ci
@pytest.mark.parametrize(
    ("tamper", "file", "kind", "told"),
    [
        (_flip, "transcripts/small-000001.json", "damaged", "small-000001"),
        (_cut, "transcripts/small-000001.json", "damaged", "small-000001"),
        (Path.unlink, "transcripts/small-000001.json", "lost", "small-000001"),
        (_copy, "transcripts/small-000001.json", "unexpected", "small-000009"),
        (_flip, "journal/000001.jsonl", "damaged", "000001.jsonl"),
        (_repeat_first_line, "small_index.jsonl", "duplicated", "small-000000: 2 rows"),
        (_drop_first_line, "small_index.jsonl", "lost", "small-000000: no row"),
        (_cut, "small_index.jsonl", "damaged", "small_index.jsonl"),
        (_change_winner, "small_index.jsonl", "mismatched", "small-000000: its row"),
        (_other_rules, "experiment.yaml", "mismatched", "small-000000"),
    ],
)
def test_verify_names_what_was_tampered_with(
    finished: Lab, at_once: AtOnce, tamper: Callable[[Path], object], file: str, kind: str, told: str
) -> None:
    run = finished.run_dir()
    tamper(run.path / file)
    before = run.hashes()

    process = at_once("verify", "runs/small")

    assert process.returncode == 1
    assert "NOT as promised" in process.stdout
    findings = [line for line in process.stdout.splitlines() if line.startswith("- ")]
    assert any(line.startswith(f"- {kind}: ") and told in line for line in findings), findings
    assert process.stderr == ""
    assert run.hashes() == before


def test_verify_notices_that_this_version_renders_another_prompt(
    finished: Lab, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    render_other_prompts(monkeypatch)

    process = at_once("verify", "runs/small")

    assert process.returncode == 1
    assert "damaged 0, mismatched 2" in process.stdout
    assert "different in turns" in process.stdout


def test_summary_of_an_earlier_format_is_compared_but_for_its_intervals_and_what_it_did_not_count(
    finished: Lab, at_once: AtOnce
) -> None:
    path = finished.run_dir().path / "summary.json"
    written = json.loads(path.read_text())
    role = written["wins"]["by_role"]["doctor"]
    for number in (None, 2):
        earlier = json.loads(json.dumps(written))
        del earlier["format"], earlier["wins"]["by_model_and_faction"]
        earlier |= {} if number is None else {"format": number}
        earlier["wins"]["by_role"]["doctor"]["interval"] = [0.25, 0.75]
        path.write_text(json.dumps(earlier))
        assert at_once("verify", "runs/small").returncode == Exit.OK, number

        earlier["wins"]["by_role"]["doctor"]["wins"] += 1
        path.write_text(json.dumps(earlier))
        told = at_once("verify", "runs/small").stdout
        assert f"doctor.wins is {role['wins'] + 1}, expected {role['wins']}" in told
    path.write_text(json.dumps({**written, "format": 99}))
    assert "format is 99" in at_once("verify", "runs/small").stdout


@pytest.mark.ci
@pytest.mark.parametrize("content", ["seed: [", "seed: many", "[]", ""])
def test_verify_refuses_a_config_that_no_run_wrote(finished: Lab, at_once: AtOnce, content: str) -> None:
    (finished.run_dir().path / "experiment.yaml").write_text(content)

    process = at_once("verify", "runs/small")

    assert process.returncode == 2
    assert "small/experiment.yaml" in process.stderr
    assert "put back" in process.stderr
    assert "Traceback" not in process.stderr


def test_environment_that_is_not_installed_is_named_and_no_file_is_blamed(finished: Lab, at_once: AtOnce) -> None:
    path = finished.run_dir().path / "experiment.yaml"
    path.write_text(path.read_text().replace("environment: town_of_salem", "environment: chess"))

    process = at_once("verify", "runs/small")

    assert process.returncode == Exit.BAD_INPUT
    assert "environment 'chess', " in process.stderr
    assert "put back" not in process.stderr
