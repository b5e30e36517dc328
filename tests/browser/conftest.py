"""Pages of real runs in a real browser. A page that logs an error, or asks another host, fails its test."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from tests.browser import runs
from tests.browser.made_up import MadeUpRun, made_up_run
from tests.browser.screens import Watch, chromium, hosted
from tests.cli.lab import Lab
from tests.kit import known
from tests.patience import LIMIT_S

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

Served: TypeAlias = Callable[..., str]
"""Starts `mac-run view` on a run directory, with flags; the address of its page."""
Published: TypeAlias = Callable[..., Path]
"""Publishes a run directory, with flags; the folder."""
MakeUp: TypeAlias = Callable[..., MadeUpRun]
"""Puts a run that a test makes up at an address."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A Chromium for the tests of one file. As long as it is there an event loop runs, and others can run none."""
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """The working directory of all runs below; not to be changed."""
    lab = Lab(path=tmp_path_factory.mktemp("browser"))
    yield lab
    lab.close()


def _run(kind: str) -> Any:
    """The run of a kind, as a fixture; not to be changed."""

    def run(played: Lab) -> Path:
        return runs.played(played, kind)

    return pytest.fixture(run, name=kind, scope="session")


games, talks, village, broken, fork, long, foreign = map(_run, runs.KINDS)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """Serves runs until the test ends; then each server must end well."""
    with serving(tmp_path) as serve:
        yield serve


@pytest.fixture(scope="package")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serves runs that no test changes until the last test of this room has ended."""
    with serving(tmp_path_factory.mktemp("kept")) as serve:
        yield serve


@contextmanager
def serving(path: Path) -> Iterator[Served]:
    lab = Lab(path=path)

    def serve(run: Path, *flags: str) -> str:
        process = lab.start("view", str(run), "--no-open", *flags)
        url = known(process.stdout).readline().strip()
        assert url, process.communicate(timeout=LIMIT_S)
        return url

    try:
        yield serve
        for process in lab.started:
            process.send_signal(signal.SIGINT)
        for process in lab.started:
            _, words = process.communicate(timeout=LIMIT_S)
            assert process.returncode in (0, -signal.SIGKILL), words
            assert "Traceback" not in words, words
    finally:
        lab.close()


def _address(kind: str) -> Any:
    """The address of the run of a kind, as a fixture."""

    def address(kept: Served, played: Lab) -> str:
        return kept(runs.played(played, kind))

    return pytest.fixture(address, name=f"at_{kind}", scope="package")


at_games, at_talks, at_village, at_broken, at_fork, at_long, at_foreign = map(_address, runs.KINDS)


@pytest.fixture(scope="session")
def published(played: Lab) -> Published:
    """Publishes runs, each with the same flags once; not to be changed."""
    folders: dict[tuple[str, ...], Path] = {}

    def publish(run: Path, *flags: str) -> Path:
        key = (str(run), *flags)
        if key not in folders:
            folders[key] = played.path / "published" / str(len(folders))
            played.done("publish", str(run), str(folders[key]), *flags)
        return folders[key]

    return publish


@pytest.fixture
def host() -> Iterator[Callable[[Path], str]]:
    """Puts a folder on a plain static host until the test ends; the address of its page."""
    with ExitStack() as stack:
        yield lambda folder: stack.enter_context(hosted(folder))


@pytest.fixture
def make_up() -> Iterator[MakeUp]:
    """Runs that are made up, at their addresses until the test ends."""
    with ExitStack() as stack:
        yield lambda *pages, **more: stack.enter_context(made_up_run(*pages, **more))


@pytest.fixture
def watch(browser: Browser, served: Served, host: Callable[[Path], str], make_up: MakeUp) -> Iterator[Watch]:
    """Opens pages, and closes them before their servers end; none of them may have had a trouble."""
    watch = Watch(browser)
    yield watch
    watch.close()


@pytest.fixture
def page(watch: Watch) -> Page:
    """A page, 1400 pixels wide and light."""
    return watch.open()
