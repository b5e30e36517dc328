"""Scripted players of TextArena's games.

`random` makes any legal move. Most games list the legal ones in brackets; the table has those that do not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from random import Random
from typing import Final

from mac_runner.environments.adapters.environment import Player
from mac_runner.environments.adapters.game import GameView, random_player, some_words

_COLUMNS: Final = re.compile(r"^(\d+(?: \d+)+)\n-+\n(.*)$", re.MULTILINE)
_PILE: Final = re.compile(r"pile (\d+): (\d+)")
_BID: Final = re.compile(r"bids (\d+) of face (\d)\.")
_GOODS: Final = ("Wheat", "Wood", "Sheep", "Brick", "Ore")


def players_of(name: str) -> Mapping[str, Player]:
    """The scripted players of a game."""
    return {"random": _RANDOM.get(name.partition("-v")[0], random_player)}


def _connect_four(view: GameView, random: Random) -> str:
    boards = _COLUMNS.findall(view.text)
    columns, top = boards[-1] if boards else ("0 1 2 3 4 5 6", ". . . . . . .")
    free = [column for column, cell in zip(columns.split(), top.split(), strict=True) if cell == "."]
    return f"[col {random.choice(free)}]"


def _nim(view: GameView, random: Random) -> str:
    piles = {int(pile): int(size) for pile, size in _PILE.findall(view.text)}
    pile = random.choice([pile for pile, size in piles.items() if size] or [0])
    return f"[{pile} {random.randint(1, max(piles.get(pile, 1), 1))}]"


def _liars_dice(view: GameView, random: Random) -> str:
    bids = _BID.findall(view.text.rpartition("New round")[2])
    if not bids:
        return f"[Bid: {random.randint(1, 2)}, {random.randint(1, 6)}]"
    quantity, face = map(int, bids[-1])
    if random.random() < quantity / 8:
        return "[Call]"
    return f"[Bid: {quantity + 1}, {random.randint(face, 6)}]"


def _negotiation(view: GameView, random: Random) -> str:
    has_offer = "made the following offer" in view.text.rpartition("new trade offer")[2]
    if has_offer and random.random() < 0.5:
        return random.choice(["[Accept]", "[Deny]"])
    gives, takes = random.sample(_GOODS, 2)
    return f"Let us trade. [Offer: {random.randint(1, 2)} {gives} -> {random.randint(1, 2)} {takes}]"


def _dilemma(view: GameView, random: Random) -> str:
    decisions = [option for option in view.options if option.casefold() in ("[cooperate]", "[defect]")]
    return random.choice(decisions) if decisions else some_words(random)


def _three_dilemma(view: GameView, random: Random) -> str:
    if not any("cooperate" in option for option in view.options):
        return some_words(random)
    others = [player for player in range(3) if player != view.player]
    return " ".join(f"[{player} {random.choice(('cooperate', 'defect'))}]" for player in others)


def _taboo(view: GameView, random: Random) -> str:
    if "the Clue Giver" in view.rules:
        return f"Think of something with {random.randint(2, 99)} parts."
    return f"[guess {random.randint(1, 999)}]"


_RANDOM: Final[Mapping[str, Player]] = {
    "ConnectFour": _connect_four,
    "IteratedPrisonersDilemma": _dilemma,
    "LiarsDice": _liars_dice,
    "Nim": _nim,
    "SimpleNegotiation": _negotiation,
    "Taboo": _taboo,
    "ThreePlayerIPD": _three_dilemma,
}
