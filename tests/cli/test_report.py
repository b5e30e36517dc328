from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.runs import report_files
from mac_runner.types import JsonObject
from tests.cli.lab import ROOT, AtOnce, Lab, experiment, refusals, scripted

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


def figures(at_once: AtOnce, lab: Lab, *args: str) -> dict[str, Any]:
    """The rows of each figure of a report, by its name, and the state of the run."""
    at_once("report", *args, "--json", "numbers.json", "--out", "page.html").done()
    found = json.loads((lab.path / "numbers.json").read_text())
    rows = {figure["id"]: figure["rows"] for section in found["sections"] for figure in section["figures"]}
    return {**rows, "state": found["state"]}


def test_report_is_put_beside_the_run_and_changes_nothing_in_it(lab: Lab, at_once: AtOnce) -> None:
    with lab.run_dir("one").unchanged():
        process = at_once("report", "runs/one").done()
        first = (lab.path / "runs" / "one.report.html").read_bytes()
        again = at_once("report", "runs/one").done()

        assert process.stdout.startswith("runs/one.report.html: ")
        assert process.stderr.startswith("Complete: 2 of 2")
    assert (lab.path / "runs" / "one.report.html").read_bytes() == first
    assert again.stdout == process.stdout
    assert b"<script" not in first


def test_numbers_are_those_of_the_summary(lab: Lab, at_once: AtOnce) -> None:
    found, tokens = figures(at_once, lab, "runs/one"), lab.run_dir("one").summary["tokens"]

    assert found["cost"][0]["usd"] == pytest.approx((tokens["prompt"] + 2 * tokens["completion"]) / 1e6)
    assert found["endings"] == [
        {"run": "one", "ending": "finished", "count": 2, "share": 1.0, "such_as": "", "slug": ""}
    ]
    assert found["state"].startswith("Complete: 2 of 2")


def test_two_runs_are_compared(lab: Lab, at_once: AtOnce) -> None:
    process = at_once("report", "runs/one", "runs/two").done()

    page = (lab.path / "runs" / "one.against.two.report.html").read_text()
    assert process.stdout.startswith("runs/one.against.two.report.html: ")
    assert ">one and two<" in page


def test_run_that_has_not_ended_is_reported_as_of_now(lab: Lab, at_once: AtOnce, snapshot: SnapshotAssertion) -> None:
    process = lab.start_held(500, lab.write(experiment("slow", conversations=6)), "--quiet")

    running = at_once("report", "runs/slow").done().stderr
    process.kill()
    process.wait()
    stopped = at_once("report", "runs/slow").done().stderr

    assert [re.sub(r"As of \S+: \d+", "As of TIME: N", told) for told in (running, stopped)] == snapshot


def test_former_report_is_replaced_and_nothing_else(lab: Lab, at_once: AtOnce) -> None:
    foreign = {"page.html": "--out", "numbers.json": "--json"}
    for name, flag in foreign.items():
        (lab.path / f"my.{name}").write_text("mine")
        page = ("--out", "fresh.html") if flag == "--json" else ()

        assert f"{flag}: my.{name} is" in refusals(at_once, [("report", "runs/one", *page, flag, f"my.{name}")])
        assert (lab.path / f"my.{name}").read_text() == "mine"
    assert not (lab.path / "fresh.html").exists()


def test_what_cannot_be_reported_is_refused_with_what_to_do(
    lab: Lab, at_once: AtOnce, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    """Without the extra, without a browser, no run, an address that is none."""
    script = ("report", "runs/one", "--out", "none.html", "--viewer", "javascript:alert(1)")
    told = refusals(at_once, ["report nowhere", script])
    monkeypatch.setenv("PATH", str(tmp_path))
    told += refusals(at_once, ["report runs/one --out none.html --pdf"])
    monkeypatch.setattr(report_files, "find_spec", lambda name: None if name == "vl_convert" else object())
    told += refusals(at_once, ["report runs/one --out none.html"])

    assert told.replace(str(ROOT), "CLONE") == snapshot
    assert not (lab.path / "none.html").exists()


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium: Debian's package of that name has it")
def test_pdf_is_printed_and_replaced(lab: Lab, at_once: AtOnce) -> None:
    for _ in range(2):
        at_once("report", "runs/two", "--out", "print.html", "--pdf").done()

    data = (lab.path / "print.pdf").read_bytes()
    assert data.startswith(b"%PDF-")
    assert data.endswith(b"mac_runner report\n")


def test_addresses_and_folders_of_the_machine_are_left_out(lab: Lab, at_once: AtOnce) -> None:
    at_once("report", str(lab.path / "runs" / "one"), "--out", "abroad.html").done()

    page = (lab.path / "abroad.html").read_text()
    assert str(lab.path) not in page
    assert not re.search(r"https?://(?!vega\.github\.io|www\.w3\.org)", page)


def test_link_to_a_published_run_is_an_address(lab: Lab, at_once: AtOnce) -> None:
    at_once("report", "runs/one", "--out", "linked.html", "--viewer", "published/index.html").done()

    assert '"published/index.html"' in (lab.path / "linked.html").read_text()
