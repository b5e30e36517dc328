"""Designing an experiment, as the documentation has it: its examples can be run, its numbers of games are right."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.games_needed import ALPHA, POWER, paired, power_of_pairs, rows, unpaired
from mac_runner.runs import RunRequest, set_up
from tests.pages import DOCS, blocks

PAGE = DOCS / "town_of_salem.md"


def test_examples_of_the_page_can_be_run_and_play_every_deal_on_both_sides(tmp_path: Path) -> None:
    examples = [block.text for block in blocks(PAGE, "Designing an experiment") if block.kind == "yaml"]
    file = tmp_path / "example.yaml"
    for example in examples:
        file.write_text(example, encoding="utf-8")
        deals = [[task.seed for task in setup.tasks()] for setup in set_up(RunRequest(file=file)).setups]
        assert len(deals) == 2
        assert deals[0] == deals[1]
    assert len(examples) == 3


def test_table_of_the_page_is_what_the_program_prints() -> None:
    pytest.importorskip("scipy")
    assert "\n".join(rows()) in PAGE.read_text(encoding="utf-8")


@pytest.mark.ci
def test_power_of_pairs_is_that_of_the_exact_test_case_by_case() -> None:
    pytest.importorskip("scipy")
    from scipy.stats import binom, binomtest

    for deals, difference, share in ((30, 0.3, 0.5), (40, 0.2, 0.4), (25, 0.2, 0.2)):
        weaker = (share - difference) / 2 / share
        expected = sum(
            binom.pmf(decided, deals, share) * binom.pmf(won, decided, weaker)
            for decided in range(deals + 1)
            for won in range(decided + 1)
            if decided and binomtest(won, decided).pvalue <= ALPHA
        )
        assert power_of_pairs(deals, difference, share) == pytest.approx(expected, abs=1e-6)


def test_numbers_are_the_least_that_are_enough_and_near_the_published_formulas() -> None:
    """Unpaired: 388 per group for 60 % against 50 % and 93 for 70 % against 50 %, as in Fleiss without correction."""
    pytest.importorskip("scipy")
    assert (unpaired(0.1, middle=0.55), unpaired(0.2, middle=0.6)) == (388, 93)
    for difference, share in ((0.2, 0.5), (0.1, 0.3)):
        deals = paired(difference, share)
        assert power_of_pairs(deals, difference, share) >= POWER > power_of_pairs(deals - 1, difference, share)
        # Miettinen's formula is for the test that is not exact, which needs a little less.
        root = 1.959964 * share**0.5 + 0.841621 * (share - difference**2) ** 0.5
        assert 1 < deals / (root / difference) ** 2 < 1.1
    with pytest.raises(ValueError, match="share of deals"):
        paired(0.3, 0.2)
