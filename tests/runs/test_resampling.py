"""`mac_runner.runs.resampling`: conversations of a run as those of a plan."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from mac_runner.environments import Conversation
from mac_runner.errors import RequestRefusedError
from mac_runner.runs import RunRequest, Setup, set_up
from mac_runner.runs.testing import Recorded, Resampled, observed, recorded_conversations
from mac_runner.simulation.testing import BLOCK_TOKENS, chain_of
from mac_runner.store import RunContents, read_run
from mac_runner.types import Request, Sampling, Task
from tests.runs.study import experiment, played, written
from tests.sim.stepping import TRUE

SIZE = 12


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunContents:
    """A run of 12 discussions."""
    folder = tmp_path_factory.mktemp("run")
    played(written(folder, experiment(SIZE)), folder / "pilot")
    return read_run(folder / "pilot")


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    """A plan of 600 discussions."""
    (found,) = set_up(
        RunRequest(file=written(tmp_path_factory.mktemp("plan"), experiment(600)), out=Path("nowhere"))
    ).setups
    return found


def resampled(run: RunContents, setup: Setup, resampling: int = 0) -> Resampled:
    return Resampled(recorded_conversations(run), setup.environment(), resampling)


def blocks_of(drawn: Resampled, task: Task) -> tuple[set[int], Conversation]:
    """The blocks of all prompts of a planned conversation, played to its end, and the conversation."""
    conversation, found = drawn.copies.open(task), set[int]()
    while turns := conversation.turns():
        turn = turns[0]
        prompt = conversation.prompt(turn)
        found |= set(chain_of(prompt, 1.0))
        request = Request(conversation=task.task_id, turn=turn, prompt=prompt, sampling=Sampling(max_tokens=9))
        conversation.receive(turn, drawn(request))
    return found, conversation


def test_planned_conversations_are_recorded_ones_to_their_ends(run: RunContents, setup: Setup) -> None:
    drawn = resampled(run, setup)
    names = {task.task_id for task in setup.tasks()}
    outcomes = [run.transcript(row["task_id"])["outcome"] for row in run.rows()]  # type: ignore[arg-type]

    tasks = list(drawn.tasks(setup.tasks[:20])())

    assert {task.task_id for task in tasks} < names
    for task in tasks:
        assert blocks_of(drawn, task)[1].outcome in outcomes


def test_copies_share_no_more_of_their_prompts_than_different_conversations(run: RunContents, setup: Setup) -> None:
    drawn = resampled(run, setup)
    tasks = list(drawn.tasks(setup.tasks[:40])())
    seeds = Counter(task.seed for task in tasks)
    copied = [task for task in tasks if task.seed == seeds.most_common(1)[0][0]]
    other = next(task for task in tasks if task.seed != copied[0].seed and task.material == copied[0].material)

    own, copy, different = (blocks_of(drawn, task)[0] for task in (copied[0], copied[1], other))

    assert len(own) > 5 * BLOCK_TOKENS
    assert len(own & copy) <= len(own & different) + 2
    assert own & copy


def test_a_resampling_draws_from_other_conversations_and_always_the_same(run: RunContents, setup: Setup) -> None:
    def seeds(resampling: int) -> list[int]:
        return [task.seed for task in resampled(run, setup, resampling).tasks(setup.tasks)()]

    assert len(set(seeds(0))) == SIZE
    assert 4 <= len(set(seeds(1))) < SIZE
    assert seeds(1) == seeds(1) != seeds(2)


def test_a_turn_that_was_not_recorded_is_refused(run: RunContents, setup: Setup) -> None:
    drawn = Resampled([Recorded(one.task, {}) for one in recorded_conversations(run)], setup.environment())
    (task,) = drawn.tasks(setup.tasks[:1])()

    with pytest.raises(RequestRefusedError, match="has no turn"):
        blocks_of(drawn, task)


def test_a_run_shows_the_step_model_of_its_engine_and_its_tokens(run: RunContents) -> None:
    found = observed([run]).models["panel"]

    assert found.steps.kernel_ms(16, 8, 300) == pytest.approx(TRUE.kernel_ms(16, 8, 300), rel=0.05)
    assert (found.in_flight, found.servers, found.capacity, found.is_prefix_cached) == (8, 1, 8, False)
    assert found.chars_per_token == pytest.approx(4, rel=0.02)
    assert set(found.reply_tokens) <= set(range(20, 41))
