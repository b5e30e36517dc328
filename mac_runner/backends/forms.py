"""What a model's replies are held to: the setting of its definition, applied to each prompt.

An environment offers a schema or choices with a prompt. `FormBackend` passes on what `constrained_decoding` leaves of
it, so that every backend honours the setting without knowing it. An engine that refuses such a form refuses it in every
request, so the run stops and names the setting.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from mac_runner.backends.base import Backend, PassingBackend
from mac_runner.errors import EngineDeadError, FormRefusedError, RequestRefusedError
from mac_runner.registry import CONSTRAINS_ALL
from mac_runner.types import Decoding, JsonValue, Prompt, Reply, Request

JSON_OBJECT: Final[Mapping[str, JsonValue]] = MappingProxyType({"type": "object"})
"""The schema of any JSON object. An engine with a setting of its own for that compares by identity."""


def held(prompt: Prompt, decoding: Decoding) -> Prompt:
    """`prompt` with what the reply is held to. `json_object` leaves a list of choices free."""
    if decoding == "schema" or not prompt.is_constrained:
        return prompt
    is_object = decoding == "json_object" and prompt.schema is not None
    return replace(prompt, schema=JSON_OBJECT if is_object else None, choices=None)


class FormBackend(PassingBackend):
    """A backend whose replies are held to what `model_definitions.NAME.constrained_decoding` says."""

    def __init__(
        self, backend: Backend, name: str, decoding: Decoding, can: Collection[Decoding] = CONSTRAINS_ALL
    ) -> None:
        super().__init__(backend)
        self._decoding = decoding
        self._others = "json_object or none" if decoding == "schema" and "json_object" in can else "none"
        self._key = f"model_definitions.{name}.constrained_decoding"
        self._has_held = False

    async def generate(self, request: Request) -> Reply:
        """One reply. Raises EngineDeadError when the engine refuses the form.

        An engine that has held a reply to one before refuses this request alone.
        """
        prompt = held(request.prompt, self._decoding)
        try:
            reply = await super().generate(request if prompt is request.prompt else replace(request, prompt=prompt))
        except FormRefusedError as error:
            advice = f"set {self._key}: {self._others} (`mac-run doctor FILE` tries them)"
            if self._has_held:
                raise RequestRefusedError(f"{error}; it refuses the form of this reply; {advice}") from error
            raise EngineDeadError(f"{error}; it refuses to hold replies to a form; {advice}") from error
        self._has_held |= prompt.is_constrained
        return reply
