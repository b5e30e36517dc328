"""What is understood of free speech, whether its speaker knew better, and what scripted players say.

`sentences.yaml` says sentence by sentence what is claimed, `verdicts.yaml` what is a lie by the roles held and the
results received when it was said. A sentence of a scripted player claims what its kind means, and all sides talk alike.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from math import log
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import msgspec
import pytest
import yaml

from mac_runner.environments.town_of_salem.model.role import NightAbility
from mac_runner.environments.town_of_salem.testing import (
    CONTINUING,
    LOBBIES,
    NAMES,
    POLICIES,
    RESULT,
    ROLES,
    Claim,
    ClaimKind,
    Event,
    EventKind,
    Faction,
    Game,
    Kind,
    Notice,
    RoleHistory,
    Says,
    Sentence,
    Statement,
    Utterance,
    extract,
    judged_claims,
    plain,
    points_in,
    private,
    public,
    understand,
    wordings,
)
from mac_runner.types import JsonObject
from tests.environments.town_of_salem.table import EVENT_KINDS, Table, ended, open_game, play, rows


def told(claim: Claim) -> str:
    """`result Elias: one of the roles Doctor, Spy`."""
    details = ", ".join((*claim.roles, *claim.names))
    about = f" {claim.about}" if claim.about else ""
    return f"{claim.kind.value}{about}: {claim.says.value} {details}".strip()


def cases_of(name: str) -> Any:
    return yaml.safe_load(Path(__file__).with_name(name).read_text(encoding="utf-8"))


def test_sentences_hold_the_claims_they_are_to_hold_and_no_others() -> None:
    cases = {text: claims for group in cases_of("sentences.yaml").values() for text, claims in group.items()}

    assert {text: [*map(told, extract(text, (*NAMES, "Ann", "Bob")))] for text in cases} == cases
    assert len(cases) >= 119


def test_span_holds_the_words_of_the_claim() -> None:
    text = "Well… “hm”. I’m the Serial Killer; Felicity & Abel: hello! I think FELICITY is the Vampire Hunter, really."
    words = ["I’m the Serial Killer", "FELICITY is the Vampire Hunter"]

    assert [text[claim.start : claim.end] for claim in extract(text, NAMES)] == words


def test_fixed_sentences_of_scripted_players_mean_what_they_say() -> None:
    spy, abel, caleb = plain("claim", role="Spy"), plain("guilty", name="Abel"), plain("innocent", name="Caleb")
    text = f"{spy} {abel} {caleb} Elias is the Witch."
    assert [*map(told, extract(text, NAMES))] == [
        "role: role Spy",
        "result Abel: suspicious",
        "result Caleb: not suspicious",
        "accusation Elias: role Witch",
    ]
    wizard, sheriff, other = (
        plain("claim", role="Wizard"),
        plain("claim", role="Sheriff"),
        plain("guilty", name="Caleb"),
    )
    text = f"{wizard} {sheriff} {abel} {other} {plain('innocent', name='Beatrice')}"
    assert understand(text) == Statement(claims="Sheriff", accuses=("Abel", "Caleb"), clears=("Beatrice",))
    assert understand(plain("claim dead", role="Doctor")).claims == "Doctor"
    for said in (
        "I like the Sheriff.",
        "I do not think Abel is suspicious.",
        "I am the Sheriff's friend.",
        "Caleb told me: I am the Sheriff.",
        "Never would I say I found that Abel is suspicious.",
    ):
        assert understand(said) == Statement(claims=None, accuses=(), clears=()), said


def test_any_text_is_read_to_its_end_and_spans_lie_within_it() -> None:
    """A pattern that backtracks exponentially would not come to one; tests/attacks/test_reading_costs.py measures."""
    chance = Random(7)
    words = [*NAMES[:4], "I", "am", "the", "Sheriff", "is", "not", "mafia", "saw", "and", "if", *',.?"’\n']
    for _ in range(400):
        text = " ".join(chance.choices(words, k=25))
        for found in extract(text, NAMES):
            assert 0 <= found.start < found.end <= len(text)
            assert found.about in ("", *NAMES)
    hostile = ("I ", "Abel, ", "Abel and ", "I checked Abel ", "very ", "Abel is really ", "I am the real ", '"', "N1 ")
    for piece in hostile:
        extract((piece * 2000)[:2000], NAMES)
    # The characters that stand for names and roles are read as nothing when a text brings them along.
    assert extract("I am the \ue000. \ue100 is mafia.", NAMES) == ()


def test_results_count_for_and_against_like_opinions() -> None:
    guilty, innocent = extract(f"{plain('guilty', name='Abel')} {plain('innocent', name='Caleb')}", NAMES)

    assert (guilty.kind, guilty.says) == (ClaimKind.RESULT, Says.SUSPICIOUS)
    assert (guilty.is_against, guilty.is_in_favour) == (True, False)
    assert (innocent.is_against, innocent.is_in_favour) == (False, True)


# Whether speakers said what they knew.

SEATED = ("sheriff", "investigator", "lookout", "doctor", "godfather", "jester", "serial killer", "mafioso")
BY_ROLE = dict(zip((role.split()[-1] for role in SEATED), NAMES, strict=False))
JESTER, KILLER = BY_ROLE["jester"], BY_ROLE["killer"]


def named(value: Any) -> Any:
    return value.format(**BY_ROLE) if isinstance(value, str) else value


def judged(speaker: str, text: str, learned: Mapping[str, Mapping[str, str]]) -> list[JsonObject]:
    """What is claimed in `text` when the speaker had learned these things; all learn of deaths."""
    table = Table(SEATED)
    names = tuple(player.name for player in table.state.players)
    seat = names.index(speaker)
    events: list[Event] = [*table.events]
    for kind, data in (
        (EVENT_KINDS[name], {key: named(value) for key, value in told.items()}) for name, told in learned.items()
    ):
        is_public = kind in (EventKind.DEATH, EventKind.REVEALED)
        events.append(public(table.state, kind, **data) if is_public else private(table.state, kind, (seat,), **data))
    said = Utterance(event=len(events), day=2, phase=table.state.phase, player=speaker, channel="public", text=text)
    found: list[Any] = msgspec.to_builtins(judged_claims([said], names, RoleHistory(events, table.state.players)))
    return found


def test_claims_are_judged_by_what_their_speaker_knew(subtests: pytest.Subtests) -> None:
    for group, cases in cases_of("verdicts.yaml").items():
        for case in cases:
            speaker, text = BY_ROLE[case["speaker"]], str(case["says"]).format(**BY_ROLE)
            with subtests.test(group, text=text):
                (row,) = judged(speaker, text, case.get("learned", {}))
                expected = {key: named(value) for key, value in case["is"].items()}
                assert {key: row.get(key) for key in expected} == expected


def test_notice_of_a_role_proves_the_visitors_that_it_names_and_no_others() -> None:
    seen = Notice(name="seen", words="{target} visited {visited}.", says=Says.VISITED_BY, is_finding=True)
    table = Table(SEATED)
    names = [player.name for player in table.state.players]
    events = [*table.events, private(table.state, seen, (0,), target=names[1], visited=[names[2]])]
    history = RoleHistory(events, table.state.players)
    verdicts = [
        judged_claims(
            [
                Utterance(
                    event=len(events), day=2, phase=table.state.phase, player=names[0], channel="public", text=text
                )
            ],
            tuple(names),
            history,
        )[0].verdict
        for text in (f"{names[1]} visited {names[2]}.", f"{names[3]} visited {names[2]}.")
    ]

    assert verdicts == ["honest", "lie"]


def test_claim_counts_with_the_role_and_the_results_of_the_moment_it_was_made() -> None:
    """The same words before and after a change of role, and before and after the night of the result."""
    table = Table(SEATED)
    names = tuple(player.name for player in table.state.players)
    events: list[Event] = [*table.events]
    early = len(events)
    events.append(private(table.state, EventKind.CONVERTED, (5,), role="Sheriff"))
    events.append(private(table.state, RESULT, (5,), about=KILLER, finding="suspicious"))
    text = f"I am the Sheriff. I found that {KILLER} is suspicious."
    said = [
        Utterance(event=event, day=1, phase=table.state.phase, player=JESTER, channel="public", text=text)
        for event in (len(events), early)
    ]
    told = judged_claims(said, names, RoleHistory(events, table.state.players))

    assert [claim.verdict for claim in told] == ["lie", "lie", "honest", "honest"]


def test_record_tells_where_each_claim_stands_and_who_made_it() -> None:
    """The Jailor speaks as `Jailor`: the record knows who that is."""
    game, _ = ended()
    events = rows(game, "events")
    for found in rows(game, "claims"):
        said = events[found["event"]]["data"]
        text, start, end = said.get("text") or said.get("will"), found["start"], found["end"]
        assert (start, end, found["kind"]) in [(one.start, one.end, one.kind) for one in extract(text, NAMES)]
        named = [*found.get("roles", []), *([found["about"]] if found["about"] != found["player"] else [])]
        assert [name for name in named if name.lower() not in text[start:end].lower()] == [], text[start:end]
        assert found["verdict"] in ("honest", "lie", "unclear")
        assert found["player"] in {player.name for player in game.state.players}

    assert {"public", "jail", "dead"} <= {found["channel"] for found in rows(game, "claims")}


def test_forged_will_is_told_as_the_words_of_its_forger() -> None:
    game = open_game(("forger", "mafioso", "sheriff", "doctor", "investigator", "escort"))
    forger, _, victim, *_ = (player.name for player in game.state.players)

    def policy(view: Any, chance: object) -> str:
        choices = {choice.verb: choice for choice in view.choices}
        if "forge" in choices and victim in choices["forge"].targets:
            return f'<forge to="{victim}">I was the Godfather.</forge>'
        if "kill" in choices and victim in choices["kill"].targets:
            return f"<kill>{victim}</kill>"
        return "<wait/>"

    play(game, policy)
    (found,) = [claim for claim in rows(game, "claims") if claim["channel"] == "will"]
    assert (found["player"], found["verdict"]) == (forger, "lie")


# What scripted players say.

ACCOUNTS = [
    ability.account
    for role in ROLES.values()
    for ability in role.abilities
    if isinstance(ability, NightAbility) and ability.account
]


def said(text: str) -> list[tuple[str, str, str, tuple[str, ...]]]:
    """The claims in a text: kind, what is said, about whom, roles."""
    return [(claim.kind.value, claim.says.value, claim.about, claim.roles) for claim in extract(text, NAMES)]


def meant(kind: Kind, fields: Mapping[str, str]) -> list[tuple[str, str, str, tuple[str, ...]]]:
    """The claims that a sentence of that kind is to hold."""
    name, names, role = fields["name"], fields["names"], fields["role"]
    is_town = ROLES[role.lower()].faction is Faction.TOWN
    claims: dict[str, list[tuple[str, str, str, tuple[str, ...]]]] = {
        "": [],
        "the speaker is {role}": [("role", "role", "", (role,))],
        "the speaker was {role}": [("role", "role held before", "", (role,))],
        "the speaker found {name} suspicious": [("result", "suspicious", name, ())],
        "the speaker found {name} not suspicious": [("result", "not suspicious", name, ())],
        "{name} is evil": [("accusation", "evil", name, ())],
        "{name} is not evil": [("defence", "not evil", name, ())],
        "none of {names} is evil": [("defence", "not evil", each, ()) for each in re.findall("[A-Z][a-z]+", names)],
        "{name} is {role}": [("defence" if is_town else "accusation", "role", name, (role,))],
    }
    return claims[kind.means]


def fillings() -> Iterator[dict[str, str]]:
    """Fields for every role, with names and accounts that change."""
    for number, role in enumerate(ROLES.values()):
        me, name, other, victim, *more = (NAMES[(number * 7 + step) % len(NAMES)] for step in range(7))
        yield {
            "me": me,
            "name": name,
            "other": other,
            "victim": victim,
            "names": f"{', '.join([name, *more[: number % 3]])} and {more[-1]}",
            "role": role.name,
            "a_role": f"an {role.name}",
            "account": ACCOUNTS[number % len(ACCOUNTS)].format(target=other),
            "night": str(1 + number % 14),
            "day": str(2 + number % 14),
            "count": str(2 + number % 4),
        }


def sentences() -> Iterator[tuple[Kind, str, dict[str, str]]]:
    """Every wording with every filling."""
    for kind in wordings().kinds.values():
        for wording in kind.wordings:
            for fields in fillings():
                yield kind, wording.format(**fields), fields


@pytest.mark.ci
def test_every_wording_claims_what_its_kind_means_and_nothing_else() -> None:
    wrong = [(text, said(text)) for kind, text, fields in sentences() if said(text) != meant(kind, fields)]

    assert not wrong[:20]


def test_sentences_said_one_after_another_claim_what_each_claims_alone() -> None:
    chance = Random(1)
    told = [(text, meant(kind, fields)) for kind, text, fields in sentences()]
    speeches = [chance.sample(told, chance.randint(2, 4)) for _ in range(1_500)]
    wrong = [
        speech
        for speech in speeches
        if said(" ".join(text for text, _ in speech)) != [claim for _, claims in speech for claim in claims]
    ]

    assert not wrong[:5]
    assert not [text for text, _ in told if re.match(CONTINUING, text, re.I)]


def test_players_understand_each_sentence_as_its_speaker_meant_it() -> None:
    """The points by which a speaker knows what it has said are the beliefs its hearers take from it."""
    against = {"accusation", "suspicious"}
    for kind, text, fields in sentences():
        heard = understand(text)
        points = {
            ("role", roles[0]) if what == "role" else ("against" if against & {what, says} else "for", about)
            for what, says, about, roles in meant(kind, fields)
        }
        assert heard.points() == points_in([Sentence(kind, fields)]) == points, text
        is_choice = kind.name in ("target", "target agreed")
        assert heard.takes == (fields["name"] if is_choice else None), text


class Said(NamedTuple):
    """One thing said in a game."""

    game: Game
    speaker: str
    is_town: bool
    event: Event
    text: str
    is_public: bool


@cache
def talk() -> list[Said]:
    """All that is said in some games of heuristic players, but for those who go by their role."""
    found: list[Said] = []
    for seed in range(12):
        roles = [*LOBBIES["classic-10"], *(("lookout", "spy", "mayor") if seed % 4 == 3 else ())]
        Random(seed).shuffle(roles)
        game = open_game(roles, seed=seed)
        play(game, POLICIES["heuristic"], seed=seed)
        is_town = {player.name: ROLES[player.dealt].faction is Faction.TOWN for player in game.state.players}
        for event in game.log.events:
            speaker = str(event.data.get("player"))
            if event.kind in (EventKind.SPEECH, EventKind.CHAT) and speaker in is_town:
                is_public = event.kind is EventKind.SPEECH
                found.append(Said(game, speaker, is_town[speaker], event, event.text("text"), is_public))
    return found


@cache
def _patterns() -> list[tuple[str, re.Pattern[str]]]:
    """Each wording as a pattern, with the name of its kind."""
    field = {"account": r"I [\w ]+?", "night": r"\d+", "day": r"\d+", "count": r"\d+"}
    word = r"(?:an? )?[A-Z][a-z]+(?:(?:, | and | )[A-Z][a-z]+)*"

    def pattern(wording: str) -> re.Pattern[str]:
        parts = enumerate(re.split(r"\{(\w+)\}", wording))
        texts = (field.get(part, word) if place % 2 else re.escape(part) for place, part in parts)
        return re.compile("".join(texts) + r"(?: |$)")

    return [(kind.name, pattern(wording)) for kind in wordings().kinds.values() for wording in kind.wordings]


def kinds_in(text: str) -> list[str]:
    """The kinds of the sentences of a speech; raises where a sentence is of no kind."""
    found: list[str] = []
    place = 0
    while place < len(text):
        ends = [(match.end(), name) for name, pattern in _patterns() if (match := pattern.match(text, place))]
        assert ends, text[place:]
        place, name = max(ends)
        found.append(name)
    return found


@pytest.mark.ci
def test_players_say_nothing_twice_and_many_kinds_of_sentence() -> None:
    """A speaker who has used all wordings of a kind must begin again; that is rare."""
    texts = Counter((id(one.game), one.speaker, one.text) for one in talk())
    kinds = Counter(kind for one in talk() if one.is_public for kind in kinds_in(one.text))

    assert sum(texts.values()) - len(texts) <= len(talk()) // 200
    assert sum(count >= 5 for count in kinds.values()) >= 20


# They rest on what a player found out or heard as one of the Town: nobody else has that to say.
OF_FINDERS = {
    *("innocent", "innocent night", "cleared", "called on", "shown", "confidence", "heard from the dead", "caught"),
}
Speaker = tuple[int, str, bool]
"""A game, a name, and whether it is of the Town."""


@pytest.mark.ci
def test_manner_of_speech_betrays_no_side() -> None:
    """Both sides use each kind of sentence; one who reads only what claims nothing can hardly tell them apart."""
    used = {True: Counter[str](), False: Counter[str]()}
    speakers: dict[Speaker, list[str]] = defaultdict(list)
    silent = {name for name, kind in wordings().kinds.items() if not kind.means}
    for one in talk():
        if one.is_public:
            kinds = kinds_in(one.text)
            used[one.is_town].update(kinds)
            speakers[id(one.game), one.speaker, one.is_town] += [kind for kind in kinds if kind in silent]
    often = {kind for kind, count in (used[True] + used[False]).items() if count >= 20}

    assert {kind for kind in often if not used[True][kind] or not used[False][kind]} <= OF_FINDERS
    right = sum(_guess(speaker, speakers) is speaker[2] for speaker in speakers)
    town = sum(is_town for _, _, is_town in speakers)
    assert right <= max(town, len(speakers) - town) + len(speakers) // 10


def _guess(whom: Speaker, speakers: Mapping[Speaker, list[str]]) -> bool:
    """Whether naive Bayes, learned from the other games, takes a speaker for one of the Town."""
    seen = {True: Counter[str](), False: Counter[str]()}
    players = Counter[bool]()
    for (game, _, is_town), kinds in speakers.items():
        if game != whom[0]:
            seen[is_town].update(kinds)
            players[is_town] += 1
    score = {side: log(players[side]) for side in seen}
    for side, counts in seen.items():
        score[side] += sum(
            log((counts[kind] + 1) / (counts.total() + len(wordings().kinds))) for kind in speakers[whom]
        )
    return score[True] >= score[False]


@pytest.mark.ci
def test_town_tells_no_night_it_did_not_spend_and_no_finding_it_did_not_make() -> None:
    accounts = 0
    for one in talk():
        if not one.is_town:
            continue
        seat = next(player.seat for player in one.game.state.players if player.name == one.speaker)
        known = one.game.log.private[seat]
        learned = {event.text("about") for event in known if event.kind is RESULT}
        learned |= {name for event in known for key in ("visited", "visitors") for name in event.names(key)}
        results = {claim.about for claim in extract(one.text, NAMES) if claim.kind == "result"}
        assert results <= learned or "visited by" in str(known), one.text
        if one.is_public:
            last_night = [event for event in known if event.day == one.event.day - 1]
            chosen = {name for event in last_night for name in event.names("targets")}
            patterns = (account.format(target="([A-Z][a-z]+)") for account in ACCOUNTS)
            told = {found[1] for pattern in patterns if (found := re.search(pattern, one.text))}
            accounts += len(told)
            assert told <= chosen, one.text
    assert accounts > 10
