"""The same seed makes the same transcripts, whatever runs beside what, and whatever came in between."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from mac_runner.backends.testing import ScriptedBackend
from mac_runner.store import without_timing
from mac_runner.types import JsonObject, Reply, Request, TokenCount
from tests.cli.lab import AtOnce, Lab, RunDir, experiment, scripted
from tests.patience import ended

pytestmark = pytest.mark.ci

QUICK, SLOW = "model_definitions.quick.scripted_config", "model_definitions.slow.scripted_config"


def mixed() -> JsonObject:
    """Ten seats shared by two models that play differently; one of them can be made to answer later."""
    models = {"quick": scripted(capacity=256), "slow": scripted("random", capacity=256)}
    return experiment(lobby="classic-10", models=models)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The transcripts as one request after the other makes them."""
    lab = Lab(path=tmp_path_factory.mktemp("reference"))
    lab.done(lab.write(mixed()), "--concurrency", "1", env={"PYTHONHASHSEED": "0"})
    lab.verified(lab.run_dir().path)
    return lab.run_dir().transcripts


@pytest.mark.parametrize(("concurrency", "slow_ms", "quick_ms", "hash_seed"), [(8, 3, 0, 1), (256, 0, 3, 2)])
def test_transcripts_do_not_depend_on_concurrency_or_latency(
    lab: Lab, reference: dict[str, bytes], concurrency: int, slow_ms: int, quick_ms: int, hash_seed: int
) -> None:
    latencies = ("--set", f"{SLOW}.latency_ms={slow_ms}", "--set", f"{QUICK}.latency_ms={quick_ms}")

    lab.done(
        lab.write(mixed()),
        "--concurrency",
        str(concurrency),
        *latencies,
        env={"PYTHONHASHSEED": str(hash_seed)},
    )

    assert lab.run_dir().transcripts == reference


def test_transcripts_do_not_depend_on_a_stop_and_resume_in_between(lab: Lab, reference: dict[str, bytes]) -> None:
    file, run = lab.write(mixed()), lab.run_dir()
    for replies in (40, 80):
        process = lab.start_held(replies, file, "--set", f"{SLOW}.latency_ms=4")
        process.send_signal(signal.SIGTERM)
        assert ended(process)[0] == 3

    lab.play(file, "--concurrency", "8")

    assert run.transcripts == reference
    assert len(run.events("EVENT_RUN_START")) == 3
    assert _paid(run.path) == {1}
    lab.verified(run.path)


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
    file = lab.write({**experiment(conversations=1), "_grid": {"sweep": {"seed": [1, 2]}}})
    first, second = lab.path / "first", lab.path / "second"
    for out in (first, second):
        assert at_once(file, "--out", str(out), "--quiet").returncode == 0

    assert (first / "grid.csv").read_bytes() == (second / "grid.csv").read_bytes()
    assert _tokens(first) == _tokens(second)
    assert _cached(second) > _cached(first) > 0
    for one, other in zip(sorted(first.glob("seed-*")), sorted(second.glob("seed-*")), strict=True):
        assert RunDir(path=one).transcripts == RunDir(path=other).transcripts
        assert _counts(one) == _counts(other)
        assert _tokens(one) == _tokens(other)


def _tokens(path: Path) -> object:
    return without_timing(RunDir(path=path).summary["tokens"])


def _cached(path: Path) -> int:
    found: int = RunDir(path=path).summary["tokens"]["timing"]["cached"]  # type: ignore[index,call-overload,assignment]
    return found


def _counts(path: Path) -> list[object]:
    return [without_timing(row["counts"]) for row in RunDir(path=path).index]


def _paid(path: Path) -> set[int]:
    """How often the replies of a run were generated."""
    done = [(event["task"], event["turn"]) for event in RunDir(path=path).events("EVENT_INFER_DONE")]
    return {done.count(turn) for turn in set(done)}
