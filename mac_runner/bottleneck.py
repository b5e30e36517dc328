"""What limits a run, and how long the rest of it takes: for the live view and for `mac-run status`.

    limit: model b (8/8 busy, 12 waiting)
    limit: this process's CPU (0.74 ms a request)
    limit: too few conversations open (each waits for its own turn)
    limit: disk

It follows from what the run used over a stretch of time (`Usage`), all of it sums that a journal can hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from mac_runner.types import JsonObject, JsonValue

CPU_SHARE_MIN: Final = 0.85
"""From this part of one core on, the process that plays the run is what limits it."""
DISK_SHARE_MIN: Final = 0.25
"""From this part of the slots on that hold a request until the disk takes more, the disk limits the run."""
BUSY_SHARE_MIN: Final = 0.9
"""From this part of its slots on, a model is fully used."""
WAITING_MIN: Final = 0.5
"""From this many turns on, on average, turns wait for a model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelUsage:
    """What one model had: slot-seconds in use and available, and turn-seconds of turns that waited for a slot."""

    busy_slot_s: float = 0.0
    available_slot_s: float = 0.0
    waiting_turn_s: float = 0.0

    @property
    def busy_share(self) -> float:
        """The part of the slots in use."""
        return self.busy_slot_s / self.available_slot_s if self.available_slot_s > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a run used over a stretch of time.

    `cpu_s` are the CPU seconds of the thread that plays. `disk_turn_s` are turn-seconds of requests that waited until
    the disk had taken more of what was written before.
    """

    played_s: float
    cpu_s: float = 0.0
    disk_turn_s: float = 0.0
    requests: int = 0
    models: Mapping[str, ModelUsage] = field(default_factory=dict)

    def since(self, before: Usage) -> Usage:
        """What was used after `before`."""
        return Usage(
            played_s=self.played_s - before.played_s,
            cpu_s=self.cpu_s - before.cpu_s,
            disk_turn_s=self.disk_turn_s - before.disk_turn_s,
            requests=self.requests - before.requests,
            models={name: _difference(model, before.models.get(name)) for name, model in self.models.items()},
        )

    @property
    def available_slot_s(self) -> float:
        """The slots of all models."""
        return sum(model.available_slot_s for model in self.models.values())


def _difference(after: ModelUsage, before: ModelUsage | None) -> ModelUsage:
    if before is None:
        return after
    return ModelUsage(
        busy_slot_s=after.busy_slot_s - before.busy_slot_s,
        available_slot_s=after.available_slot_s - before.available_slot_s,
        waiting_turn_s=after.waiting_turn_s - before.waiting_turn_s,
    )


def bottleneck(used: Usage, *, is_all_open: bool, concurrency: int | None = None) -> str | None:
    """What limited the run while it used that; None where nothing can be said.

    `is_all_open` says that no conversation is left to be opened. `concurrency` is the bound on all requests together.
    """
    if used.played_s <= 0 or used.available_slot_s <= 0 or not used.requests:
        return None
    if used.disk_turn_s / used.available_slot_s >= DISK_SHARE_MIN:
        return "disk"
    if used.cpu_s / used.played_s >= CPU_SHARE_MIN:
        return f"this process's CPU ({1000 * used.cpu_s / used.requests:.2f} ms a request)"
    if (full := _full(used, concurrency)) is not None:
        return full
    if is_all_open:
        return "the last conversations (each waits for its own turn)"
    return "too few conversations open (each waits for its own turn)"


def time_left_s(left: int, *, ended: int, turns_ended: int, turns: int, turns_per_s: float | None) -> float | None:
    """How long `left` more conversations will take; None while nothing can be said.

    Of the `turns` that were answered, `turns_ended` are of the `ended` conversations, and what is left is taken to be
    as long as these. It is counted in turns: a hundred that run side by side all end near the end, so a rate of
    conversations would say nothing for most of the run, while half-played ones count half here.
    """
    if left <= 0:
        return 0.0
    if ended <= 0 or not turns_per_s:
        return None
    turns_left = left * turns_ended / ended - max(0, turns - turns_ended)
    # Those still open may be the long ones: each has at least one turn to go.
    return max(turns_left, left) / turns_per_s


def _full(used: Usage, concurrency: int | None) -> str | None:
    """The bound on requests that turns wait for."""
    waiting = {name: model.waiting_turn_s / used.played_s for name, model in used.models.items()}
    name = max(waiting, key=lambda one: waiting[one])
    model = used.models[name]
    busy, slots = model.busy_slot_s / used.played_s, model.available_slot_s / used.played_s
    all_busy = sum(model.busy_slot_s for model in used.models.values()) / used.played_s
    if waiting[name] < WAITING_MIN and model.busy_share < BUSY_SHARE_MIN:
        return None
    if concurrency is not None and all_busy >= BUSY_SHARE_MIN * concurrency and concurrency <= slots:
        return f"--concurrency {concurrency} ({sum(waiting.values()):.0f} waiting)"
    what = "model" if model.busy_share >= BUSY_SHARE_MIN else "what fits at once into model"
    return f"{what} {name} ({busy:.0f}/{slots:.0f} busy, {waiting[name]:.0f} waiting)"


def usage_of(account: JsonObject) -> Usage | None:
    """What a session used, from its accounts in the journal; None where it has not noted any."""
    models = account.get("models")
    if "cpu_s" not in account or not isinstance(models, dict):
        return None
    accounts = {name: model for name, model in models.items() if isinstance(model, dict)}
    return Usage(
        played_s=_number(account.get("played_s")),
        cpu_s=_number(account.get("cpu_s")),
        disk_turn_s=_number(account.get("disk_turn_s")),
        requests=round(sum(_number(model.get("requests")) for model in accounts.values())),
        models={
            name: ModelUsage(
                busy_slot_s=_number(model.get("busy_slot_s")),
                available_slot_s=_number(model.get("available_slot_s")),
                waiting_turn_s=_number(model.get("waiting_turn_s")),
            )
            for name, model in accounts.items()
        },
    )


def _number(value: JsonValue) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
