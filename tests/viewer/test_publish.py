"""`mac-run publish`: what is in the folder, what is not, and where it may be written."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from mac_runner.cli.process import Exit
from mac_runner.store import read_run
from mac_runner.store.testing import Machine
from mac_runner.types import JsonObject
from mac_runner.views.testing import perspective, whole_view
from tests.cli.conftest import at_once as at_once
from tests.cli.lab import AtOnce, Lab, experiment
from tests.kit import played as run_of

GAMES = 2


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two short games; not to be changed."""
    game: JsonObject = {"lobby": "classic-7", "calendar": {"max_days": 3}}
    return run_of(experiment(conversations=GAMES, game=game), tmp_path_factory.mktemp("played") / "small")


def unpacked(folder: Path) -> dict[str, Any]:
    """The data of a publication, by name, with the shared texts in their places."""
    found = {}
    for file in sorted(folder.glob("data/**/*.js")):
        match = re.fullmatch(r'__mac_data\("([^"]+)","([A-Za-z0-9+/=]+)"\);\n', file.read_text("ascii"))
        assert match is not None, file
        assert file == folder / "data" / f"{match[1]}.js"
        table, value = json.loads(gzip.decompress(base64.b64decode(match[2])))
        found[match[1]] = expanded(value, table)
    return found


def expanded(value: Any, table: list[str]) -> Any:
    match value:
        case str():
            return table[int(value[1:])] if value.startswith("\x01") else value
        case dict():
            return {key: expanded(part, table) for key, part in value.items()}
        case list():
            return [expanded(part, table) for part in value]
        case _:
            return value


def everything(folder: Path) -> str:
    """All that is in a publication but the front end, as one text."""
    others = [file.read_text() for file in sorted(folder.glob("*")) if file.suffix in (".html", ".json", ".txt")]
    return json.dumps([unpacked(folder), others], ensure_ascii=False)


def digests(folder: Path) -> dict[str, str]:
    files = (file for file in sorted(folder.rglob("*")) if file.is_file())
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def publish(at_once: AtOnce, run: Path, out: str, *flags: str) -> str:
    process = at_once("publish", str(run), out, *flags)
    assert process.returncode == Exit.OK, process.stderr
    return process.stdout


@pytest.mark.ci
def test_publication_holds_every_conversation_as_all_and_as_each_seat(lab: Lab, played: Path, at_once: AtOnce) -> None:
    before = digests(played)
    words = publish(at_once, played, "out")

    found, contents = unpacked(lab.path / "out"), read_run(played)
    assert "2 of 2 conversations" in words
    assert found["0/index"]["rows"] == GAMES
    for number in range(GAMES):
        view = whole_view(contents.transcript(f"small-{number:06d}"))
        seen, turns = found[f"0/c0/{number}"], found[f"0/t0/{number}"]
        assert [event["text"] for event in seen["whole"]["events"]] == [event.text for event in view.events]
        for seat, own, acts in zip(view.seats, seen["seats"], turns["seats"], strict=True):
            expected = perspective(view, seat)
            assert own["seat"] == seat
            assert [event["text"] for event in own["events"]] == [event.text for event in expected.events]
            assert {turn["agent"] for turn in acts} == {seat}
            assert [turn["key"] for turn in acts] == [turn.key for turn in expected.turns]
        assert all(turn["prompt"] and turn["reply"] for turn in turns["whole"])
    assert digests(played) == before


@pytest.mark.ci
def test_same_run_makes_the_same_bytes(lab: Lab, played: Path, at_once: AtOnce) -> None:
    publish(at_once, played, "out")
    once = digests(lab.path / "out")

    publish(at_once, played, "out")

    assert digests(lab.path / "out") == once
    assert [path.name for path in lab.path.iterdir()] == ["out"]


@pytest.mark.ci
def test_thoughts_that_are_left_out_are_nowhere(lab: Lab, played: Path, at_once: AtOnce) -> None:
    words = publish(at_once, played, "out", "--no-thoughts")
    publish(at_once, played, "whole")

    turns = [turn for name, data in unpacked(lab.path / "whole").items() if "/t" in name for turn in data["whole"]]
    spoken = {turn["thought"] for turn in turns if len(turn.get("thought", "")) > 20}
    found, whole = everything(lab.path / "out"), everything(lab.path / "whole")
    assert "thoughts" in words
    assert len(spoken) > 10
    assert all(thought in whole for thought in spoken)
    assert [thought for thought in spoken if thought in found] == []
    assert "thinking>" not in found
    assert unpacked(lab.path / "out")["0/run"]["left_out"] == ["thoughts"]


def test_thoughts_that_a_failure_or_others_quote_are_left_out_too(lab: Lab, played: Path, at_once: AtOnce) -> None:
    """A quotation may be cut inside a thought, and have other brackets or quotation marks."""
    run = lab.path / "run"
    shutil.copytree(played, run)
    path = run / "transcripts" / "small-000001.json"
    transcript = json.loads(path.read_text())
    secret = 'I "zigzag" among them tonight'
    turn, events = transcript["turns"][0], transcript["record"]["events"]
    turn["reply"]["thinking"] = secret
    turn["receipt"]["detail"] = f"it cannot be used: found <thinking>{secret}, so that"
    transcript["failure"] = f"no usable reply: {secret}</thinking><speak>"
    events[0]["text"] = "You answered: " + json.dumps({"why": secret})
    events[1]["text"] = "Abel: yes ‹think›zigzag no more‹/think›"
    path.write_text(json.dumps(transcript))

    publish(at_once, run, "out", "--no-thoughts", "--no-prompts")

    found = everything(lab.path / "out")
    assert "be used: found" in found
    assert "zigzag" not in found


def test_prompts_that_are_left_out_are_nowhere(lab: Lab, played: Path, at_once: AtOnce) -> None:
    words = publish(at_once, played, "out", "--no-prompts")

    data = unpacked(lab.path / "out")
    turns = [turn for name, found in data.items() if "/t" in name for turn in found["whole"]]
    assert "prompts" in words
    assert turns
    assert not any("prompt" in turn or "difference" in turn for turn in turns)
    assert {turn["prompt_missing"] for turn in turns} == {"this publication leaves prompts out"}


def test_addresses_paths_and_machines_go_nowhere(lab: Lab, played: Path, at_once: AtOnce) -> None:
    """Neither from the settings nor from what an engine's failure says."""
    run = lab.path / "run"
    shutil.copytree(played, run)
    config = (run / "experiment.yaml").read_text()
    engine = "http://10.20.30.40:8765/v1"
    changed = config.replace("description: ''", f"description: see {engine} at {run}")
    assert changed != config
    (run / "experiment.yaml").write_text(changed)
    path = run / "transcripts" / "small-000001.json"
    transcript = json.loads(path.read_text())
    failure = (
        f"POST {engine}/chat on {Machine().host}: refused; see /var/log/engine/a.log and 10.20.30.40:8765; "
        "host gpu7:8000 and [fe80::7]:8000 have the key sk-0123456789abc; ~/.netrc"
    )
    transcript["turns"][0]["timing"]["faults"] = [failure]
    path.write_text(json.dumps(transcript))

    publish(at_once, run, "out")

    found = everything(lab.path / "out")
    assert "refused" in found
    for private in (
        "10.20.30.40",
        "8765",
        "/var/log",
        "gpu7",
        "fe80",
        "sk-0",
        "netrc",
        str(lab.path),
        f"on {Machine().host}",
    ):
        assert private not in found, private


def test_only_and_sample_choose_what_goes_out(lab: Lab, played: Path, at_once: AtOnce) -> None:
    everywhere = turns_by_number(lab, played, at_once)
    fewest = min(turns for _, turns in everywhere)

    publish(at_once, played, "few", "--no-prompts", "--only", f"turns<={fewest}")
    words = publish(at_once, played, "sample", "--no-prompts", "--sample", "1")

    few, sample = unpacked(lab.path / "few"), unpacked(lab.path / "sample")
    assert few["0/index"]["rows"] == sum(turns == fewest for _, turns in everywhere)
    assert "conversations (a sample" in words
    assert sample["0/run"]["is_sample"]
    shown = sample["0/index"]["numbers"]
    assert sum(shown["published"]["numbers"]) == 1
    for number, is_there in zip(shown["number"]["numbers"], shown["published"]["numbers"], strict=True):
        assert (f"0/c0/{number}" in sample) == bool(is_there)


def turns_by_number(lab: Lab, played: Path, at_once: AtOnce) -> list[tuple[int, int]]:
    publish(at_once, played, "all", "--no-prompts")
    numbers = unpacked(lab.path / "all")["0/index"]["numbers"]
    return [*zip(numbers["number"]["numbers"], numbers["turns"]["numbers"], strict=True)]


def test_place_that_holds_something_else_is_left_alone(lab: Lab, played: Path, at_once: AtOnce) -> None:
    run = lab.path / "run"
    shutil.copytree(played, run)
    (lab.path / "full").mkdir()
    (lab.path / "full" / "mine.txt").write_text("mine")
    (lab.path / "file").write_text("mine")
    before = digests(lab.path)

    for out, flags, words in (
        ("full", (), "holds no publication"),
        ("file", (), "is a file"),
        ("run", (), "inside one another"),
        ("run/pages", (), "inside one another"),
        (".", (), "inside one another"),
        ("new", ("--sample", "0"), "--sample"),
        ("new", ("--only", "colour=red"), "there is no 'colour'"),
    ):
        process = at_once("publish", str(run), out, *flags)
        assert process.returncode == Exit.BAD_INPUT, out
        assert words in process.stderr, process.stderr
    assert at_once("publish", str(lab.path / "nothing"), "new").returncode == Exit.BAD_INPUT
    assert digests(lab.path) == before
    assert not (lab.path / "new").exists()


@pytest.mark.ci
def test_publishing_anew_removes_nothing_but_the_former_publication(lab: Lab, played: Path, at_once: AtOnce) -> None:
    publish(at_once, played, "out", "--no-prompts")
    (lab.path / "mine").mkdir()
    (lab.path / "mine" / "file").write_text("mine")
    (lab.path / "out" / "data" / "link").symlink_to(lab.path / "mine")
    (lab.path / "way").symlink_to("out")

    publish(at_once, played, "way", "--no-prompts")

    assert sorted(path.name for path in lab.path.iterdir()) == ["mine", "out", "way"]
    assert (lab.path / "way").is_symlink()
    assert (lab.path / "mine" / "file").read_text() == "mine"
    assert not (lab.path / "out" / "data" / "link").exists()
    (lab.path / "out" / ".git").mkdir()
    (lab.path / "out" / ".git" / "HEAD").write_text("history")
    before = digests(lab.path)
    for flags, words in (((), "holds .git too"), (("--only", "days>500"), "no conversation")):
        process = at_once("publish", str(played), "new" if flags else "out", *flags)
        assert process.returncode == Exit.BAD_INPUT
        assert words in process.stderr
    assert digests(lab.path) == before


def test_damaged_transcript_leaves_the_former_publication(lab: Lab, played: Path, at_once: AtOnce) -> None:
    run = lab.path / "run"
    shutil.copytree(played, run)
    publish(at_once, run, "out", "--no-prompts")
    before = digests(lab.path / "out")
    (run / "transcripts" / "small-000001.json").write_text("{")

    process = at_once("publish", str(run), "out")

    assert process.returncode == Exit.BAD_INPUT
    assert "small-000001.json" in process.stderr
    assert digests(lab.path / "out") == before
    assert sorted(path.name for path in lab.path.iterdir()) == ["out", "run"]


def test_run_under_way_is_published_as_it_is(lab: Lab, at_once: AtOnce) -> None:
    run_of(experiment(conversations=2), lab.path / "once", limit=1)

    words = publish(at_once, lab.path / "once", "out", "--no-prompts")

    assert "1 of 1 conversations" in words
    assert unpacked(lab.path / "out")["0/index"]["rows"] == 1


@pytest.mark.ci
def test_grid_is_published_with_its_combinations(lab: Lab, at_once: AtOnce) -> None:
    grid: JsonObject = {"sweep": {"seed": [1, 2]}}

    publish(at_once, run_of(experiment(conversations=2, _grid=grid), lab.path / "grid"), "out", "--no-prompts")

    found = unpacked(lab.path / "out")
    assert len(found["0/run"]["combinations"]) == 2
    assert {name for name in found if name.endswith(("/index", "/c0/1"))} == {"1/index", "2/index", "1/c0/1", "2/c0/1"}


def test_page_of_one_conversation_holds_it_alone(lab: Lab, played: Path, at_once: AtOnce) -> None:
    seat = whole_view(read_run(played).transcript("small-000001")).seats[0]
    for flags, seats, shown in (((), 7, None), (("--seat", seat), 1, seat)):
        name = f"page{seats}.html"
        assert at_once("show", str(played), "1", "--html", name, *flags).returncode == Exit.OK
        page = (lab.path / name).read_text()
        data = {
            found[1]: expanded(*reversed(json.loads(gzip.decompress(base64.b64decode(found[2])))))
            for found in re.finditer(r'type="application/octet-stream" id="data:([^"]+)">([^<]+)</script>', page)
        }
        assert set(data) == {"0/run", "0/index", "0/c0/1", "0/t0/1"}
        views = data["0/c0/1"]
        assert len(views["seats"]) == seats
        assert views["whole"].get("seat") == shown
        assert "http" not in re.sub(r"http://www\.w3\.org/[\w/]+|http-equiv", "", page)
        refused = at_once("show", str(played), "1", "--html", name)
        assert (refused.returncode, "is there already" in refused.stderr) == (Exit.BAD_INPUT, True)
