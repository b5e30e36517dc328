"""One conversation for files: what its pages need, and one page of it that can be mailed (`mac-run show --html`).

The script and the stylesheet are inside that page, allowed by their digests alone, and the data are Base64 in elements
that no browser runs. The page asks no host for anything.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache, cached_property
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

from msgspec.structs import replace

from mac_runner.errors import MacRunnerError
from mac_runner.reports import listed
from mac_runner.reports.turns import objects, readable
from mac_runner.runs.replays import Replays
from mac_runner.store import Disk, Run
from mac_runner.store.leases import places_of_work
from mac_runner.store.lock import read_owner
from mac_runner.store.machine import Machine
from mac_runner.store.records import row_id
from mac_runner.store.traces import Traces
from mac_runner.types import JsonObject
from mac_runner.view_model import ConversationView, RunPage
from mac_runner.viewer.outgoing import NO_PROMPTS, Outgoing, Private, addresses_in, hosts_in
from mac_runner.viewer.packing import (
    CONVERSATION,
    SCRIPT_LINK,
    STYLE_LINK,
    TURNS,
    data_name,
    packed,
    page_with,
    static_file,
)
from mac_runner.views.conversation import thought_parts, whole_view
from mac_runner.views.inspector import PromptOf, turn_views
from mac_runner.views.perspective import perspective
from mac_runner.views.run_page import index_columns

_SEAT_COLUMNS: Final = ("number", "id", "status")
"""What the list says of a conversation of which one seat's view goes out."""


class ConversationData(NamedTuple):
    """What the pages of a conversation need. Each has the `whole`, and in `seats` what each seat saw."""

    conversation: Mapping[str, object]
    turns: Mapping[str, object]
    clean: Callable[[str], str]
    """What each text of it passes through at the end."""


class ConversationPages:
    """Makes what the pages of the conversations of a run need."""

    def __init__(self, run: Run, outgoing: Outgoing) -> None:
        self._run = run
        self._outgoing = outgoing
        self.missing = Counter[str]()
        """Why prompts or token traces are missing that were not left out on purpose, and in how many conversations."""
        self.refused: list[str] = []
        """The conversations of which nothing is shown, and why."""

    def of(self, transcript: JsonObject, seat: str | None = None) -> ConversationData:
        """The whole conversation and as each seat saw it; or as one seat saw it, and nothing else.

        Raises ConfigError when no agent has that name.
        """
        whole = whole_view(transcript)
        if seat is None:
            views = [whole, *(perspective(whole, one) for one in whole.seats)]
        else:
            views = [perspective(whole, seat)]
        prompt_of, missing = self._prompts(transcript)
        traces = self._traces(transcript)
        spoken = [part for turn in objects(transcript["turns"]) for part in thought_parts(turn)]
        turns = [[*turn_views(transcript, view, prompt_of, prompt_missing=missing, traces=traces)] for view in views]
        shown = [*map(self._outgoing.conversation, views)]
        told = [[*self._outgoing.turns(each, spoken)] for each in turns]
        if seat is None:
            (whole_shown, *seen), (whole_told, *seen_told) = shown, told
        else:  # The seat's own view is all there is.
            whole_shown, seen, whole_told, seen_told = shown[0], shown, told[0], told
        return ConversationData(
            {"whole": whole_shown, "seats": seen},
            {"whole": whole_told, "seats": seen_told},
            self._outgoing.cleaner(spoken),
        )

    def left_out(self, task_id: str, number: int, why: str) -> ConversationData:
        self.refused.append(f"{task_id}: {why}")
        view = ConversationView(
            task_id=task_id,
            index=number,
            environment=self._run.environment_name,
            status="failed" if self._run.state.endings[task_id].status == "failed" else "finished",
            seats=(),
            members=(),
            phases=(),
            events=(),
            turns=(),
            note=f"left out of this publication: {why}",
        )
        shown = {"whole": self._outgoing.conversation(view), "seats": []}
        return ConversationData(shown, {"whole": [], "seats": []}, self._outgoing.cleaner(()))

    def _prompts(self, transcript: JsonObject) -> tuple[PromptOf | None, str]:
        if not self._outgoing.has_prompts:
            return None, NO_PROMPTS
        try:
            return cache(self._replays.prompts(transcript)), ""
        except MacRunnerError as fault:
            self.missing[str(fault)] += 1
            return None, str(fault)

    def _traces(self, transcript: JsonObject) -> Traces:
        """The token traces of a conversation; none where they cannot be read, which is noted."""
        try:
            return self._run.traces(transcript)
        except MacRunnerError as fault:
            self.missing[str(fault)] += 1
            return {}

    @cached_property
    def _replays(self) -> Replays:
        return Replays(self._run)


def private_of(disk: Disk, directory: Path, runs: Iterable[Run]) -> Private:
    """The addresses, paths and machines of a run or a grid."""
    known = {str(directory.resolve()), str(Path.home()), *((str(directory),) if directory.is_absolute() else ())}
    machines = {Machine().host}
    for run in runs:
        known.update(addresses_in(run.resolved))
        machines.update(hosts_in(run.resolved))
        owners = (read_owner(disk, place) for place in places_of_work(disk, run.layout.directory))
        machines.update(owner.host for owner in owners if owner is not None)
    return Private(known, machines - {"localhost"})


def single_page(run: Run, page: RunPage, row: JsonObject, seat: str | None, outgoing: Outgoing) -> bytes:
    """The page of the conversation of an index row, whole or as one seat saw it.

    Raises ConfigError when no agent has that name, RunDirectoryError when its transcript is not what was acknowledged.
    """
    how = listed(run.environment_name).with_outcomes([row]).with_metrics([row])
    pages, transcript = ConversationPages(run, outgoing), run.acknowledged(row)
    with readable(row_id(row)):
        made = pages.of(transcript, seat)
    page = replace(outgoing.run(page, is_sample=True), combinations=())
    if seat is not None:
        how = how._replace(columns={name: how.columns[name] for name in _SEAT_COLUMNS})
        page = replace(page, facts=(), columns=tuple(one for one in page.columns if one.name in _SEAT_COLUMNS))
    number = row["index"]
    assert isinstance(number, int)
    data = {
        "0/run": page,
        "0/index": outgoing.index(index_columns([row], how)),
        data_name(0, CONVERSATION, number): made.conversation,
        data_name(0, TURNS, number): made.turns,
    }
    start = f"#/c/{number}" + ("" if seat is None else f"?seat={quote(seat, safe='')}")
    return _html({name: packed(value, made.clean) for name, value in data.items()}, start)


def _html(data: dict[str, bytes], start: str) -> bytes:
    script, style = static_file("app.js"), static_file("app.css")
    blocks = b"".join(
        b'<script type="application/octet-stream" id="data:%s">%s</script>\n' % (name.encode(), packed)
        for name, packed in data.items()
    )
    page = page_with(
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'",
        {"mac-data": "single", "mac-start": start, "robots": "noindex"},
    )
    page = page.replace(STYLE_LINK, b"<style>" + style + b"</style>")
    return page.replace(SCRIPT_LINK, blocks + b"<script>" + _inline(script) + b"</script>")


def _inline(script: bytes) -> bytes:
    """A script that does not end the element it is in."""
    assert not re.search(rb"</script|<!--", script, re.IGNORECASE)
    return script


def _digest(text: bytes) -> str:
    return f"sha256-{b64encode(sha256(text).digest()).decode()}"
