"""What run directories show of the engines that they were played on: the step model of each, and its tokens.

An event says when a reply came, how long its engine had it, and what tokens it had. That is a stay of the step model's
fit. Requests on one server are fitted together, and those of models that share a server have one step model.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, NamedTuple

from mac_runner.bottleneck import usage_of
from mac_runner.calibration import SAMPLES_MIN, Stay, fit
from mac_runner.errors import ConfigError
from mac_runner.latency import StepModel
from mac_runner.store import Run
from mac_runner.types import JsonObject

WINDOW: Final = 1500
"""Of the requests of a run, as many at its beginning and at its end are fitted: few and many are in flight there."""
_ROUNDED_S: Final = 1e-5
"""More than the times of events are rounded by."""
_EVENTS: Final = ("EVENT_RUN_START", "EVENT_INFER_START", "EVENT_INFER_DONE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What runs show of one model."""

    steps: StepModel
    error: float
    """The median relative error of the fit."""
    requests: int
    """How many replies it was fitted to."""
    in_flight: int
    """The most requests that one server had at once."""
    servers: int
    capacity: int | None
    """How many requests all servers served at once."""
    chars_per_token: float
    """Of prompts."""
    is_prefix_cached: bool
    """Whether the engine reported tokens of prompts that were in its cache."""
    reply_tokens: tuple[int, ...]
    """Of the replies that were fitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """What runs show of their models, and of the process that played them."""

    models: dict[str, Observed]
    client_ms: float | None
    """CPU milliseconds of mac_runner for each request; None where the runs do not say."""


class _Place(NamedTuple):
    """Requests with the same one were in one engine, and their times are of one clock."""

    run: int
    session: int
    server: str


@dataclass(slots=True)
class _Seen:
    """The requests of one model: those at the beginning, those at the end, and sums over all."""

    first: list[Stay] = field(default_factory=list)
    last: deque[Stay] = field(default_factory=lambda: deque(maxlen=WINDOW))
    servers: set[str] = field(default_factory=set)
    requests: int = 0
    prompt_chars: int = 0
    prompt_tokens: int = 0
    read_tokens: int = 0

    @property
    def stays(self) -> list[Stay]:
        return [*self.first, *self.last]


def observed(runs: Sequence[Run]) -> Observations:
    """The step model of each model that ended requests in the runs. Raises ConfigError where one cannot be fitted."""
    seen: dict[str, _Seen] = {}
    for number, contents in enumerate(runs):
        for model, server, chars, stay in _stays(number, contents):
            found = seen.setdefault(model, _Seen())
            is_first = len(found.first) < WINDOW
            (found.first if is_first else found.last).append(stay)
            found.servers.add(server)
            found.requests += 1
            found.prompt_chars += chars
            found.prompt_tokens += stay.prompt_tokens
            found.read_tokens += stay.read_tokens
    if not seen:
        names = ", ".join(str(contents.layout.directory) for contents in runs)
        raise ConfigError(
            f"{names}: no reply in the events has counted tokens, so nothing says how long an engine takes; name a "
            "run on an engine that counts tokens, or measure one with mac-run calibrate"
        )
    capacities = _capacities(runs)
    models = {model: _observed(model, seen, capacities.get(model)) for model in sorted(seen)}
    return Observations(models=models, client_ms=_client_ms(runs))


def _observed(model: str, seen: dict[str, _Seen], capacity: int | None) -> Observed:
    own = seen[model]
    beside = [other for other in seen.values() if other.servers & own.servers]
    stays = [stay for other in beside for stay in other.stays]
    if len(stays) < SAMPLES_MIN:
        raise ConfigError(
            f"model {model}: the run has {len(stays)} replies with counted tokens, and {SAMPLES_MIN} are the fewest "
            "that show how an engine works; name a longer run, or measure the engine with mac-run calibrate"
        )
    steps, error = fit(stays)
    return Observed(
        steps=steps,
        error=error,
        requests=len(stays),
        in_flight=_most_at_once(stays),
        servers=len(own.servers),
        capacity=capacity,
        chars_per_token=own.prompt_chars / own.prompt_tokens,
        is_prefix_cached=own.read_tokens < own.prompt_tokens,
        reply_tokens=tuple(stay.completion_tokens for stay in own.stays),
    )


def _stays(run: int, contents: Run) -> Iterator[tuple[str, str, int, Stay]]:
    """For each reply with counted tokens its model, its server, the characters of its prompt, and its stay.

    In a merged run, and in one of several workers, their events are mixed, and wall time is the clock that they share.
    """
    sessions = contents.state.sessions
    is_mixed = any(session.run is not None or session.shard is not None for session in sessions)
    session, chars = 0, dict[object, int]()
    for event in contents.events(*_EVENTS):
        turn = (event.get("task"), event.get("turn"))
        if event["event"] == "EVENT_RUN_START":
            session += not is_mixed
        elif event["event"] == "EVENT_INFER_START":
            chars[turn] = _whole(event, "prompt_chars")
        elif turn in chars:
            size, model = chars.pop(turn), str(event.get("model"))
            server = str(event.get("server") or model)
            stay = _stay(event, _Place(run, session, server), is_mixed=is_mixed)
            if stay is not None:
                yield model, server, size, stay


def _stay(event: JsonObject, place: _Place, *, is_mixed: bool) -> Stay | None:
    """The stay that ended with an EVENT_INFER_DONE; None where nothing was counted."""
    prompt, completion = _whole(event, "tokens_in"), _whole(event, "tokens_out")
    took_s = _number(event, "latency_ms") / 1000
    if not (prompt and completion and took_s > 0):
        return None
    wall = event.get("time")
    is_wall = is_mixed and isinstance(wall, str)
    answered_s = datetime.fromisoformat(str(wall)).timestamp() if is_wall else _number(event, "elapsed_s")
    return Stay(
        beside=place,
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


def _capacities(runs: Sequence[Run]) -> dict[str, int]:
    """How many requests each engine served at once in the last session that says it."""
    found: dict[str, int] = {}
    for contents in runs:
        for session in contents.state.sessions:
            models = session.usage.get("models")
            accounts = models.items() if isinstance(models, dict) else ()
            found |= {name: _whole(account, "capacity") for name, account in accounts if isinstance(account, dict)}
    return found


def _client_ms(runs: Sequence[Run]) -> float | None:
    """CPU milliseconds of the thread that played, for each request."""
    used = [usage for contents in runs for session in contents.state.sessions if (usage := usage_of(session.usage))]
    requests = sum(usage.requests for usage in used)
    return 1000 * sum(usage.cpu_s for usage in used) / requests if requests else None


def _number(event: JsonObject, key: str) -> float:
    value = event.get(key)
    return float(value) if isinstance(value, int | float) else 0.0


def _whole(event: JsonObject, key: str) -> int:
    return int(_number(event, key))
