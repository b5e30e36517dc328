"""What is measured of each seat, counted by hand and anew from transcripts, added up by game and shown as declared."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.environments.town_of_salem.testing import (
    MEASURES,
    POLICIES,
    RESULTS,
    Act,
    ActRecord,
    Count,
    Event,
    GameLog,
    GameState,
    Options,
    Phase,
    estimates,
    hindsight_of,
    measure,
)
from mac_runner.errors import RunDirectoryError
from mac_runner.intervals import ClusteredMean, ClusteredRate
from mac_runner.types import JsonObject, JsonValue, TurnRecord
from tests.environments.town_of_salem.record.naive_measures import counted_anew
from tests.environments.town_of_salem.table import ELEVEN, Table, Who, clumsy, make_task, open_game, play
from tests.kit import game_player, render_summary
from tests.tiers import first

MOST = 60

SIX = ("sheriff", "doctor", "investigator", "escort", "godfather", "mafioso")


class Recorded(Table):
    """A table that keeps what a record is made of."""

    def __init__(self, *roles: str, options: Options | None = None) -> None:
        self.acts: list[ActRecord] = []
        self.dusks: list[GameState] = []
        super().__init__(roles, options=options)

    def make(self, act: Act | None) -> tuple[Event, ...]:
        if act is not None:
            state = self.state
            self.acts.append(
                ActRecord(
                    day=state.day,
                    phase=state.phase,
                    round=state.round,
                    act=act,
                    is_default=False,
                    moment=len(self.events),
                )
            )
        elif self.state.phase is Phase.NIGHT:
            self.dusks.append(self.state)
        return super().make(act)

    def say(self, who: Who, text: str) -> None:
        self.act(who, "speak", text=text)

    def counted(self, who: Who) -> str:
        """What is counted for a player, as `vn.2 1, vr.2 1`."""
        return ", ".join(f"{key} {count}" for key, count in sorted(self.counts(who).items()))

    def counts(self, who: Who) -> dict[str, int]:
        """What is counted for a player, without what is 0."""
        log = GameLog(len(self.state.players))
        log.append(tuple(self.events))
        task = make_task([player.dealt for player in self.state.players])
        seen = hindsight_of(self.state, log, task, self.acts, self.dusks)
        rows = measure(self.state, seen.record, seen.nights, seen.words)
        return {str(key): count for key, count in rows[self.seat(who)].items() if count}


def test_votes_ballots_and_a_trial_are_counted_as_by_hand() -> None:
    """Four of six vote for the Godfather, who claims to be the Doctor and is acquitted by two ballots against two."""
    table = Recorded(*SIX)
    boss = table.name("godfather")
    table.go_to(Phase.VOTING, day=2)
    votes = {"doctor": "escort", "investigator": "godfather", "escort": "godfather", "godfather": "sheriff"}
    for voter, whom in {"sheriff": "godfather", **votes}.items():
        table.act(voter, "vote", whom)
    table.end_round()
    table.act("doctor", "vote", "godfather")
    assert table.is_in(Phase.DEFENCE)
    table.say("godfather", "I am the Doctor.")
    table.end_round()
    ballots = {"sheriff": "guilty", "doctor": "innocent", "investigator": "guilty", "mafioso": "innocent"}
    for who, choice in {**ballots, "escort": "abstain"}.items():
        table.act(who, "ballot", choice=choice)
    table.end_round()
    table.say("doctor", f"{boss} is mafia.")

    # Two of the five others oppose the Town, to those of the Mafia one.
    once = "bc.2 400, bn.2 1, br.2 1, ka 1, kr 1"
    expected = {
        "sheriff": f"{once}, nm 1, nt 1, vc.2 400, vn.2 1, vr.2 1",
        "investigator": f"{once}, vc.2 400, vn.2 1, vr.2 1",
        "doctor": "ar 1, bc.2 600, bd 1, bn.2 1, cu 1, ka 1, kr 1, nm 1, vc.2 800, vd 1, ve 1, vn.2 2, vr.2 1",
        "escort": "vc.2 400, vn.2 1, vr.2 1",
        "mafioso": "bc.2 800, bd 1, bn.2 1",
        # One of those who acquitted is of another side. The Doctor contradicts the lie.
        "godfather": "aq 1, cl 1, ka 1, kr 1, lc 1, ld 2, lf 1, lh 1, li 1, lv 1, nm 1, "
        "sv 4, sw 2, ta 1, td 1, tr 1, vc.2 200, vn.2 1",
    }
    assert {who: table.counted(who) for who in SIX} == expected


def test_lynch_of_one_of_the_town_is_a_mislynch_of_who_judged_guilty() -> None:
    table = Recorded(*SIX)
    table.go_to(Phase.DISCUSSION, day=2)
    table.say("escort", f"{table.name('doctor')} is innocent.")
    table.say("mafioso", f"{table.name('doctor')} is mafia.")
    table.lynch("doctor", {"escort": "innocent"})
    sheriff, mafioso, escort = (table.counts(who) for who in ("sheriff", "mafioso", "escort"))

    assert (sheriff["ly"], sheriff["lm"], sheriff["bn.2"], "br.2" in sheriff) == (1, 1, 1, False)
    assert (escort["br.2"], escort["bc.2"], escort["fo"], "fa" in escort) == (1, 600, 1, False)
    # Nobody had accused the Mafioso; votes and ballots against the Doctor follow, but those of the Mafia.
    voters = sum("vn.2" in table.counts(who) for who in ("sheriff", "investigator", "escort"))
    once = ("aw", "cl", "lb", "lh", "lv", "lc")
    assert {key: mafioso.get(key) for key in (*once, "lf")} == {**dict.fromkeys(once, 1), "lf": voters + 2}
    assert {"tr": 1, "kr": 1}.items() <= table.counts("doctor").items()
    assert not {"aq", "td", "ka"} & table.counts("doctor").keys()
    spared = Recorded(*SIX)
    spared.go_to(Phase.DISCUSSION, day=2)
    spared.say("escort", f"{spared.name('doctor')} is innocent.")
    spared.judge("doctor")
    assert (spared.counts("escort")["fo"], spared.counts("escort")["fa"]) == (1, 1)


def test_ballot_of_a_mayor_decides_with_its_weight_from_the_day_it_shows_itself() -> None:
    """Two guilty against four innocent; with the weight of three it is four against four."""
    for is_revealed in (False, True):
        table = Recorded("mayor", "doctor", "lookout", "escort", "godfather", "mafioso", "sheriff")
        table.go_to(Phase.DISCUSSION, day=2)
        if is_revealed:
            table.act("mayor", "reveal")
        table.judge("godfather", {"mayor": "guilty", "sheriff": "guilty"}, others="innocent")
        table.go_to(Phase.DISCUSSION, day=3)
        if not is_revealed:
            table.act("mayor", "reveal")
        # At four against four the verdict hangs on each innocent ballot.
        assert ("bd" in table.counts("doctor")) == is_revealed
        assert "bd" not in table.counts("mayor")


def test_lies_are_contradicted_by_who_holds_the_role_and_by_the_grave_each_once() -> None:
    table = Recorded("jailor", "doctor", "escort", "godfather", "mafioso", "sheriff")
    table.go_to(Phase.DISCUSSION, day=2)
    table.say("godfather", "I am the Jailor.")
    table.say("mafioso", f"{table.name('escort')} is the Framer.")
    assert "lc" not in table.counts("godfather")
    table.say("jailor", "I am the Jailor.")
    assert table.counts("godfather")["lc"] == 1
    table.end_round()
    table.say("sheriff", f"{table.name('godfather')} is evil.")
    assert (table.counts("godfather")["lc"], "lc" in table.counts("mafioso")) == (1, False)
    table.lynch("escort")
    table.go_to(Phase.DISCUSSION, day=3)
    table.say("mafioso", "I am the Doctor.")

    mafioso = table.counts("mafioso")
    assert [mafioso[key] for key in ("cl", "lc", "li", "ld", "lb", "lh")] == [2, 1, 1, 2, 2, 1]
    # The true Jailor lies not, and is contradicted by a liar.
    assert "cl" not in table.counts("jailor")


def test_actions_at_night_count_as_effective_by_what_came_of_them() -> None:
    crowd = ("sheriff", "doctor", "escort", "godfather", "mafioso", "framer", "janitor", "investigator", "jester")
    for deeds, effective in (
        ({"mafioso": ("kill", "sheriff")}, {"mafioso"}),
        ({"mafioso": ("kill", "sheriff"), "doctor": ("heal", "sheriff")}, {"doctor"}),
        ({"mafioso": ("kill", "sheriff"), "doctor": ("heal", "escort")}, {"mafioso"}),
        ({"godfather": ("kill", "sheriff"), "mafioso": ("kill", "escort")}, {"godfather", "mafioso"}),
        ({"sheriff": ("interrogate", "jester"), "framer": ("frame", "doctor")}, {"sheriff", "framer"}),
        ({"escort": ("block", "framer"), "framer": ("frame", "doctor")}, {"escort"}),
        ({"escort": ("block", "jester")}, set()),
        ({"escort": ("block", "mafioso"), "mafioso": ("kill", "sheriff")}, {"escort"}),
        ({"janitor": ("clean", "sheriff")}, set()),
        ({"janitor": ("clean", "sheriff"), "mafioso": ("kill", "sheriff")}, {"janitor", "mafioso"}),
    ):
        table = Recorded(*crowd)
        table.night(deeds)
        assert {who for who in crowd if "ne" in table.counts(who)} == effective, deeds
        assert {who for who in crowd if "na" in table.counts(who)} == set(deeds), deeds
    table = Recorded("jailor", *crowd)
    table.act("jailor", "jail", "sheriff")
    table.night({"doctor": ("heal", "sheriff"), "mafioso": ("kill", "sheriff")})
    assert [table.counts(who).get("ne", 0) for who in ("doctor", "mafioso")] == [0, 0]


def test_a_new_life_counts_as_effective_where_it_was_given() -> None:
    table = Recorded("amnesiac", "retributionist", *SIX, options=Options(retri="revive"))
    table.go_to(Phase.DISCUSSION, day=2)
    table.lynch("escort")
    table.night({"retributionist": ("revive", "escort"), "amnesiac": ("remember", "escort")})
    assert [table.counts(who).get("ne", 0) for who in ("retributionist", "amnesiac")] == [1, 1]


def test_probabilities_are_read_from_what_players_state_in_earnest() -> None:
    for text, found in (
        ("I am 70% sure that Abel is Mafia.", ("mafia", 70)),
        ("I'm about 70 % sure Abel is mafia.", ("mafia", 70)),
        ("70 percent certain Abel is not Mafia!", ("mafia", 30)),
        ("There is an 85% chance that Abel is evil.", ("evil", 85)),
        ("A 20% probability of Abel being a member of the Mafia.", ("mafia", 20)),
        ("Abel is 40% likely to be the Godfather.", ("role", 40)),
        ("Abel: 60% mafia.", ("mafia", 60)),
        ("Abel is town (90%).", ("town", 90)),
        ("Abel is innocent, I'm 55% sure.", ("not evil", 55)),
        ("I am 99.5% sure Abel isn't guilty.", ("evil", 1)),
        ("100% sure Abel is mafia.", ("mafia", 100)),
        ("Are you 70% sure that Abel is Mafia?", None),
        ("Bob says he is 70% sure that Abel is Mafia.", None),
        ("If it is 70% that Abel is Mafia, vote.", None),
        ("I am 170% sure that Abel is Mafia.", None),
        ("I am 70% done.", None),
        ("Abel is Mafia.", None),
    ):
        read = estimates(text, ("Abel", "Bob"))
        assert [(claim.says.value, percent) for claim, percent in read] == ([found] if found else []), text
        assert all(claim.about == "Abel" for claim, _ in read)


def test_stated_probabilities_are_scored_by_what_was_so() -> None:
    table = Recorded(*SIX, "jester")
    boss, jester = table.name("godfather"), table.name("jester")
    table.go_to(Phase.DISCUSSION, day=2)
    table.say("sheriff", f"I am 70% sure that {boss} is Mafia. {boss} is 20% likely to be town.")
    # Of a neutral it is not so, and not otherwise, that they are evil.
    table.say("doctor", f"I am 90% sure that {jester} is evil.")
    sheriff = table.counts("sheriff")

    assert {key: sheriff[key] for key in ("pn", "pt", "pp", "pe")} == {"pn": 2, "pt": 1, "pp": 90, "pe": 900 + 400}
    assert "pn" not in table.counts("doctor")


def _games(count: int) -> Iterator[tuple[Any, JsonObject, list[TurnRecord]]]:
    for seed in range(count):
        game = open_game(ELEVEN, seed=seed)
        others = {0: clumsy, 5: POLICIES["random"]}
        turns = play(game, others.get(seed % 10, POLICIES["heuristic"]), seed=seed)
        assert game.outcome is not None
        yield game.outcome, game.record(), turns


@pytest.mark.parametrize("games", first(1, (6, MOST), rest="nightly"))
def test_measures_are_those_counted_anew_from_the_transcripts_and_add_up_in_the_summary(games: int) -> None:
    results, sums = RESULTS.counter(), Counter[str]()
    # They occur in the games above, or are counts of tokens.
    elsewhere = {Count.STATED, Count.STATED_TRUE, Count.STATED_PERCENT, Count.STATED_ERROR, Count.SPOKE_FOR_ACQUITTED}
    elsewhere |= {Count.BALLOT_DECISIVE, Count.BALLOT_DECISIVE_RIGHT}
    elsewhere |= {Count.ACQUITTED, Count.DEFENDED_ACQUITTED, Count.BACKER_SWAYED}
    elsewhere |= {Count.COUNTED_REPLY, Count.PROMPT_TOKENS, Count.COMPLETION_TOKENS}
    left = {*Count}
    for outcome, record, turns in _games(games):
        results.add(outcome, "here")
        expected = counted_anew(outcome, record, turns)
        for player in outcome["players"]:
            assert player["measures"] == expected[player["agent"]], player
            for key, count in player["measures"].items():
                sums[key.partition(".")[0]] += count
            sums[Count.SEAT] += 1
        left = {*Count} - sums.keys() - elsewhere
        if not left:
            break
    else:
        assert games < MOST, f"none has {left}"
    report: Any = results.report()["measures"]
    for group in ("by_definition", "by_model", "by_role"):
        cells = [cell for name in report[group].values() for cell in name.values()]
        for declared in DECLARED:
            found = [cell[declared.key] for cell in cells if declared.key in cell]
            hits = sum(cell["wins" if declared.kind == "rate" else "total"] for cell in found)
            assert sum(cell["n"] for cell in found) == sum(sums[count] for count in declared.of), declared
            assert hits == sum(sums[count] * weight for count, weight in declared.hits.items()), declared


DECLARED = [measure for measure in MEASURES if not measure.part]
PAGE = Path(__file__).parents[4] / "docs" / "town_of_salem.md"


def game(*seats: tuple[str, str, str, dict[str, int]], model: str = "m") -> JsonObject:
    """An outcome of players with a definition, a role, a faction and counts."""
    players: list[JsonValue] = [
        game_player(definition=definition, model=model, role=role, faction=faction, measures={**counts})
        for definition, role, faction, counts in seats
    ]
    return {"kind": "game", "ending": "win", "days": 3, "winners": [], "players": players}


def measured(*games: JsonObject) -> Any:
    results = RESULTS.counter()
    for outcome in games:
        results.add(outcome, "here")
    return json.loads(json.dumps(results.report())).get("measures", {})


GAMES = (
    game(
        ("a", "sheriff", "town", {"vn.2": 2, "vr.2": 1, "vc.2": 600, "vn.10": 1, "vr.10": 1, "re": 4, "x.illegal": 1}),
        ("a", "doctor", "town", {"vn.2": 1, "vc.2": 300, "re": 6, "li": 1, "ld": 2}),
        ("b", "framer", "mafia", {"li": 1, "ld": 3, "cl": 2, "ch": 1}),
    ),
    game(("a", "sheriff", "town", {"vn.2": 1, "vr.2": 1, "vc.2": 250}), ("b", "framer", "mafia", {})),
)


def test_counts_of_a_game_are_added_up_before_games_are_compared() -> None:
    """Four votes of one game and one of another, of which two and one were right."""
    town = measured(*GAMES)["by_definition"]["a"]["town"]
    counted = ClusteredRate()
    counted.add(2, 4)
    counted.add(1, 1)
    interval = counted.interval
    assert interval is not None

    by_day = town["vote_accuracy"].pop("by_day")
    bounds = [round(interval.lo, 4), round(interval.hi, 4)]
    assert town["vote_accuracy"] == {"n": 5, "games": 2, "wins": 3, "rate": 0.6, "interval": bounds}
    assert {day: (told["n"], told["wins"]) for day, told in by_day.items()} == {"2": (4, 2), "10": (1, 1)}
    assert [*by_day] == ["2", "10"]
    lift = town["vote_lift"]
    assert (lift["n"], lift["games"], lift["total"], lift["mean"]) == (5, 2, 3000 - 1150, 0.37)
    by_cause = town["refusals"].pop("by_cause")
    assert by_cause == {"illegal": town["refusals"]}
    assert (town["refusals"]["n"], town["refusals"]["wins"]) == (10, 1)
    assert (town["liars"]["n"], town["liars"]["wins"]) == (3, 1)
    assert (town["first_lie_day"]["mean"], town["first_lie_day"]["interval"]) == (2.0, None)
    assert json.dumps(measured(*GAMES)) == json.dumps(measured(*reversed(GAMES))), "in any order"


def test_measures_are_by_definition_and_model_with_faction_and_by_role_with_definition() -> None:
    found = measured(*GAMES)

    assert {group: {name: [*cells] for name, cells in names.items()} for group, names in found.items()} == {
        "by_definition": {"a": ["town"], "b": ["mafia"]},
        "by_model": {"m": ["mafia", "town"]},
        "by_role": {"doctor": ["a"], "framer": ["b"], "sheriff": ["a"]},
    }
    assert "by_day" not in found["by_role"]["sheriff"]["a"]["vote_accuracy"]
    assert found["by_model"]["m"]["mafia"]["lies"]["n"] == 3


def test_a_seat_that_never_had_a_turn_is_not_measured() -> None:
    idle = game(("a", "sheriff", "town", {}))

    assert measured(idle) == {}
    assert measured(idle, *GAMES) == measured(*GAMES)
    counter = RESULTS.counter()
    counter.add(idle, "here")
    assert "measures" not in counter.report()


@pytest.mark.parametrize("key", ["agent", "alive", "death", "died_on_day", "measures"])
def test_an_outcome_whose_player_lacks_a_field_is_refused_by_name(key: str) -> None:
    damaged: Any = game(("a", "sheriff", "town", {}))
    del damaged["players"][0][key]

    with pytest.raises(RunDirectoryError, match=rf"the row: .*`{key}`.*players\[0\]"):
        RESULTS.counter().add(damaged, "the row")
    damaged["players"][0][key] = [[]]
    with pytest.raises(RunDirectoryError, match=rf"the row: .*players\[0\]\.{key}"):
        RESULTS.counter().add(damaged, "the row")


def test_tables_have_a_row_for_each_measure_and_rates_are_figures_of_a_grid_but_no_headlines(
    snapshot: SnapshotAssertion,
) -> None:
    summary: JsonObject = {"measures": measured(*GAMES)}
    tables = [part for part in RESULTS.tables(summary) if not isinstance(part, str)]
    detection = next(table for table in tables if table.title.startswith("detection by definition"))
    text = render_summary({**summary, "experiment_name": "x"}, width=120)

    assert [table.title.split()[0] for table in tables[:3]] == ["deception", "detection", "form"]
    assert detection.words == ("measure", "definition")
    assert detection.numbers == ("mafia", "town")
    assert [" | ".join(row[:2]) for row in detection.rows] == snapshot
    assert detection.rows[1][3].startswith("+37 (")
    assert detection.rows[1][3].endswith(" n 5")
    assert "by model and" in text
    assert "interval by game" in text
    assert "measures" not in render_summary({"experiment_name": "x"})
    figures = RESULTS.figures(summary)
    assert (figures["vote_accuracy.a.town"].n, figures["vote_accuracy.a.town"].value) == (5, 0.6)
    assert not any(figure.is_headline or name.startswith("vote_lift") for name, figure in figures.items())


def test_what_is_documented_is_what_is_declared_and_each_count_is_used() -> None:
    """A count that is the numerator of a rate or a mean is described by its row."""
    page = PAGE.read_text(encoding="utf-8")
    rows = [f"| `{each.key}` | {each.kind} | `{each.formula}` | {each.caption} |" for each in DECLARED]
    said = {hit for each in DECLARED if len(each.hits) == 1 for hit in each.hits}
    rows += [f"| `{count}` | {count.meaning} |" for count in Count if count not in said]
    section = page.partition("\n## What is measured\n")[2].partition("\n## ")[0]
    documented = [line for line in section.splitlines() if line.startswith("| `")]

    assert documented == rows
    assert all(f"**{group.capitalize()}**" in section for group in dict.fromkeys(measure.group for measure in DECLARED))
    used = {count for declared in DECLARED for count in (*declared.of, *declared.hits)}

    assert used == {*Count}
    for names in ([declared.key for declared in DECLARED], [declared.value for declared in DECLARED]):
        assert len(set(names)) == len(names)


def test_mean_over_games_is_as_wide_as_games_differ() -> None:
    """Games of equal totals and cases say the mean for sure, one game says nothing of it."""
    equal, one, unlike = ClusteredMean(), ClusteredMean(), ClusteredMean()
    one.add(30, 10)
    for total, n in ((10, 10), (50, 10), (0, 0)):
        unlike.add(total, n)
        equal.add(3 * n, n)

    assert one.interval is None
    assert equal.interval == (3.0, 3.0)
    interval = unlike.interval
    assert interval is not None
    assert (unlike.n, unlike.total, unlike.games) == (20, 60, 2)
    # Between two games of means 1 and 5 the standard error is 2.
    assert interval == pytest.approx((3 - 1.96 * 2, 3 + 1.96 * 2), abs=1e-3)
