"""What pages show of a run, as plain data: the one contract between Python and the viewer.

`views/` makes these objects from run directories, and `viewer/` sends them to the browser as JSON.
`python -m mac_runner.views.typescript viewer/src/model.ts` writes them as TypeScript. Environments add their own parts,
a `Scene`, through `ResultsSpec.scene`; a page needs to know none of them.

A perspective is applied in Python alone (`views/perspective.py`). So everything that a seat may not know has the event
it became known by: `event` is the place of an event in the record, and it is None where no event showed it. A seat sees
what its own events showed, and nothing else.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

Tone: TypeAlias = Literal["plain", "quiet", "good", "bad", "warn", "one", "two", "three", "four"]
"""How something is coloured; `one` to `four` are groups, such as factions. Text always says the same."""
PhaseKind: TypeAlias = Literal["day", "night", "round", "other"]
Status: TypeAlias = Literal["finished", "failed", "open"]
PieceKind: TypeAlias = Literal["same", "new", "gone"]
Reach: TypeAlias = Literal["", "you", "others"]
"""Who learned of an event that a seat saw: all, the seat alone, or the seat and others."""


class Mark(Struct, frozen=True, omit_defaults=True):
    """A sign on the strip of phases, such as a death. A seat gets it without its tone."""

    symbol: str
    """One character, such as † or ⚖."""
    text: str
    event: int | None = None
    tone: Tone = "plain"


class Phase(Struct, frozen=True, omit_defaults=True):
    """A stretch of events: a day, a night, a round."""

    label: str
    kind: PhaseKind
    first: int
    """The place of its first event."""
    marks: tuple[Mark, ...] = ()
    standing: tuple[Share, ...] = ()
    """How many of each group are left at its end, such as the living by faction. Only the truth knows."""


class Share(Struct, frozen=True, omit_defaults=True):
    """A part of a whole."""

    name: str
    count: float
    tone: Tone = "plain"


class Fact(Struct, frozen=True, omit_defaults=True):
    """Something about a participant or a conversation, such as its role; from `event` on it is known.

    Of several facts of one name the last one counts, such as what a death showed after what the role card said. What
    is true goes to the end of the list, without an event. The tone says no more than the text.
    """

    name: str
    text: str
    tone: Tone = "plain"
    event: int | None = None


class Member(Struct, frozen=True, omit_defaults=True):
    """A participant. `definition` and `model` are empty in the view of a seat."""

    name: str
    seat: int
    definition: str = ""
    model: str = ""
    facts: tuple[Fact, ...] = ()


class Note(Struct, frozen=True, omit_defaults=True):
    """A remark on an event that no participant read: a claim with its verdict, what was true. Dropped for a seat."""

    kind: str
    """What it is, such as `claim` or `truth`; the page can hide each kind."""
    text: str
    tone: Tone = "plain"
    verdict: str = ""


class EventView(Struct, frozen=True, omit_defaults=True, gc=False):
    """One event of the record."""

    place: int
    """Its number in the record, from 0: a seat's view has gaps."""
    when: str
    text: str
    audience: tuple[str, ...] | None = None
    """Who learned of it; None for all. Never sent to a seat."""
    reach: Reach = ""
    """In the view of a seat, in place of the audience."""
    agent: str = ""
    """Who acted or spoke; empty without one, and where a seat did not learn who."""
    kind: str = ""
    """The environment's word for such events. Never sent to a seat."""
    turn: str = ""
    """The key of the turn that made it; empty for none. A seat gets the keys of its own turns alone."""
    thought: str = ""
    """What was thought before it; with the first event of a turn only."""
    notes: tuple[Note, ...] = ()


class Cell(Struct, frozen=True, omit_defaults=True):
    """A cell of a table. `event` links to where it was said.

    `tone` and `verdict` may say what only the truth knows, such as that an answer is wrong: a seat gets neither.
    """

    text: str
    tone: Tone = "plain"
    event: int | None = None
    title: str = ""
    """The same as `text` in more words."""
    verdict: str = ""
    """Such as `right`, `wrong` or `biased`: the tone in a word."""


class TableRow(Struct, frozen=True, omit_defaults=True):
    """A row: its head, and one cell for each column."""

    head: Cell
    cells: tuple[Cell, ...]


class ViewTable(Struct, frozen=True, omit_defaults=True):
    """A table of a conversation.

    A seat gets the rows and columns whose head or a cell its events showed. Other cells are blank, and arrows
    and the note are left out. A head without an event is a label: all may know it.

    A `matrix` is drawn as small squares with letters, `rounds` as columns of stances, `list` as a plain table.
    """

    name: str
    """For links, such as `votes-3`."""
    title: str
    kind: Literal["matrix", "rounds", "list"]
    corner: str
    heads: tuple[Cell, ...]
    rows: tuple[TableRow, ...]
    arrows: tuple[Arrow, ...] = ()
    note: str = ""


class Arrow(Struct, frozen=True, omit_defaults=True):
    """From a cell to another, by row and column: who changed after reading whom."""

    from_row: int
    from_column: int
    to_row: int
    to_column: int
    text: str = ""


class Scene(Struct, frozen=True, omit_defaults=True):
    """What an environment adds to the view of a conversation, from its transcript alone."""

    phases: tuple[Phase, ...] = ()
    facts: tuple[Fact, ...] = ()
    """The ending, the question, the group's answer."""
    members: dict[str, tuple[Fact, ...]] = {}
    """By the name of an agent."""
    notes: dict[int, tuple[Note, ...]] = {}
    """By the place of an event."""
    agents: dict[int, str] = {}
    """By the place of an event, who acted in it."""
    tables: tuple[ViewTable, ...] = ()


class TurnHead(Struct, frozen=True, omit_defaults=True, gc=False):
    """A turn in the list of turns. A seat gets its own alone."""

    key: str
    round: int
    agent: str
    result: str
    """The kind of its receipt: act, observation, correction, default, failure; empty where it is not known."""
    detail: str
    events: tuple[int, ...] = ()


class ConversationView(Struct, frozen=True, omit_defaults=True):
    """A conversation as a page shows it: whole, or as one seat saw it."""

    task_id: str
    index: int
    environment: str
    status: Status
    seats: tuple[str, ...]
    """The names of all agents, in seat order."""
    members: tuple[Member, ...]
    phases: tuple[Phase, ...]
    events: tuple[EventView, ...]
    turns: tuple[TurnHead, ...]
    facts: tuple[Fact, ...] = ()
    tables: tuple[ViewTable, ...] = ()
    seat: str = ""
    """Whose view it is; empty for the whole."""
    failure: str = ""
    """Why it failed. Never sent to a seat, as the next two."""
    note: str = ""
    """Why something is missing, such as the events of an open conversation that cannot be played here, or what is wrong
    with the transcript."""
    fork: ForkOrigin | None = None
    command: str = ""
    """The directory as the commands that a page offers name it, such as `runs/a`. Empty in what is published."""


class ForkOrigin(Struct, frozen=True, omit_defaults=True):
    """Where a conversation leaves another."""

    of: str
    """The task id of its parent."""
    turn: str
    arm: str
    draw: int


class PromptMessage(Struct, frozen=True):
    """A message as it was sent."""

    role: str
    content: str


class Piece(Struct, frozen=True):
    """A piece of the difference of two texts."""

    kind: PieceKind
    text: str


class TokenView(Struct, frozen=True):
    """A token of a reply with its log-probability (natural logarithm)."""

    text: str
    """`#` and its id, where its text is not recorded."""
    logprob: float


class TurnView(Struct, frozen=True, omit_defaults=True):
    """All that is recorded of one turn."""

    key: str
    agent: str
    model: str
    result: str
    detail: str
    reply: str
    """As the engine gave it."""
    said: str
    """The reply without its thoughts."""
    thought: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    queue_s: float | None = None
    generate_s: float | None = None
    faults: tuple[str, ...] = ()
    cause: str = ""
    siblings: tuple[TurnHead, ...] = ()
    """All attempts and tool steps of the same occasion, in order, this one too."""
    sampling: dict[str, str] = {}
    prompt: tuple[PromptMessage, ...] = ()
    prompt_missing: str = ""
    """Why there is no prompt."""
    previous: str = ""
    """The turn of the same seat before this one."""
    difference: tuple[Piece, ...] = ()
    """The prompt against that of `previous`."""
    tokens: tuple[TokenView, ...] = ()


# The run.


class ColumnView(Struct, frozen=True, omit_defaults=True):
    """A column of the list of conversations."""

    name: str
    kind: Literal["word", "words", "number", "truth"]
    is_listed: bool = True


class EngineView(Struct, frozen=True, omit_defaults=True):
    """A model of the run and what it did so far."""

    model: str
    backend: str
    address: str = ""
    slots: int = 0
    requests: int = 0
    retries: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    latency_s: float | None = None
    """The mean."""
    slots_used: float | None = None
    """The part of the time of all slots in which they had a request."""


class CombinationView(Struct, frozen=True, omit_defaults=True):
    """A combination of a grid."""

    slug: str
    values: dict[str, str]
    planned: int
    done: int
    failed: int
    figures: dict[str, str] = {}
    """Its headline figures, as the grid's table prints them."""


class RunPage(Struct, frozen=True, omit_defaults=True):
    """The head of a run, or of a grid. `state` is as `mac-run status` says it."""

    name: str
    directory: str
    environment: str
    description: str
    state: str
    planned: int
    done: int
    failed: int
    is_live: bool
    """Whether a process is at work on it."""
    columns: tuple[ColumnView, ...]
    engines: tuple[EngineView, ...]
    facts: tuple[Fact, ...] = ()
    """The headline results and times, each with its interval in words."""
    combinations: tuple[CombinationView, ...] = ()
    """Of a grid; `slug` names a run below it."""
    is_sample: bool = False
    """Whether only some conversations were published."""
    left_out: tuple[str, ...] = ()
    """What a publication leaves out: thoughts, prompts."""
    is_reading: bool = False
    """Whether a server still reads the run: the list, and counts that no summary gives, are of what it has read."""


class WordColumn(Struct, frozen=True):
    """Words by number: `codes[row]` is a place in `words`, or -1."""

    words: tuple[str, ...]
    codes: tuple[int, ...]


class WordsColumn(Struct, frozen=True):
    """Several words for each row."""

    words: tuple[str, ...]
    lists: tuple[tuple[int, ...], ...]


class NumberColumn(Struct, frozen=True):
    """Numbers; a truth value is 0 or 1."""

    numbers: tuple[float | None, ...]


class IndexColumns(Struct, frozen=True):
    """The list of conversations by column, all of equal length, in the order in which they ended.

    The columns hold `rows` rows, which take the place of all from row `since` on: a page keeps its first `since` rows
    and adds these. `version` changes when rows that were sent before count no more, as after a retry: then `since` is
    0, and the page begins again.
    """

    since: int
    rows: int
    words: dict[str, WordColumn]
    lists: dict[str, WordsColumn]
    numbers: dict[str, NumberColumn]
    version: int = 0


# Engines over time.


class EngineSeries(Struct, frozen=True, omit_defaults=True):
    """One engine over the time of a run. All lists have one entry for each bin of `EnginesPage.bin_s`."""

    model: str
    slots: int
    """The most that one session served at once."""
    busy: tuple[float, ...]
    """The mean number of requests in flight."""
    done: tuple[int, ...]
    """Replies that ended in the bin."""
    tokens: tuple[int, ...]
    """Completion tokens of those replies."""
    retries: tuple[int, ...]
    tokens_per_s: float | None = None
    """Completion tokens per second of `EnginesPage.elapsed_s`."""
    latency_bounds_ms: tuple[float, ...] = ()
    """Upper bounds of the classes of `latency_counts`; the last class has none."""
    latency_counts: tuple[int, ...] = ()
    latency_p50_ms: float | None = None
    latency_p95_ms: float | None = None
    queue_p50_s: float | None = None
    queue_p95_s: float | None = None
    cached_share: float | None = None
    """Cached prompt tokens of all prompt tokens."""


class EnginesPage(Struct, frozen=True):
    """What the engines did over time, from `events.jsonl`."""

    bin_s: float
    elapsed_s: float
    sessions: tuple[float, ...]
    """When each session began, in seconds on the same axis."""
    engines: tuple[EngineSeries, ...]


# Two conversations, forks, and all discussions at once.


class ComparedRow(Struct, frozen=True):
    """Events of two conversations beside each other: places in `left.events` and `right.events`, or None."""

    left: int | None
    right: int | None
    is_equal: bool


class CompareView(Struct, frozen=True):
    """Two conversations, aligned up to the first turn that differs and beside each other from there on."""

    left: ConversationView
    right: ConversationView
    rows: tuple[ComparedRow, ...]
    first_turn: str
    """The first turn that differs; empty where none does."""
    reason: str
    """Why these can be compared: the same seed, or a fork and its parent."""


class ForkArm(Struct, frozen=True, omit_defaults=True):
    """The conversations that leave a parent at one turn in one way."""

    turn: str
    arm: str
    draws: tuple[int, ...]
    """Their numbers in the run."""
    figure: str = ""
    """What is counted, such as `won of Abel`."""
    value: float | None = None
    lo: float | None = None
    hi: float | None = None


class ForkTree(Struct, frozen=True):
    """The forks of one parent."""

    parent: str
    arms: tuple[ForkArm, ...]


class Flow(Struct, frozen=True):
    """How many participants went from one stance to another between two rounds, over the chosen conversations."""

    round: int
    before: str
    after: str
    count: int


class FlowPage(Struct, frozen=True):
    """The stance flow of the chosen conversations. `stances` are in the order in which they are drawn."""

    conversations: int
    rounds: int
    stances: tuple[Fact, ...]
    flows: tuple[Flow, ...]
    moved: ViewTable | None = None
    """Who moved whom."""


# Text search.


class SearchHit(Struct, frozen=True):
    """A conversation in which the words were found, with what is around them at the first place."""

    n: int
    task_id: str
    text: str


class SearchPage(Struct, frozen=True, omit_defaults=True):
    """What a search found. It stops after so many hits, or after some seconds; `next` is where to go on (`from`)."""

    hits: tuple[SearchHit, ...]
    searched: int
    """So many conversations were looked through."""
    total: int
    """Of so many."""
    next: int | None = None
    """The number of the first conversation that was not looked through; None where all were."""
