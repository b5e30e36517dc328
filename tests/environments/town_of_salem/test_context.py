"""Games that outgrow the model's window: past days in short, the newest whole, an error when that is still too long."""

from __future__ import annotations

import re
from random import Random

import pytest

from mac_runner.environments.town_of_salem.testing import (
    POLICIES,
    Game,
    Options,
    SeatView,
    new_game,
    tokens_of,
    without_heading,
)
from mac_runner.errors import ConversationError
from mac_runner.types import FinishReason, Prompt, Receipt, ReceiptKind, Reply, Turn
from tests.environments.town_of_salem.table import ALL_TOOLS, ELEVEN, make_task, play

ROLES = ELEVEN[:9]
WORDS = " and so on" * 80
TOKENS_MAX = 12_000
_SHORT = re.compile(r"^\[Day (\d+), in short\]", re.M)


def long_game(tokens_max: int | None, *, seed: int = 6) -> Game:
    task, options = make_task(ROLES, seed=seed), Options(discussion_rounds=3, max_days=6, tools=ALL_TOOLS)
    names = [agent.agent_id for agent in task.agents]
    state, opening = new_game(seed=seed, names=names, roles=ROLES, lobby=ROLES, options=options)
    return Game(
        task=task,
        state=state,
        opening=opening,
        max_retries=2,
        context_tokens_max=tokens_max,
    )


def wordy(view: object, chance: Random) -> str:
    return POLICIES["heuristic"](view, chance).replace("</speak>", f"{WORDS}</speak>")


def record(prompt: Prompt) -> str:
    return prompt.messages[1].content.split("\n\nTHE TOWN\n")[0]


def tokens(prompt: Prompt) -> int:
    return sum(tokens_of(message.content) for message in prompt.messages)


def test_prompts_of_a_long_game_stay_within_the_limit_and_keep_the_newest_day_whole() -> None:
    longest, shortened = 0, set[str]()

    def watch(game: Game, turn: Turn, prompt: Prompt) -> None:
        nonlocal longest
        longest = max(longest, tokens(prompt))
        shown, view = prompt.messages[1].content.splitlines(), prompt.view
        assert isinstance(view, SeatView)
        shortened.update(_SHORT.findall(record(prompt)))
        everything = set("\n".join((*view.public_lines, *view.private_lines)).splitlines())
        lines = [line for line in shown if line.startswith("[")]
        assert all(line in everything or ", in short]" in line for line in lines)
        today = [line for event, line in zip(view.public, view.public_lines, strict=True) if event.day == view.day]
        assert "\n".join(today) in prompt.messages[1].content

    play(long_game(TOKENS_MAX), wordy, watch=watch)
    assert TOKENS_MAX * 0.6 < longest <= TOKENS_MAX
    assert len(shortened) >= 2


def test_short_days_keep_the_facts() -> None:
    told: dict[int, str] = {}

    def watch(game: Game, turn: Turn, prompt: Prompt) -> None:
        told[game.state.day] = record(prompt)
        view = prompt.view
        assert isinstance(view, SeatView)
        for line in view.public_lines:
            if any(fact in line for fact in (" died, ", "Ballots. ", " is put on trial", " is acquitted")):
                assert without_heading(line) in told[game.state.day]

    game = long_game(TOKENS_MAX)
    play(game, wordy, watch=watch)
    last = told[max(told)]
    assert "; get_chat shows it.\nClaims: " in last
    assert "\nVotes: " in last


def test_shortened_record_is_the_same_for_all_and_grows_but_where_a_day_is_shortened() -> None:
    """A day once told in short stays so, in the same words, at the same place."""
    before, heads = "", set[int]()

    def watch(game: Game, turn: Turn, prompt: Prompt) -> None:
        nonlocal before
        now = record(prompt)
        days, days_before = len(set(_SHORT.findall(now))), len(set(_SHORT.findall(before)))
        assert days >= days_before
        assert now.startswith(before) or days > days_before
        heads.add(days)
        before = now

    play(long_game(TOKENS_MAX), wordy, watch=watch)
    assert len(heads) > 1


def test_game_that_fits_is_rendered_as_without_a_limit() -> None:
    bounded: list[str] = []
    play(long_game(1_000_000), wordy, watch=lambda game, turn, prompt: bounded.append(prompt.sha256))
    unbounded: list[str] = []
    play(long_game(None), wordy, watch=lambda game, turn, prompt: unbounded.append(prompt.sha256))

    assert bounded == unbounded


def test_game_that_cannot_fit_says_what_to_do() -> None:
    with pytest.raises(ConversationError, match=r"about \d+ tokens .* 5000"):
        play(long_game(5_000), wordy)


@pytest.mark.parametrize(("text", "tokens"), [("", 0), ("abc", 1), ("abcd", 2), ("日本", 2), ("\ud800", 1)])
def test_estimate_of_tokens_counts_bytes(text: str, tokens: int) -> None:
    assert tokens_of(text) == tokens


class _Engine:
    """Takes prompts of so many estimated tokens; a `wordy` player answers those that it takes."""

    def __init__(self, tokens_max: int) -> None:
        self.tokens_max = tokens_max
        self.receipts: list[Receipt] = []

    def answer(self, game: Game) -> None:
        turn = game.turns()[0]
        prompt = game.prompt(turn)
        if tokens(prompt) > self.tokens_max:
            reply = Reply(text="", finish_reason=FinishReason.OVERFLOW)
        else:
            reply = Reply(text=wordy(prompt.view, Random(turn.key)))
        self.receipts.append(game.receive(turn, reply))


def test_game_goes_on_with_shorter_prompts_when_the_engine_takes_no_longer_ones() -> None:
    game, engine = long_game(None), _Engine(10_000)
    while game.outcome is None:
        engine.answer(game)

    overflows = [receipt for receipt in engine.receipts if "engine's context" in receipt.detail]
    assert 0 < len(overflows) <= 2 * len(game.state.players)
    assert {receipt.kind for receipt in overflows} == {ReceiptKind.CORRECTION}
    assert ReceiptKind.DEFAULT not in {receipt.kind for receipt in engine.receipts}


def test_what_a_seat_learns_of_its_engine_changes_no_other_seats_prompt() -> None:
    game = long_game(None)
    other = game.turns()[1]
    before = game.prompt(other).sha256
    game.receive(game.turns()[0], Reply(text="", finish_reason=FinishReason.OVERFLOW))

    assert game.prompt(other).sha256 == before


def test_overflow_takes_no_correction_from_the_seat() -> None:
    game, overflow = long_game(None), Reply(text="", finish_reason=FinishReason.OVERFLOW)
    kinds = [game.receive(game.turns()[0], reply).kind for reply in (overflow, *[Reply(text="")] * 3)]

    assert kinds == [ReceiptKind.CORRECTION] * 3 + [ReceiptKind.DEFAULT]


def test_engine_too_small_for_the_shortest_prompt_fails_the_game_and_says_so() -> None:
    game, engine = long_game(None), _Engine(500)
    engine.answer(game)
    with pytest.raises(ConversationError, match="the engine takes"):
        engine.answer(game)
