"""`mac-run fork`: other ways in which a recorded conversation might have gone on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from mac_runner.cli.process import Exit, report, say
from mac_runner.cli.run import ending, player_of, print_results
from mac_runner.clock import SystemClock
from mac_runner.errors import ConfigError
from mac_runner.files import read_material
from mac_runner.runs.fork_plan import Arm, ForkRequest, PlannedFork, arm_of_reply, plan_fork
from mac_runner.runs.forks import Played, ValueRequest, check_weights, continue_fork, play_fork, turn_value, value_lines
from mac_runner.runs.policies import Policy


def fork(
    request: ForkRequest, out: Path, *, is_dry: bool, concurrency: int | None, is_quiet: bool, is_live: bool | None
) -> Exit:
    """Write the fork, unless it is there already, and play what is left of it."""
    planned = plan_fork(request)
    _say_planned(planned, out, is_dry=is_dry, is_quiet=is_quiet)
    if is_dry:
        check_weights(planned, SystemClock())
        return Exit.OK
    player = player_of(concurrency=concurrency, is_quiet=is_quiet, is_live=is_live, policies=request.policies)
    return _ended(play_fork(planned, out, player), out, is_quiet=is_quiet)


def go_on(
    directory: Path,
    policies: tuple[Policy, ...],
    *,
    concurrency: int | None,
    is_quiet: bool,
    is_live: bool | None,
) -> Exit:
    """Play what is left of a fork."""
    player = player_of(concurrency=concurrency, is_quiet=is_quiet, is_live=is_live, policies=policies)
    return _ended(continue_fork(directory, player), directory, is_quiet=is_quiet)


def value(
    request: ValueRequest,
    out: Path | None,
    *,
    is_dry: bool,
    concurrency: int | None,
    is_quiet: bool,
    is_live: bool | None,
) -> Exit:
    """Play the arms of a turn, and print what the reply was worth."""
    planned = plan_fork(request.fork)
    out = out or request.directory(planned)
    _say_planned(planned, out, is_dry=is_dry, is_quiet=is_quiet)
    if is_dry:
        check_weights(planned, SystemClock())
        return Exit.OK
    player = player_of(concurrency=concurrency, is_quiet=is_quiet, is_live=is_live, policies=request.policies)
    found, played = turn_value(request, planned, out, player)
    if found is None:
        return ending(played.results, Exit.INTERRUPTED, is_quiet=is_quiet)
    with report() as stream:
        stream.writelines(f"{line}\n" for line in value_lines(found))
    if not is_quiet:
        say(f"written to {out}")
    return Exit.FAILURES if played.results.has_failures else Exit.OK


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


def _ended(played: Played, directory: Path, *, is_quiet: bool) -> Exit:
    results = played.results
    if not played.is_new and not is_quiet:
        say(f"{directory}: {results.ended}; nothing to run")
    exit_code = print_results(results, directory, is_quiet=is_quiet)
    return ending(results, exit_code, is_quiet=is_quiet) if played.is_new else exit_code


def _say_planned(planned: PlannedFork, out: Path, *, is_dry: bool, is_quiet: bool) -> None:
    """Say what the fork will take; what was left out is said even if quiet."""
    for note in planned.notes:
        say(note)
    if is_dry:
        with report() as stream:
            stream.writelines(f"{line}\n" for line in _described(planned, out))
    elif not is_quiet:
        say(_budget(planned))


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
