"""The replies of open conversations name the group of their conversation, as those of ended ones do."""

from __future__ import annotations

import mac_runner
from mac_runner.store.records import decode_frame
from tests.cli.lab import Lab
from tests.sim.training import ENGINE, experiment


def test_open_replies_have_the_group_and_the_sample_of_their_conversation(lab: Lab) -> None:
    (lab.path / "learner.py").write_text(ENGINE)
    content = experiment(4, conversation_config={"environment": "echo", "conversations": 4, "samples_per_task": 2})
    mac_runner.run(content, out="run", progress=False)
    columns = ["conversation", "number", "group", "sample"]
    ended = mac_runner.open_run("run").turns(columns).to_pylist()

    for segment in (lab.path / "run" / "journal").iterdir():  # As after a kill before the first end.
        lines = segment.read_bytes().splitlines(keepends=True)
        kept = [line for line in lines if (frame := decode_frame(line.rstrip())) is None or frame["kind"] != "done"]
        segment.write_bytes(b"".join(kept))
    opened = mac_runner.open_run("run").turns(columns, open=True).to_pylist()

    assert {(row["group"], row["sample"]) for row in ended} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert sorted(map(repr, opened)) == sorted(map(repr, ended))


def test_a_run_lists_only_the_formats_that_it_can_give(lab: Lab) -> None:
    (lab.path / "learner.py").write_text(ENGINE)
    mac_runner.run(experiment(1), out="run", progress=False)
    tables = mac_runner.open_run("run").tables

    assert "trl-sft" in tables
    assert "trl-dpo" not in tables, "a run that is not a fork has no pairs"
