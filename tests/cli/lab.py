"""A place to run `mac-run` in: small experiments, real processes, and a look at what they wrote."""

from __future__ import annotations

import hashlib
import json
import os
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from mac_runner.cli import main
from mac_runner.cli.checks import Verify
from mac_runner.cli.process import Exit
from mac_runner.environments import Conversation
from mac_runner.environments.town_of_salem.testing import Game
from mac_runner.store import without_timing
from mac_runner.store.testing import Layout, decode_transcript, encode_json, layout_of
from mac_runner.types import JsonObject, JsonValue, Message, Prompt, Turn
from tests import patience
from tests.conftest import kept_signals
from tests.kit import stale_files
from tests.sim.held_run import held

MAC_RUN = (sys.executable, "-m", "mac_runner")
ROOT = Path(__file__).parents[2]
QUESTIONS = ROOT / "experiments" / "questions" / "bbq_200.jsonl"


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


def served(url: str, model: str = "stub", *, backend: str = "openai", **section: JsonValue) -> JsonObject:
    """An entry of `model_definitions`: a model of the server at this address."""
    address: dict[str, JsonObject] = {
        "openai": {"base_urls": [url]},
        "ollama": {"host": url},
        "anthropic": {"base_url": url},
    }
    return {"backend": backend, f"{backend}_config": {"model": model, **address[backend], **section}}


def discussion(
    models: JsonObject | Sequence[JsonObject],
    name: str = "talk",
    *,
    conversations: int = 3,
    agents: Sequence[JsonObject] = ({}, {}),
    max_rounds: int | None = None,
    **more: JsonValue,
) -> JsonObject:
    """An experiment file: two agents, or as many as are given, discuss. They have the models in turns."""
    settings: JsonObject = {} if max_rounds is None else {"max_rounds": max_rounds}
    section: JsonObject = {"topics": ["Bridge or ferry?"], **settings}
    return _talk("discussion", section, name, models, agents, conversations) | more


def echoes(
    models: JsonObject | Sequence[JsonObject],
    name: str = "echoes",
    *,
    conversations: int = 3,
    agents: Sequence[JsonObject] = ({},),
    rounds: int = 1,
    **more: JsonValue,
) -> JsonObject:
    """An experiment file of the environment that says again what is said to it."""
    return _talk("echo", {"rounds": rounds}, name, models, agents, conversations) | more


def _talk(
    environment: str,
    section: JsonObject,
    name: str,
    models: JsonObject | Sequence[JsonObject],
    agents: Sequence[JsonObject],
    conversations: int,
) -> JsonObject:
    definitions: Sequence[JsonObject] = [models] if isinstance(models, dict) else models
    names = ["m"] if isinstance(models, dict) else [f"m{number}" for number in range(len(definitions))]
    return {
        "experiment_metadata": {"experiment_name": name},
        "conversation_config": {"environment": environment, "conversations": conversations},
        environment: section,
        "model_definitions": dict(zip(names, definitions, strict=True)),
        "agent_definitions": [
            {"agent_id": chr(ord("a") + number), "role": "participant", "model": names[number % len(names)], **agent}
            for number, agent in enumerate(agents)
        ],
    }


class Ended(subprocess.CompletedProcess[str]):
    """How a command ended, and what it said."""

    def ends(self, code: int, *told: str, printed: str | Sequence[str] = ()) -> Ended:
        """With this code; it told all of these on stderr and printed all of those on stdout."""
        printed = (printed,) if isinstance(printed, str) else printed
        missing = [text for text in told if text not in self.stderr]
        missing += [text for text in printed if text not in self.stdout]
        if 0 <= code != Exit.BUG and "Traceback" in self.stderr:
            missing.append("an end without a traceback")
        words = self.args if isinstance(self.args, str) else shlex.join(map(str, self.args))
        assert (self.returncode, missing) == (code, []), f"{words}\n{self.stdout}\n{self.stderr}"
        return self

    def done(self, *printed: str, told: str | Sequence[str] = ()) -> Ended:
        """Well: it printed all of these."""
        return self.ends(Exit.OK, *((told,) if isinstance(told, str) else told), printed=printed)

    def refused(self, *told: str) -> Ended:
        """As bad input: it told all of these, and printed nothing."""
        self.ends(Exit.BAD_INPUT, *told)
        assert self.stdout == ""
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDir:
    """What a run directory holds, as a reader of its files sees it; or a combination, by its name in that of a grid."""

    path: Path

    @property
    def layout(self) -> Layout:
        """Its paths."""
        return layout_of(self.path)

    def transcript_files(self) -> list[Path]:
        """Its transcripts."""
        layout = self.layout
        return [path for path in sorted(layout.transcripts.glob("*.json")) if layout.holds(path.stem)]

    @property
    def transcripts(self) -> dict[str, bytes]:
        """Every transcript without its timing, by file name."""
        files = self.transcript_files()
        return {file.name: encode_json(without_timing(decode_transcript(file.read_bytes()))) for file in files}

    @property
    def index(self) -> list[dict[str, Any]]:
        """The rows of the index."""
        (path,) = self.layout.root.glob("*_index.jsonl")
        return [row for row in _json_lines(path) if self.layout.holds(row["task_id"])]

    @property
    def manifest(self) -> dict[str, Any]:
        """The manifest."""
        manifest = _json(self.layout.manifest)
        return {**manifest, "tasks": [task for task in manifest["tasks"] if self.layout.holds(task["task_id"])]}

    @property
    def statuses(self) -> dict[str, int]:
        """How many tasks of the manifest have each status."""
        found = [str(task["status"]) for task in self.manifest["tasks"]]
        return {status: found.count(status) for status in sorted(set(found))}

    @property
    def summary(self) -> dict[str, Any]:
        """The summary."""
        return _json(self.layout.summary)

    def events(self, name: str) -> list[dict[str, Any]]:
        """The events of one name; a line torn by a kill is passed over."""
        layout = self.layout
        found = _json_lines(layout.events) if layout.events.exists() else []
        is_ours = (layout.grid is None or layout.holds(str(event.get("task"))) for event in found)
        return [event for event, is_one in zip(found, is_ours, strict=True) if is_one and event["event"] == name]

    def transcript(self, conversation: int | str = 0) -> dict[str, Any]:
        """A transcript, by its place or by the name of its conversation."""
        files = self.transcript_files()
        file = files[conversation] if isinstance(conversation, int) else files[0].with_name(f"{conversation}.json")
        return decode_transcript(file.read_bytes())

    @property
    def turns(self) -> list[dict[str, Any]]:
        """The turns of all transcripts, without their timing."""
        return [turn for data in self.transcripts.values() for turn in json.loads(data)["turns"]]

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Nothing in it changes meanwhile, not even a time."""
        before = self.hashes()
        yield
        assert self.hashes() == before

    def hashes(self) -> dict[str, tuple[int, str]]:
        """Every file and directory of the run, with its time of change and a digest of its contents."""
        layout = self.layout
        own = [layout.config, layout.summary, *layout.journal.rglob("*"), *self.transcript_files()]
        return {
            str(path.relative_to(layout.root)): (
                path.stat().st_mtime_ns,
                hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "directory",
            )
            for path in sorted(self.path.rglob("*") if layout.grid is None else own)
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """A working directory, and the processes started in it."""

    path: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def write(self, content: JsonObject, file: str | None = None) -> str:
        """Write an experiment file; its name."""
        metadata = content.get("experiment_metadata", {"experiment_name": content.get("name")})
        assert isinstance(metadata, dict)
        name = file or f"{metadata['experiment_name']}.yaml"
        (self.path / name).write_text(yaml.safe_dump(content, sort_keys=False))
        return name

    def run_dir(self, name: str = "small") -> RunDir:
        """The run directory of an experiment, in its default place."""
        return RunDir(path=self.path / "runs" / name)

    def dir(self, name: str) -> RunDir:
        """The run directory of this name, here."""
        return RunDir(path=self.path / name)

    def files(self) -> dict[str, bytes | str]:
        """Every name below the working directory, and the bytes of what is a file."""
        return {
            str(path.relative_to(self.path)): path.read_bytes() if path.is_file() and not path.is_symlink() else "other"
            for path in sorted(self.path.rglob("*"))
        }

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """No name comes, goes or holds something else meanwhile."""
        before = self.files()
        yield
        assert differing(before, self.files()) == []

    def run(self, *args: str, env: Mapping[str, str] | None = None) -> Ended:
        """Run `mac-run` to its end."""
        found = patience.run(
            [*MAC_RUN, *args], cwd=self.path, env=environ(env), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        return Ended(found.args, found.returncode, found.stdout, found.stderr)

    def done(self, *args: str, env: Mapping[str, str] | None = None) -> Ended:
        """Run `mac-run`, which must end well."""
        return self.run(*args, env=env).done()

    def play(self, *args: str) -> None:
        """Run `mac-run` in this process, which must end well; for fixtures that several tests share."""
        with pytest.MonkeyPatch.context() as monkeypatch, kept_signals():
            monkeypatch.chdir(self.path)
            assert run_main(*args) == Exit.OK

    def start(
        self,
        *args: str,
        preexec: Callable[[], None] | None = None,
        program: tuple[str, ...] = MAC_RUN,
        cwd: Path | None = None,
        out: int = subprocess.PIPE,
        err: int = subprocess.PIPE,
        close_fds: bool = True,
    ) -> subprocess.Popen[str]:
        """Start `mac-run`; what is still running when the test ends is killed."""
        process = subprocess.Popen(
            [*program, *args],
            cwd=cwd or self.path,
            env=environ(),
            stdout=out,
            stderr=err,
            text=True,
            preexec_fn=preexec,
            close_fds=close_fds,
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

    def stop_held(self, replies: int, *args: str, by: signal.Signals = signal.SIGTERM) -> Ended:
        """Start such a run, and stop it by a signal."""
        process = self.start_held(replies, *args)
        process.send_signal(by)
        return ending(process).ends(-by if by is signal.SIGKILL else Exit.INTERRUPTED)

    def kill_held(self, replies: int, *args: str) -> None:
        """Start such a run, and kill it."""
        self.stop_held(replies, *args, by=signal.SIGKILL)

    def _logs(self) -> list[Path]:
        """The event logs of all runs; a folder may go while it is looked at."""
        return [Path(folder, "events.jsonl") for folder, _, names in os.walk(self.path) if "events.jsonl" in names]

    def verified(self, directory: Path) -> None:
        """Check a run directory, which must be in order; in this process, which saves a second each time."""
        assert Verify(directory=directory).work() == Exit.OK
        assert stale_files(directory) == []

    def close(self) -> None:
        """End what still runs, and its pipes."""
        for process in self.started:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.communicate()


@dataclass(frozen=True, slots=True, kw_only=True)
class AtOnce:
    """Runs `mac-run` inside the test's own process, in the working directory of a lab: the fixture `at_once`."""

    lab: Lab
    heard: Callable[[], tuple[str, str]]

    def __call__(self, *args: str | Path | JsonObject) -> Ended:
        """Run it to its end. The first argument may be a line of several; an experiment is written to a file first."""
        first, *rest = [self.lab.write(arg) if isinstance(arg, dict) else arg for arg in args or ("",)]
        words = [*(shlex.split(first) if isinstance(first, str) else [str(first)]), *map(str, rest)]
        return Ended(words, run_main(*words), *self.heard())


def differing(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    """The names that hold something else, or are in one of both alone."""
    return sorted(name for name in {*before, *after} if before.get(name) != after.get(name))


@dataclass(slots=True, kw_only=True)
class Terminal:
    """A process on a terminal of its own, and all that was written to it."""

    process: subprocess.Popen[bytes]
    descriptor: int
    raw: bytearray = field(default_factory=bytearray)

    @property
    def text(self) -> str:
        """Everything written so far, control sequences included."""
        return self.raw.decode(errors="replace")

    def read_until(self, condition: Callable[[str], object], what: str) -> None:
        """Read on until `condition` holds of the text."""

        def holds() -> object:
            self._read()
            return condition(self.text)

        patience.wait_for(holds, what)

    def end(self) -> int:
        """Read on until the process has ended; its exit code."""
        patience.wait_for(lambda: not self._read() and self.process.poll() is not None, "the end of the process")
        self._read()
        return self.process.wait(patience.LIMIT_S)

    def _read(self) -> bool:
        """Take what there is; whether there was anything."""
        if not select.select([self.descriptor], [], [], 0)[0]:
            return False
        try:
            data = os.read(self.descriptor, 1 << 16)
        except OSError:  # Linux says so when the last process has closed the terminal.
            return False
        self.raw += data
        return bool(data)


def ending(process: subprocess.Popen[str]) -> Ended:
    """How a process ends, once it has."""
    return Ended(process.args, *patience.ended(process))


def refusals(at_once: AtOnce, commands: Iterable[str | JsonObject | Sequence[str]]) -> str:
    """What is said to commands that are all refused as bad input, for a snapshot of the words."""
    told: list[str] = []
    for command in commands:
        ended = at_once(*([command] if isinstance(command, str | dict) else command)).refused()
        told.append(f"{shlex.join(ended.args)}\n{ended.stderr}")
    return "\n".join(told)


def run_main(*args: str) -> int:
    """Run `mac-run` in this process and in its working directory; its exit code."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(sys, "argv", ["mac-run", *args])
        with pytest.raises(SystemExit) as ending:
            main()
    assert isinstance(ending.value.code, int)
    return ending.value.code


def render_other_prompts(monkeypatch: pytest.MonkeyPatch, kind: type[Conversation] = Game) -> None:
    """Have the games of this process, or others, render every prompt as another version of it might."""
    render = kind.prompt

    def prompt(self: Conversation, turn: Turn) -> Prompt:
        rendered = render(self, turn)
        return replace(rendered, messages=(*rendered.messages, Message(role="user", content="Think.")))

    monkeypatch.setattr(kind, "prompt", prompt)


def environ(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a child: this checkout's package, and a warning is an error."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error", **(env or {})}


def _since(log: Path, size_bytes: int) -> bytes:
    """What was written to a log since it had this size; it may have been moved."""
    with suppress(FileNotFoundError), log.open("rb") as file:
        file.seek(size_bytes)
        return file.read()
    return b""


def _json(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text())
    return value


def _json_lines(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for line in path.read_bytes().split(b"\n"):
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows
