"""What does one more conversation cost? Bookkeeping, memory, and the resume after a kill.

Run `python benchmarks/scale.py --conversations 10000`. Three agents send numbers back over two rounds (the environment
`echo`, the scripted backend), so it measures the runner.

- The store alone gets the replies, events and transcripts of all conversations. `bookkeeping_us_per_turn` is its
  CPU time for a reply and its events, `bookkeeping_us_per_conversation` all the rest: transcript, `done` frame, index
  row, and a share of opening and closing the run directory.
- `mac-run` is killed with SIGKILL when half of the conversations are done, and started again.
  `resume_to_first_request_s` goes from the start of the new process to its first request, and `resume_cpu_s` is the
  CPU time until then, which depends less on other work on the machine; `scheduler_us_per_turn` is the CPU time
  of the event loop's thread from there on, environment and engine included. `loop_pause_ms_max` is the longest
  delay that the loop caused, and `loop_busy_ms_max` the most CPU time its thread spent in one, which does not depend on
  other work on the machine. `peak_rss_mb` is the most memory of the process, from its start to the summary.
- `finished_again_s`: one more start, of the finished run.

The last line is one JSON row.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count, islice
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

ROOT: Final = Path(__file__).parent.parent
if str(ROOT) not in sys.path:  # Run as a script, only the directory of the script is on it.
    sys.path.insert(0, str(ROOT))

import yaml  # noqa: E402

from benchmarks.machine import row  # noqa: E402
from mac_runner.cli.play import Run  # noqa: E402
from mac_runner.clock import SystemClock  # noqa: E402
from mac_runner.runs import event_loop  # noqa: E402
from mac_runner.runs.setup import RunRequest, set_up  # noqa: E402
from mac_runner.store import RunRecorder, build_transcript, open_run  # noqa: E402
from mac_runner.types import (  # noqa: E402
    JsonObject,
    Receipt,
    ReceiptKind,
    RecordedReply,
    Reply,
    Task,
    Timing,
    TokenCount,
    Turn,
    TurnRecord,
)

T = TypeVar("T")

AGENTS: Final = 3
ROUNDS: Final = 2
TURNS: Final = AGENTS * ROUNDS
IN_FLIGHT_MAX: Final = 1000
LATENCY_MS: Final = 100.0
CONVERSATIONS_PER_SLICE: Final = 1000
HEARTBEAT_S: Final = 0.005


class Bookkeeping(NamedTuple):
    """CPU time the store took."""

    us_per_turn: float
    us_per_conversation: float


class Played(NamedTuple):
    """A run that was killed half way and resumed."""

    resume_to_first_request_s: float
    resume_cpu_s: float
    scheduler_us_per_turn: float
    loop_busy_ms_max: float
    loop_pause_ms_max: float
    peak_rss_mb: float
    wall_s: float
    finished_again_s: float


def in_flight(conversations: int) -> int:
    """Requests in flight at once; far fewer than conversations, so that a run can be half done."""
    return max(1, min(IN_FLIGHT_MAX, conversations // 10))


def experiment(conversations: int) -> JsonObject:
    """The experiment file."""
    agents: list[JsonObject] = [
        {"agent_id": f"echo_{n}", "role": "participant", "model": "mirror"} for n in range(AGENTS)
    ]
    return {
        "experiment_metadata": {"experiment_name": "scale"},
        "conversation_config": {"environment": "echo", "conversations": conversations},
        "echo": {"rounds": ROUNDS},
        "agent_definitions": [*agents],
        "model_definitions": {
            "mirror": {
                "backend": "scripted",
                "scripted_config": {
                    "policy": "echo",
                    "capacity": in_flight(conversations),
                    "latency_ms": LATENCY_MS,
                },
            }
        },
    }


def bookkeeping(file: Path, out: Path, conversations: int) -> Bookkeeping:
    """The store alone: everything a run gives it, slice by slice, so that each kind can be timed separately."""
    (setup,) = set_up(RunRequest(file=file, out=out)).setups
    began_s, turns_s = time.process_time(), 0.0
    with open_run(setup.invocation, clock=SystemClock()) as run:
        work = run.unfinished()
        while some := [task for task, _ in islice(work, CONVERSATIONS_PER_SLICE)]:
            turns_s += _cpu_s(run, _hand_over_turns, some)
            _cpu_s(run, _hand_over_end, some)
        run.checkpoint({"models": {}})
    rest_s = time.process_time() - began_s - turns_s
    return Bookkeeping(1e6 * turns_s / (conversations * TURNS), 1e6 * rest_s / conversations)


def _cpu_s(run: RunRecorder, hand_over: Callable[[RunRecorder, Task], None], tasks: Sequence[Task]) -> float:
    began_s = time.process_time()
    for task in tasks:
        hand_over(run, task)
    while run.backlog:
        time.sleep(0.01)
    return time.process_time() - began_s


def _turns(task: Task) -> Iterator[TurnRecord]:
    for number in range(ROUNDS):
        for agent in task.agents:
            reply = Reply(
                text="1234",
                tokens=TokenCount(prompt=15, completion=1),
                timing=Timing(queue_s=0.001234, generate_s=0.012345),
            )
            turn = Turn(round=number, agent=agent.agent_id, model=agent.model, place=agent.seat)
            receipt = Receipt(kind=ReceiptKind.ACT, detail="echo")
            yield TurnRecord(turn=turn, prompt_sha256="0" * 64, reply=reply, receipt=receipt)


def _hand_over_turns(run: RunRecorder, task: Task) -> None:
    for record in _turns(task):
        about: JsonObject = {
            "task": task.task_id,
            "agent": record.turn.agent,
            "turn": record.turn.key,
            "model": record.turn.model,
            "gpu": None,
        }
        run.event("EVENT_INFER_START", {**about, "prompt_chars": 60, "seed": 1234567890, "sending": 1})
        run.event(
            "EVENT_INFER_DONE",
            {**about, "tokens_out": 1, "latency_ms": 12.345, "finish_reason": "stop", "is_dropped": False},
        )
        run.reply(task, RecordedReply(turn_key=record.turn.key, prompt_sha256=record.prompt_sha256, reply=record.reply))


def _hand_over_end(run: RunRecorder, task: Task) -> None:
    transcript = build_transcript(
        experiment_name="scale",
        environment="echo",
        task=task,
        outcome={"kind": "echo", "rounds": ROUNDS, "echoed": TURNS},
        record={"events": []},
        fingerprint="0" * 64,
        turns=[*_turns(task)],
        failure=None,
        timing={"ended_at": "2025-01-01T00:00:00.000Z", "open_s": 1.5},
    )
    run.publish(task, transcript)
    run.event("EVENT_CONVERSATION_DONE", {"task": task.task_id, "status": "finished", "failure": None, "turns": TURNS})


def play(file: Path, out: Path, conversations: int) -> Played:
    """Kill it half way, resume it, and start it once more."""
    began_s = time.monotonic()
    with _child(file, out, "--kill-at", str(conversations // 2)) as child:
        assert child.wait() == -signal.SIGKILL, "the child was not killed half way"
    logged = (out / "events.jsonl").stat().st_size
    started_at = datetime.now(UTC)
    with _child(file, out) as child:
        said, peak_rss_mb = _ended(child)
    wall_s = time.monotonic() - began_s
    again_s = time.monotonic()
    with _child(file, out) as child:
        _ended(child)
    finished_again_s = time.monotonic() - again_s
    summary = json.loads((out / "summary.json").read_text())
    assert summary["conversations"] == {"planned": conversations, "finished": conversations, "failed": 0}
    return Played(
        resume_to_first_request_s=(_first_request(out, logged) - started_at).total_seconds(),
        resume_cpu_s=said["start_cpu_s"],
        scheduler_us_per_turn=1e6 * said["loop_cpu_s"] / (said["conversations"] * TURNS),
        loop_busy_ms_max=1000 * said["loop_busy_s"],
        loop_pause_ms_max=1000 * said["loop_pause_s"],
        peak_rss_mb=peak_rss_mb,
        wall_s=wall_s,
        finished_again_s=finished_again_s,
    )


@contextmanager
def _child(file: Path, out: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(Path(__file__).resolve()), "--play", str(file), str(out), *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        yield child


def _ended(child: subprocess.Popen[str]) -> tuple[dict[str, float], float]:
    """The last line of a child, and its peak memory in MB."""
    assert child.stdout is not None
    said = child.stdout.read()
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0, f"the child ended with exit code {child.returncode}"
    return json.loads(said.splitlines()[-1]), used.ru_maxrss / 1024


def _first_request(out: Path, logged: int) -> datetime:
    """When the first request was sent in the event log after its first `logged` bytes."""
    with (out / "events.jsonl").open("rb") as events:
        events.seek(logged)
        line = next(line for line in events if b'"EVENT_INFER_START"' in line)
    return datetime.fromisoformat(json.loads(line)["time"])


class Watch:
    """A thread that measures again and again, from outside, how long a loop delays others.

    `pause_s` is the longest wait, `busy_s` the most CPU time that the loop's thread spent meanwhile.
    """

    def __init__(self) -> None:
        self.start_cpu_s = 0.0
        self.cpu_s = 0.0
        self.busy_s = 0.0
        self.pause_s = 0.0

    async def over(self, main: Coroutine[object, object, T]) -> T:
        """Await `main`, watched."""
        self.start_cpu_s = time.process_time()
        clock = time.pthread_getcpuclockid(threading.get_ident())
        threading.Thread(target=self._knock, args=(asyncio.get_running_loop(), clock), daemon=True).start()
        return await main

    def _knock(self, loop: asyncio.AbstractEventLoop, clock: int) -> None:
        answered = threading.Event()
        before_s = time.clock_gettime(clock)
        while not loop.is_closed():
            knocked_s, busy_s = time.monotonic(), time.clock_gettime(clock)
            try:
                loop.call_soon_threadsafe(answered.set)
            except RuntimeError:
                return
            if not answered.wait(60):
                return
            self.pause_s = max(self.pause_s, time.monotonic() - knocked_s)
            self.busy_s = max(self.busy_s, time.clock_gettime(clock) - busy_s)
            self.cpu_s = time.clock_gettime(clock) - before_s
            answered.clear()
            time.sleep(HEARTBEAT_S)


def _kill_at(done: int) -> None:
    """Have this process killed as soon as so many conversations have ended and are on the disk."""
    publish, numbers = RunRecorder.publish, count(1)

    def publish_and_die(self: RunRecorder, task: Task, transcript: JsonObject) -> None:
        publish(self, task, transcript)
        if next(numbers) == done:
            self.drain()
            os.kill(os.getpid(), signal.SIGKILL)

    RunRecorder.publish = publish_and_die  # type: ignore[method-assign]


def play_here(file: Path, out: Path, *, kill_at: int | None) -> None:
    """The child: `mac-run FILE --out OUT`, and one line of JSON about its loop."""
    if kill_at is not None:
        _kill_at(kill_at)
    watch = Watch()
    run_loop = event_loop.run
    vars(event_loop)["run"] = lambda main: run_loop(watch.over(main))
    index = out / "scale_index.jsonl"
    before = index.read_bytes().count(b"\n") if index.exists() else 0
    Run(file=file, out=out, quiet=True).work()
    conversations = index.read_bytes().count(b"\n") - before
    said = {
        "start_cpu_s": watch.start_cpu_s,
        "loop_cpu_s": watch.cpu_s,
        "loop_busy_s": watch.busy_s,
        "loop_pause_s": watch.pause_s,
        "conversations": conversations,
    }
    print(json.dumps(said))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conversations", type=int, default=10_000)
    parser.add_argument("--play", type=Path, nargs=2, metavar=("FILE", "OUT"), help=argparse.SUPPRESS)
    parser.add_argument("--kill-at", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.play:
        play_here(*asked.play, kill_at=asked.kill_at)
        return
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "scale.yaml"
        file.write_text(yaml.safe_dump(experiment(asked.conversations)))
        booked = bookkeeping(file, Path(directory) / "books", asked.conversations)
        print(
            f"the store alone: {booked.us_per_turn:.0f} us a turn, {booked.us_per_conversation:.0f} us a conversation"
        )
        played = play(file, Path(directory) / "run", asked.conversations)
    print(
        row(
            benchmark="scale",
            conversations=asked.conversations,
            turns=asked.conversations * TURNS,
            in_flight=in_flight(asked.conversations),
            bookkeeping_us_per_conversation=round(booked.us_per_conversation, 1),
            bookkeeping_us_per_turn=round(booked.us_per_turn, 1),
            scheduler_us_per_turn=round(played.scheduler_us_per_turn, 1),
            peak_rss_mb=round(played.peak_rss_mb, 1),
            resume_to_first_request_s=round(played.resume_to_first_request_s, 2),
            resume_cpu_s=round(played.resume_cpu_s, 2),
            finished_again_s=round(played.finished_again_s, 2),
            loop_busy_ms_max=round(played.loop_busy_ms_max, 1),
            loop_pause_ms_max=round(played.loop_pause_ms_max, 1),
            wall_s=round(played.wall_s, 1),
        )
    )


if __name__ == "__main__":
    main()
