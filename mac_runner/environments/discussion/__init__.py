"""Discussions: agents with roles and identities discuss questions for some rounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mac_runner.environments.discussion.settings import DiscussionConfig
from mac_runner.problems import Problem
from mac_runner.registry import Converter, EnvironmentSpec

if TYPE_CHECKING:
    from mac_runner.config import Experiment
    from mac_runner.environments.base import Environment
    from mac_runner.results import ResultsSpec

__all__ = ["SPEC", "DiscussionConfig"]


def _build(experiment: Experiment) -> Environment:
    from mac_runner.environments.discussion.environment import DiscussionEnvironment

    return DiscussionEnvironment(experiment)


def _check(experiment: Experiment, settings: DiscussionConfig) -> Iterable[Problem]:
    from mac_runner.environments.discussion.consistency import discussion_problems

    return discussion_problems(experiment, settings)


def _materials(settings: DiscussionConfig, base: Path, cache: dict[str, object]) -> DiscussionConfig:
    from mac_runner.environments.discussion.materials import with_materials

    return with_materials(settings, base, cache)


def _convert(name: str, files: Mapping[str, bytes]) -> bytes:
    from mac_runner.environments.discussion.formats import convert

    return convert(name, files)


def _results() -> ResultsSpec:
    from mac_runner.environments.discussion.tables import RESULTS

    return RESULTS


_RELEASES: Final = {"bbq": "data/*.jsonl of BBQ", "discrim-eval": "explicit.jsonl, implicit.jsonl"}

SPEC = EnvironmentSpec(
    section="discussion",
    settings=DiscussionConfig,
    description="Settings of the environment `discussion`.",
    build=_build,
    needs="questions or topics",
    check=_check,
    materials=_materials,
    material=lambda settings, index: settings.question_at(index).to_json(),
    needs_files=lambda settings: bool(settings.questions),
    results=_results,
    converters={name: Converter(files, partial(_convert, name)) for name, files in _RELEASES.items()},
)
