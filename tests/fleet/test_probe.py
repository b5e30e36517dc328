"""What the fleet reads off the pages of engines."""

from __future__ import annotations

import pytest

from mac_runner.fleet.testing import SAMPLES_MAX, CommonPrefix, Figures, Rate, Tokens, figures_of

VLLM = """# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 1024.0
vllm:generation_tokens_total{engine="0",model_name="m"} 1.5e+03
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1000.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 750.0
"""
NANO = """nano_prompt_tokens_total 200.0
nano_prompt_tokens_cached_total 50.0
nano_completion_tokens_total 12.0
"""


@pytest.mark.parametrize(
    ("page", "made", "hits"),
    [(VLLM, 1500.0, 0.75), (NANO, 12.0, 0.25), ("nano_completion_tokens_total 0.0\n", 0.0, None)],
)
def test_counters_of_an_engine_are_read(page: str, made: float, hits: float | None) -> None:
    tokens = figures_of(page).tokens

    assert tokens is not None
    assert (tokens.made, tokens.prefix_hits) == (made, hits)


def test_requests_in_flight_are_those_that_run_and_those_that_wait() -> None:
    page = "nano_requests_running 3.0\nnano_requests_waiting 4.0\n"

    assert figures_of(page) == Figures(None, 7)


@pytest.mark.parametrize("page", ["", "<html>not found</html>", "http_requests_total 7.0\n"])
def test_page_without_known_counters_has_none(page: str) -> None:
    assert figures_of(page) == Figures(None, None)


def test_rate_is_between_two_looks_and_starts_again_with_the_engine() -> None:
    rate = Rate()
    rates = []
    for made, at_s in ((100.0, 10.0), (160.0, 12.0), (5.0, 14.0), (25.0, 16.0)):
        rate.look(Tokens(made=made), at_s)
        rates.append(rate.per_s)

    assert rates == [None, 30.0, None, 10.0]


def test_common_prefix_is_what_all_first_system_messages_begin_with() -> None:
    prefix = CommonPrefix()
    for name in ("Ann", "Anton", "Bea"):
        prefix.see(f"The rules: be {name}.")
    assert prefix.text == "The rules: be "

    for _ in range(SAMPLES_MAX):
        prefix.see("The rules: be Cy.")
    prefix.see("Another game.")
    assert prefix.text == "The rules: be "
