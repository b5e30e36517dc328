"""The experiment of a run directory, as it was resolved when it ran; needs no experiment file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from mac_runner.config import Experiment, Loaded, recorded
from mac_runner.config.experiment import PLUGINS
from mac_runner.environments import build_environment
from mac_runner.environments.base import Environment
from mac_runner.environments.replay import play_until, replay
from mac_runner.errors import ConfigError, ConversationError, RunDirectoryError, UntrustedCodeError, boundary
from mac_runner.plan import Plan, plan_of
from mac_runner.registry import ENVIRONMENTS
from mac_runner.runs.setup import ExperimentSet, Setup
from mac_runner.store import Run, build_transcript, read_run, replies_of, task_of
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
    conversation, plugins = (resolved.get(key) for key in ("conversation_config", PLUGINS))
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
    counts = run.counts
    ended = f"{counts.done} of {counts.planned} conversations have ended"
    raise ConfigError(
        f"GAME: no ended conversation is called {game!r} or has this number (from 0); {ended}: "
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
