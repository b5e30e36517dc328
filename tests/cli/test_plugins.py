"""A game of a user's own, named in YAML, through kills, other code, shards and verbs that may not import it."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from mac_runner import plugins, registry
from mac_runner.cli.process import Exit
from mac_runner.types import JsonObject, JsonValue
from tests.cli.lab import ROOT, AtOnce, Ended, Lab
from tests.kit import own_game

VOTES = """\
from mac_runner.environments.generators import Ask
from rules import DAYS

def votes(table):
    table.rules = "Vote."
    for day in range(DAYS):
        asks = [Ask(name, "Whom?", choices=[other for other in table.agents if other != name]) for name in table.agents]
        found = yield asks
        table.tell(f"Votes: {found}", when=f"Day {day}")
        if table.random("storm").random() < 0:
            raise AssertionError
    return {"winner": found[0], "days": day}
"""
BOMB = "\nopen({marker!r}, 'w').close()\n"


@pytest.fixture(autouse=True)
def other_process() -> Iterator[None]:
    """What this process has imported for a run is not imported for the next."""
    forget()
    yield
    forget()


def forget() -> None:
    for table in (registry._LOADED, plugins._LOADED, plugins._FILES):
        table.clear()


def file_of(name: str = "votes", *, conversations: int = 12, **more: Any) -> JsonObject:
    agents: list[JsonValue] = [{"agent_id": one, "role": "player", "model": "m"} for one in ("Abel", "Bob", "Eve")]
    return {**own_game(f"./games.py:{name}", conversations=conversations), "agent_definitions": agents, **more}


@pytest.fixture
def own(lab: Lab) -> Lab:
    """A working directory with a game in two files."""
    (lab.path / "games.py").write_text(VOTES)
    (lab.path / "rules.py").write_text("DAYS = 3\n")
    return lab


@pytest.fixture
def bombed(own: Lab, at_once: AtOnce) -> Lab:
    """One in which the game was played, and its code leaves a file when it is imported again."""
    at_once(file_of()).done()
    forget()
    with (own.path / "games.py").open("a") as code:
        code.write(BOMB.format(marker=str(own.path / "bomb")))
    return own


@pytest.mark.ci
def test_killed_run_goes_on_under_the_same_code_alone(own: Lab, at_once: AtOnce) -> None:
    own.kill_held(20, own.write(file_of()))

    (own.path / "rules.py").write_text("DAYS = 4\n")
    at_once("small.yaml").refused("games.py:votes", "of its own")
    (own.path / "rules.py").write_text("DAYS = 3\n")
    at_once("small.yaml").done()
    at_once("small.yaml --out straight").done()

    assert own.run_dir().transcripts == own.dir("straight").transcripts
    own.verified(own.run_dir().path)


@pytest.mark.ci
def test_verbs_that_read_a_run_do_their_work_without_importing_its_code(bombed: Lab, at_once: AtOnce) -> None:
    show = "show runs/small 0"
    verbs: dict[str, tuple[int, str]] = {
        "status runs/small": (0, "12 finished"),
        "show runs/small": (0, "finished"),
        show: (0, "Votes:"),
        f"{show} --seat Abel": (0, "Votes:"),
        f"{show} --turns": (0, "act:"),
        f"{show} --raw": (0, "==="),
        f"{show} --thoughts": (0, "says"),
        f"{show} --prompt 0/Abel": (2, "add --trust if you trust that code"),
        "verify runs/small": (0, "nothing was played again"),
        "verify runs/small --repair": (2, "add --trust"),
        "retry runs/small": (0, "nothing to retry"),
        "merge merged runs/small": (0, "12 conversations finished"),
        "doctor": (0, "mac_runner"),
    }

    wrong = {}
    for command, (code, said) in verbs.items():
        process = at_once(command)
        text = process.stdout + process.stderr
        if process.returncode != code or said not in text or (bombed.path / "bomb").exists():
            wrong[command] = (process.returncode, text)

    assert wrong == {}


def test_damage_is_found_without_the_code_and_mended_with_it(own: Lab, at_once: AtOnce) -> None:
    at_once(file_of()).done()
    path = next((own.run_dir().path / "transcripts").glob("*.json"))
    good = path.read_bytes()
    path.write_bytes(good.replace(b"Votes", b"Vetos"))
    forget()

    at_once("verify runs/small").ends(Exit.FAILURES)
    at_once("verify runs/small --repair").refused()
    at_once("verify runs/small --repair --trust").done()
    assert path.read_bytes() == good
    at_once("verify runs/small --trust").done("plays again")
    at_once("show runs/small 0 --prompt 0/Abel --trust").done("=== user")


def test_other_code_is_not_taken_for_that_of_the_run(bombed: Lab, at_once: AtOnce) -> None:
    at_once("verify runs/small --trust").refused("played with: sha256")
    (bombed.path / "games.py").unlink()
    forget()
    advice = f"put it back at {bombed.path / 'games.py'}, or leave --trust out"
    at_once("verify runs/small --trust").refused("is not here: ", advice)
    at_once("verify runs/small").done()


def test_shards_are_merged_without_the_code_to_what_one_run_has(own: Lab, at_once: AtOnce) -> None:
    file = own.write(file_of())
    for shard in ("1/2", "2/2"):
        at_once(file, "--shard", shard, "--out", f"part{shard[0]}").done()
    at_once(file).done()
    forget()

    at_once("merge merged part1 part2").done()

    assert own.dir("merged").transcripts == own.run_dir().transcripts
    for key in ("conversations", "turns"):
        assert own.dir("merged").summary[key] == own.run_dir().summary[key]
    own.verified(own.path / "merged")


def test_a_run_may_move_with_its_code_to_another_folder(own: Lab, at_once: AtOnce) -> None:
    file = own.write(file_of())
    at_once(file, "--limit", "4", "--out", "run").done()
    (own.path / "elsewhere").mkdir()
    for name in (file, "games.py", "rules.py"):
        shutil.move(own.path / name, own.path / "elsewhere" / name)
    forget()

    at_once(f"elsewhere/{file}", "--out", "run").done()

    assert own.dir("run").statuses == {"finished": 12}


@pytest.mark.smoke
def test_an_installed_package_is_played_by_its_entry_point(own: Lab) -> None:
    """In a process of its own, which finds the package on its path as it would find an installed one."""
    site = own.path / "site"
    about = site / "village_games-2.1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: village-games\nVersion: 2.1\n")
    (about / "entry_points.txt").write_text("[mac_runner.environments]\nhamlet = villagegames.votes:votes\n")
    (site / "villagegames").mkdir()
    (site / "villagegames/__init__.py").write_text("")
    (site / "villagegames/votes.py").write_text(VOTES.replace("from rules import DAYS", "DAYS = 2"))
    file = own.write(file_of() | {"conversation_config": {"environment": "hamlet", "conversations": 2}})
    env = {"PYTHONPATH": f"{ROOT}:{site}"}

    own.done(file, env=env)
    own.done("doctor", env=env).done("hamlet (village-games 2.1)")
    own.run(file, "--out", "other").refused(f"{file}:4: conversation_config.environment: there is no 'hamlet' here")

    assert "version: '2.1'" in (own.run_dir().path / "experiment.yaml").read_text()


BAD = """\
import sys
from asyncio import CancelledError
from mac_runner.environments.generators import Ask, Game
from mac_runner.environments.generators.environment import generator_environment
from mac_runner.registry import EnvironmentSpec
from mac_runner.section import Section

class Config(Section): ...

def fine(table):
    yield Ask(table.agents[0], "Well?")

def at_once(table):
    return 1 / 0
    yield

def later(table):
    yield Ask(table.agents[0], "Well?")
    raise KeyError("role")

def rubbish(table):
    yield 17

def stranger(table):
    yield Ask("Nobody", "Well?")

def result(table):
    yield Ask(table.agents[0], "Well?")
    return {"found": {1, 2}}

def leaves(table):
    yield Ask(table.agents[0], "Well?")
    sys.exit(3)

def cancels(table):
    yield Ask(table.agents[0], "Well?")
    raise CancelledError("mine")

class Panic(BaseException): ...

def panics(table):
    yield Ask(table.agents[0], "Well?")
    raise Panic("!")

def deep(table):
    yield Ask(table.agents[0], "Well?")
    deep_below()

def deep_below():
    deep_below()

class Mute(Exception):
    def __str__(self):
        raise ValueError("no words")

def mute(table):
    yield Ask(table.agents[0], "Well?")
    raise Mute

def closes(table):
    yield Ask(table.agents[0], "Well?")
    raise GeneratorExit

def interrupts(table):
    yield Ask(table.agents[0], "Well?")
    raise KeyboardInterrupt

def broken(method):
    def build(experiment):
        environment = generator_environment(experiment, "fine", Game(fine, Config))
        opened = environment.open
        def open_one(task):
            conversation = opened(task)
            class Broken:
                def __getattr__(self, name):
                    if name == method:
                        if name == "record":
                            return lambda: {"events": {1, 2}}
                        raise OSError(f"no {name}")
                    return getattr(conversation, name)
            return Broken()
        environment.open = open_one
        return environment
    return EnvironmentSpec(section="fine", settings=Config, description="", build=build)

prompt, receive, turns, record = map(broken, ("prompt", "receive", "turns", "record"))
"""
SAID = {
    "at_once": "ZeroDivisionError: division by zero (games.py:14)",
    "later": "KeyError: 'role' (games.py:19)",
    "rubbish": "rubbish yielded int 17; yield an Ask",
    "stranger": "asks 'Nobody'; there are Abel, Bob, Eve",
    "result": "outcome that is not JSON",
    "leaves": "SystemExit: 3 (games.py:33)",
    "cancels": "CancelledError: mine (games.py:37)",
    "panics": "Panic: ! (games.py:43)",
    "deep": "RecursionError",
    "mute": "Mute: its text cannot be had",
    "closes": "GeneratorExit",
    "interrupts": "KeyboardInterrupt",
    "prompt": "OSError: no prompt (games.py:",
    "receive": "OSError: no receive (games.py:",
    "turns": "OSError: no turns (games.py:",
    "record": "record() is not JSON: Object of type set",
}


def test_conversations_that_a_plugin_breaks_fail_alone_with_the_place(own: Lab, at_once: AtOnce) -> None:
    """A grid over all of them: each fails its own conversations, and the sound one beside them ends."""
    (own.path / "games.py").write_text(BAD)
    names = [f"./games.py:{name}" for name in (*SAID, "fine")]
    grid = {"sweep": {"conversation_config.environment": names}}

    at_once(file_of(conversations=2, _grid=grid)).ends(Exit.FAILURES)

    failures: dict[str, list[object]] = {}
    for path in own.run_dir().path.glob("transcripts/*.json"):
        transcript = json.loads(path.read_text())
        failures.setdefault(transcript["environment"].partition(":")[2], []).append(transcript["failure"])
    wrong = {
        name: failures.get(name, failures)
        for name, said in SAID.items()
        if not all(said in str(failure) for failure in failures.get(name, [None]))
    }
    assert wrong == {}
    assert failures["fine"] == [None, None]


ENDLESS = """\
import atexit
import threading
import time
from mac_runner.environments.generators import Ask

def played(step):
    def script(table):
        yield Ask(table.agents[0], "Well?")
        step()
    return script

def spin():
    while True:
        try:
            time.sleep(0.001)
        except Exception:
            pass

def swallow():
    while True:
        try:
            time.sleep(0.001)
        except:
            pass

spins, swallows, waits = played(spin), played(swallow), played(threading.Event().wait)
leaves = played(lambda: [threading.Thread(target=spin, name="left").start() for _ in range(9)])

class Finalized:
    def __del__(self):
        raise KeyboardInterrupt

registers = played(lambda: (atexit.register(spin), Finalized()))
"""
ENDS = {
    "spins": (1, "no conversation finished, 1 failed"),
    "waits": (1, "StepTooLongError"),
    "swallows": (3, "games.py:2"),
    "leaves": (0, "and 6 more"),
    "registers": (0, "the end of the process"),
}


@pytest.mark.ci
def test_step_or_thread_of_a_game_that_does_not_end_holds_up_no_process(own: Lab) -> None:
    (own.path / "games.py").write_text(ENDLESS)

    def play(name: str) -> Ended:
        file = own.write(file_of(name, conversations=1), f"{name}.yaml")
        return own.run(file, "--quiet", "--out", name, "--set", "conversation_config.step_limit_s=2")

    with ThreadPoolExecutor(len(ENDS)) as threads:  # They mostly wait.
        ends = dict(zip(ENDS, threads.map(play, ENDS), strict=True))
    wrong = {
        name: (ends[name].returncode, ends[name].stderr)
        for name, (code, said) in ENDS.items()
        if ends[name].returncode != code or said not in ends[name].stderr
    }

    assert wrong == {}


def test_run_that_fails_from_its_first_conversation_on_says_so_once_and_can_go_on(own: Lab, at_once: AtOnce) -> None:
    (own.path / "games.py").write_text(BAD)
    file = own.write(file_of("later", conversations=5_000))
    for session in (1, 2):
        ended = at_once(file, "--quiet").ends(Exit.INTERRUPTED, "KeyError: 'role' (games.py:19)")

        assert len(ended.stderr.splitlines()) == 1
        assert ended.stdout == ""
        (failure,) = own.run_dir().summary["failures"]
        assert 20 * session <= failure["count"] < 20 * session + 20
        assert own.run_dir().statuses.keys() == {"failed", "pending"}

    few = own.write(file_of("later", conversations=3))
    at_once(few, "--quiet", "--out", "few").ends(Exit.FAILURES, "no conversation finished, 3 failed: 3 × turn …")
    assert json.loads(at_once("status few --json").stdout)["state"] == "failed"


MEDDLING = """\
import contextlib, io, os, sys

from mac_runner.environments.generators import Ask

ELSEWHERE = os.path.join(os.path.dirname(__file__), "elsewhere")
os.makedirs(ELSEWHERE, exist_ok=True)
os.chdir(ELSEWHERE)
sys.setrecursionlimit(sys.getrecursionlimit() // 2)

def meddling(meddle):
    def played(table):
        meddle()
        found = yield [Ask(name, "Whom?", choices=["you", "me"]) for name in table.agents]
        return {"found": found[0]}
    return played

leaves = meddling(lambda: os.chdir(ELSEWHERE))
hides = meddling(lambda: contextlib.redirect_stdout(io.StringIO()).__enter__())
removes = meddling(lambda: setattr(sys, "stdout", None))
mutes = meddling(lambda: sys.stderr and (sys.stderr.close(), setattr(sys, "stderr", None)))
closes = meddling(lambda: sys.stdout.close())
"""


def test_a_game_that_changes_the_working_directory_and_the_limit_of_recursion_is_played_in_those_of_the_command(
    own: Lab, at_once: AtOnce
) -> None:
    limit = sys.getrecursionlimit()
    (own.path / "games.py").write_text(MEDDLING)
    at_once(file_of("leaves")).done("runs/small")
    assert own.run_dir().statuses == {"finished": 12}
    at_once("verify runs/small --trust").done("plays again")
    at_once("show runs/small 0 --prompt 0/Abel --trust").done("Whom?")
    assert sys.getrecursionlimit() == limit


@pytest.mark.parametrize("name", ["hides", "removes"])
def test_the_end_of_a_run_is_printed_wherever_its_game_has_turned_the_output(
    name: str, own: Lab, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    (own.path / "games.py").write_text(MEDDLING)
    at_once(file_of(name)).done("12 of 12 conversations finished")


@pytest.mark.ci
def test_a_game_that_closes_the_output_leaves_a_run_that_says_so(own: Lab) -> None:
    (own.path / "games.py").write_text(MEDDLING)
    ended = own.run(own.write(file_of("closes"))).ends(Exit.STORAGE_FAILED)
    assert ended.stderr.splitlines()[-1].startswith("mac-run: cannot print the report: stdout was closed")
    assert own.run_dir().statuses == {"finished": 12}
    own.run(own.write(file_of("mutes")), "--out", "mute").done("12 of 12 conversations finished")
