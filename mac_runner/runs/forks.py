"""Forks written and played, and what a turn was worth: how the outcomes of the arms of a fork differ.

All arms of a draw share its seeds and the world, so their outcomes are compared in pairs (common random numbers).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from pathlib import Path
from typing import Final, NamedTuple

from mac_runner.clock import Clock
from mac_runner.compared import matched_interval, matched_p
from mac_runner.errors import ConfigError
from mac_runner.intervals import Interval, interval_of, mean_interval
from mac_runner.printable import printable
from mac_runner.problems import suggestion
from mac_runner.rewards import PREFERRED, is_number, preferred, rewards_of
from mac_runner.runs.engines import plan_engines
from mac_runner.runs.fork_plan import Arm, ForkRequest, PlannedFork
from mac_runner.runs.play import Player, Results, results_if_complete
from mac_runner.runs.policies import Policy, PolicyRequest, check_policies, plan_policies
from mac_runner.runs.recorded import recorded_setup, set_of_one
from mac_runner.runs.setup import ExperimentSet
from mac_runner.store import read_run
from mac_runner.store.fork import is_fork, write_fork, write_value
from mac_runner.store.records import entry, objects
from mac_runner.types import JsonObject, JsonValue

VALUE_FORMAT = 2
SAID: Final = Arm("said", is_kept=True)
RESAMPLED: Final = Arm("resampled")
SILENT: Final = Arm("silent", is_silent=True)
_SCRIPTED: Final = "the players are scripted: the value is that of the turn among them, and says nothing of models"
PAIRS_MIN: Final = 10
"""With fewer pairs an interval of a difference of chances may leave out 0 where the exact test shows nothing."""


class Figure(NamedTuple):
    """What is read off an outcome: a reward of `agent`, or a part of the outcome itself.

    `name` is a reward, a dotted key of the outcome (`days`), or a key and what has to be in it (`winners:town`).
    """

    name: str | None
    agent: str

    def of(self, environment: object, outcome: JsonObject, agents: Sequence[str]) -> float:
        """The number. Raises ConfigError naming what there is."""
        rewards = rewards_of(environment, outcome, self.agent, agents)
        if self.name is None:
            name = preferred(rewards)
            if name is None or (name not in PREFERRED and len(rewards) > 1):
                raise ConfigError(f"--outcome: say what counts; there are: {', '.join([*rewards, *outcome])}")
            return rewards[name]
        if self.name in rewards:
            return rewards[self.name]
        found = _part(outcome, self.name)
        if found is None:
            hint = suggestion(self.name, [*rewards, *outcome])
            raise ConfigError(f"--outcome: {self.name!r} is neither a reward nor a number of the outcome{hint}")
        return found

    def in_words(self, environment: object, outcome: JsonObject | None, agents: Sequence[str]) -> str:
        rewards = {} if outcome is None else rewards_of(environment, outcome, self.agent, agents)
        name = self.name or preferred(rewards) or "reward"
        return f"{name} of {self.agent}" if name in rewards or self.name is None else name


def _part(outcome: JsonObject, path: str) -> float | None:
    """The number at a path of the outcome; whether a member is in it, for `key:member`. None for anything else."""
    keys, colon, member = path.partition(":")
    here: JsonValue = outcome
    for key in keys.split("."):
        if not isinstance(here, dict) or key not in here:
            return None
        here = here[key]
    if colon and isinstance(here, dict):
        here = here.get(member)
    elif colon and isinstance(here, list):
        here = member in here
    elif colon:
        here = here == member
    return float(here) if is_number(here) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """A conversation of a fork that has ended: its figure, None if it failed, and the reply to the turn."""

    arm: str
    draw: int
    figure: float | None
    reply: str | None


def rollouts(environment: object, transcripts: Iterable[JsonObject], figure: Figure) -> list[Rollout]:
    found = []
    for transcript in transcripts:
        task, outcome = entry(transcript, "task", dict), transcript["outcome"]
        fork = entry(task, "fork", dict)
        turns = {turn["turn"]: turn for turn in objects(transcript, "turns")}
        agents = [str(agent["agent_id"]) for agent in objects(task, "agents")]
        found.append(
            Rollout(
                arm=str(fork["arm"]),
                draw=entry(fork, "draw", int),
                figure=figure.of(environment, outcome, agents) if isinstance(outcome, dict) else None,
                reply=str(entry(turns[fork["turn"]], "reply", dict)["text"]) if fork["turn"] in turns else None,
            )
        )
    return found


def value_of(
    found: Sequence[Rollout], arms: Sequence[str], *, turn: JsonObject, figure: str, is_scripted: bool
) -> JsonObject:
    """What `value.json` holds. `turn` says which turn of which conversation it is; the first arm is the reference."""
    by_arm = {arm: {each.draw: each for each in found if each.arm == arm} for arm in arms}
    pairs: list[JsonValue] = [_difference(arms[0], by_arm[arms[0]], arm, by_arm[arm]) for arm in arms[1:]]
    notes: list[JsonValue] = [*_notes(by_arm), *_few(pairs), *([_SCRIPTED] if is_scripted else [])]
    return {
        "format": VALUE_FORMAT,
        **turn,
        "figure": figure,
        "arms": {arm: _arm([*rolled.values()]) for arm, rolled in by_arm.items()},
        "differences": pairs,
        "notes": notes,
    }


def _arm(found: Sequence[Rollout]) -> JsonObject:
    figures = [each.figure for each in found if each.figure is not None]
    return {
        "n": len(figures),
        "mean": fsum(figures) / len(figures) if figures else None,
        "interval": _json(interval_of(figures)),
        "failed": len(found) - len(figures),
    }


def _difference(first: str, one: Mapping[int, Rollout], second: str, other: Mapping[int, Rollout]) -> JsonObject:
    """The paired difference of two arms, over the draws that have ended in both."""
    pairs = [
        (a, b)
        for draw in sorted(one.keys() & other.keys())
        if (a := one[draw].figure) is not None and (b := other[draw].figure) is not None
    ]
    differences = [a - b for a, b in pairs]
    ahead, behind = sum(each > 0 for each in differences), sum(each < 0 for each in differences)
    is_binary = bool(pairs) and all(figure in (0.0, 1.0) for pair in pairs for figure in pair)
    interval = matched_interval(behind, ahead, len(pairs)) if is_binary else mean_interval(differences)
    return {
        "first": first,
        "second": second,
        "pairs": len(pairs),
        "other_reply": sum(one[draw].reply != other[draw].reply for draw in one.keys() & other.keys()),
        "difference": fsum(differences) / len(pairs) if pairs else None,
        "interval": _json(interval),
        "ahead": [ahead, behind],
        "p": matched_p(ahead, behind) if is_binary else None,
    }


def _notes(by_arm: Mapping[str, Mapping[int, Rollout]]) -> Iterable[str]:
    drawn = by_arm.get(RESAMPLED.name, {})
    if len(drawn) > 1 and len({each.reply for each in drawn.values()}) == 1:
        yield (
            "every draw gave the same reply to the turn: its engine ignores seeds, its temperature is 0, or it is "
            "scripted and sees one way to go on"
        )
    if failed := sum(each.figure is None for rolled in by_arm.values() for each in rolled.values()):
        yield f"{failed} conversations failed and are not counted"


def _few(differences: Iterable[JsonValue]) -> Iterable[str]:
    counts = [entry(pair, "pairs", int) for pair in differences if isinstance(pair, dict)]
    if counts and min(counts) < PAIRS_MIN:
        yield f"{min(counts)} paired draws: with fewer than {PAIRS_MIN} the intervals are rough; play more draws"


def _json(interval: Interval | None) -> JsonValue:
    return None if interval is None else [interval.lo, interval.hi]


def value_lines(value: JsonObject) -> Iterable[str]:
    yield printable(f"{value['of']}, turn {value['turn']} by {value['agent']}: {value['figure']}")
    yield ""
    yield f"{'arm':<12}{'n':>5}{'mean':>9}   95% interval"
    for name, arm in entry(value, "arms", dict).items():
        assert isinstance(arm, dict)
        yield f"{name:<12}{arm['n']:>5}{_number(arm['mean']):>9}   {_range(arm['interval'])}"
    yield ""
    for pair in objects(value, "differences"):
        p = "" if pair["p"] is None else f", p {_number(pair['p'])}"
        yield (
            f"{pair['first']} less {pair['second']}: {_number(pair['difference'], sign='+')}, 95% interval "
            f"{_range(pair['interval'])}{p}; {pair['pairs']} paired draws, {pair['other_reply']} with another reply"
        )
    yield from (f"note: {note}" for note in entry(value, "notes", list))


def _number(value: JsonValue, *, sign: str = "") -> str:
    return f"{value:{sign}.3f}" if isinstance(value, float) else "-"


def _range(value: JsonValue) -> str:
    return f"{_number(value[0])} to {_number(value[1])}" if isinstance(value, list) else "not known"


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
