"""What pages are given of a run directory, ended, half done, damaged or replaced; and what a search finds in it."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import threading
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from msgspec.structs import replace

from mac_runner.cli.process import Exit
from mac_runner.clock import SystemClock
from mac_runner.errors import ConfigError, RunDirectoryError
from mac_runner.reports import listed
from mac_runner.results import section
from mac_runner.runs.testing import sent_prompt, summary_of
from mac_runner.store import read_run
from mac_runner.store.testing import RecordedRow, done_frame, retry_frame
from mac_runner.structs import decode
from mac_runner.types import JsonObject, JsonValue
from mac_runner.view_model import IndexColumns, RunPage, SearchPage, TurnView, WordColumn
from mac_runner.viewer import source as module
from mac_runner.viewer.testing import RunSource, Text, byte_pattern, excerpt, search
from mac_runner.views.testing import index_columns, whole_view
from tests.cli.lab import Lab, echoes, experiment, run_main, scripted
from tests.kit import own_game
from tests.kit import played as run_of
from tests.patience import LIMIT_S
from tests.viewer.served import served


def index_of(directory: Path) -> IndexColumns:
    """The list of a run, from all its rows at once."""
    contents = read_run(directory)
    return index_columns(contents.rows(), listed(contents.environment_name))


def words_of(column: WordColumn) -> list[str | None]:
    return [column.words[code] if code >= 0 else None for code in column.codes]


def test_pages_say_what_the_run_directory_says(played: Path) -> None:
    source, contents = RunSource(played), read_run(played)

    assert source.index("", 0, None) == index_of(played)
    head = source.run("")
    assert (head.state, head.planned, head.done, head.failed, head.is_live) == ("complete", 3, 3, 0, False)
    assert head.environment == "town_of_salem"
    (engine,) = head.engines
    assert (engine.model, engine.backend, engine.slots) == ("m", "scripted", 8)
    assert engine.requests > 0
    assert engine.latency_s is not None
    assert engine.slots_used == section(section(summary_of(contents), "models"), "m")["slot_utilisation"]
    (wins,) = (fact.text for fact in head.facts if fact.name == "wins.town")
    assert "%" in wins
    assert "n 3" in wins
    transcript = contents.transcript("small-000001")
    for name in ("1", "small-000001"):
        assert source.conversation("", name, "") == whole_view(transcript, command=str(played))
        seat = whole_view(transcript).seats[2]
        assert source.conversation("", name, seat).seat == seat
    key = source.conversation("", "1", "").turns[9].key
    turn = source.turn("", "1", key, "")
    assert [message.content for message in turn.prompt] == [
        message.content for message in sent_prompt(contents, transcript, key).messages
    ]
    assert source.compare("", "1", "1", "").first_turn == ""
    assert source.forks("", "") == ()
    assert source.flow("", "days>0").conversations == 0
    assert sum(source.engines("").engines[0].done) == sum(
        turns or 0 for turns in source.index("", 0, None).numbers["turns"].numbers
    )


def test_parts_of_the_list_are_those_of_the_whole(played: Path) -> None:
    source = RunSource(played)
    whole = source.index("", 0, None)

    for since in range(4):
        for most in (None, 0, 1, 2):
            part = source.index("", since, None, most)
            end = 3 if most is None else min(3, since + most)
            assert (part.since, part.rows) == (since, end - since)
            for name, column in whole.words.items():
                assert words_of(part.words[name]) == words_of(column)[since:end]
            for name, numbers in whole.numbers.items():
                assert part.numbers[name].numbers == numbers.numbers[since:end]


def test_the_list_decodes_each_row_once(played: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = list[bytes]()

    def counted(data: bytes, kind: type[RecordedRow]) -> RecordedRow:
        decoded.append(data)
        return decode(data, kind)

    monkeypatch.setattr("mac_runner.store.rows.decode", counted)
    listed = RunSource(played).index("", 0, None)

    assert listed.rows == len(decoded) == len(set(decoded)) > 0


def test_retried_conversation_makes_a_new_version_of_the_list(own_run: Path) -> None:
    source = RunSource(own_run)
    before = source.index("", 0, None)
    row = next(read_run(own_run).rows())
    (segment,) = (own_run / "journal").iterdir()
    with segment.open("ab") as file:
        file.write(retry_frame(row))
    during = source.index("", 2, before.version)
    with segment.open("ab") as file:
        file.write(done_frame(row))
    after = source.index("", 2, during.version)

    assert (before.rows, during.since, during.rows, after.since, after.rows) == (3, 0, 2, 2, 1)
    assert before.version != during.version == after.version
    assert source.index("", 0, None) == replace(index_of(own_run), version=after.version)


def test_transcript_that_is_replaced_is_read_again(own_run: Path) -> None:
    source = RunSource(own_run)
    first = source.conversation("", "0", "")
    path = own_run / "transcripts" / "small-000000.json"
    text = path.read_text()

    path.unlink()
    with served(own_run) as viewer:
        assert "no transcript" in viewer.get("/api/c/0").error
        path.write_text(text[:1000])
        assert "cannot be read" in viewer.get("/api/c/0").error
        path.write_text(text)
        assert viewer.get("/api/c/0").status == 200
    assert source.conversation("", "0", "") == first
    for seat in ("", first.seats[0]):
        assert source.conversation("", "0", seat) is source.conversation("", "0", seat)


def test_transcript_that_is_damaged_inside_is_an_error_that_quotes_nothing(own_run: Path) -> None:
    path = next((own_run / "transcripts").iterdir())
    number = int(path.stem.rpartition("-")[2])
    whole = json.loads(path.read_text())
    key, seat = whole["turns"][0]["turn"], whole["turns"][0]["agent"]
    turn = f"/api/c/{number}/turn/{quote(key, safe='')}"
    for damage, places in (
        ({"turns": None}, (f"/api/c/{number}", f"/api/c/{number}?seat={seat}", turn, "/api/compare?left=0&right=1")),
        ({"turns": [{**whole["turns"][0], "round": float("nan")}]}, (f"/api/c/{number}", turn)),
        ({"turns": [{**whole["turns"][0], "reply": {"text": "secret"}}]}, (turn, f"{turn}?seat={seat}")),
    ):
        path.write_text(json.dumps({name: value for name, value in {**whole, **damage}.items() if value is not None}))
        with served(own_run) as viewer:
            for place in places:
                answer = viewer.get(place)
                assert answer.status == 404, place
                assert "transcript" in answer.error
                assert "secret" not in answer.error


def test_directory_that_goes_away_or_breaks_is_an_error_in_words_until_it_is_back(own_run: Path, played: Path) -> None:
    aside = own_run.with_name("aside")
    with served(own_run) as viewer:
        assert viewer.get("/api/run").status == 200
        own_run.rename(aside)
        for path in ("/api/run", "/api/index", "/api/c/0", "/api/engines", "/api/search?q=town", "/api/flow"):
            answer = viewer.get(path)
            assert (answer.status, "small" in answer.error) == (404, True), path
        aside.rename(own_run)
        assert viewer.json("/api/index")["rows"] == 3
        (own_run / "task_manifest.json").write_text("{")
        assert "task_manifest.json" in viewer.get("/api/run").error
        shutil.copy(played / "task_manifest.json", own_run)
        assert viewer.json("/api/run")["done"] == 3
        (own_run / "experiment.yaml").unlink()
        (own_run / "experiment.yaml").mkdir()
        assert viewer.get("/api/run").status == 404


def test_conversations_are_kept_by_how_much_they_hold_and_the_last_one_always(
    played: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = RunSource(played)
    first, second = (source.conversation("", name, "") for name in "01")
    assert [source.conversation("", name, "") is view for name, view in (("0", first), ("1", second))] == [True, True]

    monkeypatch.setattr(module, "PLAYED_MAX", len(first.events) + len(first.turns))
    source = RunSource(played)
    first, second = (source.conversation("", name, "") for name in "01")
    assert source.conversation("", "1", "") is second
    assert source.conversation("", "0", "") is not first


@pytest.mark.parametrize("key", ["record", "agents"])
def test_transcript_of_another_form_is_named_by_its_task(own_run: Path, key: str) -> None:
    path = own_run / "transcripts" / "small-000001.json"
    transcript = json.loads(path.read_bytes())
    (transcript["task"] if key == "agents" else transcript)[key] = 3
    path.write_text(json.dumps(transcript))

    with pytest.raises(RunDirectoryError, match="the transcript of small-000001 is not what a run writes"):
        RunSource(own_run).conversation("", "1", "")


def test_a_damaged_claim_is_named_by_its_transcript_and_its_place_on_pages_and_in_the_terminal(
    own_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = own_run / "transcripts" / "small-000001.json"
    transcript = json.loads(path.read_bytes())
    transcript["record"]["claims"][2]["event"] = 9_999
    path.write_text(json.dumps(transcript))
    named = "the transcript of small-000001: the record of the game: claims[2] is of event 9999"

    with pytest.raises(RunDirectoryError, match=re.escape(named)):
        RunSource(own_run).conversation("", "1", "")
    assert run_main("show", str(own_run), "1", "--truth") == Exit.BAD_INPUT
    shown = " ".join(capsys.readouterr().err.split())
    assert named in shown
    assert "Traceback" not in shown


def test_grid_lists_the_engines_that_its_accounts_list_and_no_model_that_shares_one(tmp_path: Path) -> None:
    grid: JsonObject = {"sweep": {"seed": [1, 2]}}
    two = echoes([scripted("echo"), scripted("echo")], agents=({}, {}), conversations=1, _grid=grid)
    source = RunSource(run_of(two, tmp_path / "grid"))

    (entry, *_) = source.run("").combinations
    (engine,) = source.run("").engines
    (over_time,) = source.engines(entry.slug).engines
    assert engine.model == over_time.model == "m0"
    assert 0 < sum(over_time.done) < engine.requests


@pytest.mark.ci
def test_grid_has_a_page_and_its_combinations_have_theirs(tmp_path: Path) -> None:
    lobbies: list[JsonValue] = ["classic-7", "classic-10"]
    grid: JsonObject = {"sweep": {"game.lobby": lobbies}}
    with served(run_of(experiment(conversations=1, _grid=grid), tmp_path / "grid")) as viewer:
        combinations = viewer.json("/api/run")["combinations"]
        assert [one["values"] for one in combinations] == [{"game.lobby": lobby} for lobby in lobbies]
        assert all(one["done"] == one["planned"] == 1 for one in combinations)
        assert all("wins.town" in one["figures"] for one in combinations)
        slugs = [one["slug"] for one in combinations]
        for slug in slugs:
            assert viewer.json(f"/api/run?run={slug}")["name"] == slug
            assert viewer.json(f"/api/index?run={slug}")["rows"] == 1
        pair = viewer.json(f"/api/compare?run={slugs[0]}&left=0&right=0&other={slugs[1]}")
        assert pair["left"]["members"] != pair["right"]["members"]
        assert "with run=" in viewer.get("/api/index").error
        assert "no combination" in viewer.get("/api/index?run=other").error


def test_slow_page_holds_up_no_other_request(played: Path) -> None:
    is_asked, may_go_on = threading.Event(), threading.Event()

    class Slow(RunSource):
        def run(self, slug: str) -> RunPage:
            is_asked.set()
            assert may_go_on.wait(LIMIT_S)
            return super().run(slug)

    with served(Slow(played)) as viewer, viewer.asked("/api/run") as waiting:
        assert is_asked.wait(LIMIT_S)

        assert [viewer.get(path).status for path in ("/", "/api/engines", "/nothing")] == [200, 200, 404]
        may_go_on.set()
        assert waiting.recv(15) == b"HTTP/1.1 200 OK"


@pytest.mark.ci
def test_code_of_a_run_is_imported_only_with_trust(lab: Lab) -> None:
    """Without trust prompts are missing, with a reason, and the rest is there. Another process has played it."""
    (lab.path / "games.py").write_text(
        "from mac_runner.environments.generators import Ask\n"
        "def words(table):\n"
        "    yield [Ask(name, 'Say a word.', choices=['yes', 'no']) for name in table.agents]\n"
        "    return {'count': 2}\n"
    )
    lab.done(lab.write(own_game("./games.py:words")))
    found: dict[bool, TurnView] = {}
    for is_trusted in (False, True):
        source = RunSource(lab.run_dir().path, is_trusted=is_trusted)
        assert [column.name for column in source.run("").columns if column.name == "count"] == ["count"]
        found[is_trusted] = source.turn("", "0", source.conversation("", "0", "").turns[0].key, "")

    assert (found[False].prompt, "--trust" in found[False].prompt_missing) == ((), True)
    assert "Say a word." in found[True].prompt[-1].content
    assert found[True].prompt_missing == ""


def found(texts: list[Text], words: str, **more: float) -> SearchPage:
    return asyncio.run(search(texts, words, **{"start": 0, "clock": SystemClock(), **more}))  # type: ignore[arg-type]


def test_search_finds_the_conversations_that_a_reader_finds(played: Path) -> None:
    texts, contents = list(RunSource(played).texts("")), read_run(played)
    for words in ("sheriff", "I WAS THE", "nobody is safe", "“", "small-000001", "prompt_sha256", "zzz", "\\n"):
        expected = []
        for text in texts:
            transcript: Any = contents.transcript(text.task_id)
            said = [turn["reply"]["text"] for turn in transcript["turns"]]
            happened = [event["text"] for event in transcript["record"]["events"]]
            if any(words.casefold() in str(each).casefold() for each in (*said, *happened)):
                expected.append(text.number)
        page = found(texts, words)
        assert [hit.n for hit in page.hits] == expected, words
        assert all(words.casefold() in hit.text.casefold() for hit in page.hits), words
        assert (page.searched, page.total, page.next) == (3, 3, None)


def test_letters_outside_ascii_are_found_in_both_cases_and_nothing_or_a_book_is_refused() -> None:
    for said in ("Élan", "ÉLAN", "élan", "\ud800 lone", "a\x00b", "<script>", "ß"):
        transcript = {"format": 3, "record": {"events": [{"text": f"so {said}!"}]}, "turns": []}
        data = json.dumps(transcript).encode()
        for words in (said, said.upper(), said.lower()):
            if len(words) == len(said):
                assert byte_pattern(words).search(data) is not None, (said, words)
                assert excerpt(data, words) == f"so {said}!"
    for words in ("", "  ", "x" * 201):
        with pytest.raises(ConfigError, match="1 to 200 characters"):
            byte_pattern(words)


def test_search_stops_at_its_limits_and_goes_on_there(played: Path) -> None:
    texts = list(RunSource(played).texts(""))
    first = found(texts, "the", hits_max=1)
    rest = found(texts, "the", start=first.next or 0)
    late = found(texts, "the", s_max=-1.0)

    assert ([hit.n for hit in first.hits], first.next, first.searched) == ([0], 1, 1)
    assert [hit.n for hit in rest.hits] == [1, 2]
    assert (late.hits, late.next) == ((), 0)


def test_search_passes_over_what_is_no_file(own_run: Path) -> None:
    (own_run / "transcripts" / "small-000000.json").unlink()
    path = own_run / "transcripts" / "small-000001.json"
    path.unlink()
    path.mkdir()
    with served(own_run) as viewer:
        page = viewer.json("/api/search?q=the&from=0")

    assert [hit["n"] for hit in page["hits"]] == [2]
