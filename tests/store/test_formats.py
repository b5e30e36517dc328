"""What transcripts, manifests and run directories look like."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from syrupy.assertion import SnapshotAssertion

from mac_runner import store
from mac_runner.errors import RunDirectoryError
from mac_runner.plan import Shard
from mac_runner.store import (
    Disk,
    GridRecord,
    LeasesRecord,
    build_transcript,
    grid_entries,
    index_row,
    open_grid,
    read_grid,
    read_leases,
    read_run,
    read_standing,
    replies_of,
    task_of,
    without_timing,
)
from mac_runner.store.testing import (
    Layout,
    Manifest,
    decode_manifest,
    decode_transcript,
    encode_frame,
    encode_leases,
    encode_transcript,
    entry,
    objects,
    read_fork,
    recorded_from_json,
    recorded_json,
    task_from_json,
    task_json,
)
from mac_runner.types import (
    Agent,
    FinishReason,
    JsonObject,
    PolicySpan,
    Receipt,
    ReceiptKind,
    RecordedReply,
    Reply,
    Sampling,
    Task,
    Timing,
    TokenCount,
    TokenTrace,
    Turn,
    TurnRecord,
)
from tests.kit import copied, known, stale_files
from tests.store import player
from tests.store.conftest import StillClock, files, tree

EVERY_SETTING = replace(
    Sampling(temperature=0.0, max_tokens=9, top_p=0.5, top_k=4, min_p=0.1, stop=("a", "\n"), seed=5),
    presence_penalty=0.25,
    frequency_penalty=0.75,
)
TASK = Task(
    index=7,
    task_id="toy_00007",
    seed=2**62 + 1,
    agents=(
        Agent(agent_id="Ann", definition="d", model="m", seat=0, slot=1, sampling=Sampling()),
        Agent(agent_id="Bob", definition="c", model="n", seat=1, slot=0, sampling=EVERY_SETTING),
    ),
)


def record(round_: int, seat: int, kind: ReceiptKind = ReceiptKind.ACT, generate_s: float = 0.0) -> TurnRecord:
    agent = TASK.agents[seat]
    return TurnRecord(
        turn=Turn(round=round_, agent=agent.agent_id, model=agent.model, place=seat),
        prompt_sha256="ab",
        reply=Reply(
            text=f"r{round_}\ud800\0\u2028",
            finish_reason=FinishReason.LENGTH,
            tokens=TokenCount(prompt=5, cached=2, completion=1),
            trace=TokenTrace(prompt_ids=(1, 2), completion_ids=(3,), logprobs=(-0.25,)) if round_ == 2 else None,
            timing=Timing(queue_s=0.5, generate_s=generate_s, faults=("429",)),
        ),
        receipt=Receipt(kind=kind, detail="because"),
    )


RECORDS = [
    record(1, 0),
    record(1, 1, ReceiptKind.CORRECTION),
    *(record(2, seat, ReceiptKind.DEFAULT) for seat in (0, 1)),
]


def built(turns: list[TurnRecord], failure: str | None = None, wall_s: float = 1.0) -> JsonObject:
    return build_transcript(
        experiment_name="toy",
        environment="talk",
        task=TASK,
        outcome={"winners": ["town"]},
        record={"log": [{"day": 1}, {"day": 2}], "deal": {"Ann": "x"}},
        fingerprint="f" * 64,
        turns=turns,
        failure=failure,
        timing={"wall_s": wall_s},
    )


def test_unusable_replies_are_counted_by_agent_definition_and_cause() -> None:
    turns = [*RECORDS, record(3, 0)]
    causes = (None, "cut_off_thought", "illegal", "cut_off_thought", None)
    turns = [
        structs.replace(turn, receipt=structs.replace(turn.receipt, cause=cause))
        for turn, cause in zip(turns, causes, strict=True)
    ]
    transcript = built(turns)

    assert entry(transcript, "counts", dict)["unusable"] == {"c": {"cut_off_thought": 2}, "d": {"illegal": 1}}
    assert [entry(turn, "receipt", dict).get("cause") for turn in objects(transcript, "turns")] == list(causes)
    assert "unusable" not in entry(built(RECORDS), "counts", dict)


def test_task_comes_back_from_json_with_its_material_if_it_has_any() -> None:
    for task in (TASK, replace(TASK, material={"question": "Who?", "choices": [{"id": "A"}]})):
        assert task_from_json(json.loads(json.dumps(task_json(task)))) == task
    assert "material" not in task_json(TASK)


def recorded(text: str = "", **more: Any) -> RecordedReply:
    return RecordedReply(turn_key="1/A/0/0", prompt_sha256="p", reply=Reply(text=text, **more))


@pytest.mark.parametrize("text", ["\ud800", "a\0b", "\u2028\u2029\x85\r\n", "\ufeff", '{"', "\udfff\ud800"])
def test_recorded_reply_comes_back_from_json(text: str) -> None:
    timing = Timing(queue_s=1.25, generate_s=0.000001, faults=("a", "b"))
    whole = recorded(text, thinking=text, timing=timing, policy=PolicySpan(start=6, end=7))
    found = recorded_json(whole)
    again = recorded_from_json(json.loads(json.dumps(found)))

    assert (again, again.reply.timing) == (whole, timing)
    assert entry(found, "reply", dict)["policy"] == [6, 7]
    assert whole.reply.timed(Timing()) == whole.reply
    assert "policy" not in entry(recorded_json(recorded()), "reply", dict)
    for key in ("turn", "prompt_sha256", "reply", "timing"):
        with pytest.raises(ValueError, match=key):
            recorded_from_json({name: value for name, value in found.items() if name != key})


@given(st.permutations(RECORDS))
def test_transcript_does_not_depend_on_the_order_of_replies(turns: list[TurnRecord]) -> None:
    assert encode_transcript(built(turns)) == encode_transcript(built(RECORDS))


def test_transcript_counts_turns_tokens_corrections_and_defaults_and_tells_of_a_failure() -> None:
    whole, failed = built(RECORDS), built([], failure="the engine refused")

    assert whole["counts"] == {
        "turns": 4,
        "corrections": 1,
        "defaults": 2,
        "tokens": {"prompt": 20, "completion": 4, "timing": {"cached": 8}},
        "turns_by_definition": {"c": {"turns": 1, "defaults": 1}, "d": {"turns": 2, "defaults": 1}},
    }
    assert [(found["status"], found["failure"]) for found in (whole, failed)] == [
        ("finished", None),
        ("failed", "the engine refused"),
    ]
    assert replies_of(decode_transcript(encode_transcript(failed))) == []


def test_everything_that_depends_on_time_is_under_timing() -> None:
    """Also what an engine had in its cache, which follows from what else it was working on."""
    slow = [record(1, 0, generate_s=9.0), *RECORDS[1:]]
    cold = [
        structs.replace(turn, reply=replace(turn.reply, tokens=structs.replace(turn.reply.tokens, cached=0)))
        for turn in RECORDS
    ]
    one = built(RECORDS)

    for other in (built(slow, wall_s=5.0), built(cold)):
        assert other != one
        assert without_timing(other) == without_timing(one)
        assert without_timing(index_row(other)["counts"]) == without_timing(index_row(one)["counts"])
    frames = [recorded_json(structs.replace(recorded(), reply=turn.reply)) for turn in (RECORDS[0], cold[0])]
    assert frames[0] != frames[1]
    assert without_timing(frames[0]) == without_timing(frames[1])


def test_transcript_gives_back_its_task_and_its_replies() -> None:
    found = decode_transcript(encode_transcript(built(RECORDS[::-1])))

    assert task_of(found) == TASK
    # Their tokens are in a file of their own.
    assert [(reply.turn_key, reply.reply) for reply in replies_of(found)] == [
        (r.turn.key, replace(r.reply, trace=None)) for r in RECORDS
    ]


def test_transcript_file_has_a_line_for_each_key_and_each_turn() -> None:
    data = encode_transcript(built(RECORDS))
    rows = data.decode("ascii").split("\n")

    assert json.loads(data) == built(RECORDS)
    assert sum(row.startswith('{"turn": ') for row in rows) == 4
    assert sum(row.startswith('{"day": ') for row in rows) == 2
    assert [row for row in rows if row.startswith('"outcome"')] == ['"outcome": {"winners": ["town"]},']


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"format": 4}', b'{"format": 2}', b"\xff"])
def test_file_that_is_no_transcript_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_transcript(data)


def test_journal_and_transcripts_of_another_format_are_refused_with_the_version_that_reads_them(released: Path) -> None:
    for run_dir, path, found, other in (
        ("finished", "transcripts/toy_00001.json", b'"format": 3', b'"format": 2'),
        ("killed", "journal/000001.jsonl", b'"version":3', b'"version":2'),
    ):
        file = released / run_dir / path
        data = file.read_bytes().replace(found, other)
        if path.startswith("journal"):
            first, _, rest = data.partition(b"\n")
            data = encode_frame(json.loads(first[9:])) + rest
        file.write_bytes(data)

    with pytest.raises(RunDirectoryError, match=r"000001.jsonl: version is 2, .* mac_runner 0.2.0"):
        read_run(released / "killed").rows()
    with pytest.raises(ValueError, match=r"format is 2, .* mac_runner 0.2.0"):
        decode_transcript((released / "finished/transcripts/toy_00001.json").read_bytes())
    (released / "grid.yaml").write_text("format: 1\n")
    with pytest.raises(RunDirectoryError, match=r"grid.yaml: format is 1, .* mac_runner 0.2.0"):
        read_grid(released)


def test_index_row_tells_what_stands_on_the_disk() -> None:
    found = built(RECORDS)
    row = index_row(found)

    assert row == index_row(found, encode_transcript(found))
    assert row["size_bytes"] == len(encode_transcript(found))
    assert list(row) == [
        *("task_id", "index", "status", "failure", "transcript", "sha256", "size_bytes", "counts", "outcome", "timing")
    ]


@pytest.mark.parametrize("n", [0, 1, 2, 999, 1_000, 1_001, 2_500])
def test_manifest_of_any_length_comes_back(n: int) -> None:
    planned = {f"t{i}": i for i in range(n)}
    manifest = Manifest("toy", dict(reversed(planned.items())))
    found = decode_manifest(manifest.encode("now"), "x")

    assert found.experiment_name == "toy"
    assert list(found.planned.items()) == list(planned.items())
    assert set(found.statuses.values()) <= {"pending"}


def test_manifest_with_a_letter_changed_names_no_other_task() -> None:
    manifest = Manifest("toy", {"toy-0": 0, "toy-1": 1})
    data = b"".join(manifest.encode("now"))
    for at in (match.start() for match in re.finditer(b"[a-z]", data)):
        with suppress(RunDirectoryError):
            altered = decode_manifest([data[:at] + b"q" + data[at + 1 :]], "x")
            assert {*altered.planned} <= {"toy-0", "toy-1"}


def test_manifest_counts_a_task_once_however_often_it_ends() -> None:
    manifest = Manifest("toy", {"a": 0, "b": 1, "c": 2})
    for _ in range(2):
        manifest.settle("a", "failed")
        manifest.settle("b", "finished")

    assert manifest.counts == (3, 1, 1)
    assert manifest.counts.done == 2


def test_manifest_is_readable_line_by_line(snapshot: SnapshotAssertion) -> None:
    manifest = Manifest("toy", {"a": 0})
    manifest.settle("a", "failed")
    text = b"".join(manifest.encode("2025-01-01T00:00:00.000Z")).decode("ascii")

    assert text == snapshot
    assert json.loads(text)["counts"] == {"planned": 1, "finished": 0, "failed": 1}


def shard(place: Path) -> object:
    """Of a run that is there."""
    written = (place / "shard.json").read_bytes()
    (place / "shard.json").unlink()
    player.open_toy(place, 1, shard=Shard(1, 2)).close()
    (place / "shard.json").write_bytes(written)
    return player.open_toy(place, 1, shard=Shard(1, 2))


LEASES = LeasesRecord(of=12, experiment_name="small", identity="ab12", conversations=30)
READERS: dict[str, Callable[[Path], object]] = {
    "task_manifest.json": lambda place: decode_manifest([(place / "task_manifest.json").read_bytes()], str(place)),
    "leases.json": lambda place: read_leases(Disk(), Layout(directory=place, experiment_name="small")),
    "shard.json": shard,
    "grid.yaml": read_grid,
    "fork.json": lambda place: read_fork(Disk(), place),
}
UNREADABLE = (b"", b"{", b"[]", b"{}", b'{"format": 9}', b"\xff", b"[" * 100_000)
LINKS = b", ".join(b"&a%d {<<: *a%d}" % (n, n - 1) for n in range(1, 1_500))
MERGED = b"x: {y: {z: [&a0 {k: 1}, %b]}}\nq: {<<: *a1499}\n" % LINKS
"""Not deep, and yet the loader goes from one to the next, since the last comes first."""
MORE = {
    "task_manifest.json": [b'{"format": 1, "tasks": 3}'],
    "leases.json": [
        encode_leases(replace(LEASES, format=2)),
        encode_leases(replace(LEASES, of=0)),
        encode_leases(replace(LEASES, samples_per_task=0)),
    ],
    "shard.json": [b'{"shard": "1", "of": 2}'],
    "grid.yaml": [
        b"- 1\n",
        b"format: 2\nname: g\n",
        b"format: 2\nname: g\nprofile: p\nasked: {}\ncombinations:\n- 3\n",
        b'format: 2\nname: g\nprofile: p\nasked: {}\ncombinations:\n- {"slug": "../up", "identity": "a", "session": 1,'
        b' "asked": true, "values": {}}\n',
        b"!!python/object/apply:os.system [exit]\n",
        MERGED,
    ],
}


@pytest.mark.parametrize("name", READERS)
def test_what_a_run_never_writes_is_refused_by_the_name_of_its_file(
    tmp_path: Path, name: str, subtests: pytest.Subtests
) -> None:
    for number, content in enumerate((*UNREADABLE, *MORE.get(name, ()))):
        place = tmp_path / str(number) / name.replace(".", "-")
        place.mkdir(parents=True)
        (place / name).write_bytes(content)
        told = re.escape(place.name if name == "task_manifest.json" else name)
        with subtests.test(content[:60]), pytest.raises(RunDirectoryError, match=told):
            READERS[name](place)


def test_grid_in_the_working_directory_is_no_combination_of_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_grid(tmp_path, asked=GridRecord(name="g", profile="p", asked={}, entries=()), clock=StillClock()).close()
    monkeypatch.chdir(tmp_path)

    assert Layout.at(Disk(), Path()).is_whole
    assert Layout.at(Disk(), Path("seed-1")).grid == Path()


def test_record_of_a_grid_that_is_not_as_it_was_written_is_refused(tmp_path: Path) -> None:
    """With a digit of an identity changed, its combination would be played as another, beside what was played."""
    asked = GridRecord(name="g", profile="p", asked={}, entries=grid_entries([("a", "ab12", {"seed": 1e-05})]))
    open_grid(tmp_path, asked=asked, clock=StillClock()).close()
    file = tmp_path / "grid.yaml"
    assert known(read_grid(tmp_path)).slug_of("ab12") == "a"

    for old, new in (("ab12", "ab13"), ("name: g", "name: h"), ("profile: p\n", "")):
        file.write_text((text := file.read_text()).replace(old, new))
        with pytest.raises(RunDirectoryError, match=r"grid\.yaml cannot be read: its values are not those"):
            read_grid(tmp_path)
        file.write_text(text)


@pytest.mark.parametrize("read", [read_run, read_standing, player.verified])
def test_directory_that_is_no_run_is_refused_by_every_reader(tmp_path: Path, read: Callable[[Path], object]) -> None:
    with pytest.raises(RunDirectoryError, match="run directory"):
        read(tmp_path)


def test_store_offers_these_names_and_no_other(snapshot: SnapshotAssertion) -> None:
    assert sorted(store.__all__) == snapshot
    assert all(hasattr(store, name) for name in store.__all__)


RELEASED = Path(__file__).parents[1] / "golden" / "runs"


@pytest.fixture
def released(tmp_path: Path) -> Path:
    """The recorded run directories, to be changed at will."""
    return copied(RELEASED, tmp_path / "released")


def test_finished_run_is_read_and_verified(released: Path) -> None:
    run_dir = released / "finished"
    contents = read_run(run_dir)

    assert contents.counts == (3, 3, 0)
    assert [row["index"] for row in contents.rows()] == [0, 1, 2]
    assert contents.transcript("toy_00001")["status"] == "finished"
    assert contents.accounting["sessions"] == 3
    assert contents.accounting["models"]["m"]["requests"] == 36  # type: ignore[index, call-overload]
    before = tree(run_dir)
    assert player.verified(run_dir).findings == ()
    assert stale_files(run_dir) == []
    assert read_standing(run_dir).finished == 3
    assert player.surveyed(run_dir, 3).is_complete
    assert tree(run_dir) == before


def test_finished_run_is_extended(released: Path) -> None:
    run_dir = released / "finished"
    before = files(run_dir / "transcripts")

    with player.open_toy(run_dir, 4) as run:
        assert player.play(run) == player.TURNS

    assert files(run_dir / "transcripts").items() > before.items()
    assert player.verified(run_dir).findings == ()


def test_killed_run_goes_on_from_its_recorded_replies(released: Path) -> None:
    run_dir = released / "killed"
    assert read_run(run_dir).counts == (5, 2, 0)

    with player.open_toy(run_dir, 5) as run:
        assert player.play(run) == 5 * player.TURNS - 10

    assert player.verified(run_dir).findings == ()
    assert not list(run_dir.rglob(".tmp-*"))
    for path in (released / "finished/transcripts").iterdir():
        played = (run_dir / "transcripts" / path.name).read_bytes()
        assert without_timing(decode_transcript(played)) == without_timing(decode_transcript(path.read_bytes()))


def test_released_runs_are_merged_with_todays(released: Path, tmp_path: Path) -> None:
    player.merged(tmp_path / "whole", released / "finished", player.played(tmp_path / "today", 0), tasks=3)

    assert player.verified(tmp_path / "whole").acknowledged == 3
