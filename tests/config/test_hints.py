"""An unknown key that belongs elsewhere is refused with its full place."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mac_runner.config import Experiment
from mac_runner.config.testing import _SYNONYMS, belongs
from mac_runner.section import leaf_fields

Refusal = Callable[..., list[str]]


MISPLACED = {
    "temperature": "agent_definitions[].temperature",
    "discussion.temperature": "agent_definitions[].temperature",
    "discussion.choice_format": "discussion.prompt.choice_format",
    "choice_display_format": "discussion.prompt.choice_format",
    "questions_file": "discussion.questions",
    "lobby": "game.lobby",
    "agents": "agent_definitions",
    "agent_definitions.0.max_new_tokens": "agent_definitions[].max_tokens",
    "agent_definitions.0.speak_after_within_round": "agent_definitions[].role_specific_config.",
    "game.max_retries": "retry_config.max_retries",
    "game.temprature": "agent_definitions[].temperature",
}


def test_a_key_in_the_wrong_place_is_refused_with_the_right_one(
    refusal: Refusal, game_text: str, subtests: pytest.Subtests
) -> None:
    for key, place in MISPLACED.items():
        with subtests.test(key):
            (line,) = refusal(game_text, overrides=[f"{key}=1"])

            assert f"belongs at {place}" in line
            assert f"{key}: unknown" in line


def test_a_key_of_several_sections_is_refused_with_the_nearest_ones(refusal: Refusal, game_text: str) -> None:
    (line,) = refusal(game_text, overrides=["model_definitions.folk.model_path=x"])

    places = line.partition("it belongs at ")[2].removesuffix(", and elsewhere").split(" or ")
    assert "model_definitions.NAME.vllm_config.model" in places
    assert all(place.startswith("model_definitions.NAME.") and place.endswith(".model") for place in places)


def test_a_slip_beside_its_key_and_a_key_like_no_other_get_the_allowed_keys(refusal: Refusal, game_text: str) -> None:
    for key in ("retry_config.max_retires", "game.calender", "gmae", "nonsense_of_mine"):
        (line,) = refusal(game_text, overrides=[f"{key}=1"])

        assert f"{key}: unknown key; allowed: " in line


def test_the_hint_of_every_leaf_at_the_top_names_its_place() -> None:
    leaves = [path for path, _ in leaf_fields(Experiment) if len(path) > 1 and path[-1] not in Experiment.model_fields]
    unnamed = [path for path in leaves if not belongs((path[-1],), Experiment)]

    assert len(leaves) > 100
    assert unnamed == []


def test_every_synonym_leads_to_a_key_of_the_schema() -> None:
    assert [word for word in _SYNONYMS if not belongs((word,), Experiment)] == []
