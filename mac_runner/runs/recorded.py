"""The experiment of a run directory, as it was resolved when it ran; needs no experiment file.

`trust` imports the code that run directories name, on request (`--trust`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from mac_runner.config import Experiment, Loaded, recorded
from mac_runner.config.validation import own_settings
from mac_runner.environments import build_environment
from mac_runner.environments.base import Environment
from mac_runner.environments.replay import play_until, replay
from mac_runner.errors import ConfigError, ConversationError, RunDirectoryError, UntrustedCodeError, boundary
from mac_runner.plan import Plan, plan_of
from mac_runner.plugins import Code, PluginKind, is_file, loaded_plugin, recorded_plugin
from mac_runner.problems import dotted
from mac_runner.registry import ENVIRONMENTS, checked_function, load_recorded_backend, load_recorded_environment
from mac_runner.runs.setup import ExperimentSet, Setup
from mac_runner.section import Opener
from mac_runner.spec import MetricCode, PluginCode
from mac_runner.store import Run, build_transcript, has_run, is_grid, read_grid, read_run, replies_of, task_of
from mac_runner.store.records import entry
from mac_runner.store.transcripts import as_measured
from mac_runner.types import JsonObject, Prompt


def recorded_only(run: Run) -> Experiment:
    """The experiment of a run as it was recorded, whether or not it can be played here."""
    return recorded(run.resolved, str(run.layout.config))


def recorded_experiment(run: Run) -> Loaded:
    """The experiment of a run. Raises RunDirectoryError when this version cannot play it."""
    path = run.layout.config
    _refuse_uninstalled(run)
    try:
        experiment = recorded_only(run)
        _refuse_untrusted(run, experiment)
        build_environment(experiment)
    except ConfigError as fault:
        raise RunDirectoryError(
            f"{path} holds no experiment that this version can play; put back the file that the run wrote:\n{fault}"
        ) from None
    return Loaded(experiment=experiment, resolved=run.resolved, locate=lambda _key: str(path))


def _refuse_uninstalled(run: Run) -> None:
    """Raises RunDirectoryError for an environment that is neither built in nor code that the run names."""
    resolved = run.resolved
    conversation, plugins = (resolved.get(key) for key in ("conversation_config", "plugins"))
    name = conversation.get("environment") if isinstance(conversation, dict) else None
    if isinstance(name, str) and name not in ENVIRONMENTS and not (isinstance(plugins, dict) and name in plugins):
        raise RunDirectoryError(
            f"{run.layout.config}: the run is of the environment {name!r}, which is not installed "
            f"here (there are: {', '.join(sorted(ENVIRONMENTS))}); install the package that has it"
        )


def _refuse_untrusted(run: Run, experiment: Experiment) -> None:
    """Raises UntrustedCodeError where the code of the environment was not imported."""
    if experiment.known_spec is None:
        raise UntrustedCodeError(
            f"{run.layout.directory}: the run was played by the code "
            f"{experiment.conversation_config.environment}, which is imported only on request: add --trust if you "
            "trust that code"
        )


def recorded_setup(
    run: Run,
    *,
    material: Callable[[str], JsonObject | None] | None = None,
    only: frozenset[str] | None = None,
) -> Setup:
    """The run as recorded: everything ever planned in it, or the tasks with the ids `only`.

    Where the tasks of an experiment take their material from files, `material` gives that of a task; by default its
    transcript does, even a damaged one. Raises RunDirectoryError when this version cannot play the experiment.
    """
    loaded = recorded_experiment(run)
    fork = run.fork
    conversations = loaded.experiment.conversation_config.model_copy(update={"conversations": _planned(run)})
    experiment = loaded.experiment.model_copy(update={"conversation_config": conversations})
    environment = build_environment(experiment)
    return Setup(
        loaded=replace(loaded, experiment=experiment),
        directory=run.layout.directory,
        grid=run.layout.grid,
        environment=lambda: environment,
        lineup=environment.lineup,
        transcript_bytes_min=environment.transcript_bytes_min,
        shard=run.shard,
        only=only,
        plan=None if fork is None else fork.plan(),
        material=(material or run.recorded_material) if has_question_files(loaded) else None,
    )


def set_of_one(setup: Setup) -> ExperimentSet:
    """An experiment as a set that can be played."""
    return ExperimentSet(name=setup.name, profile=setup.experiment.profile, directory=setup.directory, setups=(setup,))


def has_question_files(loaded: Loaded) -> bool:
    """Whether the experiment needs files that its run directory does not hold."""
    settings = loaded.experiment.environment_settings
    return settings is not None and loaded.experiment.spec.needs_files(settings)


def recorded_plan(run: Run) -> Plan:
    """Everything ever planned in a run. Raises RunDirectoryError when this version cannot play the experiment.

    Where its code may not be imported, the tasks have their names and seeds, and no agents of an own line-up.
    """
    try:
        return recorded_setup(run).tasks
    except UntrustedCodeError:
        if (fork := run.fork) is not None:
            return fork.plan()
        experiment = recorded_only(run)
        conversations = experiment.conversation_config.model_copy(update={"conversations": _planned(run)})
        return plan_of(experiment.model_copy(update={"conversation_config": conversations}), None).part(run.shard)


def _planned(run: Run) -> int:
    """How many tasks were ever planned: what was planned once stays planned, even if fewer were asked for later."""
    return max(run.planned().values(), default=0) + 1


def rebuilt_transcript(transcript: JsonObject, environment: Environment) -> JsonObject:
    """The transcript that results from playing a transcript's task and replies again, with every prompt rendered.

    A prompt that comes out different has another digest in its turn. Raises ConversationError when a reply belongs to
    no open turn.
    """
    task = task_of(transcript)
    conversation = environment.open(task)
    played = replay(conversation, replies_of(transcript), check_prompts=True)
    failure = transcript["failure"]
    return build_transcript(
        experiment_name=entry(transcript, "experiment_name", str),
        environment=entry(transcript, "environment", str),
        task=task,
        outcome=None if failure is not None else conversation.outcome,
        record=conversation.record(),
        fingerprint=conversation.fingerprint(),
        turns=played.records,
        failure=str(failure) if failure is not None else None,
        timing={},
        measure=as_measured(transcript),
    )


def ended_row(run: Run, game: str) -> JsonObject:
    """The index row of the conversation with this id or number. Raises ConfigError when none has ended."""
    for row in run.rows():
        if game in (str(row["task_id"]), str(row["index"])):
            return row
    raise ConfigError(
        f"GAME: no ended conversation is called {game!r} or has this number (from 0); {run.counts.in_words}: "
        f"mac-run show {run.layout.directory} lists them"
    )


def sent_prompt(run: Run, transcript: JsonObject, turn_key: str) -> Prompt:
    """What the engine was sent for a turn of a transcript: rendered again, and equal to the recorded digest.

    Raises RunDirectoryError where this version renders something else, or does not come to that turn.
    """
    path = run.layout.transcript(task_of(transcript).task_id)
    environment = build_environment(recorded_experiment(run).experiment)
    replies = replies_of(transcript)
    digest = next(recorded.prompt_sha256 for recorded in replies if recorded.turn_key == turn_key)
    conversation = environment.open(task_of(transcript))
    try:
        turn = play_until(conversation, replies, turn_key)
        with boundary(ConversationError, "prompt"):
            prompt = conversation.prompt(turn)
    except ConversationError as fault:
        raise RunDirectoryError(
            f"{path}: this version cannot play the conversation up to turn {turn_key} ({fault}); the run is of another "
            "version, or the file was changed: use the version that played it, or check it with verify"
        ) from fault
    if prompt.sha256 != digest:
        raise RunDirectoryError(
            f"{path}: what this version would send for turn {turn_key} is not what was sent (their digests differ): "
            "the run is of another version; use the one that played it. --raw and --thoughts show what came back"
        )
    return prompt


def parent_conversation(run: Run, task_id: str) -> tuple[Run, JsonObject]:
    """The run that `task_id` was forked from, and its transcript there.

    Raises RunDirectoryError where that run, or that transcript, is not there any more or has changed.
    """
    fork = run.fork
    found = next((parent for parent in (() if fork is None else fork.parents) if parent["task"] == task_id), None)
    if found is None:
        raise RunDirectoryError(f"{run.layout.directory} has no forks of {task_id!r}")
    parent = read_run(Path(entry(found, "run", str)))
    return parent, parent.acknowledged({"task_id": task_id, "sha256": found["transcript_sha256"]})


def trust(directories: Iterable[Path]) -> None:
    """Import the code that runs and grids name.

    Raises RunDirectoryError where it is not here any more, or is not the code that the run was played with.
    """
    for directory in directories:
        grid = read_grid(directory) if is_grid(directory) else None
        if grid is None:
            _trust(directory)
            continue
        for combination in grid.entries:
            if has_run(directory / combination.slug):
                _trust(directory / combination.slug)


def refuse_unloaded(experiment: Experiment, directory: Path) -> None:
    """Raises UntrustedCodeError where code is not imported that the experiment needs to be played."""
    if names := [named.name for named in _named(experiment)]:
        raise UntrustedCodeError(
            f"{directory}: the run is played by the code {', '.join(names)}, which is imported only if you say so: add "
            "--trust if you trust that code"
        )


def _trust(directory: Path) -> None:
    experiment = recorded_only(read_run(directory))
    for named in _named(experiment):
        lacking = f"{directory}: the code that the run was played with is not here"
        if is_file(named.name) and not Path(named.code.path).exists():
            raise RunDirectoryError(f"{lacking}: put it back at {named.code.path}, or leave --trust out")
        try:
            now = named.load()
        except ConfigError as fault:
            raise RunDirectoryError(f"{lacking}: {fault}") from fault
        code = PluginCode(distribution=now.distribution, version=now.version, sha256=now.sha256)
        if differing := _difference(named.code, code):
            raise RunDirectoryError(
                f"{directory}: the code {named.name} at {now.path} is not what the run was played with: {differing}; "
                "put that code back, or leave --trust out"
            )
    for path, text in own_settings(experiment, Opener(Path(), {})):
        if path[0] == "settings":  # What is played again needs the files of its environment, and none of its engines.
            raise RunDirectoryError(
                f"{directory}: the file that the run was played with is not here: {dotted(path)}: {text}, or leave "
                "--trust out"
            )


class _Named(NamedTuple):
    """Code that a run names: as it was recorded, and how it is imported."""

    name: str
    code: PluginCode | MetricCode
    load: Callable[[], Code]


def _named(experiment: Experiment) -> Iterator[_Named]:
    """What is not imported yet, each code once."""
    environment = experiment.conversation_config.environment
    backends = {one.backend: one.known_spec for one in experiment.model_definitions.values()}
    shaped = {} if experiment.rewards is None else experiment.rewards.shaped
    for name, code in experiment.plugins.items():
        load: Callable[[str, Path], Code] = partial(_function, "policies")
        is_loaded = loaded_plugin("policies", name, code.sha256) is not None
        if name == environment:
            load, is_loaded = _environment, experiment.known_spec is not None
        elif name in backends:
            load, is_loaded = _backend, backends[name] is not None
        elif name in shaped.values():
            load, is_loaded = partial(_function, "rewards"), loaded_plugin("rewards", name, code.sha256) is not None
        if not is_loaded:
            yield _Named(name, code, partial(load, name, Path(code.path)))
    for name, metric in experiment.metric_plugins.items():
        if loaded_plugin("metrics", name, metric.sha256) is None:
            yield _Named(name, metric, partial(_function, "metrics", name, Path(metric.path)))


def _environment(name: str, path: Path) -> Code:
    return load_recorded_environment(name, path).code


def _backend(name: str, path: Path) -> Code:
    return load_recorded_backend(name, path).code


def _function(kind: PluginKind, name: str, path: Path) -> Code:
    return checked_function(kind, recorded_plugin(kind, name, path)).code


def _difference(recorded_code: PluginCode | MetricCode, found: PluginCode) -> str:
    return ", ".join(
        f"{key} {getattr(recorded_code, key)} there, {getattr(found, key)} now"
        for key in ("distribution", "version", "sha256")
        if getattr(recorded_code, key) != getattr(found, key)
    )
