"""Discussions: agents with roles and identities discuss questions for some rounds."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from mac_runner.environments.discussion.formats import convert
from mac_runner.environments.discussion.settings import DiscussionConfig, rule_problems, with_materials
from mac_runner.registry import Converter, EnvironmentSpec

if TYPE_CHECKING:
    from mac_runner.config import Experiment
    from mac_runner.environments.base import Environment
    from mac_runner.results import ResultsSpec

__all__ = ["SPEC", "DiscussionConfig"]


def _build(experiment: Experiment) -> Environment:
    from mac_runner.environments.discussion.environment import DiscussionEnvironment

    return DiscussionEnvironment(experiment)


def _results() -> ResultsSpec:
    from mac_runner.environments.discussion.results.tables import RESULTS

    return RESULTS


_RELEASES: Final = {
    "bbq": "data/*.jsonl of BBQ",
    "discrim-eval": "explicit.jsonl, implicit.jsonl",
    "difference-awareness": "benchmark_suite/*.pkl",
}

SPEC = EnvironmentSpec(
    section="discussion",
    settings=DiscussionConfig,
    description="Settings of the environment `discussion`.",
    build=_build,
    needs="questions or topics",
    check=rule_problems,
    materials=with_materials,
    material=lambda settings, index: settings.question_at(index).to_json(),
    needs_files=lambda settings: bool(settings.questions),
    absent={"edition": 1},
    reply_forms=("json",),
    results=_results,
    converters={name: Converter(files, partial(convert, name)) for name, files in _RELEASES.items()},
)
