"""How players are asked: one form of reply, reasoning as a variable, shuffled options, words of one's own."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import get_args

import pytest

from mac_runner.config import Experiment, load_experiment
from mac_runner.environments import build_environment
from mac_runner.environments.town_of_salem.testing import (
    ACTS,
    DEFAULT,
    LOBBIES,
    POLICIES,
    ROLES,
    TOOLS,
    Asking,
    Game,
    Options,
    Phase,
    SeatView,
    ToolName,
    TownOfSalem,
    system_text,
)
from mac_runner.errors import ConfigError
from mac_runner.plan import plan_tasks
from mac_runner.types import Prompt, ReceiptKind, Reply, ReplyForm, Turn
from tests.environments.town_of_salem.table import ELEVEN, open_game, play

FORMS: tuple[ReplyForm, ...] = get_args(ReplyForm)
SYSTEM_CHARS_MAX = 8_029 * 1_200 // 1_900
"""1,200 tokens, where the message of 8,029 characters before had 1,900."""


def test_prompt_shows_one_form_from_its_first_word_to_its_correction() -> None:
    foreign = {"markup": ('{"', "JSON", '"act"'), "json": ("</", "/>", "<speak", " tag")}

    for form in FORMS:

        def watch(game: Game, turn: Turn, prompt: Prompt, form: ReplyForm = form) -> None:
            ours = "".join(message.content for message in prompt.messages if message.role != "assistant")
            ours = ours.replace("<observation>", "").replace("</observation>", "")
            ours = ours.replace("<correction>", "").replace("</correction>", "")
            for shape in foreign[form]:
                assert shape not in ours, f"{shape} in {ours[-500:]}"

        game = open_game(ELEVEN, options=Options(max_days=3), tools=(), asking=Asking(form=form))
        play(game, POLICIES["random"], watch=watch)


def test_system_message_of_the_classic_table_has_at_most_1200_tokens() -> None:
    for form in FORMS:
        assert len(system_text(LOBBIES["classic-10"], Options(), Asking(form=form))) <= SYSTEM_CHARS_MAX, form


def test_no_example_is_an_answer() -> None:
    """What a prompt shows of a reply can be copied without having chosen anything."""
    table = open_game(ELEVEN).state
    names = {player.name for player in table.players}
    for form in FORMS:
        text = system_text(
            LOBBIES["classic-15"], Options(discussion_mode="bidding", tools=tuple(TOOLS)), Asking(form=form)
        )
        examples = [line.split(": ")[0] for line in text.splitlines() if line.startswith(("- <", "- {"))]
        assert len(examples) > 8
        for example in examples:
            assert not any(word in example for word in ("guilty", "innocent", "abstain", *"01234", *names)), example


def variants(asking: Asking) -> list[dict[str, object]]:
    game = open_game(ELEVEN, asking=asking)
    schema = game.prompt(game.turns()[0]).schema
    assert schema is not None
    found = schema["anyOf"]
    assert isinstance(found, list)
    return [dict(variant) for variant in found if isinstance(variant, dict)]


def test_reasoning_is_first_and_bounded_where_required_and_nowhere_where_off() -> None:
    for variant in variants(Asking(form="json", reasoning="required", reasoning_chars_max=300)):
        properties = variant["properties"]
        assert isinstance(properties, dict)
        assert next(iter(properties)) == "thinking"
        assert properties["thinking"] == {"type": "string", "minLength": 1, "maxLength": 300}
        assert "thinking" in list(variant["required"])[:1]  # type: ignore[call-overload]
    for variant in variants(Asking(form="json")):
        assert "thinking" not in list(variant["required"])  # type: ignore[call-overload]
        assert "thinking" in dict(variant["properties"])  # type: ignore[call-overload]
    for variant in variants(Asking(form="json", reasoning="off")):
        assert "thinking" not in dict(variant["properties"])  # type: ignore[call-overload]
    for form in FORMS:
        lobby = LOBBIES["classic-7"]
        off = system_text(lobby, Options(), Asking(form=form, reasoning="off"))
        required = system_text(lobby, Options(), Asking(form=form, reasoning="required", reasoning_chars_max=300))
        assert "thinking" not in off
        assert "any reasoning." in off
        assert "thinking" in required
        assert "most 300 characters" in required


def test_who_a_player_is_stands_where_it_is_asked_in_few_words() -> None:
    for role in ROLES.values():
        game = open_game(
            (role.id, "sheriff", "godfather", "mayor")
            if role.id not in ("sheriff", "godfather", "mayor")
            else (role.id, "doctor", "mafioso")
        )
        name = game.state.players[0].name
        turn = next(turn for turn in game.turns() if turn.agent == name)
        now = game.prompt(turn).messages[1].content.split("\n\nNOW\n")[1]
        identity = now.split("\nIt is the first day")[0]
        held = ROLES[game.state.players[0].role]
        assert f"You are {name}, the {held.name}." in identity
        assert held.goal in identity
        assert 100 <= len(identity) <= 400, identity


def test_options_are_shuffled_by_the_seed_and_the_place_of_the_choice_is_recorded() -> None:
    def orders(seed: int) -> list[str]:
        game = open_game(
            ELEVEN, seed=seed, options=Options(shuffle_options=True, max_days=2), asking=Asking(form="json")
        )
        found: list[str] = []

        def watch(game: Game, turn: Turn, prompt: Prompt) -> None:
            text = prompt.messages[1].content.split("\n\nNOW\n")[1]
            assert prompt.schema is not None
            view = prompt.view
            assert isinstance(view, SeatView)
            for choice in view.choices:
                if len(choice.targets) > 1:
                    # The list in words, the schema and the view have one order.
                    assert ", ".join(choice.targets) in text
                    assert json.dumps(list(choice.targets)) in json.dumps(dict(prompt.schema))
                    found.append(f"{turn.key} {choice.verb} {choice.targets}")

        play(game, POLICIES["random"], seed=seed, watch=watch)
        acts = game.record()["acts"]
        assert isinstance(acts, list)
        for act in acts:
            assert isinstance(act, dict)
            if act["act"] in ("vote", "kill", "whisper", "jail", "ballot"):
                option = act["option"]
                assert isinstance(option, dict)
                assert 1 <= int(str(option["place"])) <= int(str(option["of"]))
            elif act["act"] in ("speak", "wait"):
                assert "option" not in act or act["act"] == "speak"
        return found

    assert orders(1) == orders(1)
    assert orders(1) != orders(2)
    places = Counter(line.split("('")[1].split("'")[0] for line in orders(3) if " whisper " in line)
    assert len(places) > 5
    plain = open_game(ELEVEN, options=Options(max_days=2))
    play(plain, POLICIES["random"])
    assert '"option"' not in json.dumps(plain.record())


def test_correction_shows_the_same_order_again_and_numbers_keep_theirs() -> None:
    game = open_game(ELEVEN, options=Options(shuffle_options=True, discussion_mode="bidding"))
    before = game.prompt(game.turns()[0]).messages
    game.receive(game.turns()[0], Reply(text="hm"))
    assert game.prompt(game.turns()[0]).messages[: len(before)] == before
    while game.state.phase is not Phase.BIDDING:
        game.receive(game.turns()[0], Reply(text="<wait/>"))
    assert "one of: 0, 1, 2, 3, 4" in game.prompt(game.turns()[0]).messages[1].content


def test_tools_are_those_named_and_none_without() -> None:
    assert get_args(ToolName) == tuple(TOOLS)
    nothing: tuple[ToolName, ...] = ()
    for named in (nothing, ("get_chat",)):
        game = open_game(ELEVEN, tools=named, asking=Asking(form="json"))
        prompt = game.prompt(game.turns()[0])
        shown = prompt.messages[0].content + json.dumps(dict(prompt.schema or {}))
        assert [name for name in TOOLS if name in shown] == list(named)
        receipt = game.receive(game.turns()[0], Reply(text='{"tool": "get_role", "argument": "Doctor"}'))
        assert receipt.kind is ReceiptKind.OBSERVATION
        assert "no tool 'get_role'" in receipt.detail
    # The heuristic player looks its role up where it can, and greets at once where not.
    for tools, kind in ((nothing, ReceiptKind.ACT), (("get_role",), ReceiptKind.OBSERVATION)):
        game = open_game(ELEVEN, tools=tools)
        turn = game.turns()[0]
        assert game.receive(turn, Reply(text=POLICIES["heuristic"](game.prompt(turn).view, Random(1)))).kind is kind


def test_without_notes_no_player_has_a_notebook() -> None:
    game = open_game(ELEVEN, options=Options(notes=False), tools=(), asking=Asking(form="json"))
    prompt = game.prompt(game.turns()[0])

    assert "notes" not in prompt.messages[0].content + prompt.messages[1].content + json.dumps(
        dict(prompt.schema or {})
    )
    receipt = game.receive(game.turns()[0], Reply(text="<notes>mine</notes><wait/>"))
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


def loaded(tmp_path: Path, game: str = "", **changed: str) -> Experiment:
    text = EXPERIMENT % game
    for old, new in changed.items():
        text = text.replace(old, new)
    path = tmp_path / "trial.yaml"
    path.write_text(text, encoding="utf-8")
    return load_experiment(path).experiment


def test_words_of_a_definition_reach_its_players_and_no_others(tmp_path: Path) -> None:
    experiment = loaded(tmp_path)
    environment = build_environment(experiment)
    task = next(iter(plan_tasks(experiment, environment.lineup)))
    game = environment.open(task)
    definitions = {agent.agent_id: agent.definition for agent in task.agents}
    for turn in game.turns():
        system, user = (message.content for message in game.prompt(turn).messages[:2])
        is_other = definitions[turn.agent] == "other"
        assert system.endswith("\n\nPlay to win.") == is_other
        assert (": a careful judge\n" in user.split("\n\nNOW\n")[1]) == is_other
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
    (tmp_path / "own.jinja").write_text(DEFAULT, encoding="utf-8")
    texts = []
    for game in ("", ", template_file: own.jinja"):
        experiment = loaded(tmp_path, game)
        environment = build_environment(experiment)
        opened = environment.open(next(iter(plan_tasks(experiment, environment.lineup))))
        texts.append([opened.prompt(turn).messages for turn in opened.turns()])
    assert texts[0] == texts[1]


@pytest.mark.ci
def test_template_with_an_empty_system_block_sends_no_system_message(tmp_path: Path) -> None:
    opened = []
    for system in ("", "{% block system %}{% endblock %}"):
        own = "{% block turn %}{{ record }}{{ known }}{{ question }}{{ options }}{% endblock %}"
        (tmp_path / "own.jinja").write_text(system + own, encoding="utf-8")
        experiment = loaded(tmp_path, ", template_file: own.jinja")
        environment = build_environment(experiment)
        opened.append(environment.open(next(iter(plan_tasks(experiment, environment.lineup)))))
    (built_in, asked), (alone,) = (game.prompt(game.turns()[0]).messages for game in opened)

    assert built_in.role == "system"
    assert alone == asked


@pytest.mark.ci
def test_template_of_ones_own_is_part_of_the_experiment_and_may_not_hide_the_game(tmp_path: Path) -> None:
    own = "{% block turn %}{{ record }}\n{{ known }}\n*** {{ name }} ***\n{{ question }}\n{{ options }}{% endblock %}"
    (tmp_path / "own.jinja").write_text(own, encoding="utf-8")
    experiment = loaded(tmp_path, ", template_file: own.jinja")
    assert experiment.environment_settings is not None
    assert experiment.environment_settings.model_dump()["template"] == own
    environment = TownOfSalem(experiment)
    game = environment.open(next(iter(plan_tasks(experiment, environment.lineup))))
    turn = game.turns()[0]
    assert f"*** {turn.agent} ***" in game.prompt(turn).messages[1].content
    for left_out, words in (("options", "leaves out {{ options }}"), ("question", "leaves out {{ question }}")):
        (tmp_path / "own.jinja").write_text(own.replace(f"{{{{ {left_out} }}}}", ""), encoding="utf-8")
        with pytest.raises(ConfigError, match=words) as refused:
            build_environment(loaded(tmp_path, ", template_file: own.jinja"))
        assert refused.value.key == ("game", "template_file")
    for bad, words in (
        ("{{ secret }}", "unknown field 'secret'"),
        ("{{ name.__class__ }}", "own.jinja:3: block turn: access to attribute"),
    ):
        (tmp_path / "own.jinja").write_text(own.replace("***", bad, 1), encoding="utf-8")
        with pytest.raises(ConfigError, match=words):
            build_environment(loaded(tmp_path, ", template_file: own.jinja"))


def test_record_is_headed_by_day_and_phase_once_each() -> None:
    game = open_game(ELEVEN, options=Options(max_days=3))
    play(game, POLICIES["heuristic"])
    lines = "\n".join(game.log.public_lines).splitlines()
    headings = [line for line in lines if line.startswith("[")]

    assert headings[:3] == ["[Day 1, greeting]", "[Night 1]", "[Day 2, discussion]"]
    assert all(before != after for before, after in pairwise(headings))
    assert len(headings) < len(lines) / 3
