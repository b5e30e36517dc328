"""Town of Salem: a social-deduction game of hidden roles.

`conversation` is the dialogue with the seats, and makes their choices happen. `model/` is what a game is made of;
`rules/` and `roles/` hold the rules. `seat/` is what a seat sees and answers, `bots/` are the scripted players,
`claims/` reads free speech. `record` is what a transcript says of a game: `hindsight` writes it, `scene` and `truth`
show it, and `measures` and `game` say what many games amount to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from mac_runner.environments.town_of_salem.settings import DISCUSSIONS, GameConfig
from mac_runner.problems import Problem, read_template
from mac_runner.registry import EnvironmentSpec, Planned, Variant, ignored_settings

if TYPE_CHECKING:
    from pathlib import Path

    from mac_runner.config import Experiment
    from mac_runner.environments.base import Environment
    from mac_runner.measures import ResultsSpec
    from mac_runner.results import Table

__all__ = ["SPEC", "GameConfig"]

ROLE: Final = "player"
"""The `role` of every agent definition: what it is in a game is dealt, and `game.casting` says who plays it."""

_IGNORED: Final = {
    "demographics": "describe the player in `persona`",
    "if_as_human": "leave it out, or say so in `persona`",
    "role_specific_config.visible_to": "leave it out: the rules of the game say who hears what",
}


def _build(experiment: Experiment) -> Environment:
    from mac_runner.environments.town_of_salem.environment import TownOfSalem

    return TownOfSalem(experiment)


def _with_materials(game: GameConfig, base: Path, _cache: dict[str, object], _seed: int) -> GameConfig:
    """The settings with the template and the latency that they name, and with the roles that there are.

    Raises MaterialError for a file that cannot be used.
    """
    from mac_runner.environments.town_of_salem.roles import ROLES

    if game.roles is None:
        game = game.model_copy(update={"roles": tuple(ROLES)})

    latency = game.latency
    if (choice := latency.calibration) is not None:
        times = choice.times(latency.quantum, latency.model_fields_set, base, ("game", "latency"))
        game = game.model_copy(update={"latency": latency.model_copy(update=times)})
    if game.template_file is None:
        return game
    key = ("game", "template_file")
    return game.model_copy(update={"template": read_template(base / game.template_file, key, game.template)})


def _check(experiment: Experiment, game: GameConfig) -> Iterator[Problem]:
    from mac_runner.environments.town_of_salem.casting import casting_problems

    yield from casting_problems(experiment, game)
    if "get_notes" in game.tools and not game.notes:
        text = "shows notes, and no player of this game keeps notes; take it out, or set game.notes to true"
        yield Problem(("game", "tools", game.tools.index("get_notes")), text)
    for index, agent in enumerate(experiment.agent_definitions):
        if agent.reasoning == "off" and agent.reasoning_chars_max is not None:
            path = ("agent_definitions", index, "reasoning_chars_max")
            yield Problem(path, "bounds reasoning that is off; leave it out, or set reasoning to optional or required")
    for key, value in DISCUSSIONS.get(game.discussion or "", {}).items():
        if (given := getattr(game.calendar, key)) != value:
            text = (
                f"found {given!r}, but game.discussion: {game.discussion} sets it to {value!r}; leave one of them out"
            )
            yield Problem(("game", "calendar", key), text)


def _idle(experiment: Experiment, game: GameConfig) -> Mapping[str, str]:
    if game.casting is None:
        return {}
    from mac_runner.environments.town_of_salem.casting import cast_names

    reason = "never plays: game.casting casts it for no seat; name it there, or leave it out"
    ids = (agent.agent_id for agent in experiment.agent_definitions)
    return dict.fromkeys((agent_id for agent_id in ids if agent_id not in cast_names(game.casting)), reason)


def _variants(experiment: Experiment, game: GameConfig) -> Iterable[Variant]:
    from mac_runner.environments.town_of_salem.casting import variants

    return variants(experiment, game)


def _design(planned: Sequence[Planned]) -> Iterator[Table | str]:
    from mac_runner.environments.town_of_salem.casting import design

    return design(planned)


def _results() -> ResultsSpec:
    from mac_runner.environments.town_of_salem.tables import RESULTS

    return RESULTS


SPEC = EnvironmentSpec(
    section="game",
    settings=GameConfig,
    description="Settings of the environment `town_of_salem`; all of them have defaults.",
    build=_build,
    role=ROLE,
    check=_check,
    ignored=ignored_settings(_IGNORED),
    idle=_idle,
    variants=_variants,
    design=_design,
    reply_forms=("markup", "json"),
    honours=("reasoning", "reasoning_chars_max", "system"),
    materials=_with_materials,
    reward_names=("won", "faction_won", "survived"),
    results=_results,
    measures=("players[].measures",),
)
