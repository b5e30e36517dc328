"""Forks from Python: `fork` and `value`, as `mac-run fork` and `mac-run value`."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from mac_runner.api.calls import OnEvent, Settings, checked_reaction, checked_texts, count_of, display_of, policies_of
from mac_runner.api.playing import Playing, wait_for
from mac_runner.clock import SystemClock
from mac_runner.errors import ConfigError
from mac_runner.runs.fork_plan import ForkRequest, PlannedFork, arm_of_reply, plan_fork
from mac_runner.runs.forks import ValueRequest, checked_figure, value_in, written_fork
from mac_runner.runs.policies import Policy, PolicyRequest
from mac_runner.runs.recorded import trust as trust_code
from mac_runner.runs.view import PathLike, RunView, directory_of, open_run
from mac_runner.types import JsonObject


def fork(
    run: PathLike,
    game: str | int | None = None,
    *,
    turn: str,
    out: PathLike,
    where: Iterable[str] = (),
    round: bool = False,
    set: Settings | None = None,
    seats: Mapping[str, str] | None = None,
    draws: int = 1,
    reply: str | None = None,
    rebase: bool = False,
    policy: Policy | Sequence[Policy] | None = None,
    trust: bool = False,
    concurrency: int | None = None,
    on_event: OnEvent | None = None,
    progress: bool | None = None,
) -> RunView:
    """Play conversation `game` of `run` again from `turn` on, in the run directory `out`, and return that.

    The arguments are the flags of `mac-run fork`; `seats` has the other model of each agent that has one. The same
    call goes on with a fork that was stopped. Raises ConfigError for a request that cannot be met, and what
    `mac_runner.run` raises.
    """
    if isinstance(where, str):
        raise ConfigError(f"where: found the text {where!r}; write a list of conditions, such as [{where!r}]")
    conditions = tuple(where)
    if (game is None) == (not conditions):
        raise ConfigError("fork: give a game, or conditions in where, and not both")
    directory = directory_of("out", out)
    request = ForkRequest(
        run=Path(run),
        game=None if game is None else str(game),
        turn=turn,
        where=conditions,
        is_round=round,
        overrides=_texts(set),
        seats=tuple(f"{agent}.model={model}" for agent, model in (seats or {}).items()),
        draws=range(count_of("draws", draws) or 1),
        arms=(arm_of_reply(reply),),
        is_rebased=rebase,
        policies=policies_of(policy),
    )
    if trust:
        trust_code([request.run])
    planned = plan_fork(request)
    _play(planned, directory, concurrency, on_event, progress)
    return open_run(directory)


def value(
    run: PathLike,
    game: str | int,
    *,
    turn: str,
    draws: int,
    outcome: str | None = None,
    agent: str | None = None,
    silence: bool = False,
    policy: Policy | Sequence[Policy] | None = None,
    out: PathLike | None = None,
    trust: bool = False,
    concurrency: int | None = None,
    on_event: OnEvent | None = None,
    progress: bool | None = None,
) -> JsonObject:
    """What the reply to `turn` was worth: how the chance to win of `agent` differs if it is drawn again.

    Returns what `value.json` of the fork has: each arm with its mean and interval, and the paired differences. The
    arguments are the flags of `mac-run value`; `agent` is `--for`.
    """
    directory = None if out is None else directory_of("out", out)
    request = ValueRequest(
        run=Path(run),
        game=str(game),
        turn=turn,
        draws=count_of("draws", draws) or 1,
        outcome=outcome,
        agent=agent,
        has_silence=silence,
        policies=policies_of(policy),
    )
    if trust:
        trust_code([request.run])
    planned = plan_fork(request.fork)
    directory = directory or request.directory(planned)
    figure = checked_figure(request, planned)
    _play(planned, directory, concurrency, on_event, progress)
    return value_in(directory, request, planned, figure)


def _texts(settings: Settings | None) -> tuple[str, ...]:
    """The settings as `--set` takes them, which is how a fork records them."""
    if isinstance(settings, Mapping):
        return tuple(f"{key}={json.dumps(value)}" for key, value in settings.items())
    return checked_texts(settings or ())


def _play(
    planned: PlannedFork, out: Path, concurrency: int | None, on_event: OnEvent | None, progress: bool | None
) -> None:
    woken = threading.Event()
    playing = Playing(
        lambda: written_fork(planned, out, SystemClock()),
        wake=woken.set,
        display=display_of(progress),
        concurrency=count_of("concurrency", concurrency),
        can_pull=False,
        policy=PolicyRequest(policies=planned.given),
    )
    wait_for(playing, woken, checked_reaction(on_event))
