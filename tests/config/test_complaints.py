from __future__ import annotations

from collections.abc import Callable

import pytest

Refusal = Callable[..., list[str]]


WRONG = {
    "seed='3'": 'seed: found the text "3"; allowed: a whole number',
    "seed=true": "seed: found true; allowed: a whole number",
    "seed=1.0": "seed: found 1.0; allowed: a whole number",
    "seed=": "--set seed:1: empty; nothing is written in it",
    "seed=null": "seed: found nothing; allowed: a whole number",
    "game.flags.mafia_parity='no'": 'game.flags.mafia_parity: found the text "no"; allowed: true or false',
    "game.flags.mafia_parity=0": "game.flags.mafia_parity: found 0; allowed: true or false",
    "game.flags.sheriff=bin": "found the text \"bin\"; allowed: one of 'binary' or 'typed'",
    "game.flags=[]": "game.flags: found an empty list; allowed: a mapping",
    "retry_config=": "empty",
    "retry_config=null": "retry_config: found nothing; allowed: a mapping",
    "retry_config.backoff_s=x": 'retry_config.backoff_s: found the text "x"; allowed: a number',
    "retry_config.backoff_s=-1": "retry_config.backoff_s: found -1; allowed: at least 0",
    "retry_config.request_deadline_s=0": "found 0; allowed: more than 0",
    "game.calendar.max_days=1000": "game.calendar.max_days: found 1000; allowed: at most 100",
    "game.lobby=3": "game.lobby: found 3; allowed: a text or a list",
    "game.lobby=[]": "game.lobby: found an empty list; allowed: a text or at least 1 of them",
    "game.lobby=[Doctor, 3]": "game.lobby.1: found 3; allowed: a text",
    "game.seats={player: x}": 'game.seats.player: found the text "x"; allowed: a whole number',
    "agent_definitions={}": "agent_definitions: found a mapping; allowed: a list",
    "agent_definitions=[]": "agent_definitions: found an empty list; allowed: at least 1 of them",
    "agent_definitions.0.role=''": 'found the text ""; allowed: a text that is not empty',
    "experiment_metadata.experiment_name=../up": "found the text \"../up\"; allowed: 1 to 80 letters, digits, '.', '_'",
    "model_definitions={a b: {backend: vllm}}": "model_definitions.a b: found the text",
    "model_definitions.folk.backend=gpt": "there is no 'gpt' here; allowed: anthropic, fleet, nano, ollama, openai",
}


def test_a_wrong_value_is_reported_with_what_was_found_and_what_is_allowed(
    refusal: Refusal, game_text: str, subtests: pytest.Subtests
) -> None:
    for override, expected in WRONG.items():
        with subtests.test(override):
            (line,) = refusal(game_text, overrides=[override])

            assert expected in line


def test_a_whole_number_is_taken_where_a_number_is_asked_for(load: Callable[..., object], game_text: str) -> None:
    load(game_text, overrides=["retry_config.backoff_s=2"])


def test_complaints_never_show_pydantic_or_a_pasted_key(refusal: Refusal, game_text: str) -> None:
    key = "sk-canary-000"
    model = f"{{backend: openai, openai_config: {{model: m, base_urls: ['http://u:{key}@h'], api_key_env: {key}}}}}"
    printed = "\n".join(refusal(game_text, overrides=[f"model_definitions.folk={model}", f"api_key={key}"]))

    assert "environment variable" in printed
    assert key not in printed
    assert "pydantic" not in printed


def test_address_that_holds_a_key_is_not_shown(refusal: Refusal, game_text: str) -> None:
    key = "sk-canary-000"
    for url in (f"http://h/v1?key={key}", f"http://h/v1#{key}", f"http://{key}@h/v1", key):
        model = f"{{backend: openai, openai_config: {{model: m, base_urls: ['{url}']}}}}"
        printed = "\n".join(refusal(game_text, overrides=[f"model_definitions.folk={model}"]))

        assert "base_urls.0: this value" in printed
        assert key not in printed


def test_a_long_value_is_cut_short(refusal: Refusal, game_text: str) -> None:
    (line,) = refusal(game_text, overrides=[f"game.flags.sheriff={'x' * 100_000}"])

    assert len(line) < 300


def test_hostile_text_is_printed_on_one_line_and_cannot_act_on_a_terminal(refusal: Refusal, game_text: str) -> None:
    hostile = '"a\\nb\\u2028c\\e[31m"'
    for place in ("game: {flags: {sheriff: %s}}", "game: {%s: 1}", "profiles: {%s: 1}", "profile: %s"):
        (line,) = refusal(game_text + place % hostile)

        assert line.isprintable(), place
