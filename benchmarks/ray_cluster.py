"""A job on a Ray cluster of three nodes on this machine, beside the same job by the local executor.

    python -m benchmarks.ray_cluster

It needs the extra `ray`. Then it kills a node at work, and waits until its task has a worker on another node, and until
a worker goes on with one of its shards.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import row
from mac_runner.store import Disk
from mac_runner.store.testing import read_owner
from mac_runner.types import JsonValue
from tests.cli.lab import Lab, experiment, scripted
from tests.patience import wait_for
from tests.ray.test_cluster import cluster_of, ended_in, submission, workers_of

CONVERSATIONS = 64
ROUNDS = 3


def main() -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory() as scratch, cluster_of() as cluster:
        lab = Lab(path=Path(scratch))
        lab.write(experiment(conversations=CONVERSATIONS, models={"m": scripted(capacity=4, latency_ms=20)}))
        took_s: dict[str, list[float]] = {"local": [], "ray": []}
        for number in range(ROUNDS):
            for name, all_s in took_s.items():
                all_s.append(seconds(lab, name, f"{name}-{number}"))
        still = [stand_still(lab, cluster, f"killed-{number}") for number in range(ROUNDS)]
    figures: dict[str, list[float]] = {
        "local_s": took_s["local"],
        "ray_s": took_s["ray"],
        "until_another_worker_s": [worker_s for worker_s, _ in still],
        "until_its_shard_goes_on_s": [shard_s for _, shard_s in still],
    }
    rounded: dict[str, JsonValue] = {name: [round(one, 1) for one in values] for name, values in figures.items()}
    print(row(**rounded))


def seconds(lab: Lab, executor: str, name: str) -> float:
    """How long a job takes from its submission to its results."""
    began_s = time.monotonic()
    process = lab.start(*submission("--shards", "8", "--out", name, executor=executor))
    _, said = process.communicate()
    assert process.returncode == 0, said
    return time.monotonic() - began_s


def stand_still(lab: Lab, cluster: Any, name: str) -> tuple[float, float]:
    """How long after the kill of a node there is another worker, and one at a shard of the node."""
    process = lab.start(*submission("--shards", "8", "--out", name))
    shared = lab.path / name
    wait_for(lambda: ended_in(shared) >= 10, "10 conversations")
    node = next(node for node in cluster.worker_nodes if workers_of(node))
    before = {worker.pid for each in cluster.worker_nodes for worker in workers_of(each)}
    lost = {worker.pid for worker in workers_of(node)}
    held = [path.parent for path in shared.glob("leases/*/.owner.json") if json.loads(path.read_text())["pid"] in lost]

    def is_held_again(place: Path) -> bool:
        owner = read_owner(Disk(), place)
        return owner is not None and owner.pid not in lost

    cluster.add_node(num_cpus=1)
    killed_s = time.monotonic()
    cluster.remove_node(node, allow_graceful=False)
    wait_for(
        lambda: any(w.pid not in before for each in cluster.worker_nodes for w in workers_of(each)), "another worker"
    )
    started_s = time.monotonic() - killed_s
    wait_for(lambda: any(map(is_held_again, held)), "work on the shard")
    gone_on_s = time.monotonic() - killed_s
    process.communicate()
    return started_s, gone_on_s


if __name__ == "__main__":
    main()
