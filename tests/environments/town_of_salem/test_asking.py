"""How players are asked, in one form of reply, and what the tools answer them.

Reasoning is a variable, options may be shuffled, words be one's own. A tool answers from the asker's view alone and
bounded, with an error that helps for every bad request.
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, get_args

import jsonschema
import pytest

from mac_runner.config import Experiment, load_experiment
from mac_runner.environments import build_environment
from mac_runner.environments.testing import SPEECH_CHARS_MAX
from mac_runner.environments.town_of_salem.testing import (
    ACTS,
    ATTRIBUTES,
    KIND,
    LOBBIES,
    NOTES_CHARS_MAX,
    OBSERVATION_CHARS_MAX,
    PHASE_RULES,
    POLICIES,
    ROLES,
    TOOLS,
    Asking,
    Event,
    EventKind,
    Game,
    GameLog,
    Options,
    Phase,
    Prompts,
    SeatView,
    ToolName,
    conduct_of,
    observe,
    view_of,
)
from mac_runner.errors import ConfigError
from mac_runner.types import Prompt, ReceiptKind, ReplyForm, Turn
from tests.environments.town_of_salem.table import (
    ALL_TOOLS,
    ELEVEN,
    Table,
    Who,
    advance,
    answer,
    ended,
    first_game,
    open_game,
    play,
    rows,
    told_now,
    variants,
)

CLASSIC = ELEVEN[:10]
NOW = "\n\nNOW\n"
FORMS: tuple[ReplyForm, ...] = get_args(ReplyForm)
SYSTEM_CHARS_MAX = 8_029 * 1_200 // 1_900
"""1,200 tokens, where the message of 8,029 characters before had 1,900."""


def test_prompt_shows_one_form_from_its_first_word_to_its_correction() -> None:
    foreign = {"markup": ('{"', "JSON", '"act"'), "json": ("</", "/>", "<speak", " tag")}

    for form in FORMS:

        def watch(game: Game, turn: Turn, prompt: Prompt, form: ReplyForm = form) -> None:
            ours = "".join(message.content for message in prompt.messages if message.role != "assistant")
            for mark in ("observation", "correction"):
                ours = ours.replace(f"<{mark}>", "").replace(f"</{mark}>", "")
            for shape in foreign[form]:
                assert shape not in ours, f"{shape} in {ours[-500:]}"

        game = open_game(ELEVEN, options=Options(max_days=3), tools=(), asking=Asking(form=form))
        play(game, POLICIES["random"], watch=watch)


def test_system_message_has_at_most_1200_tokens_and_no_example_is_an_answer() -> None:
    """What a prompt shows of a reply can be copied without having chosen anything."""
    names = {player.name for player in open_game(ELEVEN).state.players}
    options = Options(discussion_mode="bidding", tools=get_args(ToolName))
    for form in FORMS:
        assert len(Prompts().system(LOBBIES["classic-10"], Options(), Asking(form=form))) <= SYSTEM_CHARS_MAX, form
        text = Prompts().system(LOBBIES["classic-15"], options, Asking(form=form))
        examples = [line.split(": ")[0] for line in text.splitlines() if line.startswith(("- <", "- {"))]
        assert len(examples) > 8
        for example in examples:
            assert not any(word in example for word in ("guilty", "innocent", "abstain", *"01234", *names)), example


def schemas(**asking: Any) -> list[Any]:
    game = open_game(ELEVEN, asking=Asking(form="json", **asking))
    return variants(game.prompt(game.turns()[0]))


def test_reasoning_is_first_and_bounded_where_required_and_nowhere_where_off() -> None:
    for variant in schemas(reasoning="required", reasoning_chars_max=300):
        assert next(iter(variant["properties"])) == variant["required"][0] == "thinking"
        assert variant["properties"]["thinking"] == {"type": "string", "minLength": 1, "maxLength": 300}
    for variant in schemas():
        assert "thinking" not in variant["required"]
        assert "thinking" in variant["properties"]
    assert not any("thinking" in variant["properties"] for variant in schemas(reasoning="off"))
    for form in FORMS:
        lobby = LOBBIES["classic-7"]
        off = Prompts().system(lobby, Options(), Asking(form=form, reasoning="off"))
        required = Prompts().system(lobby, Options(), Asking(form=form, reasoning="required", reasoning_chars_max=300))
        assert "thinking" not in off
        assert "any reasoning." in off
        assert "thinking" in required
        assert "most 300 characters" in required


def test_who_a_player_is_stands_where_it_is_asked_in_few_words() -> None:
    for role in ROLES.values():
        others = ("sheriff", "godfather", "mayor")
        game = open_game((role.id, *(("doctor", "mafioso") if role.id in others else others)))
        first = game.state.players[0]
        identity = told_now(game, first.name).split(NOW)[1].split("\nIt is the first day")[0]
        held = ROLES[first.role]
        assert f"You are {first.name}, the {held.name}." in identity
        assert held.goal in identity
        assert 100 <= len(identity) <= 400, identity


def test_options_are_shuffled_by_the_seed_and_the_place_of_the_choice_is_recorded() -> None:
    def orders(seed: int) -> list[str]:
        options = Options(shuffle_options=True, max_days=2)
        game = open_game(ELEVEN, seed=seed, options=options, asking=Asking(form="json"))
        found: list[str] = []

        def watch(game: Game, turn: Turn, prompt: Prompt) -> None:
            text = prompt.messages[1].content.split(NOW)[1]
            assert isinstance(prompt.view, SeatView)
            for choice in prompt.view.choices:
                if len(choice.targets) > 1:
                    # The list in words, the schema and the view have one order.
                    assert ", ".join(choice.targets) in text
                    assert json.dumps(list(choice.targets)) in json.dumps(variants(prompt))
                    found.append(f"{turn.key} {choice.verb} {choice.targets}")

        play(game, POLICIES["random"], seed=seed, watch=watch)
        for act in rows(game, "acts"):
            if act["act"] in ("vote", "kill", "whisper", "jail", "ballot"):
                assert 1 <= act["option"]["place"] <= act["option"]["of"]
            assert act["act"] != "wait" or "option" not in act
        return found

    assert orders(1) == orders(1)
    assert orders(1) != orders(2)
    places = Counter(line.split("('")[1].split("'")[0] for line in orders(3) if " whisper " in line)
    assert len(places) > 5
    assert '"option"' not in json.dumps(ended()[0].record())


def test_continued_turn_begins_as_the_turn_it_continues_in_the_same_order_and_numbers_keep_theirs() -> None:
    game = open_game(ELEVEN, options=Options(shuffle_options=True, discussion_mode="bidding"))
    before = game.prompt(game.turns()[0]).messages
    for said in ("hm", '<tool_request name="get_lobby"/>'):
        answer(game, said)
        assert game.prompt(game.turns()[0]).messages[: len(before)] == before
    assert "one of: 0, 1, 2, 3, 4" in told_now(advance(game, Phase.BIDDING))


def test_tools_are_those_named_and_none_without() -> None:
    assert get_args(ToolName) == tuple(TOOLS)
    nothing: tuple[ToolName, ...] = ()
    for named in (nothing, ("get_chat",)):
        game = open_game(ELEVEN, tools=named, asking=Asking(form="json"))
        prompt = game.prompt(game.turns()[0])
        shown = prompt.messages[0].content + json.dumps(dict(prompt.schema or {}))
        assert [name for name in TOOLS if name in shown] == list(named)
        receipt = answer(game, '{"tool": "get_role", "argument": "Doctor"}')
        assert receipt.kind is ReceiptKind.OBSERVATION
        assert "no tool 'get_role'" in receipt.detail
    # The heuristic player looks its role up where it can, and greets at once where not.
    for tools, kind in ((nothing, ReceiptKind.ACT), (("get_role",), ReceiptKind.OBSERVATION)):
        game = open_game(ELEVEN, tools=tools)
        view = game.prompt(game.turns()[0]).view
        assert answer(game, POLICIES["heuristic"](view, Random(1))).kind is kind


def test_without_notes_no_player_has_a_notebook() -> None:
    game = open_game(ELEVEN, options=Options(notes=False), tools=(), asking=Asking(form="json"))
    prompt = game.prompt(game.turns()[0])

    assert "notes" not in str(prompt.messages) + json.dumps(variants(prompt))
    receipt = answer(game, "<notes>mine</notes><wait/>")
    assert receipt.kind is ReceiptKind.CORRECTION
    assert "notes cannot be" in receipt.detail
    assert ACTS["notes"].is_played(Options())


EXPERIMENT = """\
experiment_metadata: {experiment_name: trial}
conversation_config: {environment: town_of_salem, conversations: 2}
model_definitions: {m: {backend: scripted, scripted_config: {policy: random}}}
agent_definitions:
  - {agent_id: plain, role: player, model: m}
  - {agent_id: other, role: player, model: m, persona: a careful judge, system: Play to win., reasoning: "off"}
game: {lobby: classic-7%s}
"""


OWN = ", template_file: own.jinja"


def loaded(tmp_path: Path, game: str = "", **changed: str) -> Experiment:
    text = EXPERIMENT % game
    for old, new in changed.items():
        text = text.replace(old, new)
    path = tmp_path / "trial.yaml"
    path.write_text(text, encoding="utf-8")
    return load_experiment(path).experiment


def test_words_of_a_definition_reach_its_players_and_no_others(tmp_path: Path) -> None:
    game = first_game(loaded(tmp_path))
    definitions = {player["name"]: player["definition"] for player in rows(game, "cast")}
    for turn in game.turns():
        system, user = (message.content for message in game.prompt(turn).messages[:2])
        is_other = definitions[turn.agent] == "other"
        assert system.endswith("\n\nPlay to win.") == is_other
        assert (": a careful judge\n" in user.split(NOW)[1]) == is_other
        assert ("<thinking>" in system) != is_other


def test_wording_that_would_change_nothing_is_refused_with_its_key(tmp_path: Path) -> None:
    for key in ("reasoning: required", "reasoning_chars_max: 9", "system: x"):
        text = EXPERIMENT.replace("town_of_salem", "echo").replace("game: {lobby: classic-7%s}", "echo: {rounds: 1}")
        text = text.replace(', persona: a careful judge, system: Play to win., reasoning: "off"', f", {key}")
        path = tmp_path / "echo.yaml"
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=rf"agent_definitions\.1\.{key.split(':')[0]}.*changes nothing"):
            load_experiment(path)
    with pytest.raises(ConfigError, match=r"tools.0: .* keeps notes"):
        loaded(tmp_path, ", notes: false, tools: [get_notes]")
    with pytest.raises(ConfigError, match=r"reasoning_chars_max.*bounds reasoning"):
        loaded(tmp_path, **{'reasoning: "off"': 'reasoning: "off", reasoning_chars_max: 100'})


@pytest.mark.ci
def test_built_in_template_says_what_the_prompts_say(tmp_path: Path) -> None:
    (tmp_path / "own.jinja").write_text(KIND.default, encoding="utf-8")
    texts = []
    for game in ("", OWN):
        opened = first_game(loaded(tmp_path, game))
        texts.append([opened.prompt(turn).messages for turn in opened.turns()])
    assert texts[0] == texts[1]


@pytest.mark.ci
def test_template_with_an_empty_system_block_sends_no_system_message(tmp_path: Path) -> None:
    opened = []
    for system in ("", "{% block system %}{% endblock %}"):
        own = "{% block turn %}{{ record }}{{ known }}{{ question }}{{ options }}{% endblock %}"
        (tmp_path / "own.jinja").write_text(system + own, encoding="utf-8")
        opened.append(first_game(loaded(tmp_path, OWN)))
    (built_in, asked), (alone,) = (game.prompt(game.turns()[0]).messages for game in opened)

    assert built_in.role == "system"
    assert alone == asked


@pytest.mark.ci
def test_template_of_ones_own_is_part_of_the_experiment_and_may_not_hide_the_game(tmp_path: Path) -> None:
    own = "{% block turn %}{{ record }}\n{{ known }}\n*** {{ name }} ***\n{{ question }}\n{{ options }}{% endblock %}"
    (tmp_path / "own.jinja").write_text(own, encoding="utf-8")
    experiment = loaded(tmp_path, OWN)
    assert experiment.environment_settings is not None
    assert experiment.environment_settings.model_dump()["template"] == own
    game = first_game(experiment)
    assert f"*** {game.turns()[0].agent} ***" in told_now(game)
    for left_out, words in (("options", "leaves out {{ options }}"), ("question", "leaves out {{ question }}")):
        (tmp_path / "own.jinja").write_text(own.replace(f"{{{{ {left_out} }}}}", ""), encoding="utf-8")
        with pytest.raises(ConfigError, match=words) as refused:
            build_environment(loaded(tmp_path, OWN))
        assert refused.value.key == ("game", "template_file")
    for bad, words in (
        ("{{ secret }}", "unknown field 'secret'"),
        ("{{ name.__class__ }}", "own.jinja:3: block turn: access to attribute"),
    ):
        (tmp_path / "own.jinja").write_text(own.replace("***", bad, 1), encoding="utf-8")
        with pytest.raises(ConfigError, match=words):
            build_environment(loaded(tmp_path, OWN))


def test_record_is_headed_by_day_and_phase_once_each() -> None:
    lines = "\n".join(ended()[0].log.public_lines).splitlines()
    headings = [line for line in lines if line.startswith("[")]

    assert headings[:3] == ["[Day 1, greeting]", "[Night 1]", "[Day 2, discussion]"]
    assert all(before != after for before, after in pairwise(headings))
    assert len(headings) < len(lines) / 3


# What the tools answer.

WILL = "my will\nin two lines"


def seen(table: Table, who: Who) -> SeatView:
    log = GameLog(len(table.state.players))
    log.append(tuple(table.events))
    return view_of(table.state, log, table.seat(who))


def ask(view: SeatView, tool: str, argument: str = "") -> dict[str, Any]:
    told: dict[str, Any] = json.loads(observe(view, tool, argument))
    return told


@pytest.fixture
def table() -> Table:
    """The third morning: a speech, a whisper, votes, a lynch and a kill behind it."""
    table = Table(CLASSIC)
    table.go_to(Phase.DISCUSSION, day=2)
    table.act("framer", "speak", text="I am the Sheriff. Beatrice is lying, and Caleb is not suspicious.")
    table.act("doctor", "whisper", "sheriff", text="between us")
    table.act("sheriff", "will", text=WILL)
    table.lynch("framer", {"doctor": "innocent"})
    table.night({"mafioso": ("kill", "sheriff")})
    return table


def test_tool_answers_all_that_its_schema_allows_and_says_what_that_is_of_anything_else(table: Table) -> None:
    view = seen(table, "doctor")
    for name, tool in TOOLS.items():
        for argument in tool.argument.allowed(view) if tool.argument else [""]:
            schema = tool.schema(view)
            if schema is not None:
                jsonschema.validate(argument, schema)
            told = ask(view, name, f" {argument.upper()} ")
            assert told, name
            assert "error" not in told, name
        if tool.argument is None:
            assert f"{name} takes no argument" in ask(view, name, "Abel")["error"]
            continue
        for argument in ("", "nonsense", "<b>x"):
            error = ask(view, name, argument)["error"]
            assert f"{name} takes one of: {', '.join(tool.argument.allowed(view))}" in error
            assert "<" not in error
    error = ask(view, "get_truth")["error"]
    assert error.endswith(f"'get_truth'; the tools are: {', '.join(TOOLS)}")


def test_public_record_of_a_player_is_what_all_could_see(table: Table) -> None:
    framer, doctor = (ask(seen(table, "medium"), "get_player", table.name(who)) for who in ("framer", "doctor"))

    assert framer["state"] == "dead, Framer"
    assert framer["claims"] == ["day 2: Sheriff"]
    assert framer["accuses"] == ["day 2: Beatrice"]
    assert framer["trials"] == ["day 2: lynched"]
    assert doctor["state"] == "alive"
    assert doctor["whispers"] == [f"day 2: to {table.name('sheriff')}"]
    assert doctor["ballots"] == [f"day 2: {table.name('framer')} innocent"]
    assert "between us" not in json.dumps(doctor)
    # It keeps what is claimed and whom somebody accuses; `claims/sentences.yaml` says what is a claim.
    text = "I was the Medium. I am a Jester! I am not the Sheriff. Abel and Elias are mafia. Is Caleb mafia?"
    speech = Event(kind=EventKind.SPEECH, day=1, phase=Phase.DISCUSSION, data={"player": "Beatrice", "text": text})
    kept = conduct_of([speech], ("Beatrice", "Abel", "Caleb", "Elias"))["Beatrice"]

    assert (kept.claims, kept.accuses) == ([(1, "Medium"), (1, "Jester")], [(1, "Abel"), (1, "Elias")])


def test_votes_of_a_player_are_told_with_those_taken_back() -> None:
    table = Table(CLASSIC)
    table.go_to(Phase.VOTING)
    table.act("sheriff", "vote", "doctor")
    table.end_round()
    table.act("sheriff", "unvote")
    doctor = table.name("doctor")

    told = ask(seen(table, "jailor"), "get_player", table.name("sheriff"))
    assert told["votes"] == [f"day 2: {doctor}", f"day 2: {doctor}, taken back"]


def test_graves_show_role_cause_and_will_on_one_line_and_who_came_back_has_none(table: Table) -> None:
    dead = ask(seen(table, "doctor"), "get_graveyard")["dead"]

    assert [(grave["player"], grave["role"], grave["day"]) for grave in dead] == [
        (table.name("framer"), "Framer", 2),
        (table.name("sheriff"), "Sheriff", 3),
    ]
    assert dead[1]["will"] == WILL.replace("\n", " / ")
    table = Table(("retributionist", "escort", "doctor", "mafioso", "sheriff"), options=Options(retri="revive"))
    table.night({"mafioso": ("kill", "escort")})
    table.night({"retributionist": ("revive", "escort")})
    graves = ask(seen(table, "doctor"), "get_graveyard")
    assert graves["dead"] == []
    assert table.name("escort") in str(graves["living"])


def test_chat_of_a_day_is_what_the_seat_heard_and_no_more(table: Table) -> None:
    told = {who: json.dumps(ask(seen(table, who), "get_chat", "2")) for who in ("doctor", "jailor")}

    assert all("am the Sheriff" in chat for chat in told.values())
    assert "between us" in told["doctor"]
    assert "between us" not in told["jailor"]
    assert "The sun rises" not in json.dumps(ask(seen(table, "doctor"), "get_chat", "1"))


def test_long_day_is_answered_with_its_newest_lines_whole() -> None:
    table = Table(CLASSIC)
    for seat in table.state.due:
        table.act(seat, "speak", text=f"{seat} " * (SPEECH_CHARS_MAX // 2))
    view = seen(table, "doctor")
    told = ask(view, "get_chat", "1")
    kept = told["known_to_all"]
    lines = "\n".join(view.public_lines).splitlines()

    assert len(json.dumps(told, ensure_ascii=False)) < OBSERVATION_CHARS_MAX + 500
    assert kept == lines[-len(kept) :]
    assert told["earlier_lines_left_out"] == len(lines) - len(kept)


def test_attributes_are_told_with_the_roles_that_have_them(table: Table) -> None:
    for name, attribute in ATTRIBUTES.items():
        told = ask(seen(table, "doctor"), "get_attribute", name)
        assert told["meaning"]
        assert told["roles"] == [role.name for role in ROLES.values() if attribute.holds(role)]
    assert "Jailor" in ask(seen(table, "doctor"), "get_attribute", "unique")["roles"]


def test_every_phase_has_its_rules_and_the_system_message_lists_the_arguments_that_are_few() -> None:
    assert set(PHASE_RULES) == {phase.value for phase in Phase} - {Phase.OVER.value}
    text = Prompts().system(CLASSIC, Options(tools=ALL_TOOLS))
    for few in (*PHASE_RULES, *ATTRIBUTES):
        assert few in text


def test_notes_are_kept_over_turns_and_shown_to_their_writer_alone() -> None:
    table, note = Table(CLASSIC), "Q7Q: watch Beatrice"
    table.act("sheriff", "notes", text=note)
    table.go_to(Phase.DISCUSSION, day=2)

    for player in table.state.players:
        view = seen(table, player.seat)
        is_writer = player.dealt == "sheriff"
        assert (f"notes: “{note}”" in Prompts().turn(view)) == is_writer
        assert (ask(view, "get_notes")["notes"] == note) == is_writer
    assert "Q7Q" not in repr(table.events)
    table.act("sheriff", "notes", text="new")
    assert ask(seen(table, "sheriff"), "get_notes")["notes"] == "new"


def test_notes_do_not_use_up_the_turn_and_are_bounded() -> None:
    longest, kinds = "n" * NOTES_CHARS_MAX, (ReceiptKind.ACT, ReceiptKind.CORRECTION)
    texts = (f"<notes>{longest}</notes><wait/>", "<notes>n</notes>")
    assert tuple(answer(open_game(CLASSIC), text).kind for text in texts) == kinds
    refused = answer(open_game(CLASSIC), f"<notes>{longest}n</notes><wait/>")
    assert f"{NOTES_CHARS_MAX} are allowed" in refused.detail
