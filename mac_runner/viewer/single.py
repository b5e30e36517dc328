"""One conversation as one page that can be mailed (`mac-run show RUN GAME --html FILE`).

The script and the stylesheet are inside, allowed by their digests alone, and the data are Base64 in elements that no
browser runs. The page asks no host for anything.
"""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from typing import Final
from urllib.parse import quote

from msgspec.structs import replace

from mac_runner.reports import listed
from mac_runner.reports.turns import readable
from mac_runner.store import Run
from mac_runner.store.records import row_id
from mac_runner.types import JsonObject
from mac_runner.view_model import RunPage
from mac_runner.viewer.conversation_data import ConversationPages
from mac_runner.viewer.front_end import SCRIPT_LINK, STYLE_LINK, page_with, static_file
from mac_runner.viewer.outgoing import Outgoing
from mac_runner.viewer.packing import CONVERSATION, TURNS, data_name, packed
from mac_runner.views.index import index_columns

_SEAT_COLUMNS: Final = ("number", "id", "status")
"""What the list says of a conversation of which one seat's view goes out."""


def single_page(run: Run, page: RunPage, row: JsonObject, seat: str | None, outgoing: Outgoing) -> bytes:
    """The page of the conversation of an index row, whole or as one seat saw it.

    Raises ConfigError when no agent has that name, RunDirectoryError when its transcript is not what was acknowledged.
    """
    how = listed(run.environment_name).with_outcomes([row]).with_metrics([row])
    pages, transcript = ConversationPages(run, outgoing), run.acknowledged(row)
    with readable(row_id(row)):
        made = pages.of(transcript) if seat is None else pages.of_seat(transcript, seat)
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
