"""`stream`: the conversations of an experiment as they end, for a loop that learns from them or looks at them.

Forks from Python: `fork` and `value`, as `mac-run fork`.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mac_runner.api.calls import (
    OnEvent,
    Settings,
    call_of,
    checked_reaction,
    checked_texts,
    count_of,
    display_of,
    policies_of,
)
from mac_runner.api.experiment import ExperimentLike
from mac_runner.api.playing import ConversationEnded, Playing, events_of, wait_for, waker
from mac_runner.clock import SystemClock
from mac_runner.errors import ConfigError, RunDirectoryError, WeightUpdateError
from mac_runner.runs.fork_plan import ForkRequest, PlannedFork, arm_of_reply, plan_fork
from mac_runner.runs.forks import ValueRequest, checked_figure, value_in, written_fork
from mac_runner.runs.policies import Policy, PolicyRequest
from mac_runner.runs.recorded import trust as trust_code
from mac_runner.runs.setup import ExperimentSet, set_up
from mac_runner.runs.view import PathLike, RecordedConversation, RunView, directory_of, open_run
from mac_runner.store import has_run
from mac_runner.types import JsonObject
from mac_runner.weights import Weights, weights_of


class Stream(AsyncGenerator[RecordedConversation, None]):
    """The conversations of a run as they end: an async generator, and an async context manager that closes it."""

    def __init__(
        self, begin: Callable[[_Begun], AsyncGenerator[RecordedConversation, None]], models: Sequence[str]
    ) -> None:
        """`begin` plays the run once the first conversation is asked for; a trainer updates `models`."""
        self._begun = _Begun()
        self._conversations = begin(self._begun)
        self._models = models

    async def update_weights(
        self,
        weights: Weights | str,
        version: int | None = None,
        model: str | None = None,
        *,
        blocking: bool = True,
    ) -> int:
        """Give the engines of a model new weights, and return their version: the next one, or `version`.

        `weights` are tensors by name, the path of a safetensors file or of a directory of them, or a `Broadcast`. On
        return, every later token is of this version. With `blocking`, no token is made while the weights come; without,
        the engines go on with those they have until then. Replies under way keep what they have, and name both
        versions. `model` may be left out where one model has a policy. Where engines still start, this waits for them.

        Raises a WeightUpdateError, after which the run goes on with the weights it had: WeightMismatchError for other
        names, shapes or dtypes, StaleVersionError for a version that is not new, UpdateInProgressError, BroadcastError;
        and WeightUpdateError itself before the run has begun and after it has ended.
        """
        if not self._models:
            raise ConfigError("the stream has no policy; name the model whose weights change: stream(..., policy=...)")
        if model is None and len(self._models) > 1:
            raise ConfigError(f"several models have a policy ({', '.join(self._models)}); name one with `model`")
        if (playing := self._begun.playing) is None:
            raise WeightUpdateError("the run has not begun: it begins when its first conversation is asked for")
        number = count_of("version", version)
        model = self._models[0] if model is None else model
        return await playing.update_weights(model, weights_of(weights), number, blocking=blocking)

    async def asend(self, value: None) -> RecordedConversation:
        """The next conversation."""
        return await self._conversations.asend(value)

    async def athrow(self, *fault: Any) -> RecordedConversation:
        """Raise in the generator, which stops the run in good order."""
        return await self._conversations.athrow(*fault)

    async def aclose(self) -> None:
        """Stop the run in good order."""
        await self._conversations.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


@dataclass(slots=True)
class _Begun:
    """The run of a stream, once it has begun."""

    playing: Playing | None = None


def stream(
    experiment: ExperimentLike,
    *,
    policy: Policy | Sequence[Policy] | None = None,
    out: str | os.PathLike[str] | None = None,
    set: Settings | None = None,
    profile: str | None = None,
    seed: int | None = None,
    limit: int | None = None,
    shard: str | None = None,
    concurrency: int | None = None,
    pull: bool = False,
    skip_ended: bool = False,
    progress: bool | None = None,
) -> Stream:
    """Play an experiment, or go on with it, and yield each conversation once, when its transcript is on the disk.

    Those that ended before this call come first, in the order of the experiment, unless `skip_ended`; then the others,
    in the order in which they end. Failed ones come too. A loop that is slower than the engines holds up nothing: what
    ended waits on the disk, and only its name in memory.

    With a `policy`, the weights of its model may change while the run goes on (`Stream.update_weights`), and engines
    stay up until the last conversation has been taken and the next one is asked for.

    Leaving the loop stops the run in good order once the stream is closed; `async with` closes it at once. Raises what
    `run` raises.
    """
    policies = policies_of(policy)

    async def conversations(begun: _Begun) -> AsyncGenerator[RecordedConversation, None]:
        call = call_of(experiment, out, set, profile, seed, limit, shard, concurrency, pull, progress)
        woken, ended = asyncio.Event(), _Ended()
        begun.playing = playing = call.playing(
            lambda: set_up(call.request),
            waker(asyncio.get_running_loop(), woken),
            on_checked=None if skip_ended else ended.look,
            policy=PolicyRequest(policies=policies, skips_ended=skip_ended),
        )
        async with aclosing(events_of(playing, woken)) as events:
            async for event in events:
                while (conversation := await asyncio.to_thread(ended.next)) is not None:
                    yield conversation
                if isinstance(event, ConversationEnded):
                    yield await asyncio.to_thread(ended.of, event)
        while (conversation := await asyncio.to_thread(ended.next)) is not None:
            yield conversation
        for conversation in ended.repaired():
            yield conversation

    return Stream(conversations, [each.model for each in policies])


class _Ended:
    """The conversations that ended, before this session or in it. Each is read from the disk when its turn comes."""

    def __init__(self) -> None:
        self._earlier: Iterator[RecordedConversation] = iter(())
        self._damaged: dict[str, RecordedConversation] = {}
        self._runs: dict[Path, RunView] = {}

    def look(self, chosen: ExperimentSet) -> None:
        """Note what has ended, before the run begins."""
        found = [(setup, open_run(setup.directory)) for setup in chosen.setups if has_run(setup.directory)]
        self._earlier = (
            conversation
            for setup, view in found
            for wanted in [{task_id for task_id, _ in setup.tasks.ids()}]
            for conversation in view
            if conversation.task_id in wanted
        )

    def next(self) -> RecordedConversation | None:
        """The next that ended before this session. The run repairs a damaged one, or plays it again: it comes later."""
        for conversation in self._earlier:
            try:
                return _read(conversation)
            except RunDirectoryError:
                self._damaged[conversation.task_id] = conversation
        return None

    def of(self, event: ConversationEnded) -> RecordedConversation:
        """A conversation that ended in this session."""
        self._damaged.pop(event.task_id, None)
        if event.directory not in self._runs:
            self._runs[event.directory] = open_run(event.directory)
        row: JsonObject = {
            "task_id": event.task_id,
            "index": event.index,
            "status": event.status,
            "failure": event.failure,
            "sha256": event.sha256,
            "size_bytes": event.size_bytes,
        }
        return _read(self._runs[event.directory].of_row(row))

    def repaired(self) -> Iterator[RecordedConversation]:
        """Those that were damaged when the run began. Raises RunDirectoryError where they still are."""
        return map(_read, self._damaged.values())


def _read(conversation: RecordedConversation) -> RecordedConversation:
    """The same conversation, with its transcript in memory. Raises RunDirectoryError where that is damaged."""
    assert conversation.transcript
    return conversation


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
    arguments are the flags of `mac-run fork --value`; `agent` is `--for`.
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
