"""How many games does it take to see a difference? For two players of a game, with deals played by both or not.

Run `python -m benchmarks.games_needed`. Prints the table of `docs/town_of_salem.md`, or the row of `--difference`.
Needs scipy (`pip install '.[stats]'`).

Two-sided at 5 %, with a power of 80 %. Unpaired: two independent shares around 50 %, where the variance is largest,
by the usual normal formula with the pooled share under the null. Paired: McNemar's exact test over deals that both
played. Its power depends on how many deals only one of the two won; it is computed exactly, by going over the numbers
of such deals.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from math import ceil, sqrt
from typing import Final

ALPHA: Final = 0.05
POWER: Final = 0.8
DIFFERENCES: Final = (0.05, 0.1, 0.15, 0.2, 0.3)
SHARES_OF_ONE: Final = (0.5, 0.4, 0.3)
"""How often only one of the two wins a deal. Two players who win half of their games by chance alone come to 0.5."""


def unpaired(difference: float, *, middle: float = 0.5) -> int:
    """The games that each of two players needs where no two games share a deal."""
    from scipy.stats import norm

    one, other = middle - difference / 2, middle + difference / 2
    spread = one * (1 - one) + other * (1 - other)
    root = float(norm.ppf(1 - ALPHA / 2)) * sqrt(2 * middle * (1 - middle)) + float(norm.ppf(POWER)) * sqrt(spread)
    return ceil((root / difference) ** 2)


def paired(difference: float, share_of_one: float) -> int:
    """The deals that two players need who both play each of them; only one of them wins `share_of_one`."""
    if share_of_one < difference:
        raise ValueError("a difference is at most the share of deals that only one of the two wins")
    low, high = 1, 2
    while power_of_pairs(high, difference, share_of_one) < POWER:
        low, high = high, 2 * high
    # The power goes up and down by a little from one number to the next, but not over this many.
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power_of_pairs(middle, difference, share_of_one) >= POWER else (middle, high)
    return high


def power_of_pairs(deals: int, difference: float, share_of_one: float) -> float:
    """How often McNemar's exact test sees the difference in this many deals."""
    from numpy import arange
    from scipy.stats import binom

    decided = arange(deals + 1)
    # The largest count of the loser with which the test still rejects, for each number of decided deals.
    most = binom.ppf(ALPHA / 2, decided, 0.5)
    most -= binom.cdf(most, decided, 0.5) > ALPHA / 2
    weaker = (share_of_one - difference) / 2 / share_of_one
    rejected = binom.cdf(most, decided, weaker) + binom.cdf(most, decided, 1 - weaker)
    return float((binom.pmf(decided, deals, share_of_one) * rejected).sum())


def rows(differences: Sequence[float] = DIFFERENCES) -> Iterator[str]:
    """The table, in Markdown: games of both players together."""
    heads = " | ".join(f"paired, {share:.0%} decided" for share in SHARES_OF_ONE)
    yield f"| difference | unpaired | {heads} |"
    yield "|-:" * (2 + len(SHARES_OF_ONE)) + "|"
    for difference in differences:
        pairs = [f"{2 * paired(difference, share):,}" if share > difference else "–" for share in SHARES_OF_ONE]
        yield f"| {100 * difference:.0f} points | {2 * unpaired(difference):,} | {' | '.join(pairs)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--difference", type=float, help="in percentage points")
    asked = parser.parse_args().difference
    if asked is not None and not 1 <= asked <= 90:
        parser.error(f"--difference is in percentage points, from 1 to 90; found {asked:g}")
    for line in rows(DIFFERENCES if asked is None else (asked / 100,)):
        print(line)


if __name__ == "__main__":
    main()
