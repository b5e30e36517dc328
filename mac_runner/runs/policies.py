"""The policies of a run: what the user names, what the journals name, and what engines therefore begin with.

A run whose journal names a version above 0 goes on with weights of that version or a later one, and with no others. The
caller gives them, or they still lie where they lay, with the recorded digest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from mac_runner.backends.base import Backend
from mac_runner.checkpoints import digest_of
from mac_runner.clock import Clock
from mac_runner.config import Experiment
from mac_runner.errors import ConfigError, RunDirectoryError, WeightUpdateError
from mac_runner.problems import suggestion
from mac_runner.runs.engines import Engine, EnginePlan
from mac_runner.runs.setup import Setup
from mac_runner.scheduler import Source
from mac_runner.scheduler.policies import EngineWeights, Policies, PolicyWindow
from mac_runner.store.records import entry
from mac_runner.types import JsonObject, PolicyVersion
from mac_runner.weights import Broadcast, Weights, weights_of

_NUMBER_MAX: Final = 10**18 - 1
"""As for all numbers of settings; tables have 64 bits."""
Versions = Mapping[str, Sequence[PolicyVersion]]
"""The versions of each model, in their order."""
Point = tuple[Sequence[JsonObject], int]
"""The turns of a conversation, and the place of the forked one among them."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A model whose weights a trainer changes. `Policy("learner", max_lag=2, batch=64)`, for `stream`.

    Raises ConfigError for values that mean nothing.
    """

    model: str
    """The entry of `model_definitions`."""
    _: KW_ONLY
    max_lag: int | None = None
    """How many versions old the rollouts of a conversation may be when they are used; None: no bound."""
    batch: int | None = None
    """How many finished conversations the trainer makes a version of; needed with `max_lag`."""
    version: int = 0
    """The version to begin with; 0 is what the engine loads."""
    weights: Weights | str | None = None
    """Its weights, where it is above 0 and they do not lie where the journal says."""

    def __post_init__(self) -> None:
        for name, least in (("max_lag", 0), ("batch", 1), ("version", 0)):
            value = getattr(self, name)
            if value is None and name != "version":
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigError(f"policy: {name} is {value!r}; allowed: a whole number from {least}")
            if value > _NUMBER_MAX:
                raise ConfigError(f"policy: {name} has too many digits; allowed: at most {_NUMBER_MAX}")
        if (self.max_lag is None) != (self.batch is None):
            raise ConfigError(
                "policy: max_lag and batch belong together: batch is the number of finished conversations that the "
                "trainer makes a version of; give both or neither"
            )
        if not isinstance(self.model, str):
            raise ConfigError(f"policy: model is {self.model!r}; give the name of an entry of model_definitions")
        if self.weights is not None:
            try:
                object.__setattr__(self, "weights", weights_of(self.weights))
            except WeightUpdateError as fault:
                raise ConfigError(f"policy: {fault}") from fault
        if isinstance(self.weights, Broadcast):
            raise ConfigError("policy: a run cannot begin with weights that are broadcast; give tensors or a path")
        if self.weights is not None and self.version == 0:
            raise ConfigError("policy: version 0 is what the engine loads; give the version of the weights")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRequest:
    """What a caller asks for."""

    policies: tuple[Policy, ...] = ()
    skips_ended: bool = False
    """Whether the trainer gets no conversation that ended in an earlier session."""

    def of(self, models: Iterable[str]) -> Policy | None:
        """The policy of one of these models, if there is one."""
        wanted = frozenset(models)
        return next((policy for policy in self.policies if policy.model in wanted), None)


@dataclass(slots=True, kw_only=True)
class PolicyPlan:
    """The engines whose weights differ from what their settings name, or may change."""

    request: PolicyRequest
    engines: list[EngineWeights] = field(default_factory=list)
    first: dict[str, int] = field(default_factory=dict)
    """The version that each policy began with."""

    finished: Counter[str] = field(default_factory=Counter)
    """The conversations that finished where nothing is left to play, by policy."""

    def count(self, ended: Iterable[tuple[Container[str], int]]) -> None:
        """Count what finished in run directories that are complete, given with their models."""
        for models, finished in ended:
            for policy in self.request.policies:
                self.finished[policy.model] += finished if policy.model in models else 0

    def begin(
        self,
        log: Callable[[str, JsonObject], None],
        sources: Callable[[], Iterable[Source]],
        *,
        restarts: bool,
    ) -> Policies:
        """The policies of a run that begins."""
        return Policies(
            self.engines,
            self._windows(),
            log=log,
            sources=sources,
            restarts=restarts,
            counts_finished=not self.request.skips_ended,
        )

    def _windows(self) -> dict[str, PolicyWindow]:
        present = {model: each.present.version for each in self.engines for model in each.models}
        found = {}
        for policy in self.request.policies:
            version = present[policy.model]
            first = version if self.request.skips_ended else self.first.get(policy.model, version)
            window = PolicyWindow(policy.max_lag, policy.batch or 1, first=first, version=version)
            if not self.request.skips_ended:
                window.add_finished(self.finished[policy.model])
            found[policy.model] = window
        return found


def check_policies(request: PolicyRequest, engines: EnginePlan, clock: Clock) -> None:
    """Raise ConfigError for a policy of a model that is not there, or whose engine takes no new weights."""
    models = {name for served in engines.served.values() for name in served}
    for policy in request.policies:
        if policy.model not in models:
            raise ConfigError(
                f"policy: the experiment has no model {policy.model!r} (has: {', '.join(sorted(models))})"
            )
    for engine in engines.engines.values():
        if request.of(_models_of(engine, engines)) is not None:
            check_updates(engine, engine.build(clock, lambda _line: None, can_pull=False))


def check_updates(engine: Engine, backend: Backend) -> None:
    """Raise ConfigError where the backend of an engine takes no new weights."""
    if (obstacle := backend.update_obstacle) is not None:
        key, kind = ("model_definitions", engine.model, "backend"), engine.definition.backend
        raise ConfigError.at(key, f"the backend {kind!r} cannot update weights: {obstacle}")


def plan_policies(
    request: PolicyRequest,
    setups: Sequence[Setup],
    engines: EnginePlan,
    recorded: Mapping[str, Mapping[str, Sequence[PolicyVersion]]],
) -> PolicyPlan | None:
    """What engines begin with; None where all have what their settings name, and keep it.

    `recorded` are the versions in the journals, by experiment and model. Raises RunDirectoryError for weights that are
    missing.
    """
    plan = PolicyPlan(request=request)
    for engine in engines.engines.values():
        models = _models_of(engine, engines)
        policy = request.of(models)
        known = [
            (setup, versions)
            for setup in setups
            for model, versions in recorded.get(setup.slug, {}).items()
            if engines.served[setup.slug].get(model) == engine.name
        ]
        setup, last = max(
            ((setup, versions[-1]) for setup, versions in known),
            key=lambda found: found[1].version,
            default=(None, PolicyVersion(0)),
        )
        if policy is None and last.version == 0:
            continue
        present, weights = _begin_with(policy, last, engine.model, setup)
        plan.engines.append(
            EngineWeights(
                engine=engine.name,
                models=models,
                present=present,
                weights=weights,
                check=partial(check_updates, engine),
            )
        )
        if policy is not None:
            firsts = [versions[0].version for _, versions in known]
            plan.first[policy.model] = min([*firsts, plan.first.get(policy.model, present.version), present.version])
    return plan if plan.engines else None


def _begin_with(
    policy: Policy | None, last: PolicyVersion, model: str, setup: Setup | None
) -> tuple[PolicyVersion, Weights | None]:
    """The version that an engine begins with, and its weights."""
    weights = None if policy is None else policy.weights
    assert not isinstance(weights, str), "a policy keeps a path"
    version = last.version if policy is None else policy.version
    if setup is not None and setup.plan is not None and version != last.version:
        raise RunDirectoryError(
            f"{setup.directory} is a fork that plays with version {last.version} of model {model!r}; to play with "
            f"version {version}, make another fork"
        )
    directory = None if setup is None else setup.directory
    if version < last.version:
        raise RunDirectoryError(
            f"{directory} has replies of version {last.version} of model {model!r}; going on with version {version} "
            f"would mix them: give `policy=Policy({model!r}, version={last.version}, weights=...)`, or another `out`"
        )
    if version == 0:
        return PolicyVersion(0), None
    if weights is None and version == last.version and last.path is not None:
        weights = Path(last.path)
    if weights is None:
        raise RunDirectoryError(_missing(model, version, last, setup, "they are not given"))
    try:
        digest = digest_of(weights)
    except WeightUpdateError as fault:
        raise RunDirectoryError(_missing(model, version, last, setup, str(fault))) from fault
    if version == last.version and digest != last.sha256:
        raise RunDirectoryError(_missing(model, version, last, setup, f"those found have the digest {digest}"))
    return PolicyVersion(version, digest, str(weights.resolve()) if isinstance(weights, Path) else None), weights


def _missing(model: str, version: int, last: PolicyVersion, setup: Setup | None, why: str) -> str:
    known = ""
    if version == last.version:
        known = f", digest {last.sha256 or 'not recorded'}"
        known += "" if last.path is None else f", last at {last.path}"
    where = "" if setup is None else f"{setup.directory}: "
    how = f"`policy=Policy({model!r}, version={version}, weights=...)`"
    if setup is not None and setup.plan is not None:
        where, how = "", f"{how}, or `--policy {model}={version}:PATH` of `mac-run fork`"
    else:
        how += " of `stream`; or a later version, or another `out`"
    return f"{where}the weights of version {version} of model {model!r} are needed{known}; {why}. Give them: {how}"


def _models_of(engine: Engine, engines: EnginePlan) -> frozenset[str]:
    """What experiments call the model that an engine serves."""
    return frozenset(
        name for served in engines.served.values() for name, found in served.items() if found == engine.name
    )


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
