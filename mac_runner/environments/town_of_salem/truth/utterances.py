"""Everything players said and left written, with who it really was: chats and wills do not always tell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mac_runner.environments.town_of_salem.acts import Act
from mac_runner.environments.town_of_salem.events import Event, EventKind
from mac_runner.environments.town_of_salem.night import NightState
from mac_runner.environments.town_of_salem.state import Phase


class Said(NamedTuple):
    """An act, and the place in the list of events at which what it brought about begins."""

    act: Act
    moment: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Utterance:
    """Words of one player. `event` is the place of the event that holds them, in which they are found.

    `channel` is public, whisper, the name of a night channel, will or death note.
    """

    event: int
    day: int
    phase: Phase
    player: str
    channel: str
    text: str


def spoken(said: Iterable[Said], events: Sequence[Event], names: Sequence[str]) -> Iterator[Utterance]:
    """What was said aloud, whispered and said in the chats of the night."""
    for act, moment in said:
        if act.verb not in ("speak", "whisper"):
            continue
        place = next(i for i in range(moment, len(events)) if events[i].data.get("text") == act.text)
        event = events[place]
        yield Utterance(
            event=place,
            day=event.day,
            phase=event.phase,
            player=names[act.seat],
            channel=_channel(event),
            text=act.text,
        )


def _channel(event: Event) -> str:
    if event.kind is EventKind.CHAT:
        return str(event.data["channel"])
    return "whisper" if event.kind is EventKind.WHISPER else "public"


def written(events: Sequence[Event], nights: Mapping[int, NightState], names: Sequence[str]) -> Iterator[Utterance]:
    """What was read out of wills and death notes, by who wrote it: a forged will is its Forger's."""
    for place, event in enumerate(events):
        if event.kind is not EventKind.DEATH:
            continue
        seat = names.index(str(event.data["player"]))
        is_lynch = event.data["causes"] == ["lynch"]
        night = None if is_lynch else nights.get(event.day - 1)
        notes = event.data["death_notes"] if isinstance(event.data["death_notes"], list) else []
        left = [("will", str(event.data["will"]), _will_writer(night, seat))]
        left += [("death note", str(note), _note_writer(night, seat, str(note))) for note in notes]
        for channel, text, writer in left:
            if text:
                yield Utterance(
                    event=place,
                    day=event.day,
                    phase=event.phase,
                    player=names[writer],
                    channel=channel,
                    text=text,
                )


def _will_writer(night: NightState | None, dead: int) -> int:
    death = None if night is None else night.player(dead).death
    if night is None or death is None or death.forged_will is None:
        return dead
    forgers = (deed.seat for deed in night.deeds if deed.text == death.forged_will and night.house(deed) == dead)
    return next(forgers, dead)


def _note_writer(night: NightState | None, dead: int, note: str) -> int:
    attacks = [] if night is None else night.fatal.get(dead, [])
    killers = (attack.attacker for attack in attacks if night and night.player(attack.attacker).death_note == note)
    return next(killers, dead)
