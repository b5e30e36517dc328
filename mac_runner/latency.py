"""The latency model: how long a reply takes.

    latency_ms = prefill_ms + ceil(tokens / quantum) * kernel_ms + tool_ms for each tool request

As the clock of an environment it decides what agents see, so it is identity. As the latency of a model it only delays
replies, so it is runtime. All numbers are whole milliseconds, so that two turns that
end at the same moment do so on every machine.

An engine's own times follow from the step model, which `mac-run calibrate` measures. One step of an engine takes

    step_ms + token_ms * sequences + prompt_token_ms * prompt tokens read + context_token_ms * context tokens read
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, ValidationError

from mac_runner.problems import MaterialError, dotted, read_named
from mac_runner.section import RUNTIME, KeyPath, Listed, Section, Text
from mac_runner.types import Reply

CHARS_PER_TOKEN: Final = 4
"""The estimate for an engine that does not count its tokens."""

LATENCY_MS_MAX: Final = 600_000
"""The longest time that a setting may name."""


class StepModel(Section):
    """How long one step of an engine takes, in milliseconds."""

    step_ms: Annotated[float, Field(ge=0)]
    """For the step itself."""
    token_ms: Annotated[float, Field(ge=0)]
    """For each sequence that gets a token."""
    prompt_token_ms: Annotated[float, Field(ge=0)]
    """For each token of a prompt that is not in the cache."""
    context_token_ms: Annotated[float, Field(ge=0)]
    """For each token of context that a sequence reads."""

    def prefill_ms(self, prompt_tokens: int) -> int:
        """How long the engine reads a prompt of so many tokens that are not in its cache."""
        return round(self.prompt_token_ms * prompt_tokens)

    def kernel_ms(self, quantum: int, in_flight: int, context_tokens: int) -> int:
        """How long `quantum` steps take while `in_flight` sequences have so many tokens of context each."""
        a_sequence = self.token_ms + self.context_token_ms * context_tokens
        return round(quantum * (self.step_ms + in_flight * a_sequence))


class Calibration(Section):
    """The step model of one checkpoint on one kind of GPU under one version of an engine."""

    model: Text
    """The checkpoint."""
    gpu: Text
    """The name of the GPU; `none` on a machine without one."""
    engine: Text
    """The engine and its version, such as `vllm 0.11.0`."""
    tensor_parallel_size: Annotated[int, Field(ge=1)] = 1
    """How many GPUs one server spreads over."""
    cache_tokens: Annotated[int, Field(ge=1)] | None = None
    """The tokens of one server's KV cache, where the engine says it."""
    steps: StepModel
    in_flight: Listed[int]
    """How many requests were in flight, sweep by sweep."""
    requests: Annotated[int, Field(ge=1)]
    """How many replies it was fitted to."""
    error: Annotated[float, Field(ge=0)]
    """The median relative error of the fit."""


class Calibrations(Section):
    """The content of a calibration file."""

    format: Literal[1] = 1
    calibrations: Listed[Calibration] = ()

    def with_one(self, new: Calibration) -> Calibrations:
        """The same with `new` in place of the one for the same checkpoint, GPU, engine and tensor parallel size."""
        kept = [one for one in self.calibrations if _key(one) != _key(new)]
        return Calibrations(calibrations=tuple(sorted([*kept, new], key=_key)))


def _key(one: Calibration) -> tuple[str, str, str, int]:
    return one.model, one.gpu, one.engine, one.tensor_parallel_size


class CalibrationChoice(Section):
    """Which calibration sets `prefill_ms` and `kernel_ms`, and for which load."""

    file: Annotated[Text, RUNTIME]
    """A file that `mac-run calibrate` wrote, relative to the experiment file."""
    model: Annotated[Text | None, RUNTIME] = None
    """The checkpoint; null: any, where one calibration fits."""
    gpu: Annotated[Text | None, RUNTIME] = None
    """The name of the GPU; null: any, where one calibration fits."""
    engine: Annotated[Text | None, RUNTIME] = None
    """The engine with its version; null: any, where one calibration fits."""
    in_flight: Annotated[int, RUNTIME, Field(ge=1, le=100_000)] = 16
    """How many requests the engine serves at once."""
    prompt_tokens: Annotated[int, RUNTIME, Field(ge=0, le=10_000_000)] = 256
    """How many tokens of a prompt are not in the cache."""
    context_tokens: Annotated[int, RUNTIME, Field(ge=0, le=10_000_000)] = 2048
    """How many tokens a prompt and its reply have."""

    def chosen(self, known: Calibrations) -> Calibration:
        """The one that fits. Raises ValueError listing those there are where none or several fit."""
        wanted = {"model": self.model, "gpu": self.gpu, "engine": self.engine}
        fitting = [
            one
            for one in known.calibrations
            if all(value in (None, getattr(one, name)) for name, value in wanted.items())
        ]
        if len(fitting) == 1:
            return fitting[0]
        there = "; ".join(" on ".join(_key(one)[:2]) + f" with {one.engine}" for one in known.calibrations) or "none"
        if not fitting:
            asked = ", ".join(f"{name} {value!r}" for name, value in wanted.items() if value is not None)
            raise ValueError(f"no calibration{asked and f' for {asked}'}; the file has: {there}")
        raise ValueError(f"{len(fitting)} calibrations fit; choose one by model, gpu and engine; the file has: {there}")

    def times(self, quantum: int, given: Collection[str], base: Path, key: KeyPath) -> dict[str, int | None]:
        """What it changes in the section `latency` at `key`, which sets the keys `given`: the times, and itself.

        Raises MaterialError when the file cannot be used, when not exactly one calibration fits, and for times beside
        it. `base` is the folder that the file is relative to.
        """
        for name in ("prefill_ms", "kernel_ms"):
            if name in given:
                raise MaterialError((*key, name), "the calibration sets it; leave one of the two out")
        key = (*key, "calibration")
        known = read_calibrations(base / self.file, (*key, "file"))
        try:
            steps = self.chosen(known).steps
        except ValueError as fault:
            raise MaterialError(key, str(fault)) from None
        times = {
            "prefill_ms": steps.prefill_ms(self.prompt_tokens),
            "kernel_ms": steps.kernel_ms(quantum, self.in_flight, self.context_tokens),
        }
        for name, time_ms in times.items():
            if time_ms > LATENCY_MS_MAX:
                text = f"it gives {name} {time_ms}, above {LATENCY_MS_MAX}; lower the load that it names"
                raise MaterialError(key, text)
        return {**times, "calibration": None}


def read_calibrations(path: Path, key: KeyPath) -> Calibrations:
    """The content of the calibration file that `key` names. Raises MaterialError."""
    try:
        return Calibrations.model_validate_json(read_named(path, key))
    except ValidationError as failure:
        first = failure.errors(include_url=False, include_input=False)[0]
        where = f" at {dotted(first['loc'])}" if first["loc"] else ""
        text = f"{path} is no calibration file{where}: {first['msg']}; write one with `mac-run calibrate`"
        raise MaterialError(key, text) from None


class EngineLatency(Section):
    """How long a model's replies are made to take, in real time, where the engine itself is faster."""

    prefill_ms: Annotated[int, RUNTIME, Field(ge=0, le=LATENCY_MS_MAX)] = 200
    """For reading a prompt."""
    kernel_ms: Annotated[int, RUNTIME, Field(ge=0, le=LATENCY_MS_MAX)] = 400
    """For each quantum of tokens, the last one whole."""
    quantum: Annotated[int, RUNTIME, Field(ge=1, le=100_000)] = 16
    """How many tokens are decoded at a stretch."""
    calibration: CalibrationChoice | None = None
    """A measured engine, which sets `prefill_ms` and `kernel_ms` in place of the file; null: the file sets them."""

    def generation_ms(self, reply: Reply) -> int:
        """How long `reply` takes from the sending of its request."""
        return generation_ms_of(reply, self.prefill_ms, self.kernel_ms, self.quantum)


def generation_ms_of(reply: Reply, prefill_ms: int, kernel_ms: int, quantum: int) -> int:
    """How long an engine takes for `reply`, in milliseconds."""
    tokens = reply.tokens.completion or -(-len(reply.text) // CHARS_PER_TOKEN)
    return prefill_ms + -(-tokens // quantum) * kernel_ms
