"""`mac-run publish`: the pages of a run as a folder."""

from __future__ import annotations

from mac_runner.cli.process import Exit, report, say
from mac_runner.viewer.publish import Publication, PublishRequest, publish


def publish_pages(request: PublishRequest) -> Exit:
    """Write the pages of a run, and print what went out."""
    found = publish(request)
    with report() as stream:
        stream.write(f"{request.out}: {_what(found)}\n")
        stream.write(f"left out: {', '.join([*found.left_out, *_always(found)])}\n")
    for note in found.notes:
        say(f"note: {note}")
    say(f"open {request.out / 'index.html'}, or put the folder on any static host")
    return Exit.OK


def _what(found: Publication) -> str:
    which = " (a sample: --sample N takes another number)" if found.is_sample else ""
    size = f"{found.size_bytes / 1e6:,.1f} MB" if found.size_bytes >= 1e6 else f"{found.size_bytes / 1e3:,.0f} KB"
    return f"{found.conversations:,} of {found.ended:,} conversations{which}, {found.files:,} files, {size}"


def _always(found: Publication) -> list[str]:
    waiting = [f"{found.under_way:,} conversations that have not ended"] if found.under_way else []
    return [*waiting, "addresses of engines, paths, keys and names of machines"]
