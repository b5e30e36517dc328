"""`run`, `arun` and `stream` play as `mac-run` does, and stop in good order wherever they are called."""

from __future__ import annotations

import asyncio
import gc
import json
import pickle
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from mac_runner.api import ConversationEnded, Event, Experiment, Progress, arun, calls, fork, run, stream, value
from mac_runner.api.playing import Playing
from mac_runner.errors import ConfigError, IdentityError, MacRunnerError, RunLockedError, UnusablePathError
from mac_runner.runs.testing import RunView, export, open_run
from mac_runner.types import JsonObject
from tests.cli.lab import AtOnce, Lab, RunDir, discussion, echoes, ending, experiment, scripted, served
from tests.patience import ended, wait_for
from tests.sim.behaviour import Say
from tests.sim.held_run import hold
from tests.sim.openai_run import in_a_thread
from tests.sim.openai_server import OpenaiServer

SIX = echoes(scripted("echo", capacity=2), "small", conversations=6)
"""Six conversations of one reply, of which two are under way at a time."""


def stopped_in_order(directory: RunDir) -> None:
    """It stopped once, before its end, and gave up no request."""
    (stop,) = directory.events("EVENT_RUN_STOP")
    assert (stop["is_complete"], stop["cancelled_requests"]) == (False, 0)


@pytest.mark.ci
def test_python_and_command_line_write_the_same_directory(lab: Lab, at_once: AtOnce) -> None:
    content = experiment(conversations=4)
    at_once(content).done()

    view = run(content, out="ours", progress=False)

    theirs, ours = lab.run_dir(), lab.dir("ours")
    assert ours.transcripts == theirs.transcripts
    assert ours.statuses == theirs.statuses == {"finished": 4}
    assert _rows(ours) == _rows(theirs)
    assert (ours.path / "experiment.yaml").read_bytes() == (theirs.path / "experiment.yaml").read_bytes()
    assert {path.name for path in ours.path.iterdir()} == {path.name for path in theirs.path.iterdir()}
    assert view.summary["conversations"] == {"planned": 4, "finished": 4, "failed": 0}
    lab.verified(ours.path)


@pytest.mark.ci
def test_command_line_goes_on_with_what_python_began_and_the_other_way_round(lab: Lab, at_once: AtOnce) -> None:
    file, directory = lab.write(experiment(conversations=3)), lab.run_dir()

    run(file, limit=1, progress=False)
    at_once(file, "--limit", "2").done()
    run(Path(file), progress=False)

    assert directory.statuses == {"finished": 3}
    assert len([*(directory.path / "journal").iterdir()]) == 3
    with directory.unchanged():  # Nothing is left.
        run(file, progress=False)


@pytest.mark.ci
def test_arguments_are_the_flags(lab: Lab) -> None:
    content = experiment(models={"m": scripted("random"), "n": scripted()})
    content["profiles"] = {"few": {"conversation_config": {"conversations": 1}}}

    one = run(content, out="a", set={"model_definitions.m.scripted_config.capacity": 2}, seed=5, progress=False)
    two = run(content, out="b", set=["seed=5"], profile="few", concurrency=1, progress=False)
    three = run(content, out="c", shard="2/2", progress=False)

    for name in ("a", "b"):
        assert yaml.safe_load((lab.path / name / "experiment.yaml").read_text())["seed"] == 5
    assert one.summary["conversations"] == {"planned": 2, "finished": 2, "failed": 0}
    assert two.summary["conversations"] == three.summary["conversations"] == {"planned": 1, "finished": 1, "failed": 0}
    assert lab.dir("b").transcripts.items() <= lab.dir("a").transcripts.items()


def test_arguments_that_mean_nothing_are_refused_before_anything_is_written(lab: Lab) -> None:
    content = experiment()
    refusals: tuple[tuple[Callable[[], object], str], ...] = (
        (lambda: run(content, limit=0), "limit: found 0; allowed: at least 1"),
        (lambda: run(content, concurrency=0), "concurrency: found 0"),
        (lambda: run(content, shard="3/2"), "3/2"),
        (lambda: run(content, set="seed=3"), "write {'section.key': value}"),
        (lambda: run(content, set={"game.lobby": object()}), "set: game.lobby: found a object"),
        (lambda: run(content, set={"gamee.lobby": "x"}), "--set gamee.lobby: gamee: unknown key"),
        (lambda: run(content, profile="none"), "there is no profile 'none'"),
        (lambda: run(content, pull=True), "only the backends scripted"),
        (lambda: run({**content, "seed": "x"}), 'experiment: seed: found the text "x"'),
        (lambda: run("none.yaml"), "none.yaml: cannot be read"),
        (lambda: run(content, out=""), "out: is empty"),
        (lambda: export("runs/none", ""), "to: is empty"),
        (lambda: run(content, shard=cast("str", 3)), "'3' is not a shard"),
        (lambda: run(content, set=cast("list[str]", [1])), "set: found 1 in a list; write ['section.key=value']"),
        (lambda: run(content, set=cast("dict[str, object]", {1: 2})), "set: the key 1 is not a text"),
    )
    for call, words in refusals:
        with pytest.raises(ConfigError) as refused:
            call()
        assert words in str(refused.value)

    async def coroutine(event: Event) -> None:
        raise AssertionError(event)

    with pytest.raises(TypeError, match="coroutine function"):
        run(content, on_event=coroutine)
    with pytest.raises(TypeError, match="on_event is int"):
        run(content, on_event=cast("Callable[[Event], object]", 3))
    assert list(lab.path.iterdir()) == []


def test_address_in_place_of_a_directory_is_refused_and_its_secret_is_not_kept(lab: Lab) -> None:
    content, url = experiment(), "s3://ID:SECRET@bucket/run"
    refusals: tuple[tuple[Callable[[], object], str], ...] = (
        (lambda: run(content, out=url), "out"),
        (lambda: run(content, out=Path(url)), "out"),
        (lambda: fork("runs/none", 1, turn="#1", out=url), "out"),
        (lambda: value("runs/none", 1, turn="#1", draws=1, out=url), "out"),
        (lambda: export("runs/none", url), "to"),
    )
    for call, name in refusals:
        with pytest.raises(ConfigError) as refused:
            call()
        (text,) = refused.value.args
        assert text.startswith(f"{name}: this is the address of another file system; give a directory")
        assert "SECRET" not in text
    assert list(lab.path.iterdir()) == []


@pytest.mark.ci
def test_events_come_in_the_thread_of_the_caller_once_each_transcript_is_safe(lab: Lab) -> None:
    seen: list[Event] = []

    def look(event: Event) -> None:
        assert threading.current_thread() is threading.main_thread()
        if isinstance(event, ConversationEnded):
            transcript = json.loads((event.directory / "transcripts" / f"{event.task_id}.json").read_bytes())
            assert (transcript["task"]["index"], transcript["status"]) == (event.index, event.status)
        seen.append(event)

    run(experiment(conversations=5), progress=False, on_event=look)

    assert sorted(event.index for event in seen if isinstance(event, ConversationEnded)) == [*range(5)]
    last = [event for event in seen if isinstance(event, Progress)][-1]
    assert (last.planned, last.finished, last.failed, last.open, last.in_flight) == (5, 5, 0, 0, 0)


@pytest.mark.ci
def test_what_on_event_raises_stops_the_run_and_comes_out(lab: Lab) -> None:
    content = SIX

    def once(event: Event) -> None:
        if isinstance(event, ConversationEnded):
            raise LookupError("enough")

    with hold(1), pytest.raises(LookupError, match="enough"):
        run(content, progress=False, on_event=once)

    stopped_in_order(lab.run_dir())
    run(content, progress=False)
    assert lab.run_dir().statuses == {"finished": 6}
    lab.verified(lab.run_dir().path)


def test_failed_conversations_raise_nothing_and_are_counted(lab: Lab) -> None:
    with in_a_thread(OpenaiServer(script=lambda _received: Say("Hello."))) as stub:
        retry: JsonObject = {"max_retries": 0, "when_exhausted": "fail"}
        view = run(experiment(models={"m": served(stub.url)}, retry_config=retry), progress=False)

    assert view.summary["conversations"] == {"planned": 2, "finished": 0, "failed": 2}
    assert [conversation.status for conversation in view] == ["failed", "failed"]


@pytest.mark.ci
def test_grid_is_one_run(lab: Lab) -> None:
    seen: list[Event] = []

    run(experiment("grid", _grid={"sweep": {"seed": [1, 2]}}), progress=False, on_event=seen.append)

    ended = [event for event in seen if isinstance(event, ConversationEnded)]
    assert {event.directory.parent for event in ended} == {Path("runs/grid")}
    assert len(ended) == 4
    lab.verified(lab.run_dir("grid").path)


def test_process_of_the_caller_is_left_as_it_was(lab: Lab) -> None:
    def state() -> tuple[object, ...]:
        handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        return handlers, limits, gc.get_threshold(), gc.get_freeze_count(), sys.stdout, sys.stderr, gc.isenabled()

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(900, hard), hard))
    gc.unfreeze()  # What the tests froze counts less with each that is let go.
    try:
        before, during = state(), set[bool]()
        run(experiment(), progress=False, on_event=lambda _event: during.add(state() == before))

        assert during == {True}
        assert state() == before
    finally:
        gc.freeze()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.ci
def test_runs_play_in_several_threads_at_once(lab: Lab) -> None:
    content, faults = experiment(conversations=3), list[MacRunnerError]()

    def play(name: str) -> None:
        try:
            run(content, out=name, progress=False)
        except MacRunnerError as fault:
            faults.append(fault)

    threads = [threading.Thread(target=play, args=(name,)) for name in ("a", "b", "c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert faults == []
    runs = [lab.dir(name).transcripts for name in ("a", "b", "c")]
    assert runs[0] == runs[1] == runs[2]
    assert len(runs[0]) == 3


@pytest.mark.ci
def test_runs_are_awaited_together_in_a_loop_that_goes_on(lab: Lab) -> None:
    async def main() -> tuple[list[str], int]:
        ticks, is_over = 0, False

        async def tick() -> None:
            nonlocal ticks
            while not is_over:
                await asyncio.sleep(0)
                ticks += 1

        ticking = asyncio.create_task(tick())
        seen: list[str] = []
        loop = threading.current_thread()

        def look(event: Event) -> None:
            assert threading.current_thread() is loop
            if isinstance(event, ConversationEnded):
                seen.append(f"{event.directory}/{event.index}")

        content = experiment()
        await asyncio.gather(
            arun(content, out="a", progress=False, on_event=look),
            arun(content, out="b", progress=False, on_event=look),
        )
        is_over = True
        await ticking
        return sorted(seen), ticks

    seen, ticks = asyncio.run(main())

    assert seen == ["a/0", "a/1", "b/0", "b/1"]
    assert ticks > 10


def test_results_are_opened_off_the_loop(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []

    def opened(directory: Path) -> RunView:
        threads.append(threading.current_thread())
        return open_run(directory)

    monkeypatch.setattr(calls, "open_run", opened)

    async def main() -> int:
        return len(await arun(experiment(), out="a", progress=False))

    assert asyncio.run(main()) == 2
    assert threads
    assert threading.current_thread() not in threads


@pytest.mark.ci
def test_cancelled_run_stops_in_good_order_and_goes_on(lab: Lab) -> None:
    content, directory = experiment(), lab.run_dir()

    async def main() -> None:
        playing = asyncio.create_task(arun(content, progress=False))
        await asyncio.to_thread(wait_for, lambda: len(directory.events("EVENT_INFER_DONE")) >= 5, "replies")
        playing.cancel()
        await playing

    with hold(5), pytest.raises(asyncio.CancelledError):
        asyncio.run(main())

    stopped_in_order(directory)
    run(content, progress=False)
    assert directory.statuses == {"finished": 2}
    lab.verified(directory.path)


def test_errors_are_those_of_the_command_line(lab: Lab) -> None:
    content, other = experiment(), experiment(lobby="classic-8")
    run(content, progress=False)

    async def awaited() -> None:
        await arun(other, progress=False)

    for call in (
        lambda: run(other, progress=False),
        lambda: asyncio.run(awaited()),
        lambda: asyncio.run(_numbers(other)),
    ):
        with pytest.raises(IdentityError, match="lobby"):
            call()
    (lab.path / "occupied").write_text("")
    with pytest.raises(UnusablePathError, match="not a directory"):
        run(content, out="occupied", progress=False)


@pytest.mark.ci
def test_directory_that_another_process_plays_is_refused_and_free_afterwards(lab: Lab) -> None:
    file = lab.write(experiment())
    process = lab.start_held(3, file)

    with pytest.raises(RunLockedError, match=str(process.pid)):
        run(file, progress=False)
    process.kill()
    process.wait()
    run(file, progress=False)

    assert lab.run_dir().statuses == {"finished": 2}
    lab.verified(lab.run_dir().path)


def test_second_run_of_a_directory_in_this_process_is_refused(lab: Lab) -> None:
    content = experiment()

    async def main() -> None:
        first = asyncio.create_task(arun(content, progress=False))
        await asyncio.to_thread(wait_for, lambda: bool(lab.run_dir().events("EVENT_INFER_DONE")), "a reply")
        with pytest.raises(RunLockedError, match="by this process"):
            await arun(content, progress=False)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first

    with hold(1):
        asyncio.run(main())


_SCRIPT = """
import json, mac_runner.api
from tests.sim.held_run import hold
experiment = json.load(open("experiment.json"))
with hold({replies}):
    view = mac_runner.api.run(experiment, progress={progress})
print(view.summary["conversations"])
"""


def _script(lab: Lab, *, replies: int = 10_000, progress: bool | None = None, **content: Any) -> subprocess.Popen[str]:
    """A script that plays an experiment, and gives so many replies until it is asked to stop."""
    (lab.path / "experiment.json").write_text(json.dumps(experiment(**content)))
    (lab.path / "play.py").write_text(_SCRIPT.format(replies=replies, progress=progress))
    process = lab.start(program=(sys.executable, "play.py"))
    if replies < 10_000:
        directory = lab.run_dir()
        wait_for(lambda: process.poll() is not None or len(directory.events("EVENT_INFER_DONE")) >= replies, "replies")
    return process


@pytest.mark.ci
def test_interrupt_of_a_script_stops_in_good_order_and_the_same_script_goes_on(lab: Lab) -> None:
    directory, process = lab.run_dir(), _script(lab, replies=5)

    process.send_signal(signal.SIGINT)

    code, out, err = ended(process)
    assert (code, out, "stopping: waiting" in err) == (-signal.SIGINT, "", True)
    assert err.rstrip().endswith("KeyboardInterrupt")
    stopped_in_order(directory)
    assert len(directory.events("EVENT_INFER_START")) == len(directory.events("EVENT_INFER_DONE"))
    assert not (directory.path / ".owner.json").exists()
    again = ended(_script(lab))
    assert again[:2] == (0, "{'planned': 2, 'finished': 2, 'failed': 0}\n")
    lab.verified(directory.path)


@pytest.mark.ci
def test_second_interrupt_of_a_script_leaves_the_requests_in_flight(lab: Lab) -> None:
    models: JsonObject = {"m": scripted(latency_ms=500_000)}
    directory, process = lab.run_dir(), _script(lab, models=models)
    wait_for(lambda: process.poll() is not None or directory.events("EVENT_INFER_START"), "a request in flight")
    assert process.stderr is not None

    process.send_signal(signal.SIGINT)
    while "stopping" not in (line := process.stderr.readline()):
        assert line
    process.send_signal(signal.SIGINT)

    ending(process).ends(-signal.SIGINT)
    (stop,) = directory.events("EVENT_RUN_STOP")
    assert stop["is_complete"] is False
    assert not (directory.path / ".owner.json").exists()


def test_second_interrupt_that_comes_while_the_run_is_asked_to_stop_counts(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, stop = lab.run_dir(), Playing.stop

    def interrupted(_playing: Playing) -> None:
        wait_for(lambda: directory.events("EVENT_INFER_START"), "a request in flight")
        raise KeyboardInterrupt

    def interrupted_again(playing: Playing) -> None:
        stop(playing)
        raise KeyboardInterrupt

    monkeypatch.setattr(Playing, "idle", interrupted)
    monkeypatch.setattr(Playing, "stop", interrupted_again)

    with pytest.raises(KeyboardInterrupt):
        run(experiment(models={"m": scripted(latency_ms=500_000)}), progress=False)

    (stopped,) = directory.events("EVENT_RUN_STOP")
    assert stopped["is_complete"] is False
    assert not (directory.path / ".owner.json").exists()


@pytest.mark.ci
def test_script_that_was_killed_goes_on_to_the_same_results(lab: Lab) -> None:
    content, directory = experiment(conversations=3), lab.run_dir()
    process = _script(lab, conversations=3, replies=30, progress=False)
    process.send_signal(signal.SIGKILL)
    process.wait()

    run(content, progress=False)

    run(content, out="straight", progress=False)
    assert directory.transcripts == lab.dir("straight").transcripts
    lab.verified(directory.path)


@pytest.mark.ci
def test_progress_false_prints_nothing_and_a_bar_or_lines_go_to_stderr(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = {}
    for progress in (False, None, True):
        run(experiment(), out=f"run-{progress}", progress=progress)
        printed[progress] = capsys.readouterr()

    assert printed[False] == ("", "")
    assert printed[None].out == printed[True].out == ""
    assert "finished 2/2" in printed[None].err
    assert "100%" in printed[True].err


async def _numbers(content: JsonObject, *, skip_ended: bool = False, most: int | None = None) -> list[int]:
    found: list[int] = []
    async with aclosing(stream(content, progress=False, skip_ended=skip_ended)) as conversations:
        async for conversation in conversations:
            found.append(conversation.ended.index)
            if len(found) == most:
                break
    return found


@pytest.mark.ci
def test_stream_yields_each_conversation_once_those_of_earlier_calls_first(lab: Lab) -> None:
    content = experiment(conversations=8, models={"m": scripted(capacity=2)})

    first = asyncio.run(_numbers(content, most=2))
    done = {int(str(row["index"])) for row in lab.run_dir().index}
    second = asyncio.run(_numbers(content))
    third = asyncio.run(_numbers(content))

    assert set(first) <= done
    assert second[: len(done)] == sorted(done)
    assert sorted(second) == third == [*range(8)]
    assert asyncio.run(_numbers(content, skip_ended=True)) == []
    lab.verified(lab.run_dir().path)


@pytest.mark.ci
def test_stream_that_is_left_stops_the_run_in_good_order(lab: Lab) -> None:
    content = SIX

    with hold(1):
        asyncio.run(_numbers(content, most=1))

    stopped_in_order(lab.run_dir())
    assert asyncio.run(_numbers(content, skip_ended=True)) != []
    assert lab.run_dir().statuses == {"finished": 6}


@pytest.mark.ci
def test_stream_waits_for_a_slow_loop_with_names_alone(lab: Lab) -> None:
    """The run ends while its first conversation is looked at, and all others come afterwards."""
    content = experiment(conversations=6)

    async def main() -> list[int]:
        found: list[int] = []
        async for conversation in stream(content, progress=False):
            await asyncio.to_thread(
                wait_for, lambda: bool(lab.run_dir().events("EVENT_RUN_STOP")), "the end of the run"
            )
            found.append(conversation.ended.index)
        return found

    assert sorted(asyncio.run(main())) == [*range(6)]


@pytest.mark.ci
def test_stream_yields_a_conversation_whose_transcript_was_lost_once_it_is_there_again(lab: Lab) -> None:
    content = experiment(conversations=3)
    run(content, progress=False)
    (lab.run_dir().path / "transcripts" / "small-000001.json").unlink()

    assert sorted(asyncio.run(_numbers(content))) == [0, 1, 2]
    lab.verified(lab.run_dir().path)


@pytest.mark.ci
def test_what_a_run_gives_travels_to_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """Its result, its conversations, its events, the experiment, and whatever error ends it; from any directory."""
    monkeypatch.chdir(tmp_path)
    events: list[Event] = []
    asked = Experiment(discussion(scripted("discussant"), conversations=3))
    view = run(asked, out="here", progress=False, on_event=events.append)
    conversation = view.conversation(1)
    kept = [pickle.dumps(one) for one in (view, conversation, asked, conversation.ended, view.verify(), events)]
    summary, turns, transcript = view.summary, view.table("turns"), conversation.transcript
    monkeypatch.chdir("/")

    there, one, again, ended, verified, heard = map(pickle.loads, kept)
    assert (there.summary, len(there), there.table("turns")) == (summary, 3, turns)
    assert (one.task_id, one.transcript) == (conversation.task_id, transcript)
    assert (again, ended.index, heard) == (asked, 1, events)
    assert [each.report.ok for each in verified] == [True]
    for kind in _errors(MacRunnerError):
        with subtests.test(kind.__name__):
            error = kind.__new__(kind, f"{kind.__name__}: it was so")
            error.model, error.key = "m", ("a", 1)  # type: ignore[attr-defined]
            arrived = pickle.loads(pickle.dumps(error))
            assert (type(arrived), str(arrived), vars(arrived)) == (kind, str(error), vars(error))


def _errors(kind: type[MacRunnerError]) -> Iterator[type[MacRunnerError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _errors(each)


def _rows(directory: RunDir) -> list[JsonObject]:
    """The index without times, and without the digest and size of transcripts that have times."""
    timed = {"timing", "sha256", "size_bytes"}
    return [{key: value for key, value in row.items() if key not in timed} for row in directory.index]
