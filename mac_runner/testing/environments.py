"""The contract of an environment as a test class.

Subclass it in a test module; pytest then plays conversations of your experiment with a scripted player::

    class TestCoin(EnvironmentContract):
        policy = "caller"

        def experiment(self) -> Experiment:
            return load_experiment(Path("coin.yaml")).experiment

Nothing else of the package runs: no engine, no scheduler, no disk. `mac-run check` tries the same promises.
"""

from __future__ import annotations

from functools import cached_property
from itertools import islice
from typing import Any, ClassVar

from mac_runner.config import Experiment
from mac_runner.environments import build_environment
from mac_runner.environments.base import Environment
from mac_runner.plan import plan_tasks
from mac_runner.registry import EnvironmentSpec
from mac_runner.testing.promises import PROMISES, TURNS_MAX, Subject
from mac_runner.testing.replies import GARBAGE

__all__ = ["GARBAGE", "TURNS_MAX", "EnvironmentContract"]
_PROMISES = {promise.name: promise for promise in PROMISES}


class EnvironmentContract:
    """What an environment promises (`mac_runner.environments.base`), one test each."""

    policy: ClassVar[str]
    """A scripted player of the environment whose replies end every conversation."""
    conversations: ClassVar[int] = 3
    """How many conversations of the experiment each test plays."""

    def experiment(self) -> Experiment:
        """The experiment to play."""
        raise NotImplementedError

    @cached_property
    def environment(self) -> Environment:
        """The environment, set up for the experiment."""
        return self.subject.environment

    @cached_property
    def spec(self) -> EnvironmentSpec[Any]:
        """How the environment describes itself."""
        return self.experiment().spec

    @cached_property
    def subject(self) -> Subject:
        """The environment and the conversations that are played."""
        experiment = self.experiment()
        lineup = build_environment(experiment).lineup
        return Subject(
            build=lambda: build_environment(experiment),
            tasks=tuple(islice(plan_tasks(experiment, lineup), self.conversations)),
            kind=self.spec.section,
            policy=self.policy,
            results=None if self.spec.results is None else self.spec.results(),
        )

    def keeps(self, name: str) -> None:
        """Try one promise. Raises BrokenPromiseError, or what the environment raises."""
        promise = _PROMISES[name]
        try:
            promise.check(self.subject)
        except AssertionError as fault:
            fault.add_note(f"{self.subject.place}: {promise.remedy}")
            raise

    def test_a_conversation_ends_with_an_outcome_of_its_own_kind(self) -> None:
        """Turns have keys of their own and agents of the task; rounds only grow; the outcome is JSON."""
        self.keeps("ends")
        self.keeps("turns")

    def test_prompts_can_be_sent(self) -> None:
        """Their messages are texts, their schemas and choices can be written."""
        self.keeps("prompts")

    def test_the_same_replies_lead_to_the_same_conversation(self) -> None:
        """Also in an environment that was built again, and beside another conversation."""
        self.keeps("deterministic")
        self.keeps("apart")

    def test_the_order_of_open_turns_leaves_no_trace(self) -> None:
        """Whichever reply comes first."""
        self.keeps("order")

    def test_asking_for_a_prompt_changes_nothing(self) -> None:
        """A prompt that is asked for twice is the same, and so is the state."""
        self.keeps("prompt")

    def test_a_replay_is_the_play(self) -> None:
        """In the order of the replies and in that of a transcript, and after a stop at any reply."""
        self.keeps("replay")
        self.keeps("resume")

    def test_garbage_is_survived(self) -> None:
        """A reply without use is corrected, replaced or fails its conversation; nothing else is raised."""
        self.keeps("garbage")

    def test_a_copied_form_is_no_answer(self) -> None:
        """Small models send back what a form shows in the place of words."""
        self.keeps("copied")

    def test_overflow_is_survived(self) -> None:
        """A prompt that is too long for its engine is shortened, or fails its conversation."""
        self.keeps("overflow")

    def test_a_record_is_json_and_its_audiences_are_agents(self) -> None:
        """Its events are what `mac-run show` prints."""
        self.keeps("record")

    def test_an_unknown_policy_is_refused_by_name(self) -> None:
        """With those there are."""
        self.keeps("policies")

    def test_results_do_not_depend_on_order_and_are_shown(self) -> None:
        """Where the environment has results: its sections of the summary, its tables, and what `show` adds."""
        self.keeps("results")
