"""What must hold between fields, validation errors in the user's words, and where an unknown key belongs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import takewhile
from typing import Any, Final, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from mac_runner.config.experiment import SHORT, Experiment, ModelDefinition, decoding_of
from mac_runner.problems import CONFIG_PROBLEMS_MAX, Problem, found, nearest, suggestion
from mac_runner.registry import BACKENDS, WORDINGS, EnvironmentSpec, environment_specs, read_settings, section_key
from mac_runner.section import (
    ADDRESS,
    FILE,
    FILE_PATH,
    LIST_OR_MAPPING,
    PATTERN_WORDS,
    URL_PATTERN,
    VARIABLE_PATTERN,
    KeyPath,
    Opener,
    Settings,
    is_collection,
    place_at,
    section_of,
)
from mac_runner.spec import MODELS, SETTINGS, STEP_LIMIT_S
from mac_runner.types import EFFORT_KEYS, JsonValue


def inconsistencies(experiment: Experiment) -> Iterator[Problem]:
    """Every rule between fields that `experiment` breaks."""
    for name, definition in experiment.model_definitions.items():
        yield from _backend_sections(name, definition)
        yield from _decoding(name, experiment)
    yield from _fleet(experiment)
    yield from _agents(experiment)
    yield from _efforts(experiment)
    yield from _waiting(experiment)
    yield from _groups(experiment)
    yield from _prices(experiment)
    yield from _environment(experiment)


def own_settings(experiment: Experiment, opener: Opener | None = None) -> Iterator[Problem]:
    """What is wrong with recorded settings of code that is not built in; with an opener, with the files they name."""
    users: dict[KeyPath, Experiment | ModelDefinition] = {(SETTINGS,): experiment}
    users |= {(MODELS, name, SETTINGS): model for name, model in experiment.model_definitions.items()}
    for path, user in users.items():
        if (spec := user.known_spec) is None or user.settings is None:
            continue
        try:
            read_settings(spec, user.settings, opener)
        except ValidationError as failure:
            for below, text in complaints(failure, dict(user.settings), root=spec.settings):
                yield Problem((*path, *below), text)


def without_effect(experiment: Experiment) -> Iterator[Problem]:
    """The settings of an experiment that would change nothing. Files are refused for them, recorded runs are not."""
    spec, settings = experiment.known_spec, experiment.environment_settings
    if spec is not None and settings is not None:
        yield from _placed(experiment, spec.ignored(experiment, settings))


def _backend_sections(name: str, definition: ModelDefinition) -> Iterator[Problem]:
    path = ("model_definitions", name)
    if definition.backend in BACKENDS and definition.settings is not None:
        text = f"sets up a backend that is not built in; {definition.backend!r} has the section"
        yield Problem((*path, "settings"), f"{text} {definition.settings_key}; leave it out")
    for backend in BACKENDS:
        key = section_key(backend)
        is_given = getattr(definition, key) is not None
        if backend == definition.backend and not is_given:
            yield Problem((*path, key), f"is missing; the backend {backend!r} is set up by it")
        elif backend != definition.backend and is_given:
            text = f"belongs to another backend; this entry has the backend {definition.backend!r}"
            yield Problem((*path, key), f"{text}, set up by {definition.settings_key}")
        elif backend == definition.backend:
            for below, text in definition.spec.check(definition.backend_settings):
                yield Problem((*path, key, *below), text)


def idle_agents(experiment: Experiment) -> dict[str, Problem]:
    """The agent definitions that take part in no conversation, with what to do about it."""
    settings = experiment.environment_settings
    if settings is None:
        return {}
    idle = experiment.spec.idle(experiment, settings)
    return {
        agent.agent_id: Problem(("agent_definitions", index), f"{agent.agent_id!r} {idle[agent.agent_id]}")
        for index, agent in enumerate(experiment.agent_definitions)
        if agent.agent_id in idle
    }


def idle_fleet(experiment: Experiment) -> Iterator[Problem]:
    """The section `fleet` where no model uses it. Of a grid, another combination may use it."""
    if experiment.fleet is not None and all(one.backend != "fleet" for one in experiment.model_definitions.values()):
        text = "no model has the backend 'fleet', so it changes nothing; leave it out, or write it into the profile"
        yield Problem(("fleet",), f"{text} whose models use it")


def _decoding(name: str, experiment: Experiment) -> Iterator[Problem]:
    """What model `name` asks of its decoding and cannot have."""
    definition, path = experiment.model_definitions[name], ("model_definitions", name)
    spec = definition.known_spec
    if spec is None or not definition.has_settings:
        return  # A problem of its own.
    can, asked = spec.constrains(definition.backend_settings), definition.constrained_decoding
    if asked == "json_object" and asked not in can:
        text = f"the backend {definition.backend!r} cannot hold replies to a form with these settings; leave it out"
        yield Problem((*path, "constrained_decoding"), text)
    environment = experiment.conversation_config.environment
    known = experiment.known_spec
    form = definition.reply_form
    if form is None or known is None:
        return
    forms = known.reply_forms
    key = (*path, "reply_form")
    if form not in forms:
        others = f"asks for {forms[0]} alone" if forms else "asks for no form of reply"
        yield Problem(key, f"{found(form)}; the environment {environment!r} {others}; leave it out")
    elif spec.policy(definition.backend_settings) is not None and form != forms[0]:
        yield Problem(key, f"{found(form)}; scripted players write {forms[0]}; leave it out")
    elif form == "markup" and (decoding := decoding_of(definition)) != "none":
        text = f"{found(form)}; `constrained_decoding: {decoding}` holds replies to JSON; set that to none as well"
        yield Problem(key, text)


def _fleet(experiment: Experiment) -> Iterator[Problem]:
    """GPUs that `fleet` names twice, and more of them than it allows itself."""
    if experiment.fleet is None:
        return
    gpus, at_most = experiment.fleet.gpus, experiment.fleet.max_gpus
    if isinstance(gpus, tuple) and (twice := sorted(gpu for gpu, count in Counter(gpus).items() if count > 1)):
        yield Problem(("fleet", "gpus"), f"lists {', '.join(map(str, twice))} twice; each GPU is one place")
    asked = gpus if isinstance(gpus, int) else 0 if gpus == "auto" else len(gpus)
    if asked > at_most:
        yield Problem(
            ("fleet", "gpus"), f"asks for {asked}, and fleet.max_gpus is {at_most}; raise it, or ask for fewer"
        )


def _prices(experiment: Experiment) -> Iterator[Problem]:
    """Models without a price where `limits` bounds what they cost."""
    if experiment.limits is None or experiment.limits.usd is None:
        return
    for name, definition in experiment.model_definitions.items():
        if definition.usd_per_mtok is None and definition.usd_per_hour is None:
            text = f"needs the price of every model, and {name!r} has none; write usd_per_mtok or usd_per_hour into"
            yield Problem(("limits", "usd"), f"{text} model_definitions.{name}, or usd_per_hour: 0 if it is free")


def _agents(experiment: Experiment) -> Iterator[Problem]:
    counts: Counter[str] = Counter()
    for index, agent in enumerate(experiment.agent_definitions):
        path = ("agent_definitions", index)
        counts[agent.agent_id] += 1
        if counts[agent.agent_id] == 2:
            yield Problem((*path, "agent_id"), f"{agent.agent_id!r} is taken by another agent; each needs its own")
        if agent.model not in experiment.model_definitions:
            known = suggestion(agent.model, experiment.model_definitions)
            yield Problem((*path, "model"), f"there is no model definition {agent.model!r}{known}")


def _efforts(experiment: Experiment) -> Iterator[Problem]:
    """Keys for thinking that the backend of an agent's model would ignore."""
    for index, agent in enumerate(experiment.agent_definitions):
        definition = experiment.model_definitions.get(agent.model)
        spec = None if definition is None else definition.known_spec
        if definition is None or spec is None or not definition.has_settings:
            continue  # A problem of its own.
        honoured = spec.honours(definition.backend_settings)
        for key in EFFORT_KEYS:
            if key not in honoured and getattr(agent, key) is not None:
                text = f"the backend {definition.backend!r} of model {agent.model!r} does not support it"
                others = f"; with these settings it honours {', '.join(sorted(honoured))}" if honoured else ""
                yield Problem(("agent_definitions", index, key), f"{text}{others}; leave it out")


def _waiting(experiment: Experiment) -> Iterator[Problem]:
    """Unknown ids first; a cycle is looked for among the known ones."""
    agents = {agent.agent_id: (index, agent) for index, agent in enumerate(experiment.agent_definitions)}
    key = ("role_specific_config", "speak_after_within_round")
    for index, agent in agents.values():
        for place, other in enumerate(agent.role_specific_config.speak_after_within_round):
            if other not in agents:
                text = f"there is no agent {other!r}{suggestion(other, agents)}"
                yield Problem(("agent_definitions", index, *key, place), text)
    try:
        waits = {name: agent.role_specific_config.speak_after_within_round for name, (_, agent) in agents.items()}
        TopologicalSorter(waits).prepare()
    except CycleError as fault:
        circle = fault.args[1][::-1]
        text = f"agents wait for each other: {' -> '.join(circle)}; none could begin"
        yield Problem(("agent_definitions", agents[circle[0]][0], *key), text)


def _groups(experiment: Experiment) -> Iterator[Problem]:
    """Conversations that would leave the last group incomplete."""
    conversation = experiment.conversation_config
    count, samples = conversation.conversations, conversation.samples_per_task
    if count != "all" and count % samples:
        more = count + samples - count % samples
        text = f"found {count}; each deal is played {samples} times (samples_per_task), and conversations counts all"
        yield Problem(("conversation_config", "conversations"), f"{text}; write a multiple of it, such as {more}")


def _environment(experiment: Experiment) -> Iterator[Problem]:
    """The rules of its environment, then sections that belong to others."""
    environment, specs = experiment.conversation_config.environment, environment_specs()
    spec, settings = experiment.known_spec, experiment.environment_settings
    if spec is not None and settings is not None:
        yield from _placed(experiment, spec.check(experiment, settings))
        yield from _wordings(experiment, spec)
    elif spec is not None and spec.needs:
        yield Problem((spec.section,), f"is missing; the environment {environment!r} needs its {spec.needs}")
    if experiment.is_builtin and experiment.conversation_config.step_limit_s != STEP_LIMIT_S:
        text = f"changes nothing in the environment {environment!r}, which is built in; leave it out"
        yield Problem(("conversation_config", "step_limit_s"), text)
    for name, other in specs.items():
        if name != environment and getattr(experiment, other.section) is not None:
            text = f"belongs to the environment {name!r}; this experiment has the environment {environment!r}"
            yield Problem((other.section,), text)


def _placed(experiment: Experiment, problems: Iterable[Problem]) -> Iterator[Problem]:
    """Problems of an environment; one that is not built in may call the section of its settings by its own name."""
    own = experiment.spec.section
    for path, text in problems:
        yield Problem((experiment.settings_key, *path[1:]) if path[:1] == (own,) else path, text)


def _wordings(experiment: Experiment, spec: EnvironmentSpec[Any]) -> Iterator[Problem]:
    """Keys that would change how an agent is asked, where its environment asks all agents alike."""
    environment = experiment.conversation_config.environment
    for index, agent in enumerate(experiment.agent_definitions):
        for key in WORDINGS:
            if key not in spec.honours and getattr(agent, key) is not None:
                text = f"changes nothing in the environment {environment!r}; leave it out"
                yield Problem(("agent_definitions", index, key), text)


_UNKNOWN: Final = "extra_forbidden"
_TYPES: Final[Mapping[str, str]] = {
    "string_type": "a text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "mapping_type": "a mapping",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "finite_number": "a finite number",
    "list_type": "a list",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "bool_parsing": "true or false",
    "none_required": "nothing",
    "json_type": "plain values",
    LIST_OR_MAPPING: "a list or a mapping",
    FILE_PATH: "the path of a file",
}
_BOUNDS: Final[Mapping[str, Callable[[Mapping[str, object]], str]]] = {
    "greater_than_equal": lambda ctx: f"at least {ctx['ge']}",
    "greater_than": lambda ctx: f"more than {ctx['gt']}",
    "less_than_equal": lambda ctx: f"at most {ctx['le']}",
    "less_than": lambda ctx: f"less than {ctx['lt']}",
    "string_too_short": lambda ctx: "a text that is not empty",
    "string_too_long": lambda ctx: f"a text of at most {ctx['max_length']} characters",
    "too_short": lambda ctx: f"at least {ctx['min_length']} of them",
    "too_long": lambda ctx: f"at most {ctx['max_length']} of them",
    "literal_error": lambda ctx: f"{'one of ' if ' or ' in str(ctx['expected']) else ''}{ctx['expected']}",
    ADDRESS: lambda ctx: f"the address of a server ({ctx['flaw']})",
    "string_pattern_mismatch": lambda ctx: PATTERN_WORDS.get(str(ctx["pattern"]), "a text of another form"),
}


def complaints(failure: ValidationError, data: JsonValue, *, root: type[Settings] = Experiment) -> Iterator[Problem]:
    """Every problem of `failure`, which was raised for `data` as a `root`, one for each path."""
    gathered: dict[KeyPath, list[ErrorDetails]] = {}
    for error in failure.errors(include_url=False):
        gathered.setdefault(_path_in(data, error), []).append(error)
    parents = {path[:length] for path in gathered for length in range(len(path))}
    unknown = [path for path, errors in gathered.items() if errors[0]["type"] == _UNKNOWN]
    is_missing = any(errors[0]["type"] == "missing" for errors in gathered.values())
    misspelt = [_meant(path, root) for path in unknown[:CONFIG_PROBLEMS_MAX]] if is_missing else []
    for path, errors in gathered.items():
        # A value that fits no member of a union is reported once, at the deepest place it was followed to. A key that
        # is missing because it is misspelt is reported where it was written.
        if path not in parents and not (errors[0]["type"] == "missing" and path in misspelt):
            yield Problem(path, _text(path, errors, root))


def _path_in(data: JsonValue, error: ErrorDetails) -> KeyPath:
    """The error's place in the file: its location without the names pydantic gives to members of a union."""
    path: list[str | int] = []
    here = data
    for part in error["loc"]:
        if isinstance(here, dict) and part in here:
            here = here[str(part)]
        elif isinstance(here, list) and isinstance(part, int) and part < len(here):
            here = here[part]
        elif error["type"] != "missing":
            continue
        path.append(part)
    return tuple(path)


def _text(path: KeyPath, errors: list[ErrorDetails], root: type[Settings]) -> str:
    kind = errors[0]["type"]
    if kind == _UNKNOWN:
        return f"unknown key{belongs(path, root) or suggestion(str(path[-1]), _beside(path, root))}"
    if kind == "missing":
        whole = [
            key for key in SHORT if root is Experiment and SHORT[key][: len(path)] == path and key != "description"
        ]
        short = " and ".join(f"`{key}:`" for key in whole)
        return f"is missing; write {short} at the top of the file" if short else "is missing"
    if kind == FILE:
        return str(errors[0]["ctx"]["flaw"])
    words = dict.fromkeys(allowed(error["type"], error.get("ctx", {})) or "another value" for error in errors)
    what = "this value is not allowed" if _may_be_secret(errors[0]) else found(_found(errors[0]))
    return f"{what}; allowed: {' or '.join(words)}"


def _beside(path: KeyPath, root: type[Settings]) -> list[str]:
    """The keys that there are where an unknown one was written."""
    section = place_at(root, path[:-1]).section
    return [] if section is None else [*section.model_fields, *(SHORT if section is Experiment else ())]


def _meant(path: KeyPath, root: type[Settings]) -> KeyPath | None:
    """The key that an unknown one is a slip of."""
    near = None if belongs(path, root) else nearest(str(path[-1]), _beside(path, root))
    if near is None:
        return None
    return SHORT[near] if root is Experiment and len(path) == 1 and near in SHORT else (*path[:-1], near)


def _may_be_secret(error: ErrorDetails) -> bool:
    """Whether the value may be a key or a password in the wrong place: those are never printed or logged."""
    pattern, value = error.get("ctx", {}).get("pattern"), str(error["input"])
    if error["type"] == ADDRESS:
        return "?" in value or "#" in value
    return pattern == VARIABLE_PATTERN or (pattern == URL_PATTERN and ("@" in value or "://" not in value))


def allowed(kind: str, context: Mapping[str, object]) -> str | None:
    """What is allowed where pydantic found an error of this kind; None where we have no words for it."""
    if (words := _TYPES.get(kind)) is not None:
        return words
    bound = _BOUNDS.get(kind)
    return None if bound is None else bound(context)


def _found(error: ErrorDetails) -> JsonValue:
    value: JsonValue = error["input"]
    return value


_PLACES_MAX: Final = 6
_NEAR: Final = 0.85
"""How alike two names are of which one is taken for a slip of the other."""

_IN_PYTHON: Final = frozenset({"max_lag", "max_policy_lag", "max_staleness", "policy", "staleness"})
"""What only a trainer in Python can set."""


def belongs(path: KeyPath, root: type[Settings]) -> str:
    """Where the unknown key at a path belongs, in words; empty where nothing of the schema is like it.

    Of several places those nearest to where it was written count. A name that is near to another key beside it is a
    slip, and is left to the list of allowed keys.
    """
    name = str(path[-1])
    if name in _IN_PYTHON:
        return "; a trainer gives it in Python: mac_runner.stream(..., policy=Policy(MODEL, max_lag=2, batch=64))"
    keys = _keys_of(root)
    names = {key[-1] for key in keys} - {"[]", "NAME"}
    parent = _general(path[:-1], keys)
    beside = [*(key[-1] for key in keys if key[:-1] == parent), *(SHORT if root is Experiment and not parent else ())]
    wanted = name if name in names else ""
    if not wanted:
        (wanted,) = get_close_matches(name, sorted(names), n=1, cutoff=_NEAR) or ("",)
        if not wanted or get_close_matches(name, [*beside, wanted], n=1) != [wanted] or wanted in beside:
            return ""
    places = [key for key in keys if key[-1] == wanted]
    closest = max(shared(key, parent) for key in places)
    near = [".".join(key).replace(".[]", "[]") for key in places if shared(key, parent) == closest]
    more = "" if len(near) <= _PLACES_MAX else ", and elsewhere"
    return f"; it belongs at {' or '.join(near[:_PLACES_MAX])}{more}"


@cache
def _keys_of(root: type[Settings]) -> list[tuple[str, ...]]:
    return [*_keys(root, ())]


def _keys(section: type[Settings], prefix: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Every key below a section; `[]` and `NAME` replace the entries of a collection."""
    for name, field in section.model_fields.items():
        here = (*prefix, name)
        yield here
        if (below := section_of(field.annotation)) is not None:
            if is_collection(field.annotation):
                here = (*here, "[]" if get_origin(field.annotation) is tuple else "NAME")
            yield from _keys(below, here)


def _general(path: KeyPath, keys: list[tuple[str, ...]]) -> tuple[str, ...]:
    """A path with `[]` and `NAME` in place of the entries of collections."""
    known = {key[:length] for key in keys for length in range(len(key) + 1)}
    general: tuple[str, ...] = ()
    for part in path:
        following = ((*general, part) for part in (str(part), "[]", "NAME"))
        general = next((each for each in following if each in known), (*general, str(part)))
    return general


def shared(one: KeyPath, other: KeyPath) -> int:
    """How many parts both paths begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
