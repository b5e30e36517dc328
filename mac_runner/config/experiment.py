"""An experiment file as one class: `registry.Experiment` with the sections of every environment and backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, create_model

from mac_runner import registry
from mac_runner.registry import backend_specs, environment_specs, section_key
from mac_runner.section import Name

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
