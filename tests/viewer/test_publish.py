"""`mac-run publish`: what is in the folder, what is not, and where it may be written."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from mac_runner.cli.process import Exit
from mac_runner.store import read_run
from mac_runner.store.testing import Machine
from mac_runner.types import JsonObject
from mac_runner.views.testing import perspective, whole_view
from tests.cli.conftest import at_once as at_once
from tests.cli.lab import AtOnce, Lab, experiment
from tests.kit import acknowledge, undigested
from tests.kit import played as run_of

GAMES = 2


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two short games; not to be changed."""
    game: JsonObject = {"lobby": "classic-7", "calendar": {"max_days": 3}}
    return run_of(experiment(conversations=GAMES, game=game), tmp_path_factory.mktemp("played") / "small")


@dataclass(frozen=True, slots=True)
class Publication:
    """A folder, and what was said when it was written."""

    folder: Path
    words: str

    @property
    def data(self) -> dict[str, Any]:
        """Its data by name, with the shared texts in their places."""
        found = {}
        for file in sorted(self.folder.glob("data/**/*.js")):
            match = re.fullmatch(r'__mac_data\("([^"]+)","([A-Za-z0-9+/=]+)"\);\n', file.read_text("ascii"))
            assert match is not None, file
            assert file == self.folder / "data" / f"{match[1]}.js"
            found[match[1]] = unpacked(match[2])
        return found

    @property
    def text(self) -> str:
        """All that is in it but the front end, as one text."""
        others = [
            file.read_text() for file in sorted(self.folder.glob("*")) if file.suffix in (".html", ".json", ".txt")
        ]
        return json.dumps([self.data, others], ensure_ascii=False)

    @property
    def turns(self) -> list[dict[str, Any]]:
        """The turns of all conversations, as nobody in particular sees them."""
        return [turn for name, found in self.data.items() if "/t" in name for turn in found["whole"]]


Publish: TypeAlias = Callable[..., Publication]
"""Publishes a run, with flags, in the folder `out`."""


@pytest.fixture
def publish(lab: Lab, played: Path, at_once: AtOnce) -> Publish:
    def publish(*flags: str, run: Path = played, out: str = "out") -> Publication:
        process = at_once("publish", str(run), out, *flags)
        assert process.returncode == Exit.OK, process.stderr
        return Publication(lab.path / out, process.stdout)

    return publish


def unpacked(packed: str) -> Any:
    """A value whose texts are in a table beside it."""

    def expanded(value: Any) -> Any:
        match value:
            case str():
                return table[int(value[1:])] if value.startswith("\x01") else value
            case dict():
                return {key: expanded(part) for key, part in value.items()}
            case list():
                return [*map(expanded, value)]
            case _:
                return value

    table, whole = json.loads(gzip.decompress(base64.b64decode(packed)))
    return expanded(whole)


def digests(folder: Path) -> dict[str, str]:
    files = (file for file in sorted(folder.rglob("*")) if file.is_file())
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@contextmanager
def transcript_of(run: Path) -> Iterator[Any]:
    """The transcript of the second conversation, which is as if it had been written with what the block changes."""
    path = run / "transcripts" / "small-000001.json"
    transcript = json.loads(path.read_text())
    yield transcript
    path.write_text(json.dumps(transcript))
    acknowledge(run)


@pytest.mark.ci
def test_publication_holds_every_conversation_as_all_and_as_each_seat(played: Path, publish: Publish) -> None:
    before = digests(played)
    publication, contents = publish(), read_run(played)

    found = publication.data
    assert "2 of 2 conversations" in publication.words
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
def test_same_run_makes_the_same_bytes(lab: Lab, publish: Publish) -> None:
    once = digests(publish().folder)

    assert digests(publish().folder) == once
    assert [path.name for path in lab.path.iterdir()] == ["out"]


@pytest.mark.ci
def test_thoughts_that_are_left_out_are_nowhere(publish: Publish) -> None:
    without, whole = publish("--no-thoughts"), publish(out="whole")

    spoken = {turn["thought"] for turn in whole.turns if len(turn.get("thought", "")) > 20}
    found, everything = without.text, whole.text
    assert "thoughts" in without.words
    assert len(spoken) > 10
    assert all(thought in everything for thought in spoken)
    assert [thought for thought in spoken if thought in found] == []
    assert "thinking>" not in found
    assert without.data["0/run"]["left_out"] == ["thoughts"]


def test_thoughts_that_a_failure_or_others_quote_are_left_out_too(own_run: Path, publish: Publish) -> None:
    """A quotation may be cut inside a thought, and have other brackets or quotation marks."""
    secret = 'I "zigzag" among them tonight'
    with transcript_of(own_run) as transcript:
        turn, events = transcript["turns"][0], transcript["record"]["events"]
        turn["reply"]["thinking"] = secret
        turn["receipt"]["detail"] = f"it cannot be used: found <thinking>{secret}, so that"
        transcript["failure"] = f"no usable reply: {secret}</thinking><speak>"
        events[0]["text"] = "You answered: " + json.dumps({"why": secret})
        events[1]["text"] = "Abel: yes ‹think›zigzag no more‹/think›"

    found = publish("--no-thoughts", "--no-prompts", run=own_run).text

    assert "be used: found" in found
    assert "zigzag" not in found


def test_prompts_that_are_left_out_are_nowhere(publish: Publish) -> None:
    publication = publish("--no-prompts")

    turns = publication.turns
    assert "prompts" in publication.words
    assert not any("prompt" in turn or "difference" in turn for turn in turns)
    assert {turn["prompt_missing"] for turn in turns} == {"this publication leaves prompts out"}


def test_addresses_paths_and_machines_go_nowhere(lab: Lab, own_run: Path, publish: Publish) -> None:
    """Neither from the settings nor from what an engine's failure says."""
    config = undigested(own_run / "experiment.yaml")
    engine = "http://10.20.30.40:8765/v1"
    changed = config.replace("description: ''", f"description: see {engine} at {own_run}")
    assert changed != config
    (own_run / "experiment.yaml").write_text(changed)
    failure = (
        f"POST {engine}/chat on {Machine().host}: refused; see /var/log/engine/a.log and 10.20.30.40:8765; "
        "host gpu7:8000 and [fe80::7]:8000 have the key sk-0123456789abc; ~/.netrc"
    )
    with transcript_of(own_run) as transcript:
        transcript["turns"][0]["timing"]["faults"] = [failure]

    found = publish(run=own_run).text

    assert "refused" in found
    private = ("10.20.30.40", "8765", "/var/log", "gpu7", "fe80", "sk-0", "netrc")
    assert [word for word in (*private, str(lab.path), f"on {Machine().host}") if word in found] == []


def test_only_and_sample_choose_what_goes_out(publish: Publish) -> None:
    turns = publish("--no-prompts", out="all").data["0/index"]["numbers"]["turns"]["numbers"]

    few = publish("--no-prompts", "--only", f"turns<={min(turns)}", out="few").data
    publication = publish("--no-prompts", "--sample", "1", out="sample")

    sample = publication.data
    assert few["0/index"]["rows"] == turns.count(min(turns))
    assert "conversations (a sample" in publication.words
    assert sample["0/run"]["is_sample"]
    shown = sample["0/index"]["numbers"]
    assert sum(shown["published"]["numbers"]) == 1
    for number, is_there in zip(shown["number"]["numbers"], shown["published"]["numbers"], strict=True):
        assert (f"0/c0/{number}" in sample) == bool(is_there)


def refused(at_once: AtOnce, run: Path, out: str, *flags: str) -> str:
    """What is said where nothing may be published."""
    process = at_once("publish", str(run), out, *flags)
    assert process.returncode == Exit.BAD_INPUT, out
    return process.stderr


def test_place_that_holds_something_else_is_left_alone(lab: Lab, own_run: Path, at_once: AtOnce) -> None:
    (lab.path / "full").mkdir()
    (lab.path / "full" / "mine.txt").write_text("mine")
    (lab.path / "file").write_text("mine")
    before = digests(lab.path)

    for out, flags, words in (
        ("full", (), "holds no publication"),
        ("file", (), "is a file"),
        ("small", (), "inside one another"),
        ("small/pages", (), "inside one another"),
        (".", (), "inside one another"),
        ("new", ("--sample", "0"), "--sample"),
        ("new", ("--only", "colour=red"), "there is no 'colour'"),
    ):
        assert words in refused(at_once, own_run, out, *flags), out
    refused(at_once, lab.path / "nothing", "new")
    assert digests(lab.path) == before
    assert not (lab.path / "new").exists()


@pytest.mark.ci
def test_publishing_anew_removes_nothing_but_the_former_publication(
    lab: Lab, played: Path, publish: Publish, at_once: AtOnce
) -> None:
    out, mine, way = publish("--no-prompts").folder, lab.path / "mine", lab.path / "way"
    mine.mkdir()
    (mine / "file").write_text("mine")
    (out / "data" / "link").symlink_to(mine)
    way.symlink_to("out")

    publish("--no-prompts", out="way")

    assert {*lab.path.iterdir()} == {mine, out, way}
    assert way.is_symlink()
    assert (mine / "file").read_text() == "mine"
    assert not (out / "data" / "link").exists()
    (out / ".git").mkdir()
    (out / ".git" / "HEAD").write_text("history")
    before = digests(lab.path)
    assert "holds .git too" in refused(at_once, played, "out")
    assert "no conversation" in refused(at_once, played, "new", "--only", "days>500")
    assert digests(lab.path) == before


def test_damaged_transcript_costs_its_own_page_and_not_the_publication(
    lab: Lab, own_run: Path, publish: Publish, at_once: AtOnce
) -> None:
    before = publish("--no-prompts", run=own_run).data
    (own_run / "transcripts" / "small-000001.json").write_text("{")

    process = at_once("publish", str(own_run), "out", "--no-prompts")

    assert (process.returncode, "small-000001" in process.stderr) == (Exit.FAILURES, True)
    after = Publication(lab.path / "out", process.stdout).data
    assert {name for name in before if before[name] != after[name]} == {"0/c0/1", "0/t0/1"}
    assert (after["0/t0/1"]["whole"], after["0/c0/1"]["whole"]["events"]) == ([], [])
    assert str(lab.path) not in after["0/c0/1"]["whole"]["note"]
    assert {path.name for path in lab.path.iterdir()} == {"out", "small"}


def test_publication_says_that_the_journal_has_lost_endings(own_run: Path, at_once: AtOnce) -> None:
    (journal,) = (own_run / "journal").iterdir()
    journal.write_bytes(b"")

    process = at_once("publish", str(own_run), "out", "--no-prompts")

    assert f"the endings of {GAMES} conversations are not in the journal" in process.stderr


def test_run_under_way_is_published_as_it_is(lab: Lab, publish: Publish) -> None:
    found = publish("--no-prompts", run=run_of(experiment(conversations=2), lab.path / "once", limit=1))

    assert "1 of 1 conversations" in found.words
    assert found.data["0/index"]["rows"] == 1


@pytest.mark.ci
def test_grid_is_published_with_its_combinations(lab: Lab, publish: Publish) -> None:
    grid: JsonObject = {"sweep": {"seed": [1, 2]}}

    found = publish("--no-prompts", run=run_of(experiment(_grid=grid), lab.path / "grid")).data

    assert len(found["0/run"]["combinations"]) == 2
    assert {name for name in found if name.endswith(("/index", "/c0/1"))} == {"1/index", "2/index", "1/c0/1", "2/c0/1"}


def test_page_of_one_conversation_holds_it_alone(lab: Lab, played: Path, at_once: AtOnce) -> None:
    seat = whole_view(read_run(played).transcript("small-000001")).seats[0]
    for flags, seats, shown in (((), 7, None), (("--seat", seat), 1, seat)):
        name = f"page{seats}.html"
        assert at_once("show", str(played), "1", "--html", name, *flags).returncode == Exit.OK
        page = (lab.path / name).read_text()
        packed = re.findall(r'type="application/octet-stream" id="data:([^"]+)">([^<]+)</script>', page)
        data = {found: unpacked(text) for found, text in packed}
        assert set(data) == {"0/run", "0/index", "0/c0/1", "0/t0/1"}
        views = data["0/c0/1"]
        assert len(views["seats"]) == seats
        assert views["whole"].get("seat") == shown
        assert "http" not in re.sub(r"http://www\.w3\.org/[\w/]+|http-equiv", "", page)
        again = at_once("show", str(played), "1", "--html", name)
        assert (again.returncode, "is there already" in again.stderr) == (Exit.BAD_INPUT, True)
