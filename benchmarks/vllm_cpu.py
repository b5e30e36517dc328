"""How much of a real engine's speed does a run get? An experiment against its own prompts fed straight to the engine.

Run `python benchmarks/vllm_cpu.py` where vLLM is installed for the CPU. A tiny model is made and started once. The
experiment runs through the whole path, journal and transcripts on; and the very same prompts, as text, in the same
order and with the same seeds, are given to the same engine, as many together as the run has in flight. The two take
turns, each time on an empty prefix cache, and take turns at being first, because the machine's speed may drift. The
last line is one JSON row.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.machine import row
from mac_runner.backends import Backend
from mac_runner.backends.vllm import VllmConfig
from mac_runner.backends.vllm.backend import VllmBackend
from mac_runner.clock import SystemClock
from mac_runner.config import Loaded, load_experiment
from mac_runner.environments import build_environment
from mac_runner.plan import plan_of
from mac_runner.store import Invocation, open_run
from mac_runner.store.testing import Layout
from mac_runner.types import JsonObject, Reply, Request
from tests.sim.building import request_for
from tests.sim.conversations import run_conversations
from tests.vllm.tiny_model import make_tiny_model

ROUNDS = 3
WARM_UP = 24
"""Conversations before anything is measured: the engine's first requests compile what the later ones use."""
QUESTIONS = Path(__file__).parents[1] / "experiments/questions/bbq_200.jsonl"


@dataclass(slots=True)
class Phase:
    """The result of one way of asking."""

    tokens: int = 0
    wall_s: float = 0.0

    @property
    def tokens_per_s(self) -> float:
        """Completion tokens a second."""
        return self.tokens / self.wall_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The same prompts both ways, one right after the other."""

    played: Phase
    fed: Phase

    @property
    def ratio(self) -> float:
        """The run's tokens a second over those of the engine by itself."""
        return self.played.tokens_per_s / self.fed.tokens_per_s

    def line(self) -> str:
        """One line."""
        return f"{self.played.tokens_per_s:.0f} tokens/s, direct {self.fed.tokens_per_s:.0f}: {self.ratio:.3f}"


def in_all(phases: Iterable[Phase]) -> Phase:
    """Phases as one."""
    whole = Phase()
    for phase in phases:
        whole.tokens, whole.wall_s = whole.tokens + phase.tokens, whole.wall_s + phase.wall_s
    return whole


class Overheard(Backend):
    """The started engine as a run sees it. It records its requests, and the run leaves it running."""

    def __init__(self, backend: VllmBackend) -> None:
        self._backend = backend
        self.requests: list[Request] = []
        self.tokens = 0

    @property
    def capacity(self) -> int:
        """The engine's."""
        return self._backend.capacity

    @property
    def token_budget(self) -> int | None:
        """The engine's."""
        return self._backend.token_budget

    @property
    def lookahead(self) -> int:
        """The engine's."""
        return self._backend.lookahead

    async def generate(self, request: Request) -> Reply:
        """The engine's reply."""
        self.requests.append(request)
        reply = await self._backend.generate(request)
        self.tokens += reply.tokens.completion
        return reply


def experiment(model: Path, *, conversations: int, slots: int, max_tokens: int) -> JsonObject:
    """Discussions of three, who speak simultaneously in each round."""
    vllm_config: JsonObject = {
        "model": str(model),
        "dtype": "float32",
        "enforce_eager": True,
        "block_size": 32,
        "max_model_len": 4096,
        "max_num_seqs_upper_bound": slots,
    }
    return {
        "experiment_metadata": {"experiment_name": "vllm_cpu"},
        "conversation_config": {"environment": "discussion", "conversations": conversations},
        "discussion": {
            "questions": [str(QUESTIONS)],
            "max_rounds": ROUNDS,
            "stopping": {"on_consensus": False},
            "prompt": {"answer_order": "answer_first"},  # So the answer comes before the tokens are used up.
        },
        "model_definitions": {"m": {"backend": "vllm", "vllm_config": vllm_config}},
        "agent_definitions": [
            {"agent_id": f"a{n}", "role": "participant", "model": "m", "max_tokens": max_tokens} for n in range(3)
        ],
    }


async def play(loaded: Loaded, backend: VllmBackend, directory: Path) -> tuple[Phase, list[Request]]:
    """The experiment from beginning to end."""
    environment, clock, asked = build_environment(loaded.experiment), SystemClock(), Overheard(backend)
    began_at_s = clock.monotonic_s()
    with open_run(
        Invocation(
            layout=Layout(directory=directory, experiment_name="vllm_cpu"),
            resolved=loaded.resolved,
            tasks=plan_of(loaded.experiment, environment.lineup),
        ),
        clock=clock,
    ) as run:
        await run_conversations(
            environment=environment,
            environment_name="discussion",
            experiment_name="vllm_cpu",
            work=run.unfinished(),
            backends={"m": asked},
            recorder=run,
            retry=loaded.experiment.retry_config,
            concurrency=None,
            clock=clock,
            stop=asyncio.Event(),
        )
    return Phase(tokens=asked.tokens, wall_s=clock.monotonic_s() - began_at_s), asked.requests


async def feed(requests: Sequence[Request], backend: VllmBackend, workers: int) -> Phase:
    """The same prompts, rendered beforehand, straight to the engine, which tokenises them."""
    running = backend.running
    prompts = [(running.renderers[None].render(request.prompt.messages).text, request) for request in requests]
    waiting, phase, clock = iter(prompts), Phase(), SystemClock()

    async def work() -> None:
        for prompt, request in waiting:
            sampling = running.sampling_of(request)
            async for output in running.engine.generate(prompt, sampling, request.request_id):
                phase.tokens += len(output.outputs[0].token_ids)

    began_at_s = clock.monotonic_s()
    await asyncio.gather(*(work() for _ in range(workers)))
    phase.wall_s = clock.monotonic_s() - began_at_s
    return phase


async def measure(experiment: Loaded, warm_up: Loaded, directory: Path, pairs: int) -> tuple[list[Pair], int]:
    """Both ways, `pairs` times, on one engine; and the requests of each time."""
    config = experiment.experiment.model_definitions["m"].backend_settings
    if not isinstance(config, VllmConfig):
        raise ValueError("the experiment has no vLLM")
    backend = VllmBackend(request_for(config, SystemClock(), say=print))
    found, requests = list[Pair](), list[Request]()

    async def played(name: str) -> Phase:
        nonlocal requests
        await backend.running.engine.reset_prefix_cache()
        phase, requests = await play(experiment, backend, directory / name)
        return phase

    async def fed() -> Phase:
        await backend.running.engine.reset_prefix_cache()
        return await feed(requests, backend, backend.capacity + backend.lookahead)

    await backend.start()
    try:
        await play(warm_up, backend, directory / "warm-up")
        for number in range(pairs):
            if number % 2 == 0:
                found.append(Pair(played=await played(f"run-{number}"), fed=await fed()))
            else:  # A run asks the same as the previous one.
                found.append(Pair(fed=await fed(), played=await played(f"run-{number}")))
            print(found[-1].line())
    finally:
        await backend.close()
    return found, len(requests)


def main() -> None:
    """Measure and print the row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conversations", type=int, default=100)
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--pairs", type=int, default=4)
    asked = parser.parse_args()
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    with tempfile.TemporaryDirectory() as directory:
        model = make_tiny_model(Path(directory) / "model")

        def loaded(name: str, conversations: int) -> Loaded:
            content = experiment(model, conversations=conversations, slots=asked.slots, max_tokens=asked.max_tokens)
            file = Path(directory) / name
            file.write_text(yaml.safe_dump(content), encoding="utf-8")
            return load_experiment(file)

        measured, warm_up = loaded("vllm_cpu.yaml", asked.conversations), loaded("warm_up.yaml", WARM_UP)
        pairs, requests = asyncio.run(measure(measured, warm_up, Path(directory), asked.pairs))
    played, fed = in_all(pair.played for pair in pairs), in_all(pair.fed for pair in pairs)
    print(
        row(
            benchmark="vllm_cpu",
            conversations=asked.conversations,
            slots=asked.slots,
            requests=requests,
            tokens_per_s=round(played.tokens_per_s, 1),
            direct_tokens_per_s=round(fed.tokens_per_s, 1),
            tokens_per_s_over_direct=round(played.tokens_per_s / fed.tokens_per_s, 4),
            of_each_pair=[round(pair.ratio, 3) for pair in pairs],
        )
    )


if __name__ == "__main__":
    main()
