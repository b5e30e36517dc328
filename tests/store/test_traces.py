"""Token traces lie beside transcripts, once and whole, and the journal has what is new in each prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pyarrow.parquet
import pytest

from mac_runner.errors import RunDirectoryError
from mac_runner.plan import Shard
from mac_runner.store import Disk, journal, read_run
from mac_runner.store.testing import (
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
)
from mac_runner.types import JsonObject, RecordedReply, Reply, TokenTrace
from tests.store import player
from tests.store.conftest import both, edit, files, flip, lose_frames
from tests.store.test_retrying import FAILED, fail_some, retried
from tests.store.test_verify import REPAIRED as CONVERSATIONS
from tests.store.test_verify import open_thorough

TOKENS = 40


@pytest.fixture(autouse=True)
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(player, "TOKENS", TOKENS)


def play(run_dir: Path, *, turns: int | None = None) -> Path:
    return player.played(run_dir, CONVERSATIONS, turns=turns)


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

    digests = [digest_of_traces({f"0/{name}/0/0": trace}) for name, trace in (("Ann", whole), ("Ann", shared))]
    assert digests == ["8b1cf6d6dc03873cd2ceec735de3b2ad98ef432bf877b847729375ddf751f586"] * 2
    assert digest_of_traces({"0/Bob/0/0": whole}) not in digests


@pytest.mark.parametrize("ids", [[1 << 31], [-(1 << 31) - 1], ["7"], [1.5]])
def test_what_is_no_id_is_refused(ids: list[int]) -> None:
    with pytest.raises(ValueError, match="not an int32"):
        TokenTrace(prompt_ids=ids, completion_ids=(), logprobs=())


REFERENCES = [(1, 1), (-1, 1), (0, 99), (0, -1)]


@pytest.mark.parametrize(
    "trace",
    [*({"like": n, "shared": m} for n, m in REFERENCES), {"shared": 1}, {"prompt_ids": "AAA="}, {"logprobs": [0.5]}],
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
    assert player.verified(run_dir).findings == ()
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
    assert player.verified(parts).findings == ()


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


HARMS: dict[str, Callable[[Path], object]] = {
    "removed": Path.unlink,
    "cut": lambda path: edit(path, lambda data: data[:100]),
    "altered": lambda path: edit(path, flip),
    "swapped": lambda path: path.write_bytes(path.with_stem("toy_00001").read_bytes()),
    "a directory": both(Path.unlink, Path.mkdir),
}


@pytest.mark.parametrize("harm", HARMS)
def test_traces_that_are_damaged_or_gone_are_found_and_written_again(run_dir: Path, harm: str) -> None:
    whole = files(play(run_dir) / "traces")
    HARMS[harm](run_dir / "traces/toy_00000.parquet")

    (finding,) = player.verified(run_dir).findings
    assert finding.text.startswith("toy_00000: ")
    assert finding.kind == ("without tokens" if harm == "removed" else "damaged")
    with pytest.raises(RunDirectoryError, match=r"toy_00000\.parquet .*repair"):
        traces_in(run_dir)
    with open_thorough(run_dir) as run:
        assert (run.repairs.traces_restored, run.repairs.traces_lost) == (["toy_00000"], [])
        assert (run.repairs.restored, run.repairs.reopened) == ([], [])
    assert files(run_dir / "traces") == whole
    assert player.verified(run_dir).findings == ()


def test_a_resume_writes_missing_traces_again_and_keeps_a_transcript_whose_traces_are_lost(run_dir: Path) -> None:
    whole = files(play(run_dir) / "traces")
    lose_frames(run_dir, b'"id":"toy_00001","kind":"reply","model":"m","n":1,')
    for name in whole:
        (run_dir / "traces" / name).unlink()

    with player.open_toy(run_dir, CONVERSATIONS) as run:
        assert run.counts.done == CONVERSATIONS
        assert run.repairs.traces_lost == ["toy_00001"]
    assert files(run_dir / "traces") == {name: data for name, data in whole.items() if name != "toy_00001.parquet"}


def test_traces_left_by_a_killed_process_are_noted_and_replaced(tmp_path: Path) -> None:
    whole = files(play(tmp_path / "whole") / "traces")
    run_dir = play(tmp_path / "killed", turns=player.TURNS + 2)
    (run_dir / "traces/toy_00001.parquet").write_bytes(b"of a conversation that never ended")
    (run_dir / "traces/toy_00009.parquet").write_bytes(whole["toy_00003.parquet"])
    report = player.verified(run_dir)

    assert report.findings == ()
    assert any("2 files in traces/" in note for note in report.notes)
    with player.open_toy(run_dir, CONVERSATIONS) as run:
        assert run.repairs.temporaries_removed == 2
        (run_dir / "traces/toy_00002.parquet").write_bytes(b"of a process that a broken lock let in")
        player.play(run)
    assert files(run_dir / "traces") == whole
    assert player.verified(run_dir).findings == ()


def test_a_transcript_that_was_never_acknowledged_is_adopted_only_with_its_traces(run_dir: Path) -> None:
    play(run_dir)
    lose_frames(run_dir, b'"kind":"done"')
    (run_dir / "traces/toy_00000.parquet").write_bytes(b"damaged")

    with player.open_toy(run_dir, CONVERSATIONS) as run:
        assert run.repairs.set_aside == ["toy_00000"]
        assert len(run.repairs.adopted) == CONVERSATIONS - 1
        assert player.play(run) == 0
    assert traces_in(run_dir) == expected()
    assert player.verified(run_dir).findings == ()


# Other runs made of it.


def test_a_retry_keeps_the_tokens_of_the_attempt_and_of_the_replies_that_stay(run_dir: Path) -> None:
    fail_some(run_dir)
    retried(run_dir)

    found = traces_in(run_dir)
    assert {task_id: found[task_id] for task_id in FAILED} == {task_id: expected()[task_id] for task_id in FAILED}
    assert {path.name for path in (run_dir / "attempts").iterdir()} == {
        f"{task_id}.1.{kind}" for task_id in FAILED for kind in ("json", "parquet")
    }
    assert player.verified(run_dir).findings == ()
    attempts = files(run_dir / "attempts")
    (run_dir / f"attempts/{FAILED[0]}.1.parquet").unlink()
    assert [finding.task_id for finding in player.verified(run_dir).findings] == [FAILED[0]]
    open_thorough(run_dir).close()
    assert files(run_dir / "attempts") == attempts


def test_a_merge_has_the_traces_of_its_shards_and_refuses_damaged_ones(tmp_path: Path) -> None:
    shards = [
        player.played(
            tmp_path / f"shard-{number}", player.plan(CONVERSATIONS).part(Shard(number, 2)), shard=Shard(number, 2)
        )
        for number in (1, 2)
    ]
    player.merged(tmp_path / "merged", *shards, tasks=CONVERSATIONS)

    assert traces_in(tmp_path / "merged") == expected()
    assert player.verified(tmp_path / "merged").findings == ()
    edit(shards[0] / "traces/toy_00000.parquet", flip)
    with pytest.raises(RunDirectoryError, match=r"toy_00000\.parquet"):
        player.merged(tmp_path / "again", *shards, tasks=CONVERSATIONS)
