"""Scripted players that report tokens: one for each byte. Their log-probabilities are drawn with the request's seed."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pandas  # noqa: F401 - pyarrow imports it with its first array, which takes longer than these runs live
import pyarrow.parquet  # noqa: F401

from mac_runner.backends import BackendRequest
from mac_runner.backends.testing import SPEC as SCRIPTED
from mac_runner.backends.testing import ScriptedBackend, ScriptedConfig
from mac_runner.types import Reply, Request, TokenTrace


class Talkers(ScriptedBackend):
    """The scripted backend with a trace of each reply."""

    async def generate(self, request: Request) -> Reply:
        """The player's reply, token by token."""
        reply = await super().generate(request)
        chance, completion = Random(request.sampling.seed), reply.text.encode()
        trace = TokenTrace(
            prompt_ids=b"\n".join(message.content.encode() for message in request.prompt.messages),
            completion_ids=completion,
            logprobs=(-chance.random() for _ in completion),
        )
        return replace(reply, trace=trace)


def _build(request: BackendRequest[ScriptedConfig]) -> Talkers:
    settings = request.settings
    return Talkers(
        policy=request.policy_of(settings.policy),
        capacity=settings.capacity,
        latency_ms=settings.latency_ms,
        clock=request.clock,
    )


SPEC = replace(SCRIPTED, build=_build)
