"""How a prompt is laid out: what is shared first, what grows behind it, what is asked at the end."""

from __future__ import annotations

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
    roles_in_play,
    sentence,
    system_text,
)
from mac_runner.types import Prompt, Reply, ReplyForm, Turn
from tests.environments.town_of_salem.table import ALL_TOOLS, ELEVEN, Table, clumsy, open_game, play
from tests.tiers import first

CLASSIC = ELEVEN[:10]
FORMS: tuple[ReplyForm, ...] = ("markup", "json")
PRIVATE = "\n\nKNOWN TO YOU\n"
TOWN = "\n\nTHE TOWN\n"


@pytest.mark.parametrize("name", ["clumsy", *POLICIES])
def test_prompts_share_the_system_message_and_a_record_that_only_grows(name: str) -> None:
    system: set[str] = set()
    longest = ""

    def watch(game: Game, turn: Turn, prompt: Prompt) -> None:
        nonlocal longest
        system.add(prompt.messages[0].content)
        record = prompt.messages[1].content.split(TOWN)[0]
        assert record.startswith(longest)
        longest = record

    play(open_game(ELEVEN, options=Options(max_days=5)), {"clumsy": clumsy, **POLICIES}[name], watch=watch)
    assert len(system) == 1
    assert longest.count("\n") > 50


def test_continued_turn_begins_as_the_turn_it_continues() -> None:
    game = open_game(ELEVEN)
    before = game.prompt(game.turns()[0]).messages
    game.receive(game.turns()[0], Reply(text='<tool_request name="get_lobby"/>'))

    assert game.prompt(game.turns()[0]).messages[: len(before)] == before


def test_system_message_explains_every_act_of_all_tool_and_role_of_the_game_in_its_form_alone() -> None:
    for form in FORMS:
        text = system_text(CLASSIC, Options(tools=ALL_TOOLS), Asking(form=form))
        for spec in ACTS.values():
            written = f'- "{spec.verb}"' if form == "json" and spec.is_side_act else f"- {spec.example(form=form)}"
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


def test_ability_is_explained_where_it_may_be_chosen() -> None:
    game = open_game(CLASSIC, options=Options(greeting_rounds=0, night_chat_rounds=0))

    assert f"- <interrogate>NAME</interrogate>: {ACTS['interrogate'].help}\n  NAME is any" in ask(game, 0)


def test_system_message_leaves_out_what_nobody_can_become() -> None:
    text = system_text(("sheriff", "doctor", "godfather"), Options())

    assert "Jester" not in text
    assert "Escort" not in text
    assert "- Mafioso (killing)" in system_text(("sheriff", "godfather", "framer"), Options())
    assert "The lists: " not in text
    assert "<death_note>" in text
    assert "<death_note>" not in system_text(("sheriff", "escort", "jester", "survivor"), Options())


def test_system_message_tells_the_calendar_of_this_game() -> None:
    options = Options(discussion_rounds=7, vote_rounds=8, trials_per_day=9, max_days=11)
    text = system_text(CLASSIC, options)

    for words in ("7 rounds of discussion", "8 rounds of voting", "at most 9 trials", "after day 11"):
        assert words in text


def test_every_kind_of_event_has_its_words() -> None:
    assert set(EVENT_WORDS) == set(EventKind)


def ask(game: Game, agent: int) -> str:
    name = game.state.players[agent].name
    turn = next(turn for turn in game.turns() if turn.agent == name)
    return game.prompt(turn).messages[1].content


def test_player_is_shown_what_is_theirs() -> None:
    game = open_game(("executioner", "sheriff", "godfather", "mafioso", "jailor"))

    texts = {role: ask(game, seat) for seat, role in enumerate(["exe", "sheriff", "godfather", "mafioso", "jailor"])}
    assert "target is Beatrice." in texts["exe"]
    assert "teammates: Caleb (Godfather)." in texts["mafioso"]
    assert "left: execute 3." in texts["jailor"]
    assert "team" not in texts["sheriff"].split(PRIVATE)[1]


def test_player_is_shown_the_will_and_note_they_wrote() -> None:
    game = open_game(("godfather", "sheriff", "doctor"))
    text = "<will>a\nb</will><death_note>“boo”</death_note><wait/>"
    while game.turns()[0].agent != "Abel":
        game.receive(game.turns()[0], Reply(text="<wait/>"))
    game.receive(game.turns()[0], Reply(text=text))
    while "Abel" not in [turn.agent for turn in game.turns()]:
        game.receive(game.turns()[0], Reply(text="<wait/>"))

    assert "will: “a / b”\n" in ask(game, 0)
    assert 'note: “"boo"”' in ask(game, 0)


def test_prompt_lists_what_may_be_chosen_with_names() -> None:
    game = open_game(CLASSIC, options=Options(greeting_rounds=0, night_chat_rounds=0))
    doctor = ask(game, 1)

    assert "- <heal>NAME</heal>: " in doctor
    assert " of: Abel, Beatrice, " in doctor
    assert "- <wait/>" in doctor
    assert "<kill>" not in doctor.split("\n\nNOW\n")[1]


def test_speaker_with_several_channels_is_told_how_to_choose() -> None:
    game = open_game(("medium", "framer", "godfather", "sheriff", "doctor"), options=Options(vote_rounds=1))
    talk = {"Abel": "<seance>Beatrice</seance>", "Caleb": "<kill>Abel</kill>"}
    while not (game.state.phase is Phase.NIGHT_CHAT and game.state.day == 2):
        turn = game.turns()[0]
        chosen = talk.get(turn.agent, "")
        verb = chosen[1:].split(">")[0]
        offered = f"<{verb}>" in game.prompt(turn).messages[1].content.split("\n\nNOW\n")[1]
        game.receive(turn, Reply(text=chosen if chosen and offered else "<wait/>"))

    assert " of: mafia, seance" in ask(game, 1)


def test_deed_without_a_target_is_told_without_one() -> None:
    table = Table(CLASSIC)
    table.night(day=1)
    table.act("jailor", "jail", "godfather")
    table.night({"jailor": ("execute",)})
    game = open_game(CLASSIC)
    game.log.append(tuple(event for event in table.events if event.kind is EventKind.ACTION_CHOSEN))

    assert game.log.private_lines[table.seat("jailor")][-1].endswith("chose to execute.")


def told_of_a_night(who: str, verb: str, whom: str) -> list[str]:
    """What a player is told of a night in which they do this."""
    table = Table(("sheriff", "doctor", "lookout", "consigliere", "mafioso"))
    table.go_to(Phase.NIGHT)
    before = len(table.events)
    table.night({who: (verb, whom)})
    seat, name = table.seat(who), table.name(whom)
    heard = (event for event in table.events[before:] if event.audience is not None and seat in event.audience)
    return [sentence(event).replace(name, "Abel") for event in heard if event.kind is not EventKind.TEAM]


def test_findings_say_what_somebody_is_and_who_was_there() -> None:
    assert told_of_a_night("sheriff", "interrogate", "mafioso")[-1].endswith("Abel is suspicious.")
    assert told_of_a_night("lookout", "watch", "doctor")[-1].endswith("visited by nobody.")


def test_deeds_are_told_in_words_and_not_in_identifiers() -> None:
    assert told_of_a_night("consigliere", "look_into", "doctor")[0].endswith("look into: Abel.")


@pytest.mark.parametrize("words", first(1, ["", " So I say." * 20]))
def test_prompts_of_a_game_come_close_to_the_best_a_prefix_cache_can_do(words: str) -> None:
    experiment = trial("classic-10")
    meter = measure(build_environment(experiment), experiment, words=words)
    told = f"cached {meter.share:.3f} of {meter.total} tokens; no order of the lines exceeds {meter.best:.3f}"
    print(told)  # noqa: T201 - the measurement itself, shown by `pytest -rP`

    assert meter.share > 0.88, told
    assert meter.share > meter.best - 0.09, told
