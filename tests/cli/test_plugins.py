"""A game of a user's own, named in YAML, through kills, other code, shards and verbs that may not import it."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from mac_runner import plugins, registry
from mac_runner.cli.process import Exit
from mac_runner.types import JsonObject
from tests.cli.lab import AtOnce, Lab, RunDir, scripted
from tests.patience import ended

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


def file_of(name: str = "votes", *, conversations: int = 12, **more: object) -> JsonObject:
    found: JsonObject = {
        "experiment_metadata": {"experiment_name": "small"},
        "conversation_config": {"environment": f"./games.py:{name}", "conversations": conversations},
        "model_definitions": {"m": scripted("random")},
        "agent_definitions": [{"agent_id": agent, "role": "player", "model": "m"} for agent in ("Abel", "Bob", "Eve")],
    }
    return {**found, **more}  # type: ignore[dict-item]


@pytest.fixture
def own(lab: Lab) -> Lab:
    """A working directory with a game in two files."""
    (lab.path / "games.py").write_text(VOTES)
    (lab.path / "rules.py").write_text("DAYS = 3\n")
    return lab


@pytest.fixture
def bombed(own: Lab, at_once: AtOnce) -> Lab:
    """One in which the game was played, and its code leaves a file when it is imported again."""
    assert at_once(own.write(file_of())).returncode == 0
    forget()
    with (own.path / "games.py").open("a") as code:
        code.write(BOMB.format(marker=str(own.path / "bomb")))
    return own


@pytest.mark.ci
def test_killed_run_goes_on_under_the_same_code_alone(own: Lab, at_once: AtOnce) -> None:
    file = own.write(file_of())
    running = own.start_held(20, file)
    running.send_signal(signal.SIGKILL)
    ended(running)

    (own.path / "rules.py").write_text("DAYS = 4\n")
    refused = at_once(file)
    (own.path / "rules.py").write_text("DAYS = 3\n")
    resumed = at_once(file)
    straight = at_once(file, "--out", "straight")

    assert (refused.returncode, resumed.returncode, straight.returncode) == (Exit.BAD_INPUT, 0, 0)
    assert "games.py:votes" in refused.stderr
    assert "of its own" in refused.stderr
    assert own.run_dir().transcripts == RunDir(path=own.path / "straight").transcripts
    own.verified(own.run_dir().path)


@pytest.mark.ci
def test_verbs_that_read_a_run_do_their_work_without_importing_its_code(bombed: Lab, at_once: AtOnce) -> None:
    directory = "runs/small"
    verbs: dict[tuple[str, ...], tuple[int, str]] = {
        ("status", directory): (0, "12 finished"),
        ("show", directory): (0, "finished"),
        ("show", directory, "0"): (0, "Votes:"),
        ("show", directory, "0", "--seat", "Abel"): (0, "Votes:"),
        ("show", directory, "0", "--turns"): (0, "act:"),
        ("show", directory, "0", "--raw"): (0, "==="),
        ("show", directory, "0", "--thoughts"): (0, "says"),
        ("show", directory, "0", "--prompt", "0/Abel"): (2, "add --trust if you trust that code"),
        ("verify", directory): (0, "nothing was played again"),
        ("repair", directory): (2, "add --trust"),
        ("retry", directory): (0, "nothing to retry"),
        ("merge", "merged", directory): (0, "12 finished"),
        ("doctor",): (0, "mac_runner"),
    }

    wrong = {}
    for arguments, (code, said) in verbs.items():
        process = at_once(*arguments)
        text = process.stdout + process.stderr
        if process.returncode != code or said not in text or (bombed.path / "bomb").exists():
            wrong[arguments] = (process.returncode, text)

    assert wrong == {}


def test_damage_is_found_without_the_code_and_mended_with_it(own: Lab, at_once: AtOnce) -> None:
    assert at_once(own.write(file_of())).returncode == 0
    path = next((own.run_dir().path / "transcripts").glob("*.json"))
    good = path.read_bytes()
    path.write_bytes(good.replace(b"Votes", b"Vetos"))
    forget()

    assert at_once("verify", "runs/small").returncode == Exit.FAILURES
    assert at_once("repair", "runs/small").returncode == Exit.BAD_INPUT
    assert at_once("repair", "runs/small", "--trust").returncode == 0
    assert path.read_bytes() == good
    trusted = at_once("verify", "runs/small", "--trust")
    assert (trusted.returncode, "plays again" in trusted.stdout) == (0, True)
    assert "=== user" in at_once("show", "runs/small", "0", "--prompt", "0/Abel", "--trust").stdout


def test_other_code_is_not_taken_for_that_of_the_run(bombed: Lab, at_once: AtOnce) -> None:
    process = at_once("verify", "runs/small", "--trust")
    (bombed.path / "games.py").unlink()
    forget()
    gone = at_once("verify", "runs/small", "--trust")

    assert (process.returncode, gone.returncode) == (2, 2)
    assert "played with: sha256" in process.stderr
    assert "is not here" in gone.stderr
    assert at_once("verify", "runs/small").returncode == 0


def test_shards_are_merged_without_the_code_to_what_one_run_has(own: Lab, at_once: AtOnce) -> None:
    file = own.write(file_of())
    for shard in ("1/2", "2/2"):
        assert at_once(file, "--shard", shard, "--out", f"part{shard[0]}").returncode == 0
    assert at_once(file).returncode == 0
    forget()

    merged = at_once("merge", "merged", "part1", "part2")

    assert merged.returncode == 0, merged.stderr
    assert RunDir(path=own.path / "merged").transcripts == own.run_dir().transcripts
    one, other = (RunDir(path=own.path / place).summary for place in ("merged", "runs/small"))
    assert {key: one[key] for key in ("conversations", "turns")} == {
        key: other[key] for key in ("conversations", "turns")
    }
    own.verified(own.path / "merged")


def test_a_run_may_move_with_its_code_to_another_folder(own: Lab, at_once: AtOnce) -> None:
    file = own.write(file_of())
    assert at_once(file, "--limit", "4", "--out", "run").returncode == 0
    (own.path / "elsewhere").mkdir()
    for name in (file, "games.py", "rules.py"):
        shutil.move(own.path / name, own.path / "elsewhere" / name)
    forget()

    process = at_once(f"elsewhere/{file}", "--out", "run")

    assert process.returncode == 0, process.stderr
    assert RunDir(path=own.path / "run").statuses == {"finished": 12}


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
    content = file_of(conversations=2)
    content["conversation_config"] = {"environment": "hamlet", "conversations": 2}
    file = own.write(content)
    env = {"PYTHONPATH": f"{Path(__file__).parents[2]}:{site}"}

    own.done(file, env=env)
    listed = own.done("doctor", env=env).stdout
    missing = own.run(file, "--out", "other")

    assert "hamlet (village-games 2.1)" in listed
    assert "version: '2.1'" in (own.run_dir().path / "experiment.yaml").read_text()
    assert missing.returncode == Exit.BAD_INPUT
    assert f"{file}:4: conversation_config.environment: there is no 'hamlet' here" in missing.stderr


BAD = """\
import sys
from asyncio import CancelledError
from mac_runner.environments.generators import Ask, generator_spec
from mac_runner.environments.generators.environment import GeneratorEnvironment
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

def broken(method):
    def build(experiment):
        environment = GeneratorEnvironment(experiment, section="fine", script=fine, settings=Config(), players={})
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

    process = at_once(own.write(file_of(conversations=2, _grid=grid)))

    assert process.returncode == Exit.FAILURES, process.stderr
    failures: dict[str, list[object]] = {}
    for path in own.run_dir().path.glob("*/transcripts/*.json"):
        transcript = json.loads(path.read_text())
        failures.setdefault(transcript["environment"].partition(":")[2], []).append(transcript["failure"])
    wrong = {
        name: failures.get(name, failures)
        for name, said in SAID.items()
        if not all(said in str(failure) for failure in failures.get(name, [None]))
    }
    assert wrong == {}
    assert failures["fine"] == [None, None]
