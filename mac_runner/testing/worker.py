"""One process of `mac-run check`: tries an environment, and writes what it finds as lines of JSON.

`mac-run check` runs it in processes of its own, so that code that never returns, or ends the process, is found too, and
so that two processes with other hash seeds can be compared. When a step takes too long, a watchdog writes where every
thread is and ends the process.

The environment that a name or an experiment file means, set up to be tried.

Try all promises of an environment, and say of each whether it is kept, where it is not, and what to do.
"""

from __future__ import annotations

import hashlib
import json
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from itertools import islice
from pathlib import Path
from typing import Final

from mac_runner.clock import SystemWatchdog, Watchdog
from mac_runner.config import Experiment, Written, load_experiment
from mac_runner.config.document import parse_document
from mac_runner.environments import build_environment
from mac_runner.environments.base import Conversation, Environment
from mac_runner.errors import ConfigError, ConversationError, MacRunnerError, boundary, said_by
from mac_runner.plan import plan_tasks
from mac_runner.registry import ENVIRONMENTS
from mac_runner.testing.check import CheckRequest, Finding
from mac_runner.testing.promises import PROMISES, BrokenPromiseError, Promise, Subject, prefix_share
from mac_runner.types import JsonObject, JsonValue


def examine(subject: Subject, begin: Callable[[Promise], None] = lambda _promise: None) -> Iterator[Finding]:
    """Try one promise after the other. `begin` is called before each."""
    for promise in PROMISES:
        begin(promise)
        try:
            with boundary(ConversationError, ""):
                promise.check(subject)
        except MacRunnerError as fault:
            yield _broken(subject, promise, fault.__cause__ or fault)
        else:
            yield Finding(promise.name, promise.text, is_kept=True)


def _broken(subject: Subject, promise: Promise, fault: BaseException) -> Finding:
    what = str(fault) if isinstance(fault, BrokenPromiseError) else said_by(fault)
    what = what.removeprefix(f"{subject.place}: ")
    where = "" if isinstance(fault, BrokenPromiseError) else _where(subject, fault)
    return Finding(promise.name, promise.text, False, what, subject.place, where, promise.remedy)


def _where(subject: Subject, fault: BaseException) -> str:
    """The innermost line of the environment's own code; of any code where that is not known."""
    frames = traceback.extract_tb(fault.__traceback__)
    own = [frame for frame in frames if subject.is_own is not None and subject.is_own(frame.filename)] or frames
    return f"{own[-1].filename}:{own[-1].lineno}" if own else ""


def digests(subject: Subject) -> Iterator[tuple[str, list[str]]]:
    """Each conversation with a digest of each of its turns and of its end, the same in every process."""
    for task in subject.tasks:
        for name, answer in (("", subject.player(task)), (" with garbage", subject.careless_player(task))):
            try:
                with boundary(ConversationError, ""):
                    played = subject.play(task, answer)
                    marks = [f"{reply.turn_key} {reply.prompt_sha256[:12]}" for reply in played.replies]
                    yield f"{task.task_id}{name}", [*marks, f"its end {_digest(played.conversation)}"]
            except MacRunnerError as fault:
                yield f"{task.task_id}{name}", [f"{subject.place}: {fault}"]


def _digest(conversation: Conversation) -> str:
    state = repr((conversation.outcome, conversation.record(), conversation.fingerprint()))
    return hashlib.sha256(state.encode("utf-8", "surrogatepass")).hexdigest()[:12]


SOURCE: Final = "mac-run check"
AGENTS: Final = ("Abel", "Bob", "Caleb", "Dora", "Eve", "Felix", "Grace", "Hugo", "Iris", "Jonas", "Kate", "Leo")
_COUNTS: Final = (5, 2, 3, 4, 6, 7, 8, 1)
"""How many agents are tried, where nothing says how many there are."""


def subject_of(request: CheckRequest) -> Subject:
    """The environment of a request. Raises ConfigError for what cannot be loaded."""
    if request.target.endswith((".yaml", ".yml")):
        if request.agents is not None:
            raise ConfigError(f"--agents: {request.target} has the agents; leave the flag out")
        overrides = [f"settings.{each}" for each in request.settings]
        overrides.append(f"conversation_config.conversations={request.conversations}")
        return _subject(_unlimited(load_experiment(Path(request.target), overrides=overrides).experiment), request)
    if request.target in ENVIRONMENTS:
        raise ConfigError(
            f"{request.target} is built in and needs a whole experiment; name a file: mac-run check FILE.yaml"
        )
    if request.agents is not None:
        return _subject(_experiment(request, request.agents), request)
    first = _experiment(request, _COUNTS[0])
    if build_environment(first).lineup is not None:
        return _subject(_experiment(request, 2), request)
    counts = (count for count in _COUNTS if _opens(_experiment(request, count)))
    return _subject(_experiment(request, next(counts, _COUNTS[0])), request)


def _experiment(request: CheckRequest, count: int) -> Experiment:
    """An experiment of so many agents in which the environment is played."""
    names = [*AGENTS, *(f"Agent{number}" for number in range(len(AGENTS) + 1, count + 1))][:count]
    value: JsonObject = {
        "name": "check",
        "environment": request.target,
        "conversations": request.conversations,
        "model_definitions": {"player": {"backend": "scripted", "scripted_config": {"policy": "random"}}},
        "agent_definitions": [{"agent_id": name, "role": "player", "model": "player"} for name in names],
    }
    if request.settings:
        value["settings"] = _settings(request.settings)
    return _unlimited(load_experiment(Written(value=value, name=SOURCE)).experiment)


def _unlimited(experiment: Experiment) -> Experiment:
    """Without a limit on its steps: the process of the check has a watchdog, and tries nothing after one that hangs."""
    conversation = experiment.conversation_config.model_copy(update={"step_limit_s": None})
    return experiment.model_copy(update={"conversation_config": conversation})


def _settings(pairs: tuple[str, ...]) -> JsonObject:
    """The mapping of KEY=VALUE pairs; a key may have dots. Raises ConfigError."""
    settings: JsonObject = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not all(key.split(".")):
            raise ConfigError(f"--settings {pair}: write KEY=VALUE, such as max_days=3")
        value: JsonValue = parse_document(text.encode("utf-8", "surrogatepass"), f"--settings {key}").value
        here = settings
        *parents, last = key.split(".")
        for parent in parents:
            inner = here.setdefault(parent, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"--settings {pair}: {parent} is a single value; it has nothing below it")
            here = inner
        here[last] = value
    return settings


def _opens(experiment: Experiment) -> bool:
    """Whether a first conversation of the experiment begins."""
    try:
        with boundary(ConversationError, ""):
            environment = build_environment(experiment)
            environment.open(next(plan_tasks(experiment, environment.lineup)))
    except ConversationError:
        return False
    return True


def _subject(experiment: Experiment, request: CheckRequest) -> Subject:
    environment = build_environment(experiment)
    spec = experiment.spec
    code = experiment.plugins.get(experiment.conversation_config.environment)
    return Subject(
        build=lambda: build_environment(experiment),
        tasks=tuple(islice(plan_tasks(experiment, environment.lineup), request.conversations)),
        kind=spec.section,
        policy=request.policy if request.policy is not None else _random(environment),
        results=None if spec.results is None else spec.results(),
        turns_max=request.turns,
        stops=12,
        code=Path(code.path) if code is not None and code.sha256 else None,
    )


def _random(environment: Environment) -> str | None:
    """The scripted player `random`, where the environment has it."""
    try:
        with boundary(ConfigError, ""):
            environment.policy("random")
    except MacRunnerError:
        return None
    return "random"


def main(argument: str, watchdog: Watchdog | None = None) -> None:
    """Try the environment of a request, which is JSON: the fields of CheckRequest, and whether only to play."""
    wanted = json.loads(argument)
    is_playing_only = bool(wanted.pop("is_playing_only"))
    request = CheckRequest(**{**wanted, "settings": tuple(wanted["settings"])})
    stream = sys.stdout

    def write(line: JsonObject) -> None:
        stream.write(json.dumps(line) + "\n")
        stream.flush()

    # What the environment prints is not part of the report.
    with redirect_stdout(sys.stderr):
        _try(request, is_playing_only, write, watchdog or SystemWatchdog())


def _try(request: CheckRequest, is_playing_only: bool, write: Callable[[JsonObject], None], watchdog: Watchdog) -> None:
    watchdog.wind(request.loading_s)
    try:
        write({"begun": "loading"})
        subject = subject_of(request)
    except MacRunnerError as fault:
        write({"error": str(fault)})
        return
    subject.on_step = lambda: watchdog.wind(request.seconds)
    write(_described(subject))
    if not is_playing_only:
        for finding in examine(subject, lambda promise: write({"begun": promise.name})):
            write({"finding": {**finding._asdict()}})
        write({"prefix_share": _share(subject)})
    write({"begun": "processes"})
    write({"digests": {name: [*marks] for name, marks in digests(subject)}})
    watchdog.stop()
    write({"ended": True})


def _described(subject: Subject) -> JsonObject:
    return {
        "kind": subject.kind,
        "agents": [agent.agent_id for agent in subject.tasks[0].agents],
        "conversations": len(subject.tasks),
        "policy": subject.policy,
        "code": None if subject.code is None else str(subject.code),
    }


def _share(subject: Subject) -> float | None:
    try:
        with boundary(ConversationError, ""):
            return prefix_share(subject)
    except MacRunnerError:  # It is among the findings.
        return None
