"""A table to play at in tests: seats are called by the role they were dealt, and every move is checked.

`Table` drives the pure rules, `open_game` makes a Conversation, and `play` answers all its turns. After each move of a
Table the state is validated, the move is made a second time with the same result, and the state it started from is
as it was: a test that moves tests that the rules are pure.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any, get_args

from mac_runner.config import Experiment
from mac_runner.environments import Policy, town_of_salem
from mac_runner.environments.testing import receive
from mac_runner.environments.town_of_salem.testing import (
    ACTS,
    BLOCKED,
    NAMES,
    POLICIES,
    TOOLS,
    Act,
    AnyKind,
    Asking,
    Death,
    Event,
    EventKind,
    Game,
    GameState,
    Notice,
    Options,
    Phase,
    Player,
    Reading,
    SeatView,
    ToolName,
    TownOfSalem,
    apply,
    bugged,
    end_round,
    new_game,
    read,
    validate,
    write,
)
from mac_runner.plan import plan_tasks
from mac_runner.spec import RetryConfig
from mac_runner.types import (
    Agent,
    FinishReason,
    JsonObject,
    Prompt,
    Receipt,
    ReceiptKind,
    RecordedReply,
    Reply,
    Sampling,
    Task,
    Turn,
    TurnRecord,
    stable_hash,
)

ELEVEN = (
    "sheriff",
    "doctor",
    "investigator",
    "jailor",
    "medium",
    "godfather",
    "framer",
    "executioner",
    "escort",
    "mafioso",
    "jester",
)

ALL_TOOLS: tuple[ToolName, ...] = get_args(ToolName)
"""Tests play with all tools, so that each is used; without `game.tools` a game has none."""

Who = str | int
"""A seat, by its number or by the role it was dealt (`escort`, and `escort 2` for the second of them)."""


class Table:
    """A game in progress, at the level of the rules."""

    def __init__(
        self,
        roles: Sequence[str],
        *,
        seed: int = 1,
        options: Options | None = None,
        speak_after: Mapping[int, frozenset[int]] | None = None,
    ) -> None:
        names = NAMES[: len(roles)]
        self.state, opening = new_game(
            seed=seed,
            names=names,
            roles=roles,
            lobby=roles,
            options=(options or Options()).model_copy(update={"tools": ALL_TOOLS}),
            speak_after=speak_after,
        )
        self.events: list[Event] = list(opening)
        validate(self.state)

    def seat(self, who: Who) -> int:
        if isinstance(who, int):
            return who
        role, _, number = who.rpartition(" ")
        role, number = (role, number) if number.isdigit() else (who, "1")
        held = [player.seat for player in self.state.players if player.dealt == role]
        return held[int(number) - 1]

    def player(self, who: Who) -> Player:
        return self.state.players[self.seat(who)]

    def name(self, who: Who) -> str:
        return self.player(who).name

    def is_alive(self, who: Who) -> bool:
        return self.player(who).alive

    def is_in(self, phase: Phase) -> bool:
        return self.state.phase is phase

    def make(self, act: Act | None) -> tuple[Event, ...]:
        """Make one act, or end the round, and see that it leaves what it started from alone and can be done again."""
        before = repr(self.state)
        changed, again = (end_round(self.state) if act is None else apply(self.state, act) for _ in range(2))
        assert again == changed
        assert repr(self.state) == before
        validate(changed.state)
        self.state = changed.state
        self.events.extend(changed.events)
        return changed.events

    def act(self, who: Who, verb: str, *whom: Who, text: str = "", choice: str = "") -> None:
        targets = tuple(self.seat(target) for target in whom)
        self.make(Act(seat=self.seat(who), verb=verb, targets=targets, text=text, choice=choice))

    def end_round(self) -> tuple[Event, ...]:
        """Let everybody who has not answered wait, and ring the bell; what happened after the bell."""
        for seat in self.state.due:
            self.make(Act(seat=seat, verb="wait"))
        return self.make(None)

    def go_to(self, phase: Phase, *, day: int | None = None) -> None:
        """Let everybody wait until `phase` (of `day`) opens."""
        while self.state.phase is not phase or (day is not None and self.state.day != day):
            assert self.state.result is None, f"the game ended before {phase}: {self.state.result}"
            self.end_round()

    def night(self, deeds: Mapping[str, tuple[str, *tuple[Who, ...]]] | None = None, *, day: int | None = None) -> None:
        """Play the next night with these deeds (role: verb, targets) and stop at its dawn."""
        self.go_to(Phase.NIGHT, day=day)
        for who, (verb, *targets) in (deeds or {}).items():
            self.act(who, verb, *targets)
        self.end_round()

    def accuse(self, who: Who) -> None:
        """Have just as many vote for a player as put them on trial."""
        self.go_to(Phase.VOTING)
        while self.state.phase is Phase.VOTING:
            voter = next(seat for seat in self.state.due if seat != self.seat(who))
            self.act(voter, "vote", who)

    def judge(self, who: Who, ballots: Mapping[Who, str] | None = None, *, others: str = "innocent") -> None:
        """Put a player on trial and judge: the given ballots, and `others` from everybody else."""
        self.accuse(who)
        self.go_to(Phase.JUDGEMENT)
        chosen = {self.seat(judge): ballot for judge, ballot in (ballots or {}).items()}
        for seat in self.state.due:
            self.act(seat, "ballot", choice=chosen.get(seat, others))
        self.end_round()

    def lynch(self, who: Who, ballots: Mapping[Who, str] | None = None) -> None:
        """Judge a player guilty and go on until the body is shown."""
        self.judge(who, ballots, others="guilty")
        assert self.state.phase is Phase.LAST_WORDS
        self.end_round()

    def mark(self, who: Who, mark: str) -> None:
        """Give a player a lasting mark."""
        player = self.player(who)
        self.state = self.state.with_player(replace(player, marks=player.marks | {mark}))

    def causes(self, who: Who) -> tuple[str, ...]:
        """What a player died of; nothing while alive."""
        death = self.player(who).death
        return () if death is None else death.causes

    def bury(self, *whom: Who) -> None:
        """Have players dead from the start, without anything that follows a death."""
        for who in whom:
            death = Death(day=1, at_night=True, causes=("mafia",))
            self.state = self.state.with_player(replace(self.player(who), death=death))

    def told(self, who: Who, kind: str) -> list[JsonObject]:
        """What a seat was told of one kind, privately."""
        seat = self.seat(who)
        return [e.data for e in self.events if str(e.kind) == kind and e.audience is not None and seat in e.audience]

    def shown(self, kind: str) -> list[JsonObject]:
        """What everybody was told of one kind."""
        return [event.data for event in self.events if str(event.kind) == kind and event.audience is None]

    def findings(self, who: Who) -> list[str]:
        """What an investigating seat found, in order."""
        return [str(data["finding"]) for data in self.told(who, "result")]


def _notices() -> Iterator[Notice]:
    """Those that the files of the game hold, and what a bug makes of them."""
    for name, module in [*sys.modules.items()]:
        if name.startswith(f"{town_of_salem.__name__}."):
            yield from (value for value in vars(module).values() if isinstance(value, Notice) and value.name)
    yield bugged(BLOCKED)


EVENT_KINDS: Mapping[str, AnyKind] = {str(kind): kind for kind in (*EventKind, *_notices())}
"""Every kind of event by its name in transcripts."""


def make_task(roles: Sequence[str], *, seed: int = 1) -> Task:
    """A task whose seats hold `roles` in order."""
    agents = tuple(
        Agent(
            agent_id=NAMES[seat], definition=f"definition-{seat}", model="m", seat=seat, slot=seat, sampling=Sampling()
        )
        for seat in range(len(roles))
    )
    return Task(index=0, task_id=f"game-{seed}", seed=seed, agents=agents)


def open_game(
    roles: Sequence[str],
    *,
    seed: int = 1,
    options: Options | None = None,
    speak_after: Mapping[int, frozenset[int]] | None = None,
    lobby: Sequence[str] = (),
    tools: Sequence[ToolName] = ALL_TOOLS,
    asking: Asking | None = None,
    max_retries: int = 2,
    **more: Any,
) -> Game:
    """A Conversation at its beginning, `roles` by seat; the public list of slots is `lobby`, else the roles.

    All seats are asked as `asking` says; `more` is of the Game.
    """
    task, slots = make_task(roles, seed=seed), tuple(lobby) or tuple(sorted(roles))
    rules = (options or Options()).model_copy(update={"tools": tuple(tools)})
    state, opening = new_game(
        seed=seed,
        names=[agent.agent_id for agent in task.agents],
        roles=roles,
        lobby=slots,
        options=rules,
        speak_after=speak_after,
    )
    asked = {} if asking is None else {agent.definition: asking for agent in task.agents}
    retry = RetryConfig(max_retries=max_retries)
    return Game(task=task, state=state, opening=opening, retry=retry, asking=asked, **more)


def first_game(experiment: Experiment) -> Game:
    """The first game of an experiment."""
    environment = TownOfSalem(experiment)
    return environment.open(next(iter(plan_tasks(experiment, environment.lineup))))


def advance(game: Game, to: Phase, *, day: int = 1, says: Callable[[Turn], str] = lambda turn: "<wait/>") -> Game:
    """Let everybody wait, or say what `says` has for a turn, until a phase opens, on `day` at the earliest."""
    while game.state.phase is not to or game.state.day < day:
        turn = game.turns()[0]
        game.receive(turn, Reply(text=says(turn)))
    return game


def turn_of(game: Game, name: str) -> Turn:
    """The open turn of a player."""
    return next(turn for turn in game.turns() if turn.agent == name)


def told_now(game: Game, name: str = "") -> str:
    """What the prompt of a player's open turn says after the system message; that of the first where none is named."""
    return game.prompt(turn_of(game, name) if name else game.turns()[0]).messages[1].content


def answer(game: Game, text: str) -> Receipt:
    """Answer the first open turn."""
    return game.receive(game.turns()[0], Reply(text=text))


def rows(game: Game, part: str) -> list[Any]:
    """A list in the record of a game, as `acts` or `events`."""
    found = game.record()[part]
    assert isinstance(found, list)
    return found


def reading_of(state: GameState, text: str, *, seat: int = 0, is_cut: bool = False) -> Reading:
    """What a reply of a seat is read as; it may have been cut off at its token limit."""
    return read(Reply(text=text, finish_reason=FinishReason.LENGTH if is_cut else FinishReason.STOP), state, seat)


@cache
def state_in(phase: Phase, *, accused: Who | None = None, roles: tuple[str, ...] = ELEVEN) -> GameState:
    """Where a phase opens; with `accused`, after they were put on trial."""
    table = Table(roles)
    if accused is not None:
        table.accuse(accused)
    table.go_to(phase)
    return table.state


def play(
    game: Game,
    policies: Policy | Mapping[int, Policy],
    *,
    seed: int = 1,
    order: Random | None = None,
    watch: Callable[[Game, Turn, Prompt], None] | None = None,
) -> list[TurnRecord]:
    """Answer every turn until the game is over. What a turn is answered depends on the turn alone, not on the order.

    Raises RuntimeError where the game fails or does not end, which no watcher says.

    `policies` is one for all or one a seat. With `order`, the turns that are ready together are answered in an order
    drawn from it; `watch` sees each turn and its prompt before the reply.
    """
    seats = {player.name: player.seat for player in game.state.players}
    records: list[TurnRecord] = []
    while game.outcome is None:
        if len(records) >= 20_000:
            raise RuntimeError("the game does not end")
        open_turns = game.turns()
        waiting = {turn.agent for turn in open_turns}
        ready = [turn for turn in open_turns if not turn.after & waiting]
        turn = ready[0] if order is None else order.choice(ready)
        policy = policies[seats[turn.agent]] if isinstance(policies, Mapping) else policies
        prompt = game.prompt(turn)
        if watch is not None:
            watch(game, turn, prompt)
        text = policy(prompt.view, Random(stable_hash(seed, turn.key)))
        recorded = RecordedReply(turn_key=turn.key, prompt_sha256=prompt.sha256, reply=Reply(text=text))
        records.append(receive(game, turn, recorded))
        if records[-1].receipt.kind is ReceiptKind.FAILURE:
            raise RuntimeError(records[-1].receipt.detail)
    return records


def variants(prompt: Prompt) -> list[Any]:
    """The schemas of the replies that a prompt allows."""
    assert prompt.schema is not None
    found = prompt.schema["anyOf"]
    assert isinstance(found, list)
    return found


@cache
def ended(seed: int = 5) -> tuple[Game, tuple[TurnRecord, ...]]:
    """A game of eleven heuristic players that has ended, and its turns; to be looked at only."""
    game = open_game(ELEVEN, seed=seed)
    return game, tuple(play(game, POLICIES["heuristic"], seed=seed))


def clumsy(view: object, chance: Random) -> str:
    """A player who does everything there is to do at random, asks tools, writes wills and often gets the form wrong."""
    assert isinstance(view, SeatView)
    fate = chance.random()
    if fate < 0.08:
        return chance.choice(
            ["", "hm", "<speak>never closed", "<wait/><wait/>", "<thinking>", f"<vote>{view.name}</vote>"]
        )
    if fate < 0.16:
        tool = chance.choice([*TOOLS.values()])
        argument = chance.choice([*tool.argument.allowed(view), "nonsense"]) if tool.argument else ""
        return f'<tool_request name="{tool.name}">{argument}</tool_request><speak>too soon</speak>'
    choice = chance.choice([choice for choice in view.choices if not ACTS[choice.verb].is_side_act])
    sides = [side.verb for side in view.choices if ACTS[side.verb].is_side_act and chance.random() < 0.2]
    number = chance.randrange(1000)
    beside = "".join(f"<{verb}>{verb} {number} of {view.name}</{verb}>" for verb in sides)
    act = write(
        choice.verb,
        target=chance.choice(choice.targets or ("",)),
        choice=chance.choice(choice.choices or ("",)),
        text=f"words {number} of {view.name}",
        thought=f"thought {number} of {view.name}",
    )
    return act + beside


def recorded(records: Sequence[TurnRecord]) -> list[RecordedReply]:
    """The records of a game as a journal would give them back."""
    return [
        RecordedReply(turn_key=record.turn.key, prompt_sha256=record.prompt_sha256, reply=record.reply)
        for record in records
    ]


def random_roles(chance: Random) -> list[str]:
    """A random list of the eleven roles that can be played: some Town, some Mafia, nobody unique twice."""
    unique = {"jailor", "godfather", "mafioso"}
    while True:
        size = chance.randint(3, 12)
        roles = [chance.choice(ELEVEN) for _ in range(size)]
        is_dealt_once = all(roles.count(role) <= 1 for role in unique)
        has_mafia = bool({"godfather", "mafioso", "framer"} & set(roles))
        has_town = bool(set(roles) - {"godfather", "mafioso", "framer", "executioner", "jester"})
        if is_dealt_once and has_mafia and has_town:
            return roles
