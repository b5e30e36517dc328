"""How a prompt is laid out: what is shared first, what grows behind it, what is asked at the end.

A game that outgrows the model's window has past days in short and the newest whole, or fails and says so.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from random import Random

import pytest

from benchmarks.prefix_cache import measure, trial
from mac_runner.environments import build_environment
from mac_runner.environments.town_of_salem.testing import (
    ACTS,
    EVENT_WORDS,
    POLICIES,
    ROLES,
    TOOLS,
    Asking,
    EventKind,
    Game,
    Options,
    Phase,
    Prompts,
    SeatView,
    roles_in_play,
    sentence,
    tokens_of,
    without_heading,
)
from mac_runner.errors import ConversationError
from mac_runner.types import FinishReason, Prompt, Receipt, ReceiptKind, Reply, ReplyForm, Turn
from tests.environments.town_of_salem.table import (
    ALL_TOOLS,
    ELEVEN,
    Table,
    advance,
    clumsy,
    open_game,
    play,
    told_now,
)
from tests.tiers import first

CLASSIC = ELEVEN[:10]
FORMS: tuple[ReplyForm, ...] = ("markup", "json")
PRIVATE = "\n\nKNOWN TO YOU\n"
TOWN = "\n\nTHE TOWN\n"
NOW = "\n\nNOW\n"


def record(prompt: Prompt) -> str:
    """What all know of the game so far."""
    return prompt.messages[1].content.split(TOWN)[0]


@pytest.mark.parametrize("name", ["clumsy", *POLICIES])
def test_prompts_share_the_system_message_and_a_record_that_only_grows(name: str) -> None:
    system: set[str] = set()
    longest = ""

    def watch(game: Game, turn: Turn, prompt: Prompt) -> None:
        nonlocal longest
        system.add(prompt.messages[0].content)
        assert record(prompt).startswith(longest)
        longest = record(prompt)

    play(open_game(ELEVEN, options=Options(max_days=5)), {"clumsy": clumsy, **POLICIES}[name], watch=watch)
    assert len(system) == 1
    assert longest.count("\n") > 50


def test_system_message_explains_every_act_of_all_tool_and_role_of_the_game_in_its_form_alone() -> None:
    for form in FORMS:
        text = Prompts().system(CLASSIC, Options(tools=ALL_TOOLS), Asking(form=form))
        for spec in ACTS.values():
            written = f'- "{spec.verb}"' if form == "json" and spec.is_side_act else f"- {spec.example(form)}"
            is_listed = spec.is_played(Options()) and not spec.is_ability
            assert (f"{written}: {spec.help}" in text) == is_listed, spec.verb
        for tool in TOOLS.values():
            assert f"- {tool.example(form=form)}: {tool.help}" in text
        roles = roles_in_play(CLASSIC)
        for role in CLASSIC:
            assert ROLES[role].card_text(roles, Options()) in text
            assert text.count(ROLES[role].goal) == 1
        # An Executioner may become a Jester; nobody here can become an Arsonist.
        assert ROLES["jester"].goal in text
        assert ROLES["arsonist"].goal not in text
        other = '{"' if form == "markup" else "</"
        assert other not in text


def test_system_message_leaves_out_what_nobody_can_become_and_tells_the_calendar_of_this_game() -> None:
    text = Prompts().system(("sheriff", "doctor", "godfather"), Options())

    assert "Jester" not in text
    assert "Escort" not in text
    assert "- Mafioso (killing)" in Prompts().system(("sheriff", "godfather", "framer"), Options())
    assert "The lists: " not in text
    assert "<death_note>" in text
    assert "<death_note>" not in Prompts().system(("sheriff", "escort", "jester", "survivor"), Options())
    text = Prompts().system(CLASSIC, Options(discussion_rounds=7, vote_rounds=8, trials_per_day=9, max_days=11))
    for words in ("7 rounds of discussion", "8 rounds of voting", "at most 9 trials", "after day 11"):
        assert words in text


def test_player_is_shown_what_is_theirs() -> None:
    game = open_game(("executioner", "sheriff", "godfather", "mafioso", "jailor"))
    exe, sheriff, _, mafioso, jailor = (told_now(game, player.name) for player in game.state.players)

    assert "target is Beatrice." in exe
    assert "teammates: Caleb (Godfather)." in mafioso
    assert "left: execute 3." in jailor
    assert "team" not in sheriff.split(PRIVATE)[1]


def test_player_is_shown_the_will_and_note_they_wrote() -> None:
    game = open_game(("godfather", "sheriff", "doctor"))
    written = "<will>a\nb</will><death_note>“boo”</death_note><wait/>"
    advance(game, Phase.NIGHT, says=lambda turn: written if turn.agent == "Abel" else "<wait/>")

    assert "will: “a / b”\n" in told_now(game, "Abel")
    assert 'note: “"boo"”' in told_now(game, "Abel")


def test_prompt_lists_and_explains_what_may_be_chosen_with_names() -> None:
    game = open_game(CLASSIC, options=Options(greeting_rounds=0, night_chat_rounds=0))
    sheriff, doctor = told_now(game, "Abel"), told_now(game, "Beatrice")

    assert f"- <interrogate>NAME</interrogate>: {ACTS['interrogate'].help}\n  NAME is any" in sheriff
    assert "- <heal>NAME</heal>: " in doctor
    assert " of: Abel, Beatrice, " in doctor
    assert "- <wait/>" in doctor
    assert "<kill>" not in doctor.split(NOW)[1]


def test_speaker_with_several_channels_is_told_how_to_choose() -> None:
    game = open_game(("medium", "framer", "godfather", "sheriff", "doctor"), options=Options(vote_rounds=1))
    deeds = {"Abel": "seance Beatrice", "Caleb": "kill Abel"}

    def says(turn: Turn) -> str:
        verb, _, whom = deeds.get(turn.agent, "wait").partition(" ")
        return f"<{verb}>{whom}</{verb}>" if f"<{verb}>" in told_now(game, turn.agent).split(NOW)[1] else "<wait/>"

    advance(game, Phase.NIGHT_CHAT, day=2, says=says)
    assert " of: mafia, seance" in told_now(game, "Beatrice")


def test_every_event_has_words_and_a_deed_without_a_target_is_told_without_one() -> None:
    table = Table(CLASSIC)
    table.night(day=1)
    table.act("jailor", "jail", "godfather")
    table.night({"jailor": ("execute",)})
    game = open_game(CLASSIC)
    game.log.append(tuple(event for event in table.events if event.kind is EventKind.ACTION_CHOSEN))

    assert game.log.private_lines[table.seat("jailor")][-1].endswith("chose to execute.")
    assert set(EVENT_WORDS) == set(EventKind)


def told_of_a_night(who: str, verb: str, whom: str) -> list[str]:
    """What a player is told of a night in which they do this."""
    table = Table(("sheriff", "doctor", "lookout", "consigliere", "mafioso"))
    table.go_to(Phase.NIGHT)
    before = len(table.events)
    table.night({who: (verb, whom)})
    seat, name = table.seat(who), table.name(whom)
    heard = (event for event in table.events[before:] if event.audience is not None and seat in event.audience)
    return [sentence(event).replace(name, "Abel") for event in heard if event.kind is not EventKind.TEAM]


def test_deeds_and_findings_are_told_in_words_and_not_in_identifiers() -> None:
    assert told_of_a_night("sheriff", "interrogate", "mafioso")[-1].endswith("Abel is suspicious.")
    assert told_of_a_night("lookout", "watch", "doctor")[-1].endswith("visited by nobody.")
    assert told_of_a_night("consigliere", "look_into", "doctor")[0].endswith("look into: Abel.")


@pytest.mark.parametrize("words", first(1, ["", " So I say." * 20]))
def test_prompts_of_a_game_come_close_to_the_best_a_prefix_cache_can_do(words: str) -> None:
    experiment = trial("classic-10")
    meter = measure(build_environment(experiment), experiment, words=words)
    told = f"cached {meter.share:.3f} of {meter.total} tokens; no order of the lines exceeds {meter.best:.3f}"
    print(told)  # noqa: T201 - the measurement itself, shown by `pytest -rP`

    assert meter.share > 0.88, told
    assert meter.share > meter.best - 0.09, told


# Games that outgrow the window.

WORDS = " and so on" * 80
TOKENS_MAX = 12_000
_SHORT = re.compile(r"^\[Day (\d+), in short\]", re.M)


def long_game(tokens_max: int | None) -> Game:
    options = Options(discussion_rounds=3, max_days=6)
    return open_game(ELEVEN[:9], seed=6, options=options, context_tokens_max=tokens_max)


def wordy(view: object, chance: Random) -> str:
    return POLICIES["heuristic"](view, chance).replace("</speak>", f"{WORDS}</speak>")


def tokens(prompt: Prompt) -> int:
    return sum(tokens_of(message.content) for message in prompt.messages)


@cache
def sent(tokens_max: int | None) -> list[tuple[Prompt, SeatView]]:
    """The prompts of a long game with their views, which go on to grow with it."""
    found: list[tuple[Prompt, SeatView]] = []

    def watch(game: Game, turn: Turn, prompt: Prompt) -> None:
        view = prompt.view
        assert isinstance(view, SeatView)
        public, private = (*view.public_lines,), (*view.private_lines,)
        kept = replace(view, public=(*view.public,), public_lines=public, private_lines=private)
        found.append((prompt, kept))

    play(long_game(tokens_max), wordy, watch=watch)
    return found


def test_prompts_of_a_long_game_stay_within_the_limit_and_keep_the_newest_day_whole_and_the_facts_of_others() -> None:
    for prompt, view in sent(TOKENS_MAX):
        text = prompt.messages[1].content
        everything = set("\n".join((*view.public_lines, *view.private_lines)).splitlines())
        lines = [line for line in text.splitlines() if line.startswith("[")]
        assert all(line in everything or ", in short]" in line for line in lines)
        today = [line for event, line in zip(view.public, view.public_lines, strict=True) if event.day == view.day]
        assert "\n".join(today) in text
        for line in view.public_lines:
            if any(fact in line for fact in (" died, ", "Ballots. ", " is put on trial", " is acquitted")):
                assert without_heading(line) in record(prompt)
    assert TOKENS_MAX * 0.6 < max(tokens(prompt) for prompt, _ in sent(TOKENS_MAX)) <= TOKENS_MAX
    last = record(sent(TOKENS_MAX)[-1][0])
    assert "; get_chat shows it.\nClaims: " in last
    assert "\nVotes: " in last


def test_shortened_record_is_the_same_for_all_and_grows_but_where_a_day_is_shortened() -> None:
    """A day once told in short stays so, in the same words, at the same place."""
    before, heads = "", [0]
    for prompt, _ in sent(TOKENS_MAX):
        now = record(prompt)
        heads.append(len(set(_SHORT.findall(now))))
        assert heads[-1] >= heads[-2]
        assert now.startswith(before) or heads[-1] > heads[-2]
        before = now
    assert heads[-1] >= 2


def test_game_that_fits_is_rendered_as_without_a_limit_and_one_that_cannot_says_what_to_do() -> None:
    assert [prompt.sha256 for prompt, _ in sent(1_000_000)] == [prompt.sha256 for prompt, _ in sent(None)]
    with pytest.raises(ConversationError, match=r"about \d+ tokens .* 5000"):
        play(long_game(5_000), wordy)


def test_estimate_of_tokens_counts_bytes() -> None:
    expected = {"": 0, "abc": 1, "abcd": 2, "日本": 2, "\ud800": 1}
    assert {text: tokens_of(text) for text in expected} == expected


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


@pytest.mark.ci
@pytest.mark.parametrize("seed", range(3))
def test_game_fails_only_where_the_engine_takes_not_even_the_shortest_prompt(seed: int) -> None:
    game, engine = long_game(None), _Engine(Random(seed).randrange(5_000, 8_000))
    try:
        while game.outcome is None:
            engine.answer(game)
    except ConversationError as failure:
        (needed,) = re.findall(r"needs about (\d+) tokens", str(failure))
        assert int(needed) > engine.tokens_max


def test_overflow_changes_no_other_seats_prompt_and_takes_no_correction_from_the_seat() -> None:
    game, overflow = long_game(None), Reply(text="", finish_reason=FinishReason.OVERFLOW)
    other = game.turns()[1]
    before = game.prompt(other).sha256
    kinds = [game.receive(game.turns()[0], reply).kind for reply in (overflow, *[Reply(text="")] * 3)]

    assert kinds == [ReceiptKind.CORRECTION] * 3 + [ReceiptKind.DEFAULT]
    game = long_game(None)
    game.receive(game.turns()[0], overflow)
    assert game.prompt(other).sha256 == before


def test_engine_too_small_for_the_shortest_prompt_fails_the_game_and_says_so() -> None:
    game, engine = long_game(None), _Engine(500)
    engine.answer(game)
    with pytest.raises(ConversationError, match="the engine takes"):
        engine.answer(game)
