"""Which weights a fork plays with: the version that the caller names, or that of the turns which it draws again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from mac_runner.checkpoints import digest_of
from mac_runner.config import Experiment
from mac_runner.errors import ConfigError, WeightUpdateError
from mac_runner.problems import suggestion
from mac_runner.runs.policies import Policy
from mac_runner.store.records import entry
from mac_runner.types import JsonObject, PolicyVersion

Versions = Mapping[str, Sequence[PolicyVersion]]
"""The versions of each model, in their order."""
Point = tuple[Sequence[JsonObject], int]
"""The turns of a conversation, and the place of the forked one among them."""


def fork_policies(
    given: Sequence[Policy],
    recorded: Versions,
    before: Experiment,
    after: Experiment,
    models: Iterable[str],
    points: Sequence[Point],
) -> dict[str, list[PolicyVersion]]:
    """The versions that the journal of a fork begins with, by model; each model plays with its last one.

    `recorded` are those of the parent, `models` those that play in the fork, and `points` where conversations
    are forked. Raises ConfigError where no version can be chosen.
    """
    wanted = _by_model(given, models)
    found = {}
    for model in sorted({*models} & {*recorded, *wanted}):
        versions, policy = recorded.get(model, ()), wanted.get(model)
        if policy is None:
            chosen = _played(model, versions, points)
            if chosen.version and after.model_definitions[model] != before.model_definitions[model]:
                raise ConfigError(
                    f"model {model!r} was played with version {chosen.version}, and the fork changes its definition: "
                    f"{_how(model, chosen.version)}, or version 0 for the weights that the definition names"
                )
        else:
            chosen = _given(policy, versions)
        kept = {version for turns, place in points for version in _spans(model, turns[:place])}
        found[model] = [
            *(each for each in _latest(versions).values() if each.version in kept - {chosen.version}),
            chosen,
        ]
    return found


def _by_model(given: Sequence[Policy], models: Iterable[str]) -> Mapping[str, Policy]:
    for policy in given:
        if policy.model not in models:
            raise ConfigError(
                f"policy: no agent of the fork has the model {policy.model!r}{suggestion(policy.model, models)}"
            )
        if policy.max_lag is not None:
            raise ConfigError(f"policy: a fork has no trainer; leave out max_lag and batch of {policy.model!r}")
    return {policy.model: policy for policy in given}


def _played(model: str, versions: Sequence[PolicyVersion], points: Sequence[Point]) -> PolicyVersion:
    """The version that made the turns to be drawn again; the newest of the run where the model made none."""
    numbers = {number for turns, place in points if (number := _next_version(model, turns, place)) is not None}
    if len(numbers) > 1:
        listed = ", ".join(map(str, sorted(numbers)))
        raise ConfigError(
            f"the conversations were played with several versions of model {model!r} ({listed}), and a fork plays with "
            f"one: {_how(model, max(numbers))}, or fork fewer conversations"
        )
    number = next(iter(numbers), versions[-1].version)
    return _latest(versions).get(number, PolicyVersion(number))


def _next_version(model: str, turns: Sequence[JsonObject], place: int) -> int | None:
    """The first version in the first reply of a model from a place on, else the last version before it."""
    return next(_spans(model, turns[place:]), next(reversed([*_spans(model, turns[:place])]), None))


def _spans(model: str, turns: Iterable[JsonObject]) -> Iterator[int]:
    """The first and the last version of each reply of a model."""
    for turn in turns:
        policy = entry(turn, "reply", dict).get("policy")
        if turn["model"] == model and isinstance(policy, list):
            yield from (version for version in policy if isinstance(version, int))


def _given(policy: Policy, versions: Sequence[PolicyVersion]) -> PolicyVersion:
    """The version that a caller names. Raises ConfigError for weights that cannot be read."""
    known = _latest(versions).get(policy.version, PolicyVersion(policy.version))
    if policy.weights is None or known.sha256 is not None:
        return known
    assert not isinstance(policy.weights, str), "a policy keeps a path"
    try:
        digest = digest_of(policy.weights)
    except WeightUpdateError as fault:
        raise ConfigError(
            f"policy: the weights of version {policy.version} of model {policy.model!r}: {fault}"
        ) from fault
    return PolicyVersion(
        policy.version, digest, str(policy.weights.resolve()) if isinstance(policy.weights, Path) else None
    )


def _latest(versions: Iterable[PolicyVersion]) -> dict[int, PolicyVersion]:
    return {each.version: each for each in versions}


def _how(model: str, version: int) -> str:
    return f"name it, with `policy=Policy({model!r}, version={version})` or `--policy {model}={version}`"
