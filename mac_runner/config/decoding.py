"""What each model's replies are held to, and the form that prompts ask for.

`constrained_decoding` and `reply_form` of a model definition say it; what they leave open follows from the backend and
the environment.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pydantic import ValidationError

from mac_runner.config.experiment import Experiment, ModelDefinition
from mac_runner.problems import Problem, found
from mac_runner.types import Decoding, JsonObject, ReplyForm

KEY: Final = "constrained_decoding"


def decoding_of(definition: ModelDefinition) -> Decoding:
    """What replies are held to: `constrained_decoding`, or `none` where the backend constrains nothing."""
    if (spec := definition.known_spec) is None:
        return definition.constrained_decoding  # As it was recorded, which says what came of it.
    can = spec.constrains(definition.backend_settings)
    return definition.constrained_decoding if definition.constrained_decoding in can else "none"


def reply_form_of(experiment: Experiment, definition: ModelDefinition) -> ReplyForm:
    """The form of reply that prompts to a model teach: `reply_form`, or the form that decoding enforces.

    An environment that knows one form teaches that one. Scripted players write the environment's first form.
    """
    if definition.reply_form is not None:
        return definition.reply_form
    form: ReplyForm = "markup" if decoding_of(definition) == "none" else "json"
    forms = experiment.spec.reply_forms
    return form if form in forms or not forms else forms[0]


def recorded_speakers(config: JsonObject) -> dict[str, str]:
    """By agent definition, its model in a recorded run."""
    definitions = config.get("agent_definitions")
    listed = [one for one in definitions if isinstance(one, dict)] if isinstance(definitions, list) else []
    return {str(one["agent_id"]): str(one["model"]) for one in listed if "agent_id" in one and "model" in one}


def recorded_decoding(config: JsonObject) -> dict[str, JsonObject]:
    """By model, what replies of a recorded run were held to, and the form that prompts taught, if they taught one.

    A run recorded before there were such keys has none.
    """
    definitions = config.get("model_definitions")
    if not isinstance(definitions, dict):
        return {}
    known = {name for name, definition in definitions.items() if isinstance(definition, dict) and KEY in definition}
    try:
        experiment = Experiment.model_validate(config)
        spec = experiment.known_spec
        has_forms = () if spec is None else spec.reply_forms
    except ValidationError:
        return {}
    return {
        name: {
            KEY: decoding_of(definition),
            "reply_form": reply_form_of(experiment, definition) if has_forms else None,
        }
        for name, definition in experiment.model_definitions.items()
        if name in known
    }


def decoding_problems(name: str, experiment: Experiment) -> Iterator[Problem]:
    """What model `name` asks of its decoding and cannot have."""
    definition, path = experiment.model_definitions[name], ("model_definitions", name)
    spec = definition.known_spec
    if spec is None or not definition.has_settings:
        return  # A problem of its own.
    can, asked = spec.constrains(definition.backend_settings), definition.constrained_decoding
    if asked == "json_object" and asked not in can:
        text = f"the backend {definition.backend!r} cannot hold replies to a form with these settings; leave it out"
        yield Problem((*path, KEY), text)
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
