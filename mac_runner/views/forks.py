"""The forks of a run as trees: where they leave their parents, and how each arm ended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import fsum

from mac_runner.intervals import interval_of
from mac_runner.results import section
from mac_runner.rewards import preferred, rewards_of
from mac_runner.store.records import entry
from mac_runner.types import JsonObject
from mac_runner.view_model import ForkArm, ForkTree


def fork_trees(rows: Iterable[JsonObject], number: int | None = None) -> tuple[ForkTree, ...]:
    """A tree for each parent of the ended forks among index rows; with `number` only that of one conversation.

    The number is that of a fork; its parent is in another run. A failed fork is among the draws of its arm, and not in
    its figure. Raises RunDirectoryError for a damaged outcome.
    """
    parents: defaultdict[str, defaultdict[tuple[str, str], list[JsonObject]]] = defaultdict(lambda: defaultdict(list))
    wanted = set()
    for row in rows:
        if "fork_of" in row:
            parents[str(row["fork_of"])][str(row["turn"]), str(row["arm"])].append(row)
            if row["index"] == number:
                wanted.add(str(row["fork_of"]))
    return tuple(
        ForkTree(parent, tuple(_arms(arms)))
        for parent, arms in sorted(parents.items())
        if number is None or parent in wanted
    )


def _arms(arms: Mapping[tuple[str, str], Sequence[JsonObject]]) -> Iterator[ForkArm]:
    ordered = sorted(arms.items(), key=lambda arm: (_round(arm[0][0]), arm[0]))
    for (turn, arm), rows in ordered:
        agent = turn.partition("/")[2].rsplit("/", 2)[0]
        numbers = tuple(entry(row, "index", int) for row in rows)
        rewards = [_rewards(row, agent) for row in rows if isinstance(row.get("outcome"), dict)]
        name = preferred({name: None for each in rewards for name in each})
        figures = [each[name] for each in rewards if name in each] if name is not None else []
        if name is None or not figures:
            yield ForkArm(turn, arm, numbers)
            continue
        ends = interval_of(figures)
        yield ForkArm(
            turn=turn,
            arm=arm,
            draws=numbers,
            figure=f"{name} of {agent}",
            value=fsum(figures) / len(figures),
            lo=None if ends is None else ends.lo,
            hi=None if ends is None else ends.hi,
        )


def _rewards(row: JsonObject, agent: str) -> dict[str, float]:
    # The row names the agents where its outcome has no results of its own that know them.
    agents = section(row, "agents").keys() or {agent}
    return rewards_of(None, entry(row, "outcome", dict), agent, agents)


def _round(turn: str) -> int:
    return int(turn.partition("/")[0])
