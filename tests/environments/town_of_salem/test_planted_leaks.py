"""A watch that never barks is no evidence: leaks of every kind are planted, and each has to be found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from mac_runner.environments.town_of_salem import conversation
from mac_runner.environments.town_of_salem.rules import calendar
from mac_runner.environments.town_of_salem.seat import prompts
from mac_runner.environments.town_of_salem.testing import (
    Asking,
    Channel,
    Choice,
    Death,
    Event,
    EventKind,
    Events,
    GameLog,
    GameState,
    NightState,
    Player,
    Prompts,
    SeatView,
    announcement,
    view_of,
)
from mac_runner.types import Message, Prompt
from tests.environments.town_of_salem.entitlement import MAY_BE_TOLD
from tests.environments.town_of_salem.watch import TABLES, watch_game
from tests.faults.tier import one_in

GAMES = 60
HIDING, UNDEAD, MOVING, MASKED, JESTING, BURNING = range(len(TABLES))
Leak = Callable[[pytest.MonkeyPatch], None]


def recorded(change: Callable[[Event, int], Event]) -> Leak:
    """Every event is changed before it is put into the record of so many seats."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        honest = GameLog.append

        def append(log: GameLog, events: Events, turn: str | None = None) -> None:
            honest(log, tuple(change(event, len(log.private)) for event in events), turn)

        monkeypatch.setattr(GameLog, "append", append)

    return plant


def to_all(kind: str) -> Leak:
    """Every seat is told what is meant for some."""
    return recorded(
        lambda event, seats: replace(event, audience=frozenset(range(seats))) if str(event.kind) == kind else event
    )


def data_of(kind: str, **more: str) -> Leak:
    """What is told says more than it should."""
    return recorded(
        lambda event, seats: replace(event, data={**event.data, **more}) if str(event.kind) == kind else event
    )


def seen(change: Callable[[SeatView, GameState], SeatView]) -> Leak:
    """The view of a seat holds more than it should."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        def more(state: GameState, log: GameLog, seat: int, observations: tuple[str, ...] = ()) -> SeatView:
            return change(view_of(state, log, seat, observations), state)

        monkeypatch.setattr(conversation, "view_of", more)

    return plant


def heard(builder: str, change: Callable[[Channel, GameState], Channel]) -> Leak:
    """A night channel is heard by more than it should."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        honest = getattr(calendar, builder)

        def build(state: GameState, *more: object) -> Channel | None:
            channel = honest(state, *more)
            return None if channel is None else change(channel, state)

        monkeypatch.setattr(calendar, builder, build)

    return plant


def buried(change: Callable[[Death], Death]) -> Leak:
    """A grave shows what its body hides."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        def told(state: GameState, victim: Player) -> Event:
            assert victim.death is not None
            return announcement(state, replace(victim, death=change(victim.death)))

        monkeypatch.setattr(calendar, "announcement", told)

    return plant


def _all_hear(channel: Channel, state: GameState) -> Channel:
    return replace(channel, hearers=frozenset(range(len(state.players))), overhearers=frozenset())


def _without_aliases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Channel, "name_of", lambda channel, state, seat: state.players[seat].name)


def _names_who_was_met(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NightState, "chosen_for", lambda night, seat, house: night.name_of(house))


def _says_roles(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Prompts.turn

    def text(prompts: Prompts, view: SeatView, asking: Asking, *lines: list[str]) -> str:
        return f"{honest(prompts, view, asking, *lines)}\nIt is said that {view.living[-1]} is a Doctor."

    monkeypatch.setattr(Prompts, "turn", text)


def _says_what_another_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = prompts.Context.prompt

    def prompt(
        self: prompts.Context,
        view: SeatView,
        thread: list[Message],
        *,
        asking: Asking,
        may_ask: bool,
        tokens_max: int | None,
    ) -> Prompt:
        return honest(self, view, [*_LAST, *thread], asking=asking, may_ask=may_ask, tokens_max=tokens_max)

    def go_on(game: conversation.Game, asked: object, reply: object, said: str) -> None:
        _LAST[:] = [Message(role="assistant", content=str(getattr(reply, "text", "")))]

    _LAST.clear()
    monkeypatch.setattr(prompts.Context, "prompt", prompt)
    monkeypatch.setattr(conversation.Game, "_go_on", go_on)


_LAST: list[Message] = []


def _lists_targets_by_faction(view: SeatView, state: GameState) -> SeatView:
    friends = {player.name for player in state.players if player.faction == "mafia"}
    choices = (replace(choice, targets=_without(choice, friends)) for choice in view.choices)
    return replace(view, choices=tuple(choices))


def _without(choice: Choice, names: set[str]) -> tuple[str, ...]:
    return tuple(name for name in choice.targets if name not in names) or choice.targets


def _roles(state: GameState, *, alive: bool) -> dict[str, str]:
    return {player.name: player.role.title() for player in state.players if player.alive is alive}


# At which table a notice is soon to be had.
_WHERE: dict[str, int] = {
    **dict.fromkeys(("block_resisted", "block_failed", "transported"), MOVING),
    **dict.fromkeys(("controlled", "control_failed", "control_resisted"), MOVING),
    **dict.fromkeys(("blocked", "patient_attacked", "attacked"), MOVING),
    **dict.fromkeys(("defence_too_strong", "caution", "result"), MOVING),
    **dict.fromkeys((EventKind.TEAM_CHANGED, "cleaned", EventKind.TEAM_JOINED, "failed"), MASKED),
    **dict.fromkeys(("doused", "visited"), BURNING),
    **dict.fromkeys(("haunt_offered", "goal_met"), JESTING),
    **dict.fromkeys((EventKind.SEANCE, EventKind.SEANCE_CHOSEN, EventKind.CONVERTED), UNDEAD),
}
LEAKS: dict[str, tuple[int, Leak]] = {
    "mafia chat": (HIDING, heard("_team", _all_hear)),
    "vampire chat": (UNDEAD, heard("_team", _all_hear)),
    "jail chat": (HIDING, heard("_jail", _all_hear)),
    "dead chat": (UNDEAD, heard("_dead", _all_hear)),
    "seance": (UNDEAD, heard("_seance", _all_hear)),
    "speakers overheard": (
        UNDEAD,
        heard("_team", lambda channel, state: replace(channel, hearers=channel.hearers | channel.overhearers)),
    ),
    "who the Jailor and the Medium are": (UNDEAD, _without_aliases),
    "name of who was met": (MOVING, _names_who_was_met),
    "killer's name": (HIDING, data_of(EventKind.DEATH, killer="Abel")),
    "killer's role": (HIDING, data_of(EventKind.NO_DEATH, killer="Vigilante")),
    "who remembered": (MASKED, data_of(EventKind.REMEMBERED, player="Abel")),
    "who blocked": (MOVING, data_of("blocked", by="Abel")),
    "role that blocked": (MOVING, data_of("blocked", by="Escort")),
    "who attacked": (MOVING, data_of("attacked", saved_by="Abel")),
    "role by a Sheriff": (BURNING, data_of("result", finding="a Werewolf")),
    "role of another": (BURNING, data_of("result", about="Abel")),
    "will of a cleaned body": (MASKED, buried(lambda death: replace(death, is_cleaned=False))),
    "will under a forged one": (MASKED, buried(lambda death: replace(death, forged_will=None))),
    "will soaked in blood": (MOVING, buried(lambda death: replace(death, is_bloody=False))),
    "role of a cleaned body": (
        MASKED,
        seen(lambda view, state: replace(view, graveyard=_roles(state, alive=False))),
    ),
    "teams": (HIDING, seen(lambda view, state: replace(view, team=_roles(state, alive=True)))),
    "random slots": (
        HIDING,
        seen(lambda view, state: replace(view, lobby=tuple(player.dealt for player in state.players))),
    ),
    "random slots in the record": (HIDING, data_of(EventKind.GAME_START, lobby="Witch")),
    "quarry": (HIDING, seen(lambda view, state: replace(view, quarry=view.living[0]))),
    "notes": (HIDING, seen(lambda view, state: replace(view, notes=state.players[0].notes))),
    "will": (HIDING, seen(lambda view, state: replace(view, will=state.players[0].will))),
    "targets that tell": (HIDING, seen(_lists_targets_by_faction)),
    "roles in the prompt": (HIDING, _says_roles),
    "thoughts": (HIDING, _says_what_another_wrote),
    **{f"{kind} to all": (_WHERE.get(kind, HIDING), to_all(kind)) for kind in MAY_BE_TOLD},
}


def watch_games(table: tuple[str, ...]) -> None:
    for number in range(GAMES):
        watch_game(number, table)


@pytest.mark.ci
@pytest.mark.parametrize("name", one_in(5, LEAKS))
def test_planted_leak_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, plant = LEAKS[name]
    plant(monkeypatch)

    try:
        watch_games(TABLES[where])
    except AssertionError:
        return
    pytest.fail(f"at table {where} of `watch.py` nothing told of it; `_WHERE` says at which table a notice is given")
