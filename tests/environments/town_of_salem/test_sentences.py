"""What scripted players say: each sentence claims what its kind means and nothing else, and all sides talk alike."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from math import log
from random import Random
from typing import NamedTuple

import pytest

from mac_runner.environments.town_of_salem.bots import night_talk
from mac_runner.environments.town_of_salem.roles.base import NightAbility
from mac_runner.environments.town_of_salem.testing import (
    CONTINUING,
    KINDS,
    LOBBIES,
    NAMES,
    POLICIES,
    ROLES,
    Event,
    EventKind,
    Faction,
    Game,
    Kind,
    Means,
    Sentence,
    extract,
    join_names,
    names_of,
    understand,
)
from tests.environments.town_of_salem.table import open_game, play

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
    name, role = fields["name"], fields["role"]
    match kind.means:
        case None:
            return []
        case Means.ROLE:
            return [("role", "role", "", (role,))]
        case Means.WAS_ROLE:
            return [("role", "role held before", "", (role,))]
        case Means.SUSPICIOUS:
            return [("result", "suspicious", name, ())]
        case Means.NOT_SUSPICIOUS:
            return [("result", "not suspicious", name, ())]
        case Means.EVIL:
            return [("accusation", "evil", name, ())]
        case Means.NOT_EVIL:
            return [("defence", "not evil", name, ())]
        case Means.ALL_NOT_EVIL:
            return [("defence", "not evil", each, ()) for each in names_of(fields["names"])]
        case Means.OTHER_ROLE:
            is_town = ROLES[role.lower()].faction is Faction.TOWN
            return [("defence" if is_town else "accusation", "role", name, (role,))]


def fillings() -> Iterator[dict[str, str]]:
    """Fields for every role, with names and accounts that change."""
    for number, role in enumerate(ROLES.values()):
        me, name, other, victim, *more = (NAMES[(number * 7 + step) % len(NAMES)] for step in range(7))
        yield {
            "me": me,
            "name": name,
            "other": other,
            "victim": victim,
            "names": join_names([name, *more[: 1 + number % 3]]),
            "role": role.name,
            "a_role": f"an {role.name}",
            "account": ACCOUNTS[number % len(ACCOUNTS)].format(target=other),
            "night": str(1 + number % 14),
            "day": str(2 + number % 14),
            "count": str(2 + number % 4),
        }


def sentences() -> Iterator[tuple[Kind, str, dict[str, str]]]:
    """Every wording with every filling."""
    for kind in KINDS.values():
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
    for kind, text, fields in sentences():
        heard = understand(text)
        points = {("against", name) for name in heard.accuses} | {("for", name) for name in heard.clears}
        points |= {("role", heard.claims)} if heard.claims else set()
        if kind.means is not Means.OTHER_ROLE:
            assert points == Sentence(kind, fields).points(), text
        is_choice = kind in (night_talk.TARGET, night_talk.TARGET_AGREED)
        assert heard.takes == (fields["name"] if is_choice else None), text


class Said(NamedTuple):
    """One thing said in a game."""

    game: Game
    speaker: str
    is_town: bool
    event: Event

    @property
    def text(self) -> str:
        return self.event.text("text")

    @property
    def is_public(self) -> bool:
        return self.event.kind is EventKind.SPEECH


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
                found.append(Said(game, speaker, is_town[speaker], event))
    return found


@cache
def _patterns() -> list[tuple[str, re.Pattern[str]]]:
    """Each wording as a pattern, with the name of its kind."""
    field = {"account": r"I [\w ]+?", "night": r"\d+", "day": r"\d+", "count": r"\d+"}
    word = r"(?:an? )?[A-Z][a-z]+(?:(?:, | and | )[A-Z][a-z]+)*"
    return [
        (
            kind.name,
            re.compile(
                "".join(
                    field.get(part, word) if place % 2 else re.escape(part)
                    for place, part in enumerate(re.split(r"\{(\w+)\}", wording))
                )
                + r"(?: |$)"
            ),
        )
        for kind in KINDS.values()
        for wording in kind.wordings
    ]


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
    "innocent",
    "innocent night",
    "cleared",
    "called on",
    "shown",
    "confidence",
    "heard from the dead",
    "caught",
}
Speaker = tuple[int, str, bool]
"""A game, a name, and whether it is of the Town."""


@pytest.mark.ci
def test_manner_of_speech_betrays_no_side() -> None:
    """Both sides use each kind of sentence; one who reads only what claims nothing can hardly tell them apart."""
    used = {True: Counter[str](), False: Counter[str]()}
    speakers: dict[Speaker, list[str]] = defaultdict(list)
    for one in talk():
        if one.is_public:
            kinds = kinds_in(one.text)
            used[one.is_town].update(kinds)
            speakers[id(one.game), one.speaker, one.is_town] += [kind for kind in kinds if KINDS[kind].means is None]
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
        score[side] += sum(log((counts[kind] + 1) / (counts.total() + len(KINDS))) for kind in speakers[whom])
    return score[True] >= score[False]


@pytest.mark.ci
def test_town_tells_no_night_it_did_not_spend_and_no_finding_it_did_not_make() -> None:
    accounts = 0
    for one in talk():
        if not one.is_town:
            continue
        seat = next(player.seat for player in one.game.state.players if player.name == one.speaker)
        known = one.game.log.private[seat]
        found = {event.text("about") for event in known if event.kind is EventKind.RESULT}
        found |= {name for event in known for key in ("visited", "visitors") for name in event.names(key)}
        results = {claim.about for claim in extract(one.text, NAMES) if claim.kind == "result"}
        assert results <= found or "visited by" in str(known), one.text
        if one.is_public:
            last_night = [event for event in known if event.day == one.event.day - 1]
            chosen = {name for event in last_night for name in event.names("targets")}
            told = {text for account in ACCOUNTS if (text := _target(account, one.text))}
            accounts += len(told)
            assert told <= chosen, one.text
    assert accounts > 10


def _target(account: str, text: str) -> str:
    found = re.search(account.format(target="([A-Z][a-z]+)"), text)
    return found[1] if found else ""
