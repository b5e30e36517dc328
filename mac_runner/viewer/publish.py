"""A run as a folder of pages that opens by double click and on any static host (`mac-run publish`).

::

    OUT/index.html app.js app.css    the same pages that `mac-run view` serves
    OUT/data/0/run.js index.js …     the run; of a grid, 1, 2, … are its combinations
    OUT/data/0/c0/17.js              conversation 17: whole, and as each seat saw it
    OUT/data/0/t0/17.js              its turns
    OUT/publication.json             what is in it; marks a folder that may be replaced
    OUT/robots.txt

Conversations are read one by one, so memory does not grow with the run. All perspectives are computed here. The folder
is written under another name beside its place and renamed when it is whole. The same run makes the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Final, NamedTuple

from msgspec.structs import replace

from mac_runner import __version__
from mac_runner.errors import ConfigError, MacRunnerError
from mac_runner.files import read_regular
from mac_runner.reports import listed, matching, parse_condition
from mac_runner.reports.conversations import Listed
from mac_runner.reports.turns import objects
from mac_runner.runs.replays import Replays
from mac_runner.store import Disk, RunContents, begun_combinations, is_grid, read_run
from mac_runner.store.lock import read_owner
from mac_runner.store.machine import Machine
from mac_runner.store.records import row_id
from mac_runner.types import JsonObject
from mac_runner.view_model import ColumnView, IndexColumns, NumberColumn, RunPage, TurnView
from mac_runner.viewer.outgoing import NO_PROMPTS, Outgoing, Private, addresses_in
from mac_runner.viewer.packing import packed, script
from mac_runner.viewer.source import RunSource
from mac_runner.views.conversation import whole_view
from mac_runner.views.index import index_columns
from mac_runner.views.inspector import PromptOf, turn_view
from mac_runner.views.perspective import perspective

MARKER: Final = "publication.json"
FORMAT: Final = 1
WHOLE_MAX: Final = 5_000
"""More conversations than this are published as a sample, unless its size is given."""
SAMPLE: Final = 1_000
BLOCK: Final = 1_000
"""How many conversations share a folder."""
IS_PUBLISHED: Final = "published"
"""The column of a sample's list that says which conversations can be opened."""
ROBOTS: Final = b"User-agent: *\nDisallow: /\n"
CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'"
)
_STATIC_BYTES_MAX: Final = 1 << 20
_HEAD: Final = re.compile(r"<head>\s*")


@dataclass(frozen=True, kw_only=True)
class PublishRequest:
    """What is published, and where. `only` are conditions as `mac-run show --where` takes them."""

    directory: Path
    out: Path
    has_thoughts: bool = True
    has_prompts: bool = True
    only: Sequence[str] = ()
    sample: int | None = None
    disk: Disk = field(default_factory=Disk)


class Publication(NamedTuple):
    """What was published."""

    conversations: int
    ended: int
    """How many there were to choose from."""
    is_sample: bool
    under_way: int
    """How many planned ones have not ended, and are left out."""
    left_out: tuple[str, ...]
    files: int
    size_bytes: int
    notes: tuple[str, ...]


def publish(request: PublishRequest) -> Publication:
    """Write the folder. Raises ConfigError, before anything is written, for what cannot be published there."""
    _check_place(request)
    return _Publisher(request).publish()


class _Part(NamedTuple):
    """A run of the publication: the only one, or a combination of a grid."""

    number: int
    slug: str
    contents: RunContents
    how: Listed
    matching: frozenset[str]
    """The conversations that are listed."""
    chosen: frozenset[str]
    """Those that can be opened."""


class _Publisher:
    def __init__(self, request: PublishRequest) -> None:
        self._request = request
        self._source = RunSource(request.directory)
        self._parts = self._planned()
        self._is_sample = any(part.matching != part.chosen for part in self._parts)
        self._outgoing = Outgoing(
            private=_private(request, self._parts),
            has_thoughts=request.has_thoughts,
            has_prompts=request.has_prompts,
        )
        self._notes: dict[str, None] = {}

    def publish(self) -> Publication:
        out = self._request.out
        folder = _Folder(self._request.disk, out.with_name(f".{out.name}.publishing"))
        folder.begin()
        try:
            for name, data in self._files():
                folder.write(name, data)
            found = self._publication(folder)
            folder.write(MARKER, _marker(found))
            folder.take_place(out)
        except BaseException:
            folder.remove()
            raise
        return found._replace(files=folder.files, size_bytes=folder.size_bytes)

    def _publication(self, folder: _Folder) -> Publication:
        contents = [part.contents for part in self._parts]
        return Publication(
            conversations=sum(len(part.chosen) for part in self._parts),
            ended=sum(one.counts.done for one in contents),
            is_sample=self._is_sample,
            under_way=sum(one.counts.planned - one.counts.done for one in contents),
            left_out=self._outgoing.left_out,
            files=folder.files,
            size_bytes=folder.size_bytes,
            notes=(*self._notes,),
        )

    # What is chosen.

    def _planned(self) -> list[_Part]:
        directory, disk = self._request.directory, self._request.disk
        if is_grid(directory, disk=disk):
            named = [(entry.slug, directory / entry.slug) for entry in begun_combinations(directory)]
        else:
            named = [("", directory)]
        found = [self._matching(slug, read_run(path, disk=disk)) for slug, path in named]
        size = self._request.sample
        if size is None and sum(len(part.matching) for part in found) > WHOLE_MAX:
            size = SAMPLE
        each = None if size is None else max(1, size // max(1, len(found)))
        first = 1 if named[0][0] else 0
        return [
            part._replace(number=number, chosen=_sampled(part, each)) for number, part in enumerate(found, start=first)
        ]

    def _matching(self, slug: str, contents: RunContents) -> _Part:
        how = listed(contents.environment_name)
        how = how.with_outcomes(contents.rows())
        if contents.resolved.get("metrics"):
            how = how.with_metrics(contents.rows())
        found = frozenset(contents.state.endings)
        if self._request.only:
            conditions = [parse_condition(text, how.columns) for text in self._request.only]
            found = frozenset(str(values["id"]) for values in matching(contents.rows(), how, conditions))
        return _Part(0, slug, contents, how, found, found)

    # The files.

    def _files(self) -> Iterator[tuple[str, bytes]]:
        yield from front_end(CSP)
        yield "robots.txt", ROBOTS
        if self._parts[0].slug:
            yield self._data("0/run", self._grid())
        for part in self._parts:
            yield from self._run(part)

    def _grid(self) -> RunPage:
        """The head of the grid: the places of its combinations, of which all have begun, number their folders."""
        page = self._outgoing.run(self._source.run(""), is_sample=self._is_sample)
        known = {one.slug: one for one in page.combinations}
        return replace(page, combinations=tuple(known[part.slug] for part in self._parts))

    def _run(self, part: _Part) -> Iterator[tuple[str, bytes]]:
        page = self._outgoing.run(self._source.run(part.slug), is_sample=part.matching != part.chosen)
        columns = self._outgoing.index(self._index(part))
        if page.is_sample:
            page, columns = with_published(page, columns, part.chosen)
        yield self._data(f"{part.number}/run", page)
        yield self._data(f"{part.number}/index", columns)
        pages = ConversationPages(part.contents, self._outgoing)
        for task_id in sorted(part.chosen, key=lambda one: part.contents.state.endings[one].task_index):
            number = part.contents.state.endings[task_id].task_index
            made = pages.of(part.contents.transcript(task_id))
            yield self._data(f"{part.number}/c{number // BLOCK}/{number}", made.conversation)
            yield self._data(f"{part.number}/t{number // BLOCK}/{number}", made.turns)
        self._notes.update(dict.fromkeys(pages.notes))

    def _index(self, part: _Part) -> IndexColumns:
        rows = (row for row in part.contents.rows() if row_id(row) in part.matching)
        return index_columns(rows, part.how)

    def _data(self, name: str, value: object) -> tuple[str, bytes]:
        return f"data/{name}.js", script(name, packed(value, self._outgoing.private.clean))


# A conversation.


class ConversationData(NamedTuple):
    """What the pages of a conversation need."""

    conversation: Mapping[str, object]
    turns: Mapping[str, object]


class ConversationPages:
    """Makes what the pages of the conversations of a run need."""

    def __init__(self, contents: RunContents, outgoing: Outgoing) -> None:
        self._contents = contents
        self._outgoing = outgoing
        self._refused = ""
        self.notes: dict[str, None] = {}
        """What is missing that was not left out on purpose."""

    def of(self, transcript: JsonObject) -> ConversationData:
        """The view of a transcript, those of its seats, and all turns as each of them."""
        whole = whole_view(transcript)
        prompt_of, missing = self._prompts(transcript)
        turns = self._turns(transcript, prompt_of, missing, None)
        spoken = [turn.thought for turn in turns]
        return ConversationData(
            {
                "whole": self._outgoing.conversation(whole),
                "seats": [self._outgoing.conversation(perspective(whole, seat)) for seat in whole.seats],
            },
            {
                "whole": [*self._outgoing.turns(turns, spoken)],
                "seats": [
                    [*self._outgoing.turns(self._turns(transcript, prompt_of, missing, seat), spoken)]
                    for seat in whole.seats
                ],
            },
        )

    def _turns(
        self, transcript: JsonObject, prompt_of: PromptOf | None, missing: str, seat: str | None
    ) -> list[TurnView]:
        turns = [turn for turn in objects(transcript["turns"]) if seat in (None, turn["agent"])]
        return [
            turn_view(transcript, str(turn["turn"]), prompt_of, seat=seat, prompt_missing=missing) for turn in turns
        ]

    def _prompts(self, transcript: JsonObject) -> tuple[PromptOf | None, str]:
        """The prompts of a conversation, or why there are none."""
        if not self._outgoing.has_prompts:
            return None, NO_PROMPTS
        try:
            return cache(self._replays.prompts(transcript)), ""
        except MacRunnerError as fault:
            self.notes[f"prompts are missing: {fault}"] = None
            return None, str(fault)

    @cached_property
    def _replays(self) -> Replays:
        return Replays(self._contents)


def _sampled(part: _Part, size: int | None) -> frozenset[str]:
    """So many of the conversations, the same whenever and in whichever order they ended.

    Those with one index in several combinations are drawn together: these can be compared.
    """
    if size is None or len(part.matching) <= size:
        return part.matching
    endings = part.contents.state.endings
    return frozenset(sorted(part.matching, key=lambda one: (_draw(endings[one].task_index), one))[:size])


def _draw(index: int) -> bytes:
    return hashlib.blake2b(b"%d" % index, digest_size=8).digest()


def with_published(page: RunPage, columns: IndexColumns, chosen: Collection[str]) -> tuple[RunPage, IndexColumns]:
    """The head and the list of a sample, with a column that says which conversations can be opened."""
    ids = columns.words["id"]
    numbers = tuple(1.0 if ids.words[code] in chosen else 0.0 for code in ids.codes)
    return (
        replace(page, columns=(*page.columns, ColumnView(IS_PUBLISHED, "truth"))),
        replace(columns, numbers={**columns.numbers, IS_PUBLISHED: NumberColumn(numbers)}),
    )


def _private(request: PublishRequest, parts: Sequence[_Part]) -> Private:
    """The addresses, paths and machines of a run."""
    directory = request.directory
    known = {str(directory.resolve()), str(Path.home()), *(str(directory) for _ in range(directory.is_absolute()))}
    machines = {Machine().host}
    for part in parts:
        known.update(addresses_in(part.contents.resolved))
        owner = read_owner(request.disk, part.contents.layout.directory)
        if owner is not None:
            machines.add(owner.host)
    return Private(tuple(sorted(known)), tuple(sorted(machines - {"localhost"})))


def front_end(csp: str) -> Iterator[tuple[str, bytes]]:
    """The files of the front end as a publication has them."""
    page = _static("index.html").decode().replace("static/app.", "app.")
    metas = (
        f'<meta http-equiv="Content-Security-Policy" content="{csp}">\n'
        '<meta name="mac-data" content="published">\n<meta name="robots" content="noindex">\n'
    )
    yield "index.html", _HEAD.sub(lambda found: found[0] + metas, page, count=1).encode()
    for name in ("app.js", "app.css"):
        yield name, _static(name)


def _static(name: str) -> bytes:
    return read_regular(Path(__file__).parent / "static" / name, _STATIC_BYTES_MAX)


def _marker(found: Publication) -> bytes:
    about = {
        "format": FORMAT,
        "mac_runner": __version__,
        "conversations": found.conversations,
        "ended": found.ended,
        "is_sample": found.is_sample,
        "left_out": found.left_out,
    }
    return json.dumps(about, indent=1).encode() + b"\n"


# The place.


def _check_place(request: PublishRequest) -> None:
    """Refuse a place that is in the run, that the run is in, or that holds something else."""
    out, run, disk = request.out, request.directory.resolve(), request.disk
    found = out.resolve()
    if found == run or run in found.parents or found in run.parents:
        raise ConfigError(f"OUT: {out} and the run {request.directory} are inside one another; choose another folder")
    if request.sample is not None and request.sample < 1:
        raise ConfigError(f"--sample: {request.sample} is not a number of conversations; give 1 or more")
    if not disk.exists(out):
        return
    if not disk.is_directory(out):
        raise ConfigError(f"OUT: {out} is a file; name a new folder")
    if disk.names(out) and not disk.exists(out / MARKER):
        raise ConfigError(
            f"OUT: {out} is not empty and holds no publication ({MARKER} is not there); name a new folder"
        )


class _Folder:
    """A folder under another name, which takes its place when it is whole."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._known: set[Path] = set()
        self.files = 0
        self.size_bytes = 0

    def begin(self) -> None:
        """Begin anew; what a killed publication left is removed."""
        self.remove()
        self._disk.make_directory(self._path)

    def write(self, name: str, data: bytes) -> None:
        path = self._path / name
        if path.parent not in self._known:
            self._disk.make_directory(path.parent)
            self._known.add(path.parent)
        file = self._disk.open_append(path)
        try:
            self._disk.append(file, data)
        finally:
            self._disk.close(file)
        self.files += 1
        self.size_bytes += len(data)

    def take_place(self, out: Path) -> None:
        """Rename the folder; a former publication is removed after that."""
        former = out.with_name(f".{out.name}.former")
        _remove(self._disk, former)
        if self._disk.exists(out):
            self._disk.rename(out, former)
        self._disk.rename(self._path, out)
        _remove(self._disk, former)

    def remove(self) -> None:
        _remove(self._disk, self._path)


def _remove(disk: Disk, path: Path) -> None:
    """Remove a folder with all that is in it."""
    if not disk.exists(path):
        return
    for name in disk.names(path):
        inside = path / name
        if disk.is_file(inside) or not disk.is_directory(inside):
            disk.remove(inside)
        else:
            _remove(disk, inside)
    disk.remove_directory(path)
