"""A place to run `mac-run` in: small experiments, real processes, and a look at what they wrote."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

import pytest
import yaml

from mac_runner.cli import main
from mac_runner.cli.maintenance import verify
from mac_runner.cli.process import Exit
from mac_runner.environments.town_of_salem.testing import Game
from mac_runner.store import without_timing
from mac_runner.store.testing import decode_transcript, encode_json
from mac_runner.types import JsonObject, JsonValue, Message, Prompt, Turn
from tests import patience
from tests.conftest import kept_signals
from tests.sim.held_run import held

AtOnce: TypeAlias = Callable[..., subprocess.CompletedProcess[str]]
"""Runs `mac-run` with the given arguments inside the test's own process: the fixture `at_once`."""

MAC_RUN = (sys.executable, "-m", "mac_runner.cli")
ROOT = Path(__file__).parents[2]


def scripted(policy: str = "heuristic", *, capacity: int = 8, latency_ms: float = 0) -> JsonObject:
    """An entry of `model_definitions`."""
    return {
        "backend": "scripted",
        "scripted_config": {"policy": policy, "capacity": capacity, "latency_ms": latency_ms},
    }


def experiment(
    name: str = "small",
    *,
    conversations: int = 2,
    seed: int = 11,
    lobby: str = "classic-7",
    models: Mapping[str, JsonValue] | None = None,
    **more: JsonValue,
) -> JsonObject:
    """An experiment file: `name` is played by every model in equal shares."""
    models = {"m": scripted()} if models is None else models
    return {
        "experiment_metadata": {"experiment_name": name},
        "seed": seed,
        "conversation_config": {"environment": "town_of_salem", "conversations": conversations},
        "game": {"lobby": lobby},
        "model_definitions": dict(models),
        "agent_definitions": [{"agent_id": f"with_{model}", "role": "player", "model": model} for model in models],
        **more,
    }


def discussion(
    model: JsonValue,
    name: str = "talk",
    *,
    conversations: int = 3,
    max_rounds: int | None = None,
    **more: JsonValue,
) -> JsonObject:
    """An experiment file: two agents of one model discuss."""
    rounds: JsonObject = {} if max_rounds is None else {"max_rounds": max_rounds}
    return {
        "experiment_metadata": {"experiment_name": name},
        "conversation_config": {"environment": "discussion", "conversations": conversations},
        "discussion": {"topics": ["Bridge or ferry?"], **rounds},
        "model_definitions": {"m": model},
        "agent_definitions": [{"agent_id": agent, "role": "participant", "model": "m"} for agent in ("a", "b")],
        **more,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDir:
    """What a run directory holds, as a reader of its files sees it."""

    path: Path

    @property
    def transcripts(self) -> dict[str, bytes]:
        """Every transcript without its timing, by file name."""
        files = sorted((self.path / "transcripts").glob("*.json"))
        return {file.name: encode_json(without_timing(decode_transcript(file.read_bytes()))) for file in files}

    @property
    def index(self) -> list[JsonObject]:
        """The rows of the index."""
        (path,) = self.path.glob("*_index.jsonl")
        return _json_lines(path)

    @property
    def manifest(self) -> JsonObject:
        """The manifest."""
        return _json(self.path / "task_manifest.json")

    @property
    def statuses(self) -> dict[str, int]:
        """How many tasks of the manifest have each status."""
        tasks = self.manifest["tasks"]
        assert isinstance(tasks, list)
        found = [str(task["status"]) for task in tasks if isinstance(task, dict)]
        return {status: found.count(status) for status in sorted(set(found))}

    @property
    def summary(self) -> JsonObject:
        """The summary."""
        return _json(self.path / "summary.json")

    def events(self, name: str) -> list[JsonObject]:
        """The events of one name; a line torn by a kill is passed over."""
        path = self.path / "events.jsonl"
        return [event for event in _json_lines(path) if event["event"] == name] if path.exists() else []

    def hashes(self) -> dict[str, tuple[int, str]]:
        """Every file and directory of the run, with its time of change and a digest of its contents."""
        return {
            str(path.relative_to(self.path)): (
                path.stat().st_mtime_ns,
                hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "directory",
            )
            for path in sorted(self.path.rglob("*"))
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """A working directory, and the processes started in it."""

    path: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def write(self, content: JsonObject, file: str | None = None) -> str:
        """Write an experiment file; its name."""
        metadata = content["experiment_metadata"]
        assert isinstance(metadata, dict)
        name = file or f"{metadata['experiment_name']}.yaml"
        (self.path / name).write_text(yaml.safe_dump(content, sort_keys=False))
        return name

    def run_dir(self, name: str = "small") -> RunDir:
        """The run directory of an experiment, in its default place."""
        return RunDir(path=self.path / "runs" / name)

    def run(self, *args: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run `mac-run` to its end."""
        return patience.run(
            [*MAC_RUN, *args], cwd=self.path, env=environ(env), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def done(self, *args: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run `mac-run`, which must end well."""
        process = self.run(*args, env=env)
        assert process.returncode == 0, process.stderr
        return process

    def play(self, *args: str) -> None:
        """Run `mac-run` in this process, which must end well; for fixtures that several tests share."""
        with pytest.MonkeyPatch.context() as monkeypatch, kept_signals():
            monkeypatch.chdir(self.path)
            assert run_main(*args) == Exit.OK

    def start(
        self, *args: str, preexec: Callable[[], None] | None = None, program: tuple[str, ...] = MAC_RUN
    ) -> subprocess.Popen[str]:
        """Start `mac-run`; what is still running when the test ends is killed."""
        process = subprocess.Popen(
            [*program, *args],
            cwd=self.path,
            env=environ(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=preexec,
        )
        self.started.append(process)
        return process

    def start_held(self, replies: int, *args: str) -> subprocess.Popen[str]:
        """Start a run that gives so many replies and waits with them, until it is asked to stop or killed."""
        known = {log: log.stat().st_size for log in self._logs()}

        def given() -> int:
            return sum(_since(log, known.get(log, 0)).count(b'"EVENT_INFER_DONE"') for log in self._logs())

        process = self.start(*args, program=held(replies))
        patience.wait_for(lambda: process.poll() is not None or given() >= replies, f"{replies} replies")
        return process

    def _logs(self) -> list[Path]:
        """The event logs of all runs; a folder may go while it is looked at."""
        return [Path(folder, "events.jsonl") for folder, _, names in os.walk(self.path) if "events.jsonl" in names]

    def verified(self, directory: Path) -> None:
        """Check a run directory, which must be in order; in this process, which saves a second each time."""
        assert verify(directory) == Exit.OK

    def close(self) -> None:
        """End what still runs, and its pipes."""
        for process in self.started:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.communicate()


def refusals(at_once: AtOnce, commands: Iterable[str | Sequence[str]]) -> str:
    """What is said to commands that are all refused as bad input, for a snapshot of the words."""
    told: list[str] = []
    for command in commands:
        args = shlex.split(command) if isinstance(command, str) else command
        process = at_once(*args)
        assert (process.returncode, process.stdout) == (Exit.BAD_INPUT, ""), (args, process.stderr)
        told.append(f"{shlex.join(args)}\n{process.stderr}")
    return "\n".join(told)


def done(at_once: AtOnce, *args: str) -> str:
    """What a command prints, which must end well."""
    ended = at_once(*args)
    assert ended.returncode == Exit.OK, f"{args}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


def run_main(*args: str) -> int:
    """Run `mac-run` in this process and in its working directory; its exit code."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(sys, "argv", ["mac-run", *args])
        with pytest.raises(SystemExit) as ending:
            main()
    assert isinstance(ending.value.code, int)
    return ending.value.code


def render_other_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the games of this process render every prompt as another version of it might."""
    render = Game.prompt

    def prompt(self: Game, turn: Turn) -> Prompt:
        rendered = render(self, turn)
        return replace(rendered, messages=(*rendered.messages, Message(role="user", content="Think.")))

    monkeypatch.setattr(Game, "prompt", prompt)


def environ(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a child: this checkout's package, and a warning is an error."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error", **(env or {})}


def _since(log: Path, size_bytes: int) -> bytes:
    """What was written to a log since it had this size; it may have been moved."""
    with suppress(FileNotFoundError), log.open("rb") as file:
        file.seek(size_bytes)
        return file.read()
    return b""


def _json(path: Path) -> JsonObject:
    value = json.loads(path.read_text())
    assert isinstance(value, dict)
    return value


def _json_lines(path: Path) -> list[JsonObject]:
    rows: list[JsonObject] = []
    for line in path.read_bytes().split(b"\n"):
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows
