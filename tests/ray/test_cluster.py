"""Jobs on a real Ray cluster of three nodes, all on this machine: a head without work, and two that have workers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from mac_runner.types import JsonObject
from tests.cli.lab import Lab, RunDir, environ
from tests.patience import LIMIT_S, ended, run, wait_for, wait_for_ends

pytest.importorskip("ray")

CONVERSATIONS = 64
NO_LIMIT = 1_000_000
FILE = "small.yaml"
GATE = """
import time
from pathlib import Path
from pydantic import BaseModel
from mac_runner import OwnBackend, FinishReason, Reply

class Gate(OwnBackend):
    class Settings(BaseModel):
        place: Path

    def generate(self, request):
        place = self.settings.place
        while len([*place.glob("runs/small/transcripts/*.json")]) >= int((place / "limit").read_text()):
            time.sleep(0.05)
        return Reply(text=f"{request.conversation} {request.turn.agent}", finish_reason=FinishReason.STOP)
"""
"""A model that waits when so many conversations have ended, so that the job cannot end before its nodes are killed."""
NOTICED = {"RAY_health_check_period_ms": "1000", "RAY_health_check_failure_threshold": "3"}
"""A dead node is noticed after 3 s, and not after 15."""


@pytest.fixture(autouse=True)
def no_leaks() -> None:
    """Not as elsewhere: nodes that a test adds belong to the cluster, which outlives it."""


@contextmanager
def cluster_of() -> Iterator[Any]:
    """A head without work and two nodes that have workers."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patience = {"RAY_gcs_server_port_wait_time_s": f"{LIMIT_S:.0f}"}
        for name, value in {**NOTICED, **patience, "RAY_USAGE_STATS_ENABLED": "0"}.items():
            patch.setenv(name, value)
        head = {"num_cpus": 0, "include_dashboard": True, "dashboard_port": 0, "dashboard_agent_listen_port": 0}
        cluster = Cluster()
        try:
            add_node(cluster, **head)
            patch.setenv("RAY_ADDRESS", cluster.address)
            for _ in range(2):
                add_node(cluster, num_cpus=1)
            yield cluster
        finally:
            cluster.shutdown()


def add_node(cluster: Any, **settings: Any) -> None:
    """Ray itself gives a node half a minute to come."""
    cluster._wait_for_node(cluster.add_node(wait=False, **settings), LIMIT_S)


def has_agent(node: Any) -> bool:
    """Whether jobs of Ray can be submitted to a node; Ray itself waits for its agent for ten seconds."""
    key = f"DASHBOARD_AGENT_ADDR_NODE_ID_PREFIX:{node.node_id}"
    return bool(node.get_gcs_client().internal_kv_get(key.encode(), namespace=b"dashboard"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with cluster_of() as cluster:
        yield cluster


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(path=tmp_path)
    content: JsonObject = {
        "experiment_metadata": {"experiment_name": "small"},
        "conversation_config": {"environment": "discussion", "conversations": CONVERSATIONS},
        "discussion": {"topics": ["Bridge or ferry?"], "max_rounds": 1},
        "model_definitions": {"m": {"backend": "./gate.py:Gate", "settings": {"place": str(tmp_path)}}},
        "agent_definitions": [{"agent_id": name, "role": "participant", "model": "m"} for name in ("a", "b")],
    }
    lab.write(content)
    (tmp_path / "gate.py").write_text(GATE)
    let_end(lab, NO_LIMIT)
    yield lab
    lab.close()


def let_end(lab: Lab, count: int) -> None:
    """Let so many conversations end, or a few more that are under way by then."""
    (new := lab.path / "limit.new").write_text(str(count))
    new.replace(lab.path / "limit")


def test_job_whose_nodes_are_killed_ends_like_a_single_run_and_leaves_no_process(lab: Lab, cluster: Any) -> None:
    shared = lab.path / "runs" / "small"
    let_end(lab, 10)
    job = lab.start(*submission("--shards", "8"))
    for done, more in ((10, 30), (30, NO_LIMIT)):
        wait_for(lambda done=done: ended_in(shared) >= done, f"{done} conversations")  # type: ignore[misc]
        wait_for(lambda: any(map(workers_of, cluster.worker_nodes)), "a worker")
        node = next(node for node in cluster.worker_nodes if workers_of(node))
        lost = workers_of(node)
        add_node(cluster, num_cpus=1)
        cluster.remove_node(node, allow_graceful=False)
        wait_for_ends(lost)
        let_end(lab, more)

    code, _, said = ended(job)
    lab.done(FILE, "--out", "single")

    assert code == 0, said
    assert RunDir(path=shared).statuses == {"finished": CONVERSATIONS}
    assert RunDir(path=shared).transcripts == RunDir(path=lab.path / "single").transcripts
    lab.verified(shared)
    assert not any(workers_of(node) for node in cluster.worker_nodes)


def test_job_is_submitted_within_a_job_of_ray(lab: Lab, cluster: Any) -> None:
    ray = (sys.executable, "-m", "ray.scripts.scripts")
    address = f"http://{cluster.head_node.webui_url}"
    # The working directory of such a job is a copy on each node, so the output needs a place of its own.
    shared = lab.path / "shared"
    entrypoint = [
        sys.executable,
        "-m",
        "mac_runner",
        *submission("--limit", "6", "--shards", "3", "--out", str(shared)),
    ]
    wait_for(lambda: has_agent(cluster.head_node), "the agent of the head")
    submitted = run(
        [*ray, "job", "submit", "--address", address, "--working-dir", ".", "--", *entrypoint],
        cwd=lab.path,
        env=environ({"RAY_ADDRESS": address, "PYTHONWARNINGS": ""}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )

    assert submitted.returncode == 0, submitted.stdout + submitted.stderr
    assert RunDir(path=shared).statuses == {"finished": 6}


def submission(*more: str, executor: str = "ray") -> tuple[str, ...]:
    shared = ("--assume-shared",) if executor == "ray" else ()
    return ("submit", FILE, "--executor", executor, "--nodes", "2", *shared, *more)


def ended_in(directory: Path) -> int:
    return len([*directory.glob("transcripts/*.json")])


def workers_of(node: Any) -> list[psutil.Process]:
    """The processes of mac-run below a node's raylet."""
    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
    return [process for process in raylet.children(recursive=True) if is_worker(process)]


def is_worker(process: psutil.Process) -> bool:
    try:
        return "auto/8" in process.cmdline()
    except psutil.Error:
        return False
