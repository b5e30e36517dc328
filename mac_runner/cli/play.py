"""`mac-run run`, `retry` and `fork`: the verbs that play conversations."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from mac_runner.backends.fleet.settings import FleetModelConfig
from mac_runner.cli.options import (
    OfRequest,
    OfRun,
    Quiet,
    argument,
    commands,
    number,
    option,
    options,
    shard,
    switch,
)
from mac_runner.cli.process import Exit, print_lines, report, say, stop_on_signals
from mac_runner.clock import SystemClock
from mac_runner.config import ModelDefinition, in_words
from mac_runner.errors import ConfigError
from mac_runner.extras import install_command
from mac_runner.files import read_material
from mac_runner.plan import AutoShard, Shard
from mac_runner.printable import printable
from mac_runner.registry import Planned
from mac_runner.reports import (
    has_parquet,
    lacks_stats,
    printable_lines,
    prompt_text,
    write_ending,
    write_tables,
)
from mac_runner.results import Table
from mac_runner.runs.claims import check
from mac_runner.runs.engines import EnginePlan, plan_engines
from mac_runner.runs.fork_plan import Arm, ForkRequest, PlannedFork, arm_of_reply, plan_fork
from mac_runner.runs.forks import Played, ValueRequest, check_weights, continue_fork, play_fork, turn_value, value_lines
from mac_runner.runs.maintenance import mirrored, retry_failed
from mac_runner.runs.play import INTERRUPTED, Player, Results, results_if_complete
from mac_runner.runs.policies import Policy, PolicyRequest
from mac_runner.runs.setup import ExperimentSet, RunRequest, Setup, first_prompts, set_up
from mac_runner.runs.summary import summary_of
from mac_runner.status import choose_display
from mac_runner.store import Disk, Survey, read_run, survey
from mac_runner.store.identity import run_command
from mac_runner.store.layout import Layout
from mac_runner.types import Prompt


@dataclass(frozen=True, kw_only=True)
class Resulting(Quiet):
    """A verb that ends with what a run came to."""

    def results(self, results: Results, directory: Path) -> Exit:
        """Print what a run came to; the exit code says whether conversations failed or nothing was usable."""
        if not self.quiet and results.summary:
            with report() as stream:
                write_ending(results.summary, directory, stream, rows=results.rows, compared=results.compared)
            if not results.is_interrupted:
                _say_extras(results)
        else:
            for line in results.unusable:
                say(line)
        return Exit.FAILURES if results.has_failures else Exit.OK


@dataclass(frozen=True, kw_only=True)
class _Playing(Resulting):
    concurrency: int | None = option("Requests in flight at once, at most.", "N")
    live: bool | None = option("Show the pools while it runs [on a terminal].", flag="--live/--no-live")

    def player(self, policies: tuple[Policy, ...] = (), *, can_pull: bool = False) -> Player:
        """A player that shows the run on stderr and stops at a signal."""
        display = choose_display(sys.stderr, live=self.live, quiet=self.quiet)
        return Player(
            display=display,
            stopping=lambda stop: stop_on_signals(stop, display.say),
            concurrency=self.concurrency,
            can_pull=can_pull,
            policy=PolicyRequest(policies=policies),
            warn=say if self.quiet else None,
        )

    def ended(self, results: Results, directory: Path) -> Exit:
        """Print what a run came to; its exit code."""
        exit_code = self.results(results, directory)
        return self.stopped(results) if results.is_interrupted else exit_code

    def stopped(self, results: Results) -> Exit:
        """Say how a run that was stopped can go on."""
        how = "run" if results.stopped_by == INTERRUPTED else "raise the limit and run"
        self.say(f"{results.stopped_by}: {results.ended}; {how} the same command again to go on")
        return Exit.INTERRUPTED


def _say_extras(results: Results) -> None:
    """Say what a grid could have besides, with packages that are not installed."""
    if results.rows is not None and not has_parquet():
        say(f"for Parquet beside it: {install_command('parquet')}")
    if lacks_stats(results.compared):
        say(f"for paired differences and ratings: {install_command('stats')}")


@dataclass(frozen=True, kw_only=True)
class Run(OfRequest, _Playing):
    """Run the experiment in FILE, or go on with it where it stopped. With a section `_grid`: every combination.

    Exit codes: 0 all finished, 1 finished with failed conversations, 2 bad input, 3 interrupted and resumable,
    4 storage failed, 5 another process is at work in the run directory, 70 a bug of mac_runner.
    """

    file: Path = argument("FILE")
    shard: Shard | AutoShard | None = option(
        "auto/N: be one of the workers that play the N shards of one run; I/N: run the I-th of N parts, from 1, in a "
        "directory of its own, for mac-run merge [runs/NAME.shard-I-of-N].",
        "I/N",
        callback=shard,
    )
    fleet: Path | None = option(
        "The file of a fleet that mac-run fleet up holds: models on a fleet use its engines.", "FLEET"
    )
    dry_run: bool = switch("Say what would run; touch nothing.")
    prompt: int | None = option(
        "With --dry-run: print the first prompts of conversation N, from 0.", "N", callback=number
    )
    agent: str | None = option("With --prompt: of this agent only.", "ID")
    view: bool = switch("Show it in a browser while it runs.")
    no_open: bool = switch("With --view: open no browser.")

    def request(self) -> RunRequest:
        return replace(super().request(), shard=self.shard)

    def work(self) -> Exit | None:
        self._check()
        chosen = set_up(self.request())
        if not self.dry_run:
            return self._play(chosen)
        if self.prompt is None:
            self._describe(chosen)
        else:
            preview(chosen, self.prompt, self.agent)
        return None

    def _check(self) -> None:
        """Raises ConfigError for options that do not go together."""
        if self.view and (self.dry_run or self.quiet):
            other = "--dry-run plays nothing" if self.dry_run else "--quiet prints no address"
            raise ConfigError(f"{other}: leave --view out, and look later with mac-run view RUN")
        if self.no_open and not self.view:
            raise ConfigError("--no-open is about the browser of --view: add --view, or leave it out")
        if self.prompt is not None and not self.dry_run:
            raise ConfigError("--prompt prints what would be sent: add --dry-run; of a run, use mac-run show RUN GAME")
        if self.agent is not None and self.prompt is None:
            raise ConfigError("--agent chooses among prompts: add --dry-run --prompt N")
        if self.fleet is not None and self.dry_run and self.prompt is None:
            raise ConfigError("--fleet is for a run, and --dry-run plays nothing: leave one of them out")

    def _play(self, chosen: ExperimentSet) -> Exit:
        """Play what is left, print the results, and say how it ended."""
        if (complete := results_if_complete(chosen, SystemClock())) is not None:
            with mirrored(chosen, self.mirror, say, is_quiet=self.quiet):
                pass
            self.say(f"{chosen.directory}: {complete.ended}; nothing to run")
            return self.results(complete, chosen.directory)
        for warning in chosen.warnings:
            self.say(f"warning: {warning}")
        player = self.player(can_pull=self.pull)
        if self.fleet is not None:
            player = _attached(player, chosen, self.fleet)
        placed = chosen.anchored()
        with mirrored(placed, self.mirror, say, is_quiet=self.quiet) as on_complete, self._viewed(chosen.directory):
            results = replace(player, on_complete=on_complete).play(placed)
        return self.ended(results, chosen.directory)

    def _viewed(self, directory: Path) -> AbstractContextManager[None]:
        if not self.view:
            return nullcontext()
        # Here, because every run would wait for the pages.
        from mac_runner.cli.pages import viewed

        return viewed(directory, is_opened=not self.no_open)

    def _describe(self, chosen: ExperimentSet) -> None:
        """Print what would run and how much is left; touches nothing."""
        engines = plan_engines(chosen.setups, chosen.setups, SystemClock(), self.say, is_dry=True)
        if chosen.claimed is not None:
            check(chosen)
        surveys = {setup.slug: survey(setup.invocation) for setup in chosen.setups}
        facts = [*_facts(chosen, surveys, engines), *(("warning", warning) for warning in chosen.warnings)]
        lines = [f"{what:<15}{text}" for what, text in facts]
        if chosen.grid is not None:
            lines += ["", *_tree(chosen.setups, surveys)]
        with report() as stream:
            stream.writelines(f"{printable(line)}\n" for line in lines)
            if design := [*_design(chosen)]:
                stream.write("\n")
                write_tables(design, stream)


def _attached(player: Player, chosen: ExperimentSet, fleet: Path) -> Player:
    """The player with a fleet that another process holds. Raises ConfigError where no model would use it."""
    # Here, because every run would wait for the HTTP library.
    from mac_runner.runs.held_fleet import attached_to

    definitions = [each for setup in chosen.setups for each in setup.experiment.model_definitions.values()]
    if not any(isinstance(each.backend_settings, FleetModelConfig) for each in definitions):
        raise ConfigError("--fleet: no model of this experiment has `backend: fleet`; leave --fleet out")
    return replace(player, fleet=attached_to(fleet))


def preview(chosen: ExperimentSet, number: int, agent: str | None) -> None:
    """Print the first prompts of a conversation; of a grid, in its first combination."""
    found = list(first_prompts(chosen.setups[0], number, agent))
    if chosen.grid is not None:
        say(f"in the first of {len(chosen.setups)} combinations, {chosen.setups[0].slug}")
    with report() as stream:
        for turn, prompt in found:
            text = f"=== turn {turn.key}, sent to {turn.model}\n{prompt_text(prompt)}=== {_held_to(prompt)}\n"
            stream.write(printable_lines(text) if stream.isatty() else text)


def _held_to(prompt: Prompt) -> str:
    """What the engine holds the reply to."""
    if prompt.schema is not None:
        schema = json.dumps(dict(prompt.schema), ensure_ascii=False, indent=2)
        return f"held to this schema, where the engine can\n{schema}"
    if prompt.choices is not None:
        return f"held to one of these, where the engine can\n{json.dumps(prompt.choices, ensure_ascii=False, indent=2)}"
    return "not held to a form"


def _design(chosen: ExperimentSet) -> Iterable[Table | str]:
    """Who takes part in what, where environments have something to say of it, each of its own combinations."""
    planned: dict[str, list[Planned]] = {}
    for setup in chosen.setups:
        values = {} if setup.combination is None else setup.combination.values
        of_one = planned.setdefault(setup.experiment.conversation_config.environment, [])
        of_one.append(Planned(setup.experiment, values, setup.tasks.indexes))
    return (part for of_one in planned.values() for part in of_one[0].experiment.spec.design(of_one))


def _facts(chosen: ExperimentSet, surveys: Mapping[str, Survey], engines: EnginePlan) -> Iterator[tuple[str, str]]:
    """What would run and how much is left, each with what it is."""
    first, found = chosen.setups[0], [*surveys.values()]
    experiment, shard = first.experiment, chosen.claimed or first.shard
    if chosen.grid is None:
        yield "experiment", f"{first.name}, profile {experiment.profile}, seed {experiment.seed}"
        yield "environment", first.environment_name
        yield "models", _models(experiment.model_definitions)
    else:
        complete = sum(each.is_complete for each in found)
        yield "grid", f"{chosen.name}, profile {chosen.profile}"
        yield "combinations", f"{len(found)} asked for: {complete} complete, {len(found) - complete} to run"
    yield "run directory", f"{chosen.directory}{'' if shard is None else f', shard {shard}'}"
    yield (
        "conversations",
        f"{sum(each.planned for each in found)} asked for: {sum(each.finished for each in found)} finished, "
        f"{sum(each.failed for each in found)} failed, {sum(each.half_done for each in found)} half done "
        f"({sum(each.recorded_replies for each in found)} replies recorded), "
        f"{sum(each.untouched for each in found)} not begun",
    )
    if chosen.grid is None:
        yield from (("changed", change) for change in found[0].changed_settings)
    else:
        for place, phase in enumerate(phases := engines.phases(chosen.setups), start=1):
            names = _models({engine.name: engine.definition for engine in phase.engines})
            what = "engines" if len(phases) == 1 else f"phase {place}"
            yield what, f"{names}, shared by {len(phase.setups)} combinations"
        if left_out := chosen.left_out:
            yield "left out", f"{len(left_out)} of earlier, not asked for any more: {', '.join(left_out)}"
    if on_fleet := [engine.name for engine in engines.engines.values() if engine.is_on_fleet]:
        yield "fleet", f"{', '.join(on_fleet)}; mac-run doctor FILE --fleet shows where their engines run"
    limits = experiment.limits
    if limits is not None and (asked := limits.model_dump(exclude_none=True)):
        yield "limits", ", ".join(f"{key} {value:,}" for key, value in asked.items())


def _models(definitions: Mapping[str, ModelDefinition]) -> str:
    return ", ".join(f"{name} ({definition.backend})" for name, definition in definitions.items())


def _tree(setups: Sequence[Setup], surveys: Mapping[str, Survey]) -> Iterator[str]:
    """Each combination with its values; leading values that equal those of the line above are printed once."""
    before: list[tuple[str, str]] = []
    for setup in setups:
        assert setup.combination is not None
        values = [(name, in_words({name: value})) for name, value in setup.combination.values.items()]
        alike = 0
        while alike < min(len(before), len(values) - 1) and before[alike] == values[alike]:
            alike += 1
        for depth in range(alike, len(values) - 1):
            yield f"{'  ' * depth}{values[depth][1]}"
        found = surveys[setup.slug]
        left = "complete" if found.is_complete else f"{found.finished + found.failed} of {found.planned} ended"
        yield f"{'  ' * (len(values) - 1)}{values[-1][1]}  [{setup.slug}: {left}]"
        yield from (f"{'  ' * len(values)}changed: {change}" for change in found.changed_settings)
        before = values


@dataclass(frozen=True, kw_only=True)
class Retry(OfRun, _Playing):
    """Try the failed conversations of RUN again, from the turn that each failed on, with the same seeds.

    Their failed attempts are kept in RUN/attempts, and listed in the index and the summary. Exit codes: as for a run.
    """

    def work(self) -> Exit:
        run = read_run(self.directory)
        results = retry_failed(run, self.player())
        if results is None:
            self.say(f"{self.directory}: no conversation has failed; nothing to retry")
            return self.results(Results(summary_of(run), ""), self.directory)
        exit_code = self.ended(results, self.directory)
        say_tables(self.directory, self.say)
        return exit_code


def say_tables(directory: Path, say: Callable[[str], None]) -> None:
    """Say which command updates the tables of the grid that a run belongs to."""
    if (grid := Layout.at(Disk(), directory).grid) is not None:
        say(f"{grid}: its tables are brought up to date by: {run_command(Disk(), directory)}")


@dataclass(frozen=True, kw_only=True)
class Fork(OfRun, _Playing):
    """Play the conversation GAME of RUN again from TURN on, in a run directory of its own.

    What was said before TURN stays. Draw 0 has the seeds of RUN, so without a change it ends as GAME did where the
    engine honours seeds; the other draws have seeds of their own. The same command goes on with a fork that was
    stopped, and so does mac-run fork DIR.

    With --value it plays two arms: `said` keeps the reply, `resampled` draws it again, with the same seeds in both. It
    prints how the chance to win differs. DIR/value.json has the numbers.

    Exit codes: as for a run.
    """

    game: str | None = argument("[GAME]", required=False)
    turn: str | None = option("The turn to draw again: 12/Abel/0/0, 12/Abel, or #60 for its place.", "TURN")
    where: tuple[str, ...] = options("In place of GAME: all that meet these, as in show.", "CONDITION")
    round: bool = switch("Draw the turns again too that are open together with TURN.")
    overrides: tuple[str, ...] = options("Set one key of the experiment.", "KEY=VALUE", flag="--set")
    seat: tuple[str, ...] = options("Another model for one agent.", "AGENT.model=NAME")
    draws: int | None = option("So many conversations, which differ in their seeds [1].", "N")
    reply: str | None = option("Give this reply to TURN in place of the engine.", "TEXT")
    reply_file: Path | None = option("The same, from a file.", "FILE")
    rebase: bool = switch("Keep replies whose prompts change; marked as off-policy.")
    value: bool = switch("Say what the reply to TURN was worth, by N draws of each arm.")
    outcome: str | None = option("What counts, such as won, days or winners:town [the chance to win].", "FIGURE")
    agent: str | None = option("Whose chance to win it is [that of who speaks].", "NAME", flag="--for")
    silence: bool = switch("Compare with the default act of the environment too.")
    policy: tuple[str, ...] = options(
        "The version of a trained model that plays, and its weights [the version that played the turn].",
        "MODEL=VERSION[:PATH]",
    )
    out: Path | None = option("The directory of the fork [with --value: in runs/].", "DIR")
    dry_run: bool = switch("Say what it would take; touch nothing.")

    def work(self) -> Exit:
        policies = policies_of(self.policy)
        changes = self.given("where", "round", "overrides", "seat", "reply", "reply_file", "rebase")
        if self.value:
            return self._value(policies, changes)
        if self.given("outcome", "agent", "silence"):
            raise ConfigError("--outcome, --for and --silence are for --value: add it, or leave them out")
        if self.game is None and not self.where:
            if changes or self.given("turn", "out", "draws", "dry_run"):
                raise ConfigError(
                    "name a GAME of RUN, or conditions with --where; to go on with a fork, give no flags but --policy"
                )
            return self._ended(continue_fork(self.directory, self.player(policies)), self.directory)
        if self.game is not None and self.where:
            raise ConfigError("--where chooses conversations in place of a GAME: leave one of them out")
        if self.turn is None or self.out is None:
            lacking = "turn with --turn" if self.turn is None else "directory of the fork with --out"
            raise ConfigError(f"name the {lacking}")
        if self.reply is not None and self.reply_file is not None:
            raise ConfigError("--reply and --reply-file give the same reply: leave one of them out")
        return self._fork(self.turn, self.out, policies)

    def _fork(self, turn: str, out: Path, policies: tuple[Policy, ...]) -> Exit:
        """Write the fork, unless it is there already, and play what is left of it."""
        planned = plan_fork(
            ForkRequest(
                run=self.directory,
                turn=turn,
                game=self.game,
                where=self.where,
                is_round=self.round,
                overrides=self.overrides,
                seats=self.seat,
                draws=range(self.draws or 1),
                arms=(arm_of(self.reply, self.reply_file),),
                is_rebased=self.rebase,
                policies=policies,
            )
        )
        if self._is_only_described(planned, out):
            return Exit.OK
        return self._ended(play_fork(planned, out, self.player(policies)), out)

    def _value(self, policies: tuple[Policy, ...], changes: Sequence[str]) -> Exit:
        """Play the arms of a turn, and print what the reply was worth."""
        if self.game is None or self.turn is None or self.draws is None:
            raise ConfigError("--value is of one turn: name RUN, GAME, --turn TURN and --draws N")
        if changes:
            raise ConfigError(f"--value compares what was said with other draws: leave out {', '.join(changes)}")
        request = ValueRequest(
            run=self.directory,
            game=self.game,
            turn=self.turn,
            draws=self.draws,
            outcome=self.outcome,
            agent=self.agent,
            has_silence=self.silence,
            policies=policies,
        )
        planned = plan_fork(request.fork)
        out = self.out or request.directory(planned)
        if self._is_only_described(planned, out):
            return Exit.OK
        found, played = turn_value(request, planned, out, self.player(policies))
        if found is None:
            return self.stopped(played.results)
        print_lines(*value_lines(found))
        self.say(f"written to {out}")
        return Exit.FAILURES if played.results.has_failures else Exit.OK

    def _is_only_described(self, planned: PlannedFork, out: Path) -> bool:
        """Say what the fork will take; what was left out is said even if quiet. Whether that is all that is asked."""
        for note in planned.notes:
            say(note)
        if not self.dry_run:
            self.say(_budget(planned))
            return False
        print_lines(*_described(planned, out))
        check_weights(planned, SystemClock())
        return True

    def _ended(self, played: Played, directory: Path) -> Exit:
        if not played.is_new:
            self.say(f"{directory}: {played.results.ended}; nothing to run")
            return self.results(played.results, directory)
        return self.ended(played.results, directory)


def arm_of(reply: str | None, reply_file: Path | None) -> Arm:
    """What happens at the turn of a fork. Raises ConfigError for a file that cannot be read."""
    if reply_file is None:
        return arm_of_reply(reply)
    try:
        text = read_material(reply_file).decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"--reply-file: {reply_file} is not UTF-8; save it as UTF-8") from None
    return arm_of_reply(text)


def policies_of(texts: Iterable[str]) -> tuple[Policy, ...]:
    """The values of `--policy`. Raises ConfigError for what is none, and for two of one model."""
    found: dict[str, Policy] = {}
    for text in texts:
        model, _, rest = text.partition("=")
        version, colon, path = rest.partition(":")
        if not model or not version.isdecimal() or (colon and not path):
            raise ConfigError(f"--policy: found {text!r}; write MODEL=VERSION or MODEL=VERSION:PATH")
        if model in found:
            raise ConfigError(f"--policy: model {model!r} is named twice; leave one out")
        found[model] = Policy(model, version=int(version), weights=path or None)
    return tuple(found.values())


def _budget(planned: PlannedFork) -> str:
    budget = planned.budget
    tokens = budget.tokens
    spent = f", {tokens.prompt:,} prompt and {tokens.completion:,} reply tokens" if tokens.is_counted else ""
    return f"{budget.conversations} conversations, about {budget.turns:,} turns{spent}, by what the parent took"


def _described(planned: PlannedFork, out: Path) -> Iterator[str]:
    yield f"run directory  {out}"
    for parent in planned.record.parents:
        yield f"fork           of {parent['task']} at turn {parent['turn']}, after {parent['kept']} replies"
    yield f"budget         {_budget(planned)}"
    for model, versions in planned.policies.items():
        yield f"policy         model {model} plays with version {versions[-1].version}"
    if planned.record.is_off_policy:
        yield "off-policy     replies are kept for other prompts, or were written by hand"


VERBS = commands(run=Run, retry=Retry, fork=Fork)
