"""Backends, scripted players and metrics that an experiment file names, through the whole command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.cli.process import Exit
from mac_runner.types import JsonObject
from tests.cli.lab import AtOnce, Lab, echoes, refusals, scripted

BIRD = """
from pydantic import BaseModel
from mac_runner import OwnBackend, Reply, TokenCount
from mac_runner.section import IDENTITY, RUNTIME, Section
from typing import Annotated

class Bird(OwnBackend):
    class Settings(Section):
        mood: Annotated[str, IDENTITY] = "good"
        max_in_flight: Annotated[int, RUNTIME] = 4

    honours = {"max_tokens"}

    async def generate(self, request):
        words = request.prompt.messages[-1].content.split()
        return Reply(text=f"{self.settings.mood} {words[-1]}", tokens=TokenCount(prompt=len(words), completion=2))
"""
PLAYERS = """
def curt(view, random):
    return f"word {random.random():.6f}"
"""
METRICS = """
def words(conversation):
    said = [turn.text for turn in conversation.turns_of("Ann")]
    conversation.outcome.clear()
    return {"ann": sum(len(text.split()) for text in said), "curt": len(said) < 5}

def even(conversation):
    if conversation.index % 2:
        raise ValueError("odd")
    return 1 + conversation.index / 2
"""


def birds(
    *, conversations: int = 6, metrics: Sequence[str] = ("./metrics.py:words", "./metrics.py:even")
) -> JsonObject:
    """A bird and a player of a user's own say again what is said."""
    models: JsonObject = {
        "bird": {"backend": "./bird.py:Bird", "settings": {"mood": "bad"}},
        "curt": scripted("./players.py:curt"),
    }
    agents: list[JsonObject] = [{"agent_id": "Ann", "model": "bird"}, {"agent_id": "Bob", "model": "curt"}]
    content = echoes({}, "birds", conversations=conversations, rounds=2, agents=agents)
    return {**content, "model_definitions": models, "metrics": [*metrics]}


@pytest.fixture
def aviary(lab: Lab) -> Lab:
    """A working directory with code of a user."""
    for name, code in (("bird", BIRD), ("players", PLAYERS), ("metrics", METRICS)):
        (lab.path / f"{name}.py").write_text(code)
    return lab


def numbers(summary: dict[str, Any]) -> dict[str, tuple[object, object, object]]:
    """Of each metric the cases, the mean, and the conversations without a value."""
    return {
        name: (value["n"], value.get("rate", value.get("score")), value["absent"])
        for name, value in summary["metrics"].items()
    }


def test_a_file_plays_with_a_backend_a_player_and_metrics_of_its_own(aviary: Lab, at_once: AtOnce) -> None:
    """The values are in the rows and the summary; a metric that raises costs its own value alone."""
    at_once(birds()).done("failed on 3 conversations")
    run = aviary.run_dir("birds")
    row, odd = run.index[0], run.index[1]
    summary = run.summary

    assert row["metrics"] == {"words.ann": 4, "words.curt": True, "even": 1.0}
    assert row["outcome"]  # A metric has a copy.
    assert (odd["metrics"], odd["metric_errors"]) == (
        {"words.ann": 4, "words.curt": True, "even": None},
        {"even": "metrics.py:9: ValueError: odd"},
    )
    assert numbers(summary) == {"even": (3, 2.0, 0), "words.ann": (6, 4.0, 0), "words.curt": (6, 1.0, 0)}
    assert (run.path / "experiment.yaml").read_text().count("sha256") == 4
    at_once("verify runs/birds").done()
    listed = at_once("show runs/birds --where even>=2").stdout.splitlines()
    assert [line.split()[0] for line in listed] == ["number", "2", "4"]


@pytest.mark.ci
def test_a_run_that_is_extended_says_how_many_rows_have_no_value_of_a_new_metric(aviary: Lab, at_once: AtOnce) -> None:
    at_once(birds(conversations=2, metrics=()))
    assert not aviary.run_dir("birds").summary.get("metrics")
    at_once(birds(conversations=5, metrics=("./metrics.py:words",))).done()
    at_once("export runs/birds --metric --trust --to values.jsonl").done()
    aviary.run("export", "runs/birds", "--metric").refused("--trust")  # In a process that has not imported the code.

    assert numbers(aviary.run_dir("birds").summary) == {"words.ann": (3, 4.0, 2), "words.curt": (3, 1.0, 2)}
    assert len((aviary.path / "values.jsonl").read_text().splitlines()) == 5
    at_once("verify runs/birds").done()


def test_other_code_is_refused_for_engines_and_players_and_noted_for_metrics(aviary: Lab, at_once: AtOnce) -> None:
    """A runtime setting of a backend may change, one of identity may not."""
    at_once(birds(conversations=2)).done()
    for name, code, told in (
        ("metrics", METRICS, ()),
        ("players", PLAYERS, ("players.py:curt",)),
        ("bird", BIRD, ("bird.py:Bird",)),
    ):
        (aviary.path / f"{name}.py").write_text(f"{code}# \n")
        at_once(birds(conversations=3)).ends(Exit.BAD_INPUT if told else Exit.OK, *told)
        if told:
            (aviary.path / f"{name}.py").write_text(code)

    settings = "--set=model_definitions.bird.settings"
    at_once("birds.yaml", f"{settings}.max_in_flight=2").done()
    at_once("birds.yaml", f"{settings}.mood=odd").refused("model_definitions.bird.settings.mood")


@pytest.mark.ci
def test_retry_needs_the_code_and_says_so(aviary: Lab, at_once: AtOnce) -> None:
    """A failure of a backend's code fails its conversation; a mended backend is other code, so it takes a new run."""
    fails = PLAYERS.replace("    return", "    if random.random() < 0.5:\n        raise KeyError('lost')\n    return")
    (aviary.path / "players.py").write_text(fails)
    at_once(birds()).ends(Exit.FAILURES)
    # In a process that has not imported the code.
    aviary.run("retry", "runs/birds").refused("./bird.py:Bird", "./players.py:curt", "./metrics.py:even", "--trust")
    at_once("retry runs/birds --trust").ends(Exit.FAILURES)

    (failure, *_) = [row["failure"] for row in aviary.run_dir("birds").index if row["failure"]]
    assert "players.py:4: KeyError: " in failure
    at_once("verify runs/birds").done()


@pytest.mark.ci
def test_a_killed_run_and_merged_shards_end_with_the_same_values(aviary: Lab) -> None:
    """Values are kept with each conversation, so neither a resume nor a merge computes them again."""
    whole = birds(conversations=8)
    aviary.play(aviary.write(whole))
    for part in ("1/2", "2/2"):
        aviary.play("birds.yaml", "--shard", part, "--out", f"runs/part-{part[0]}")
    aviary.play("merge", "runs/merged", "runs/part-1", "runs/part-2")
    aviary.play("birds.yaml", "--limit", "3", "--out", "runs/stopped")
    aviary.kill_held(3, "birds.yaml", "--out", "runs/stopped")
    aviary.play("birds.yaml", "--out", "runs/stopped")
    expected = aviary.run_dir("birds")

    for name in ("merged", "stopped"):
        found = aviary.run_dir(name)
        assert found.transcripts == expected.transcripts
        for key in ("metrics", "metric_errors"):
            assert found.summary[key] == expected.summary[key]
        assert {row["index"]: row["metrics"] for row in found.index} == {
            row["index"]: row["metrics"] for row in expected.index
        }
        aviary.play("verify", f"runs/{name}")


SINGER = """
from pydantic import BaseModel
from mac_runner import Ask, OwnBackend, File, game

class Settings(BaseModel):
    song: File

class Singer(OwnBackend):
    Settings = Settings

    def start(self):
        self.song = self.settings.song.text()

    def generate(self, request):
        if request.conversation.endswith("1"):
            raise KeyError("note")
        return self.song

@game(settings=Settings)
def choir(table):
    answer = yield Ask(table.agents[0], table.settings.song.text())
    return {"answer": answer}
"""
ENGINES, GAMES = "stage/engine.txt", "stage/game.txt"


@pytest.fixture
def choir(lab: Lab) -> Lab:
    """A working directory, and an experiment in a folder of it, whose environment and engine have a file each."""
    (lab.path / "stage").mkdir()
    for name, content in (("stage/singer.py", SINGER), (GAMES, "Sing!"), (ENGINES, "La.")):
        (lab.path / name).write_text(content)
    models: JsonObject = {"singer": {"backend": "./singer.py:Singer", "settings": {"song": "engine.txt"}}}
    sung: JsonObject = {
        "experiment_metadata": {"experiment_name": "sung"},
        "conversation_config": {"environment": "./singer.py:choir", "conversations": 2},
        "settings": {"song": "game.txt"},
        "model_definitions": models,
        "agent_definitions": [{"agent_id": "Ann", "role": "player", "model": "singer"}],
    }
    lab.write(sung, "stage/sung.yaml")
    return lab


def test_settings_name_files_beside_the_experiment_and_a_run_goes_on_with_the_same_alone(
    choir: Lab, at_once: AtOnce
) -> None:
    at_once("stage/sung.yaml --limit 1").done()
    assert [row["outcome"] for row in choir.run_dir("sung").index] == [{"kind": "choir", "answer": "La."}]

    for name, key in ((ENGINES, "model_definitions.singer.settings.song"), (GAMES, "settings.song")):
        file = choir.path / name
        content = file.read_text()
        file.write_text("Oh!")
        at_once("stage/sung.yaml").refused(f"{key}: {file} changed: its sha256: ", "put the files and the values back")
        file.unlink()
        at_once("stage/sung.yaml --dry-run").refused("stage/sung.yaml:", f": {key}: {name}: cannot be read")
        file.write_text(content)


def test_a_run_is_checked_without_the_files_of_its_engines_and_with_those_of_its_environment(
    choir: Lab, at_once: AtOnce
) -> None:
    at_once("stage/sung.yaml").ends(Exit.FAILURES)
    (choir.path / ENGINES).unlink()
    at_once("verify runs/sung --trust").done("plays again to the same end")
    at_once("retry runs/sung --trust").refused(f"model_definitions.singer: {choir.path / ENGINES}: cannot be read")

    (choir.path / GAMES).write_text("Oh!")
    missing = f"settings.song: {choir.path / GAMES}: its sha256 is "
    at_once("verify runs/sung --trust").refused("the file that the run was played with is not here", missing, "--trust")


@pytest.mark.ci
def test_an_engine_that_refuses_to_start_is_named_with_its_place_by_every_verb_that_starts_it(
    aviary: Lab, at_once: AtOnce
) -> None:
    refuses = """
from pydantic import BaseModel
from mac_runner import OwnBackend, ConfigError

class Bird(OwnBackend):
    class Settings(BaseModel):
        mood: str

    async def start(self):
        raise ConfigError("it is moulting")

    async def generate(self, request):
        return "never"
"""
    (aviary.path / "bird.py").write_text(refuses)
    file = aviary.write(birds(metrics=()))
    for verb in ("run", "doctor", "calibrate"):
        ended = at_once(verb, file)
        assert f"{file}:" in (said := ended.stdout + ended.stderr), verb
        assert "model_definitions.bird: it is moulting" in said


@pytest.mark.ci
def test_doctor_names_the_setting_of_forms_where_an_engine_refuses_them_whatever_it_is_asked(
    aviary: Lab, at_once: AtOnce
) -> None:
    refuses = """
from mac_runner import OwnBackend
from mac_runner.errors import FormRefusedError

class Bird(OwnBackend):
    constrains = {"schema"}

    async def generate(self, request):
        raise FormRefusedError("no grammar was compiled")
"""
    (aviary.path / "bird.py").write_text(refuses)
    content = birds(metrics=())
    content["model_definitions"] = {"bird": {"backend": "./bird.py:Bird"}, "curt": scripted("./players.py:curt")}
    ended = at_once("doctor", aviary.write(content))

    told = " ".join((ended.stdout + ended.stderr).split())
    assert "no grammar was compiled" in told
    assert "set model_definitions.bird.constrained_decoding: none" in told


BAD = (
    ("a.py", "x = 1", "bird.backend", "./a.py:x"),
    ("b.py", "class B: pass", "bird.backend", "./b.py:B"),
    ("c.py", "raise KeyError('k')", "bird.backend", "./c.py:C"),
    ("d.py", "def p(view): pass", "curt.scripted_config.policy", "./d.py:p"),
    ("e.py", "p = 'x'", "curt.scripted_config.policy", "./e.py:p"),
    ("f.py", "", "curt.scripted_config.policy", "./f.py:p"),
    ("g.py", "def m(): pass", "metrics", "['./g.py:m']"),
    ("h.py", "async def m(c): pass", "metrics", "['./h.py:m']"),
    ("words.py", "", "metrics", "['./nowhere.py:m']"),
    ("other.py", METRICS, "metrics", "['./metrics.py:even', './other.py:even']"),
    ("i.py", "", "bird.settings.mud", "1"),
    ("j.py", "", "bird.settings.max_in_flight", "many"),
    ("k.py", "", "curt.settings.mood", "bad"),
    ("l.py", "", "agent_definitions.Ann.temperature", "0.5"),
    ("m.py", "", "bird.record_tokens", "true"),
)
"""A file and its code, the key that names it, and the value."""


def test_bad_code_is_refused_with_its_place_before_anything_is_written(
    aviary: Lab, at_once: AtOnce, snapshot: SnapshotAssertion
) -> None:
    file, told = aviary.write(birds()), ""
    for name, code, key, value in BAD:
        (aviary.path / name).write_text(code)
        place = key if key == "metrics" or key.startswith("agent") else f"model_definitions.{key}"
        told += refusals(at_once, [(file, "--set", f"{place}={value}")])

    assert told.replace(str(aviary.path), "PLACE") == snapshot
    assert not (aviary.path / "runs").exists()
