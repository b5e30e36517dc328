"""What one seat saw of a conversation: the one place that decides it, for `show --seat` and for every page.

A seat has the events whose audience it is in, and of everything else what those events showed. What has no event is
known to the truth alone: it is left out. So are verdicts, and colours where they may say more than their text.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from itertools import compress, pairwise

from mac_runner.reports.turns import check_name
from mac_runner.types import ReceiptKind
from mac_runner.view_model import (
    Cell,
    ConversationView,
    EventView,
    Fact,
    Mark,
    Member,
    Phase,
    TableRow,
    TurnHead,
    ViewTable,
)

_BLANK = Cell("")


def perspective(view: ConversationView, seat: str) -> ConversationView:
    """What `seat` saw of a whole conversation.

    Everything is made from its parts: what a view gets in future stays unseen until it is named here. Raises
    ConfigError when no agent has that name.
    """
    check_name(view.seats, seat)
    own = frozenset(turn.key for turn in view.turns if turn.agent == seat)
    events = tuple(found for event in view.events if (found := seen(event, seat, own)) is not None)
    known = frozenset(event.place for event in events)
    return ConversationView(
        task_id=view.task_id,
        index=view.index,
        environment=view.environment,
        status=view.status,
        seats=view.seats,
        members=tuple(
            Member(name=member.name, seat=member.seat, facts=_known(member.facts, known)) for member in view.members
        ),
        phases=tuple(_phases(view.phases, known, len(view.events))),
        events=events,
        turns=tuple(_turn(turn, known) for turn in view.turns if turn.key in own),
        facts=_known(view.facts, known),
        tables=tuple(table for table in (_table(table, known) for table in view.tables) if table.rows),
        seat=seat,
        command=view.command,
    )


def seen(event: EventView, seat: str, own: Collection[str] = ()) -> EventView | None:
    """An event as a seat saw it; None where it did not learn of it. `own` are the keys of its turns."""
    if event.audience is not None and seat not in event.audience:
        return None
    is_own = event.turn in own
    return EventView(
        place=event.place,
        when=event.when,
        text=event.text,
        # Its text is all that a seat has of it: who acted is known where the text begins with the name.
        agent=event.agent if event.agent == seat or is_named(event.agent, event.text) else "",
        reach="" if event.audience is None else "you" if event.audience == (seat,) else "others",
        turn=event.turn if is_own else "",
        thought=event.thought if is_own else "",
    )


def is_named(agent: str, text: str) -> bool:
    """Whether a text begins with the name of an agent."""
    return agent != "" and text.startswith(agent) and not text[len(agent) :][:1].isalnum()


def _known(facts: Sequence[Fact], known: Collection[int]) -> tuple[Fact, ...]:
    return tuple(fact for fact in facts if fact.event in known)


def _phases(phases: Sequence[Phase], known: Collection[int], end: int) -> Iterator[Phase]:
    """The phases that a seat has events of, each with the marks that those show."""
    places = sorted(known)
    for phase, after in pairwise((*((phase, phase.first) for phase in phases), (None, end))):
        (this, first), (_, beyond) = phase, after
        at = bisect_left(places, first)
        if this is not None and at < len(places) and places[at] < beyond:
            marks = tuple(Mark(mark.symbol, mark.text, mark.event) for mark in this.marks if mark.event in known)
            yield Phase(label=this.label, kind=this.kind, first=places[at], marks=marks)


def _turn(turn: TurnHead, known: Collection[int]) -> TurnHead:
    """A turn for its agent. Why it ended a conversation may quote what only the code knows."""
    events = tuple(event for event in turn.events if event in known)
    detail = "" if turn.result == ReceiptKind.FAILURE else turn.detail
    return TurnHead(turn.key, turn.round, turn.agent, turn.result, detail, events)


def _table(table: ViewTable, known: Collection[int]) -> ViewTable:
    """The rows and columns in which a seat saw a cell or the head; none where it saw nothing of the table."""
    cells = [[_cell(cell, known) for cell in row.cells] for row in table.rows]
    columns = [
        head.event in known or any(row[place] is not _BLANK for row in cells) for place, head in enumerate(table.heads)
    ]
    rows = tuple(
        TableRow(_head(row.head, known), tuple(compress(seen, columns)))
        for row, seen in zip(table.rows, cells, strict=True)
        if row.head.event in known or any(cell is not _BLANK for cell in seen)
    )
    heads = tuple(_head(head, known) for head in compress(table.heads, columns))
    return ViewTable(table.name, table.title, table.kind, table.corner, heads, rows)


def _cell(cell: Cell, known: Collection[int]) -> Cell:
    return Cell(cell.text, event=cell.event, title=cell.title) if cell.event in known else _BLANK


def _head(head: Cell, known: Collection[int]) -> Cell:
    """The head of a row or a column. One without an event is a label, such as a name or a round."""
    return Cell(head.text, event=head.event) if head.event is None or head.event in known else _BLANK
