"""Every role against every target in every state: nothing raises, every night ends, every invariant holds.

States are made, not waited for: who is dead, jailed, doused, blackmailed, guilty or on alert is drawn, the acts of
everybody are drawn from what is legal, and the night is played. Whole games of random acts follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from random import Random

import pytest

from mac_runner.environments.town_of_salem.testing import (
    ACTS,
    DOUSED,
    LOBBIES,
    NAMES,
    ROLES,
    Act,
    Death,
    GameState,
    IllegalActError,
    NightAction,
    Options,
    Phase,
    apply,
    deal,
    dusk,
    end_round,
    new_game,
    offers,
    validate,
)
from tests.tiers import first

NIGHTS = 1_200
GAMES = 60


def random_options(chance: Random) -> Options:
    return Options(
        sheriff=chance.choice(["binary", "typed"]),
        haunt_pool=chance.choice(["guilty", "guilty_or_abstain"]),
        sk_blocked=chance.choice(["both", "blocker"]),
        spy=chance.choice(["bug", "ears"]),
        retri=chance.choice(["raise", "revive"]),
        mafioso_control=chance.choice(["order", "control"]),
        amnesiac=chance.choice(["any_free", "no_unique_town"]),
        janitor_uses=chance.randint(0, 3),
        forger_uses=chance.randint(0, 3),
        mafia_parity=chance.random() < 0.2,
        greeting_rounds=chance.randint(0, 1),
        discussion_rounds=chance.randint(0, 2),
        vote_rounds=chance.randint(1, 3),
        night_chat_rounds=chance.randint(0, 1),
        trials_per_day=chance.randint(1, 3),
        max_days=chance.randint(1, 12),
    )


def begin(roles: tuple[str, ...], chance: Random) -> GameState:
    seed = chance.randrange(1 << 30)
    options = random_options(chance)
    return new_game(seed=seed, names=NAMES[: len(roles)], roles=roles, lobby=roles, options=options).state


def unsettle(state: GameState, chance: Random) -> GameState:
    """The same game at another hour: some dead, some doused, somebody chosen for the jail, uses spent."""
    state = replace(state, day=chance.randint(1, 6))
    for player in state.players:
        death = Death(
            day=1, at_night=True, causes=("mafia",), is_cleaned=chance.random() < 0.2, is_bloody=chance.random() < 0.2
        )
        uses = {verb: chance.randint(0, left) for verb, left in player.uses.items()}
        marks = {mark for mark in (DOUSED, "guilty", "cautious", "shield spent", "raised") if chance.random() < 0.2}
        state = state.with_player(
            replace(
                player,
                uses=uses,
                marks=frozenset(marks),
                is_blackmailed=chance.random() < 0.2,
                became_on=chance.choice([0, 0, state.day - 1]),
                death=death if chance.random() < 0.3 else None,
            )
        )
    jailors = [player.seat for player in state.living if player.role == "jailor"]
    others = [player.seat for player in state.living if player.role != "jailor"]
    if jailors and others:
        state = replace(state, keeper=jailors[0], jail_choice=chance.choice(others))
    return state


def words_for(verb: str) -> str:
    return "words" if ACTS[verb].takes_words else ""


def act_at_random(state: GameState, seat: int, chance: Random) -> Act:
    """Any legal act of a seat, waiting being the last thing it thinks of."""
    legal = [offer for offer in offers(state, seat) if not ACTS[offer.verb].is_side_act]
    offer = chance.choice([offer for offer in legal if offer.verb != "wait" or chance.random() < 0.2] or legal)
    targets = chance.choice(list(product(*filter(None, (offer.targets, offer.seconds)))))
    return Act(
        seat=seat,
        verb=offer.verb,
        targets=targets,
        text=words_for(offer.verb),
        choice=chance.choice(offer.choices or ("",)),
    )


def step(state: GameState, chance: Random) -> GameState:
    """One legal move, validated; whatever it makes happen, somebody learns of it."""
    due = state.due
    changed = apply(state, act_at_random(state, chance.choice(due), chance)) if due else end_round(state)
    validate(changed.state)
    assert all(event.audience != frozenset() for event in changed.events)
    return changed.state


@pytest.mark.parametrize("part", first(2, range(8), rest="nightly"))
def test_night_in_any_state_ends_with_every_invariant_kept(part: int) -> None:
    met: set[str] = set()
    for number in range(part, NIGHTS, 8):
        chance = Random(number)
        state = unsettle(begin(deal(("any",) * chance.randint(3, 20), chance.randrange(1 << 30)), chance), chance)
        if not state.living:
            continue
        day = state.day
        while state.phase is not Phase.OVER and state.day == day:
            met.update(player.role for player in state.players if player.seat in state.order)
            state = step(state, chance)
        assert state.deeds == ()
        assert state.prisoner is None

    assert met == set(ROLES)


ACTOR, TARGET, JAILOR, TRANSPORTER, WITCH, ESCORT, KILLER = range(7)
CONDITIONS: dict[str, tuple[NightAction, ...]] = {
    "first night": (),
    "later night": (),
    "target jailed": (),
    "actor jailed": (),
    "transported with each other": (NightAction(seat=TRANSPORTER, verb="swap", targets=(ACTOR, TARGET)),),
    "transported away": (NightAction(seat=TRANSPORTER, verb="swap", targets=(TARGET, WITCH)),),
    "blocked and doused": (NightAction(seat=ESCORT, verb="block", targets=(ACTOR,)),),
    "controlled": (NightAction(seat=WITCH, verb="control", targets=(ACTOR, TARGET)),),
    "made to turn on oneself": (NightAction(seat=WITCH, verb="control", targets=(ACTOR, ACTOR)),),
    "target made to turn on the actor": (NightAction(seat=WITCH, verb="control", targets=(TARGET, ACTOR)),),
    "target killed": (NightAction(seat=KILLER, verb="stab", targets=(TARGET,)),),
}


def night_of(role: str, other: str, condition: str) -> GameState | None:
    """A night at a table of the two and their helpers; None where nobody could hold them in jail."""
    pair = (role, other)
    keeper = pair.index("jailor") if "jailor" in pair else JAILOR
    jailed = {"target jailed": TARGET, "actor jailed": ACTOR}.get(condition)
    if (role == other and ROLES[role].is_unique) or jailed == keeper:
        return None
    helper = "sheriff" if "jailor" in pair else "jailor"
    roles = (*pair, helper, "transporter", "witch", "escort", "serial killer", "framer", "vampire")
    options = Options(night_chat_rounds=0, max_days=12)
    state = new_game(seed=7, names=NAMES[: len(roles)], roles=roles, lobby=roles, options=options).state
    if condition == "blocked and doused":
        for seat in (ACTOR, TARGET):
            state = state.with_player(replace(state.players[seat], marks=frozenset({DOUSED})))
    if jailed is not None:
        state = replace(state, keeper=keeper, jail_choice=jailed)
    return dusk(replace(state, day=1 if condition == "first night" else 2)).state


@pytest.mark.parametrize("every", first(1, (4, 1), tier="ci", rest="nightly"))
@pytest.mark.parametrize("condition", CONDITIONS)
def test_every_role_may_act_on_every_role_in_every_state(condition: str, every: int) -> None:
    """Each ability of each role, aimed at each role: the night ends, and every invariant holds at dawn.

    By day each role meets one in four of the others in a state: in each of the eleven states another quarter.
    """
    place = [*CONDITIONS].index(condition)
    pairs = ((a, b) for (m, a), (n, b) in product(enumerate(ROLES), enumerate(ROLES)) if (m + n + place) % every == 0)
    for role, other in pairs:
        night = night_of(role, other, condition)
        if night is None:
            continue
        for act in acts_on_target(night):
            state = apply(night, act).state
            state = replace(state, deeds=(*state.deeds, *CONDITIONS[condition]))
            validate(end_round(state).state)


def acts_on_target(night: GameState) -> Iterator[Act]:
    """Everything the actor may do tonight that is aimed at the target, or at nobody."""
    for offer in offers(night, ACTOR) if ACTOR in night.order else ():
        if not ACTS[offer.verb].is_side_act:
            for targets in product(*filter(None, (offer.targets, offer.seconds))):
                if TARGET in targets or not targets:
                    yield Act(seat=ACTOR, verb=offer.verb, targets=targets, text=words_for(offer.verb))


@pytest.mark.parametrize("part", first(2, range(4), rest="nightly"))
def test_game_of_any_roles_ends_within_its_days(part: int) -> None:
    for number in range(part, GAMES, 4):
        chance = Random(number)
        lobby = chance.choice([("any",) * 15, *LOBBIES.values()])
        state = begin(deal(lobby, number), chance)
        moves = 0
        while state.result is None:
            state = step(state, chance)
            moves += 1
            assert moves < 20_000, f"game {number} does not end"
        assert state.day <= state.options.max_days + 1
        with pytest.raises(ValueError, match="game is over"):
            end_round(state)


@pytest.mark.parametrize("half", range(2))
def test_every_role_twice_over_two_games_is_played_to_the_end(half: int) -> None:
    """The soak: two tables that hold the catalogue between them, played until a result."""
    roles = tuple(ROLES)[half::2]
    for seed in range(6):
        chance = Random(seed)
        state = begin((*roles, "sheriff"), chance)
        while state.result is None:
            state = step(state, chance)


def test_what_is_not_offered_is_refused_in_any_state() -> None:
    for number in range(40):
        chance = Random(number)
        state = unsettle(begin(deal(("any",) * 12, chance.randrange(1 << 30)), chance), chance)
        while state.phase not in (Phase.NIGHT, Phase.OVER):
            state = step(state, chance)
        for seat in state.due:
            offered = {offer.verb: offer for offer in offers(state, seat)}
            for verb in ACTS:
                pair = (chance.randrange(12), chance.randrange(12))
                offer = offered.get(verb)
                targets = pair if offer is None or not offer.seconds else (pair[0], -1)
                if offer is None or (offer.seconds and targets[1] not in offer.seconds):
                    with pytest.raises(IllegalActError):
                        apply(state, Act(seat=seat, verb=verb, targets=targets, text="words"))
