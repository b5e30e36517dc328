"""Recorded run directories are read, verified, gone on with, merged and retried by the command line.

`tests/golden/record_commands.py` wrote them. What an earlier version wrote is refused, with the version that reads it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.lab import AtOnce, Lab
from tests.golden.oracles import PLAYED, play, ratios, read, told
from tests.golden.record_commands import URL
from tests.kit import copied, undigested
from tests.sim.behaviour import Say
from tests.sim.openai_run import in_a_thread
from tests.sim.openai_server import OpenaiServer

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "tests" / "golden" / "commands"


@pytest.fixture
def recorded(lab: Lab) -> Lab:
    """A working directory with the recorded runs."""
    copied(RECORDED, lab.path)
    return lab


def digests(recorded: Lab) -> dict[str, str]:
    """A digest of each file of all runs. Looking at a run makes a lock file where there is none."""
    return {name: digest for name, (_, digest) in recorded.dir("runs").hashes().items() if ".lock" not in name}


def test_finished_runs_verify_and_are_left_as_they_are(recorded: Lab, at_once: AtOnce) -> None:
    before = digests(recorded)
    for run in ("game", "grid", "parts.shard-1-of-2"):
        at_once(f"verify runs/{run}").done()
        at_once(f"status runs/{run}").done()
    at_once("parts.yaml --shard 2/2").done(told="nothing to run")
    at_once("game.yaml").done(told="nothing to run")
    assert digests(recorded) == before


@pytest.mark.parametrize(
    "command", ["status", "show", "verify", "verify --repair", "retry", "report", "export --to tables"]
)
def test_run_of_another_edition_is_refused_with_the_version_that_reads_it(
    recorded: Lab, at_once: AtOnce, command: str
) -> None:
    path = recorded.path / "runs/game/experiment.yaml"
    for found in ("edition: 2", ""):
        path.write_text(re.sub("edition: .", found, undigested(path), count=1))
        before = digests(recorded)
        at_once(f"{command} runs/game").refused("game.edition is", "mac_runner 0.2.0")
        at_once("game.yaml").refused("game.edition is")
        assert digests(recorded) == before


def test_finished_game_is_shown(recorded: Lab, at_once: AtOnce) -> None:
    for flag in ("", "--truth", "--turns"):
        assert len(at_once(f"show runs/game 0 {flag}").done().stdout.splitlines()) > 50


def test_a_recorded_grid_keeps_its_names_and_takes_in_combinations_with_short_ones(
    recorded: Lab, at_once: AtOnce
) -> None:
    before = {path.stem for path in (recorded.path / "runs/grid/experiments").iterdir()}
    more = ("--set", "_grid.sweep={discussion.max_rounds: [2, 3, 1]}")

    at_once("grid.yaml --quiet", *more).done()
    found = {path.stem for path in (recorded.path / "runs/grid/experiments").iterdir()}
    assert len(before) == 2
    assert found == {*before, "max_rounds-3"}
    at_once("verify runs/grid").done()


def test_complete_grid_prints_its_table(recorded: Lab, at_once: AtOnce) -> None:
    at_once("grid.yaml").done(told="all 2 combinations")

    at_once("verify runs/grid").done()


@pytest.mark.ci
def test_killed_run_goes_on_to_what_an_undisturbed_one_has(recorded: Lab, at_once: AtOnce) -> None:
    at_once("killed.yaml").done()
    at_once("killed.yaml --out undisturbed").done()

    resumed, undisturbed = recorded.run_dir("killed"), recorded.dir("undisturbed")
    assert resumed.transcripts == undisturbed.transcripts
    asked = [len(run.events("EVENT_INFER_DONE")) for run in (resumed, undisturbed)]
    assert asked[0] <= asked[1]
    recorded.verified(resumed.path)


def test_shards_are_merged_into_what_one_run_has(recorded: Lab, at_once: AtOnce) -> None:
    at_once("merge whole runs/parts.shard-1-of-2 runs/parts.shard-2-of-2").done()
    at_once("parts.yaml --out undisturbed").done()

    whole = recorded.dir("whole")
    assert whole.transcripts == recorded.dir("undisturbed").transcripts
    recorded.verified(whole.path)


def test_failed_conversations_are_retried_with_questions_from_a_file(recorded: Lab, at_once: AtOnce) -> None:
    with in_a_thread(OpenaiServer(script=lambda _received: Say("So be it."))) as server:
        for path in (recorded.path / "failed.yaml", recorded.path / "runs/failed/experiment.yaml"):
            path.write_text(undigested(path).replace(URL, server.url))
        at_once("retry runs/failed").done()
        at_once("failed.yaml --out undisturbed").done()

    run = recorded.run_dir("failed")
    assert run.statuses == {"finished": 4}
    assert run.transcripts == recorded.dir("undisturbed").transcripts
    assert len(list((run.path / "attempts").iterdir())) == 2
    recorded.verified(run.path)


CHEAPEST = next(played for played in PLAYED if played.name == "discussion_openai")


@pytest.mark.ci
def test_an_experiment_leads_to_what_it_led_to_when_it_was_recorded() -> None:
    recorded, now = read(CHEAPEST), play(CHEAPEST)

    assert recorded == now, "\n".join(told(CHEAPEST.name, recorded, now))


@pytest.mark.ci
@pytest.mark.parametrize("name", ["bbq_moderated", "ranked_15", "tos_information_lag"])
def test_first_conversation_of_an_experiment_is_what_it_was_when_it_was_recorded(name: str) -> None:
    (played,) = [played for played in PLAYED if played.name == name]
    now = play(played._replace(arguments=(*played.arguments, "--limit", "1")))

    conversations = {subject: parts for subject, parts in now.items() if subject.startswith("conversation ")}
    assert conversations
    assert conversations.items() <= read(played).items()


def test_every_experiment_of_the_repository_is_recorded() -> None:
    files = {path.name for path in (ROOT / "experiments").glob("*.yaml")}
    played = {each.arguments[0] for each in PLAYED}
    assert played == files, "give each an entry in PLAYED, and run python -m tests.golden.oracles record NAME"
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

    head, _kind, *lines, how = told(CHEAPEST.name, recorded, now)
    assert head.endswith("1 differ")
    assert lines == [f"    {subject}: {line}"]
    assert how.endswith(f"oracles record {CHEAPEST.name}")


def test_benchmarks_are_compared_pair_by_pair() -> None:
    then = [{"wall_s": 2.0, "turns": 9, "commit": "a"}, {"wall_s": 8.0, "turns": 9, "commit": "a"}]
    now = [{"wall_s": 1.0, "turns": 9, "commit": "b"}, {"wall_s": 8.0, "turns": 9, "commit": "b"}]

    (line,) = ratios(then, now)
    assert line.split() == ["wall_s", "5", "4.5", "0.750", "(0.500", "to", "1.000)"]
