"""What do updates of the weights cost a run, and how soon does an engine say a token with new weights?

A random model of nano's plays `echo`, and every token of it is kept. The same run is played without a policy and with
one: then new weights come after every batch of conversations, in flight. The weights are made before, so that a
trainer's work is left out. The rate counts the replies after the first batch, when the engine is warm. The two kinds of
run take turns.

Then an engine with running requests gets new weights again and again: the time between the call and the first token
that arrives after it returned. That token is of the new version.

Run `python -m benchmarks.learning`. The last line is one JSON row.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

# Before anything else loads torch: it decides how torch's threads wait.
import mac_runner.nano as nano  # isort: skip

from torch import Tensor

import mac_runner
from benchmarks.machine import row
from benchmarks.nano_peers.setting import SIZES, make_random_model
from mac_runner.nano.checkpoint import read_state_dict

ROUNDS = 2
AGENTS = 2
TURNS = ROUNDS * AGENTS
SEATS = 16
TOKENS = 32


class Played(NamedTuple):
    """The replies per second of a run, by two clocks, and how long each update took."""

    per_s: float
    per_cpu_s: float
    updates_s: tuple[float, ...]


def experiment(model: Path, conversations: int) -> dict[str, object]:
    """Two agents that say `TOKENS` tokens each round."""
    settings = {"model": str(model), "num_threads": 1, "max_num_seqs_upper_bound": SEATS, "kv_cache_gib": 0.2}
    return {
        "experiment_metadata": {"experiment_name": "learning"},
        "conversation_config": {"environment": "echo", "conversations": conversations},
        "echo": {"rounds": ROUNDS},
        "model_definitions": {"learner": {"backend": "nano", "nano_config": settings, "record_tokens": True}},
        "agent_definitions": [
            {"agent_id": name, "role": "participant", "model": "learner", "temperature": 1.0, "max_tokens": TOKENS}
            for name in ("A", "B")
        ],
    }


async def play(
    written: Mapping[str, object], out: Path, conversations: int, batch: int, weights: Sequence[Mapping[str, Tensor]]
) -> Played:
    """Play; with `weights`, give the engine one of them after each batch."""
    policy = mac_runner.Policy("learner", max_lag=2, batch=batch) if weights else None
    ended, updates, begun, over = 0, list[float](), (0.0, 0.0), (0.0, 0.0)
    async with mac_runner.stream(dict(written), policy=policy, out=out, progress=False) as run:
        async for _ in run:
            ended += 1
            if ended == batch:
                begun = time.perf_counter(), time.process_time()
            if weights and ended % batch == 0 and ended < conversations:
                called = time.perf_counter()
                await run.update_weights(weights[len(updates) % len(weights)], blocking=False)
                updates.append(time.perf_counter() - called)
            if ended == conversations:
                over = time.perf_counter(), time.process_time()
    replies = (conversations - batch) * TURNS
    return Played(replies / (over[0] - begun[0]), replies / (over[1] - begun[1]), tuple(updates))


async def first_tokens(model: Path, weights: Sequence[Mapping[str, Tensor]], updates: int) -> list[float]:
    """For each of so many updates of a busy engine: from the call to a token of the new version."""
    config = nano.EngineConfig(
        model_path=str(model), num_threads=1, max_batch_size=SEATS, kv_cache_bytes=200 << 20, max_model_len=1024
    )
    engine = nano.AsyncEngine(config)
    await engine.start()
    arrivals = asyncio.Condition()

    async def talk(seat: int) -> None:
        params = nano.SamplingParams(max_tokens=512, ignore_eos=True)
        while True:
            async for _ in engine.stream([seat + 1, 2, 3, 4], params):
                async with arrivals:
                    arrivals.notify_all()

    async def arrival() -> None:
        async with arrivals:
            await arrivals.wait()

    talkers = [asyncio.create_task(talk(seat)) for seat in range(SEATS)]
    found = list[float]()
    for update in range(updates):
        for _ in range(4):
            await arrival()
        called = time.perf_counter()
        await engine.update_weights(weights[update % len(weights)], update + 1)
        await arrival()
        found.append(time.perf_counter() - called)
    for talker in talkers:
        talker.cancel()
    await asyncio.gather(*talkers, return_exceptions=True)
    await engine.shutdown()
    return found


def altered(model: Path, count: int) -> list[dict[str, Tensor]]:
    """So many weights that differ a little from those of the model."""
    weights = read_state_dict(model)
    return [{name: weight * (1 + 1e-3 * (number + 1)) for name, weight in weights.items()} for number in range(count)]


def ratio(runs: Sequence[tuple[Played, Played]], of: Callable[[Played], float]) -> float:
    """The median over rounds of a figure with updates over that without."""
    return round(median(of(updated) / of(plain) for plain, updated in runs), 3)


def main() -> None:
    """Measure, and print the row."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", choices=SIZES, default="5m")
    parser.add_argument("--conversations", type=int, default=128)
    parser.add_argument("--batch", type=int, default=16, help="conversations between two updates")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=20, help="of the engine alone")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        model = make_random_model(asked.model, Path(place))
        weights, written = altered(model, 2), experiment(model, asked.conversations)
        runs = list[tuple[Played, Played]]()
        for number in range(asked.rounds):
            plain, updated = (
                asyncio.run(play(written, Path(place) / f"{kind}{number}", asked.conversations, asked.batch, given))
                for kind, given in (("plain", ()), ("updated", weights))
            )
            runs.append((plain, updated))
        tokens_s = asyncio.run(first_tokens(model, weights, asked.updates))
    print(
        row(
            benchmark="learning",
            model=asked.model,
            conversations=asked.conversations,
            updates=len(runs[0][1].updates_s),
            rollouts_per_s=round(median(plain.per_s for plain, _ in runs), 1),
            rollouts_per_s_with_updates=round(median(updated.per_s for _, updated in runs), 1),
            ratio=ratio(runs, lambda played: played.per_s),
            ratio_of_cpu=ratio(runs, lambda played: played.per_cpu_s),
            update_ms=round(1000 * median(one for _, updated in runs for one in updated.updates_s), 1),
            first_token_ms=round(1000 * median(tokens_s), 1),
            first_token_ms_max=round(1000 * max(tokens_s), 1),
        )
    )


if __name__ == "__main__":
    main()
