"""The runs that pages are tested with: small, scripted, one of each kind."""

from __future__ import annotations

from pathlib import Path

import yaml

from mac_runner.types import JsonObject
from tests.cli.lab import ROOT, Lab, experiment, scripted
from tests.kit import copied

GAMES = "games"
TALKS = "talks"
VILLAGE = "village"
BROKEN = "broken"
FORK = "fork"

_BROKEN_GAME = """\
from mac_runner import Ask, game

@game
def broken(table):
    for day in range(3):
        said = yield [Ask(name, "Say something.") for name in table.agents]
        table.tell(f"Heard: {said}", when=f"Day {day}")
    if table.random("storm").random() < 0.5:
        raise AssertionError("the game has a bug")
    return {"days": 3}
"""


def play_games(lab: Lab) -> Path:
    """Two games of Town of Salem."""
    return _played(lab, experiment(GAMES, models={"m": scripted(latency_ms=1)}))


def play_talks(lab: Lab) -> Path:
    """A grid of discussions: two settings of four questions each."""
    content = yaml.safe_load((ROOT / "experiments" / "bbq_identity.yaml").read_text(encoding="utf-8"))
    content["experiment_metadata"]["experiment_name"] = TALKS
    content["conversation_config"]["conversations"] = 4
    content["_grid"]["broadcast"].pop("moderator")
    content["_grid"].pop("sweep")
    content["report"] = {"baseline": {"identity_shown": False}, "primary": "bias.final.ambiguous"}
    content.pop("profiles", None)
    copied(ROOT / "experiments" / "questions", lab.path / "questions")
    return _played(lab, content)


def play_village(lab: Lab) -> Path:
    """Three games of a user's own code, which pages do not import."""
    copied(ROOT / "examples" / "werewolf.py", lab.path)
    content = yaml.safe_load((ROOT / "examples" / "werewolf.yaml").read_text(encoding="utf-8"))
    content["experiment_metadata"]["experiment_name"] = VILLAGE
    content["conversation_config"]["conversations"] = 3
    content.pop("profiles", None)
    return _played(lab, content)


def play_broken(lab: Lab) -> Path:
    """Six conversations, some of which failed."""
    (lab.path / "broken.py").write_text(_BROKEN_GAME)
    content: JsonObject = {
        "experiment_metadata": {"experiment_name": BROKEN},
        "conversation_config": {"environment": "./broken.py:broken", "conversations": 6},
        "model_definitions": {"m": scripted("random")},
        "agent_definitions": [{"agent_id": name, "role": "player", "model": "m"} for name in ("Abel", "Bob")],
    }
    return _played(lab, content, code=1)


def play_fork(lab: Lab, games: Path) -> Path:
    """Two draws of a turn of the first game, and its control."""
    lab.done("fork", str(games), "0", "--turn", "#20", "--draws", "2", "--out", FORK, "--quiet")
    return lab.path / FORK


def _played(lab: Lab, content: JsonObject, *, code: int = 0) -> Path:
    process = lab.run(lab.write(content), "--quiet")
    assert process.returncode == code, process.stderr
    metadata = content["experiment_metadata"]
    assert isinstance(metadata, dict)
    return lab.path / "runs" / str(metadata["experiment_name"])
