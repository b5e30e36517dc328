"""A toy conversation and a player of whole runs; also a program, one player of many in one run directory.

A task has four turns. Each answer depends on the task's seed and on all answers before it, so a lost, repeated or
swapped reply shows in the last one.

As a program, `honest DIR N`: play, or say who was there first. `lied-to DIR N`: the same with a lock that is granted to
everybody, as on some network filesystems. It says `ready` and `inside`, and goes on at a line on its standard input.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from mac_runner.clock import Clock, SystemClock
from mac_runner.errors import RunLockedError
from mac_runner.plan import Plan, Shard, task_name
from mac_runner.store import (
    Disk,
    Invocation,
    Merged,
    RunRecorder,
    Survey,
    VerifyReport,
    build_transcript,
    merge_runs,
    open_run,
    replies_of,
    survey,
    task_of,
)
from mac_runner.store import verify_run as verify
from mac_runner.store.testing import TRACES, Layout, Lease
from mac_runner.types import (
    Agent,
    JsonObject,
    Receipt,
    ReceiptKind,
    RecordedReply,
    Reply,
    Sampling,
    Task,
    TokenCount,
    TokenTrace,
    Turn,
    TurnRecord,
    stable_hash,
)

NAME = "toy"
TURNS = 4
PAUSE_S = 0.002
TOKENS = 0
"""How many tokens each turn adds to the prompts; 0 where tokens are not recorded."""
STORY = "turn 2/Ann/0/0 got no answer"
"""Why a conversation failed."""
NASTY = "\ud800 \0 \u2028 \x85 \r\n \ufeff"


def resolved(seed: int = 1, description: str = "a toy") -> JsonObject:
    return {"experiment_metadata": {"experiment_name": NAME, "description": description}, "seed": seed}


def plan(n: int, first: int = 0) -> Plan:
    return Plan(range(first, n), name_of=lambda i: f"{NAME}_{i:05d}", make=made)


def shared_plan(n: int) -> Plan:
    """The same tasks for workers, who find the index of a task in its name."""
    return Plan(range(n), name_of=lambda i: task_name(NAME, i), make=made)


def made(index: int, task_id: str) -> Task:
    agent = Agent(agent_id="Ann", definition="player", model="m", seat=0, slot=0, sampling=Sampling(stop=("\n",)))
    return Task(index=index, task_id=task_id, seed=stable_hash(index), agents=(agent,))


def turn(n: int) -> Turn:
    return Turn(round=n, agent="Ann", model="m", place=0)


def answer(task: Task, before: list[RecordedReply]) -> RecordedReply:
    key = turn(len(before)).key
    said = str(
        stable_hash(task.seed, key, *(str(stable_hash(reply.turn_key, repr(reply.reply.text))) for reply in before))
    )
    reply = Reply(
        text=f"{said} {NASTY}", tokens=TokenCount(prompt=3, cached=1, completion=2), trace=trace(task, len(before))
    )
    return RecordedReply(turn_key=key, prompt_sha256="0" * 64, reply=reply, model="m")


def answers(task: Task, n: int) -> list[RecordedReply]:
    """The first answers of a task."""
    replies: list[RecordedReply] = []
    while len(replies) < n:
        replies.append(answer(task, replies))
    return replies


def trace(task: Task, n: int) -> TokenTrace | None:
    """The tokens of a turn: what all prompts of a task begin with, what grows with each turn, and the turn's own."""
    if not TOKENS:
        return None
    prompt = [stable_hash(task.seed, place) % 150_000 for place in range((n + 2) * TOKENS)]
    reply = [stable_hash(task.seed, n, place) % 150_000 for place in range(TOKENS)]
    return TokenTrace(prompt_ids=[*prompt, n], completion_ids=reply, logprobs=[-token / 4096 for token in reply])


def transcript(
    task: Task, replies: list[RecordedReply], failure: str | None = None, *, wall_s: float = 0.25
) -> JsonObject:
    records = [
        TurnRecord(
            turn=turn(n),
            prompt_sha256=reply.prompt_sha256,
            reply=reply.reply,
            receipt=Receipt(kind=ReceiptKind.ACT, detail="says"),
        )
        for n, reply in enumerate(replies)
    ]
    last = replies[-1].reply.text if replies else ""
    return build_transcript(
        experiment_name=NAME,
        environment="toy",
        task=task,
        outcome={"last": last} if failure is None else None,
        record={"said": [{"text": reply.reply.text} for reply in replies]},
        fingerprint=str(stable_hash(repr(last))),
        turns=records,
        failure=failure,
        timing={"wall_s": wall_s},
    )


def rebuild(found: JsonObject) -> JsonObject:
    """What the replies of a transcript ought to have been, whatever they are."""
    task, failure = task_of(found), found["failure"]
    replies = answers(task, len(replies_of(found)))
    rebuilt = transcript(task, replies, failure if isinstance(failure, str) else None)
    return {**rebuilt, TRACES: found[TRACES]} if TRACES in found else rebuilt


def asked(
    directory: Path,
    tasks: int | Plan,
    config: JsonObject | None = None,
    *,
    shard: Shard | None = None,
    grid: Path | None = None,
    lease: Lease | None = None,
) -> Invocation:
    """So many tasks of the toy, or a plan of them, in a directory."""
    layout = Layout(directory=directory, experiment_name=NAME, grid=grid, lease=lease)
    planned = plan(tasks) if isinstance(tasks, int) else tasks
    return Invocation(layout=layout, resolved=config or resolved(), tasks=planned, shard=shard)


def open_toy(
    directory: Path, tasks: int | Plan, *, clock: Clock | None = None, config: JsonObject | None = None, **more: Any
) -> RunRecorder:
    clock = clock or SystemClock()
    where = {key: more.pop(key) for key in ("shard", "grid", "lease") if key in more}
    return open_run(asked(directory, tasks, config, **where), clock=clock, **more)


def begun(run: RunRecorder) -> RunRecorder:
    """The run, which has written what its start came to."""
    run.begin()
    run.drain()
    return run


def surveyed(directory: Path, n: int, config: JsonObject | None = None) -> Survey:
    """What is known of a run directory before it is opened for so many tasks."""
    return survey(asked(directory, n, config))


def steps(
    run: RunRecorder,
    *,
    turns: int | None = None,
    failing: Collection[str] = (),
    until: int = 2,
    wall_s: float = 0.25,
) -> Iterator[bool]:
    """Play what is left, or only so many turns of it, one reply or one ending at a time: whether it was an ending.

    Of those that are `failing` each fails after so many replies. By another `wall_s` the same result has other bytes.
    """
    played = 0
    for task, recorded in run.unfinished():
        replies, is_failing = list(recorded), task.task_id in failing
        while len(replies) < (until if is_failing else TURNS):
            if played == turns:
                return
            replies.append(answer(task, replies))
            run.reply(task, replies[-1])
            run.event("EVENT_INFER_DONE", {"task": task.task_id, "turn": replies[-1].turn_key})
            played += 1
            yield False
        run.publish(task, transcript(task, replies, STORY if is_failing else None, wall_s=wall_s))
        yield True


def play(run: RunRecorder, *, turns: int | None = None, failing: Collection[str] = (), until: int = 2) -> int:
    """Play what is left, or only so many turns of it; how many turns were played."""
    return sum(not is_ending for is_ending in steps(run, turns=turns, failing=failing, until=until))


def played(
    directory: Path,
    tasks: int | Plan,
    *,
    turns: int | None = None,
    failing: Collection[str] = (),
    until: int = 2,
    **opening: Any,
) -> Path:
    """The directory of a run in which what is left was played in one session, or only so many turns of it."""
    with open_toy(directory, tasks, **opening) as run:
        play(run, turns=turns, failing=failing, until=until)
    return directory


def verified(directory: Path, **more: Any) -> VerifyReport:
    """What a check of a run directory finds."""
    return verify(directory, rebuild=rebuild, **more)


def merged(target: Path, *sources: Path, tasks: int | Plan, disk: Disk | None = None) -> Merged:
    """Runs of so many tasks, or of a plan, made into one."""
    planned = plan(tasks) if isinstance(tasks, int) else tasks
    return merge_runs(
        target,
        sources,
        summarise=lambda contents: {"finished": contents.counts.finished},
        plan=lambda _run: planned,
        clock=SystemClock(),
        disk=disk,
    )


class BrokenLock:
    """A lock that everybody is granted, and believes to hold."""

    def __init__(self, _path: Path, **_settings: bool) -> None:
        self.is_locked = False

    def acquire(self) -> None:
        self.is_locked = True

    def release(self) -> None:
        self.is_locked = False


def main() -> None:
    mode, directory, n = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    if mode == "lied-to":
        # No lock here lies by itself.
        patch("mac_runner.store.lock.FileLock", BrokenLock).start()
    tell("ready")
    sys.stdin.readline()
    try:
        run = open_toy(directory, n)
    except RunLockedError as refusal:
        tell(f"left: {refusal}")
        return
    with run:
        tell("inside")
        sys.stdin.readline()
        ended = 0
        for is_ending in steps(run):
            if is_ending:
                ended += 1
                time.sleep(PAUSE_S)  # So that many are under way at once.
        tell(f"played {ended}")


def tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
