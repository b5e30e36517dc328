"""A key that a server repeats is in no output and in no file, whatever the server does with it."""

from __future__ import annotations

import asyncio
import random
import string
import sys
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, Final
from urllib.parse import quote

import pytest

from mac_runner.backends.testing import WITHHELD, described
from mac_runner.cli.process import Exit
from mac_runner.clock import SystemClock
from mac_runner.types import JsonObject, JsonValue
from tests.cli.lab import AtOnce, Lab, discussion, experiment, served
from tests.faults.tier import one_in
from tests.sim.echoing import ANTHROPIC, HTTP, OLLAMA, OPENAI, EchoingServer, Trick, answer
from tests.sim.leaks import leak_in
from tests.sim.openai_run import in_a_thread
from tests.sim.openai_server import OpenaiServer
from tests.viewer.test_publish import Publication

pytestmark = pytest.mark.ci

VARIABLES: Final = {"openai": "STUB_KEY", "ollama": "OLLAMA_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
TRICKS: Final = {"openai": OPENAI, "ollama": OLLAMA, "anthropic": ANTHROPIC}


_NO_DIGITS: Final = "ghijklmnopqrstuvwxyzGHIJKLMNOPQRSTUVWXYZ"
ALPHANUMERIC: Final = string.ascii_letters + string.digits


def random_key(seed: int, chars: str, size: int) -> str:
    """Every second character is one that no number and no digest has, so that none of those shows the key by chance."""
    chance = random.Random(seed)
    return "".join(chance.choice(chars if number % 2 else _NO_DIGITS) for number in range(size))


KEYS: Final = (
    "sk-" + random_key(1, ALPHANUMERIC, 48),
    random_key(2, ALPHANUMERIC + "+/=-_.~", 30),
    random_key(3, ALPHANUMERIC + string.punctuation.replace("*", ""), 164),
    random_key(4, ALPHANUMERIC, 12),
    random_key(5, ALPHANUMERIC, 5_000),
)


def model(backend: str, host: str) -> JsonObject:
    """A definition of the model `stub` at `host`."""
    url = f"{host}/v1" if backend == "openai" else host
    more: dict[str, dict[str, Any]] = {
        "openai": {"api_key_env": VARIABLES["openai"]},
        "ollama": {"max_in_flight": 16},
    }
    return served(url, backend=backend, **more.get(backend, {}))


def talk(name: str, *models: JsonObject, conversations: int = 1) -> JsonObject:
    """A discussion of two agents of the first model, and one of each other model."""
    places = [0, *range(len(models))]
    agents: list[JsonObject] = [{"agent_id": f"a{n}", "model": f"m{place}"} for n, place in enumerate(places)]
    retry: JsonObject = {"backoff_s": 0.01, "backoff_s_max": 0.02, "max_attempts": 2}
    return discussion(models, name, conversations=conversations, agents=agents, retry_config=retry)


def leaks(key: str, ended: CompletedProcess[str], path: Path) -> list[str]:
    """Where the key is shown: in what a process printed, or in a file below `path`."""
    texts = {"stdout": ended.stdout, "stderr": ended.stderr}
    texts |= {
        str(file.relative_to(path)): file.read_bytes().decode("latin-1") for file in path.rglob("*") if file.is_file()
    }
    return [f"{name} shows {leak!r}" for name, text in texts.items() if (leak := leak_in(text, key)) is not None]


@pytest.mark.parametrize("backend", VARIABLES)
def test_key_that_a_server_repeats_in_a_run_is_shown_nowhere(
    backend: str, lab: Lab, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every trick at many offsets; one run in its own process, with its own streams."""
    found: list[str] = []
    for number, key in enumerate(one_in(2, KEYS[::2])):
        monkeypatch.setenv(VARIABLES[backend], key)
        with in_a_thread(EchoingServer(TRICKS[backend])) as server:
            file = lab.write(talk(f"talk{number}", model(backend, server.host), conversations=30))
            ended = at_once(file) if number or backend != "openai" else lab.run(file)
        assert set(server.played) == set(TRICKS[backend])
        assert ended.returncode == Exit.FAILURES, ended.stderr
        assert WITHHELD in (lab.run_dir(f"talk{number}").path / "events.jsonl").read_text()
        found += [f"key {number}: {leak}" for leak in leaks(key, ended, lab.path)]

    assert found == []


@pytest.mark.parametrize("backend", VARIABLES)
def test_key_that_a_server_repeats_is_shown_by_no_doctor(
    backend: str, lab: Lab, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every trick at the first reply, and every third from the first answer on."""
    key = KEYS[1]
    monkeypatch.setenv(VARIABLES[backend], key)
    with in_a_thread(EchoingServer(TRICKS[backend])) as server:
        count = len(server.tricks)
        places = (*(f"reply-{trick}" for trick in range(count)), *(f"any-{trick}" for trick in range(0, count, 3)))
        hosts = [f"{server.host}/{place}" for place in places]
        ended = at_once("doctor", talk("talk", *(model(backend, host) for host in hosts))).ends(Exit.FAILURES)

    assert ended.stdout.count("PROBLEM: ") > count
    assert leaks(key, ended, lab.path) == []


LEAKY: Final = """
import json, os, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

_, names, port, *variables = sys.argv
with open(names, "a") as file:
    file.write(" ".join(os.environ) + "\\n")
words = " ".join(f"{'.' * 40 * number} {os.environ.get(name)}" for number, name in enumerate(variables))
said = {"choices": [{"message": {"role": "assistant", "content": "So."}, "finish_reason": "stop"}]}
answers = iter([(200, said), (500, {"error": {"message": words}}), (400, {"detail": words})])

class Engine(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(200, {"data": [{"id": "stub"}]})

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        found = next(answers, None)
        if found is None:
            os.write(2, f"ValueError: {words}\\n".encode())
            os._exit(1)
        self.answer(*found)

    def answer(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

HTTPServer(("127.0.0.1", int(port)), Engine).serve_forever()
"""
"""An engine that repeats variables in its errors and in the last line that it prints."""
GIVEN: Final = ("HF_TOKEN", "DATABASE_URL")
NOT_GIVEN: Final = ("PANEL", "OPENAI_API_KEY", "ANTHROPIC_API_KEY")


def test_secrets_of_the_environment_are_in_no_words_of_a_lane_and_keys_of_servers_in_no_lane(
    lab: Lab, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, at_once: AtOnce
) -> None:
    """Not four characters in a row: on the terminal, in the run, its status and its publication."""
    names = tmp_path_factory.mktemp("engine") / "names"
    keys = [random_key(seed, ALPHANUMERIC, 30) for seed in range(10, 15)]
    for name, key in zip((*GIVEN, *NOT_GIVEN), keys, strict=True):
        monkeypatch.setenv(name, f"postgres://user:{key}@host/db" if name == "DATABASE_URL" else key)
    (lab.path / "leaky.py").write_text(LEAKY)
    command: list[JsonValue] = [sys.executable, "leaky.py", str(names), "{port}", *GIVEN, *NOT_GIVEN]
    lane: JsonObject = {"model": "stub", "engine": "command", "command": command, "lanes": 1}
    with in_a_thread(OpenaiServer()) as server:
        model: JsonObject = {"backend": "fleet", "fleet_config": lane}
        both = talk("talk", model, served(server.url, api_key_env="PANEL"))
        file = lab.write(both | {"fleet": {"gpus": 1, "restart": {"budget": 1}}})
        said = [lab.run(file, "--no-live"), at_once("status runs/talk"), at_once("publish runs/talk pages").done()]
    texts = {str(ended.args): ended.stdout + ended.stderr for ended in said}
    texts |= {"the publication": Publication(lab.path / "pages", "").text}
    packed = lab.path / "pages" / "data"  # In which four characters in a row are found by chance.
    files = [path for path in lab.path.rglob("*") if path.is_file() and packed not in path.parents]
    texts |= {str(path): path.read_bytes().decode("latin-1") for path in files}

    places = {"the terminal": said[0].stderr, "the log": (lab.run_dir("talk").path / "events.jsonl").read_text()}
    assert [place for place, text in places.items() if WITHHELD not in text] == []
    windows = {key[at : at + 4].lower() for key in keys for at in range(len(key) - 3)}
    assert [(where, window) for where, text in texts.items() for window in windows if window in text.lower()] == []
    starts = [{*start.split()} for start in names.read_text().splitlines()]
    assert len(starts) == 2
    assert all({*GIVEN} <= start and {*NOT_GIVEN}.isdisjoint(start) for start in starts)


def test_secret_that_a_mirror_repeats_is_shown_nowhere(
    lab: Lab, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsspec = pytest.importorskip("fsspec")
    key = random_key(20, ALPHANUMERIC, 40)
    monkeypatch.setenv("LEAKY_SECRET", key)

    class Leaky(fsspec.AbstractFileSystem):  # type: ignore[misc, name-defined]
        def cat_file(self, path: str, **_more: object) -> bytes:
            raise FileNotFoundError(path)

        def makedirs(self, path: str, exist_ok: bool = False) -> None:
            raise PermissionError(f"denied for {key} and {key.upper()}: {path}")

    fsspec.register_implementation("leaky", Leaky, clobber=True)
    ended = at_once(experiment("talk", conversations=1), "--mirror", "leaky://bucket")

    assert "was not copied to leaky://bucket" in ended.stderr
    assert WITHHELD in ended.stderr
    assert leak_in(ended.stderr, key, 4) is None
    refused = at_once("talk.yaml", "--mirror", f"leaky://ID:{key}@bucket").refused()
    assert leak_in(refused.stderr, key, 4) is None
    assert leak_in(at_once("talk.yaml", "--out", f"s3://ID:{key}@bucket").refused().stderr, key, 4) is None


def _names(place: str) -> Trick:
    return lambda echo: answer({place: [{"id": echo, "name": echo, "model": echo}]})


def _pull(last: str) -> Trick:
    """A pull that reports its steps, a line each."""
    return lambda echo: answer(f'{{"status": "{quote(echo)}"}}\n{{"{last}": "{quote(echo)}"}}\n'.encode())


AT_THE_START: Final[dict[str, tuple[tuple[str, Trick], ...]]] = {
    "openai": (("/models", _names("data")), ("/models", lambda echo: answer({"data": [{"id": [echo]}]}))),
    "anthropic": (
        ("/models/stub", lambda echo: answer({"error": {"message": echo}}, "401 No")),
        ("/models/stub", lambda echo: answer(f"<html>{echo}".encode(), "500 Broken")),
    ),
    "ollama": (
        ("/api/version", lambda echo: answer({"version": f"0.1.0-{echo}"})),
        ("/api/version", lambda echo: answer({"version": {echo: echo}})),
        ("/api/show", lambda echo: answer({"error": f"model '{echo}' not found"}, "404 Not Found")),
        ("/api/show", lambda echo: answer({"error": echo}, "400 Bad")),
        ("/api/ps", lambda echo: answer({"models": echo})),
        ("/api/ps", lambda echo: answer({"models": [{"model": echo, "context_length": echo}]})),
        ("/api/pull", _pull("error")),
        ("/api/pull", _pull("status")),
    ),
}


@pytest.mark.parametrize("backend", VARIABLES)
def test_key_that_a_server_repeats_at_the_start_is_shown_nowhere(
    backend: str, lab: Lab, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []
    for key in KEYS[1:3]:
        monkeypatch.setenv(VARIABLES[backend], key)
        for number, (place, trick) in enumerate(AT_THE_START[backend]):
            missing = {"/api/show": lambda _: answer({"error": "no"}, "404 Not Found")}
            tricks = {place: trick} | (missing if place == "/api/pull" else {})
            with in_a_thread(EchoingServer(TRICKS[backend], tricks)) as server:
                ended = at_once(
                    talk(f"talk{number}", model(backend, server.host)), *(["--pull"] if place == "/api/pull" else [])
                )
            assert server.played[place]
            found += [f"{place}, {number}: {leak}" for leak in leaks(key, ended, lab.path)]

    assert found == []


def test_key_that_ollama_repeats_is_in_no_survey(monkeypatch: pytest.MonkeyPatch) -> None:
    key, found = KEYS[1], []
    monkeypatch.setenv(VARIABLES["ollama"], key)
    tricks = {**HTTP, "names": _names("models"), "version": lambda echo: answer({"version": echo, "models": []})}
    for name, trick in tricks.items():
        place = "/api/version" if name == "version" else "/api/tags"
        with in_a_thread(EchoingServer(HTTP, {place: trick})) as server:
            told = asyncio.run(described(server.host, SystemClock()))
        assert server.played
        found += [f"{name}: {leak}"] if (leak := leak_in(told, key)) is not None else []

    assert found == []
