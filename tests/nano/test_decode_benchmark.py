"""The benchmark of decoding: what its figures are made of, that all contestants compute the same, and its row."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from benchmarks.nano_peers.contest import Line, same_first_tokens, take_turns
from benchmarks.nano_peers.roofline import Roof, least_step_s, num_matrix_parameters
from benchmarks.nano_peers.roster import contestants, reasons_to_leave_out
from benchmarks.nano_peers.setting import Setting, random_prompts
from benchmarks.nano_peers.targets import targets
from benchmarks.nano_peers.timing import Run, Step, Stopwatch, decode_step_s, tokens_per_s
from tests.faults.tier import SCALE
from tests.nano.tiny_models import make_model
from tests.patience import run

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "nano_decode.py"
NUM_NEW = 8


def a_line(dtype: str, batch: int, **decode_tok_s: float) -> Line:
    return Line(
        model="5m",
        dtype=dtype,
        batch=batch,
        decode_tok_s=decode_tok_s,
        end_to_end_tok_s={},
        of_roof={},
        same_first_tokens={},
    )


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    directory = make_model(tmp_path, "qwen2")
    return Setting(
        directory=directory, dtype="float32", num_threads=1, max_batch=3, max_length=48, clock_name="processor"
    )


def test_a_decode_step_is_one_in_which_everybody_speaks_and_nobodys_prompt_is_computed() -> None:
    # Two prompts finished one after the other, and the first sequence ends first.
    steps = [Step(9.0, 1), Step(8.0, 2), Step(1.0, 2), Step(2.0, 2), Step(0.1, 1)]
    run = Run(said=[[1, 2, 3, 4], [1, 2, 3, 4]], total_s=20.1, steps=steps)

    assert list(run.decode_steps_s()) == [1.0, 2.0]


def test_too_few_tokens_for_a_decode_step_are_told_and_not_guessed_from() -> None:
    run = Run(said=[[1], [1]], total_s=2.0, steps=[Step(1.0, 1), Step(1.0, 1)])

    with pytest.raises(ValueError, match="more new tokens"):
        decode_step_s([run])


def test_a_stopwatch_tells_each_step_and_all_of_it() -> None:
    now_s = iter([10.0, 11.0, 13.0, 13.5])
    watch = Stopwatch(lambda: next(now_s))
    watch.step(1)
    watch.step(1)
    run = watch.stop([[7, 8]])

    assert run == Run(said=[[7, 8]], total_s=3.5, steps=[Step(1.0, 1), Step(2.0, 1)])
    assert Run.from_json(json.loads(json.dumps(run.as_json()))) == run
    assert tokens_per_s([run]) == 2 / 3.5


def test_a_target_tells_the_worst_figure_and_every_place_that_misses_it(snapshot: SnapshotAssertion) -> None:
    lines = [
        a_line("float32", 8, nano=190.0, transformers=100.0, static=200.0),
        a_line("bfloat16", 8, nano=400.0, transformers=100.0, static=500.0),
    ]

    told = [target.as_json() for target in targets(lines, [], None, [100.0, 110.0, 111.0])]

    assert [each for each in told if each["met"] is not None] == snapshot


def test_a_target_nobody_measured_is_neither_met_nor_missed_and_who_cannot_take_part_is_told_with_the_reason() -> None:
    assert {target.as_json()["met"] for target in targets([], [], None, [])} == {None}
    assert reasons_to_leave_out(["transformers", "vllm"], None).keys() == {"vllm"}


def test_the_least_step_is_bound_by_reading_or_by_multiplying(setting: Setting) -> None:
    parameters = num_matrix_parameters(setting)
    read_bytes = 4 * parameters + 3 * 10 * setting.kv_bytes_per_token
    reads = Roof(read_gb_per_s=1.0, gemm_gflop_per_s=1e9)
    multiplies = Roof(read_gb_per_s=1e9, gemm_gflop_per_s=1.0)

    assert least_step_s(reads, setting, 3, 10) == pytest.approx(read_bytes / 1e9)
    assert least_step_s(multiplies, setting, 3, 10) == pytest.approx(2 * 3 * parameters / 1e9)


def optional() -> Iterator[str]:
    if find_spec("llama_cpp") and find_spec("gguf"):
        yield "llama.cpp"


def test_all_contestants_say_the_same_tokens_in_float32_and_the_same_again(setting: Setting) -> None:
    names = ["nano", "transformers", "static", *optional()]
    with contestants(names, setting, None) as field:
        runs = take_turns(field, random_prompts(3, 40, setting.model.vocab_size), NUM_NEW, 2)

    assert same_first_tokens(runs) == dict.fromkeys(names, 1.0)
    for name, (first, second) in runs.items():
        assert [len(said) for said in first.said] == [NUM_NEW] * 3, name
        assert second.said == first.said, name
        assert len(list(first.decode_steps_s())) == NUM_NEW - 1, name


@pytest.mark.nightly
def test_decode_benchmark_ends_with_its_row(tmp_path: Path) -> None:
    flags = "--models 5m --dtypes float32 --batches 2 --prompt 32 --new 8 --rounds 1 --peers transformers static vllm"
    flags += " --memory-rounds 2 --contests batches" + (" shared_prefix" if SCALE > 1 else "")
    command = [sys.executable, str(SCRIPT), *flags.split()]
    process = run(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    assert process.returncode == 0, process.stderr
    row = json.loads(process.stdout.splitlines()[-1])
    assert [(line["model"], line["batch"]) for line in row["lines"]] == [("5m", 2)]
    assert set(row["lines"][0]["decode_tok_s"]) == {"nano", "transformers", "static"}
    assert set(row["left_out"]) == {"vllm"}
    assert row["rss_mb"]["last_round"] > 0
    assert len(row["targets"]) == 12
