"""Runs of other libraries' games that are killed go on to what an undisturbed run has.

Two servers play them, and their sets have another order: a game whose moves hang on that would be caught.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from tests.cli.lab import RunDir
from tests.environments.adapters.playing import TEN, THREE, content
from tests.faults.forking import Extras, Forking
from tests.faults.tier import SCALE, one_in

pytestmark = pytest.mark.ci
GAMES = {
    "textarena": one_in(10, [(f"textarena:{game}", players) for game, players in TEN.items()]),
    "pettingzoo": one_in(3, [(f"pettingzoo:{game}", 2) for game in THREE]),
}
CONVERSATIONS = max(6, -(-12 * SCALE // sum(map(len, GAMES.values()))))
"""Of each game: 12 in all of the two played by day, or as many times that of up to thirteen."""
REPLIES_UNTIL_KILLED = 4 * CONVERSATIONS


class Servers(NamedTuple):
    undisturbed: Forking
    killed: Forking


@pytest.fixture
def servers(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Servers]:
    library = pytest.importorskip(request.param).__name__
    for folder in ("undisturbed", "killed"):
        (tmp_path / folder).mkdir()
    servers = Servers(
        Forking(tmp_path / "undisturbed", preload=library, hash_seed="1"),
        Forking(tmp_path / "killed", preload=library, hash_seed="2"),
    )
    yield servers
    for server in servers:
        server.close()


@pytest.mark.parametrize("servers", ["textarena"], indirect=True)
def test_games_of_textarena_survive_a_kill(tmp_path: Path, servers: Servers) -> None:
    survive(tmp_path, servers, GAMES["textarena"])


@pytest.mark.parametrize("servers", ["pettingzoo"], indirect=True)
def test_games_of_pettingzoo_survive_a_kill(tmp_path: Path, servers: Servers) -> None:
    pytest.importorskip("pygame")
    survive(tmp_path, servers, GAMES["pettingzoo"])


def survive(folder: Path, servers: Servers, games: Sequence[tuple[str, int]]) -> None:
    for environment, players in games:
        name = environment.replace(":", "-")
        file, one, other = folder / f"{name}.yaml", folder / "undisturbed" / name, folder / "killed" / name
        experiment = content(environment, players, name=name, conversations=CONVERSATIONS)
        file.write_text(yaml.safe_dump(experiment), encoding="utf-8")

        straight = servers.undisturbed.run(str(file), "--out", str(one))
        assert straight.code == 0, f"{environment}: {straight.err}"
        killed = servers.killed.run(str(file), "--out", str(other), extras=Extras(after_replies=REPLIES_UNTIL_KILLED))
        assert killed.code == -signal.SIGKILL, f"{environment}: {killed.err}"
        assert len(RunDir(path=other).transcripts) < CONVERSATIONS, f"{environment}: killed too late"
        resumed = servers.killed.run(str(file), "--out", str(other))
        assert resumed.code == 0, f"{environment}: {resumed.err}"

        found = RunDir(path=other).transcripts
        assert len(found) == CONVERSATIONS, environment
        assert found == RunDir(path=one).transcripts, f"{environment}: not what an undisturbed run has"
        assert RunDir(path=other).statuses == {"finished": CONVERSATIONS}, environment
        verified = servers.undisturbed.run("verify", str(other), "--trust")
        assert verified.code == 0, f"{environment}: {verified.out}{verified.err}"
