"""A role from outside the package: registered, played by every kind of player, and gone without a trace."""

from __future__ import annotations

import runpy
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from mac_runner.environments import Policy
from mac_runner.environments.town_of_salem.roles import NightState, strike
from mac_runner.environments.town_of_salem.testing import (
    ACTS,
    POLICIES,
    RESULT,
    ROLES,
    Aim,
    Alignment,
    Choice,
    DayAbility,
    DeathCause,
    EventKind,
    Faction,
    Game,
    Level,
    NightAbility,
    Options,
    Phase,
    Prompts,
    Role,
    Seat,
    SeatView,
    Step,
    check_tactics,
    deal,
    extract,
    game_truth,
    others,
    register,
    role_list,
    roles_of,
    tactic,
    unregister,
    validate,
    write,
)
from mac_runner.types import JsonObject, Prompt, ReceiptKind, Turn
from tests.environments.town_of_salem.table import open_game, play, rows
from tests.faults.tier import SCALE

EXAMPLE = Path(__file__).parents[3] / "examples" / "nurse.py"
GAMES = 20
POISONED = DeathCause("poisoner", "poisoned by a Poisoner", is_visible=True)
LOBBY = ("poisoner", "investigator", "sheriff", "doctor", "lookout", "bodyguard", "jester", "any")
OPTIONS = Options(discussion_rounds=1, vote_rounds=2, night_chat_rounds=1, max_days=8)


@tactic
def first_in_the_alphabet(seat: Seat, choice: Choice) -> Aim:
    return Aim(min(seat.others(choice)))


POISONER = Role(
    name="Poisoner",
    faction=Faction.NEUTRAL,
    alignment=Alignment.NEUTRAL_KILLING,
    card="Each night poison one player.",
    goal="See everybody else dead.",
    group="poisoner",
    investigator_group=12,
    short_names=("poi",),
    attack=Level.POWERFUL,
    defence=Level.BASIC,
    causes=(POISONED,),
    outlasts=lambda other: True,
    abilities=(
        NightAbility(
            verb="poison",
            help="poison that player",
            step=Step.ATTACK,
            effect=strike,
            aims=others,
            tactic="first_in_the_alphabet",
        ),
    ),
)


@pytest.fixture
def poisoner() -> Iterator[None]:
    register(POISONER)
    yield
    unregister("poisoner")


@pytest.mark.ci
@pytest.mark.usefixtures("poisoner")
def test_registered_role_is_played_to_the_end_by_all_players() -> None:
    seen: Counter[str] = Counter()
    lobby = role_list(LOBBY)
    for seed in range(GAMES):
        game = open_game(deal(lobby, seed), options=OPTIONS, seed=seed)
        names = [("heuristic", "random")[(seat + seed) % 2] for seat in range(len(lobby))]
        policies: Mapping[int, Policy] = {seat: POLICIES[name] for seat, name in enumerate(names)}
        receipts = {record.receipt.kind for record in play(game, policies, seed=seed)}
        assert receipts <= {ReceiptKind.ACT, ReceiptKind.OBSERVATION}
        assert game.outcome is not None
        validate(game.state)
        data = [(event.kind, event.data) for event in game.log.events]
        seen["poison"] += sum(k is EventKind.ACTION_CHOSEN and told["verb"] == "poison" for k, told in data)
        seen["dead"] += sum(k is EventKind.DEATH and told["causes"] == ["poisoner"] for k, told in data)
        seen["found"] += sum(k is RESULT and told["finding"] == "a Poisoner" for k, told in data)
        seen["lines"] += sum("poisoned by a Poisoner" in line for line in game.log.public_lines)
        seen["won"] += bool(game.state.result and "poisoner" in game.state.result.winners)

    assert seen["poison"] > GAMES
    assert seen["lines"] >= seen["dead"] > GAMES
    assert min(seen["found"], seen["won"]) > 0


def test_registered_role_is_everywhere_until_it_is_unregistered() -> None:
    def everywhere() -> list[bool]:
        claims = extract("I am the Poi.", ("Abel",))
        return [
            "poison" in ACTS,
            "poisoner" in roles_of("any"),
            "poisoner" in roles_of("neutral killing"),
            "Poisoner" in Prompts().system(("investigator", "any", "godfather"), Options()),
            bool(claims) and claims[0].roles == ("Poisoner",),
        ]

    before = dict(ROLES)
    assert not any(everywhere())
    register(POISONER)
    try:
        assert all(everywhere())
        assert list(ROLES) == sorted(ROLES)
    finally:
        unregister("poisoner")
    assert not any(everywhere())
    assert list(ROLES.items()) == list(before.items())


@pytest.mark.parametrize("name", ["Bodyguard's Cousin", "Bodyguard's cousin", "Keeper of the Keys"])
def test_a_role_is_called_by_its_name_wherever_it_is_told(name: str) -> None:
    role = replace(ROLES["godfather"], name=name, short_names=())
    register(role)
    try:
        game = open_game((role.id, "mafioso", "sheriff"), options=OPTIONS)
        keeper, other, *_ = (player.name for player in game.state.players)
        assert f"The Mafia: {keeper} ({name}), {other} (Mafioso)." in game.log.private_lines[0]
        member: JsonObject = {"name": keeper, "seat": 0, "slot": None, "role": role.id, "target": None}
        truth = game_truth({"claims": [], "nights": [], "cast": [member | {"definition": "a", "model": "m"}]})
        assert truth is not None
        assert f" {name} " in truth.opening()[1]
        assert f"{keeper} ({name})" in truth.named(0, f"{keeper} waits.")
    finally:
        unregister(role.id)


def add(role: Role) -> None:
    register(role)
    assert "wait" in ACTS


def test_role_that_contradicts_another_is_refused() -> None:
    ability = POISONER.abilities[0]
    other = DeathCause("mafia", "killed by somebody")
    wrong = {
        "there is a role 'doctor' already": replace(POISONER, name="Doctor"),
        "<heal> of Poisoner differs from that of Doctor": replace(POISONER, abilities=(replace(ability, verb="heal"),)),
        "two abilities of Poisoner have the verb 'poison'": replace(POISONER, abilities=(ability, ability)),
        "the verb 'give poison' of Poisoner is not of small letters": replace(
            POISONER, abilities=(replace(ability, verb="give poison"),)
        ),
        "the cause of death 'mafia' of Poisoner differs from that of": replace(POISONER, causes=(other,)),
        "an ability of a role is called like an act of everybody: vote": replace(
            POISONER,
            abilities=(DayAbility(verb="vote", help="vote", effect=lambda state, player, targets: None),),  # type: ignore[arg-type,return-value]
        ),
    }
    for message, role in wrong.items():
        try:
            with pytest.raises(ValueError, match=message):
                add(role)
        finally:
            if ROLES.get("poisoner") is role:
                unregister("poisoner")
    assert "poisoner" not in ROLES


@pytest.mark.parametrize(
    ("name", "short_names", "reason"),
    [("", (), "no name of a role"), ("Night\nNurse", (), "no name of a role"), ("Nurse", ("Doc",), "'doc' is written")],
)
def test_role_whose_name_is_none_or_is_written_for_another_is_refused(
    name: str, short_names: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        register(replace(ROLES["doctor"], name=name, short_names=short_names))


def test_role_with_a_tactic_that_there_is_not_is_refused_when_it_is_registered() -> None:
    ability = replace(POISONER.abilities[0], tactic="first_of_all")
    with pytest.raises(ValueError, match="<poison> of Poisoner: there is no tactic 'first_of_all'"):
        register(replace(POISONER, abilities=(ability,)))

    assert "poisoner" not in ROLES
    for role in ROLES.values():
        check_tactics(role)


def test_two_tactics_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="there is a tactic 'first_in_the_alphabet' already"):
        tactic(first_in_the_alphabet)


def test_cause_that_its_role_does_not_name_is_refused() -> None:
    night = NightState(open_game(("sheriff", "godfather", "doctor")).state, ROLES)

    with pytest.raises(LookupError, match=r"Sheriff has no cause of death .*'poisoner'"):
        night.attack(0, 1, cause=POISONED)


@pytest.fixture
def nurse() -> Iterator[None]:
    """The role of the examples, registered by their code."""
    runpy.run_path(str(EXAMPLE))
    yield
    unregister("nurse")


NURSED, WOUND = "A Nurse sat with you.", "You dressed the wounds of {}."
BEDSIDE = ("nurse", "sheriff", "spy", "retributionist", "godfather", "mafioso", "serial killer")


@pytest.mark.ci
@pytest.mark.usefixtures("nurse")
def test_role_of_the_examples_protects_and_gives_notices_of_its_own_though_no_other_file_knows_it() -> None:
    """By day games are played until everything was there to be seen, at a larger scale all of them."""
    kinds = ("prompts", "saved", "wounds", "bugs", "raised", "told", "accounts")
    seen: Counter[str] = Counter()

    def watch(game: Game, turn: Turn, prompt: Prompt) -> None:
        seen["prompts"] += NURSED in prompt.messages[1].content

    for seed in range(200):
        game = open_game(BEDSIDE, options=OPTIONS, seed=seed)
        bots = [("heuristic", "heuristic", "random")[(seat + seed) % 3] for seat in range(len(BEDSIDE))]
        play(game, {seat: POLICIES[name] for seat, name in enumerate(bots)}, seed=seed, watch=watch)
        validate(game.state)
        assert game.outcome is not None
        for line in (one for lines in game.log.private_lines for one in lines):
            seen["saved"] += "and a Nurse saved you" in line
            seen["wounds"] += "You dressed the wounds of " in line
            seen["bugs"] += "Your bug on " in line and "they were nursed" in line
            seen["raised"] += "You chose to raise: Abel" in line
        seen["told"] += sum(
            claim["player"] == "Abel" and "Nurse" in claim.get("roles", ()) for claim in rows(game, "claims")
        )
        seen["accounts"] += sum("I sat up with " in line for line in game.log.public_lines)
        if all(seen[kind] for kind in kinds) and SCALE == 1:
            break

    assert all(seen[kind] for kind in kinds), seen


@pytest.mark.usefixtures("nurse")
def test_notices_of_a_role_from_outside_are_heard_of_recorded_and_known_to_claims_and_measures() -> None:
    game = open_game(BEDSIDE, options=OPTIONS.model_copy(update={"max_days": 2}))
    nurse, sheriff, spy, *_, killer = (player.name for player in game.state.players)
    deeds = {nurse: ("nurse", sheriff), spy: ("bug", sheriff), killer: ("stab", sheriff)}
    words = {nurse: f"My patient {sheriff} was attacked.", sheriff: "I was attacked.", spy: "I was attacked."}
    told: dict[str, str] = {}

    def act(view: object, chance: Random) -> str:
        assert isinstance(view, SeatView)
        if view.phase is Phase.NIGHT and view.day == 1 and view.name in deeds:
            verb, target = deeds[view.name]
            return write(verb, target=target)
        return (
            write("speak", text=words[view.name])
            if view.phase is Phase.DISCUSSION and view.name in words
            else "<wait/>"
        )

    def watch(game: Game, turn: Turn, prompt: Prompt) -> None:
        told[turn.agent] = prompt.messages[1].content

    play(game, act, watch=watch)

    assert NURSED in told[sheriff]
    assert "You were attacked, and a Nurse saved you." in told[sheriff]
    assert WOUND.format(sheriff) in told[nurse]
    assert f"Your bug on {sheriff}: they were nursed." in told[spy]
    assert {claim["player"]: claim["verdict"] for claim in rows(game, "claims")} == {
        nurse: "honest",
        sheriff: "honest",
        spy: "lie",
    }
    night = rows(game, "nights")[0]
    assert {"how": "nursed", "player": sheriff, "by": nurse} in night["protections"]
    assert {"player": nurse, "kind": "wound", "data": {"target": sheriff}} in night["findings"]
    players: Any = (game.outcome or {})["players"]
    (counted,) = (player["measures"] for player in players if player["agent"] == nurse)
    assert counted["ne"] == counted["na"] == 1
