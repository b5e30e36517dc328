"""`model_definitions`: the engines of an experiment, each under the name its agents call it by.

The sections of the backends come from their specs; this file names no backend.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, cast

from pydantic import Field, create_model

from mac_runner.latency import EngineLatency
from mac_runner.registry import backend_specs
from mac_runner.section import IDENTITY, Section

BACKENDS: tuple[str, ...] = tuple(backend_specs())


class _ModelDefinition(Section):
    """One engine: which backend, and the section of that backend (and of no other)."""

    if TYPE_CHECKING:
        backend: str
        record_tokens: bool
        latency: EngineLatency | None

    @property
    def settings(self) -> Section:
        """The section of its backend."""
        return cast("Section", getattr(self, section_key(self.backend)))

    def with_settings(self, settings: Section) -> _ModelDefinition:
        """The same definition with another section of its backend."""
        return self.model_copy(update={section_key(self.backend): settings})


def section_key(backend: str) -> str:
    """The key of a backend's section."""
    return f"{backend}_config"


if TYPE_CHECKING:
    ModelDefinition = _ModelDefinition
else:
    ModelDefinition = create_model(
        "ModelDefinition",
        __base__=_ModelDefinition,
        __module__=__name__,
        __doc__=_ModelDefinition.__doc__,
        backend=(
            Annotated[Literal[BACKENDS], IDENTITY],
            Field(description="What serves the model; the section `<backend>_config` sets it up."),
        ),
        **{
            section_key(name): (spec.settings | None, Field(None, description=f"Settings of the backend `{name}`."))
            for name, spec in backend_specs().items()
        },
        record_tokens=(
            Annotated[bool, IDENTITY],
            Field(
                False,
                description="Whether each reply is recorded with its token ids and log-probabilities, for training on "
                "it later.",
            ),
        ),
        latency=(
            EngineLatency | None,
            Field(
                None,
                description="Makes replies take as long as the latency model says, where the engine is faster; null "
                "leaves it alone.",
            ),
        ),
    )
