"""What a calibration says of an engine: one of a file, or the events of runs. Refuses one that does not fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from mac_runner.backends.base import lookahead_for
from mac_runner.config import ModelDefinition
from mac_runner.errors import ConfigError
from mac_runner.latency import CHARS_PER_TOKEN, Calibration, CalibrationChoice, Calibrations, StepModel
from mac_runner.runs.calibration import checkpoint_of, tensor_parallel_of
from mac_runner.runs.engines import Engine
from mac_runner.runs.observations import Observations, Observed, observed
from mac_runner.runs.recorded import recorded_only
from mac_runner.simulation.engine import EngineModel
from mac_runner.store import Run

SLOTS_UNKNOWN: Final = 16
STEP_TOKENS: Final = 8192
"""How many tokens a step computes at most, where the experiment does not say it."""
UNFIT: Final = 0.5
"""A calibration with this median error or more is refused."""
DOUBTFUL: Final = 0.1
"""A calibration with this median error or more is mentioned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What is known of one engine."""

    steps: StepModel
    in_flight: int
    """The most requests that one server had at once."""
    is_sweep: bool
    """Whether it was measured with several numbers of requests in flight, each for a while."""
    cache_tokens: int | None = None
    is_prefix_cached: bool = True
    chars_per_token: float = CHARS_PER_TOKEN
    lanes: int = 1
    capacity: int | None = None
    """How many requests all lanes served at once."""
    reply_tokens: tuple[int, ...] = ()


class RunCalibration:
    """What runs show of engines."""

    def __init__(self, runs: Sequence[Run], note: Callable[[str], None]) -> None:
        self._runs = runs
        self._note = note

    @cached_property
    def observations(self) -> Observations:
        """What the events of all runs say."""
        return observed(self._runs)

    @property
    def client_ms(self) -> float | None:
        """CPU milliseconds of mac_runner for each request."""
        return self.observations.client_ms

    def measured(self, engine: Engine) -> Measured:
        """What the runs say of an engine. Raises ConfigError where none has its checkpoint."""
        model, found = self._same(engine)
        _judge(f"model {model} of the run", found.error, self._note)
        self._note(f"{engine.name}: measured by the run; the forecast holds for the GPUs that it was played on")
        if not found.is_prefix_cached:
            self._note(f"{engine.name}: the engine reported no cached tokens, so prompts are taken to be read whole")
        return Measured(
            steps=found.steps,
            in_flight=found.in_flight,
            is_sweep=False,
            is_prefix_cached=found.is_prefix_cached,
            chars_per_token=found.chars_per_token,
            lanes=found.servers,
            capacity=found.capacity,
            reply_tokens=found.reply_tokens,
        )

    def _same(self, engine: Engine) -> tuple[str, Observed]:
        """The model of the runs with the checkpoint of an engine, and what is known of it."""
        checkpoint = checkpoint_of(engine.name, engine.definition)
        others: dict[str, None] = {}
        for run in self._runs:
            for name, definition in recorded_only(run).model_definitions.items():
                others[checkpoint_of(name, definition)] = None
                if checkpoint_of(name, definition) == checkpoint and name in self.observations.models:
                    _check_parallel(engine, tensor_parallel_of(definition), "the run")
                    return name, self.observations.models[name]
        raise ConfigError(
            f"model_definitions.{engine.name}: the calibration run has no replies of {checkpoint!r} with counted "
            f"tokens; it played: {', '.join(others)}. Name a run with this model, or measure it with mac-run calibrate"
        )


class FileCalibration:
    """What a file of `mac-run calibrate` says."""

    client_ms: float | None = None

    def __init__(self, path: Path, known: Calibrations, gpu: str | None, note: Callable[[str], None]) -> None:
        self._path = path
        self._known = known
        self._gpu = gpu
        self._note = note

    def measured(self, engine: Engine) -> Measured:
        """What the file says of an engine. Raises ConfigError where it has none, or several, of its checkpoint."""
        found = self._chosen(engine)
        _judge(f"{self._path}, {found.model} on {found.gpu}", found.error, self._note)
        parallel = found.tensor_parallel_size
        self._note(
            f"{engine.name}: measured as {found.engine} on {found.gpu}, tensor parallel size {parallel}; the forecast "
            "holds for no other GPU and no other size"
        )
        return Measured(
            steps=found.steps, in_flight=max(found.in_flight), is_sweep=True, cache_tokens=found.cache_tokens
        )

    def _chosen(self, engine: Engine) -> Calibration:
        checkpoint, parallel = checkpoint_of(engine.name, engine.definition), tensor_parallel_of(engine.definition)
        of_size = [one for one in self._known.calibrations if one.tensor_parallel_size == parallel]
        choice = CalibrationChoice(file=str(self._path), model=checkpoint, gpu=self._gpu)
        try:
            return choice.chosen(Calibrations(calibrations=tuple(of_size)))
        except ValueError as fault:
            sizes = {one.tensor_parallel_size for one in self._known.calibrations if one.model == checkpoint}
            if sizes and parallel not in sizes:
                _check_parallel(engine, min(sizes), str(self._path))
            advice = "choose one with --gpu, or measure it with mac-run calibrate"
            raise ConfigError(f"{self._path}: model {engine.name}: {fault}; {advice}") from None


def _check_parallel(engine: Engine, size: int, source: str) -> None:
    asked = tensor_parallel_of(engine.definition)
    if asked != size:
        raise ConfigError(
            f"model_definitions.{engine.name}: the experiment has tensor_parallel_size {asked}, and {source} was "
            f"measured with {size}; nothing is extrapolated from one size to another: measure it with mac-run calibrate"
        )


def _judge(what: str, error: float, note: Callable[[str], None]) -> None:
    """Refuse a fit that says nothing, and mention one that says little."""
    if error >= UNFIT:
        raise ConfigError(
            f"{what}: the step model is off by {error:.0%} or more for half of the replies, so it predicts nothing; "
            "measure the engine with mac-run calibrate, with nothing else on it"
        )
    if error >= DOUBTFUL:
        note(f"{what}: the step model is off by {error:.0%} or more for half of the replies; so may the forecast be")


def engine_model(
    engine: Engine,
    measured: Measured,
    *,
    lanes: int | None,
    slots: int | None,
    kv_tokens: int | None,
    note: Callable[[str], None],
) -> EngineModel:
    """An engine with so many lanes and slots in each; None: as the experiment has it."""
    definition, settings = engine.definition, engine.definition.backend_settings
    own_lanes = _lanes_of(definition, measured)
    slots = slots or _slots_of(definition, measured, own_lanes)
    if slots is None:
        slots = SLOTS_UNKNOWN
        note(f"{engine.name}: nothing says how many requests a lane serves at once; {slots} are assumed")
    _note_load(engine.name, measured, slots, note)
    kv_tokens = kv_tokens or measured.cache_tokens
    if kv_tokens is None:
        note(f"{engine.name}: the size of the KV cache is not known, so it limits nothing here; --kv-tokens says it")
    in_process = definition.backend in ("vllm", "nano")
    return EngineModel(
        steps=measured.steps,
        lanes=lanes or own_lanes,
        slots=slots,
        step_tokens=getattr(settings, "max_num_batched_tokens", None) or STEP_TOKENS,
        kv_tokens=kv_tokens,
        context_tokens=getattr(settings, "max_model_len", None),
        admits_by_tokens=in_process and kv_tokens is not None,
        lookahead=lookahead_for(slots) if in_process else None,
        is_prefix_cached=measured.is_prefix_cached,
        chars_per_token=measured.chars_per_token,
    )


def _note_load(engine: str, measured: Measured, slots: int, note: Callable[[str], None]) -> None:
    """Say where the step model is used at a load that it was not measured at."""
    if slots > measured.in_flight:
        note(
            f"{engine}: {slots} slots, and at most {measured.in_flight} requests were in flight when the engine was "
            "measured; beyond that the step model is extrapolated"
        )
    elif not measured.is_sweep and slots * 2 <= measured.in_flight:
        note(
            f"{engine}: {slots} slots, and the run had up to {measured.in_flight} requests in flight; one load does "
            "not show well how an engine works at another: mac-run calibrate measures several"
        )


def _lanes_of(definition: ModelDefinition, measured: Measured) -> int:
    """How many servers a model has, as the experiment says it; else as many as were measured."""
    settings = definition.backend_settings
    lanes = getattr(settings, "lanes", None)
    urls, copies = getattr(settings, "base_urls", ()), getattr(settings, "data_parallel_size", None)
    return len(urls) or (lanes if isinstance(lanes, int) else None) or copies or measured.lanes


def _slots_of(definition: ModelDefinition, measured: Measured, lanes: int) -> int | None:
    """How many requests each server serves at once, as the experiment says it; None where nothing says it."""
    settings = definition.backend_settings
    of_lane = getattr(settings, "max_num_seqs", None)
    if isinstance(of_lane, int):
        return of_lane
    whole = next(
        (value for key in ("max_in_flight", "max_num_seqs_upper_bound") if (value := getattr(settings, key, None))),
        measured.capacity,
    )
    return None if whole is None else max(1, whole // lanes)
