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
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from typing import Final, NamedTuple

from msgspec.structs import replace

from mac_runner import __version__
from mac_runner.errors import ConfigError, RunDirectoryError
from mac_runner.reports import listed_run, matching, parse_condition
from mac_runner.reports.conversations import Listed
from mac_runner.reports.turns import readable
from mac_runner.store import Disk, Run, begun_combinations, is_grid, read_run
from mac_runner.store.records import row_id
from mac_runner.store.run import lost_words
from mac_runner.types import JsonObject
from mac_runner.view_model import ColumnView, ConversationView, IndexColumns, NumberColumn, RunPage
from mac_runner.viewer.conversation_data import ConversationPages, private_of
from mac_runner.viewer.outgoing import Outgoing
from mac_runner.viewer.packing import (
    COMPARED,
    CONVERSATION,
    TURNS,
    data_name,
    packed,
    page_with,
    script,
    static_file,
)
from mac_runner.viewer.source import RunSource
from mac_runner.views.compare import compare_view
from mac_runner.views.conversation import whole_view
from mac_runner.views.flows import flow_page, fork_trees
from mac_runner.views.run_page import index_columns

MARKER: Final = "publication.json"
FORMAT: Final = 1
WHOLE_MAX: Final = 5_000
"""More conversations than this are published as a sample, unless its size is given."""
SAMPLE: Final = 1_000
IS_PUBLISHED: Final = "published"
"""The column of a sample's list that says which conversations can be opened."""
NAMES: Final = frozenset({"index.html", "app.js", "app.css", "data", "robots.txt", MARKER})
"""What a publication has at its top."""
COMPARED_ALL_MAX: Final = 4
_COMPARED_KEPT_MAX: Final = 8
ROBOTS: Final = b"User-agent: *\nDisallow: /\n"
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'"
)


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
    refused: tuple[str, ...] = ()
    """The conversations whose pages say only why they are left out: damaged ones."""


def publish(request: PublishRequest) -> Publication:
    """Write the folder. Raises ConfigError, before anything is written, for what cannot be published there."""
    _check_place(request)
    return _Publisher(request).publish()


class _Part(NamedTuple):
    """A run of the publication: the only one, or a combination of a grid."""

    number: int
    slug: str
    contents: Run
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
            private=private_of(request.disk, request.directory, (part.contents for part in self._parts)),
            has_thoughts=request.has_thoughts,
            has_prompts=request.has_prompts,
        )
        self._comparisons = Comparisons(
            (member for part in self._parts for member in _members(part)),
            {part.number: part.contents for part in self._parts},
        )
        self._missing = Counter[str]()
        self._refused: list[str] = []

    def publish(self) -> Publication:
        folder = Folder(self._request.disk, self._request.out)
        folder.begin()
        try:
            for name, data in self._files():
                folder.write(name, data)
            found = self._publication(folder)
            folder.write(MARKER, _marker(found))
            folder.take_place()
        except BaseException:
            folder.remove()
            raise
        return found._replace(files=folder.files, size_bytes=folder.size_bytes)

    def _publication(self, folder: Folder) -> Publication:
        contents = [part.contents for part in self._parts]
        return Publication(
            conversations=sum(len(part.chosen) for part in self._parts),
            ended=sum(one.counts.done for one in contents),
            is_sample=self._is_sample,
            under_way=sum(one.counts.planned - one.counts.done for one in contents),
            left_out=self._outgoing.left_out,
            files=folder.files,
            size_bytes=folder.size_bytes,
            notes=(
                *(lost_words(one.layout.directory, one.lost) for one in contents if one.lost),
                *(
                    f"prompts or token traces are missing in {n:,} conversations: {why}"
                    for why, n in self._missing.most_common(3)
                ),
            ),
            refused=tuple(self._refused),
        )

    # What is chosen.

    def _planned(self) -> list[_Part]:
        directory, disk = self._request.directory, self._request.disk
        if is_grid(directory, disk=disk):
            named = [(entry.slug, directory / entry.slug) for entry in begun_combinations(directory)]
        else:
            named = [("", directory)]
        found = [self._matching(slug, read_run(path, disk=disk)) for slug, path in named]
        if self._request.only and not any(part.matching for part in found):
            raise ConfigError(f"--only: no conversation of {directory} meets {' '.join(self._request.only)}")
        size = self._request.sample
        if size is None and sum(len(part.matching) for part in found) > WHOLE_MAX:
            size = SAMPLE
        each = None if size is None else max(1, size // max(1, len(found)))
        first = 1 if named[0][0] else 0
        return [
            part._replace(number=number, chosen=_sampled(part, each)) for number, part in enumerate(found, start=first)
        ]

    def _matching(self, slug: str, contents: Run) -> _Part:
        how = listed_run(contents)
        found = frozenset(contents.state.endings)
        if self._request.only:
            conditions = [parse_condition(text, how.columns) for text in self._request.only]
            found = frozenset(str(values["id"]) for values in matching(contents.json_rows(), how, conditions))
        return _Part(0, slug, contents, how, found, found)

    # The files.

    def _files(self) -> Iterator[tuple[str, bytes]]:
        page = page_with(POLICY, {"mac-data": "published", "robots": "noindex"})
        yield "index.html", page.replace(b"static/app.", b"app.")
        yield from ((name, static_file(name)) for name in ("app.js", "app.css"))
        yield "robots.txt", ROBOTS
        yield self._data("0/holds", {"comparisons": bool(self._comparisons)})
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
        columns = self._outgoing.index(index_columns(self._rows(part), part.how))
        if page.is_sample:
            page, columns = with_published(page, columns, part.chosen)
        yield self._data(f"{part.number}/run", page)
        yield self._data(f"{part.number}/index", columns)
        yield self._data(f"{part.number}/flow", flow_page(self._rows(part)))
        yield self._data(f"{part.number}/engines", self._source.engines(part.slug))
        yield self._data(f"{part.number}/forks", fork_trees(self._rows(part)))
        pages = ConversationPages(part.contents, self._outgoing)
        for member in _members(part):
            try:
                transcript = part.contents.transcript(member.task_id)
                with readable(member.task_id):
                    made = pages.of(transcript)
            except RunDirectoryError as fault:
                made = pages.left_out(member.task_id, member.number, str(fault))
            yield self._data(data_name(part.number, CONVERSATION, member.number), made.conversation, made.clean)
            yield self._data(data_name(part.number, TURNS, member.number), made.turns, made.clean)
            if self._comparisons:
                compared = data_name(part.number, COMPARED, member.number)
                yield self._data(compared, [*self._comparisons.of(member)])
        self._missing += pages.missing
        self._refused += pages.refused

    def _rows(self, part: _Part) -> Iterator[JsonObject]:
        """The index rows of all conversations that are listed, also of those that cannot be opened."""
        return (row for row in part.contents.rows() if row_id(row) in part.matching)

    def _data(self, name: str, value: object, clean: Callable[[str], str] | None = None) -> tuple[str, bytes]:
        return f"data/{name}.js", script(name, packed(value, clean or self._outgoing.private.clean))


def _members(part: _Part) -> Iterator[Member]:
    """The conversations of a run that can be opened, by number."""
    endings = part.contents.state.endings
    for task_id in sorted(part.chosen, key=lambda one: (endings[one].task_index, one)):
        yield Member(part.number, endings[task_id].task_index, task_id)


def _sampled(part: _Part, size: int | None) -> frozenset[str]:
    """So many of the conversations, the same whenever and in whichever order they ended.

    Those with one index in several combinations are drawn together: these can be compared.
    """
    if size is None or len(part.matching) <= size:
        return part.matching

    def draw(task_id: str) -> tuple[bytes, str]:
        index = part.contents.state.endings[task_id].task_index
        return hashlib.blake2b(b"%d" % index, digest_size=8).digest(), task_id

    return frozenset(sorted(part.matching, key=draw)[:size])


def with_published(page: RunPage, columns: IndexColumns, chosen: Collection[str]) -> tuple[RunPage, IndexColumns]:
    """The head and the list of a sample, with a column that says which conversations can be opened."""
    ids = columns.words["id"]
    numbers = tuple(1.0 if ids.words[code] in chosen else 0.0 for code in ids.codes)
    return (
        replace(page, columns=(*page.columns, ColumnView(IS_PUBLISHED, "truth"))),
        replace(columns, numbers={**columns.numbers, IS_PUBLISHED: NumberColumn(numbers)}),
    )


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


def _check_place(request: PublishRequest) -> None:
    """Refuse a place that is in the run, that the run is in, or that holds something else."""
    out, run, disk = request.out, request.directory.resolve(), request.disk
    found = out.resolve()
    if found == run or run in found.parents or found in run.parents:
        raise ConfigError(f"OUT: {out} and the run {request.directory} are inside one another; choose another folder")
    if found in (here := Path.cwd(), *here.parents):
        raise ConfigError(
            f"OUT: {out} holds the folder that you are in, and is replaced as a whole; go elsewhere first"
        )
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
    if foreign := sorted({*disk.names(out)} - NAMES):
        raise ConfigError(
            f"OUT: {out} is a publication, but holds {', '.join(foreign[:3])} too, which a new one would remove; "
            "move that away, or name a new folder"
        )


class Folder:
    """A folder that is written beside its place `out`, from `begin` on, and takes it when it is whole (`take_place`).

    One process writes it.
    """

    def __init__(self, disk: Disk, out: Path) -> None:
        self._disk = disk
        # Where a link leads, and what `.` is called: the folder is renamed, and not the way to it.
        self._out = out.resolve()
        self._path = self._out.with_name(f".{self._out.name}.publishing")
        self._known: set[Path] = set()
        self.files = 0
        self.size_bytes = 0

    def begin(self) -> None:
        """Start over; what a killed publication left is removed."""
        self.remove()
        self._disk.make_directory(self._path)

    def write(self, name: str, data: bytes) -> None:
        """Write a file, named by its path inside."""
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

    def take_place(self) -> None:
        """Rename the folder. What was in its place is removed after that."""
        former = self._out.with_name(f".{self._out.name}.former")
        _remove(self._disk, former)
        if self._disk.exists(self._out):
            self._disk.rename(self._out, former)
        self._disk.rename(self._path, self._out)
        _remove(self._disk, former)

    def remove(self) -> None:
        """Leave nothing but what was in the place before."""
        _remove(self._disk, self._path)


def _remove(disk: Disk, path: Path) -> None:
    """Remove a folder with all that is in it. What a link leads to stays."""
    if not disk.exists(path):
        return
    if path.is_symlink() or not disk.is_directory(path):
        disk.remove(path)
        return
    for name in disk.names(path):
        _remove(disk, path / name)
    disk.remove_directory(path)


class Member(NamedTuple):
    """A conversation of a publication: the folder of its run, its number, its task."""

    folder: int
    number: int
    task_id: str


class Comparisons:
    """Which of the published conversations a reader can lay beside each other; `runs` are by folder.

    A server compares any two that have a beginning in common. A folder holds what was compared when it was written: the
    conversations of one number in two combinations of a grid, and the forks of one parent. Of more than
    `COMPARED_ALL_MAX` of them, each is compared with the first alone.
    """

    def __init__(self, members: Iterable[Member], runs: Mapping[int, Run]) -> None:
        self._runs = runs
        self._shown = lru_cache(_COMPARED_KEPT_MAX)(self._read)
        self._others: defaultdict[Member, list[Member]] = defaultdict(list)
        groups: defaultdict[object, list[Member]] = defaultdict(list)
        if len(runs) > 1:
            for member in members:
                groups[member.number].append(member)
        elif any(run.fork is not None for run in runs.values()):
            parents = {str(row["task_id"]): row.get("fork_of") for one in runs.values() for row in one.rows()}
            for member in members:
                groups[parents[member.task_id]].append(member)
        for group in groups.values():
            group.sort()
            is_small = len(group) <= COMPARED_ALL_MAX
            for left, right in combinations(group, 2) if is_small else ((group[0], other) for other in group[1:]):
                self._others[left].append(right)

    def __bool__(self) -> bool:
        return bool(self._others)

    def of(self, member: Member) -> Iterator[dict[str, object]]:
        """The comparisons in which a conversation is on the left: how the events of both lie beside each other."""
        for other in self._others.get(member, ()):
            try:
                with readable(f"{member.task_id} or {other.task_id}"):
                    (left, left_view), (right, right_view) = self._shown(member), self._shown(other)
                    found = compare_view(left, right, left_view, right_view)
            except (ConfigError, RunDirectoryError):
                # Two combinations may differ in their seeds: these have nothing in common. A damaged one is left out.
                continue
            yield {
                "folder": other.folder,
                "number": other.number,
                "rows": found.rows,
                "first_turn": found.first_turn,
                "reason": found.reason,
            }

    def _read(self, member: Member) -> tuple[JsonObject, ConversationView]:
        transcript = self._runs[member.folder].transcript(member.task_id)
        return transcript, whole_view(transcript)
