"""Run directories of earlier versions are read, verified, gone on with, merged and retried by the command line.

`tests/golden/record_commands.py` wrote them. A version whose files differ gets a directory of its own beside them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mac_runner.cli.process import Exit
from mac_runner.environments import build_environment
from mac_runner.environments.town_of_salem.testing import essence
from mac_runner.runs.testing import rebuilt_transcript, recorded_experiment
from mac_runner.store import read_run
from mac_runner.store.testing import decode_transcript
from tests.cli.lab import AtOnce, Lab, RunDir
from tests.golden.oracles import PLAYED, play, ratios, read, told
from tests.golden.record_commands import URL
from tests.kit import copied
from tests.sim.behaviour import Say
from tests.sim.openai_run import in_a_thread
from tests.sim.openai_server import OpenaiServer

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "tests" / "golden" / "commands"
VERSIONS = sorted(path.name for path in RECORDED.iterdir())


@pytest.fixture(params=VERSIONS)
def recorded(request: pytest.FixtureRequest, lab: Lab) -> Lab:
    """A working directory with the runs of one version."""
    copied(RECORDED / str(request.param), lab.path)
    return lab


def digests(recorded: Lab) -> dict[str, str]:
    """A digest of each file of all runs. Looking at a run makes a lock file where there is none."""
    return {name: digest for name, (_, digest) in recorded.dir("runs").hashes().items() if ".lock" not in name}


def shared(run: RunDir) -> dict[str, object]:
    """The transcripts of a run, without what those of earlier versions lack: the turn of each event, and a count."""
    found: dict[str, Any] = {name: json.loads(data) for name, data in run.transcripts.items()}
    for transcript in found.values():
        del transcript["format"]
        transcript["counts"].pop("turns_by_definition", None)
        for event in transcript["record"].get("events", []):
            event.pop("turn", None)
    return found


def test_finished_runs_verify_and_are_left_as_they_are(recorded: Lab, at_once: AtOnce) -> None:
    before = digests(recorded)
    for run in ("game", "grid", "parts.shard-1-of-2"):
        at_once(f"verify runs/{run}").done()
        at_once(f"status runs/{run}").done()
    at_once("parts.yaml --shard 2/2").done(told="nothing to run")
    if plays_games(recorded):
        at_once("game.yaml", *EDITION).done(told="nothing to run")
    at_once("game.yaml").refused("edition:")
    assert digests(recorded) == before


EDITION = ("--set", "game.edition=2")
"""The flag that plays games as they were recorded."""


def plays_games(recorded: Lab) -> bool:
    """Whether the recorded games are of an edition that is played."""
    return "edition" in (recorded.path / "runs/game/experiment.yaml").read_text()


def discussed(recorded: Lab) -> tuple[str, str]:
    """The flag that plays discussions as they were recorded."""
    found = re.search(r"edition: (\d)", (recorded.path / "runs/failed/experiment.yaml").read_text())
    return "--set", f"discussion.edition={found[1] if found else 1}"


def test_games_of_an_earlier_edition_are_replayed_move_by_move_but_not_played(recorded: Lab, at_once: AtOnce) -> None:
    if plays_games(recorded):
        return
    before = digests(recorded)
    at_once("verify runs/game").done("every move was")
    for command in ("killed.yaml", "killed.yaml --set game.edition=1", "game.yaml --out runs/killed"):
        at_once(command).refused("edition")
    assert digests(recorded) == before

    (transcript,) = (recorded.path / "runs/game/transcripts").iterdir()
    whole = transcript.read_bytes()
    transcript.write_bytes(whole[:-100])
    at_once("verify runs/game").ends(Exit.FAILURES)
    at_once("repair runs/game").refused("the version that")
    assert not list(transcript.parent.parent.glob("damaged/*"))


def test_replay_of_an_earlier_edition_compares_moves_and_leaves_out_wordings(recorded: Lab) -> None:
    if plays_games(recorded):
        return
    run = recorded.path / "runs/game"
    (path,) = (run / "transcripts").iterdir()
    experiment = recorded_experiment(read_run(run)).experiment
    replayed = essence(
        rebuilt_transcript(decode_transcript(path.read_bytes()), build_environment(experiment), check_prompts=False)
    )
    changes: dict[str, tuple[bool, Callable[[Any], object]]] = {
        "nothing": (True, lambda found: None),
        "the words of an event": (True, lambda found: found["record"]["events"][1].update(text="Dawn.")),
        "the digest of a prompt": (True, lambda found: found["turns"][0].update(prompt_sha256="0" * 64)),
        "a correction's words": (True, lambda found: found["turns"][0]["receipt"].update(detail="again")),
        "what became of a reply": (False, lambda found: found["turns"][0]["receipt"].update(kind="default")),
        "a reply": (False, lambda found: found["turns"][0]["reply"].update(text="<wait/>")),
        "an act": (False, lambda found: found["record"]["acts"][3].update(act="whisper")),
        "an event": (False, lambda found: found["record"]["events"][1]["data"].update(day=9)),
        "a death": (False, lambda found: found["record"]["deaths"].pop()),
        "who won": (False, lambda found: found["outcome"]["players"][0].update(won=None)),
    }
    for what, (is_same, change) in changes.items():
        found = decode_transcript(path.read_bytes())
        change(found)
        assert (essence(found) == replayed) is is_same, what


def test_finished_game_is_shown(recorded: Lab, at_once: AtOnce) -> None:
    for flag in ("", "--truth", "--turns"):
        assert len(at_once(f"show runs/game 0 {flag}").done().stdout.splitlines()) > 50


def test_a_recorded_grid_keeps_its_names_and_takes_in_combinations_with_short_ones(
    recorded: Lab, at_once: AtOnce
) -> None:
    before = {path.name for path in (recorded.path / "runs/grid").glob("max*rounds-*")}
    more = ("--set", "_grid.sweep={discussion.max_rounds: [2, 3, 1]}")

    at_once("grid.yaml --quiet", *discussed(recorded), *more).done()
    found = {path.parent.name for path in (recorded.path / "runs/grid").glob("*/experiment.yaml")}
    assert len(before) == 2
    assert found == {*before, "max_rounds-3"}
    at_once("verify runs/grid").done()


def test_complete_grid_prints_its_table(recorded: Lab, at_once: AtOnce) -> None:
    at_once("grid.yaml", *discussed(recorded)).done(told="all 2 combinations")

    at_once("verify runs/grid").done()


@pytest.mark.ci
def test_killed_run_goes_on_to_what_an_undisturbed_one_has(recorded: Lab, at_once: AtOnce) -> None:
    if not plays_games(recorded):
        return
    at_once("killed.yaml", *EDITION).done()
    at_once("killed.yaml --out undisturbed", *EDITION).done()

    resumed, undisturbed = recorded.run_dir("killed"), recorded.dir("undisturbed")
    assert shared(resumed) == shared(undisturbed)
    asked = [len(run.events("EVENT_INFER_DONE")) for run in (resumed, undisturbed)]
    assert asked[0] <= asked[1]
    recorded.verified(resumed.path)


def test_shards_are_merged_into_what_one_run_has(recorded: Lab, at_once: AtOnce) -> None:
    at_once("merge whole runs/parts.shard-1-of-2 runs/parts.shard-2-of-2").done()
    at_once("parts.yaml --out undisturbed").done()

    whole = recorded.dir("whole")
    assert shared(whole) == shared(recorded.dir("undisturbed"))
    recorded.verified(whole.path)


def test_failed_conversations_are_retried_with_questions_from_a_file(recorded: Lab, at_once: AtOnce) -> None:
    with in_a_thread(OpenaiServer(script=lambda _received: Say("So be it."))) as server:
        for path in (recorded.path / "failed.yaml", recorded.path / "runs/failed/experiment.yaml"):
            path.write_text(path.read_text().replace(URL, server.url))
        at_once("retry runs/failed").done()
        at_once("failed.yaml --out undisturbed", *discussed(recorded)).done()

    run = recorded.run_dir("failed")
    assert run.statuses == {"finished": 4}
    assert shared(run) == shared(recorded.dir("undisturbed"))
    assert len(list((run.path / "attempts").iterdir())) == 2
    recorded.verified(run.path)


CHEAPEST = next(played for played in PLAYED if played.name == "discussion_openai")


@pytest.mark.ci
def test_an_experiment_leads_to_what_it_led_to_when_it_was_recorded() -> None:
    recorded, now = read(CHEAPEST), play(CHEAPEST)

    assert recorded == now, "\n".join(told(CHEAPEST.name, recorded, now))


def test_every_experiment_of_the_repository_is_recorded() -> None:
    assert {played.arguments[0] for played in PLAYED} == {path.name for path in (ROOT / "experiments").glob("*.yaml")}
    assert all(read(played) for played in PLAYED)


@pytest.mark.parametrize(
    ("subject", "part", "line"),
    [
        ("conversation discussion_openai-000007", "prompts", "prompts"),
        ("summary .", "discussions.consensus", "discussions.consensus"),
        ("tables", "answers", "answers"),
        ("csv turns", "agent", "agent"),
        ("parquet answers", None, "is gone"),
    ],
)
def test_what_is_not_as_it_was_recorded_is_told_by_subject_and_part(subject: str, part: str | None, line: str) -> None:
    recorded, now = read(CHEAPEST), read(CHEAPEST)
    if part is None:
        del now[subject]
    else:
        assert part in now[subject]
        now[subject][part] = "0badcafe"

    head, _kind, *lines = told(CHEAPEST.name, recorded, now)
    assert head.endswith("1 differ")
    assert lines == [f"    {subject}: {line}"]


def test_benchmarks_are_compared_pair_by_pair() -> None:
    then = [{"wall_s": 2.0, "turns": 9, "commit": "a"}, {"wall_s": 8.0, "turns": 9, "commit": "a"}]
    now = [{"wall_s": 1.0, "turns": 9, "commit": "b"}, {"wall_s": 8.0, "turns": 9, "commit": "b"}]

    (line,) = ratios(then, now)
    assert line.split() == ["wall_s", "5", "4.5", "0.750", "(0.500", "to", "1.000)"]
