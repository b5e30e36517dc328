"""Starts that are refused: what is told, and that a directory is as it was, no name more and no byte changed."""

from __future__ import annotations

import re
import resource
from functools import partial

import pytest

from mac_runner.cli.process import Exit
from mac_runner.store import Disk, System
from mac_runner.store.testing import Free, RunLock
from mac_runner.types import JsonObject, JsonValue
from tests.cli.lab import AtOnce, Lab, differing, discussion, ending, experiment, scripted, served
from tests.sim.behaviour import Say, failure
from tests.sim.openai_run import in_a_thread
from tests.sim.openai_server import OpenaiServer

NOWHERE = "http://127.0.0.1:9"
HAS_NO_MODEL = r"model_definitions\.m\.openai_config\.model: http\S+: it has no model 'mistyped'; it has: stub"
MORE = "--set conversation_config.conversations=3"


def assert_matches(pattern: str, text: str) -> None:
    assert re.search(pattern, text), text


def test_a_mistyped_model_is_reported_with_its_place_and_the_corrected_one_resumes_there(
    lab: Lab, at_once: AtOnce
) -> None:
    with in_a_thread(OpenaiServer()) as server:
        first = at_once(discussion(served(server.url, "mistyped"))).refused()
        at_once(discussion(served(server.url))).done()

    assert_matches(rf"^mac-run: talk\.yaml:\d+: {HAS_NO_MODEL}", first.stderr)
    assert len(first.stderr.splitlines()) == 1
    assert lab.run_dir("talk").statuses == {"finished": 3}
    lab.verified(lab.run_dir("talk").path)


def test_a_mistyped_model_of_a_grid_is_reported_with_its_place(at_once: AtOnce) -> None:
    sweep: JsonObject = {"model_definitions.m.openai_config.model": ["stub", "mistyped"]}
    with in_a_thread(OpenaiServer()) as server:
        ended = at_once(discussion(served(server.url), _grid={"sweep": sweep})).refused()

    assert_matches(rf"^mac-run: talk\.yaml:\d+: {HAS_NO_MODEL}", ended.stderr)


@pytest.mark.ci
def test_doctor_reports_the_place_of_a_mistyped_model(at_once: AtOnce) -> None:
    with in_a_thread(OpenaiServer()) as server:
        ended = at_once("doctor", discussion(served(server.url, "mistyped"))).ends(Exit.FAILURES)

    assert_matches(rf"PROBLEM: talk\.yaml:\d+: {HAS_NO_MODEL}", ended.stdout)


@pytest.mark.parametrize("backend", ["openai", "ollama"])
def test_a_missing_server_is_reported_in_one_line_that_names_the_model(at_once: AtOnce, backend: str) -> None:
    ended = at_once(discussion(served(NOWHERE, backend=backend))).ends(Exit.INTERRUPTED)

    assert ended.stderr.startswith("mac-run: model m: ")
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.ci
def test_late_problems_of_a_grid_are_reported_together_each_with_its_place(
    lab: Lab, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Policies, lobbies, seats, settings that an engine lacks, keys."""
    monkeypatch.setenv("ODD_KEY", "no key\x07")
    m: JsonValue = scripted("discussant")
    chat: JsonObject = served(NOWHERE, "m", api_key_env="ODD_KEY")
    cases: list[tuple[JsonObject, JsonObject, list[str]]] = [
        (
            discussion(scripted("discussant")),
            {"model_definitions.m.scripted_config.policy": ["discussant", "clever", "smart"]},
            ["policy: environment discussion has no policy 'clever'", "has no policy 'smart'"],
        ),
        (
            experiment(),
            {"game.lobby": ["classic-7", "classic-77", "classic-78"]},
            ["game.lobby: there is no lobby 'classic-77'", "there is no lobby 'classic-78'"],
        ),
        (experiment(), {"game.seats": [None, {"with_m": 2}]}, ["game.seats: the counts (with_m: 2) add up to 2"]),
        (
            discussion(served(NOWHERE, "m")),
            {"agent_definitions.0.top_k": [None, 3], "model_definitions.m.record_tokens": [False, True]},
            ["agent_definitions.0.top_k: the backend", "model_definitions.m.record_tokens: the backend"],
        ),
        (
            discussion(served(NOWHERE, "m")),
            {"model_definitions.m": [m, chat]},
            ["api_key_env: the environment variable ODD_KEY holds characters that no key has"],
        ),
    ]
    for file, sweep, told in cases:
        name = lab.write({**file, "_grid": {"sweep": sweep}}, "late.yaml")
        for flag in ("--dry-run", "--quiet"):
            ended = at_once(name, flag).refused()

            lines = ended.stderr.removeprefix("mac-run: ").splitlines()
            assert all(re.match(r"late\.yaml:\d+: \S+: ", line) for line in lines), lines
            assert all(any(part in line for line in lines) for part in told), lines
            assert all(re.search(r"\(combination \d+ of \d+\)$", line) for line in lines), lines
        assert [path.name for path in lab.path.iterdir()] == ["late.yaml"]


@pytest.fixture
def half_played(lab: Lab, at_once: AtOnce) -> Lab:
    """A run directory in which one of two conversations has been played, and one is left; beside it a grid likewise."""
    with in_a_thread(OpenaiServer()) as server:
        for make, out in ((discussion, "run"), (grid, "many")):
            at_once(make(served(server.url)), "--out", out, "--limit", "1", "--quiet").done()
    assert lab.dir("run").summary
    return lab


def grid(model: JsonObject) -> JsonObject:
    return discussion(model, "many", _grid={"sweep": {"seed": [1, 2]}})


@pytest.mark.ci
def test_start_refused_by_an_engine_or_for_a_key_leaves_everything_as_it_was(half_played: Lab, at_once: AtOnce) -> None:
    lab, wrong = half_played, list[str]()
    with in_a_thread(OpenaiServer()) as server:
        causes: dict[str, JsonObject] = {
            "an engine that is not there": served(NOWHERE),
            "a model that the engine does not have": served(server.url, "mistyped"),
            "a key that is not set": served(server.url, api_key_env="NO_SUCH_KEY"),
            "a setting that the engine does not have": {**served(server.url), "record_tokens": True},
        }
        for cause, model in causes.items():
            for make, out in ((discussion, "run"), (grid, "many"), (discussion, "new"), (grid, "new")):
                name = lab.write(make(model), "refused.yaml")
                for times in range(2):
                    before = lab.files()
                    told = at_once(name, "--out", out, "--quiet")
                    if told.returncode not in {Exit.BAD_INPUT, Exit.INTERRUPTED} or not told.stderr:
                        wrong.append(f"{cause}, {out}: {told.returncode} {told.stderr}")
                    if changed := differing(before, lab.files()):
                        wrong.append(f"{cause}, {out}, start {times}: {changed}")

    assert not wrong, "\n".join(wrong)


def test_retry_refused_by_an_engine_leaves_the_failed_conversation_as_it_was(lab: Lab, at_once: AtOnce) -> None:
    with in_a_thread(
        OpenaiServer(script=lambda received: failure(400, "no") if received.number == 2 else Say("So be it."))
    ) as server:
        at_once(discussion(served(server.url)), "--out", "run").ends(Exit.FAILURES)

    with lab.unchanged():
        at_once("retry run --quiet").ends(Exit.INTERRUPTED)


def test_start_refused_for_want_of_room_leaves_everything_as_it_was(
    half_played: Lab, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    with in_a_thread(OpenaiServer()) as server:
        file = half_played.write(discussion(served(server.url)))
        monkeypatch.setattr(System, "free", lambda _self, _path: Free(size_bytes=10, files=None, block_bytes=4096))
        for out in ("run", "new/place"):
            with half_played.unchanged():
                at_once(file, "--out", out, "--quiet").ends(Exit.STORAGE_FAILED, "are missing")


@pytest.mark.ci
@pytest.mark.parametrize("size_bytes_max", [10, 150])
def test_start_on_a_disk_that_takes_no_more_leaves_everything_as_it_was(finished: Lab, size_bytes_max: int) -> None:
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (size_bytes_max, size_bytes_max))
    with finished.unchanged():
        ending(finished.start("small.yaml", *MORE.split(), preexec=limit)).ends(Exit.STORAGE_FAILED)


def test_start_refused_because_a_run_is_at_it_leaves_everything_as_it_was(finished: Lab, at_once: AtOnce) -> None:
    for out in ("runs/small", "new"):
        directory = finished.path / out
        directory.mkdir(exist_ok=True)
        lock = RunLock(Disk(), directory)
        try:
            with finished.unchanged():
                at_once(f"small.yaml --out {out} {MORE}").ends(Exit.IN_USE, "by this process")
        finally:
            lock.sign_off()
            lock.release()


def test_start_that_was_killed_is_taken_over_by_the_next(lab: Lab, at_once: AtOnce) -> None:
    """What a killed process left under temporary names is swept by the next start."""
    run = lab.path / "run"
    with in_a_thread(OpenaiServer()) as server:
        at_once(discussion(served(server.url)), "--out", "run", "--limit", "1", "--quiet").done()
        (run / ".tmp-00000000-1-0123456789ab").write_text("kept")
        at_once("talk.yaml --out run --quiet").done()

    assert not list(run.rglob(".tmp-*"))
    assert Disk().names(run / "journal") == ["000001.jsonl", "000002.jsonl"]
