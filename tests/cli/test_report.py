from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mac_runner.runs import report_files
from mac_runner.types import JsonObject
from tests.cli.lab import AtOnce, Lab, experiment, scripted
from tests.patience import wait_for

pytestmark = pytest.mark.ci


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Two games of one seed, played by two policies; not to be changed."""
    lab = Lab(path=tmp_path_factory.mktemp("report"))
    prices: JsonObject = {"usd_per_mtok": {"prompt": 1.0, "completion": 2.0}}
    lab.play(lab.write(experiment("one", models={"m": {**scripted(), **prices}})), "--quiet")
    lab.play(lab.write(experiment("two", models={"m": scripted("random")})), "--quiet")
    yield lab
    lab.close()


def done(at_once: AtOnce, *args: str) -> subprocess.CompletedProcess[str]:
    """Make a report in this process, which imports what draws it only once."""
    process = at_once("report", *args)
    assert process.returncode == 0, process.stderr
    return process


def numbers(lab: Lab, at_once: AtOnce, *args: str) -> JsonObject:
    """The numbers of a report."""
    done(at_once, *args, "--json", "numbers.json", "--out", "page.html")
    found: JsonObject = json.loads((lab.path / "numbers.json").read_text())
    return found


def figure(report: JsonObject, name: str) -> JsonObject:
    sections = report["sections"]
    assert isinstance(sections, list)
    every = [one for section in sections if isinstance(section, dict) for one in section["figures"]]  # type: ignore[union-attr]
    return next(one for one in every if isinstance(one, dict) and one["id"] == name)


def test_report_is_put_beside_the_run_and_changes_nothing_in_it(lab: Lab, at_once: AtOnce) -> None:
    before = lab.run_dir("one").hashes()

    process = lab.done("report", "runs/one")
    first = (lab.path / "runs" / "one.report.html").read_bytes()
    again = done(at_once, "runs/one")

    assert process.stdout.startswith("runs/one.report.html: ")
    assert process.stderr == "Complete: 2 of 2 conversations have ended.\n"
    assert lab.run_dir("one").hashes() == before
    assert (lab.path / "runs" / "one.report.html").read_bytes() == first
    assert again.stdout == process.stdout
    assert b"<script" not in first


def test_numbers_are_those_of_the_summary(lab: Lab, at_once: AtOnce) -> None:
    found, summary = numbers(lab, at_once, "runs/one"), lab.run_dir("one").summary

    cost = figure(found, "cost")["rows"]
    tokens = summary["tokens"]
    assert isinstance(tokens, dict)
    assert isinstance(cost, list)
    expected = (int(str(tokens["prompt"])) + 2 * int(str(tokens["completion"]))) / 1e6
    assert cost[0]["usd"] == pytest.approx(expected)  # type: ignore[call-overload,index]
    assert figure(found, "endings")["rows"] == [
        {"run": "one", "ending": "finished", "count": 2, "share": 1.0, "such_as": "", "slug": ""}
    ]
    assert found["state"] == "Complete: 2 of 2 conversations have ended."


def test_two_runs_are_compared(lab: Lab, at_once: AtOnce) -> None:
    process = done(at_once, "runs/one", "runs/two")

    page = (lab.path / "runs" / "one.against.two.report.html").read_text()
    assert process.stdout.startswith("runs/one.against.two.report.html: ")
    assert "<title>one and two</title>" in page


def test_run_that_has_not_ended_is_reported_as_of_now(lab: Lab, at_once: AtOnce) -> None:
    slow = experiment("slow", conversations=200, models={"m": scripted(capacity=2, latency_ms=20)})
    process = lab.start(lab.write(slow), "--quiet")
    transcripts = lab.path / "runs" / "slow" / "transcripts"
    wait_for(lambda: transcripts.is_dir() and any(transcripts.glob("*.json")), "a game that has ended")

    running = done(at_once, "runs/slow").stderr
    process.kill()
    process.wait()
    stopped = done(at_once, "runs/slow").stderr

    assert re.fullmatch(r"As of \S+: \d+ of 200 conversations have ended; the run goes on\.\n", running)
    assert re.fullmatch(r"As of \S+: \d+ of 200 .* have ended; nothing is at work on the rest\.\n", stopped)


def test_former_report_is_replaced_and_nothing_else(lab: Lab, at_once: AtOnce) -> None:
    foreign = {"page.html": "--out", "numbers.json": "--json"}
    for name, flag in foreign.items():
        (lab.path / f"my.{name}").write_text("mine")
        page = ("--out", "fresh.html") if flag == "--json" else ()

        process = at_once("report", "runs/one", *page, flag, f"my.{name}")

        assert process.returncode == 2
        assert f"{flag}: my.{name} is there already and is not a report" in process.stderr
        assert (lab.path / f"my.{name}").read_text() == "mine"
    assert not (lab.path / "fresh.html").exists()


def test_without_the_extra_it_says_what_to_install(lab: Lab, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_files, "find_spec", lambda name: None if name == "vl_convert" else object())

    process = at_once("report", str(lab.path / "runs" / "one"), "--out", str(lab.path / "none.html"))

    assert process.returncode == 2
    assert (
        "a report needs vl-convert-python, which is not installed: pip install 'mac_runner[report]'" in process.stderr
    )
    assert not (lab.path / "none.html").exists()


def test_pdf_needs_a_browser(lab: Lab, tmp_path: Path) -> None:
    process = lab.run("report", "runs/one", "--out", "print.html", "--pdf", env={"PATH": str(tmp_path)})

    assert process.returncode == 2
    assert "--pdf: no Chromium or Chrome is on the PATH" in process.stderr
    assert not (lab.path / "print.html").exists()


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium: Debian's package of that name has it")
def test_pdf_is_printed_and_replaced(lab: Lab, at_once: AtOnce) -> None:
    for _ in range(2):
        done(at_once, "runs/two", "--out", "print.html", "--pdf")

    data = (lab.path / "print.pdf").read_bytes()
    assert data.startswith(b"%PDF-")
    assert data.endswith(b"% mac_runner report\n")


def test_addresses_and_folders_of_the_machine_are_left_out(lab: Lab, at_once: AtOnce) -> None:
    done(at_once, str(lab.path / "runs" / "one"), "--out", "abroad.html")

    page = (lab.path / "abroad.html").read_text()
    assert str(lab.path) not in page
    assert not re.search(r"https?://(?!vega\.github\.io|www\.w3\.org)", page)


def test_link_to_a_published_run_is_an_address(lab: Lab, at_once: AtOnce) -> None:
    refused = at_once("report", "runs/one", "--out", "linked.html", "--viewer", "javascript:alert(1)")
    done(at_once, "runs/one", "--out", "linked.html", "--viewer", "published/index.html")

    assert refused.returncode == 2
    assert "--viewer: 'javascript:alert(1)' is no page" in refused.stderr
    assert '<a href="published/index.html">' in (lab.path / "linked.html").read_text()


def test_what_is_no_run_is_refused(lab: Lab, at_once: AtOnce) -> None:
    process = at_once("report", "nowhere")

    assert process.returncode == 2
    assert "nowhere is not a run directory" in process.stderr
