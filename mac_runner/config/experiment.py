"""An experiment file as one class: `registry.Experiment` with the sections of every environment and backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field, create_model

from mac_runner import registry
from mac_runner.registry import backend_specs, environment_specs, section_key
from mac_runner.section import KeyPath, Name
from mac_runner.types import Decoding, ReplyForm

SHORT: Final[Mapping[str, KeyPath]] = {
    "name": ("experiment_metadata", "experiment_name"),
    "description": ("experiment_metadata", "description"),
    "environment": ("conversation_config", "environment"),
    "conversations": ("conversation_config", "conversations"),
}
"""Short keys for the top of a file, each with the key that it is short for."""

if TYPE_CHECKING:
    Experiment = registry.Experiment
    ModelDefinition = registry.ModelDefinition
else:
    ModelDefinition = create_model(
        "ModelDefinition",
        __base__=registry.ModelDefinition,
        __module__=__name__,
        __doc__=registry.ModelDefinition.__doc__,
        **{
            section_key(name): (spec.settings | None, Field(None, description=f"Settings of the backend `{name}`."))
            for name, spec in backend_specs().items()
        },
    )
    Experiment = create_model(
        "Experiment",
        __base__=registry.Experiment,
        __module__=__name__,
        __doc__=registry.Experiment.__doc__,
        model_definitions=Annotated[Mapping[Name, ModelDefinition], Field(min_length=1)],
        **{
            spec.section: (spec.settings | None, Field(None, description=spec.description))
            for spec in environment_specs().values()
        },
    )


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
