"""Files that an experiment names, such as questions and templates, read when it is loaded.

A run must mean the same after these files have moved or changed. So the content counts: digests and texts become part
of the config, and with it of the run's identity.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, TypeVar

from pydantic import ValidationError

from mac_runner.config.experiment import Experiment, ModelDefinition
from mac_runner.errors import ConfigError
from mac_runner.files import read_material
from mac_runner.latency import LATENCY_MS_MAX, CalibrationChoice, Calibrations
from mac_runner.problems import Problem, dotted
from mac_runner.section import TEMPLATE_CHARS_MAX, KeyPath


class MaterialError(Exception):
    """A file that an experiment names cannot be used; `problems` have the keys that name it."""

    def __init__(self, path: KeyPath, text: str, *more: Problem) -> None:
        super().__init__(text)
        self.problems = (Problem(path, text), *more)


def read_named(path: Path, key: KeyPath) -> bytes:
    """The bytes of the file that `key` names. Raises MaterialError."""
    try:
        return read_material(path)
    except ConfigError as fault:
        raise MaterialError(key, str(fault)) from fault


def read_template(path: Path, key: KeyPath, given: str | None) -> str:
    """The text of a prompt template, which `given` beside the file must equal. Raises MaterialError."""
    try:
        text = read_named(path, key).decode("utf-8")
    except UnicodeDecodeError:
        raise MaterialError(key, f"{path} is not UTF-8; save it as UTF-8") from None
    if not 1 <= len(text) <= TEMPLATE_CHARS_MAX:
        raise MaterialError(key, f"{path} has {len(text)} characters, not 1 to {TEMPLATE_CHARS_MAX}")
    if given not in (None, text):
        raise MaterialError(key, "the key template has another text; leave it out, it is filled in from the file")
    return text


class Calibrated(Protocol):
    """A section `latency`."""

    quantum: int
    calibration: CalibrationChoice | None

    @property
    def model_fields_set(self) -> set[str]:
        """The keys that the file sets."""
        ...

    def model_copy(self: L, *, update: dict[str, object]) -> L:
        """The same with other values."""
        ...


L = TypeVar("L", bound=Calibrated)


def with_calibration(latency: L, base: Path, key: KeyPath) -> L:
    """The section `latency` at `key` with the times of the calibration that it names, and no longer the name.

    Raises MaterialError when the file cannot be used, when not exactly one calibration fits, and for times beside it.
    """
    choice = latency.calibration
    if choice is None:
        return latency
    key = (*key, "calibration")
    for name in ("prefill_ms", "kernel_ms"):
        if name in latency.model_fields_set:
            raise MaterialError((*key[:-1], name), "the calibration sets it; leave one of the two out")
    known = read_calibrations(base / choice.file, (*key, "file"))
    try:
        steps = choice.chosen(known).steps
    except ValueError as fault:
        raise MaterialError(key, str(fault)) from None
    times = {
        "prefill_ms": steps.prefill_ms(choice.prompt_tokens),
        "kernel_ms": steps.kernel_ms(latency.quantum, choice.in_flight, choice.context_tokens),
    }
    for name, time_ms in times.items():
        if time_ms > LATENCY_MS_MAX:
            raise MaterialError(key, f"it gives {name} {time_ms}, above {LATENCY_MS_MAX}; lower the load that it names")
    return latency.model_copy(update={**times, "calibration": None})


def read_calibrations(path: Path, key: KeyPath) -> Calibrations:
    """The content of the calibration file that `key` names. Raises MaterialError."""
    try:
        return Calibrations.model_validate_json(read_named(path, key))
    except ValidationError as failure:
        first = failure.errors(include_url=False, include_input=False)[0]
        where = f" at {dotted(first['loc'])}" if first["loc"] else ""
        text = f"{path} is no calibration file{where}: {first['msg']}; write one with `mac-run calibrate`"
        raise MaterialError(key, text) from None


def with_materials(experiment: Experiment, base: Path, cache: dict[str, object]) -> Experiment:
    """`experiment` with everything its environment reads from files, relative to `base`.

    Raises MaterialError when a file cannot be used, and ConfigError with the lines of a file that are wrong.
    """
    spec, settings = experiment.known_spec, experiment.environment_settings
    if spec is not None and settings is not None:
        read = spec.materials(settings, base, cache, experiment.seed)
        experiment = experiment if read is settings else experiment.with_settings(read)
    experiment = _calibrated(experiment, base)
    return _counted(experiment)


def _calibrated(experiment: Experiment, base: Path) -> Experiment:
    """`experiment` with the latencies of its models as numbers. Raises MaterialError."""
    changed: dict[str, ModelDefinition] = {}
    for name, model in experiment.model_definitions.items():
        if model.latency is not None and model.latency.calibration is not None:
            latency = with_calibration(model.latency, base, ("model_definitions", name, "latency"))
            changed[name] = model.model_copy(update={"latency": latency})
    if not changed:
        return experiment
    return experiment.model_copy(update={"model_definitions": {**experiment.model_definitions, **changed}})


def _counted(experiment: Experiment) -> Experiment:
    """`experiment` with `conversations: all` as a number. Raises MaterialError where nothing says how many they are."""
    conversation = experiment.conversation_config
    if conversation.conversations != "all":
        return experiment
    spec, settings = experiment.known_spec, experiment.environment_settings
    whole = None if spec is None or settings is None else spec.whole(settings)
    if whole is None:
        text = f"found 'all'; the environment {conversation.environment!r} has no questions to count; write a number"
        raise MaterialError(("conversation_config", "conversations"), text)
    found = whole * conversation.samples_per_task
    return experiment.model_copy(
        update={"conversation_config": conversation.model_copy(update={"conversations": found})}
    )
