"""`mac-run FILE`: plays an experiment or a grid, or says what it would play."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mac_runner.backends.fleet.settings import FleetModelConfig
from mac_runner.cli.process import Exit, report, say, stop_on_signals
from mac_runner.cli.view import Pages, viewed
from mac_runner.clock import SystemClock
from mac_runner.config import in_words
from mac_runner.errors import ConfigError
from mac_runner.extras import install_command
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
from mac_runner.runs.maintenance import mirrored
from mac_runner.runs.play import INTERRUPTED, Player, Results, results_if_complete
from mac_runner.runs.policies import Policy, PolicyRequest
from mac_runner.runs.setup import ExperimentSet, RunRequest, Setup, first_prompts, set_up
from mac_runner.status import choose_display
from mac_runner.store import Survey, survey
from mac_runner.types import Prompt


def run(
    request: RunRequest,
    *,
    concurrency: int | None,
    is_quiet: bool,
    is_live: bool | None,
    pages: Pages | None = None,
    fleet: Path | None = None,
) -> Exit:
    """Play what is left, print the results, and say how it ended. With `fleet`: on the engines of that held fleet."""
    chosen = set_up(request)
    if (complete := results_if_complete(chosen, SystemClock())) is not None:
        with mirrored(chosen, request.mirror, say, is_quiet=is_quiet):
            pass
        _say(f"{chosen.directory}: {complete.ended}; nothing to run", is_quiet=is_quiet)
        return print_results(complete, chosen.directory, is_quiet=is_quiet)
    for warning in chosen.warnings:
        _say(f"warning: {warning}", is_quiet=is_quiet)
    player = player_of(concurrency=concurrency, can_pull=request.can_pull, is_quiet=is_quiet, is_live=is_live)
    if fleet is not None:
        player = _attached(player, chosen, fleet)
    placed = chosen.anchored()
    with mirrored(placed, request.mirror, say, is_quiet=is_quiet) as on_complete, viewed(chosen.directory, pages):
        results = replace(player, on_complete=on_complete).play(placed)
    exit_code = print_results(results, chosen.directory, is_quiet=is_quiet)
    return ending(results, exit_code, is_quiet=is_quiet)


def _attached(player: Player, chosen: ExperimentSet, fleet: Path) -> Player:
    """The player with a fleet that another process holds. Raises ConfigError where no model would use it."""
    # Here, because every run would wait for the HTTP library.
    from mac_runner.runs.held_fleet import attached_to

    definitions = [each for setup in chosen.setups for each in setup.experiment.model_definitions.values()]
    if not any(isinstance(each.backend_settings, FleetModelConfig) for each in definitions):
        raise ConfigError("--fleet: no model of this experiment has `backend: fleet`; leave --fleet out")
    return replace(player, fleet=attached_to(fleet))


def player_of(
    *,
    concurrency: int | None,
    is_quiet: bool,
    is_live: bool | None,
    can_pull: bool = False,
    policies: tuple[Policy, ...] = (),
) -> Player:
    """A player that shows the run on stderr and stops at a signal."""
    display = choose_display(sys.stderr, live=is_live, quiet=is_quiet)
    return Player(
        display=display,
        stopping=lambda stop: stop_on_signals(stop, display.say),
        concurrency=concurrency,
        can_pull=can_pull,
        policy=PolicyRequest(policies=policies),
        warn=say if is_quiet else None,
    )


def print_results(results: Results, directory: Path, *, is_quiet: bool) -> Exit:
    """Print what a run came to; the exit code says whether conversations failed or nothing was usable."""
    if not is_quiet and results.summary:
        with report() as stream:
            write_ending(results.summary, directory, stream, rows=results.rows, compared=results.compared)
        if not results.is_interrupted:
            _say_extras(results)
    else:
        for line in results.unusable:
            say(line)
    return Exit.FAILURES if results.has_failures else Exit.OK


def _say_extras(results: Results) -> None:
    """Say what a grid could have besides, with packages that are not installed."""
    if results.rows is not None and not has_parquet():
        say(f"for Parquet beside it: {install_command('parquet')}")
    if lacks_stats(results.compared):
        say(f"for paired differences and ratings: {install_command('stats')}")


def ending(results: Results, exit_code: Exit, *, is_quiet: bool) -> Exit:
    """The exit code of a run that was played; says how one that was stopped can go on."""
    if results.is_interrupted:
        how = "run" if results.stopped_by == INTERRUPTED else "raise the limit and run"
        _say(f"{results.stopped_by}: {results.ended}; {how} the same command again to go on", is_quiet=is_quiet)
        return Exit.INTERRUPTED
    return exit_code


def describe(request: RunRequest, *, is_quiet: bool) -> Exit:
    """`--dry-run`: print what would run and how much is left; touches nothing."""
    chosen = set_up(request)
    engines = plan_engines(
        chosen.setups,
        chosen.setups,
        SystemClock(),
        lambda line: _say(line, is_quiet=is_quiet),
        is_dry=True,
    )
    if chosen.claimed is not None:
        check(chosen)
    surveys = {setup.slug: survey(setup.invocation) for setup in chosen.setups}
    lines = [*(_of_one(chosen, surveys) if chosen.grid is None else _of_grid(chosen, surveys, engines))]
    if on_fleet := [engine.name for engine in engines.engines.values() if engine.is_on_fleet]:
        lines.append(f"fleet          {', '.join(on_fleet)}; mac-run doctor FILE --fleet shows where their engines run")
    limits = chosen.setups[0].experiment.limits
    if limits is not None and (asked := limits.model_dump(exclude_none=True)):
        lines.append(f"limits         {', '.join(f'{key} {value:,}' for key, value in asked.items())}")
    with report() as stream:
        stream.write("\n".join([*lines, *(f"warning        {warning}" for warning in chosen.warnings)]) + "\n")
        if design := [*_design(chosen)]:
            stream.write("\n")
            write_tables(design, stream)
    return Exit.OK


def preview(request: RunRequest, number: int, agent: str | None) -> Exit:
    """`--dry-run --prompt`: print the first prompts of a conversation; of a grid, in its first combination."""
    chosen = set_up(request)
    found = list(first_prompts(chosen.setups[0], number, agent))
    if chosen.grid is not None:
        _say(f"in the first of {len(chosen.setups)} combinations, {chosen.setups[0].slug}", is_quiet=False)
    with report() as stream:
        for turn, prompt in found:
            text = f"=== turn {turn.key}, sent to {turn.model}\n{prompt_text(prompt)}=== {_held_to(prompt)}\n"
            stream.write(printable_lines(text) if stream.isatty() else text)
    return Exit.OK


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


def _of_one(chosen: ExperimentSet, surveys: Mapping[str, Survey]) -> Iterator[str]:
    (setup,) = chosen.setups
    found, experiment, shard = surveys[setup.slug], setup.experiment, chosen.claimed or setup.shard
    models = ", ".join(f"{name} ({definition.backend})" for name, definition in experiment.model_definitions.items())
    yield f"experiment     {setup.name}, profile {experiment.profile}, seed {experiment.seed}"
    yield f"environment    {setup.environment_name}"
    yield f"models         {models}"
    yield f"run directory  {setup.directory}{'' if shard is None else f', shard {shard}'}"
    yield _conversations(surveys.values())
    yield from (f"changed        {change}" for change in found.changed_settings)


def _of_grid(grid: ExperimentSet, surveys: Mapping[str, Survey], engines: EnginePlan) -> Iterator[str]:
    complete = sum(found.is_complete for found in surveys.values())
    lines = [
        f"grid           {grid.name}, profile {grid.profile}",
        f"run directory  {grid.directory}",
        f"combinations   {len(grid.setups)} asked for: {complete} complete, {len(grid.setups) - complete} to run",
        _conversations(surveys.values()),
    ]
    for number, phase in enumerate(phases := engines.phases(grid.setups), start=1):
        names = ", ".join(f"{engine.name} ({engine.definition.backend})" for engine in phase.engines)
        which = "engines" if len(phases) == 1 else f"phase {number}"
        lines.append(f"{which:<15}{names}, shared by {len(phase.setups)} combinations")
    if grid.left_out:
        lines.append(
            f"left out       {len(grid.left_out)} of earlier, not asked for any more: {', '.join(grid.left_out)}"
        )
    yield from map(printable, (*lines, "", *_tree(grid.setups, surveys)))


def _conversations(surveys: Iterable[Survey]) -> str:
    counts = Counter[str]()
    for found in surveys:
        counts += Counter(
            planned=found.planned,
            finished=found.finished,
            failed=found.failed,
            half_done=found.half_done,
            replies=found.recorded_replies,
            untouched=found.untouched,
        )
    return (
        f"conversations  {counts['planned']} asked for: {counts['finished']} finished, {counts['failed']} failed, "
        f"{counts['half_done']} half done ({counts['replies']} replies recorded), {counts['untouched']} not begun"
    )


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


def _say(text: str, *, is_quiet: bool) -> None:
    if not is_quiet:
        say(text)
