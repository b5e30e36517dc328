"""`mac-run publish` and `mac-run show --html`: the pages of a run as a folder, and one of them as a file."""

from __future__ import annotations

from pathlib import Path

from mac_runner.cli.process import Exit, report, say
from mac_runner.cli.show import refuse_grid
from mac_runner.errors import ConfigError
from mac_runner.printable import counted
from mac_runner.runs.recorded import ended_row
from mac_runner.store import read_run
from mac_runner.store.identity import listed
from mac_runner.store.run import lost_words
from mac_runner.viewer.conversation_data import private_of, single_page
from mac_runner.viewer.outgoing import Outgoing
from mac_runner.viewer.publish import Publication, PublishRequest, publish
from mac_runner.viewer.source import RunSource


def publish_pages(request: PublishRequest) -> Exit:
    """Write the pages of a run, and print what went out."""
    found = publish(request)
    with report() as stream:
        stream.write(f"{request.out}: {_what(found)}\n")
        stream.write(f"left out: {', '.join([*found.left_out, *_always(found)])}\n")
    for note in found.notes:
        say(f"note: {note}")
    if found.refused:
        say(f"{counted(len(found.refused), 'damaged conversations')} left out:\n{listed(found.refused)}")
    say(f"open {request.out / 'index.html'}, or put the folder on any static host")
    return Exit.FAILURES if found.refused else Exit.OK


def show_page(directory: Path, game: str, seat: str | None, to: Path) -> Exit:
    """Write one conversation as a page that can be mailed."""
    refuse_grid(directory)
    if to.exists() or to.is_symlink():
        raise ConfigError(f"--html: {to} is there already; name another file, or remove it")
    run = read_run(directory)
    row = ended_row(run, game)
    outgoing = Outgoing(private=private_of(run.disk, directory, [run]))
    page = single_page(run, RunSource(directory).run(""), row, seat, outgoing)
    run.disk.write_atomic(to, [page])
    if run.lost:
        say(f"warning: {lost_words(directory, run.lost)}")
    with report() as stream:
        stream.write(f"{to}: {len(page) / 1000:,.0f} KB\n")
    return Exit.OK


def _what(found: Publication) -> str:
    which = " (a sample: --sample N takes another number)" if found.is_sample else ""
    size = f"{found.size_bytes / 1e6:,.1f} MB" if found.size_bytes >= 1e6 else f"{found.size_bytes / 1e3:,.0f} KB"
    return f"{found.conversations:,} of {found.ended:,} conversations{which}, {found.files:,} files, {size}"


def _always(found: Publication) -> list[str]:
    waiting = [f"{found.under_way:,} conversations that have not ended"] if found.under_way else []
    return [*waiting, "addresses of engines, paths, keys and names of machines"]
