"""A hook of MkDocs: on the site, links to files outside `docs/` lead to the repository."""

from __future__ import annotations

import re

_OUTSIDE = re.compile(r"(\]\(\s*)\.\./")


def on_page_markdown(markdown: str, *, config: dict[str, str], **_: object) -> str:
    """The text of a page with `](../CHANGELOG.md)` as a link to that file of the repository."""
    return _OUTSIDE.sub(rf"\1{config['repo_url'].rstrip('/')}/blob/main/", markdown)
