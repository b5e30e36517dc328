"""Errors, health and metrics: what those are told who watch over a server."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mac_runner.nano import EngineState, EngineStats, errors
from mac_runner.nano.testing import QUOTED_CHARS_MAX, STALL_S_MAX, Health, Metrics, ProgressWatch, Tally, refusal_of

RUNNING = EngineState.RUNNING


def stats(*, steps: int = 0, running: int = 0, waiting: int = 0) -> EngineStats:
    return EngineStats(
        num_waiting=waiting,
        num_running=running,
        num_blocks=10,
        num_free_blocks=5,
        num_cached_blocks=3,
        num_steps=steps,
        num_prompt_tokens=12_345_678,
        num_cached_prompt_tokens=0,
        num_completion_tokens=0,
        num_preemptions=0,
        weight_version=2,
    )


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (errors.InvalidRequestError, 400, None),
        (errors.ConstraintError, 400, None),
        (errors.PromptTooLongError, 400, "context_length_exceeded"),
        (errors.QueueFullError, 429, "rate_limit_exceeded"),
        (errors.NonFiniteLogitsError, 500, "non_finite_logits"),
        (errors.EngineStoppedError, 503, "engine_stopped"),
        (errors.NonFiniteWeightError, 400, "weights_mismatch"),
        (errors.MissingTensorError, 400, "weights_mismatch"),
        (errors.ModelNotFoundError, 400, None),
        (errors.ConfigError, 400, None),
    ],
)
def test_each_error_has_its_status(error: type[errors.NanoError], status: int, code: str | None) -> None:
    refusal = refusal_of(error("what happened"))

    assert (refusal.status, refusal.code) == (status, code)
    assert "what happened" in refusal.message
    assert (refusal.retry_after_s is not None) == (status == 429)


def test_error_that_quotes_much_is_cut() -> None:
    message = refusal_of(errors.InvalidRequestError("x" * 10_000)).message

    assert (len(message), message[-1]) == (QUOTED_CHARS_MAX, "…")


LONG_S = 10 * STALL_S_MAX
WATCHED: dict[str, list[tuple[EngineStats, EngineState, float, bool]]] = {
    "has nothing to do, however long": [
        (stats(), RUNNING, 0.0, True),
        (stats(), RUNNING, LONG_S, True),
        (stats(waiting=1), RUNNING, 2 * LONG_S, True),
    ],
    "takes steps, however long": [(stats(steps=n, running=1), RUNNING, n * LONG_S, True) for n in range(3)],
    "answers and takes no step": [
        (stats(steps=3, waiting=1), RUNNING, 100.0, True),
        (stats(steps=3, waiting=1), RUNNING, 100.0 + STALL_S_MAX, True),
        (stats(steps=3, waiting=1), RUNNING, 101.0 + STALL_S_MAX, False),
        (stats(steps=4, waiting=1), RUNNING, 102.0 + STALL_S_MAX, True),
    ],
    "is paused, and begins anew when it goes on": [
        (stats(steps=3, running=1), RUNNING, 0.0, True),
        (stats(steps=3, running=1), EngineState.PAUSED, 1.0, False),
        (stats(steps=3, running=1), RUNNING, LONG_S, True),
    ],
}
"""What an engine says of itself, when, and whether it is well."""


def test_engine_that_has_work_and_takes_no_step_is_not_well_nor_one_that_is_paused() -> None:
    for what, looks in WATCHED.items():
        watch = ProgressWatch()
        found = [watch.look(seen, state, now_s) for seen, state, now_s, _ in looks]
        assert [each.is_well for each in found] == [is_well for *_, is_well in looks], what
    assert ProgressWatch().look(stats(), EngineState.PAUSED, 0.0) == Health(False, "paused")


def read(metrics: Metrics) -> dict[str, float]:
    """Every sample of the page, with its labels, as Prometheus reads it."""
    return {
        sample.name + "".join(f" {name}={value}" for name, value in sample.labels.items()): sample.value
        for family in text_string_to_metric_families(metrics.page().decode())
        for sample in family.samples
    }


def test_metrics_are_exact() -> None:
    tally = Tally()
    tally.answers["/v1/models", 200] += 2

    found = read(Metrics(tally, stats(running=1)))

    assert found == {
        "nano_engine_up": 1,
        "nano_http_requests_in_flight": 0,
        "nano_http_requests_total path=/v1/models status=200": 2,
        "nano_requests_running": 1,
        "nano_requests_waiting": 0,
        "nano_kv_blocks state=free": 5,
        "nano_kv_blocks state=cached": 3,
        "nano_kv_blocks state=held": 2,
        "nano_replicas": 1,
        "nano_weight_version": 2,
        "nano_steps_total": 0,
        "nano_prompt_tokens_total": 12_345_678,
        "nano_prompt_tokens_cached_total": 0,
        "nano_completion_tokens_total": 0,
        "nano_preemptions_total": 0,
    }


def test_metrics_have_a_type_and_a_help_each() -> None:
    page = Metrics(Tally(), stats()).page().decode()

    assert page.count("# TYPE ") == page.count("# HELP ") == 13
    assert "# TYPE nano_steps_total counter\n" in page
    assert "# TYPE nano_kv_blocks gauge\n" in page


def test_metrics_without_an_engine_say_that_it_is_down() -> None:
    assert read(Metrics(Tally())) == {"nano_engine_up": 0, "nano_http_requests_in_flight": 0}
