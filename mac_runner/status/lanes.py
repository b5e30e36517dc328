"""The lanes of a fleet as the live view and the plain lines show them. Pure.

::

    lanes 7/8 up, 2 deaths, 1 restart
    townsfolk@3  resting  gpu 3  0/64  2 deaths, 1 restart · it was killed by signal 9
    townsfolk@0  up       gpu 0  61/64  4.31k tokens/s, 91% cached

Lanes that take no requests come first: of a large fleet, the picture has room for those.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.table import Table
from rich.text import Text

from mac_runner.fleet.model import LaneState, LaneStatus
from mac_runner.printable import counted, printable
from mac_runner.status.quantities import quantity, share

LANES_NAMED_MAX: Final = 3
"""Lanes that a plain line names."""
_WRONG: Final = "bold red"
_IN_ORDER: Final = (LaneState.UP, LaneState.ASLEEP)
"""States in which a lane does what it should."""


def lane_table(lanes: Sequence[LaneStatus], rows_max: int) -> Table:
    """A row for each of the first `rows_max` lanes."""
    grid = Table.grid(padding=(0, 1))
    for _ in ("name", "state", "place"):
        grid.add_column(no_wrap=True, overflow="ellipsis", max_width=24)
    grid.add_column(no_wrap=True, justify="right")
    grid.add_column(no_wrap=True, overflow="ellipsis")
    for lane in sorted(lanes, key=lambda lane: lane.state in _IN_ORDER)[: max(0, rows_max)]:
        style = "" if lane.state in _IN_ORDER else _WRONG
        cells = (printable(lane.name), lane.state.value, printable(lane.place), f"{lane.in_flight}/{lane.slots}")
        grid.add_row(*(Text(cell, style=style) for cell in cells), Text(_account(lane)))
    return grid


def lanes_summary(lanes: Sequence[LaneStatus]) -> str:
    """`lanes 7/8 up, 1 asleep, 2 deaths, 1 restart`."""
    up, asleep = (sum(lane.state is state for lane in lanes) for state in _IN_ORDER)
    deaths, restarts = sum(lane.deaths for lane in lanes), sum(lane.restarts for lane in lanes)
    parts = [f"lanes {up}/{len(lanes)} up"]
    parts += [f"{asleep} asleep"] if asleep else []
    return ", ".join([*parts, *_lives(deaths, restarts)])


def lanes_line(lanes: Sequence[LaneStatus]) -> str:
    """How many lanes are up, and which are not; empty where all do what they should."""
    wrong = [lane for lane in lanes if lane.state not in _IN_ORDER]
    if not wrong:
        return ""
    named = [f"{printable(lane.name)} {lane.state.value}" for lane in wrong[:LANES_NAMED_MAX]]
    more = [f"{len(wrong) - LANES_NAMED_MAX} more"] if len(wrong) > LANES_NAMED_MAX else []
    return f"{lanes_summary(lanes)} ({', '.join([*named, *more])})"


def _account(lane: LaneStatus) -> str:
    parts = [] if lane.tokens_per_s is None else [f"{quantity(lane.tokens_per_s)} tokens/s"]
    parts += [] if lane.prefix_hits is None else [f"{share(lane.prefix_hits)} cached"]
    text = ", ".join([*parts, *_lives(lane.deaths, lane.restarts)])
    is_fault_shown = lane.fault and lane.state not in _IN_ORDER
    return " · ".join(filter(None, [text, printable(lane.fault) if is_fault_shown else ""]))


def _lives(deaths: int, restarts: int) -> list[str]:
    found = [(deaths, "deaths"), (restarts, "restarts")]
    return [counted(count, nouns) for count, nouns in found if count]
