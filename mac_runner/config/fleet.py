"""`fleet`: the GPUs that the models with the backend `fleet` share, and how their engines are kept running."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mac_runner.section import RUNTIME, Listed, Section


class SwapConfig(Section):
    """What happens when there are more models than places for them."""

    policy: Annotated[Literal["batch", "fifo", "off"], RUNTIME] = "batch"
    """`batch`: a place keeps its model until its queue is dry or `residency_s` has passed. `fifo`: requests are served
    strictly in the order in which they came. `off`: more models than places are refused."""
    residency_s: Annotated[float, RUNTIME, Field(gt=0, le=86_400)] = 20.0
    """How long a place keeps a model while requests of another one wait."""


class RestartConfig(Section):
    """How often an engine that ended is started again."""

    budget: Annotated[int, RUNTIME, Field(ge=0, le=1000)] = 5
    """How many starts after the first one an engine gets in `per_s` seconds."""
    per_s: Annotated[float, RUNTIME, Field(gt=0, le=604_800)] = 3600.0
    """The time that the budget is for."""


class ProbeConfig(Section):
    """When an engine is taken for stuck."""

    stall_s: Annotated[float, RUNTIME, Field(gt=0, le=86_400)] = 30.0
    """An engine with requests in flight that gives no reply for so long is sent a canary of one token."""
    start_s: Annotated[float, RUNTIME, Field(gt=0, le=86_400)] = 900.0
    """How long an engine may take to start."""


class FleetConfig(Section):
    """The GPUs that the models with the backend `fleet` share, and how their engines are kept running."""

    gpus: Annotated[
        Literal["auto"]
        | Annotated[int, Field(ge=1, le=1024)]
        | Annotated[Listed[Annotated[int, Field(ge=0, le=1023)]], Field(min_length=1)],
        RUNTIME,
    ] = "auto"
    """`auto`: all that `nvidia-smi` lists; a list: the indices of some of them; a number: so many places without a GPU,
    on a machine that has none."""
    max_gpus: Annotated[int, RUNTIME, Field(ge=1, le=1024)] = 8
    """No more GPUs than this."""
    max_agents_per_gpu: Annotated[int, RUNTIME, Field(ge=1, le=16)] = 2
    """How many models may be resident on one GPU or slice."""
    enable_mig: Annotated[bool, RUNTIME] = False
    """Whether the MIG slices that exist are used, each as a place of its own; none is made or removed."""
    first_port: Annotated[int | None, RUNTIME, Field(ge=1024, le=65_000)] = None
    """Engines listen on this port of 127.0.0.1 and the following ones; null takes ports that are free."""
    swap: SwapConfig = SwapConfig()
    """What happens when there are more models than places for them."""
    restart: RestartConfig = RestartConfig()
    """How often an engine that ended is started again."""
    probe: ProbeConfig = ProbeConfig()
    """When an engine is taken for stuck."""
