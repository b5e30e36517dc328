"""`fleet.json`: what `mac-run fleet up` leaves for those who use its fleet. Who can read it can control the fleet."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from mac_runner.backends.fleet.settings import FleetModelConfig
from mac_runner.errors import ConfigError
from mac_runner.files import read_regular
from mac_runner.printable import printable
from mac_runner.structs import convert

FORMAT: Final = "mac_runner.fleet/1"
_CONTROL: Final = re.compile(r"http://127\.0\.0\.1:[0-9]{1,5}")
"""The token is sent to this machine alone."""
_BYTES_MAX: Final = 16_000_000
_COMPARED: Final = ("model", "engine", "dialect", "engine_args", "chat_template_sha256")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldModel:
    """One entry of `model_definitions` as the fleet serves it."""

    model: str
    engine: str
    dialect: str
    """What its engines understand: `openai` or `vllm`."""
    engine_args: dict[str, Any]
    chat_template_sha256: str
    base_urls: tuple[str, ...]
    """The servers of its lanes, for `openai_config.base_urls`."""
    takes_turns: bool
    """Whether its lanes sleep now and then, so that only runs with `--fleet` can use it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldLane:
    """One lane."""

    name: str
    model: str
    place: str
    url: str
    slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldFleet:
    """The contents of the file."""

    format: str = FORMAT
    pid: int
    host: str
    """The name of the machine, for people."""
    started_at: str
    command: str
    control: str
    """The address of the control server."""
    token: str = field(repr=False)
    models: dict[str, HeldModel]
    lanes: tuple[HeldLane, ...]

    def encoded(self) -> bytes:
        """The file's bytes."""
        return json.dumps(asdict(self), indent=2).encode("ascii") + b"\n"

    def serving(self, name: str, wanted: FleetModelConfig) -> str:
        """The model of the fleet that serves `wanted`, an entry of `model_definitions` of this name.

        That of the same name comes first, then any other that agrees. Raises ConfigError saying what differs.
        """
        names = [name, *self.models] if name in self.models else [*self.models]
        for each in names:
            if not _differences(self.models[each], wanted):
                return each
        where = f"the fleet of pid {self.pid}"
        if name not in self.models:
            raise ConfigError.at(
                ("model_definitions", name),
                f"{where} does not serve {wanted.model!r} on {wanted.engine!r}; it serves {_in_words(self.models)}. "
                "Start a fleet from this experiment with mac-run fleet up, or leave --fleet out",
            )
        raise ConfigError.at(
            ("model_definitions", name, "fleet_config"),
            f"{where} has {'; '.join(_differences(self.models[name], wanted))}. Write the same here, or start a fleet "
            "from this experiment with mac-run fleet up",
        )


def held_model(config: FleetModelConfig, base_urls: tuple[str, ...], *, takes_turns: bool = False) -> HeldModel:
    """A model for the file."""
    return HeldModel(
        model=config.model,
        engine=config.engine,
        dialect=config.dialect,
        engine_args=dict(config.engine_args),
        chat_template_sha256=config.chat_template_sha256,
        base_urls=base_urls,
        takes_turns=takes_turns,
    )


def read_held(path: Path) -> HeldFleet:
    """The fleet that a file describes. Raises ConfigError for a file that is not there, not ours or not readable."""
    try:
        data = read_regular(path, _BYTES_MAX)
    except FileNotFoundError:
        raise ConfigError(
            f"there is no fleet: {path} is not there; start one with mac-run fleet up EXPERIMENT, or name its file"
        ) from None
    except PermissionError as fault:
        raise ConfigError(
            f"{path} cannot be read: it belongs to another user, whose fleet this is; start one of your own with "
            "mac-run fleet up EXPERIMENT --out FILE"
        ) from fault
    except OSError as fault:
        raise ConfigError(f"{path} cannot be read: {fault.strerror or fault}; name the file of a fleet") from fault
    try:
        raw = json.loads(data)
        if not isinstance(raw, dict) or raw.get("format") != FORMAT:
            found = raw.get("format") if isinstance(raw, dict) else None
            raise ConfigError(
                f"{path} does not describe a fleet: its format is {printable(repr(found))[:60]} and not {FORMAT!r}; "
                "name the file that mac-run fleet up of this version wrote"
            )
        held = convert(raw, HeldFleet)
        if _CONTROL.fullmatch(held.control) is None:
            raise ValueError(f"{held.control!r} is not the address of a control server on this machine")
        return held
    except (ValueError, RecursionError) as fault:
        words = printable(str(fault))[:200]
        raise ConfigError(
            f"{path} does not describe a fleet: {words}; name the file that mac-run fleet up wrote"
        ) from fault


def _differences(held: HeldModel, wanted: FleetModelConfig) -> list[str]:
    pairs = ((key, getattr(held, key), getattr(wanted, key)) for key in _COMPARED)
    return [
        f"{key} {_json(there)} where this experiment has {_json(here)}" for key, there, here in pairs if there != here
    ]


def _json(value: object) -> str:
    return printable(json.dumps(value if isinstance(value, str) else dict(value)))  # type: ignore[call-overload]


def _in_words(models: Mapping[str, HeldModel]) -> str:
    return ", ".join(f"{name} ({model.model} on {model.engine})" for name, model in models.items())
