"""Digests of what ranks compute and compute with: the first difference is named, and one that passed is not missed."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from mac_runner.nano import (
    DivergenceError,
    EngineConfig,
    ForwardBatch,
    Piece,
    RankFailedError,
    SamplingParams,
    make_batch,
)
from mac_runner.nano.testing import (
    MISSING,
    Call,
    Difference,
    Follower,
    StepDigests,
    first_difference,
    join_digests,
    require_equal,
)
from tests.nano.crowds import ranks_as_threads
from tests.nano.tiny_models import ModelMaker

FLIPPED_AT = 11


def batches(seed: int) -> list[ForwardBatch]:
    """Twenty steps of a few sequences."""
    chance = Random(seed)

    def piece(start: int) -> Piece:
        tokens, pages = ([chance.randrange(50) for _ in range(count)] for count in (40, 3))
        return Piece(tokens, start, 40 - start, pages)

    return [make_batch(map(piece, chance.sample(range(40), 5)), 16) for _ in range(20)]


def after(steps: Iterable[ForwardBatch], version: int = 0) -> dict[str, str]:
    digests = StepDigests()
    for step in steps:
        digests.add(version, step)
    return digests.digests()


def test_equal_steps_have_equal_digests_however_they_were_made() -> None:
    """Batches that came over a socket share none of their parts with those that were sent."""
    assert after(batches(seed=1)) == after(batches(seed=1))
    assert after(batches(seed=1)) != after(batches(seed=2))


def test_any_difference_of_a_past_step_is_named() -> None:
    steps = batches(seed=1)
    first = steps[3].spans[2]
    pages = (first.block_ids[0] + 1, *first.block_ids[1:])
    flipped = (*steps[3].spans[:2], first._replace(block_ids=pages), *steps[3].spans[3:])
    longer = (*steps[3].spans[:2], first._replace(start=first.start + 1), *steps[3].spans[3:])
    changes: dict[str, dict[str, object]] = {
        "page_table": {"spans": flipped},
        "lengths": {"spans": longer},
        "token_ids": {"token_ids": (*steps[3].token_ids[:-1], 99)},
        "positions": {"positions": (*steps[3].positions[:-1], 99)},
        "slots": {"slots": (99_999, *steps[3].slots[1:])},
        "logit_rows": {"logit_rows": steps[3].logit_rows[1:]},
    }
    for named, change in changes.items():
        others = [*steps[:3], replace(steps[3], **change), *steps[4:]]  # type: ignore[arg-type]
        met = first_difference({"rank 0": after(steps), "rank 1": after(steps), "rank 2": after(others)})

        assert met is not None
        assert (met.field, met.rank, met.other) == (named, "rank 2", "rank 0")
        assert met.digest != met.other_digest

    assert first_difference({"rank 0": after(steps), "rank 1": after(steps[:-1])}) == Difference(
        "round", "rank 1", "19", "rank 0", "20"
    )
    with pytest.raises(DivergenceError, match=r"round 20 .* weights: 7 and 0"):
        require_equal({"rank 0": after(steps), "rank 1": after(steps, version=7)}, "in round 20")


def test_ranks_that_agree_have_no_difference() -> None:
    assert first_difference({"rank 0": {"a": "1"}}) is None
    assert first_difference({"rank 0": {"a": "1"}, "rank 1": {"a": "1"}}) is None
    met = first_difference({"rank 0": {"a": "1"}, "rank 1": {"a": "1", "b": "2"}})
    assert met == Difference("b", "rank 1", "2", "rank 0", MISSING)


def test_each_thing_that_decides_bits_is_compared_at_the_join(model: ModelMaker, tmp_path: Path) -> None:
    config = EngineConfig(model_path="here")
    ours = join_digests(config, model("qwen2"), 1)
    copied = Path(shutil.copytree(model("qwen2"), tmp_path / "copy"))
    elsewhere = join_digests(replace(config, model_path="there", num_threads=1), copied, 1)

    def named(theirs: dict[str, str]) -> str:
        met = first_difference({"rank 0": ours, "rank 1": theirs})
        assert met is not None
        return met.field

    assert first_difference({"rank 0": ours, "rank 1": elsewhere}) is None
    assert named(join_digests(config, model("qwen2"), 2)) == "threads"
    assert named(join_digests(replace(config, seed=3), copied, 1)) == "EngineConfig.seed"
    for file in ("tokenizer.json", "model.safetensors"):
        content = bytearray((copied / file).read_bytes())
        content[-1] ^= 1
        (copied / file).write_bytes(content)
        assert named(join_digests(config, copied, 1)).endswith(f"file {file}")
        shutil.copy(model("qwen2") / file, copied / file)


class Flipped(Follower):
    """A rank that once takes the second sequence's block for the first one; a block not yet written may hold NaN."""

    num_batches = 0

    def carry_out(self, message: Call | ForwardBatch) -> None:
        if isinstance(message, ForwardBatch):
            self.num_batches += 1
            if self.num_batches == FLIPPED_AT:
                first, second = message.spans
                message = replace(message, spans=(first._replace(block_ids=second.block_ids), second))
        super().carry_out(message)


def test_flipped_entry_of_a_page_table_is_found_at_the_next_comparison_and_ends_all(model: ModelMaker) -> None:
    with ranks_as_threads(model("qwen2"), Flipped, divergence_check_every=8) as engine:
        named = r"after 16 steps rank 1 and rank 0 disagree in page_table: \w{24} and \w{24}"
        with pytest.raises(DivergenceError, match=named):
            engine.generate([[1, 2, 3], [4, 5, 6]], SamplingParams(max_tokens=40, ignore_eos=True))
        with pytest.raises(RankFailedError, match=named):
            engine.add_request([1], SamplingParams())
