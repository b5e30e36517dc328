"""Token traces lie beside transcripts, once and whole, and the journal has what is new in each prompt."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from shutil import copytree

import pyarrow.parquet
import pytest

from mac_runner.clock import SystemClock
from mac_runner.errors import RunDirectoryError, StoreError
from mac_runner.plan import Shard
from mac_runner.store import Disk, Run, journal, open_run, read_run, verify_run
from mac_runner.store.testing import (
    Finished,
    Layout,
    TraceLog,
    Traces,
    decode_frame,
    decode_traces,
    digest_of_traces,
    encode_frame,
    encode_traces,
    entry,
    objects,
    recorded_json,
    with_inline_traces,
)
from mac_runner.types import JsonObject, RecordedReply, Reply, TokenTrace
from tests.store import player, test_restoring
from tests.store.conftest import FaultySystem
from tests.store.test_merging import merged
from tests.store.test_retrying import FAILED, fail_some, open_retry

CONVERSATIONS = 6
TOKENS = 40


@pytest.fixture(autouse=True)
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(player, "TOKENS", TOKENS)


def play(run_dir: Path, *, turns: int | None = None) -> Path:
    with player.open_toy(run_dir, CONVERSATIONS) as run:
        player.play(run, turns=turns)
    return run_dir


def open_thorough(run_dir: Path, disk: Disk | None = None) -> Run:
    return test_restoring.open_thorough(run_dir, disk, CONVERSATIONS)


def layout(run_dir: Path) -> Layout:
    return Layout(directory=run_dir, experiment_name=player.NAME)


def traces_in(run_dir: Path) -> dict[str, Traces]:
    contents = read_run(run_dir)
    return {str(row["task_id"]): contents.traces(contents.acknowledged(row)) for row in contents.rows()}


def expected() -> dict[str, Traces]:
    """What the engine said, by task and turn."""
    return {
        task.task_id: {
            player.turn(n).key: trace for n in range(player.TURNS) if (trace := player.trace(task, n)) is not None
        }
        for task in player.plan(CONVERSATIONS)()
    }


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


# A trace, its frames and its file.


def prompts(chance: Random) -> Iterator[RecordedReply]:
    """Replies of three agents whose prompts grow, change and shrink; some have no tokens."""
    public: list[int] = [chance.randrange(1 << 17) for _ in range(30)]
    for n in range(40):
        agent = chance.choice(("Ann", "a/b", "Eve"))
        public = public[: chance.randrange(20, len(public) + 1)] if chance.random() < 0.1 else public
        public = [*public, *(chance.randrange(1 << 17) for _ in range(chance.randrange(9)))]
        made = [chance.randrange(1 << 17) for _ in range(chance.randrange(6))]
        likely = [-chance.random() for _ in made]
        trace = TokenTrace(prompt_ids=[*public, n], completion_ids=made, logprobs=likely)
        reply = Reply(text="x", trace=trace if chance.random() < 0.9 else None)
        yield RecordedReply(turn_key=f"{n}/{agent}/0/0", prompt_sha256="p", reply=reply)


def test_replies_come_back_from_frames_and_files_with_their_tokens(tmp_path: Path) -> None:
    for seed in range(30):
        said, log = [*prompts(Random(seed))], TraceLog()
        frames = [journal.reply_frame("t", n, recorded, log) for n, recorded in enumerate(said)]
        place = Layout(directory=tmp_path / str(seed), experiment_name="toy")
        place.journal.mkdir(parents=True)
        # The log of a resume goes on where that of the killed session was.
        half = len(said) // 2
        again = TraceLog(said[:half])
        later = [journal.reply_frame("t", n, recorded, again) for n, recorded in enumerate(said) if n >= half]
        start = journal.session_frame(1, started_at="now")
        place.segment(1).write_bytes(b"".join([start, *frames[:half], *later]))

        found = journal.replies(Disk(), place, lambda _task_id: True)["t"]
        traces = {each.turn_key: trace for each in found if (trace := each.reply.trace) is not None}

        assert found == said, seed
        assert decode_traces(encode_traces(traces)) == traces, seed


def test_the_digest_of_traces_is_of_their_content_alone() -> None:
    whole = TokenTrace(prompt_ids=[1, 2, 3], completion_ids=[7], logprobs=[-0.5])
    shared = TokenTrace.packed(whole.rest[8:], whole.completion, whole.likelihoods, earlier=whole, shared=2)

    assert digest_of_traces({"0/Ann/0/0": whole}) == digest_of_traces({"0/Ann/0/0": shared})
    assert digest_of_traces({"0/Ann/0/0": whole}) == "8b1cf6d6dc03873cd2ceec735de3b2ad98ef432bf877b847729375ddf751f586"
    assert digest_of_traces({"0/Ann/0/0": whole}) != digest_of_traces({"0/Bob/0/0": whole})


@pytest.mark.parametrize("ids", [[1 << 31], [-(1 << 31) - 1], ["7"], [1.5]])
def test_what_is_no_id_is_refused(ids: list[int]) -> None:
    with pytest.raises(ValueError, match="not an int32"):
        TokenTrace(prompt_ids=ids, completion_ids=(), logprobs=())


@pytest.mark.parametrize(
    "trace",
    [
        {"like": 1, "shared": 1},
        {"like": -1, "shared": 1},
        {"like": 0, "shared": 99},
        {"like": 0, "shared": -1},
        {"shared": 1},
        {"prompt_ids": "AAA="},
        {"logprobs": [0.5]},
    ],
)
def test_a_frame_that_refers_to_what_is_not_there_is_refused(tmp_path: Path, trace: JsonObject) -> None:
    log, place = TraceLog(), Layout(directory=tmp_path, experiment_name="toy")
    frames = [journal.reply_frame("t", n, recorded, log) for n, recorded in enumerate(list(prompts(Random(1)))[:2])]
    record = decode_frame(frames[1][:-1])
    assert record is not None
    reply = entry(record, "reply", dict)
    whole: JsonObject = {"prompt_ids": "", "completion_ids": "", "logprobs": ""}
    place.journal.mkdir()
    place.segment(1).write_bytes(frames[0] + encode_frame({**record, "reply": {**reply, "trace": {**whole, **trace}}}))

    with pytest.raises(RunDirectoryError, match="cannot be read"):
        journal.replies(Disk(), place, lambda _task_id: True)


# A run.


def test_tokens_are_in_columnar_files_and_their_digest_in_the_transcript(run_dir: Path) -> None:
    play(run_dir)
    contents = read_run(run_dir)

    assert traces_in(run_dir) == expected()
    assert verify_run(run_dir, rebuild=player.rebuild).findings == ()
    for row in contents.rows():
        transcript = contents.acknowledged(row)
        assert transcript["traces"] == row["traces"]
        assert not any("trace" in entry(turn, "reply", dict) for turn in objects(transcript, "turns"))
        file = pyarrow.parquet.ParquetFile(run_dir / f"traces/{row['task_id']}.parquet")
        assert file.schema_arrow.names == ["turn", "prompt_ids", "completion_ids", "logprobs"]
        assert (file.metadata.num_row_groups, file.metadata.num_rows) == (1, player.TURNS)


def test_a_run_without_tokens_has_no_sign_of_them(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(player, "TOKENS", 0)
    play(run_dir)

    assert not (run_dir / "traces").exists()
    assert not any(b"trace" in path.read_bytes() for path in run_dir.rglob("*") if path.is_file())
    assert [*traces_in(run_dir).values()] == [{}] * CONVERSATIONS


def test_a_run_in_many_sessions_has_the_traces_of_one(tmp_path: Path) -> None:
    whole, parts = play(tmp_path / "whole"), tmp_path / "parts"
    for _ in range(CONVERSATIONS * player.TURNS // 3):
        play(parts, turns=3)
    play(parts)

    assert files(parts / "traces") == files(whole / "traces")
    assert files(parts / "transcripts") == files(whole / "transcripts")
    assert verify_run(parts, rebuild=player.rebuild).findings == ()


def test_the_journal_has_of_each_prompt_what_is_new(run_dir: Path) -> None:
    play(run_dir)
    frames = (run_dir / "journal/000001.jsonl").read_bytes().splitlines()
    records = [decode_frame(frame) for frame in frames]
    replies = [record["reply"] for record in records if record is not None and record["kind"] == "reply"]
    traces = [entry(reply, "trace", dict) for reply in replies if isinstance(reply, dict)]

    # All prompts but the first of a conversation begin with the one before it.
    assert [trace.get("like") for trace in traces] == [None, 0, 1, 2] * CONVERSATIONS
    assert all(len(entry(trace, "prompt_ids", str)) < 2 * 4 * (TOKENS + 2) for trace in traces if "like" in trace)


# Damage and repair.


def remove(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def alter(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def swap(path: Path) -> None:
    path.write_bytes((path.parent / "toy_00001.parquet").read_bytes())


def block(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("harm", [remove, cut, alter, swap, block])
def test_traces_that_are_damaged_or_gone_are_found_and_written_again(run_dir: Path, harm: object) -> None:
    whole = files(play(run_dir) / "traces")
    assert callable(harm)
    harm(run_dir / "traces/toy_00000.parquet")

    (finding,) = verify_run(run_dir, rebuild=player.rebuild).findings
    assert finding.text.startswith("toy_00000: ")
    assert finding.kind == ("without tokens" if harm is remove else "damaged")
    with pytest.raises(RunDirectoryError, match=r"toy_00000\.parquet .*repair"):
        traces_in(run_dir)
    with open_thorough(run_dir) as run:
        assert (run.repairs.traces_restored, run.repairs.traces_lost) == (["toy_00000"], [])
        assert (run.repairs.restored, run.repairs.reopened) == ([], [])
    assert files(run_dir / "traces") == whole
    assert verify_run(run_dir, rebuild=player.rebuild).findings == ()


def test_a_resume_writes_missing_traces_again_and_keeps_a_transcript_whose_traces_are_lost(run_dir: Path) -> None:
    whole = files(play(run_dir) / "traces")
    segment = run_dir / "journal/000001.jsonl"
    lost = [
        line for line in segment.read_bytes().splitlines(keepends=True) if b'"id":"toy_00001","kind":"reply"' in line
    ]
    segment.write_bytes(segment.read_bytes().replace(lost[1], b""))
    for name in whole:
        (run_dir / "traces" / name).unlink()

    with player.open_toy(run_dir, CONVERSATIONS) as run:
        assert run.counts.done == CONVERSATIONS
        assert run.repairs.traces_lost == ["toy_00001"]
    assert files(run_dir / "traces") == {name: data for name, data in whole.items() if name != "toy_00001.parquet"}


def test_traces_and_transcript_that_are_both_gone_are_restored_together(run_dir: Path) -> None:
    play(run_dir)
    whole = files(run_dir / "traces"), files(run_dir / "transcripts")
    (run_dir / "traces/toy_00002.parquet").unlink()
    (run_dir / "transcripts/toy_00002.json").unlink()

    with open_thorough(run_dir) as run:
        assert (run.repairs.restored, run.repairs.reopened) == (["toy_00002"], [])
    assert (files(run_dir / "traces"), files(run_dir / "transcripts")) == whole


def test_traces_left_by_a_killed_process_are_noted_and_replaced(tmp_path: Path) -> None:
    whole = files(play(tmp_path / "whole") / "traces")
    run_dir = play(tmp_path / "killed", turns=player.TURNS + 2)
    (run_dir / "traces/toy_00001.parquet").write_bytes(b"of a conversation that never ended")
    (run_dir / "traces/toy_00009.parquet").write_bytes(whole["toy_00003.parquet"])
    report = verify_run(run_dir, rebuild=player.rebuild)

    assert report.findings == ()
    assert any("2 files in traces/" in note for note in report.notes)
    with player.open_toy(run_dir, CONVERSATIONS) as run:
        assert run.repairs.temporaries_removed == 2
        (run_dir / "traces/toy_00002.parquet").write_bytes(b"of a process that a broken lock let in")
        player.play(run)
    assert files(run_dir / "traces") == whole
    assert verify_run(run_dir, rebuild=player.rebuild).findings == ()


def test_a_transcript_that_was_never_acknowledged_is_adopted_only_with_its_traces(run_dir: Path) -> None:
    play(run_dir)
    segment = run_dir / "journal/000001.jsonl"
    frames = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(b"".join(frame for frame in frames if b'"kind":"done"' not in frame))
    (run_dir / "traces/toy_00000.parquet").write_bytes(b"damaged")

    with player.open_toy(run_dir, CONVERSATIONS) as run:
        assert run.repairs.set_aside == ["toy_00000"]
        assert len(run.repairs.adopted) == CONVERSATIONS - 1
        assert player.play(run) == 0
    assert traces_in(run_dir) == expected()
    assert verify_run(run_dir, rebuild=player.rebuild).findings == ()


# Other runs made of it.


def test_a_retry_keeps_the_tokens_of_the_attempt_and_of_the_replies_that_stay(run_dir: Path) -> None:
    fail_some(run_dir)
    with open_retry(run_dir) as run:
        player.play(run)

    found = traces_in(run_dir)
    assert {task_id: found[task_id] for task_id in FAILED} == {task_id: expected()[task_id] for task_id in FAILED}
    assert {path.name for path in (run_dir / "attempts").iterdir()} == {
        f"{task_id}.1.{kind}" for task_id in FAILED for kind in ("json", "parquet")
    }
    assert verify_run(run_dir, rebuild=player.rebuild).findings == ()
    attempts = files(run_dir / "attempts")
    (run_dir / f"attempts/{FAILED[0]}.1.parquet").unlink()
    assert [finding.task_id for finding in verify_run(run_dir, rebuild=player.rebuild).findings] == [FAILED[0]]
    with open_thorough(run_dir):
        pass
    assert files(run_dir / "attempts") == attempts


def test_a_merge_has_the_traces_of_its_shards_and_refuses_damaged_ones(tmp_path: Path) -> None:
    shards = [tmp_path / f"shard-{number}" for number in (1, 2)]
    for number, shard in enumerate(shards, start=1):
        with open_run(
            shard,
            experiment_name=player.NAME,
            resolved=player.resolved(),
            tasks=player.plan(CONVERSATIONS).part(Shard(number, 2)),
            clock=SystemClock(),
            shard=Shard(number, 2),
        ) as run:
            player.play(run)
    merged(tmp_path / "merged", *shards)

    assert traces_in(tmp_path / "merged") == expected()
    assert verify_run(tmp_path / "merged", rebuild=player.rebuild).findings == ()
    alter(shards[0] / "traces/toy_00000.parquet")
    with pytest.raises(RunDirectoryError, match=r"toy_00000\.parquet"):
        merged(tmp_path / "again", *shards)


# Earlier versions.


def as_earlier(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write journals and transcripts as versions did that kept traces inside them."""

    def frame(task_id: str, n: int, recorded: RecordedReply, log: TraceLog) -> bytes:
        found, trace = recorded_json(recorded), recorded.reply.trace
        assert trace is not None
        log.add(n, recorded)
        lists: JsonObject = {
            "prompt_ids": [*trace.prompt_ids],
            "completion_ids": [*trace.completion_ids],
            "logprobs": [*trace.logprobs],
        }
        reply = {**entry(found, "reply", dict), "trace": lists}
        return encode_frame({"id": task_id, "kind": "reply", "n": n, **found, "reply": reply})

    def finished(task_id: str, transcript: JsonObject, traces: Traces) -> Finished:
        return Finished(task_id, with_inline_traces(transcript, traces), None)

    monkeypatch.setattr(journal, "reply_frame", frame)
    monkeypatch.setattr(Finished, "of", staticmethod(finished))


def test_a_run_of_an_earlier_version_is_read_checked_restored_and_continued(run_dir: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        as_earlier(patch)
        play(run_dir, turns=2 * player.TURNS + 3)
    assert b'"prompt_ids": [' in (run_dir / "transcripts/toy_00000.json").read_bytes()
    assert not (run_dir / "traces").exists()
    assert verify_run(run_dir, rebuild=player.rebuild).findings == ()
    before = files(run_dir / "transcripts")
    (run_dir / "transcripts/toy_00001.json").unlink()

    with open_thorough(run_dir) as run:
        assert run.repairs.restored == ["toy_00001"]
        assert player.play(run) == (CONVERSATIONS - 2) * player.TURNS - 3
    assert before.items() <= files(run_dir / "transcripts").items()
    assert traces_in(run_dir) == expected()
    assert verify_run(run_dir, rebuild=player.rebuild).findings == ()


# Faults.


@pytest.mark.ci
def test_repair_broken_off_at_any_call_is_ended_by_the_next_one(
    tmp_path: Path, system: FaultySystem, disk: Disk
) -> None:
    damaged = play(tmp_path / "damaged")
    whole = files(damaged / "traces")
    (damaged / "traces/toy_00000.parquet").unlink()
    alter(damaged / "traces/toy_00001.parquet")
    (damaged / "transcripts/toy_00002.json").unlink()

    copytree(damaged, tmp_path / "reference")
    system.calls.clear()
    with open_thorough(tmp_path / "reference", disk):
        pass
    calls = len(system.calls)
    for fail_at in range(1, calls + 1, 3):
        run_dir = copytree(damaged, tmp_path / str(fail_at))
        system.calls.clear()
        system.fail_at = fail_at
        with pytest.raises(StoreError), open_thorough(run_dir, disk):
            pass
        with open_thorough(run_dir):
            pass
        assert files(run_dir / "traces") == whole, fail_at
        assert verify_run(run_dir, rebuild=player.rebuild).findings == (), fail_at
