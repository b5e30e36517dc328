"""Plain views of a run, until `views/` has them."""

from __future__ import annotations

from collections.abc import Iterable

from mac_runner.types import JsonObject
from mac_runner.view_model import (
    ColumnView,
    ConversationView,
    EventView,
    IndexColumns,
    Member,
    NumberColumn,
    Phase,
    RunPage,
    WordColumn,
)


def run_page(directory: str, name: str, environment: str, state: str, counts: tuple[int, int, int]) -> RunPage:
    """The head of a run."""
    return RunPage(
        name=name,
        directory=directory,
        environment=environment,
        description="",
        state=state,
        planned=counts[0],
        done=counts[1],
        failed=counts[2],
        is_live=state == "running",
        columns=(
            ColumnView("n", "number"),
            ColumnView("task_id", "word"),
            ColumnView("status", "word"),
            ColumnView("turns", "number"),
        ),
        engines=(),
    )


def index_columns(rows: Iterable[JsonObject], since: int) -> IndexColumns:
    """The columns of rows."""
    found = list(rows)
    words = {name: _words([str(row[name]) for row in found]) for name in ("task_id", "status")}
    counts = [row["counts"] for row in found]
    numbers = {
        "n": NumberColumn(tuple(_number(row["index"]) for row in found)),
        "turns": NumberColumn(tuple(_number(one.get("turns")) if isinstance(one, dict) else None for one in counts)),
    }
    return IndexColumns(since=since, rows=len(found), words=words, lists={}, numbers=numbers)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _words(texts: list[str]) -> WordColumn:
    places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    return WordColumn(tuple(places), tuple(places[text] for text in texts))


def conversation_view(transcript: JsonObject, command: str) -> ConversationView:
    """The events of a transcript."""
    task, record = transcript["task"], transcript["record"]
    assert isinstance(task, dict)
    assert isinstance(record, dict)
    agents, events = task["agents"], record.get("events", [])
    assert isinstance(agents, list)
    assert isinstance(events, list)
    named = [agent for agent in agents if isinstance(agent, dict)]
    said = tuple(
        EventView(place=place, when=str(event.get("when", "")), text=str(event["text"]), audience=_audience(event))
        for place, event in enumerate(events)
        if isinstance(event, dict)
    )
    index = task["index"]
    assert isinstance(index, int)
    return ConversationView(
        task_id=str(task["task_id"]),
        index=index,
        environment=str(transcript["environment"]),
        status="failed" if transcript["failure"] is not None else "finished",
        seats=tuple(str(agent["agent_id"]) for agent in named),
        members=tuple(
            Member(
                name=str(agent["agent_id"]),
                seat=place,
                definition=str(agent.get("definition", "")),
                model=str(agent.get("model", "")),
            )
            for place, agent in enumerate(named)
        ),
        phases=(Phase(label="all", kind="other", first=0),),
        events=said,
        turns=(),
        failure=str(transcript["failure"] or ""),
        command=command,
    )


def _audience(event: JsonObject) -> tuple[str, ...] | None:
    audience = event.get("audience")
    return tuple(str(name) for name in audience) if isinstance(audience, list) else None
