"""Discussions: agents with roles and identities discuss questions for some rounds."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mac_runner.environments.discussion.settings import DiscussionConfig, rule_problems, warnings, with_materials
from mac_runner.registry import Converter, EnvironmentSpec, Imported, Importer
from mac_runner.types import JsonObject

if TYPE_CHECKING:
    from mac_runner.config import Experiment
    from mac_runner.environments.base import Environment
    from mac_runner.measures import ResultsSpec

__all__ = ["SPEC", "DiscussionConfig"]


def _build(experiment: Experiment) -> Environment:
    from mac_runner.environments.discussion.environment import DiscussionEnvironment

    return DiscussionEnvironment(experiment)


def _results() -> ResultsSpec:
    from mac_runner.environments.discussion.results import RESULTS

    return RESULTS


def _converted(name: str, files: Mapping[str, bytes], metadata: tuple[str, bytes] | None = None) -> bytes:
    from mac_runner.environments.discussion.formats import convert

    return convert(name, files, metadata)


def _from_mac_fairness(values: JsonObject, source: Path, folder: Path) -> Imported:
    from mac_runner.environments.discussion.imports.mac_fairness import imported

    return imported(values, source, folder)


_RELEASES: Final = {
    "bbq": "data/*.jsonl of BBQ",
    "discrim-eval": "explicit.jsonl, implicit.jsonl",
    "difference-awareness": "benchmark_suite/*.pkl",
}
_METADATA: Final = {"bbq": "supplemental/additional_metadata.csv of BBQ"}

SPEC = EnvironmentSpec(
    section="discussion",
    settings=DiscussionConfig,
    description="Settings of the environment `discussion`.",
    build=_build,
    role="participant",
    needs="questions or topics",
    check=rule_problems,
    materials=with_materials,
    material=lambda settings, index: settings.question_at(index).to_json(),
    whole=lambda settings: settings.question_count or None,
    warnings=warnings,
    needs_files=lambda settings: bool(settings.questions.files),
    reply_forms=("json",),
    reward_names=("right",),
    results=_results,
    measures=("changes", "changes_by_identity", "influence", "roles", "bias", "item", "moved"),
    converters={
        name: Converter(files, partial(_converted, name), _METADATA.get(name, "")) for name, files in _RELEASES.items()
    },
    importers={"mac-fairness": Importer("a configuration, with or without _grid", _from_mac_fairness)},
)
