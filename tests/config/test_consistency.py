from __future__ import annotations

from collections.abc import Callable

from mac_runner.config import Loaded, recorded
from mac_runner.config.testing import parse_document
from mac_runner.environments.town_of_salem import GameConfig

Refusal = Callable[..., list[str]]
Talk = Callable[[dict[str, list[str]]], list[str]]


def test_waiting_in_a_circle_or_for_an_unknown_agent_is_refused(talk_among: Talk) -> None:
    cases: list[tuple[dict[str, list[str]], str]] = [
        ({"a": ["a"]}, "agents wait for each other: a -> a; none could begin"),
        ({"a": ["b"], "b": ["a"]}, "agents wait for each other: a -> b -> a; none could begin"),
        ({"m": ["a"], "a": ["b"], "b": ["c", "a"], "c": []}, "agents wait for each other: a -> b -> a; none"),
        ({"ann": ["bob", "ban"], "bob": []}, "there is no agent 'ban'; allowed: ann, bob (did you mean 'ann'?)"),
    ]
    for waits, expected in cases:
        (line,) = talk_among(waits)

        assert line.startswith("trial.yaml:")
        assert ".role_specific_config.speak_after_within_round" in line
        assert expected in line


def test_a_long_chain_of_waiting_is_followed_to_its_end(talk_among: Talk) -> None:
    chain = {f"a{number}": [f"a{number + 1}"] for number in range(300)}

    (line,) = talk_among({**chain, "a300": ["a298"]})

    assert "a298 -> a299 -> a300 -> a298" in line


def test_section_of_another_environment_is_left_out(load: Callable[..., Loaded], game_text: str) -> None:
    talk = "conversation_config.environment=discussion"

    talking = load(game_text, overrides=[talk, "discussion.topics=[bridges]", "agent_definitions.0.role=participant"])
    assert talking.resolved["game"] is None
    assert load(game_text + "game:\n").experiment.settings_as(GameConfig) is not None


IGNORED = {
    "town_of_salem": {
        "role: banana": ".role: found 'banana', which changes nothing in the environment 'town_of_salem'; "
        "allowed: player",
        "role: player, demographics: {age: old}": ".demographics: changes nothing in the environment 'town_of_salem'; "
        "describe the player in `persona`",
        "role: player, if_as_human: false": ".if_as_human: changes nothing in the environment 'town_of_salem'; leave "
        "it out, or say so in `persona`",
        "role: player, role_specific_config: {visible_to: []}": ".role_specific_config.visible_to: changes nothing in "
        "the environment 'town_of_salem'; leave it out: the rules of the game say who hears what",
        "role: player, if_as_human: null, demographics: {}": "",
    },
    "echo": {
        "role: caller": ".role: found 'caller', which changes nothing in the environment 'echo'; allowed: participant",
        "role: participant, role_specific_config: {speak_after_within_round: [first]}": ".role_specific_config."
        "speak_after_within_round: changes nothing in the environment 'echo'; leave it out: all agents speak at once",
        **{
            f"role: participant, {key}: {value}": f".{key}: changes nothing in the environment 'echo'; leave it out: "
            "an agent sees its number and nothing else"
            for key, value in (("persona", "nurse"), ("demographics", "{age: 7}"), ("if_as_human", "true"))
        },
        "role: participant": "",
    },
}


def test_settings_that_change_nothing_are_refused_in_files_and_read_in_recorded_runs(
    load: Callable[..., Loaded], refusal: Refusal, game_text: str
) -> None:
    """Earlier versions let them pass, so there are runs that have them."""
    roles, sections = {"town_of_salem": "player", "echo": "participant"}, {"echo": "echo: {rounds: 1}\n"}
    for environment, expected in IGNORED.items():
        text = game_text.replace("town_of_salem", environment).replace("role: player", f"role: {roles[environment]}")
        text = sections.get(environment, "") + text.replace("agent_id: player", "agent_id: first")
        line = text.count("\n") + 1
        for setting, problem in expected.items():
            whole = f"{text}  - {{agent_id: other, model: folk, {setting}}}\n"
            if not problem:
                load(whole)
                continue
            assert refusal(whole) == [f"trial.yaml:{line}: agent_definitions.1{problem}"]
            config = parse_document(whole.encode(), "trial.yaml").value
            assert isinstance(config, dict)
            assert len(recorded(config, "experiment.yaml").agent_definitions) == 2
