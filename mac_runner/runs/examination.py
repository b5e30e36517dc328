"""Examines the models of an experiment one by one: starts each, asks it for one token and for a real reply, closes it.

Nothing is inferred from health pages or model lists. Each address of a model is examined alone, since together they
would cover for each other. The real reply is to the first prompt of the experiment: it shows whether the engine takes
the form that replies are to be held to, and keeps to it. If not, weaker settings of `constrained_decoding` are tried.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from mac_runner.backends import Backend
from mac_runner.backends.base import held
from mac_runner.backends.fleet.settings import FleetModelConfig, ModelLanes
from mac_runner.clock import Clock
from mac_runner.config import ModelDefinition, decoding_of, reply_form_of
from mac_runner.environments import build_environment
from mac_runner.environments.base import Conversation
from mac_runner.errors import (
    BackendError,
    ConversationError,
    EngineDeadError,
    FormRefusedError,
    MacRunnerError,
    RequestRefusedError,
    boundary,
)
from mac_runner.fleet.lane import no_events
from mac_runner.plan import plan_of, sampling_of
from mac_runner.printable import printable
from mac_runner.results import COPIED
from mac_runner.runs.engines import backend_of
from mac_runner.runs.fleet import local_fleet
from mac_runner.runs.setup import Setup, located
from mac_runner.scheduler.runner import BACKEND_CLOSE_S_MAX
from mac_runner.spec import FleetConfig
from mac_runner.types import (
    Decoding,
    FinishReason,
    Message,
    Prompt,
    ReceiptKind,
    Reply,
    ReplyForm,
    Request,
    Sampling,
    Turn,
)

_SHOWN_CHARS: Final = 100
_PROBE: Final = Prompt(messages=(Message(role="user", content="Say one word."),))
DOCTOR_PROBE_S_MAX: Final = 120.0
"""How long one token may take."""
DOCTOR_REPLY_S_MAX: Final = 300.0
"""How long a whole reply may take."""
_WEAKER: Final[Mapping[Decoding, tuple[Decoding, ...]]] = {
    "schema": ("json_object", "none"),
    "json_object": ("none",),
    "none": (),
}


class TrialEnd(StrEnum):
    """What became of a real prompt that was sent with one setting of `constrained_decoding`."""

    OBEYED = "obeyed"
    """The reply has the form, and the environment can use it."""
    COPIED = "copied"
    """The reply has the form, and gives back what it shows."""
    UNREADABLE = "not readable"
    """The reply has the form, and the environment asks for another."""
    CUT_OFF = "cut off"
    """The reply reached max_tokens or the end of the context."""
    IGNORED = "ignored"
    """The engine took the form and did not keep to it."""
    REFUSED = "refused"
    """The engine refuses the request."""
    FAILED = "failed"
    """The engine did not answer, which says nothing of the form."""


_UNHELD: Final = (TrialEnd.REFUSED, TrialEnd.IGNORED)
"""After these, weaker settings are tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A real prompt, sent with one setting."""

    decoding: Decoding
    form: ReplyForm
    """What the prompt asked for."""
    end: TrialEnd
    detail: str
    took_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was found about a model at one address. With a `problem`, figures may be missing."""

    model: str
    engine: str
    start_s: float | None = None
    capacity: int | None = None
    token_budget: int | None = None
    probe_s: float | None = None
    trials: tuple[Trial, ...] = ()
    """The experiment's own setting first; empty where its prompts offer no form."""
    problem: str | None = None


async def examine(
    setup: Setup, keys: frozenset[str], clock: Clock, say: Callable[[str], None]
) -> AsyncGenerator[Finding, None]:
    """Examine every model at every address, one engine at a time. `keys` are the variables that no lane gets."""
    environment = setup.environment()
    for name, definition in setup.experiment.model_definitions.items():
        # One token with the model's own settings, since they may be at fault too.
        sampling = replace(_own_sampling(setup, name), max_tokens=1)
        for engine, settings in definition.spec.variants(definition.backend_settings):
            variant = definition.with_settings(settings)
            finding = Finding(model=name, engine=engine)
            async with AsyncExitStack() as stack:
                try:
                    lanes = await _lane(stack, setup, keys, name, variant, clock, say)
                    backend = backend_of(setup, environment, name, variant, clock, say, lanes=lanes)
                except MacRunnerError as error:
                    found = replace(finding, problem=str(error))
                else:
                    has_probe = variant.spec.is_probed
                    found = await _examined(finding, backend, sampling if has_probe else None, setup, clock)
            yield found


async def _lane(
    stack: AsyncExitStack,
    setup: Setup,
    keys: frozenset[str],
    name: str,
    definition: ModelDefinition,
    clock: Clock,
    say: Callable[[str], None],
) -> ModelLanes | None:
    """One engine of a model that is on a fleet, with no other model beside it; None for any other model."""
    settings = definition.backend_settings
    if not isinstance(settings, FleetModelConfig):
        return None
    with located(setup.loaded):
        models = {name: settings.model_copy(update={"lanes": 1})}
        planned = local_fleet(setup.experiment.fleet or FleetConfig(), models, keys)
    fleet = await stack.enter_async_context(planned.open(clock, say, no_events))
    return fleet.model(name)


async def _examined(
    finding: Finding, backend: Backend, sampling: Sampling | None, setup: Setup, clock: Clock
) -> Finding:
    try:
        began_at_s = clock.monotonic_s()
        async with _started(backend, setup, finding.model):
            started_at_s = clock.monotonic_s()
            finding = replace(
                finding,
                start_s=started_at_s - began_at_s,
                capacity=backend.capacity,
                token_budget=backend.token_budget,
            )
            if sampling is not None:
                await _probe(backend, finding.model, sampling)
                finding = replace(finding, probe_s=clock.monotonic_s() - started_at_s)
                finding = replace(finding, trials=await _trials(backend, finding.model, setup, clock))
                finding = replace(finding, problem=_problem_of(finding))
    except MacRunnerError as error:
        return replace(finding, problem=str(error))
    return finding


@asynccontextmanager
async def _started(backend: Backend, setup: Setup, model: str) -> AsyncIterator[None]:
    try:
        with located(setup.loaded, ("model_definitions", model)), boundary(EngineDeadError, "it did not start"):
            await backend.start()
        yield
    finally:
        with boundary(EngineDeadError, "it did not close"):
            async with asyncio.timeout(BACKEND_CLOSE_S_MAX):
                await backend.close()


async def _trials(backend: Backend, name: str, setup: Setup, clock: Clock) -> tuple[Trial, ...]:
    """The setting of model `name`, and weaker ones until one is obeyed where it is not."""
    definition = setup.experiment.model_definitions[name]
    own = decoding_of(definition)
    can = {*definition.spec.constrains(definition.backend_settings), "none"}
    trials: list[Trial] = []
    for decoding in (own, *(each for each in _WEAKER[own] if each in can)):
        opening = _opening(setup, name, decoding)
        if opening is None:
            break
        trials.append(await _trial(backend, opening, decoding, clock))
        if trials[-1].end not in _UNHELD:
            break
    return tuple(trials)


@dataclass(frozen=True, slots=True)
class _Opening:
    """The first turn that a model has in an experiment, with its prompt."""

    conversation: Conversation
    turn: Turn
    prompt: Prompt
    form: ReplyForm
    sampling: Sampling


def _opening(setup: Setup, name: str, decoding: Decoding) -> _Opening | None:
    """The first prompt of the first conversation, as the model would get it with this setting.

    None where the environment asks for no form of reply.
    """
    # The examined experiment of a grid may have lost its other models.
    experiment = setup.experiment if setup.combination is None else setup.combination.loaded.experiment
    definition = setup.experiment.model_definitions[name].model_copy(update={"constrained_decoding": decoding})
    experiment = experiment.model_copy(
        update={"model_definitions": {**experiment.model_definitions, name: definition}},
    )
    has_forms = bool(experiment.spec.reply_forms)
    with boundary(ConversationError, "its first prompt cannot be made"):
        # Where another model has the first turn, this one gets its agents.
        agents = tuple(agent.model_copy(update={"model": name}) for agent in experiment.agent_definitions)
        for asked in (experiment, experiment.model_copy(update={"agent_definitions": agents})):
            environment = build_environment(asked)
            conversation = environment.open(next(plan_of(asked, environment.lineup)()))
            for turn in conversation.turns():
                prompt = conversation.prompt(turn)
                if turn.model == name and (has_forms or prompt.is_constrained):
                    form = reply_form_of(asked, definition)
                    return _Opening(conversation, turn, prompt, form, _own_sampling(setup, name))
    return None


async def _trial(backend: Backend, opening: _Opening, decoding: Decoding, clock: Clock) -> Trial:
    """Send a real prompt. An engine that refuses it in words that are not known may refuse the setting."""
    prompt = held(opening.prompt, decoding)
    request = Request(conversation="doctor", turn=opening.turn, prompt=prompt, sampling=opening.sampling)
    sent_at_s = clock.monotonic_s()
    try:
        async with asyncio.timeout(DOCTOR_REPLY_S_MAX):
            with boundary(EngineDeadError, "it made no reply"):
                reply = await backend.generate(request)
        end, detail = _end_of(opening, prompt, reply)
    except TimeoutError:
        end, detail = TrialEnd.FAILED, f"no reply within {DOCTOR_REPLY_S_MAX:.0f} s"
    except BackendError as error:
        end = TrialEnd.REFUSED if isinstance(error, RequestRefusedError) else TrialEnd.FAILED
        detail = str(error)
    took_s = clock.monotonic_s() - sent_at_s
    return Trial(decoding=decoding, form=opening.form, end=end, detail=detail, took_s=took_s)


def _end_of(opening: _Opening, prompt: Prompt, reply: Reply) -> tuple[TrialEnd, str]:
    """What became of a reply, and what the environment says of it."""
    has_form = _has_form(prompt, reply)
    if reply.finish_reason in (FinishReason.LENGTH, FinishReason.OVERFLOW):
        is_begun = not prompt.is_constrained or has_form or reply.text.lstrip()[:1] in ("", "{", "<")
        if is_begun:
            return TrialEnd.CUT_OFF, f"after {reply.tokens.completion} tokens; more max_tokens would show more"
    if not has_form:
        return TrialEnd.IGNORED, f"the reply begins: {printable(reply.text[:_SHOWN_CHARS])}"
    try:
        with boundary(ConversationError, "the environment failed at it"):
            receipt = opening.conversation.receive(opening.turn, reply)
    except MacRunnerError as error:
        return TrialEnd.UNREADABLE, str(error)
    if receipt.kind in (ReceiptKind.ACT, ReceiptKind.OBSERVATION):
        end = TrialEnd.OBEYED
    else:
        end = TrialEnd.COPIED if receipt.cause == COPIED else TrialEnd.UNREADABLE
    return end, printable(receipt.detail[:_SHOWN_CHARS])


def _has_form(prompt: Prompt, reply: Reply) -> bool:
    """Whether a reply has the form that it was to be held to."""
    if prompt.schema is None:
        return prompt.choices is None or reply.text in prompt.choices
    try:
        return isinstance(json.loads(reply.text, strict=False), dict)
    except (ValueError, RecursionError):
        return False


def _problem_of(finding: Finding) -> str | None:
    """What a run would stumble over, and the setting that avoids it."""
    if not finding.trials:
        return None
    own, last = finding.trials[0], finding.trials[-1]
    if own.end is TrialEnd.FAILED:
        return f"it did not reply to a real prompt: {own.detail}"
    if own.end is TrialEnd.COPIED:
        return "it copies the form of its answer instead of answering; take a model that follows instructions"
    if own.end not in _UNHELD:
        return None
    what = "refuses" if own.end is TrialEnd.REFUSED else "does not keep to"
    if last.end is TrialEnd.REFUSED and last.decoding == "none":
        return f"the engine refuses the first prompt of the experiment, whatever the form of its reply: {last.detail}"
    if last.end in (*_UNHELD, TrialEnd.FAILED):
        return f"the engine {what} `constrained_decoding: {own.decoding}`, and no other setting gave a reply"
    key = f"model_definitions.{finding.model}.constrained_decoding"
    return f"the engine {what} `constrained_decoding: {own.decoding}`; set {key}: {last.decoding}"


async def _probe(backend: Backend, model: str, sampling: Sampling) -> None:
    """Generate one token. Raises BackendError when that fails."""
    turn = Turn(round=0, agent="doctor", model=model, place=0)
    request = Request(conversation="doctor", turn=turn, prompt=_PROBE, sampling=sampling)
    try:
        async with asyncio.timeout(DOCTOR_PROBE_S_MAX):
            with boundary(EngineDeadError, "it made no token"):
                reply = await backend.generate(request)
    except TimeoutError:
        raise EngineDeadError(f"it made no token within {DOCTOR_PROBE_S_MAX:.0f} s") from None
    except FormRefusedError as error:
        if backend.form is None:
            raise
        raise backend.form.refused(error) from error
    if reply.finish_reason is FinishReason.OVERFLOW:
        raise EngineDeadError("not even a prompt of three words fits the model's context")


def _own_sampling(setup: Setup, model: str) -> Sampling:
    """The settings of the first agent that the model speaks for."""
    own = (agent for agent in setup.experiment.agent_definitions if agent.model == model)
    return replace(next(map(sampling_of, own), Sampling()), seed=0)
