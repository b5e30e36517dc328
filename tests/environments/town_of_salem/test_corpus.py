"""Some 500 replies as small models write them: read as meant, or asked again, and never read as something else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
import yaml

from mac_runner.environments.town_of_salem.testing import (
    Act,
    Chosen,
    DiscussionMode,
    GameState,
    Options,
    Phase,
    Problem,
    Reading,
    ToolRequest,
    check,
    check_beside,
    read,
)
from mac_runner.types import FinishReason, Reply
from tests.environments.town_of_salem.table import ELEVEN, Table

DAMAGES = 8
CORPUS = Path(__file__).parent / "corpus"
MANY = (*ELEVEN, "sheriff", "doctor", "escort", "medium", "framer", "lookout", "lookout", "lookout")
RARE = ("sheriff", "doctor", "mafioso", "jester", "transporter", "forger", "veteran", "godfather")


class Written(NamedTuple):
    """One reply of the corpus, where it is given, and what it has to be read as."""

    scene: str
    verdict: str
    text: str


class Scene(NamedTuple):
    """A moment of a game, and the seat that answers."""

    state: GameState
    seat: int


def corpus() -> Iterator[Written]:
    for file in sorted(CORPUS.glob("*.yaml")):
        for scene, verdicts in yaml.safe_load(file.read_text(encoding="utf-8")).items():
            for verdict, replies in verdicts.items():
                if verdict == "asked":
                    for cause, texts in replies.items():
                        yield from (Written(scene, f"asked {cause}", text) for text in texts)
                else:
                    yield from (Written(scene, verdict, text) for text in replies)


def scenes() -> dict[str, Scene]:
    def at(phase: Phase, who: str, roles: tuple[str, ...] = ELEVEN, *, day: int = 2, **options: str) -> Scene:
        table = Table(roles, options=Options(**options))  # type: ignore[arg-type]
        if phase in (Phase.DEFENCE, Phase.JUDGEMENT):
            table.accuse("godfather")
        table.go_to(phase, day=day)
        return Scene(table.state, table.seat(who))

    revoting = Table(ELEVEN)
    revoting.go_to(Phase.VOTING)
    revoting.act("sheriff", "vote", "investigator")
    revoting.end_round()
    return {
        "voting": at(Phase.VOTING, "sheriff"),
        "revote": Scene(revoting.state, 0),
        "many": at(Phase.VOTING, "sheriff", MANY),
        "greeting": at(Phase.GREETING, "sheriff", day=1),
        "discussion": at(Phase.DISCUSSION, "sheriff"),
        "jailor": at(Phase.DISCUSSION, "jailor"),
        "bidding": at(Phase.BIDDING, "sheriff", discussion_mode=DiscussionMode.BIDDING),
        "defence": at(Phase.DEFENCE, "godfather"),
        "judgement": at(Phase.JUDGEMENT, "sheriff"),
        "sheriff": at(Phase.NIGHT, "sheriff"),
        "doctor": at(Phase.NIGHT, "doctor"),
        "mafia": at(Phase.NIGHT_CHAT, "godfather"),
        "transporter": at(Phase.NIGHT, "transporter", RARE),
        "forger": at(Phase.NIGHT, "forger", RARE),
        "veteran": at(Phase.NIGHT, "veteran", RARE),
    }


def shown(reading: Reading, state: GameState) -> str:
    """A reading in the words of the corpus."""
    match reading:
        case Problem(cause):
            return f"asked {cause}"
        case ToolRequest():
            return f"tool {reading.name}({reading.argument})"
        case Chosen():
            acts = [reading.act, *([reading.speech] if reading.speech else []), *reading.side_acts]
            return " + ".join(_shown(act, state) for act in acts)


def _shown(act: Act, state: GameState) -> str:
    where = [f"in {act.choice}"] if act.verb == "speak" and act.choice else [act.choice] if act.choice else []
    head = " ".join([act.verb, *(state.players[seat].name for seat in act.targets), *where])
    return f"{head}: {act.text}" if act.text else head


def test_every_reply_of_the_corpus_is_read_as_meant_or_asked_again() -> None:
    known = scenes()
    wrong = []
    for scene, verdict, text in corpus():
        state, seat = known[scene]
        found = shown(reading := read(Reply(text=text), state, seat), state)
        if found != verdict:
            why = f" ({reading.reason})" if isinstance(reading, Problem) else ""
            wrong.append(f"{scene}: {text!r}\n    is {verdict!r}, was {found!r}{why}")

    assert not wrong, f"{len(wrong)} replies:\n" + "\n".join(wrong)


def test_corpus_holds_480_replies_and_no_two_alike() -> None:
    texts = [(scene, text) for scene, _, text in corpus()]

    assert len(set(texts)) == len(texts) >= 480


def test_what_the_first_edition_reads_is_read_the_same() -> None:
    """Mending begins where a reply cannot be used; it never gives another sense to one that can.

    But for words that name the one player they are for: they were said to all, and are asked again now.
    """
    known, usable = scenes(), 0
    for scene, _, text in corpus():
        state, seat = known[scene]
        first = read(Reply(text=text), replace(state, options=replace(state.options, edition=1)), seat)
        if not isinstance(first, Problem):
            usable += 1
            now = read(Reply(text=text), state, seat)
            if text.startswith(("<speak to=", "<speak target=")):
                assert isinstance(now, Problem), text
            else:
                assert now == first, text
    assert usable > 50


def test_no_misspelling_of_one_name_is_read_as_another() -> None:
    """Every slip of one letter in every name, at a table of nineteen: its player, or asked again."""
    state, seat = scenes()["many"]
    asked = 0
    for player in state.players[1:]:
        for slip in _slips(player.name):
            reading = read(Reply(text=f"<vote>{slip}</vote>"), state, seat)
            assert isinstance(reading, Problem) or reading == Chosen(
                act=Act(seat=0, verb="vote", targets=(player.seat,))
            )
            asked += isinstance(reading, Problem)
    assert asked, "some slips are as near to another name"


def _slips(name: str) -> Iterator[str]:
    for place in range(len(name)):
        yield name[:place] + name[place + 1 :]
        yield from (name[:place] + letter + name[place + 1 :] for letter in "aeilmnsx")
        yield from (name[:place] + letter + name[place:] for letter in "aeilmnsx")


def test_correction_names_those_whom_a_name_may_mean() -> None:
    state, seat = scenes()["many"]
    for text, expected in (
        ("<vote>Slias</vote>", "which may be Elias or Silas; write the name in full"),
        ("<vote>Caleb and Hester</vote>", "names Caleb and Hester; name one player"),
        ("<vote>Tabitha</vote>", "who is not a player; name one of: Beatrice, Caleb,"),
    ):
        reading = read(Reply(text=text), state, seat)
        assert isinstance(reading, Problem)
        assert expected in reading.reason


def test_reply_that_was_cut_off_is_not_mended() -> None:
    state, seat = scenes()["voting"]
    for text in ('{"act": "vote", "target": "Caleb"', "<vote>Caleb", '<vote target="Caleb">', "Vote: Caleb"):
        assert isinstance(read(Reply(text=text), state, seat), Chosen)
        assert isinstance(read(Reply(text=text, finish_reason=FinishReason.LENGTH), state, seat), Problem)


@pytest.mark.ci
def test_any_damage_to_a_reply_of_the_corpus_is_read_as_something_legal_or_a_problem() -> None:
    known, chance, counts = scenes(), Random(11), dict.fromkeys((Chosen, Problem, ToolRequest), 0)
    pieces = [text for _, _, text in corpus()]
    junk = ["", *"<>{}\"'[]\\:,\n", "[[[[", '"spec": 1,', *"\ud800\u0130𝐯"]
    for scene, _, text in corpus():
        state, seat = known[scene]
        for _ in range(DAMAGES):
            damaged = text + chance.choice(["", "\n", " "]) + chance.choice(["", chance.choice(pieces)])
            for _ in range(chance.randint(1, 3)):
                place = chance.randint(0, len(damaged))
                damaged = damaged[:place] + chance.choice(junk) + damaged[place + chance.randint(0, 2) :]
            reading = read(Reply(text=damaged), state, seat)
            counts[type(reading)] += 1
            if isinstance(reading, Chosen):
                for act in (reading.act, *reading.side_acts):
                    check(state, act)
                if reading.speech is not None:
                    check_beside(state, reading.speech)
    assert min(counts.values()) > DAMAGES
