"""An environment whose conversations are generators: its spec, and a player that answers at random."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final

from mac_runner.environments.base import Policy, ignored_settings
from mac_runner.environments.generators.conversation import AskView, GeneratorConversation
from mac_runner.environments.generators.table import Script
from mac_runner.errors import ConfigError
from mac_runner.problems import Problem
from mac_runner.registry import EnvironmentSpec
from mac_runner.results import ResultsSpec
from mac_runner.section import Section
from mac_runner.types import JsonValue, Lineup, Task

if TYPE_CHECKING:
    from mac_runner.config import Experiment

_TRANSCRIPT_BYTES_MIN: Final = 1_000
"""A question and its answer, and what a transcript has besides."""

_INSTEAD: Final = "leave it out, or give the environment a setting of its own"
_IGNORED: Final = {
    "persona": _INSTEAD,
    "demographics": _INSTEAD,
    "if_as_human": _INSTEAD,
    "role_specific_config.speak_after_within_round": _INSTEAD,
    "role_specific_config.visible_to": _INSTEAD,
}
Player = Callable[[AskView, Random], str]
"""A scripted player: from what it was asked and has heard to a reply."""


class GeneratorEnvironment:
    """Every agent definition takes part once, in the order of the file."""

    lineup: Lineup | None = None
    transcript_bytes_min = _TRANSCRIPT_BYTES_MIN

    def __init__(
        self,
        experiment: Experiment,
        *,
        section: str,
        script: Script,
        settings: type[Section],
        players: Mapping[str, Player],
    ) -> None:
        self._kind = section
        self._script = script
        self._settings = experiment.settings_as(settings)
        self._retry = experiment.retry_config
        self._players = {"random": random_player, **players}

    def open(self, task: Task) -> GeneratorConversation:
        """A conversation at its first question."""
        retry = self._retry
        return GeneratorConversation(
            self._script,
            task,
            self._settings,
            kind=self._kind,
            corrections_max=retry.max_retries,
            when_exhausted=retry.when_exhausted,
        )

    def policy(self, name: str) -> Policy:
        """A scripted player: `random`, or one of the author's."""
        player = self._players.get(name)
        if player is None:
            known = ", ".join(sorted(self._players))
            raise ConfigError(f"environment {self._kind} has no policy {name!r}; it has {known}")
        return partial(_played, player)


def _played(player: Player, view: object, random: Random) -> str:
    assert isinstance(view, AskView)
    return player(view, random)


def random_player(view: AskView, random: Random) -> str:
    """Takes any of the choices, fills in any value of a schema, and has little to say."""
    if view.ask.schema is not None:
        return json.dumps(_any(view.ask.schema, random))
    if view.ask.choices:
        return random.choice(list(view.ask.choices))
    return f"I have nothing to add, {random.randint(1, 999)}."


def _any(schema: Mapping[str, JsonValue], random: Random) -> JsonValue:
    """A value that a plain schema allows."""
    match schema:
        case {"enum": [*values]}:
            return random.choice(values)
        case {"type": "object"}:
            properties = schema.get("properties")
            fields = properties.items() if isinstance(properties, dict) else ()
            return {name: _any(part, random) for name, part in fields if isinstance(part, dict)}
        case {"type": "integer"} | {"type": "number"}:
            lo, hi = (schema.get(key) for key in ("minimum", "maximum"))
            lo = int(lo) if isinstance(lo, int | float) else 0
            return random.randint(lo, int(hi) if isinstance(hi, int | float) else lo + 10)
        case {"type": "boolean"}:
            return random.random() < 0.5
        case {"type": "array"}:
            return []
        case _:
            return f"word {random.randint(1, 999)}"


def generator_spec(
    section: str,
    script: Script,
    settings: type[Section],
    *,
    players: Mapping[str, Player] | None = None,
    needs: str = "",
    check: Callable[[Experiment, Section], Iterable[Problem]] = lambda _experiment, _settings: (),
    results: Callable[[], ResultsSpec] | None = None,
) -> EnvironmentSpec[Section]:
    """The `SPEC` of an environment that `script` plays.

    `section` is its name in the registry and the key of its settings; `needs` and `check` are those of
    `EnvironmentSpec`, `players` the scripted players besides `random`.
    """
    return EnvironmentSpec(
        section=section,
        settings=settings,
        description=f"Settings of the environment `{section}`.",
        build=lambda experiment: GeneratorEnvironment(
            experiment, section=section, script=script, settings=settings, players=players or {}
        ),
        needs=needs,
        check=check,
        ignored=lambda experiment, _settings: ignored_settings(experiment, role="player", keys=_IGNORED),
        results=results,
    )
