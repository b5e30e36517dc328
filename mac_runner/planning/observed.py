"""What is known of an engine's times: from the events of runs, or from a file of `mac-run calibrate`.

An event says when a reply came, how long its engine had it, and what tokens it had. That is a stay of the step model's
fit. Requests on one server are fitted together, and those of models that share a server have one step model.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache, cached_property
from pathlib import Path
from typing import Final

from mac_runner.bottleneck import usage_of
from mac_runner.errors import ConfigError
from mac_runner.latency import (
    CHARS_PER_TOKEN,
    CalibrationChoice,
    Calibrations,
    StepModel,
    read_calibrations,
)
from mac_runner.planning.fit import Stay, fit
from mac_runner.problems import MaterialError
from mac_runner.results import number
from mac_runner.runs.engines import Engine
from mac_runner.runs.recorded import recorded_only
from mac_runner.store import Run
from mac_runner.types import JsonObject

UNFIT: Final = 0.5
"""A step model with this median error or more is refused."""
DOUBTFUL: Final = 0.1
"""A step model with this median error or more is mentioned."""
WINDOW: Final = 1500
"""Of the requests of a run, as many at its beginning and at its end are fitted: few and many are in flight there."""
_ROUNDED_S: Final = 1e-5
"""More than the times of events are rounded by."""
_EVENTS: Final = ("EVENT_RUN_START", "EVENT_INFER_START", "EVENT_INFER_DONE")


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
    """Of prompts."""
    lanes: int = 1
    capacity: int | None = None
    """How many requests all lanes served at once."""
    reply_tokens: tuple[int, ...] = ()
    """Of the replies that were fitted."""


class RunCalibration:
    """What runs show of engines."""

    def __init__(self, runs: Sequence[Run], note: Callable[[str], None]) -> None:
        self._runs = runs
        self._note = note
        self.model = cache(self._fitted)
        """By model of the runs, what their events say: several engines of an experiment may be of one."""

    @property
    def client_ms(self) -> float | None:
        """CPU milliseconds of the thread that played, for each request; None where the runs do not say."""
        used = [usage for run in self._runs for session in run.state.sessions if (usage := usage_of(session.usage))]
        requests = sum(usage.requests for usage in used)
        return 1000 * sum(usage.cpu_s for usage in used) / requests if requests else None

    def measured(self, engine: Engine) -> Measured:
        """What the runs say of an engine. Raises ConfigError where none has its checkpoint, and for a bad fit."""
        found = self.model(self._same(engine))
        self._note(f"{engine.name}: measured by the run; the forecast holds for the GPUs that it was played on")
        if not found.is_prefix_cached:
            self._note(f"{engine.name}: the engine reported no cached tokens, so prompts are taken to be read whole")
        return found

    def _same(self, engine: Engine) -> str:
        """The model of the runs with the checkpoint of an engine."""
        checkpoint = engine.definition.serving.model or engine.name
        played: dict[str, None] = {}
        for run in self._runs:
            for name, definition in recorded_only(run).model_definitions.items():
                other = definition.serving.model or name
                played[other] = None
                if other == checkpoint and name in self._seen:
                    _check_parallel(engine, definition.serving.gpus, "the run")
                    return name
        raise ConfigError(
            f"model_definitions.{engine.name}: the calibration run has no replies of {checkpoint!r} with counted "
            f"tokens; it played: {', '.join(played)}. Name a run with this model, or measure it with mac-run calibrate"
        )

    def _fitted(self, name: str) -> Measured:
        """Raises ConfigError where the events are too few or fit badly."""
        seen = self._seen[name]
        stays = [stay for other in self._seen.values() if other.servers & seen.servers for stay in other.stays]
        what = f"model {name} of the run"
        steps, error = fit(what, stays)
        _judge(what, error, self._note)
        return Measured(
            steps=steps,
            in_flight=_most_at_once(stays),
            is_sweep=False,
            is_prefix_cached=seen.read_tokens < seen.prompt_tokens,
            chars_per_token=seen.prompt_chars / seen.prompt_tokens,
            lanes=len(seen.servers),
            capacity=self._capacity(name),
            reply_tokens=tuple(stay.completion_tokens for stay in seen.stays),
        )

    @cached_property
    def _seen(self) -> dict[str, _Seen]:
        """The requests of each model that ended some."""
        seen: dict[str, _Seen] = {}
        for index, run in enumerate(self._runs):
            for model, server, chars, stay in _stays(index, run):
                seen.setdefault(model, _Seen()).add(server, chars, stay)
        if not seen:
            names = ", ".join(str(run.layout.directory) for run in self._runs)
            raise ConfigError(
                f"{names}: no reply in the events has counted tokens, so nothing says how long an engine takes; name a "
                "run on an engine that counts tokens, or measure one with mac-run calibrate"
            )
        return seen

    def _capacity(self, name: str) -> int | None:
        """How many requests an engine served at once in the last session that says it."""
        found = None
        for run in self._runs:
            for session in run.state.sessions:
                models = session.usage.get("models")
                account = models.get(name) if isinstance(models, dict) else None
                if isinstance(account, dict):
                    found = _whole(account, "capacity")
        return found


@dataclass(slots=True)
class _Seen:
    """The requests of one model: those at the beginning, those at the end, and sums over all."""

    first: list[Stay] = field(default_factory=list)
    last: deque[Stay] = field(default_factory=lambda: deque(maxlen=WINDOW))
    servers: set[str] = field(default_factory=set)
    prompt_chars: int = 0
    prompt_tokens: int = 0
    read_tokens: int = 0

    @property
    def stays(self) -> list[Stay]:
        return [*self.first, *self.last]

    def add(self, server: str, chars: int, stay: Stay) -> None:
        (self.first if len(self.first) < WINDOW else self.last).append(stay)
        self.servers.add(server)
        self.prompt_chars += chars
        self.prompt_tokens += stay.prompt_tokens
        self.read_tokens += stay.read_tokens


def _stays(index: int, run: Run) -> Iterator[tuple[str, str, int, Stay]]:
    """For each reply with counted tokens its model, its server, the characters of its prompt, and its stay.

    In a merged run, and in one of several workers, their events are mixed, and wall time is the clock that they share.
    """
    is_mixed = any(session.run is not None or session.shard is not None for session in run.state.sessions)
    session, chars = 0, dict[object, int]()
    for event in run.events(*_EVENTS):
        turn = (event.get("task"), event.get("turn"))
        if event["event"] == "EVENT_RUN_START":
            session += not is_mixed
        elif event["event"] == "EVENT_INFER_START":
            chars[turn] = _whole(event, "prompt_chars")
        elif turn in chars:
            size, model = chars.pop(turn), str(event.get("model"))
            server = str(event.get("server") or model)
            stay = _stay(event, (index, session, server), is_mixed=is_mixed)
            if stay is not None:
                yield model, server, size, stay


def _stay(event: JsonObject, beside: Hashable, *, is_mixed: bool) -> Stay | None:
    """The stay that ended with an EVENT_INFER_DONE; None where nothing was counted."""
    prompt, completion = _whole(event, "tokens_in"), _whole(event, "tokens_out")
    took_s = (number(event.get("latency_ms")) or 0.0) / 1000
    if not (prompt and completion and took_s > 0):
        return None
    wall, answered_s = event.get("time"), number(event.get("elapsed_s")) or 0.0
    if is_mixed and isinstance(wall, str):
        answered_s = datetime.fromisoformat(wall).timestamp()
    return Stay(
        beside=beside,
        sent_s=answered_s - took_s,
        answered_s=answered_s,
        prompt_tokens=prompt,
        read_tokens=max(0, prompt - _whole(event, "tokens_cached")),
        completion_tokens=completion,
    )


def _most_at_once(stays: Sequence[Stay]) -> int:
    """The most requests that were in one engine at a time."""
    changes = sorted(
        change
        for stay in stays
        for change in ((stay.sent_s + _ROUNDED_S, 1, stay.beside), (stay.answered_s, -1, stay.beside))
    )
    now, most = Counter[object](), 0
    for _, by, place in changes:
        now[place] += by
        most = max(most, now[place])
    return most


def _whole(event: JsonObject, key: str) -> int:
    return int(number(event.get(key)) or 0)


def known_calibrations(path: Path, option: str) -> Calibrations:
    """The content of the calibration file that a command's `option` names; nothing where there is no file.

    Raises ConfigError for any other file.
    """
    if not path.exists() and not path.is_symlink():
        return Calibrations()
    try:
        return read_calibrations(path, ())
    except MaterialError as fault:
        raise ConfigError(f"{fault}, or name another file with {option}") from None


class FileCalibration:
    """What a file of `mac-run calibrate` says."""

    client_ms: float | None = None

    def __init__(self, path: Path, gpu: str | None, note: Callable[[str], None]) -> None:
        self._path = path
        self._known = known_calibrations(path, "--calibration").calibrations
        self._gpu = gpu
        self._note = note

    def measured(self, engine: Engine) -> Measured:
        """What the file says of an engine. Raises ConfigError where it has none, or several, of its checkpoint."""
        serving = engine.definition.serving
        checkpoint, parallel = serving.model or engine.name, serving.gpus
        sizes = {one.tensor_parallel_size for one in self._known if one.model == checkpoint}
        if sizes and parallel not in sizes:
            _check_parallel(engine, min(sizes), str(self._path))
        of_size = tuple(one for one in self._known if one.tensor_parallel_size == parallel)
        choice = CalibrationChoice(file=str(self._path), model=checkpoint, gpu=self._gpu)
        try:
            found = choice.chosen(Calibrations(calibrations=of_size))
        except ValueError as fault:
            advice = "choose one with --gpu, or measure it with mac-run calibrate"
            raise ConfigError(f"{self._path}: model {engine.name}: {fault}; {advice}") from None
        _judge(f"{self._path}, {found.model} on {found.gpu}", found.error, self._note)
        self._note(
            f"{engine.name}: measured as {found.engine} on {found.gpu}, tensor parallel size {parallel}; the forecast "
            "holds for no other GPU and no other size"
        )
        return Measured(
            steps=found.steps, in_flight=max(found.in_flight), is_sweep=True, cache_tokens=found.cache_tokens
        )


def _check_parallel(engine: Engine, size: int, source: str) -> None:
    asked = engine.definition.serving.gpus
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
