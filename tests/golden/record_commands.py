"""Records what the command line leaves behind: `python -m tests.golden.record_commands tests/golden/commands`.

Run it for a format that users have, and not again for that one. Beside each run directory
lies the experiment file that it was begun with.

    game    a game that is finished
    killed  two games, ended by SIGKILL half-way
    parts   numbers sent back, run as two shards: parts.shard-1-of-2, parts.shard-2-of-2
    grid    two combinations of a discussion
    failed  a discussion of questions from a file, two of whose four conversations failed
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import yaml

from mac_runner.types import JsonObject
from tests.cli.lab import MAC_RUN, environ, experiment, scripted
from tests.kit import undigested
from tests.sim.behaviour import Behaviour, Received, Say, failure
from tests.sim.openai_run import in_a_thread
from tests.sim.openai_server import OpenaiServer

URL = "http://127.0.0.1:9/v1"
"""Stands in the recorded files for the address of the server, which a reader puts in."""
FAILING_QUESTIONS = (b"ferry", b"market")
KILLED_AFTER_REPLIES = 60


def discussion(name: str, **more: JsonObject) -> JsonObject:
    """A discussion of two scripted agents."""
    return {
        "experiment_metadata": {"experiment_name": name},
        "conversation_config": {"environment": "discussion", "conversations": 2},
        "discussion": {"topics": ["Bridge or ferry?", "Market or mall?"], "max_rounds": 2},
        "model_definitions": {"panel": scripted("discussant")},
        "agent_definitions": [{"agent_id": name, "role": "participant", "model": "panel"} for name in ("ann", "bob")],
        **more,
    }


def echo(name: str) -> JsonObject:
    """Numbers sent back, six times."""
    return {
        "experiment_metadata": {"experiment_name": name},
        "conversation_config": {"environment": "echo", "conversations": 6},
        "echo": {"rounds": 2},
        "model_definitions": {"mirror": scripted("echo")},
        "agent_definitions": [{"agent_id": name, "role": "participant", "model": "mirror"} for name in ("ann", "bob")],
    }


def asked(url: str) -> JsonObject:
    """A discussion of the questions of a file over a server at `url`."""
    return {
        **discussion("failed"),
        "conversation_config": {"environment": "discussion", "conversations": 4},
        "discussion": {"questions": ["questions.jsonl"], "max_rounds": 1},
        "model_definitions": {
            "panel": {"backend": "openai", "openai_config": {"model": "stub", "base_urls": [url], "max_in_flight": 1}}
        },
    }


QUESTIONS = "".join(
    f'{{"question_id": "q{i}", "question_type": "open_ended", "question": "{text}"}}\n'
    for i, text in enumerate(("Bridge?", "A ferry?", "A market?", "A mall?"))
)


def refusing(received: Received) -> Behaviour:
    """A server that refuses two of the questions."""
    is_refused = any(word in received.body for word in FAILING_QUESTIONS)
    return failure(400, "not today") if is_refused else Say("So be it.")


def main() -> None:
    target = Path(sys.argv[1])
    target.mkdir(parents=True)
    record(target, "game", experiment("game", conversations=1))
    record_killed(target)
    for shard in ("1/2", "2/2"):
        record(target, "parts", echo("parts"), "--shard", shard)
    record(target, "grid", {**discussion("grid"), "_grid": {"sweep": {"discussion.max_rounds": [1, 2]}}})
    (target / "questions.jsonl").write_text(QUESTIONS)
    with in_a_thread(OpenaiServer(script=refusing)) as server:
        record(target, "failed", asked(server.url))
    for path in (target / "failed.yaml", target / "runs/failed/experiment.yaml"):
        path.write_text(undigested(path).replace(server.url, URL))
    for name in (".lock", ".lease", ".owner.json"):
        for path in target.rglob(name):
            path.unlink()


def record(target: Path, name: str, content: JsonObject, *flags: str) -> None:
    """Run an experiment to its end."""
    (target / f"{name}.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    subprocess.run([*MAC_RUN, f"{name}.yaml", "--quiet", *flags], cwd=target, env=environ(), check=False)


def record_killed(target: Path) -> None:
    """Kill a run when it has recorded some replies, and leave what a write that was cut short leaves."""
    content = experiment("killed", models={"m": scripted(latency_ms=20)})
    (target / "killed.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    process = subprocess.Popen([*MAC_RUN, "killed.yaml", "--quiet"], cwd=target, env=environ())
    segment = target / "runs/killed/journal/000001.jsonl"
    while not segment.exists() or segment.read_bytes().count(b"\n") < KILLED_AFTER_REPLIES:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    data = segment.read_bytes()
    segment.write_bytes(data + data.splitlines()[1][:57])


if __name__ == "__main__":
    main()
