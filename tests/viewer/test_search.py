"""Words are found in what was said and thought, whatever their letters, and nowhere else."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from mac_runner.clock import SystemClock
from mac_runner.errors import ConfigError
from mac_runner.store import read_run
from mac_runner.view_model import SearchPage
from mac_runner.viewer.testing import RunSource, Text, byte_pattern, excerpt, search
from tests.viewer.served import served


def found(texts: list[Text], words: str, **more: float) -> SearchPage:
    return asyncio.run(search(texts, words, **{"start": 0, "clock": SystemClock(), **more}))  # type: ignore[arg-type]


def test_search_finds_the_conversations_that_a_reader_finds(played: Path) -> None:
    texts, contents = list(RunSource(played).texts("")), read_run(played)
    for words in ("sheriff", "I WAS THE", "nobody is safe", "“", "small-000001", "prompt_sha256", "zzz", "\\n"):
        expected = []
        for text in texts:
            transcript = contents.transcript(text.task_id)
            said = [turn["reply"]["text"] for turn in transcript["turns"]]  # type: ignore[call-overload, index, union-attr]
            happened = [event["text"] for event in transcript["record"]["events"]]  # type: ignore[call-overload, index, union-attr]
            if any(words.casefold() in str(each).casefold() for each in (*said, *happened)):
                expected.append(text.number)
        page = found(texts, words)
        assert [hit.n for hit in page.hits] == expected, words
        assert all(words.casefold() in hit.text.casefold() for hit in page.hits), words
        assert (page.searched, page.total, page.next) == (3, 3, None)


def test_letters_outside_ascii_are_found_in_both_cases() -> None:
    for said in ("Élan", "ÉLAN", "élan", "\ud800 lone", "a\x00b", "<script>", "ß"):
        transcript = {"format": 2, "record": {"events": [{"text": f"so {said}!"}]}, "turns": []}
        data = json.dumps(transcript).encode()
        for words in (said, said.upper(), said.lower()):
            if len(words) == len(said):
                assert byte_pattern(words).search(data) is not None, (said, words)
                assert excerpt(data, words) == f"so {said}!"


def test_search_stops_at_its_limits_and_goes_on_there(played: Path) -> None:
    texts = list(RunSource(played).texts(""))
    first = found(texts, "the", hits_max=1)
    rest = found(texts, "the", start=first.next or 0)
    late = found(texts, "the", s_max=-1.0)

    assert ([hit.n for hit in first.hits], first.next, first.searched) == ([0], 1, 1)
    assert [hit.n for hit in rest.hits] == [1, 2]
    assert (late.hits, late.next) == ((), 0)


def test_search_for_nothing_or_for_a_book_is_refused() -> None:
    for words in ("", "  ", "x" * 201):
        with pytest.raises(ConfigError, match="1 to 200 characters"):
            byte_pattern(words)


def test_search_passes_over_what_is_no_file(own_run: Path) -> None:
    (own_run / "transcripts" / "small-000000.json").unlink()
    path = own_run / "transcripts" / "small-000001.json"
    path.unlink()
    path.mkdir()
    with served(own_run) as viewer:
        page = viewer.json("/api/search?q=the&from=0")

    assert [hit["n"] for hit in page["hits"]] == [2]
