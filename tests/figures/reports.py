"""Reports made up for tests of the page, and what a browser would find in one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any, Final

from mac_runner.figures.testing import (
    DataColumn,
    Figure,
    Line,
    Method,
    Report,
    RunData,
    Section,
    Value,
    forest,
)
from mac_runner.types import JsonObject

HOSTILE: Final = (
    '</script><script>alert(1)</script><img src=x onerror="alert(2)">'
    "<style>*{background:url(http://evil.example/)}</style><a href='javascript:alert(3)'>\u202egnp\u0000\ud800 "
    "{{ 7*7 }} {% raw %} ]]> <!-- & \" '"
)


def figure(name: str = "wins", word: str = "town", count: int = 3) -> Figure:
    """A forest of so many rows."""
    rows: tuple[dict[str, Value], ...] = tuple(
        {"who": f"{word} {place}", "n": 10 + place, "value": 0.5, "lo": 0.25, "hi": 0.75} for place in range(count)
    )
    return Figure(
        id=name,
        title=f"How often does {word} win?",
        caption=f"Of {word}.",
        n=10,
        unit="games",
        columns=(
            DataColumn(name="who", title=word),
            DataColumn(name="n", title="n", kind="count"),
            DataColumn(name="value", title="won", kind="rate"),
        ),
        rows=rows,
        spec=forest(rows, label="who", unit="rate", title=word, units="games", clusters="n"),
        methods=(Method(statement=f"Counted {word}", unit="game", n=10),),
        notes=(f"Note of {word}.",),
    )


def report(*figures: Figure, word: str = "town") -> Report:
    """A report of one chapter."""
    return Report(
        title=word,
        description=word,
        state="Complete: 3 of 3 conversations have ended.",
        facts=(Line(word, word),),
        sections=(Section(id="wins-of", title=word, figures=figures, notes=(word,)),),
        experiments=(Line(word, f"seed: 1\nname: {word}\n"),),
        versions=(Line("mac_runner", "1"),),
        commands=(Line("List them", f"mac-run show {word}"),),
    )


def hostile_report() -> Report:
    """All texts are hostile."""
    return report(replace(figure(word=HOSTILE), id="hostile"), word=HOSTILE)


def run(
    name: str,
    rows: list[JsonObject],
    summary: JsonObject | None = None,
    *,
    seed: int = 1,
    environment: str = "./x.py:x",
    claims: Sequence[Any] = (),
) -> RunData:
    """A run with these rows, of which this is the summary, and with these claims in its tables."""
    return RunData(
        name=name,
        environment=environment,
        experiment={"seed": seed},
        summary={"conversations": {"planned": len(rows)}} if summary is None else summary,
        read_rows=lambda: iter(rows),
        read_table=lambda _name, _wanted: iter(claims),
    )


class Found(HTMLParser):
    """What a page holds."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        self.ids += [value or "" for name, value in attrs if name == "id"]

    def handle_data(self, data: str) -> None:
        self.text += data
