"""`mac-serve` as a process: it says where it serves, ends on a signal, and says in one line why it cannot serve."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from click.testing import CliRunner
from syrupy.assertion import SnapshotAssertion

from mac_runner.nano import EngineConfig
from mac_runner.nano.parallel import worker
from mac_runner.nano.server import lifecycle
from mac_runner.nano.testing import DESCRIPTORS_KEPT
from mac_runner.serve import main
from tests.faults.tier import SCALE
from tests.nano.crowds import forbid_farewell
from tests.patience import LIMIT_S
from tests.sim.surroundings import drawn

MAC_SERVE = (sys.executable, "-m", "mac_runner.serve")
KEY = "canary-0123456789abcdef"


def test_server_says_how_many_it_serves_and_where_and_ends_on_a_signal(
    model: Path, snapshot: SnapshotAssertion
) -> None:
    command = shlex.join((*MAC_SERVE, str(model), "--port", "0", "--num-threads", "1", "--kv-cache-gib", "0.01"))
    bounded = f"ulimit -n 1000 && exec {command}"
    said = set[str]()
    for seed in range(SCALE):
        # Settings for other programs change nothing.
        surroundings = {**os.environ, **drawn(seed)}
        with subprocess.Popen(("sh", "-c", bounded), stderr=subprocess.PIPE, text=True, env=surroundings) as process:
            assert process.stderr is not None
            lines = [process.stderr.readline() for _ in range(2)]
            url = lines[1].split()[-1]
            assert httpx.get(f"{url}/health", timeout=LIMIT_S, trust_env=False).json() == {"status": "idle"}
            process.send_signal(signal.SIGTERM)

            assert process.wait(LIMIT_S) == 0
            assert process.stderr.read() == ""
        said.add("".join(lines).replace(url.rpartition(":")[2], "PORT"))
    assert len(said) == 1
    assert said.pop() == snapshot


async def test_signal_ends_the_server_from_the_word_on_that_it_serves(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def echo(line: str, **_: object) -> None:
        if line.startswith("serving"):
            os.kill(os.getpid(), signal.SIGTERM)

    def too_early(*_: object) -> None:
        raise AssertionError("nobody waits for the signal yet")

    monkeypatch.setattr(lifecycle, "click", SimpleNamespace(echo=echo))
    before = signal.signal(signal.SIGTERM, too_early)
    try:
        address = lifecycle.Address(host="127.0.0.1", port=0, name=None, admin_key=None, api_key=None, is_open=False)
        await lifecycle.serve(EngineConfig(model_path=str(model), num_threads=1, num_blocks=64), address)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_server_on_two_processes_answers_and_ends_in_good_order_on_ctrl_c(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terminal tells the whole process group; that is for rank 0 alone, which may have requests to finish."""
    forbid_farewell(tmp_path, monkeypatch)
    command = (*MAC_SERVE, str(model), "--port", "0", "--num-threads", "1", "--tensor-parallel-size", "2")
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=dict(os.environ), start_new_session=True
    ) as process:
        try:
            assert process.stderr is not None
            url = process.stderr.readline().split()[-1]
            body = {"model": "tiny", "prompt": "the town", "max_tokens": 3, "ignore_eos": True}
            reply = httpx.post(f"{url}/v1/completions", json=body, timeout=LIMIT_S).json()
            assert reply["usage"]["completion_tokens"] == 3
            (follower,) = children(process.pid)
            os.killpg(process.pid, signal.SIGINT)

            assert process.wait(LIMIT_S) == 0
            assert process.stderr.read() == ""
            assert not Path(f"/proc/{follower}").exists()
        finally:
            process.kill()


def children(pid: int) -> list[str]:
    """Whichever thread has started them."""
    return [child for each in Path(f"/proc/{pid}/task").glob("*/children") for child in each.read_text().split()]


def test_completion_begins_when_its_prompt_fits_unless_the_command_says_otherwise(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = list[str]()

    async def noting(config: EngineConfig, *_: object) -> None:
        found.append(config.admission)

    monkeypatch.setattr(lifecycle, "serve", noting)
    monkeypatch.setattr(worker, "leave", lambda: None)
    for words in ((), ("--admission", "reserve")):
        assert CliRunner().invoke(main, [str(model), *words]).exit_code == 0

    assert found == ["preempt", "reserve"]


SPOILT: dict[str, dict[str, object]] = {
    "of another architecture": {"architectures": ["GPT2LMHeadModel"]},
    "a layer too many": {"num_hidden_layers": 3},
    "a word too few": {"vocab_size": 1000},
}


def test_what_keeps_it_from_serving_is_told_in_a_line(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    """By exit code and words, without the names of this test's places."""
    monkeypatch.setenv("SERVE_KEY", KEY)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (tmp_path / "empty").mkdir()
        commands = {
            "no model": ["empty"],
            "an address that is taken": [str(model), "--port", str(port)],
            "a device that is not there": [str(model), "--device", "cuda"],
            "everybody, and those with a key": ["nowhere", "--api-key-env", "SERVE_KEY", "--open"],
            "a key in place of its variable": ["nowhere", "--api-key-env", KEY],
        }
        for name, changes in SPOILT.items():
            config = json.loads((shutil.copytree(model, tmp_path / name) / "config.json").read_text())
            (tmp_path / name / "config.json").write_text(json.dumps({**config, **changes}))
            commands[name] = [name, "--num-threads", "1"]
        monkeypatch.chdir(tmp_path)
        found = {name: CliRunner().invoke(main, ["--port", "0", *words]) for name, words in commands.items()}
    told = {name: f"{each.exit_code}: {each.output.replace(str(port), 'PORT')}" for name, each in found.items()}

    assert not any(KEY in each for each in told.values())
    assert told == snapshot


def asked(*words: str) -> tuple[int, str]:
    """The exit code and what is said."""
    result = CliRunner().invoke(main, [*words, "--port", "0"])
    assert isinstance(result.exception, SystemExit)
    return result.exit_code, result.output


OTHERS, ONLY_WE = ("0.0.0.0", "::", "0", "::ffff:0.0.0.0"), ("127.0.0.1", "127.8.7.6", "localhost", "::1")


def test_server_that_others_reach_wants_a_key_before_it_loads_the_model_and_one_of_this_machine_alone_none(
    tmp_path: Path,
) -> None:
    for host in (*OTHERS, *ONLY_WE):
        (code, said), opened = asked(str(tmp_path), "--host", host), asked(str(tmp_path), "--host", host, "--open")
        if "cannot listen" in said and ":" in host:
            continue  # This machine has no IPv6.
        if host in OTHERS:
            assert code == 2, host
            assert all(word in said for word in (f"--host {host} lets", "--api-key-env VARIABLE", "or --open")), said
        else:
            assert (code, "holds no model" in said) == (1, True), host
        assert (opened[0], "holds no model" in opened[1]) == (1, True), host


def test_descriptors_that_leave_no_connection_are_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "descriptor_limit", lambda: DESCRIPTORS_KEPT)

    said = f"Error: {DESCRIPTORS_KEPT} file descriptors leave none for connections: raise their limit (`ulimit -Hn`)\n"
    assert asked(str(tmp_path)) == (1, said)


def test_memory_that_is_not_there_is_told_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks_memory(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(lifecycle, "open_service", lacks_memory)
    assert asked(str(tmp_path)) == (
        1,
        "Error: this process may have no more memory: allow more (`ulimit -v`), or lower --kv-cache-gib\n",
    )


def test_name_that_leads_nowhere_is_told_in_a_line(tmp_path: Path) -> None:
    for host in ("", "x" * 70 + ".y", "no host"):
        assert asked(str(tmp_path), "--host", host)[0] in (1, 2), host


def test_key_that_is_none_is_bad_input_and_never_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SERVE_KEY", raising=False)
    for value in (None, "", "  \n", "two words", "non-ascii-é", "line\nbreak", "bell\a"):
        if value is not None:
            monkeypatch.setenv("SERVE_KEY", value)
        for option in ("--api-key-env", "--admin-key-env"):
            code, said = asked("nowhere", option, "SERVE_KEY")
            assert (code, f"{option}: " in said) == (2, True), said
            assert not (value or "").strip() or (value or "").strip() not in said


def test_guarded_server_says_its_key_nowhere(model: Path) -> None:
    command = (*MAC_SERVE, str(model), "--host", "0.0.0.0", "--port", "0", "--api-key-env", "SERVE_KEY")
    small = ("--num-threads", "1", "--kv-cache-gib", "0.01")
    environ = os.environ | {"SERVE_KEY": f"{KEY}\n"}
    with subprocess.Popen(
        (*command, *small), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ
    ) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            url = f"http://127.0.0.1:{line.rpartition(':')[2].strip()}"
            said = [line, Path(f"/proc/{process.pid}/cmdline").read_text()]
            ask = {"model": "tiny", "prompt": "hi", "max_tokens": 1}
            for key, status in ((KEY, 200), (f"{KEY}x", 401)):
                headers = {"Authorization": f"Bearer {key}"}
                answer = httpx.post(f"{url}/v1/completions", json=ask, headers=headers, timeout=LIMIT_S)
                assert answer.status_code == status
                said += [answer.text, str(answer.headers)]
                said += [
                    httpx.get(f"{url}{path}", headers=headers, timeout=LIMIT_S).text
                    for path in ("/metrics", "/api/x", "/v1/models")
                ]
            with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as client:
                client.sendall(f"GET /v1/models HTTP/1.1\r\nAuthorization: Bearer {KEY}\x01\r\n\r\n".encode())
                said.append(client.recv(1 << 16).decode())
        finally:
            process.terminate()
            said += process.communicate()

    assert [text for text in said if KEY in text] == []


def test_address_of_six_parts_is_told_in_brackets(model: Path) -> None:
    command = (*MAC_SERVE, str(model), "--host", "::1", "--port", "0", "--num-threads", "1", "--kv-cache-gib", "0.01")
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        process.terminate()
        process.stderr.read()

    if "cannot listen" in line:
        pytest.skip("this machine has no IPv6")
    assert "http://[::1]:" in line
