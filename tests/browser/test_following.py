"""A page that stays open while its run is killed and resumed."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.browser.conftest import Served
from tests.browser.screens import Watch
from tests.cli.lab import Lab
from tests.patience import LIMIT_S, wait_for
from tests.viewer.half_played import engine

CONVERSATIONS = 4


def test_page_follows_a_run_that_is_killed_and_resumed(watch: Watch, served: Served, tmp_path: Path) -> None:
    lab, run = Lab(path=tmp_path), tmp_path / "runs" / "live"
    try:
        with engine() as held:
            file = lab.write(held.experiment("live", CONVERSATIONS))
            process = lab.start(file, "--quiet")
            wait_for(lambda: len([*run.glob("transcripts/*.json")]) >= 1, "a conversation that ended")
            page = watch.open(served(run))
            page.get_by_text(f"1 of {CONVERSATIONS} ended").first.wait_for()
            page.evaluate("() => { window.stays = 'the same page' }")
            process.send_signal(signal.SIGKILL)
            process.wait(timeout=LIMIT_S)

            held.goes_on = True
            lab.done(file, "--quiet")

        page.get_by_text(f"{CONVERSATIONS} of {CONVERSATIONS} ended").first.wait_for()
        page.evaluate("(place) => { window.location.hash = place }", f"#/c/{CONVERSATIONS - 1}")
        page.get_by_text(f"Conversation {CONVERSATIONS - 1}").first.wait_for()
        assert page.evaluate("() => window.stays") == "the same page"
    finally:
        lab.close()
