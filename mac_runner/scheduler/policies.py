"""The weights of a run's engines while a trainer changes them: versions, updates, and what the journals say of them.

All methods are for the event loop of the run. What a version is made of is named in each run directory before the first
reply of that version: when an update has ended, or when a reply of its version arrives before that.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from weakref import WeakKeyDictionary

from mac_runner.backends.base import Backend
from mac_runner.checkpoints import digest_of
from mac_runner.errors import StaleVersionError, UpdateInProgressError, WeightUpdateError
from mac_runner.scheduler.state import Source
from mac_runner.types import JsonObject, PolicyVersion, RecordedReply, Reply, Task
from mac_runner.weights import Broadcast, Weights, WeightUpdate, stale


class PolicyWindow:
    """Which conversations may begin while a trainer changes the weights: a pure rule.

    It admits those whose rollouts will be at most `max_lag` versions old; without `max_lag` all of them.

    A trainer makes a version of every `batch` conversations that finish, in the order in which they finish. So the
    n-th of them is used at version `first + (n - 1) // batch`. A conversation that begins at version v may be at most
    `max_lag` versions old when it is used; so while it is open, at most `(v - first + max_lag + 1) * batch`
    conversations may have begun. The window keeps to this for the oldest open conversation, and so for all: one that
    takes long holds back others, and is not overtaken by so many of them that it is too old when it ends.

    This never waits for ever. Where nothing is open, the trainer has all that finished, and that is a whole batch or
    more. A conversation that failed does not count, because a trainer cannot use it.

    `first` is the version with which the trainer began.
    """

    def __init__(self, max_lag: int | None, batch: int, *, first: int = 0, version: int | None = None) -> None:
        self.version = first if version is None else version
        self._max_lag = max_lag
        self._batch = batch
        self._first = first
        self._finished = 0
        self._open: dict[Hashable, int] = {}
        self._versions: Counter[int] = Counter()

    @property
    def oldest(self) -> int:
        """The lowest version that an open conversation began with, or the present one."""
        return min([self.version, *self._versions])

    @property
    def lag(self) -> int:
        """How many versions the oldest open conversation is behind."""
        return self.version - self.oldest

    @property
    def is_open(self) -> bool:
        """Whether one more conversation may begin."""
        if self._max_lag is None:
            return True
        begun = self._finished + len(self._open)
        return begun < (self.oldest - self._first + self._max_lag + 1) * self._batch

    def holds(self, conversation: Hashable) -> bool:
        """Whether a conversation has begun and has not ended."""
        return conversation in self._open

    def add_finished(self, conversations: int) -> None:
        """Count conversations that finished before."""
        self._finished += conversations

    def begin(self, conversation: Hashable, version: int | None = None) -> None:
        """A conversation begins, or began in an earlier session with `version`."""
        began_with = self.version if version is None else version
        self._open[conversation] = began_with
        self._versions[began_with] += 1

    def end(self, conversation: Hashable, *, is_finished: bool) -> None:
        """A conversation ended; one that failed counts no more."""
        began_with = self._open.pop(conversation)
        self._versions[began_with] -= 1
        if not self._versions[began_with]:
            del self._versions[began_with]
        self._finished += is_finished

    def update(self, version: int) -> None:
        """The trainer made a version."""
        self.version = version


@dataclass(slots=True, eq=False, kw_only=True)
class EngineWeights:
    """The weights of one engine."""

    engine: str
    models: frozenset[str]
    """What experiments call the model that it serves."""
    present: PolicyVersion
    weights: Weights | None = None
    """What is loaded when the engine starts; None for what its settings name."""
    versions: list[PolicyVersion] = field(default_factory=list)
    """Those of this session."""
    coming: PolicyVersion | None = None
    """What an update under way brings."""
    is_updating: bool = False
    check: Callable[[Backend], None] = lambda _backend: None
    """Raises ConfigError for a backend that takes no new weights."""
    backend: Backend | None = None
    """The engine, while it is up."""
    up: asyncio.Event = field(default_factory=asyncio.Event)


class Policies:
    """The engines whose weights change, and the window of each model that a trainer trains."""

    def __init__(
        self,
        engines: Sequence[EngineWeights],
        windows: Mapping[str, PolicyWindow],
        *,
        log: Callable[[str, JsonObject], None],
        sources: Callable[[], Iterable[Source]],
        restarts: bool = False,
        counts_finished: bool = True,
    ) -> None:
        """`log` takes events, and `sources` gives the experiments whose run directories are open.

        `restarts` says that engines close and start again during the run, and `counts_finished` that the trainer gets
        what finished in earlier sessions.
        """
        self._counts_finished = counts_finished
        self.windows = windows
        self._engines = {each.engine: each for each in engines}
        self._log = log
        self._sources = sources
        self._restarts = restarts
        self._noted: WeakKeyDictionary[Source, dict[str, int]] = WeakKeyDictionary()
        """How many versions of each engine are in the journal of an experiment."""
        self._changed = asyncio.Event()
        for each in engines:
            each.versions = [each.present]

    # Engines that come and go.

    def check(self, backends: Mapping[str, Backend]) -> None:
        """Raise ConfigError for an engine that takes no new weights and would need them."""
        for engine, backend in backends.items():
            if (held := self._engines.get(engine)) is not None:
                held.check(backend)

    async def started(self, engine: str, backend: Backend) -> None:
        """Give an engine that has started the weights that the run has. Raises WeightUpdateError too."""
        if (held := self._engines.get(engine)) is None:
            return
        held.check(backend)  # Some servers say only now that they take no weights.
        if held.weights is not None:
            await backend.update_weights(WeightUpdate(version=held.present.version, weights=held.weights))
        held.backend = backend
        held.up.set()

    def closing(self, engines: Iterable[str]) -> None:
        """These engines take no weights until they have started again."""
        for held in (self._engines[engine] for engine in engines if engine in self._engines):
            held.backend = None
            held.up.clear()

    # Which conversations begin.

    def joined(self, source: Source, finished: int, half_done: Iterable[tuple[Task, Sequence[RecordedReply]]]) -> None:
        """Take in a run directory that was opened: what finished there, and what is half done."""
        windows = self._windows_of(source)
        for _, window in windows:
            window.add_finished(finished if self._counts_finished else 0)
        for task, replies in half_done:
            for model, window in windows:
                window.begin((source, task.task_id), _first_version(task, model, replies))

    async def admit(self, source: Source, task_id: str) -> None:
        """Wait until a conversation may begin, and count it as begun."""
        conversation = (source, task_id)
        while closed := [model for model, window in self._windows_of(source) if not _admits(window, conversation)]:
            self._log("EVENT_POLICY_WAIT", {"task": task_id, "models": [*closed]})
            self._changed.clear()
            while not all(_admits(self.windows[model], conversation) for model in closed):
                await self._changed.wait()
                self._changed.clear()
        for _, window in self._windows_of(source):
            if not window.holds(conversation):
                window.begin(conversation)
        self._note(source)

    def ended(self, source: Source, task_id: str, *, is_finished: bool) -> None:
        """A conversation ended and is acknowledged: what ends after it, in whichever directory, comes after it."""
        for _, window in self._windows_of(source):
            window.end((source, task_id), is_finished=is_finished)
        self._changed.set()

    def _windows_of(self, source: Source) -> list[tuple[str, PolicyWindow]]:
        return [(model, window) for model, window in self.windows.items() if model in source.engines]

    # What the journals say.

    def before_reply(self, source: Source, model: str, reply: Reply) -> None:
        """Have the versions that made a reply in the journal before the reply is."""
        held = self._engines.get(source.engines[model])
        if held is None or reply.policy is None:
            return
        if held.coming is not None and reply.policy.end >= held.coming.version:
            self._arrived(held)
        self._note(source)

    def _note(self, source: Source) -> None:
        noted = self._noted.setdefault(source, {})
        for held in self._engines.values():
            known = noted.get(held.engine, len(held.versions) - 1)
            if known == len(held.versions):
                continue
            for model in (model for model, engine in source.engines.items() if engine == held.engine):
                for version in held.versions[known:]:
                    source.recorder.policy(model, version)
            noted[held.engine] = len(held.versions)

    # Updates.

    async def update(self, model: str, weights: Weights, version: int | None, *, blocking: bool) -> int:
        """Install weights in every engine that serves `model`; their version.

        Raises a WeightUpdateError, after which the engines go on with the weights that they had.
        """
        engines = [each for each in self._engines.values() if model in each.models]
        if not engines:
            known = ", ".join(sorted({name for each in self._engines.values() for name in each.models})) or "none"
            raise WeightUpdateError(f"model {model!r} has no policy; name it in `policy` of the call (has: {known})")
        if any(each.is_updating for each in engines):
            raise UpdateInProgressError(f"model {model}: another update is under way; wait for it and try again")
        if self._restarts and not isinstance(weights, Path):
            raise WeightUpdateError(
                f"model {model}: the engines of this grid take turns, and one that starts again reads the weights "
                "again; give the path of a safetensors checkpoint"
            )
        for each in engines:
            each.is_updating = True
        try:
            return await self._update(model, engines, weights, version, blocking=blocking)
        finally:
            for each in engines:
                each.is_updating = False

    async def _update(
        self, model: str, engines: Sequence[EngineWeights], weights: Weights, version: int | None, *, blocking: bool
    ) -> int:
        newest = max(each.present.version for each in engines)
        number = newest + 1 if version is None else version
        refusal = StaleVersionError(stale(number, newest, f"model {model}"))
        if number < newest:
            raise refusal
        path = str(weights.resolve()) if isinstance(weights, Path) else None
        digest = None if isinstance(weights, Broadcast) else await asyncio.to_thread(digest_of, weights)
        named = PolicyVersion(number, digest, path)
        # An update that failed in one of several engines may be tried again.
        behind = [
            each for each in engines if each.present.version != number or digest not in (None, each.present.sha256)
        ]
        if not behind or any(each.present.version == number for each in behind):
            raise refusal
        update = WeightUpdate(version=number, weights=weights, blocking=blocking, is_shared=len(behind) > 1)
        # What one engine refuses, each would refuse: the first is asked alone. A trainer sends to all at once.
        alone = 0 if isinstance(weights, Broadcast) else 1
        for each in behind[:alone]:
            await self._install(each, update, named)
        installing = [asyncio.ensure_future(self._install(each, update, named)) for each in behind[alone:]]
        if installing:
            await asyncio.wait(installing)
        failed = {
            each.engine: fault
            for each, task in zip(behind[alone:], installing, strict=True)
            if (fault := task.exception()) is not None
        }
        for engine, fault in failed.items():
            if isinstance(fault, WeightUpdateError) and len(failed) < len(engines):
                self._log("EVENT_POLICY_BEHIND", {"model": engine, "version": number, "why": str(fault)})
                raise type(fault)(
                    f"{fault}; other engines of model {model} have version {number}, and {', '.join(sorted(failed))} "
                    f"not: give the same weights with version={number} again"
                ) from fault
            raise fault
        return number

    async def _install(self, held: EngineWeights, update: WeightUpdate, named: PolicyVersion) -> None:
        if self._restarts and not held.up.is_set():  # It reads them when its turn comes.
            held.weights = update.weights
            self._arrive(held, named)
            return
        await held.up.wait()
        assert held.backend is not None, "an engine that is up takes updates"
        held.coming = named
        try:
            digest = await held.backend.update_weights(update)
            if digest is None:
                self._arrived(held)
            else:  # A reply may have come before the digest: then the version is named again, with it.
                self._arrive(held, named._replace(sha256=digest))
        finally:
            held.coming = None
        held.weights = update.weights if self._restarts else None

    def _arrived(self, held: EngineWeights) -> None:
        """Later tokens of an engine are of the version that was coming."""
        if (named := held.coming) is not None:
            held.coming = None
            self._arrive(held, named)

    def _arrive(self, held: EngineWeights, named: PolicyVersion) -> None:
        held.present = named
        held.versions.append(named)
        for model in held.models & self.windows.keys():
            versions = (each.present.version for each in self._engines.values() if model in each.models)
            self.windows[model].update(min(versions))
        for source in self._sources():
            self._note(source)
        fields: JsonObject = {"model": held.engine, **named._asdict()}
        self._log("EVENT_POLICY_UPDATE", fields)
        self._changed.set()


def _first_version(task: Task, model: str, replies: Iterable[RecordedReply]) -> int | None:
    """The first version of `model` that made one of the replies; None where none has a version."""
    models = {agent.agent_id: agent.model for agent in task.agents}
    return min(
        (
            recorded.reply.policy.start
            for recorded in replies
            if recorded.reply.policy is not None
            and (recorded.model or models.get(recorded.turn_key.split("/")[1])) == model
        ),
        default=None,
    )


def _admits(window: PolicyWindow, conversation: Hashable) -> bool:
    return window.holds(conversation) or window.is_open
