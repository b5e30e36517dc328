"""What happens when roles meet, and the days around it: the cases of `nights.yaml`, and what holds for many at once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from mac_runner.environments.town_of_salem.testing import (
    Event,
    EventKind,
    IllegalActError,
    Notice,
    Options,
    Phase,
    bugged,
    has_won,
    night_row,
    play_out,
    resolve,
    result_now,
    sentence,
)
from tests.environments.town_of_salem.table import ELEVEN, EVENT_KINDS, Table

CLASSIC = ELEVEN[:10]
# Enough of the Town and a Mafia that no game ends while a case is played.
CROWD = ("sheriff", "doctor", "investigator", "mafioso", "godfather")
CASES: Mapping[str, Mapping[str, list[dict[str, Any]]]] = yaml.safe_load(
    (Path(__file__).parent / "nights.yaml").read_text(encoding="utf-8")
)
REFUSALS = {
    "cannot choose": "cannot be chosen",
    "must name another": "must name one of|must be one of",
    "must name two": "must name two players",
    "not their turn": "it is not your turn",
    "no such channel": "no such channel",
    "already acted": "already acted",
}


def listed(names: str) -> list[str]:
    return names.split(", ") if names else []


class Case:
    """A case at its table."""

    def __init__(self, setup: Mapping[str, Any]) -> None:
        roles = listed(setup["seats"]) if "seats" in setup else [*listed(setup.get("with", "")), *CROWD]
        self.table = Table(roles, options=Options(**setup.get("options", {})))

    def follow(self, key: str, value: Any) -> None:
        """Do what a line says, or see that it is so."""
        table = self.table
        match key:
            case "with" | "seats" | "options":
                pass
            case "to":
                phase, _, day = value.rpartition(" ") if value[-1].isdigit() else (value, "", "")
                table.go_to(Phase(phase), day=int(day) if day else None)
            case "night":
                table.go_to(Phase.NIGHT)
                self.act(value)
                table.end_round()
            case "do":
                self.act(value)
            case "end round":
                table.end_round()
            case "jail":
                table.go_to(Phase.DISCUSSION)
                table.act("jailor", "jail", value)
            case "accuse":
                table.accuse(value)
            case "judge":
                for who, ballots in value.items():
                    table.judge(who, ballots, others="abstain")
            case "lynch":
                for who, ballots in (value if isinstance(value, dict) else {value: {}}).items():
                    table.lynch(who, ballots)
            case "bury":
                table.bury(*listed(value))
            case "mark":
                for who, mark in value.items():
                    table.mark(who, mark)
            case _ if key in REFUSALS:
                for who, deed in value.items():
                    with pytest.raises(IllegalActError, match=REFUSALS[key]):
                        self.act({who: deed})
            case _:
                found, expected = self.look(key, value), self.named(value)
                assert found == expected, f"{key}: {found}, not {expected}"

    def act(self, deeds: Mapping[str, str]) -> None:
        for who, deed in deeds.items():
            head, _, text = deed.partition(": ")
            verb, _, targets = head.partition(" ")
            is_choice = verb in ("ballot", "bid") or targets.startswith("in ")
            choice = targets.removeprefix("in ") if is_choice else ""
            self.table.act(who, verb, *listed("" if is_choice else targets), text=text, choice=choice)

    def named(self, value: Any) -> Any:
        """What a line says, with the names of those it means."""
        match value:
            case dict():
                return {self.named(key): self.named(part) for key, part in value.items()}
            case list():
                return [self.named(part) for part in value]
            case str():
                return re.sub(r"{([\w ]+)}", lambda found: self.table.name(found[1]), value)
            case _:
                return value

    def look(self, key: str, value: Any) -> Any:
        """What is so, in the form in which `value` says what is to be so."""
        table, state = self.table, self.table.state
        match key:
            case "alive":
                return ", ".join(who for who in listed(value) if table.is_alive(who))
            case "dead":
                return {who: ", ".join(table.causes(who)) for who in value}
            case "deaths":
                return len(table.shown(EventKind.DEATH))
            case "body":
                bodies = {death["player"]: death for death in table.shown(EventKind.DEATH)}
                return {who: {part: bodies[table.name(who)][part] for part in parts} for who, parts in value.items()}
            case "role":
                return {who: table.player(who).role for who in value}
            case "roles":
                return {role: sum(player.role == role for player in state.players) for role in value}
            case "uses":
                return {who: table.player(who).uses for who in value}
            case "marks":
                return {who: ", ".join(sorted(table.player(who).marks)) for who in value}
            case "found":
                return {who: table.findings(who) for who in value}
            case "visitors":
                seen = {who: re.split(" by |, | and ", table.findings(who)[-1]) for who in value}
                return {
                    who: ", ".join(p.dealt for p in state.players if p.name in names) for who, names in seen.items()
                }
            case "told":
                return {who: self.told(who, notice) for who, notice in value.items()}
            case "not told":
                return {who: "told" if table.told(who, kind) else kind for who, kind in value.items()}
            case "shown":
                return {kind: table.shown(kind) for kind in value}
            case "asked":
                return ", ".join(who for who in listed(value) if table.seat(who) in state.order)
            case "not asked":
                return ", ".join(who for who in listed(value) if table.seat(who) not in state.order)
            case "votes":
                return table.shown(EventKind.VOTE)[-1]["count"]
            case "accused":
                return None if state.accused is None else state.players[state.accused].dealt
            case "heard":
                return {words: self.roles_of(self.said(words).audience) for words in value}
            case "by":
                return {words: self.said(words).data["player"] for words in value}
            case "not named to":
                private = [(event.audience, str(event.data)) for event in table.events if event.audience is not None]
                return {
                    who: "named"
                    if any(table.seat(who) in seats and table.name(name) in data for seats, data in private)
                    else name
                    for who, name in value.items()
                }
            case "prisoner":
                return "none" if state.prisoner is None else state.players[state.prisoner].dealt
            case "traced":
                return self.traced(value)
            case "asks":
                return self.roles_of(state.order)
            case "standing":
                return {
                    state.players[voter].dealt: state.players[target].dealt for voter, target in state.votes.items()
                }
            case "bids":
                return {state.players[bidder].dealt: bid for bidder, bid in state.bids.items()}
            case "rounds":
                return [self.waited() for _ in value]
            case "won":
                return ", ".join(player.dealt for player in state.players if has_won(state, player))
            case "result":
                return "none" if state.result is None else " ".join((state.result.ending, *state.result.winners))
            case _:
                now = {"phase": state.phase, "day": state.day, "quiet": state.quiet_cycles}
                return {**now, "vote rounds": state.vote_rounds_left, "round": state.round_in_phase}[key]

    def roles_of(self, seats: Iterable[int] | None) -> str:
        """The roles dealt to some seats, or `all`."""
        return "all" if seats is None else ", ".join(self.table.state.players[seat].dealt for seat in sorted(seats))

    def said(self, words: str) -> Event:
        """The one event in which words were said."""
        (event,) = (event for event in self.table.events if event.data.get("text") == words)
        return event

    def traced(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """The trace of the coming night as far as a line speaks of it; to play it for its trace changes nothing."""
        before = resolve(self.table.state)
        trace: dict[str, Any] = msgspec.to_builtins(night_row(self.table.state, play_out(self.table.state)))
        assert resolve(self.table.state) == before
        return {
            part: [{key: row[key] for key in keys} for row, keys in zip(trace[part], rows, strict=True)]
            if isinstance(rows, list) and rows and isinstance(rows[0], dict)
            else trace[part]
            for part, rows in value.items()
        }

    def waited(self) -> str:
        """The day and the phase; all wait until its round is over."""
        now = f"{self.table.state.day} {self.table.state.phase}"
        self.table.end_round()
        return now

    def told(self, who: str, notice: Any) -> Any:
        """What a seat was told of the kind of a notice, in its form."""
        kind, _, target = notice.partition(" ") if isinstance(notice, str) else (*notice, "", "")
        told = self.table.told(who, kind)
        if isinstance(notice, dict):
            return {kind: told[0] if len(told) == 1 else told}
        is_so = told == [{"target": self.table.name(target)}] if target else bool(told)
        return notice if is_so else f"{kind}: {told}"


@pytest.mark.parametrize("theme", CASES)
def test_nights_and_what_follows_them_go_as_the_rules_say(theme: str, subtests: pytest.Subtests) -> None:
    for title, lines in CASES[theme].items():
        with subtests.test(title):
            case = Case(lines[0])
            for line_ in lines:
                for key, value in line_.items():
                    case.follow(key, value)
            assert all(event.audience != frozenset() for event in case.table.events), "an event for nobody"


def test_sheriff_finds_the_mafia_but_not_its_godfather_and_an_investigator_a_list_with_the_true_role() -> None:
    for role in ELEVEN:
        table = Table(("sheriff", "investigator", *ELEVEN))
        target = f"{role} 2" if role in ("sheriff", "investigator") else role
        table.night({"sheriff": ("interrogate", target), "investigator": ("investigate", target)})

        assert table.findings("sheriff") == ["suspicious" if role in ("mafioso", "framer") else "not suspicious"], role
        (finding,) = table.findings("investigator")
        assert role.title() in finding
        assert (finding.count(","), finding.count(" or ")) == (1, 1)


def test_everything_a_bug_picks_up_can_be_told_in_words() -> None:
    table = Table(("spy", "escort", *CROWD))
    table.night({"spy": ("bug", "sheriff"), "escort": ("block", "sheriff")})
    (event,) = (event for event in table.events if str(event.kind) == "bugged")

    befallen = [kind for kind in EVENT_KINDS.values() if isinstance(kind, Notice) and kind.befalls]
    assert len(befallen) > 5
    for notice in befallen:
        assert notice.befalls in sentence(replace(event, kind=bugged(notice)))


def test_grave_of_a_vigilante_does_not_tell_that_the_gun_is_empty() -> None:
    table = Table(("retributionist", "vigilante", "jester", *CROWD))
    table.state = table.state.with_player(replace(table.player("vigilante"), uses={"shoot": 0}))
    table.bury("vigilante")
    table.night({"retributionist": ("raise", "vigilante", "mafioso")}, day=2)

    assert table.told("retributionist", "failed") == [{"target": table.name("vigilante")}]
    assert table.is_alive("mafioso")


def test_quarry_is_of_the_town_and_never_the_jailor_and_a_jester_who_chooses_nobody_haunts_a_guilty_voter() -> None:
    for seed in range(12):
        table = Table((*ELEVEN, "medium"), seed=seed)
        quarry = table.player("executioner").quarry
        assert quarry is not None
        assert table.player(quarry).faction == "town"
        assert table.player(quarry).role != "jailor"

        guilty = ("medium", "escort")
        table.night(day=1)
        table.lynch("jester", {role: "abstain" for role in ELEVEN if role not in (*guilty, "jester")})
        table.night()
        last = table.shown(EventKind.DEATH)[-1]
        assert last["causes"] == ["jester"]
        assert last["player"] in (table.name("medium"), table.name("medium 2"), table.name("escort"))


LEFT: list[tuple[tuple[str, ...], str | None]] = [
    (("arsonist", "mafioso"), "win arsonist"),
    (("arsonist", "serial killer"), "win arsonist"),
    (("serial killer", "godfather"), "win serial killer"),
    (("werewolf", "serial killer"), "win werewolf"),
    (("consort", "escort"), "win mafia"),
    *(((member, "escort"), "win mafia") for member in ("godfather", "mafioso", "framer")),
    (("godfather", "transporter"), "win mafia"),
    (("mafioso", "transporter"), "win town"),
    (("serial killer", "sheriff"), None),
    (("serial killer", "jailor"), None),
    (("escort", "godfather", "doctor"), None),
    (("vigilante", "witch", "sheriff"), None),
    (("sheriff", "witch", "doctor"), "win town"),
    (("jester", "executioner"), "draw"),
]


def test_game_is_decided_by_who_is_left() -> None:
    """A stalemate of two is awarded, and an armed player holds a game up."""
    for living, ended in LEFT:
        table = Table((*living, "medium", "framer"))
        table.bury("medium", f"framer {1 + ('framer' in living)}")
        result = result_now(table.state)
        assert (" ".join((result.ending, *result.winners)) if result else None) == ended, living


def test_more_than_half_of_the_living_must_vote_and_more_be_guilty_than_innocent() -> None:
    for living, needed in ((15, 8), (14, 8), (10, 6), (5, 3), (2, 2)):
        table = Table(("godfather", *["sheriff"] * 14))
        table.bury(*range(living, 15))
        assert table.state.votes_needed == needed, living
    for guilty, innocent in ((1, 0), (5, 4), (3, 2), (4, 4), (4, 5), (0, 0)):
        table = Table(CLASSIC)
        judges = [seat for seat in range(10) if seat != table.seat("mafioso")]
        ballots = ["guilty"] * guilty + ["innocent"] * innocent
        table.judge("mafioso", dict(zip(judges, ballots, strict=False)), others="abstain")

        assert table.is_in(Phase.LAST_WORDS) == (guilty > innocent), (guilty, innocent)
        assert table.shown(EventKind.VERDICT) == [{"accused": table.name("mafioso"), "is_guilty": guilty > innocent}]


def test_order_of_speakers_is_drawn_anew_each_round_by_the_seed() -> None:
    table, other = Table(CLASSIC, seed=1), Table(CLASSIC, seed=2)
    first = table.state.order
    table.go_to(Phase.DISCUSSION)
    second = table.state.order
    table.end_round()

    assert len({first, second, table.state.order, other.state.order}) == 4
    assert Table(CLASSIC, seed=1).state.order == first


def test_nobody_speaks_before_those_they_must_speak_after_who_live() -> None:
    gates = {0: frozenset({1, 2}), 1: frozenset({3}), 9: frozenset({0})}
    for seed in range(20):
        table = Table(CLASSIC, seed=seed, speak_after=gates)
        for phase in (Phase.GREETING, Phase.DISCUSSION, Phase.VOTING):
            table.go_to(phase)
            place = {seat: index for index, seat in enumerate(table.state.order)}
            assert all(place[seat] > place[first] for seat, firsts in gates.items() for first in firsts)
    table = Table(CLASSIC, speak_after={0: frozenset({1})})
    table.bury(1)
    table.go_to(Phase.DISCUSSION)
    assert 0 in table.state.order


def test_cards_and_team_are_told_to_those_they_concern() -> None:
    table = Table(CLASSIC)
    for role in CLASSIC:
        assert table.told(role, EventKind.ROLE_CARD) == [{"role": role.title()}]
        assert len(table.told(role, EventKind.TEAM)) == (role in ("godfather", "framer", "mafioso"))
