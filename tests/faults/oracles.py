"""What finds a bug out: each a small deterministic part of a test, silent as long as all is well.

An oracle raises AssertionError at the first violation. It is the very code of the test that it stands for, with few of
its cases, so that a planted bug is found in about a second.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from mac_runner.store import writer
from tests.attacks import test_words
from tests.attacks.strings import ATTACKS
from tests.backends.http import test_standing
from tests.faults import test_crashes, test_failing_disk
from tests.faults.crashfs import CrashDisk
from tests.scheduler import test_poison, test_state
from tests.sim import storm, workload
from tests.sim.seeds import told
from tests.store import test_journal, test_run


def crashes() -> None:
    """Power cuts, before each operation of the store (`tests/faults/test_crashes.py`)."""
    # The lock is a real file, whatever the disk is.
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        disk, run_dir = CrashDisk(Path(directory)), Path(directory, "run")
        patch.setattr(writer, "COMMIT_LINGER_S", 0.0)
        moments = test_crashes.Moments(disk)
        test_crashes.play_twice(disk, run_dir, moments)
        expected = test_crashes.transcripts_in(disk.files())
        for crashed, promised in moments.cases.values():
            test_crashes.examine(crashed, run_dir, promised, expected)


def failing_disks() -> None:
    """Writes that fall short and a sync that fails (`tests/faults/test_failing_disk.py`)."""
    for fails in (
        test_failing_disk.test_short_write_is_carried_on_and_nothing_is_lost,
        test_failing_disk.test_failed_sync_is_never_tried_again,
    ):
        with TemporaryDirectory() as directory:
            fails(Path(directory))


def damaged_frames() -> None:
    """A journal with altered bytes, and one cut short (`tests/store/test_journal.py`)."""
    test_journal.test_scan_with_any_byte_altered_accepts_no_other_record_and_loses_at_most_one(0x20)
    test_journal.test_scan_of_a_file_cut_anywhere_finds_all_whole_frames_and_no_damage()


def sessions() -> None:
    """What one session leaves to the next (`tests/store/test_run.py`)."""
    for number, leaves in enumerate(
        (
            test_run.test_second_publication_of_a_task_leaves_the_first_in_place,
            test_run.test_deaths_are_remembered_over_sessions_until_the_task_is_done,
        )
    ):
        with TemporaryDirectory() as directory:
            leaves(Path(directory) / str(number))


def storms() -> None:
    """The scheduler on engines and a disk in a storm (`tests/scheduler/test_storms.py`)."""
    for seed in range(20):
        with told("storm", seed):
            storm.play(seed)


def worlds() -> None:
    """The pure scheduler in random worlds (`tests/scheduler/test_state.py`)."""
    for seed in range(20):
        with told("world", seed):
            workload.play(seed)


def poisons() -> None:
    """An engine that dies over one turn (`tests/scheduler/test_poison.py`)."""
    for dice in range(4):
        test_poison.test_poison_fails_its_conversation_at_the_third_death_and_the_run_goes_on(dice, 20.0)


def isolations() -> None:
    """A turn that servers die on, tried alone on one of them (`tests/scheduler/test_poison.py`)."""
    test_poison.test_the_other_servers_stay_full_while_a_suspect_is_tried()


def resizes() -> None:
    """An engine that shrinks beside another (`tests/scheduler/test_state.py`)."""
    test_state.test_engine_that_shrinks_takes_no_slot_of_another()


def servers_in_storms() -> None:
    """Several servers that die (`tests/scheduler/test_poison.py`)."""
    for seed in range(20):
        with told("storm over servers", seed):
            test_poison.play(seed)


def cancellations() -> None:
    """A run cancelled at some of its awaits, its last ones among them (`tests/scheduler/test_storms.py`)."""
    turns = storm.turns_to_cancel()
    for turn in (*range(7, turns, 37), *range(turns - 12, turns)):
        with told("cancellation", turn):
            storm.play_cancelled(turn)


def servers() -> None:
    """A server that takes connections and answers nobody (`tests/backends/http/test_standing.py`)."""
    test_standing.test_server_whose_engine_has_ended_is_dead()


def attacks() -> None:
    """Words that look like somebody else's (`tests/attacks/test_words.py`)."""
    for text in ATTACKS.values():
        test_words.check_words_stay_words_of_their_speaker(text)


EXCERPTS = (crashes, storms, worlds, cancellations)
"""Those that are a part of a test, or made from its parts."""
