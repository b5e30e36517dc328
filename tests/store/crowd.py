"""Several players in one run directory at once; a program, one process of many.

`honest DIR N`: play, or say who was there first. `lied-to DIR N`: the same with a lock that is granted to everybody, as
on some network filesystems. It says `ready` and `inside`, and goes on at a line on its standard input.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from unittest.mock import patch

from filelock import FileLock

from mac_runner.errors import RunLockedError
from mac_runner.store import Run
from tests.store import player

PAUSE_S = 0.002


def main() -> None:
    mode, directory, n = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    if mode == "lied-to":
        # No lock here lies by itself.
        patch.object(FileLock, "acquire", lambda self: None).start()
    tell("ready")
    sys.stdin.readline()
    try:
        run = player.open_toy(directory, n)
    except RunLockedError as refusal:
        tell(f"left: {refusal}")
        return
    with run:
        tell("inside")
        sys.stdin.readline()
        tell(f"played {play(run)}")


def play(run: Run) -> int:
    """Play what is left, a moment for each conversation, so that many are under way at once; how many were played."""
    played = 0
    for task, recorded in run.unfinished():
        replies = list(recorded)
        while len(replies) < player.TURNS:
            replies.append(player.answer(task, replies))
            run.reply(task, replies[-1])
            run.event("EVENT_INFER_DONE", {"task": task.task_id, "turn": replies[-1].turn_key})
        run.publish(task, player.transcript(task, replies))
        played += 1
        time.sleep(PAUSE_S)
    return played


def tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


main()
