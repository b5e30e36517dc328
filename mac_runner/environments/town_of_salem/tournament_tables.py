"""The comparisons of a grid of games for readers: standings, paired differences, ratings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from mac_runner.compared import CLUSTERS_MIN, how_paired
from mac_runner.printable import counted
from mac_runner.results import (
    DEFAULTS_HEAD,
    DEFAULTS_NOTE,
    RATE_HEADS,
    UNKNOWN,
    Table,
    count_text,
    integer,
    interval_text,
    number,
    objects,
    percent_text,
    rate_texts,
    section,
    with_defaults_column,
)
from mac_runner.types import JsonObject, JsonValue

ROWS_SHOWN_MAX: Final = 100
"""How many differences are printed; `comparisons.json` holds all of them."""
_FILE: Final = "comparisons.json"


def comparison_tables(compared: JsonObject) -> Iterator[Table | str]:
    """Tables and notes of `comparisons.json`."""
    if standings := objects(compared.get("standings")):
        yield (table := _standings(standings))
        yield "\n".join(_standing_notes(compared, has_defaults=DEFAULTS_HEAD in table.numbers))
    if differences := objects(compared.get("differences")):
        yield _differences(differences[:ROWS_SHOWN_MAX])
        yield "\n".join(_difference_notes(differences, compared.get("not_compared")))
    for ratings in objects(compared.get("ratings")):
        yield from _ratings(ratings)


def _standings(rows: list[JsonObject]) -> Table:
    lines = [
        (
            *_texts(row, "player", "side", "settings"),
            *(count_text(row.get(key)) for key in ("games", "deals", "wins")),
            *rate_texts(row),
        )
        for row in rows
    ]
    words, numbers = ("player", "side", "settings"), ("n", "deals", "wins", *RATE_HEADS)
    return _defaulted(_without_empty(Table("wins by player and side (n games)", words, numbers, lines)), rows)


def _defaulted(table: Table, rows: list[JsonObject]) -> Table:
    found = [row.get("defaults") for row in rows]
    shares = [[number(share) for share in (each if isinstance(each, list) else [each])] for each in found]
    return with_defaults_column(table, shares, len(table.numbers))


def _standing_notes(compared: JsonObject, *, has_defaults: bool) -> Iterator[str]:
    yield "Games of one deal share its luck, so intervals are by deal."
    if has_defaults:
        yield DEFAULTS_NOTE
    if isinstance(neutral := compared.get("neutral"), str):
        yield f"{neutral[:1].upper()}{neutral[1:]}."


def _differences(rows: list[JsonObject]) -> Table:
    has_gaps = any(row.get("left_out") for row in rows)
    lines = [
        (
            *_texts(row, "side", "first", "second", "given"),
            *(count_text(row.get(key)) for key in ("deals", *(("left_out",) if has_gaps else ()))),
            _pair(row.get("rates"), lambda rate: percent_text(rate).rstrip("%")),
            f"{_points(row.get('difference'))} ({_span(row.get('interval'), _points)})",
            _pair(row.get("ahead"), count_text),
            _p_text(row.get("p")),
        )
        for row in rows
    ]
    words = ("side", "first", "second", "given")
    numbers = ("n", *(("left out",) if has_gaps else ()), "won %", "difference", "ahead", "p")
    table = _without_empty(Table("paired differences (n deals, each played by both)", words, numbers, lines))
    return _defaulted(table, rows)


def _difference_notes(rows: list[JsonObject], not_compared: JsonValue) -> Iterator[str]:
    yield (
        "Won: by first : second; draws and capped games count as not won. Difference: in points, with its 95% "
        "interval. Ahead: deals that only first : second won, or won more of."
    )
    how = how_paired("deal", {row.get("test") for row in rows})
    yield f"Interval and p of a row are of one test: {how}."
    yield f"p is of one comparison alone; here are {len(rows)}."
    fewest = min(integer(row.get("deals")) or 0 for row in rows)
    if fewest < CLUSTERS_MIN:
        yield f"Some rows have {counted(fewest, 'deals')} only: with fewer than {CLUSTERS_MIN}, p may be too small."
    if any(row.get("left_out") for row in rows):
        yield "Left out: deals that did not finish in both, because a game failed or was not played."
    else:
        yield "No deal is left out."
    if len(rows) > ROWS_SHOWN_MAX:
        yield f"{len(rows) - ROWS_SHOWN_MAX} more differences: {_FILE} has all of them."
    if isinstance(not_compared, int):
        yield f"{not_compared} more pairs of combinations are not compared."


def _ratings(ratings: JsonObject) -> Iterator[Table | str]:
    settings = f"; {ratings['settings']}" if ratings.get("settings") else ""
    players = objects(ratings.get("players"))
    if not players:
        yield f"No ratings{settings}: the pairings that were played do not tie all players together."
        return
    lines = [
        (
            *_texts(row, "player", "side"),
            _log_odds(row.get("rating")),
            _span(row.get("interval"), _log_odds),
            percent_text(row.get("rate")),
            interval_text(row.get("rate_interval")),
        )
        for row in players
    ]
    games, deals = count_text(ratings.get("games")), count_text(ratings.get("deals"))
    title = f"Bradley–Terry ratings (n {games} games of {deals} deals{settings})"
    numbers = ("rating", "95% interval", "wins against average", "95% interval")
    yield _defaulted(Table(title, ("player", "side"), numbers, lines), players)
    advantage = section(ratings, "advantage")
    found = f"{_log_odds(advantage.get('rating'))} ({_span(advantage.get('interval'), _log_odds)})"
    undecided, left_out = count_text(ratings.get("undecided")), count_text(ratings.get("left_out"))
    yield (
        f"In log odds, 0 the average of a side; between average players the advantage of {advantage.get('side')} "
        f"is {found}.\nIntervals: bootstrap over deals. Not counted: {undecided} games that neither side won, "
        f"{left_out} that did not finish."
    )


def tournament_words(compared: JsonObject) -> str:
    """The ratings of each side in a sentence, the strongest player first; of two players by how much one is ahead."""
    both = [row for row in objects(compared.get("differences")) if row.get("side") == "both"]
    if len(both) == 1:
        (row,) = both
        points, n = _points(row.get("difference")), count_text(row.get("deals"))
        return (
            f"{row.get('first')} against {row.get('second')}, on both sides: {points} points of wins "
            f"({_span(row.get('interval'), _points)}), p {_p_text(row.get('p'))}, n {n} deals"
        )
    rated = objects(compared.get("ratings"))
    return _rating_words(rated[0]) if rated else ""


def _rating_words(ratings: JsonObject) -> str:
    sides: dict[str, list[JsonObject]] = {}
    for row in objects(ratings.get("players")):
        sides.setdefault(str(row.get("side")), []).append(row)
    ranked = (
        f"{side.capitalize()}: "
        + ", ".join(
            f"{row.get('player')} {_log_odds(row.get('rating'))} ({_span(row.get('interval'), _log_odds)})"
            for row in sorted(rows, key=lambda row: -(number(row.get("rating")) or 0.0))
        )
        for side, rows in sides.items()
    )
    text = "; ".join(ranked)
    return f"Strength in log odds, 0 the average. {text}" if text else ""


def _texts(row: JsonObject, *keys: str) -> Iterable[str]:
    return [str(row.get(key) or "") for key in keys]


def _pair(value: JsonValue, text: Callable[[JsonValue], str]) -> str:
    return " : ".join(map(text, value)) if isinstance(value, list) else UNKNOWN


def _span(interval: JsonValue, text: Callable[[JsonValue], str]) -> str:
    """Both ends of an interval of signed numbers."""
    return " to ".join(map(text, interval)) if isinstance(interval, list) else UNKNOWN


def _points(value: JsonValue) -> str:
    """`+12.0` for a difference of 0.12."""
    found = number(value)
    return UNKNOWN if found is None else f"{100 * found:+.1f}"


def _log_odds(value: JsonValue) -> str:
    found = number(value)
    return UNKNOWN if found is None else f"{found:+.2f}"


def _p_text(value: JsonValue) -> str:
    found = number(value)
    if found is None:
        return UNKNOWN
    return "<0.0001" if found < 0.0001 else f"{found:.4f}"


def _without_empty(table: Table) -> Table:
    """The table without columns of words that say nothing."""
    kept = [place for place in range(len(table.words)) if any(row[place] for row in table.rows)]
    words, count = tuple(table.words[place] for place in kept), len(table.words)
    rows = [(*(row[place] for place in kept), *row[count:]) for row in table.rows]
    return Table(table.title, words, table.numbers, rows)
