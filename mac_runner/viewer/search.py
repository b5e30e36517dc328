"""Text search over the transcripts of a run, without an index.

The bytes of each transcript are looked through. Only one that has the words is parsed, to see whether they are in what
was said, thought or happened, and not in a key. It takes as long as the disk needs, so a search stops after a while and
says where to go on. A browser that leaves ends it at the next file.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import aiofiles

from mac_runner.clock import Clock
from mac_runner.errors import ConfigError
from mac_runner.files import open_regular
from mac_runner.results import objects, section
from mac_runner.store.transcripts import decode_transcript
from mac_runner.types import JsonObject
from mac_runner.view_model import SearchHit, SearchPage
from mac_runner.viewer.source import Text

HITS_MAX: Final = 50
WORDS_CHARS_MAX: Final = 200
SEARCH_S_MAX: Final = 10.0
_AROUND_CHARS: Final = 60


async def search(
    texts: Sequence[Text],
    words: str,
    *,
    start: int,
    clock: Clock,
    hits_max: int = HITS_MAX,
    s_max: float = SEARCH_S_MAX,
) -> SearchPage:
    """The conversations from number `start` on in which `words` occur, whatever their case."""
    pattern = byte_pattern(words)
    left = [text for text in texts if text.number >= start]
    hits: list[SearchHit] = []
    begun_s = clock.monotonic_s()
    for place, text in enumerate(left):
        if len(hits) == hits_max or clock.monotonic_s() - begun_s > s_max:
            return SearchPage(tuple(hits), place, len(left), text.number)
        data = await _read(text.path)
        if pattern.search(data) is not None:
            found = await asyncio.to_thread(excerpt, data, words)
            if found is not None:
                hits.append(SearchHit(text.number, text.task_id, found))
    return SearchPage(tuple(hits), len(left), len(left))


async def _read(path: Path) -> bytes:
    """A transcript; nothing where it is gone or cannot be read, as while it is repaired."""
    try:
        async with aiofiles.open(path, "rb", opener=lambda _, flags: open_regular(path, flags | os.O_NOFOLLOW)) as file:
            return await file.read()
    except OSError:
        return b""


def byte_pattern(words: str) -> re.Pattern[bytes]:
    """Matches `words` in the ASCII JSON of a transcript, whatever their case. Raises ConfigError for no words."""
    if not words.strip() or len(words) > WORDS_CHARS_MAX:
        raise ConfigError(f"search for 1 to {WORDS_CHARS_MAX} characters")
    return re.compile("".join(map(_either_case, words)).encode("ascii"), re.IGNORECASE)


def _either_case(letter: str) -> str:
    """The pattern of a letter as JSON writes it. An ASCII letter matches in both cases anyway."""
    found = {json.dumps(form)[1:-1] for form in (letter, letter.lower(), letter.upper())}
    return "(?:" + "|".join(sorted(re.escape(form) for form in found)) + ")" if len(found) > 1 else re.escape(*found)


def excerpt(data: bytes, words: str) -> str | None:
    """The first place of a transcript where the words occur, with what is around them; None where they do not."""
    try:
        transcript = decode_transcript(data)
    except ValueError:
        return None
    pattern = re.compile(re.escape(words), re.IGNORECASE)
    for text in _texts(transcript):
        if (match := pattern.search(text)) is not None:
            start, end = max(0, match.start() - _AROUND_CHARS), match.end() + _AROUND_CHARS
            return f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"
    return None


def _texts(transcript: JsonObject) -> Iterator[str]:
    """What happened, what was said and what was thought."""
    said = [event.get("text") for event in objects(section(transcript, "record").get("events"))]
    for turn in objects(transcript.get("turns")):
        reply = section(turn, "reply")
        said += [reply.get("text"), reply.get("thinking")]
    yield from (text for text in said if isinstance(text, str))
