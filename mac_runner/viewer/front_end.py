"""The files of the front end, and its page with another policy and other metas."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Final

from mac_runner.files import read_regular

STYLE_LINK: Final = b'<link rel="stylesheet" href="static/app.css">'
SCRIPT_LINK: Final = b'<script src="static/app.js"></script>'
_BYTES_MAX: Final = 1 << 20
_HEAD: Final = re.compile(rb'<meta charset="utf-8">\n')


def static_file(name: str) -> bytes:
    """A file of the front end."""
    return read_regular(Path(__file__).parent / "static" / name, _BYTES_MAX)


def page_with(policy: str, metas: Mapping[str, str]) -> bytes:
    """The page with a content security policy, which comes before all that it governs, and with metas."""
    lines = [f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">']
    lines += [f'<meta name="{name}" content="{escape(value)}">' for name, value in metas.items()]
    added = "".join(f"{line}\n" for line in lines).encode()
    page, count = _HEAD.subn(lambda found: found[0] + added, static_file("index.html"), count=1)
    assert count == page.count(STYLE_LINK) == page.count(SCRIPT_LINK) == 1, "index.html is not as it was built"
    return page
