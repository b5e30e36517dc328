"""The same seed makes the same transcripts, whatever runs beside what, and whatever came in between."""

from __future__ import annotations

import signal
from typing import Final

import pytest

from mac_runner.backends.testing import ScriptedBackend
from mac_runner.config import load_experiment
from mac_runner.environments import build_environment
from mac_runner.runs.testing import rebuilt_transcript
from mac_runner.store import in_wall_clock_order, read_run, without_timing
from mac_runner.types import JsonObject, Reply, Request, TokenCount
from tests.cli.lab import AtOnce, Lab, RunDir, experiment, scripted
from tests.tiers import some

MODES: Final = ("seat_order", "simultaneous", "bidding", "information_lag")
QUICK, SLOW = (f"--set=model_definitions.{name}.scripted_config.latency_ms" for name in ("quick", "slow"))


def mixed(mode: str = "seat_order", *, conversations: int = 2, lobby: str = "classic-7") -> JsonObject:
    """Seats shared by two models that play differently; one of them can be made to answer later."""
    calendar: JsonObject = {"discussion_mode": mode, "discussion_floors": 5, "speaking_slots": 3, "max_days": 5}
    return experiment(
        conversations=conversations,
        models={"quick": scripted(capacity=256), "slow": scripted("random", capacity=256)},
        game={"lobby": lobby, "calendar": calendar},
    )


@pytest.mark.ci
def test_transcripts_do_not_depend_on_hashes(lab: Lab) -> None:
    """Nor on the concurrency and the latencies of other processes."""
    file = lab.write(mixed(lobby="classic-10"))
    for seed, (concurrency, slow_ms, quick_ms) in enumerate(((1, 0, 0), (8, 3, 0), (256, 0, 3))):
        flags = (f"--out={seed}", f"--concurrency={concurrency}", f"{SLOW}={slow_ms}", f"{QUICK}={quick_ms}")
        lab.done(file, *flags, env={"PYTHONHASHSEED": str(seed)})

        assert lab.dir(str(seed)).transcripts == lab.dir("0").transcripts
    lab.verified(lab.path / "0")


@pytest.mark.parametrize("mode", some(3, MODES))
def test_transcripts_do_not_depend_on_concurrency_or_latency(lab: Lab, at_once: AtOnce, mode: str) -> None:
    for concurrency, slow_ms in ((1, 0), (8, 2), (256, 0)):
        out = f"at_{concurrency}"
        at_once(mixed(mode), f"--out={out}", f"--concurrency={concurrency}", f"{SLOW}={slow_ms}").done()

        lab.verified(lab.path / out)
        assert lab.dir(out).transcripts == lab.dir("at_1").transcripts
    assert len(lab.dir("at_1").transcripts) == 2


@pytest.mark.ci
@pytest.mark.parametrize(
    ("mode", "first"),
    [("seat_order", signal.SIGTERM), ("bidding", signal.SIGKILL), ("information_lag", signal.SIGKILL)],
)
def test_transcripts_do_not_depend_on_a_stop_or_a_kill_in_between(
    lab: Lab, at_once: AtOnce, mode: str, first: signal.Signals
) -> None:
    """And where every session was let end in good order, each reply was generated once."""
    file, run = lab.write(mixed(mode)), lab.run_dir()
    at_once(file, "--out", "reference", "--concurrency", "1").done()
    for by in (first, signal.SIGTERM):
        lab.stop_held(40, file, f"{SLOW}=4", by=by)
    at_once(file, "--concurrency", "8").done()

    assert run.transcripts == lab.dir("reference").transcripts
    assert len(run.events("EVENT_RUN_START")) == 3
    done = [(event["task"], event["turn"]) for event in run.events("EVENT_INFER_DONE")]
    assert first is signal.SIGKILL or len(done) == len({*done})
    lab.verified(run.path)


@pytest.mark.ci
def test_results_do_not_depend_on_what_an_engine_had_in_its_cache(
    lab: Lab, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs of a grid over an engine that finds more of each prompt in its cache the longer it is up."""
    generate, answered = ScriptedBackend.generate, 0

    async def caching(self: ScriptedBackend, request: Request) -> Reply:
        nonlocal answered
        answered += 1
        reply = await generate(self, request)
        tokens = TokenCount(prompt=reply.tokens.prompt, cached=answered, completion=reply.tokens.completion)
        return Reply(text=reply.text, finish_reason=reply.finish_reason, tokens=tokens)

    monkeypatch.setattr(ScriptedBackend, "generate", caching)
    for out in ("first", "second"):
        at_once(experiment(conversations=1, _grid={"sweep": {"seed": [1, 2]}}), "--out", out, "--quiet").done()
    first, second = lab.dir("first"), lab.dir("second")

    assert (first.path / "grid.csv").read_bytes() == (second.path / "grid.csv").read_bytes()
    assert _tokens(first) == _tokens(second)
    assert second.summary["tokens"]["timing"]["cached"] > first.summary["tokens"]["timing"]["cached"] > 0
    for slug in ("seed-1", "seed-2"):
        one, other = lab.dir(f"first/{slug}"), lab.dir(f"second/{slug}")
        assert one.transcripts == other.transcripts
        assert _tokens(one) == _tokens(other)
        assert [without_timing(row["counts"]) for row in one.index] == [
            without_timing(row["counts"]) for row in other.index
        ]


def _tokens(run: RunDir) -> object:
    return without_timing(run.summary["tokens"])


def test_simulated_times_of_information_lag_are_in_the_record(lab: Lab, at_once: AtOnce) -> None:
    at_once(mixed("information_lag", conversations=1)).done()
    acts = lab.run_dir().transcript()["record"]["acts"]
    spans = [act["simulated"] for act in acts if act["phase"] == "discussion"]

    assert len(spans) > 14
    assert all(0 <= span["started_ms"] < span["ended_ms"] for span in spans)


def test_replay_and_show_take_the_course_the_run_took_by_the_clock(lab: Lab, at_once: AtOnce) -> None:
    """Of a game between engines of different latency."""
    models: JsonObject = {
        "quick": {**scripted(), "latency": {"prefill_ms": 0, "kernel_ms": 0}},
        "slow": {**scripted(), "latency": {"prefill_ms": 5, "kernel_ms": 0}},
    }
    game: JsonObject = {"lobby": "classic-7", "calendar": {"max_days": 3}}
    at_once(experiment(conversations=1, models=models, game=game)).done()
    run = read_run(lab.run_dir().path)
    transcript, answers = run.transcript("small-000000"), list(run.answers("small-000000"))
    slow_ms = [answer["latency_ms"] for answer in answers if answer["model"] == "slow"]
    assert all(isinstance(latency_ms, float) and latency_ms >= 4.9 for latency_ms in slow_ms)

    ordered = in_wall_clock_order(transcript, answers)

    assert keys(ordered) == [answer["turn"] for answer in answers]
    # Where all are asked at once, the slow ones answer last.
    assert keys(ordered) != keys(transcript)
    environment = build_environment(load_experiment(lab.path / "small.yaml").experiment)
    assert rebuilt_transcript(ordered, environment)["final_state_sha256"] == transcript["final_state_sha256"]
    shown = at_once("show runs/small 0 --turns").stdout.splitlines()
    assert [line.split("  ")[0] for line in shown] == [answer["time"] for answer in answers]
    assert len(shown) == len(keys(transcript))
    assert " ms  " in shown[0]


def test_turn_whose_event_was_lost_stays_behind_the_one_before_it() -> None:
    transcript: JsonObject = {"turns": [{"turn": key} for key in "abcde"]}
    answers: list[JsonObject] = [{"turn": key} for key in "cbe"]

    assert keys(in_wall_clock_order(transcript, answers)) == ["a", "c", "d", "b", "e"]


def keys(transcript: JsonObject) -> list[str]:
    return [str(turn["turn"]) for turn in transcript["turns"]]  # type: ignore[union-attr, index, call-overload]
