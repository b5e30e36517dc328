"""From a request's Sampling and Prompt to the settings vLLM samples with."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from mac_runner.types import JsonValue, Prompt, Sampling


def sampling_settings(
    sampling: Sampling, prompt: Prompt, *, defaults: Mapping[str, JsonValue], traces: bool
) -> dict[str, object]:
    """What vLLM's sampling parameters are made of, and `json` or `choice` for the replies that are legal.

    `defaults` are the model's own, which `vllm serve` goes by too; they hold where `sampling` leaves a setting open.
    A schema says more than a list of choices, so where a prompt has both it is the schema that holds.
    """
    given = {field: value for field, value in dataclasses.asdict(sampling).items() if value is not None}
    given["stop"] = list(sampling.stop)
    settings: dict[str, object] = {**defaults, **given}
    if traces:
        settings["logprobs"] = 0  # Of the token that was drawn, and of no others.
    if prompt.schema is not None:
        settings["json"] = dict(prompt.schema)
    elif prompt.choices is not None:
        settings["choice"] = list(prompt.choices)
    return settings
