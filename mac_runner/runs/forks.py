"""Forks written and played, and what a turn was worth. The command line and the Python interface call these."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from mac_runner.clock import Clock
from mac_runner.errors import ConfigError
from mac_runner.problems import suggestion
from mac_runner.runs.engines import plan_engines
from mac_runner.runs.fork_plan import ForkRequest, PlannedFork
from mac_runner.runs.play import Player, Results, results_if_complete
from mac_runner.runs.policies import Policy, PolicyRequest, check_policies, plan_policies
from mac_runner.runs.recorded import recorded_setup, set_of_one
from mac_runner.runs.setup import ExperimentSet
from mac_runner.runs.values import RESAMPLED, SAID, SILENT, Figure, rollouts, value_of
from mac_runner.store import read_run
from mac_runner.store.fork import is_fork, write_fork, write_value
from mac_runner.types import JsonObject


class Played(NamedTuple):
    """What a fork came to; `is_new` unless all of it had been played before."""

    results: Results
    is_new: bool


def written_fork(planned: PlannedFork, out: Path, clock: Clock) -> ExperimentSet:
    """Write the fork, unless it is there already; what is left of it to play.

    Raises what `write_fork` and `check_weights` raise.
    """
    if not is_fork(out):
        check_weights(planned, clock)
    write_fork(
        out,
        experiment_name=planned.name,
        resolved=planned.loaded.resolved,
        record=planned.record,
        branches=planned.branches,
        policies=planned.policies,
        clock=clock,
    )
    return set_of_one(planned.setup(out))


def check_weights(planned: PlannedFork, clock: Clock) -> None:
    """Raises RunDirectoryError for weights that are not there, and ConfigError where an engine takes none."""
    if not planned.policies:
        return
    setup, request = planned.setup(Path()), PolicyRequest(policies=planned.given)
    engines = plan_engines([setup], [setup], clock, lambda _line: None)
    check_policies(request, engines, clock)
    plan_policies(request, [setup], engines, {setup.slug: planned.policies})


def play_fork(planned: PlannedFork, out: Path, player: Player) -> Played:
    """Write the fork, unless it is there already, and play what is left of it.

    Raises what `write_fork` and `Player.play` raise.
    """
    return _play(written_fork(planned, out, player.clock), player)


def continue_fork(directory: Path, player: Player) -> Played:
    """Play what is left of a fork; its parent need not be there. Raises ConfigError for a run that is not a fork."""
    if not is_fork(directory):
        raise ConfigError(f"{directory} is not a fork; to make one, name a GAME, --turn and --out")
    return _play(set_of_one(recorded_setup(read_run(directory))), player)


def _play(chosen: ExperimentSet, player: Player) -> Played:
    if (complete := results_if_complete(chosen, player.clock)) is not None:
        return Played(complete, is_new=False)
    return Played(player.play(chosen), is_new=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueRequest:
    """What a user asks of the value of a turn."""

    run: Path
    game: str
    turn: str
    draws: int
    outcome: str | None = None
    """A reward, a key of the outcome, or `key:member`; by default the chance to win of `agent`."""
    agent: str | None = None
    """By default the one whose turn it is."""
    has_silence: bool = False
    """Compare with the environment's default act too."""
    policies: tuple[Policy, ...] = ()
    """As of a fork."""

    @property
    def fork(self) -> ForkRequest:
        """The fork that answers it. Draw 0 is left out: where seeds are honoured, it repeats what was said."""
        return ForkRequest(
            run=self.run,
            game=self.game,
            turn=self.turn,
            draws=range(1, self.draws + 1),
            arms=(SAID, RESAMPLED, *((SILENT,) if self.has_silence else ())),
            policies=self.policies,
        )

    def directory(self, planned: PlannedFork) -> Path:
        """Where the fork is kept unless another place is named."""
        parent = planned.record.parents[0]
        return Path("runs") / f"{parent['task']}-f{parent['place']}-value"


class TurnValue(NamedTuple):
    """What a turn was worth, and the fork that says so. `value` is None where the fork was stopped before its end."""

    value: JsonObject | None
    played: Played


def turn_value(request: ValueRequest, planned: PlannedFork, out: Path, player: Player) -> TurnValue:
    """Play the arms of a turn and compare them. Raises what `checked_figure` and `play_fork` raise."""
    figure = checked_figure(request, planned)
    played = play_fork(planned, out, player)
    return TurnValue(None if played.results.is_interrupted else value_in(out, request, planned, figure), played)


def checked_figure(request: ValueRequest, planned: PlannedFork) -> Figure:
    """What is read off the outcomes. Raises ConfigError for an agent or a figure that the parent does not have."""
    agents = [agent.agent_id for agent in planned.record.tasks[0].agents]
    agent = request.agent or str(planned.record.parents[0]["agent"])
    if agent not in agents:
        raise ConfigError(f"--for: no agent {agent!r} took part{suggestion(agent, agents)}")
    figure = Figure(request.outcome, agent)
    if planned.outcome is not None:
        figure.of(planned.environment, planned.outcome, agents)
    return figure


def value_in(directory: Path, request: ValueRequest, planned: PlannedFork, figure: Figure) -> JsonObject:
    """The value that a fork shows, which is also written to `value.json` in its directory."""
    parent, task = planned.record.parents[0], planned.record.tasks[0]
    contents = read_run(directory)
    value = value_of(
        rollouts(planned.environment, map(contents.acknowledged, contents.rows_in_task_order()), figure),
        [arm.name for arm in request.fork.arms],
        turn={"of": parent["task"], "turn": parent["turn"], "agent": parent["agent"], "draws": request.draws},
        figure=figure.in_words(planned.environment, planned.outcome, [agent.agent_id for agent in task.agents]),
        is_scripted=all(_is_scripted(planned, agent.model) for agent in task.agents),
    )
    write_value(directory, value)
    return value


def _is_scripted(planned: PlannedFork, model: str) -> bool:
    definition = planned.loaded.experiment.model_definitions[model]
    return definition.spec.policy(definition.backend_settings) is not None
