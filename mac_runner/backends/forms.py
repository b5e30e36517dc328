"""What a model's replies are held to: the setting of its definition, applied to each prompt.

An environment offers a schema or choices with a prompt. Who sends it leaves of that what `constrained_decoding` says,
so that every backend honours the setting without knowing it. An engine that refuses such a form refuses it in every
request, so the run stops and names the setting.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from mac_runner.errors import BackendError, EngineDeadError, FormRefusedError, RequestRefusedError
from mac_runner.types import Decoding, JsonValue, Prompt, Request

JSON_OBJECT: Final[Mapping[str, JsonValue]] = MappingProxyType({"type": "object"})
"""The schema of any JSON object. An engine with a setting of its own for that compares by identity."""


def held(prompt: Prompt, decoding: Decoding) -> Prompt:
    """`prompt` with what the reply is held to. `json_object` leaves a list of choices free."""
    if decoding == "schema" or not prompt.is_constrained:
        return prompt
    is_object = decoding == "json_object" and prompt.schema is not None
    return replace(prompt, schema=JSON_OBJECT if is_object else None, choices=None)


class Form:
    """What the replies of model `name` are held to, of what its engine `can` hold them to."""

    def __init__(self, name: str, decoding: Decoding, can: Collection[Decoding]) -> None:
        self._decoding = decoding
        others = "json_object or none" if decoding == "schema" and "json_object" in can else "none"
        self._advice = f"set model_definitions.{name}.constrained_decoding: {others} (`mac-run doctor FILE` tries them)"
        self._has_held = False

    def held(self, request: Request) -> Request:
        """`request` as it is sent."""
        prompt = held(request.prompt, self._decoding)
        return request if prompt is request.prompt else replace(request, prompt=prompt)

    def kept(self, sent: Request) -> None:
        """The engine has answered what was sent."""
        self._has_held |= sent.prompt.is_constrained

    def refused(self, error: FormRefusedError) -> BackendError:
        """What follows where it refuses the form. One that has held a reply to one before refuses this alone."""
        if self._has_held:
            return RequestRefusedError(f"{error}; it refuses the form of this reply; {self._advice}")
        return EngineDeadError(f"{error}; it refuses to hold replies to a form; {self._advice}")
