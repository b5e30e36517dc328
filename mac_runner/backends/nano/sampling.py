"""From a request's Sampling and Prompt to the settings nano samples with. Pure; imports the engine's types."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

from mac_runner.nano import SamplingParams
from mac_runner.types import Prompt, Sampling


def params_of(sampling: Sampling, prompt: Prompt, *, defaults: SamplingParams, room_tokens: int) -> SamplingParams:
    """The engine's sampling parameters; a reply is no longer than `room_tokens`.

    `defaults` are the model's own, which hold where `sampling` leaves a setting open. A schema says more than a list of
    choices, so where a prompt has both it is the schema that holds.
    """
    given = {name: value for name, value in asdict(sampling).items() if value is not None}
    params = replace(defaults, **given | {"max_tokens": min(sampling.max_tokens, room_tokens)})
    if prompt.schema is not None:
        return replace(params, json_schema=json.dumps(dict(prompt.schema)))
    return params if prompt.choices is None else replace(params, choices=prompt.choices)
